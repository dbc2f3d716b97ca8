"""A ModelProto as a Graph: names made unique, functions inlined, bodies nested, all stored tensors inputs of the program."""

from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import Any

from graphflops.base.record import replace
from graphflops.errors import FileError, shown
from graphflops.exporters import onnx_proto, onnx_scope, onnx_tensors
from graphflops.exporters.onnx_modules import placed
from graphflops.exporters.onnx_scope import Call, Function, Scope
from graphflops.exporters.onnx_sizes import Declared, Sizes
from graphflops.exporters.sources import Evidence, OnnxPlaces, original_names
from graphflops.graph import Argument, Graph, Input, InputRole, Node, Note, Opaque, Origin, Output, Ref
from graphflops.ops.onnx_operands import onnx_spelling
from graphflops.ops.operator import operator
from graphflops.tensor import TensorType, flat
from graphflops.view import nested_graphs

_OLDEST_IR_WITH_DEFAULTS = 4  # before it, every initializer had to be listed as an input
_MOST_NOTES = 20  # of one kind
_DIFFER = "readers differ in which of the two counts"


class Program:
    """Reads one model. Call `graph()` once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sizes = Sizes()
        self.places = OnnxPlaces()
        self.names = onnx_scope.Names()
        # None if the file defines no function, as most do.
        self.functions = onnx_scope.Functions(model.functions) if model.functions else None
        self.inputs: list[Input] = []
        self.types: dict[str, Any] = {}
        self.root = onnx_scope.Body()
        self._operators: dict[tuple[str, str, int | None], str] = {}
        self._memory: dict[Hashable, str] = {}
        self._protos: dict[str, Any] = {}  # by value: the TensorProto with its contents
        self._constants: dict[bytes, TensorType] = {}
        self._notes: dict[str, list[Note]] = {}
        self._evidence: dict[str, Evidence] = {}
        self._state: set[str] = set()  # stored tensors that calls take as state, not as parameters

    def graph(self, origin: Origin) -> Graph:
        model, proto = self.model, self.model.graph
        for message in onnx_scope.unknown_versions(model):
            self.note("GF209", "", message)
        scope = Scope(self.root, onnx_scope.opsets_of(model.opset_import))
        kept = onnx_tensors.stored_names(proto)
        for value in proto.input:
            if value.name not in kept:
                name = self.names.define(value.name, scope, "an input")
                self.inputs.append(Input(name, "user"))
                self.types[name] = self.sizes.of_program_input(value.type, name)
        has_defaults = model.ir_version >= _OLDEST_IR_WITH_DEFAULTS
        defaults = frozenset(value.name for value in proto.input) & kept if has_defaults else frozenset()
        self.store(proto, scope, original_names(proto), defaults)
        outputs = self.body(proto, scope)
        for at, entry in enumerate(self.inputs):
            if entry.name in self._state and entry.role != "user":
                self.inputs[at] = replace(entry, role="buffer")
        calls = self.finished(self.root)
        nodes, inputs, modules = placed(calls, self.inputs, self.places.modules, self._evidence)
        return Graph(
            nodes=nodes,
            types=self.types,
            inputs=inputs,
            outputs=outputs,
            symbols=self.sizes.described(model),
            modules=modules,
            origin=origin,
            name=onnx_proto.checked(proto.name),
            declared=Declared(self.root.declared, self.sizes),
            notes=tuple(note for notes in self._notes.values() for note in notes),
            contents=lambda name: onnx_tensors.stored(origin.path, self._protos.get(name)),
        )

    def note(self, code: str, node: str, message: str) -> None:
        """Keep a note for the user once, and up to a maximum for each code."""
        said, note = self._notes.setdefault(code, []), Note(code, node, message)
        if len(said) < _MOST_NOTES and note not in said:
            said.append(note)

    def store(self, proto: Any, scope: Scope, targets: Mapping[str, str], defaults: frozenset[str]) -> None:
        """Make the stored tensors of a graph inputs of the program. defaults: those that a caller may replace, so that their
        contents decide no size, branch or trip count. (An attention mask is still read from them.)
        """
        complain = partial(self.note, "GF210", "")
        inputs = {value.name: value for value in proto.input} if proto.initializer else {}
        for tensor in proto.initializer:
            if tensor.name in inputs and onnx_proto.declared_otherwise(inputs[tensor.name], tensor):
                complain(f"tensor {shown(tensor.name)} has another type than the input whose default it is")
            typed = onnx_tensors.tensor_of(tensor, tensor.name, complain)
            target = targets.get(tensor.name, tensor.name)
            role = onnx_proto.role_of(typed, target)
            if tensor.name in defaults:
                typed = replace(typed, value=None)
            unique = self.store_one(tensor.name, typed, role, scope, target, onnx_tensors.memory_of(tensor))
            self._protos[unique] = tensor
        for tensor in proto.sparse_initializer:
            name = tensor.values.name
            typed = onnx_tensors.sparse_of(tensor, name, complain)
            role = onnx_proto.role_of(typed, name)
            self.store_one(name, typed, role, scope, targets.get(name, name), ())

    def store_one(
        self, name: str, typed: TensorType, role: InputRole, scope: Scope, target: str, memory: Hashable
    ) -> str:
        """Make a stored tensor an input of the program; return its unique name."""
        unique = self.names.define(name, scope, "a stored tensor", self.root)
        shared = self._memory.setdefault((memory, typed.dtype, typed.shape), target) if memory else target
        self.inputs.append(Input(unique, role, target, "" if shared == target else shared))
        self.types[unique] = typed
        return unique

    def constant(self, call: Call, scope: Scope) -> bool:
        """Make the contents of a Constant node an input of the program. Returns False if the node does not hold them."""
        outputs = call.node.output[:]
        if len(outputs) != 1:
            return False
        name = outputs[0]
        held = onnx_proto.named_once(call.attributes, call.node.name or name)
        if any(attribute.ref_attr_name for attribute in call.attributes):
            return False  # in a function whose caller gives the value
        key = b"".join([attribute.SerializeToString() for attribute in held.values()])
        typed = self._constants.get(key)  # equal small ones are one object
        if typed is None:
            typed = onnx_tensors.constant_of(held, name, partial(self.note, "GF210", call.node.name))
            if typed is None:
                return False
            if typed.value is not None:
                self._constants[key] = typed
        is_small = onnx_proto.number_of_elements(typed) <= onnx_proto.SMALL
        role = "constant" if is_small else onnx_proto.role_of(typed, name)
        unique = self.store_one(name, typed, role, scope, name, ())
        if "value" in held:
            self._protos[unique] = held["value"].t
        return True

    def body(self, proto: Any, scope: Scope) -> tuple[Output, ...]:
        """Read the calls of a graph; return its outputs."""
        for call in onnx_scope.ordered(proto.node, scope.holder):
            self.call(call, scope)
        names = [(value.name, f"output {onnx_proto.checked(value.name)}") for value in proto.output]
        outputs = [Output(self.names.resolve(name, scope, user)) for name, user in names]
        self.declare((*proto.value_info, *proto.output), scope)
        return tuple(outputs)

    def declare(self, values: Iterable[Any], scope: Scope) -> None:
        """Keep the types that the file declares for values."""
        for value in values:
            known = scope.names.get(value.name)
            if known is not None:
                scope.body.declared.setdefault(known.name, value)

    def nested(self, proto: Any, scope: Scope, name: str) -> Graph:
        """A graph in an attribute of a call. name: the attribute's, used if the graph has none."""
        name = onnx_proto.checked(proto.name or name)
        body = onnx_scope.Body(scope.body)
        inner = replace(scope, body=body, names={}, around=scope, wanted={})
        kept = onnx_tensors.stored_names(proto)
        given = [value.name for value in proto.input if value.name not in kept]
        inputs = [Input(self.names.define(value, inner, "an input"), "user") for value in given]
        self.store(proto, inner, {}, frozenset())
        self.declare(proto.input, inner)
        outputs = self.body(proto, inner)
        for outer in (each.name for each in proto.output if each.name not in inner.names):
            text = f"{shown(name)} returns {shown(outer)} of the graph around it, and no copy: onnxruntime refuses it"
            self.note("GF130", "", text)
        for hidden in filter(scope.holder, inner.names):
            self.note("GF130", "", f"{shown(hidden)} of {shown(name)} hides a value around it: {_DIFFER}")
        return Graph(
            nodes=self.finished(body),
            types={},
            inputs=tuple(inputs),
            outputs=outputs,
            name=name,
            captures=tuple(body.captures),
            declared=Declared(body.declared, self.sizes),
        )

    def finished(self, body: onnx_scope.Body) -> tuple[Node, ...]:
        """The calls of a graph. Unused results become None, but a call with no used result keeps its first."""
        used = self.names.used
        for place, node in enumerate(body.nodes):
            if len(node.outputs) > 1 and not all(name in used for name in node.outputs):
                first, *others = (name if name in used else None for name in node.outputs)
                first = first if first or any(others) else node.outputs[0]
                body.nodes[place] = replace(node, outputs=(first, *others))
        return tuple(body.nodes)

    def call(self, call: Call, scope: Scope) -> None:
        """Read a call: a Constant becomes a stored tensor, a call of a function is inlined, any other becomes one node."""
        proto, names = call.node, self.names
        domain, kind = onnx_scope.domain_of(proto.domain), proto.op_type
        if kind == "Constant" and not domain and self.constant(call, scope):
            return
        name = names.of_call(proto.name or kind, scope)
        operands = names.operands(call.inputs, scope, name)
        place, evidence = self.places.of(proto)
        if not scope.call:
            self._evidence[name] = evidence
        else:
            place = (place[0] or scope.place[0], place[1] or scope.place[1], place[2] or scope.place[2])
        op = self.operator(domain, kind, scope)
        functions = self.functions
        if functions is not None and (function := functions.known.get((domain, kind, proto.overload))):
            if functions.hides(op, domain, scope.opsets.get(domain, 1)):
                called = shown(function.name)
                text = f"{called} is a function of the file and an operator of runtimes: {_DIFFER}"
                self.note("GF130", name, text)
            functions.enter(function, len(operands), len(proto.output), scope, name)
            self.write_out(function, call, operands, scope, name, place)
            return
        opset = scope.opsets.get(domain)
        if opset is not None and operator(op).version > opset:
            self.note("GF206", "", f"opset {opset} of {domain or 'ai.onnx'} has no operator {kind}")
        attributes = tuple(self.attributes(call.attributes, scope, name).items())
        outputs = [names.define(result, scope, name) if result else None for result in proto.output[:]]
        self._state.update(ref.name for ref in onnx_proto.state_of(kind, operands) if ref is not None)
        scope.body.nodes.append(Node(name, op, tuple(operands), attributes, tuple(outputs), *place))

    def operator(self, domain: str, kind: str, scope: Scope) -> str:
        """The operator with the version in force: `onnx.Softmax.13`."""
        opset = scope.opsets.get(domain)
        known = self._operators.get((domain, kind, opset))
        if known is None:
            if not kind:
                raise FileError("a call names no operator: the file is damaged")
            if opset is None and (domain or self.model.ir_version >= 3) and not scope.functions:
                self.note("GF207", "", f"the domain {shown(domain or 'ai.onnx')} is used, but not imported")
            spelled = onnx_proto.checked(domain), onnx_proto.checked(kind)
            known = onnx_spelling(*spelled, 1 if opset is None else opset)
            self._operators[domain, kind, opset] = known
            outer = onnx_scope.opsets_of(self.model.opset_import).get(domain) if scope.functions else opset
            if outer is not None and known != onnx_spelling(domain, kind, outer):
                text = f"{kind} is of opset {opset} in a function, of opset {outer} around it: {_DIFFER}"
                self.note("GF130", scope.call, text)
        return known

    def write_out(
        self, function: Function, call: Call, operands: list[Ref | None], scope: Scope, name: str,
        place: tuple[str, str, str],
    ) -> None:  # fmt: skip
        """Inline a function: put the calls of its body in place of one call of it."""
        given = self.attributes(call.attributes, scope, name)
        results = [pair for pair in zip(function.outputs, call.node.output[:], strict=False) if pair[1]]
        inner = Scope(
            scope.body,
            {**scope.opsets, **function.opsets},
            names=dict.fromkeys(function.inputs),
            wanted=dict(results),
            attributes=given,
            call=name,
            place=place,
            functions=(*scope.functions, function.name),
        )
        for formal, operand in zip(function.inputs, operands, strict=False):
            inner.names[formal] = operand
        inner.attributes = {**self.attributes(function.proto.attribute_proto, inner, name), **given}
        for inside in onnx_scope.ordered(function.proto.node, inner.holder):
            self.call(inside, inner)
        self.declare(function.proto.value_info, inner)
        for formal, result in results:
            ref = self.names.resolve(formal, inner, f"output {formal} of {function.name}")
            if ref is None:
                raise FileError(f"{shown(name)} returns an operand that it is not given")
            self.names.alias(result, ref, scope, name)

    def attributes(self, protos: Iterable[Any], scope: Scope, node: str) -> dict[str, Argument]:
        return {
            name: value
            for name, proto in onnx_proto.named_once(protos, node).items()
            for value in self.attribute(proto, scope, node)
        }

    def attribute(self, proto: Any, scope: Scope, node: str) -> tuple[Argument, ...]:
        """The value of an attribute, in a tuple; () if it refers to a function's attribute that the caller left out."""
        field = onnx_proto.field_of(proto)
        if proto.ref_attr_name:
            if not scope.call:
                taken = f"takes the attribute {shown(proto.name)}"
                raise FileError(f"{shown(node)} {taken} of a function that it is not in")
            if self.functions is None or proto.ref_attr_name not in scope.attributes:
                return ()
            # The function's caller gives the value. Each use of a graph counts its calls and captures its values again.
            value: Any = scope.attributes[proto.ref_attr_name]
            for graph in [part for part in flat((value,)) if isinstance(part, Graph)]:
                self.functions.count(_calls(graph))
                for captured in graph.captures:
                    self.names.use(captured, scope.body)
            return (value,)
        held: Any = getattr(proto, field, None)
        if field in onnx_proto.PLAIN:
            return (onnx_proto.plain(held),)
        if field == "t":
            value = onnx_tensors.tensor_of(held, proto.name, partial(self.note, "GF210", node))
        elif field == "g":
            value = self.nested(held, scope, proto.name)
        elif field == "graphs":
            value = tuple([self.nested(graph, scope, proto.name) for graph in held])
        elif field == "tp":
            value = onnx_proto.type_of(held, self.sizes.of_value)
        else:
            return (Opaque(proto.name),) if field else ()
        return (value,)


def _calls(graph: Graph) -> int:
    """The number of calls in a graph, with those of the graphs nested in it."""
    return len(graph.nodes) + sum(_calls(inner) for node in graph.nodes for inner in nested_graphs(node))
