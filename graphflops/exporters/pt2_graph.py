"""Reads one graph of a `.pt2`: its inputs, calls and outputs, with all references resolved and checked."""

from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any

from graphflops.dims import differ
from graphflops.errors import FileError, shown
from graphflops.exporters import pt2_schema as schema, pt2_values as values
from graphflops.exporters.pt2_tables import Tables
from graphflops.exporters.sources import with_modules
from graphflops.exporters.types import guards_of, with_aliases, with_parts
from graphflops.graph import Argument, Graph, Input, InputRole, Node, Opaque, Origin, Output, OutputRole, Ref
from graphflops.ops import operator
from graphflops.ops.operator import arranged
from graphflops.tensor import TensorType

MAX_DEPTH = 50  # of graphs nested in graphs


def graph_of(decoded: schema.ExportedProgram, tables: Tables, origin: Origin) -> Graph:
    """The whole program that a member of an archive describes. tables: how the archive stores its tensors."""
    program, shared, module = values.Program(), tables.shared(), decoded.graph_module
    if module.graph.is_single_tensor_return:
        raise FileError("says that it returns one tensor and no list, as a nested graph may")
    scope = Scope(program, module.graph, 0)
    inputs = scope.inputs(module.signature.input_specs, shared or {})
    values.refuse_other_names("input", module.graph.inputs, module.signature.input_specs)
    nodes = scope.nodes()
    outputs = tuple([scope.output(spec) for spec in module.signature.output_specs])
    values.refuse_other_names("output", module.graph.outputs, module.signature.output_specs)
    known = {name: entry.name for entry in inputs for name in (entry.name, entry.target)}
    for out in outputs:
        if out.target and out.target not in known:
            raise FileError(f"has a {out.role} of {shown(out.target)}, which is no input of the program")
        names = getattr(out.value, "name", ""), known.get(out.target, "")
        new, old = (getattr(scope.types.get(name), "shape", ()) for name in names)
        pairs = zip_longest(reversed(new), reversed(old), fillvalue=1)
        if out.role == "mutation" and any(differ(one, 1) and differ(one, other) for one, other in pairs):
            program.note("GF102", "", f"{shown(out.target)} of {old} cannot be written with {new}")
    nodes, inputs = with_parts(nodes, inputs, outputs, scope.types)
    inputs = with_aliases(inputs, nodes, scope.types) if shared is None else inputs
    ranges = {name: (r.min_val, r.max_val) for name, r in decoded.range_constraints.items()}
    symbols = program.types.symbols(ranges, inputs, scope.types)
    for text in program.types.contradictions(symbols):
        program.note("GF127", "", text)
    return Graph(
        nodes=with_modules(nodes, inputs, outputs),
        types=scope.types,
        inputs=inputs,
        outputs=outputs,
        symbols=symbols,
        modules=program.sources.modules,
        origin=origin,
        contents=tables.contents(),
        orders=program.types.orders,
        guards=guards_of(decoded.guards_code or (), inputs),
        lists_guards=decoded.guards_code is not None,
        notes=tuple(program.notes),
    )


class Scope:
    """One graph being read, with the values defined so far."""

    def __init__(self, program: values.Program, graph: schema.Graph, depth: int) -> None:
        self.program, self.graph, self.depth = program, graph, depth
        self.refs: dict[str, Ref] = _Defined()
        self.node_names: set[str] = set()
        self._numbers: dict[str, int] = {}  # by name: the last number appended to it
        self._graphs: dict[str, bytes] = {}  # nested ones by name
        program.count(len(graph.nodes))
        self.types: dict[str, Any] = {x: program.tensor(x, raw) for x, raw in graph.tensor_values.items()}
        self.types |= {x: program.integer(x, value) for x, value in graph.sym_int_values.items()}
        self.types |= {x: program.floating(value) for x, value in graph.sym_float_values.items()}
        self.types |= {x: program.truth(value) for x, value in graph.sym_bool_values.items()}

    def inputs(self, specs: Iterable[schema.InputSpec], shared: Mapping[str, str]) -> tuple[Input, ...]:
        entries = [self.input(spec, shared) for spec in specs]
        for entry in entries:
            self.define(entry.name)
            self.type_input(entry)
        return tuple(entries)

    def input(self, spec: schema.InputSpec, shared: Mapping[str, str]) -> Input:
        if spec.user_input is not None:
            names = values.results(spec.user_input.arg)
            if len(names) != 1 or names[0] is None:
                raise FileError("an input of the program has no name of its own")
            return Input(names[0], "object" if spec.user_input.arg.as_custom_obj is not None else "user")
        if spec.constant_input is not None:
            self.types[spec.constant_input.name] = values.literal(spec.constant_input.value)
            return Input(spec.constant_input.name, "user")
        for kind, (role, field) in _INPUTS.items():
            if (given := getattr(spec, kind)) is not None:
                target, is_weight = _target(given, field), role in ("parameter", "buffer")
                return Input(given.arg.name, role, target, shared.get(target, "") if is_weight else "")
        raise FileError("an input of the program has a role that this graphflops does not know")

    def type_input(self, entry: Input) -> None:
        """Completes an input's type: whether it requires a gradient, its memory if a stride is 0, sparse storage."""
        known = self.types.get(entry.name)
        if not isinstance(known, TensorType):
            if entry.name not in self.types and entry.role not in ("object", "token"):
                raise FileError(f"input {shown(entry.name)} has no recorded type")
            return
        meta = self.program.meta(entry.name, self.graph.tensor_values[entry.name])
        strides = [stride.as_int for stride in meta.strides]
        is_sparse = values.named(values.LAYOUTS, meta.layout).startswith("sparse")
        of_input = self.program.types.of_input
        self.types[entry.name] = of_input(entry, known, strides, meta.requires_grad, is_sparse)

    def output(self, spec: schema.OutputSpec) -> Output:
        if spec.user_output is not None:
            return Output(self.argument(spec.user_output.arg))
        for kind, (role, field) in OUTPUTS.items():
            if (given := getattr(spec, kind)) is not None:
                return Output(self.refs[given.arg.name], role, _target(given, field))
        raise FileError("an output of the program has a role that this graphflops does not know")

    def region(self, name: str) -> Graph:
        """The graph, read as one nested in another: its inputs and outputs have no roles."""
        entries = []
        for index, argument in enumerate(self.graph.inputs):
            names = [value for value in values.results(argument) if value is not None]
            if not names:  # for an operand that the export fixed, the file stores its value
                names = [self.unused(f"fixed_{index}")]
                self.types[names[0]] = self.argument(argument)
            for value in names:
                self.define(value)
                entries.append(Input(value, "user"))
        nodes = self.nodes()
        outputs = tuple([Output(self.argument(argument)) for argument in self.graph.outputs])
        return Graph(nodes, self.types, tuple(entries), outputs, name=name)

    def nodes(self) -> tuple[Node, ...]:
        """All calls, in program order, each checked to use only what is defined before it."""
        program = self.program
        self.node_names.update(self.refs)
        built = []
        for index, raw in enumerate(self.graph.nodes):
            node = schema.decode_part(program.node_decoder, raw, f"node #{index}")
            op = values.operator_name(node.target)
            try:
                args, kwargs = self.operands(self.arranged(op, node), op.startswith("higher_order."))
                outputs = self.results(node.outputs)
                called = operator(op)
                # `while_loop` reads a condition from its first graph; other control flow returns what its graphs return.
                returns = called.kind == "control" and called.name != "while_loop"
                kinds = {id(x) in program.singles for x in args if isinstance(x, Graph)}
                is_list = node.is_hop_single_tensor_return is False
                if returns and True in kinds and (is_list or len(kinds) > 1):
                    raise FileError("returns a list, its graph one tensor: torch would take rows of it")
                # Calls of old files have no names: take that of the first result, or else the operator's.
                name = node.name or (outputs[0] if outputs else None)
                name = operator(op).short_name if name is None else name
                name = self.unused(name) if name in self.node_names else name
                self.node_names.add(name)
            except FileError as error:
                raise FileError(f"node {shown(node.name or f'#{index}')} ({shown(op)}): {error}") from None
            sources = program.sources.of(node.metadata.stack_trace, node.metadata.nn_module_stack)
            built.append(Node(name, op, args, kwargs, outputs, *sources))
        return tuple(built)

    def arranged(self, op: str, node: schema.Node) -> list[schema.NamedArgument]:
        """The operands of a call in the order of the operator's schema: torch binds them by name."""
        inputs = node.inputs
        names = tuple([entry.name for entry in inputs])
        if len({*names}) < len(names) and len(named := [*filter(None, names)]) > len({*named}):
            raise FileError("has two operands of one name")
        places = arranged(op, names)
        if places is None:
            return inputs
        if len(places) < len(inputs):
            other = next(name for place, name in enumerate(names) if place not in places)
            text = f"{shown(op)} has no operand {shown(other)}: readers differ in whether it counts"
            self.program.note("GF130", node.name or "", text)
        return [inputs[place] for place in places]

    def operands(
        self, inputs: list[schema.NamedArgument], is_higher: bool
    ) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
        """Positional and keyword operands.

        Files of torch before 2.7 name every operand and leave gaps for defaults, so each is passed on by its name. Operands
        of higher-order operators are positional if they have no name.
        """
        args: list[Argument] = []
        kwargs: list[tuple[str, Argument]] = []
        argument = self.argument
        for entry in inputs:
            if not entry.name or (entry.kind == 1 and not is_higher):
                args.append(argument(entry.arg))
            else:
                kwargs.append((entry.name, argument(entry.arg)))
        return tuple(args), tuple(kwargs)

    def results(self, outputs: list[schema.Argument]) -> tuple[str | None, ...]:
        names = tuple([name for output in outputs for name in values.results(output)])
        for name in names:
            if name is not None:
                self.define(name)
        return names

    def define(self, name: str) -> None:
        if name in self.refs:
            raise FileError(f"defines value {shown(name)}, which exists already")
        self.refs[name] = Ref(name)

    def unused(self, name: str) -> str:
        candidate, count = name, self._numbers.get(name, 0)
        while candidate in self.node_names or candidate in self.refs:
            count += 1
            candidate = f"{name}_{count}"
        self._numbers[name] = count
        return candidate

    def argument(self, arg: schema.Argument) -> Argument:
        if arg.as_tensor is not None:
            return self.refs[arg.as_tensor.name]
        for kind, convert in _CONVERTERS.items():
            if (value := getattr(arg, kind)) is not None:
                return convert(self, value)
        raise FileError("an operand is of a kind that this graphflops does not know")

    def nested(self, argument: schema.GraphArgument) -> Graph:
        where = f"graph {shown(argument.name)}"
        if self.depth >= MAX_DEPTH:
            raise FileError(f"{where}: graphs nest deeper than {MAX_DEPTH}")
        key = bytes(argument.graph)
        if self._graphs.setdefault(argument.name, key) != key:
            raise FileError(f"{where} is there twice, and torch runs one of them in the place of both")
        known = self.program.nested.get(key)
        if known is None:
            graph = schema.decode_part(self.program.graph_decoder, key, where)
            scope = Scope(self.program, graph, self.depth + 1)
            try:
                known = scope.region(argument.name)
            except FileError as error:
                raise FileError(f"{where}: {error}") from None
            self.program.nested[key] = known
            if graph.is_single_tensor_return:
                self.program.singles.add(id(known))
        return known


# By field of an InputSpec: the role, and the field with the name in the model.
_INPUTS: dict[str, tuple[InputRole, str]] = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
    "custom_obj": ("object", "custom_obj_name"),
    "token": ("token", ""),
}
# By field of an OutputSpec, and by kind in lower case in torch: the role, and the field with the name of what it belongs to.
OUTPUTS: dict[str, tuple[OutputRole, str]] = {
    "user_output": ("user", ""),
    "loss_output": ("loss", ""),
    "gradient_to_parameter": ("gradient", "parameter_name"),
    "gradient_to_user_input": ("gradient", "user_input_name"),
    "buffer_mutation": ("mutation", "buffer_name"),
    "user_input_mutation": ("mutation", "user_input_name"),
    "parameter_mutation": ("mutation", "parameter_name"),
    "token": ("token", ""),
}


def _target(spec: schema.Spec, field: str) -> str:
    name: str | None = getattr(spec, field) if field else ""
    if name is None:
        raise FileError(f"the signature of the program names no {field}")
    return name


class _Defined(dict[str, Ref]):
    """References by name. Looking up a name that is not defined raises FileError."""

    def __missing__(self, name: str) -> Ref:
        raise FileError(f"uses value {shown(name)}, which nothing before it defines")


Convert = Callable[[Scope, Any], Argument]
_AS_IT_IS: Convert = lambda _, value: value  # noqa: E731 - as the others
_LISTED: Convert = lambda _, items: tuple(items)  # noqa: E731
_SCALAR: Convert = lambda scope, x: values.literal(x) if x.as_name is None else scope.refs[x.as_name]  # noqa: E731
_TENSORS: Convert = lambda scope, items: tuple([scope.refs[item.name] for item in items])  # noqa: E731
_SCALARS: Convert = lambda scope, items: tuple([_SCALAR(scope, item) for item in items])  # noqa: E731
# By field of an operand, the most frequent first.
_CONVERTERS: dict[str, Convert] = {
    "as_int": _AS_IT_IS,
    "as_ints": _LISTED,
    "as_sym_int": _SCALAR,
    "as_sym_ints": _SCALARS,
    "as_none": lambda scope, _: None,
    "as_bool": _AS_IT_IS,
    "as_float": lambda scope, item: values.number(item),
    "as_tensors": _TENSORS,
    "as_scalar_type": lambda scope, kind: values.dtype_of(kind, ""),
    "as_string": _AS_IT_IS,
    "as_device": lambda scope, item: Opaque(item.type + ("" if item.index is None else f":{item.index}")),
    "as_optional_tensors": lambda scope, items: tuple([scope.argument(item) for item in items]),
    "as_optional_tensor": lambda scope, item: scope.argument(item),
    "as_graph": lambda scope, graph: scope.nested(graph),
    "as_floats": lambda scope, items: tuple([values.number(item) for item in items]),
    **dict.fromkeys(("as_bools", "as_strings"), _LISTED),
    **dict.fromkeys(("as_sym_bool", "as_sym_float"), _SCALAR),
    **dict.fromkeys(("as_sym_bools", "as_sym_floats"), _SCALARS),
    "as_memory_format": lambda scope, code: Opaque(values.named(values.MEMORY_FORMATS, code)),
    "as_layout": lambda scope, code: Opaque(values.named(values.LAYOUTS, code)),
    "as_custom_obj": lambda scope, item: Opaque(item.class_fqn or item.name),
    "as_operator": lambda scope, target: Opaque(values.operator_name(target)),
    "as_complex": lambda scope, item: complex(values.number(item.real), values.number(item.imag)),
    "as_nested_tensors": lambda scope, lists: tuple([_TENSORS(scope, items) for items in lists]),
    "as_int_lists": lambda scope, lists: tuple([tuple(items) for items in lists]),
    "as_float_lists": lambda scope, lists: tuple([tuple(map(values.number, items)) for items in lists]),
    # A dictionary becomes a tuple of pairs in its order.
    "as_string_to_argument": lambda scope, items: tuple([(x, scope.argument(y)) for x, y in items.items()]),
}
