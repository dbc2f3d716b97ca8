"""Scopes of an ONNX model: which value a name means at one place of the file. Also sorts calls topologically.

A value keeps its name unless another has it already. Inside a function, names begin with that of the call it is inlined for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, NamedTuple

from msgspec import Struct

from graphflops.base.record import Record, field
from graphflops.errors import FileError, shown
from graphflops.exporters.onnx_proto import checked
from graphflops.graph import Argument, Node, Ref
from graphflops.ops import operator
from graphflops.ops.onnx_operands import NEWEST, NEWEST_IR
from graphflops.rules.registry import find

_MAY_HOLD_GRAPHS = (0, 5, 10)  # AttributeProto.type: not stated, GRAPH, GRAPHS
MOST_CHARACTERS = 2**26  # of all names made inside functions: each contains the names of the calls around it


def domain_of(domain: str) -> str:
    """The domain under which operators are looked up: "" for ONNX's own."""
    return "" if domain == "ai.onnx" else str(domain)


def opsets_of(imports: Iterable[Any]) -> dict[str, int]:
    """Opset version by domain; raises FileError if a domain has two."""
    found: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        known = found.setdefault(domain, entry.version)
        if known != entry.version:
            both = f"{known} and {entry.version}"
            raise FileError(f"opsets {both} of {shown(domain or 'ai.onnx')} are imported")
    return found


def unknown_versions(model: Any) -> Iterator[str]:
    """Says which versions are unknown here. Operators are then read as of the newest known version, or of the first."""
    if model.ir_version > NEWEST_IR:
        yield f"the file's IR version is {model.ir_version}, newer than the {NEWEST_IR} known here"
    for domain, version in opsets_of(model.opset_import).items():
        if version > (newest := NEWEST.get(domain, version)):
            known = f"opset {version} of {shown(domain or 'ai.onnx')} is newer than the {newest} known here"
            yield f"{known}: operators are taken as they were then"
        if version < 1:
            yield f"there is no opset {version} of {shown(domain or 'ai.onnx')}: operators are taken as those of 1"
    if not model.opset_import and model.ir_version >= 3:
        yield "the file does not say which opset it follows: taken as 1"


class Body(Struct, eq=False):
    """A graph being built."""

    around: "Body | None" = None  # the graph that it is nested in
    nodes: list[Node] = field(default_factory=list)
    captures: dict[str, None] = field(default_factory=dict)  # values of enclosing graphs that it uses
    declared: dict[str, Any] = field(default_factory=dict)  # types that the file states, by value


class Scope(Struct, eq=False):
    """What names mean at one place of the file."""

    body: Body
    opsets: Mapping[str, int]
    # By name in the file: the value defined here. None for an optional operand that a function's caller left out.
    names: dict[str, Ref | None] = field(default_factory=dict)
    around: "Scope | None" = None  # where other names are looked up; None for the program and for a function
    wanted: Mapping[str, str] = field(default_factory=dict)  # by name of a result: the name in the caller
    attributes: Mapping[str, Argument] = field(default_factory=dict)
    call: str = ""  # the call that a function is inlined for; "" outside of functions
    place: tuple[str, str, str] = ("", "", "")  # that call's module, module type and source line
    functions: tuple[str, ...] = ()  # the functions being inlined, outermost first

    def holder(self, name: str) -> "Scope | None":
        """The scope in which a name is defined, this or an enclosing one; None if there is none."""
        at: Scope | None = self
        while at is not None and name not in at.names:
            at = at.around
        return at


class Names:
    """The values and calls of one program by their unique names."""

    def __init__(self) -> None:
        self.owners: dict[str, Body] = {}  # by value, the graph in which it is defined
        self.used: set[str] = set()  # values that some call or output uses
        self._values: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._characters = 0

    def of_call(self, name: str, scope: Scope) -> str:
        return unique_of(self._within(name, scope), self._calls)

    def define(self, name: str, scope: Scope, maker: str, body: Body | None = None) -> str:
        """A unique name for a value that `maker` defines in `body`, else in the scope's; FileError if the name exists."""
        wanted = name
        if scope.call:
            wanted = scope.wanted.get(name) or self._within(name, scope)
        unique = unique_of(wanted, self._values)
        self.alias(name, Ref(unique), scope, maker)
        self.owners[unique] = body or scope.body
        return unique

    def alias(self, name: str, value: Ref, scope: Scope, maker: str) -> None:
        """Bind a name to a value that was just defined, or to the result of an inlined function."""
        if name in scope.names:
            raise FileError(f"{shown(maker)} makes the value {shown(name)}, which exists already")
        scope.names[name] = value

    def operands(self, names: Iterable[str], scope: Scope, user: str) -> list[Ref | None]:
        """The values that names mean here; None for an operand that is left out."""
        found = [self.resolve(name, scope, user) if name else None for name in names]
        while found and found[-1] is None:
            found.pop()
        return found

    def resolve(self, name: str, scope: Scope, user: str) -> Ref | None:
        """The value that a name means here; None for an operand that is left out."""
        holder = scope.holder(name)
        if holder is None:
            raise FileError(f"{shown(user)} uses the value {shown(checked(name))}, which nothing defines")
        value = holder.names[name]
        if value is not None:
            self.use(value.name, scope.body)
        return value

    def use(self, unique: str, body: Body) -> None:
        """Note that a call in a graph uses a value. Each graph from there out to the value's own captures it."""
        self.used.add(unique)
        owner, at = self.owners[unique], body
        while at is not owner and at.around is not None:
            at.captures[unique] = None
            at = at.around

    def _within(self, name: str, scope: Scope) -> str:
        if not scope.call:
            return name
        self._characters += len(scope.call) + len(name)
        if self._characters > MOST_CHARACTERS:
            raise FileError(f"names inside functions have more than {MOST_CHARACTERS:,} characters")
        return f"{scope.call}/{name}"


def unique_of(name: str, taken: dict[str, int], second: int = 1) -> str:
    """The name, with a number appended if it is taken. second: the number that the second value of a name gets."""
    number = taken.get(name)
    if number is None:
        taken[name if type(name) is str else checked(name)] = second
        return name
    while True:
        candidate = f"{name}_{number}"
        number += 1
        if candidate not in taken:
            taken[name], taken[candidate] = number, second
            return candidate


class Call(NamedTuple):
    """A NodeProto with copies of its lists: iterating protobuf's own takes twice as long."""

    node: Any
    inputs: list[str]
    attributes: list[Any]


def ordered(nodes: Sequence[Any], visible: Callable[[str], object]) -> Iterator[Call]:
    """The calls in topological order, and in the file's order as far as that allows.

    visible: whether a name is defined by now. The caller must define the results of each call before it asks for the next.
    Raises FileError if calls use one another in a cycle.
    """
    for place in range(len(nodes)):
        call = _call(nodes[place])
        if not all(map(visible, _used(call))):
            break
        yield call
    else:
        return
    calls = [_call(node) for node in nodes[place:]]
    makers: dict[str, int] = {}
    for index, call in enumerate(calls):
        for name in call.node.output[:]:
            makers.setdefault(name, index)
    waiting, ready = TopologicalSorter[int](), list[int]()
    for index, call in enumerate(calls):
        waiting.add(index, *(makers[name] for name in _used(call) if name in makers and not visible(name)))
    try:
        waiting.prepare()
    except CycleError as error:
        stuck = calls[min(error.args[1])].node
        name = shown(checked(stuck.name or stuck.op_type))
        raise FileError(f"{name} depends on its own results: the graph has a cycle") from None
    order = []
    while waiting.is_active():
        for index in waiting.get_ready():
            heappush(ready, index)
        order.append(heappop(ready))
        waiting.done(order[-1])
    yield from (calls[index] for index in order)


def _call(node: Any) -> Call:
    return Call(node, node.input[:], node.attribute[:])


def _used(call: Call) -> list[str]:
    """Names that a call uses, with outer names that the graphs in its attributes use."""
    used = [name for name in call.inputs if name]
    for attribute in call.attributes:
        for graph in graphs_of(attribute) if attribute.type in _MAY_HOLD_GRAPHS else ():
            own = defined(graph)
            used += [name for node in graph.node for name in _used(_call(node)) if name not in own]
    return used


def defined(graph: Any) -> set[str]:
    """Names of the values that a graph defines."""
    return {
        *(value.name for value in graph.input),
        *(tensor.name for tensor in graph.initializer),
        *(tensor.values.name for tensor in graph.sparse_initializer),
        *(name for node in graph.node for name in node.output if name),
    }


MOST_CALLS = 100_000  # calls of functions, and calls in the bodies that are inlined for them
MOST_OPERANDS = 1_000_000  # formal operands, results, attributes, opsets and declared types of inlined calls
MOST_NESTED_CALLS = 60


class Function(Record, frozen=True, dict=True):
    """A FunctionProto, with what each call of it needs."""

    proto: Any
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def opsets(self) -> dict[str, int]:
        return opsets_of(self.proto.opset_import)

    @cached_property
    def calls(self) -> int:
        """The number of calls in its body, in nested graphs and in default values of attributes."""
        body = sum(1 + _calls(node.attribute) for node in self.proto.node)
        return body + _calls(self.proto.attribute_proto)

    @cached_property
    def operands(self) -> int:
        """The number of entries besides calls that inlining it reads: operands, results, attributes, types, opsets."""
        proto = self.proto
        declared = len(proto.attribute_proto) + len(proto.value_info) + len(proto.opset_import)
        return len(self.inputs) + len(self.outputs) + declared


class Functions:
    """The functions of a model by operator, and how much of them has been inlined."""

    def __init__(self, protos: Iterable[Any]) -> None:
        self.known: dict[tuple[str, str, str], Function] = {}  # by domain, name and overload
        for proto in protos:
            key = domain_of(proto.domain), proto.name, proto.overload
            name = f"{proto.domain or 'ai.onnx'}.{proto.name}"
            if key in self.known:
                raise FileError(f"the function {shown(name)} is defined twice")
            self.known[key] = Function(proto, name, tuple(proto.input), tuple(proto.output))
        self._calls = self._operands = 0

    def hides(self, op: str, domain: str, opset: int) -> bool:
        """Whether the function has the name of an operator that runtimes have at the opset that the file imports."""
        return domain in NEWEST and operator(op).version <= opset and find(op) is not None

    def enter(self, function: Function, operands: int, results: int, scope: Scope, name: str) -> None:
        """Count a call of a function; raises FileError if the function cannot be inlined."""
        if function.name in scope.functions:
            raise FileError(f"the function {shown(function.name)} calls itself")
        if len(scope.functions) >= MOST_NESTED_CALLS:
            raise FileError(f"functions that call one another nest deeper than {MOST_NESTED_CALLS} calls")
        if operands > (taken := len(function.inputs)):
            given = f"{shown(name)} gives {operands} operands"
            raise FileError(f"{given} to {shown(function.name)}, which takes {taken}")
        if results > (made := len(function.outputs)):
            text = f"{shown(name)} wants {results} results of {shown(function.name)}, which has {made}"
            raise FileError(text)
        self.count(1 + function.calls)
        self._operands += function.operands + len(scope.opsets)
        if self._operands > MOST_OPERANDS:
            raise FileError(f"functions that call one another have more than {MOST_OPERANDS:,} operands")

    def count(self, calls: int) -> None:
        """Count calls that inlining adds; raises FileError for more than a program may have."""
        self._calls += calls
        if self._calls > MOST_CALLS:
            raise FileError(f"functions that call one another have more than {MOST_CALLS:,} calls")


def _calls(attributes: Iterable[Any]) -> int:
    """The number of calls in graphs that attributes hold, at any depth."""
    graphs = (graph for attribute in attributes for graph in graphs_of(attribute))
    return sum(1 + _calls(node.attribute) for graph in graphs for node in graph.node)


def graphs_of(attribute: Any) -> Iterator[Any]:
    """The GraphProtos that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs[:]
