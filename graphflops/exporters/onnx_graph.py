"""A ModelProto as a Graph: names made unique, functions written out, bodies of control flow as nested graphs.

A value keeps its name from the file unless another value has it already. Stored tensors, those of nested graphs and of
Constant nodes too, are inputs of the whole program, which nested graphs capture like any other value around them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphflops.errors import FileError, shown
from graphflops.exporters.onnx_data import Tensors
from graphflops.exporters.onnx_order import ordered
from graphflops.exporters.onnx_places import Places, original_names
from graphflops.exporters.onnx_ranges import ranges
from graphflops.exporters.onnx_values import (
    EXTERNAL,
    Sizes,
    checked,
    constant_of,
    sparse_of,
    tensor_of,
    text,
    type_of,
)
from graphflops.exporters.onnx_versions import NEWEST, NEWEST_IR, VERSIONS
from graphflops.graph import Argument, Graph, Input, Node, Note, Opaque, Origin, Output, Ref
from graphflops.tensor import TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim
    from graphflops.graph import InputRole, Scalar, Type

MOST_WRITTEN_OUT = 100_000  # calls of functions, and calls inside them
MOST_NESTED_CALLS = 60
_MOST_NOTES = 20  # of one kind
_SMALL = 64  # elements; a larger integer tensor is weights in a quantised model, not a shape
_STATISTICS = {"BatchNormalization": (3, 4)}  # operands that are state, not trained

(
    _FLOAT,
    _INT,
    _STRING,
    _TENSOR,
    _GRAPH,
    _FLOATS,
    _INTS,
    _STRINGS,
    _TENSORS,
    _GRAPHS,
    _SPARSE,
    _SPARSES,
    _TYPE,
    _TYPES,
) = range(1, 15)


@dataclass(eq=False)
class _Sink:
    """A graph being built; `around` is the one it is nested in."""

    around: _Sink | None = None
    nodes: list[Node] = field(default_factory=list)
    captures: dict[str, None] = field(default_factory=dict)
    declared: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class _Scope:
    """What names mean at one place of the file.

    names: our name of each value defined here; None for an optional operand that a function's caller left out.
    around: where names not defined here are looked up; None for the whole program and for a function.
    wanted: what a function's results are called by its caller.
    call, place: the call that a function is written out for, and its module, type and source line.
    """

    sink: _Sink
    opsets: Mapping[str, int]
    names: dict[str, str | None] = field(default_factory=dict)
    around: _Scope | None = None
    wanted: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Argument] = field(default_factory=dict)
    call: str = ""
    place: tuple[str, str, str] = ("", "", "")
    functions: tuple[str, ...] = ()

    def sees(self, name: str) -> bool:
        """Whether a name has a meaning here by now."""
        at: _Scope | None = self
        while at is not None:
            if name in at.names:
                return True
            at = at.around
        return False


class Declared(Mapping[str, object]):
    """What the file says of values in passing, read when asked for; equal types once: a model's layers share theirs."""

    def __init__(self, protos: Mapping[str, Any], sizes: Sizes) -> None:
        self._protos, self._sizes = protos, sizes
        self._read: dict[bytes, object] = {}

    def __getitem__(self, name: str) -> object:
        proto = self._protos[name].type
        text = proto.SerializeToString()
        if text not in self._read:
            self._read[text] = self._type(proto)
        return self._read[text]

    def __contains__(self, name: object) -> bool:
        return name in self._protos

    def __iter__(self) -> Iterator[str]:
        return iter(self._protos)

    def __len__(self) -> int:
        return len(self._protos)

    def _type(self, proto: Any) -> object:
        try:
            return type_of(proto, lambda dim, _: self._sizes.of_value(dim))
        except FileError:
            return UnknownType()


class Program:
    """Reads one model. `graph()` is to be called once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sizes = Sizes()
        self.places = Places()
        self.inputs: list[Input] = []
        self.types: dict[str, Type | Scalar] = {}
        self.owners: dict[str, _Sink] = {}
        self.used: set[str] = set()
        self.node_names: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.operators: dict[tuple[str, str, int | None], str] = {}
        self.memory: dict[tuple[Any, ...], str] = {}
        self.notes: dict[str, list[Note]] = {}
        self.written_out = 0
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.root = _Sink()
        self.contents = Tensors("")

    def graph(self, origin: Origin) -> Graph:
        """The whole program."""
        model, proto = self.model, self.model.graph
        self.contents.path = origin.path
        self.check_versions()
        scope = _Scope(self.root, _opsets(model.opset_import))
        stored = _stored(proto)
        targets = original_names(proto)
        for value in proto.input:
            if value.name not in stored:
                name = self.define(value.name, scope)
                self.inputs.append(Input(name, "user"))
                self.types[name] = self.sizes.of_program_input(value.type, name)
        self.store(proto, scope, targets)
        outputs = self.body(proto, scope)
        return Graph(
            nodes=self.finished(self.root),
            types=self.types,
            inputs=tuple(self.inputs),
            outputs=outputs,
            symbols=self.sizes.collected(ranges(model, self.sizes.symbols, self.open_sizes())),
            modules=self.places.modules,
            origin=origin,
            name=checked(proto.name),
            declared=Declared(self.root.declared, self.sizes),
            fallback_types=fallback_types,
            notes=tuple(note for notes in self.notes.values() for note in notes),
            contents=self.contents,
        )

    def open_sizes(self) -> list[Dim]:
        """The sizes of the program's inputs that are no numbers."""
        tensors = [typed for typed in self.types.values() if isinstance(typed, TensorType)]
        return [size for typed in tensors for size in typed.shape if not isinstance(size, int)]

    def check_versions(self) -> None:
        """Versions that are newer than what is known are read as the newest that is."""
        if self.model.ir_version > NEWEST_IR:
            self.note(
                "GF113",
                "",
                f"the file's IR version is {self.model.ir_version}, newer than the {NEWEST_IR} known here",
            )
        for domain, version in _opsets(self.model.opset_import).items():
            if version > NEWEST.get(domain, version):
                newest = f"opset {version} of {shown(domain or 'ai.onnx')} is newer than the {NEWEST[domain]} known here"
                self.note("GF113", "", f"{newest}: operators are taken as they were then")
        if not self.model.opset_import and self.model.ir_version >= 3:
            self.note("GF113", "", "the file does not say which opset it follows: taken as 1")

    # Names

    def define(self, name: str, scope: _Scope, *, sink: _Sink | None = None) -> str:
        """Our name of a value defined now under the file's name."""
        wanted = scope.wanted.get(name) or (f"{scope.call}/{name}" if scope.call else name)
        unique = _unique(wanted, self.taken)
        scope.names[name] = unique
        self.owners[unique] = sink or scope.sink
        return unique

    def resolve(self, name: str, scope: _Scope, user: str) -> Ref | None:
        """The value that a name means here; None for an operand that is left out."""
        at: _Scope | None = scope
        while at is not None:
            if name in at.names:
                unique = at.names[name]
                return None if unique is None else self.use(unique, scope.sink)
            at = at.around
        raise FileError(f"{shown(user)} uses the value {shown(checked(name))}, which nothing defines")

    def use(self, unique: str, sink: _Sink) -> Ref:
        """A use of a value by a call in a graph, captured by every graph between the two."""
        self.used.add(unique)
        owner, at = self.owners[unique], sink
        while at is not owner and at.around is not None:
            at.captures[unique] = None
            at = at.around
        return Ref(unique)

    def note(self, code: str, node: str, message: str) -> None:
        """Keep what the user should know; a defect that repeats is not said over and over."""
        said = self.notes.setdefault(code, [])
        if len(said) < _MOST_NOTES:
            said.append(Note(code, node, message))

    # Graphs

    def store(self, proto: Any, scope: _Scope, targets: Mapping[str, str]) -> None:
        """Make the stored tensors of a graph inputs of the program."""
        statistics = _statistics(proto.node)
        for tensor in proto.initializer:
            typed = tensor_of(tensor, tensor.name, lambda message: self.note("GF114", "", message))
            target = targets.get(tensor.name, tensor.name)
            role = _role(typed, target, tensor.name in statistics)
            unique = self.store_one(tensor.name, typed, role, scope, target, _memory(tensor))
            self.contents.protos[unique] = tensor, tensor.name if scope.around is None else ""
        for tensor in proto.sparse_initializer:
            name = tensor.values.name
            typed = sparse_of(tensor, name, lambda message: self.note("GF114", "", message))
            role = _role(typed, name, name in statistics)
            self.store_one(name, typed, role, scope, targets.get(name, name), ())

    def store_one(
        self,
        name: str,
        typed: TensorType,
        role: InputRole,
        scope: _Scope,
        target: str,
        memory: tuple[Any, ...],
    ) -> str:
        """Make a stored tensor an input of the program; its name there."""
        unique = self.define(name, scope, sink=self.root)
        shared = self.memory.setdefault((*memory, typed.dtype, typed.shape), target) if memory else target
        self.inputs.append(Input(unique, role, target, "" if shared == target else shared))
        self.types[unique] = typed
        return unique

    def body(self, proto: Any, scope: _Scope) -> tuple[Output, ...]:
        """The calls of a graph, and what it returns."""
        for node in ordered(proto.node, scope.sees):
            self.call(node, scope)
        outputs = tuple(
            [
                Output(self.resolve(value.name, scope, f"output {checked(value.name)}"))
                for value in proto.output
            ]
        )
        self.declare((*proto.value_info, *proto.output), scope)
        return outputs

    def declare(self, values: Iterable[Any], scope: _Scope) -> None:
        for value in values:
            unique = scope.names.get(value.name)
            if unique is not None:
                scope.sink.declared.setdefault(unique, value)

    def nested(self, proto: Any, scope: _Scope, name: str) -> Graph:
        """A graph in an attribute of a call."""
        sink = _Sink(scope.sink)
        inner = replace(scope, sink=sink, names={}, around=scope, wanted={})
        stored = _stored(proto)
        inputs = [Input(self.define(v.name, inner), "user") for v in proto.input if v.name not in stored]
        self.store(proto, inner, {})
        outputs = self.body(proto, inner)
        return Graph(
            nodes=self.finished(sink),
            types={},
            inputs=tuple(inputs),
            outputs=outputs,
            name=name,
            captures=tuple(sink.captures),
            declared=Declared(sink.declared, self.sizes),
            fallback_types=fallback_types,
        )

    def finished(self, sink: _Sink) -> tuple[Node, ...]:
        """The calls, results that nobody uses marked as unwanted."""
        return tuple([_wanted(node, self.used) for node in sink.nodes])

    # Calls

    def call(self, proto: Any, scope: _Scope) -> None:
        domain, kind = _domain(proto.domain), proto.op_type
        if kind == "Constant" and not domain and self.constant(proto, scope):
            return
        name = proto.name or kind
        if scope.call:
            name = f"{scope.call}/{name}"
        name = _unique(name, self.node_names)
        operands = [self.resolve(used, scope, name) if used else None for used in proto.input[:]]
        while operands and operands[-1] is None:
            operands.pop()
        place = self.places.of(proto)
        if scope.call:
            place = (place[0] or scope.place[0], place[1] or scope.place[1], place[2] or scope.place[2])
        op = self.operator(domain, kind, scope)
        function = self.functions.get((domain, kind, proto.overload))
        if function is not None:
            self.write_out(function, proto, operands, scope, name, place)
            return
        attributes = tuple(self.attributes(proto.attribute[:], scope, name).items())
        outputs = [self.define(result, scope) if result else None for result in proto.output[:]]
        scope.sink.nodes.append(Node(name, op, tuple(operands), attributes, tuple(outputs), *place))

    def constant(self, proto: Any, scope: _Scope) -> bool:
        """Make what a Constant node holds an input of the program; False where it does not say what it holds."""
        held = {a.name: a for a in proto.attribute[:] if not a.ref_attr_name}
        if len(proto.output) != 1:
            return False
        (name,) = proto.output
        typed = constant_of(held, name, lambda message: self.note("GF114", proto.name, message))
        if typed is None:
            return False
        role = "constant" if _elements(typed) <= _SMALL else _role(typed, name, False)
        unique = self.store_one(name, typed, role, scope, name, ())
        if "value" in held:
            self.contents.protos[unique] = (
                held["value"].t,
                name if scope.around is None and not scope.call else "",
            )
        return True

    def operator(self, domain: str, kind: str, scope: _Scope) -> str:
        """The operator with the version that is in force: `onnx.Softmax.13`."""
        opset = scope.opsets.get(domain)
        known = self.operators.get((domain, kind, opset))
        if known is not None:
            return known
        if opset is None and (domain or self.model.ir_version >= 3) and not scope.functions:
            self.note("GF115", "", f"the domain {shown(domain or 'ai.onnx')} is used, but not imported")
        number = 1 if opset is None else opset
        checked(domain), checked(kind)
        versions = VERSIONS.get(f"{domain}.{kind}" if domain else kind)
        version = number if domain else 1
        if versions is not None:
            version = versions[max(bisect_right(versions, number) - 1, 0)]
        op = self.operators[domain, kind, opset] = f"{domain or 'onnx'}.{kind}.{version}"
        return op

    def write_out(
        self,
        function: Any,
        call: Any,
        operands: list[Ref | None],
        scope: _Scope,
        name: str,
        place: tuple[str, str, str],
    ) -> None:
        """Put a function's calls in the place of a call of it."""
        called = f"{function.domain}.{function.name}"
        self.written_out += 1 + len(function.node)
        if called in scope.functions:
            raise FileError(f"the function {shown(called)} calls itself")
        if self.written_out > MOST_WRITTEN_OUT or len(scope.functions) >= MOST_NESTED_CALLS:
            raise FileError(
                f"functions that call one another come to more than {MOST_WRITTEN_OUT} calls, or nest too deep"
            )
        given = self.attributes(call.attribute, scope, name)
        inner = _Scope(
            scope.sink,
            {**scope.opsets, **_opsets(function.opset_import)},
            names=dict.fromkeys(function.input),
            wanted={
                formal: result for formal, result in zip(function.output, call.output, strict=False) if result
            },
            attributes=given,
            call=name,
            place=place,
            functions=(*scope.functions, called),
        )
        if len(operands) > len(function.input):
            raise FileError(
                f"{shown(name)} gives {len(operands)} operands to {shown(called)}, which takes {len(function.input)}"
            )
        for formal, operand in zip(function.input, operands, strict=False):
            inner.names[formal] = None if operand is None else operand.name
        inner.attributes = {**self.attributes(function.attribute_proto, inner, name), **given}
        for node in ordered(function.node, inner.sees):
            self.call(node, inner)
        self.declare(function.value_info, inner)
        for formal, result in zip(function.output, call.output, strict=False):
            if not result:
                continue
            ref = self.resolve(formal, inner, f"output {formal} of {called}")
            if ref is None:
                raise FileError(f"{shown(name)} returns an operand that it is not given")
            scope.names[result] = ref.name

    def attributes(self, protos: Iterable[Any], scope: _Scope, node: str) -> dict[str, Argument]:
        """The attributes of a call by name."""
        return {
            checked(proto.name): value for proto in protos for value in self.attribute(proto, scope, node)
        }

    def attribute(self, proto: Any, scope: _Scope, node: str) -> Iterator[Argument]:
        """The value of an attribute, or nothing where it takes that of a function's attribute that is not given."""
        if proto.ref_attr_name:
            if proto.ref_attr_name in scope.attributes:
                value = scope.attributes[proto.ref_attr_name]
                for captured in value.captures if isinstance(value, Graph) else ():
                    self.use(captured, scope.sink)
                yield value
            return
        kind = proto.type or _kind(proto)
        if kind == _INT:
            yield proto.i
        elif kind == _FLOAT:
            yield proto.f
        elif kind == _STRING:
            yield text(proto.s)
        elif kind == _INTS:
            yield tuple(proto.ints)
        elif kind == _FLOATS:
            yield tuple(proto.floats)
        elif kind == _STRINGS:
            yield tuple([text(item) for item in proto.strings])
        elif kind == _TENSOR:
            yield tensor_of(proto.t, proto.name, lambda message: self.note("GF114", node, message))  # type: ignore[misc]
        elif kind == _GRAPH:
            yield self.nested(proto.g, scope, checked(proto.g.name or proto.name))
        elif kind == _GRAPHS:
            yield tuple(
                [self.nested(graph, scope, checked(graph.name or proto.name)) for graph in proto.graphs]
            )
        elif kind == _TYPE:
            yield type_of(proto.tp, lambda dim, _: self.sizes.of_value(dim))  # type: ignore[misc]
        elif kind is not None:
            yield Opaque(proto.name)


def fallback_types(node: Node, operands: Sequence[Value]) -> Sequence[Value]:
    """What onnx infers of a call's results; nothing for an operator that is not ONNX's own."""
    domain = node.op.rpartition(".")[0].rpartition(".")[0]
    if domain != "onnx" and not domain.startswith("ai.onnx."):
        return ()
    from graphflops.exporters.onnx_infer import inferred

    return inferred(node.op, operands, dict(node.kwargs), len(node.outputs))


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else str(domain)


def _opsets(imports: Iterable[Any]) -> dict[str, int]:
    return {_domain(entry.domain): entry.version for entry in imports}


def _stored(graph: Any) -> set[str]:
    return {
        *(tensor.name for tensor in graph.initializer),
        *(t.values.name for t in graph.sparse_initializer),
    }


def _unique(name: str, taken: dict[str, int]) -> str:
    """The name, with a number behind it if something else has it."""
    number = taken.get(checked(name))
    if number is None:
        taken[name] = 1
        return name
    while True:
        candidate = f"{name}_{number}"
        number += 1
        if candidate not in taken:
            taken[name], taken[candidate] = number, 1
            return candidate


def _wanted(node: Node, used: set[str]) -> Node:
    if len(node.outputs) < 2 or all(name in used for name in node.outputs):
        return node
    outputs = tuple([name if name in used else None for name in node.outputs])
    if not any(outputs):
        outputs = (node.outputs[0], *outputs[1:])
    return replace(node, outputs=outputs)


def _role(typed: TensorType, target: str, is_state: bool) -> InputRole:
    """What a stored tensor is to the model: files do not say, but exporters write alike."""
    if is_state:
        return "buffer"
    if _elements(typed) == 1 and "." not in target:  # an epsilon or an exponent
        return "constant"
    trained = typed.dtype.is_floating or (typed.dtype.kind in ("int", "uint") and typed.dtype.bits <= 8)
    wide = typed.dtype.kind in ("int", "uint") and typed.dtype.bits < 64 and _elements(typed) > _SMALL
    return "parameter" if typed.rank and (trained or wide) else "constant"


def _elements(typed: TensorType) -> int:
    elements = typed.numel
    assert isinstance(elements, int)
    return elements


def _statistics(nodes: Iterable[Any]) -> set[str]:
    return {
        node.input[place]
        for node in nodes
        if node.op_type in _STATISTICS
        for place in _STATISTICS[node.op_type]
        if place < len(node.input)
    }


def _memory(tensor: Any) -> tuple[Any, ...]:
    """Where a tensor's data lies in other files: what two tensors that share it have in common."""
    if tensor.data_location != EXTERNAL:
        return ()
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "offset" not in entries and "length" not in entries:
        return ()
    return tuple(entries.get(key, "") for key in ("location", "offset", "length"))


def _kind(proto: Any) -> int | None:
    """The kind of an attribute by what it holds: files of the first IR version do not state it."""
    for name, kind in (("f", _FLOAT), ("i", _INT), ("s", _STRING), ("t", _TENSOR), ("g", _GRAPH)):
        if proto.HasField(name):
            return kind
    for name, kind in (("floats", _FLOATS), ("ints", _INTS), ("strings", _STRINGS), ("graphs", _GRAPHS)):
        if len(getattr(proto, name)):
            return kind
    return None
