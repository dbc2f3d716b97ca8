"""A model as a frozen graph of calls, the output of every reader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Union

from msgspec import Struct, structs

from graphflops.base.record import Record, field, replace
from graphflops.dims import Dim
from graphflops.ops import Op, operator
from graphflops.tensor import DType, OptionalType, SequenceType, TensorType, UnknownType, mapped

if TYPE_CHECKING:
    import networkx


InputRole = Literal["user", "parameter", "buffer", "constant", "token", "object", "state"]
OutputRole = Literal["user", "loss", "gradient", "mutation", "token"]
Phase = Literal["forward", "backward", "optimizer"]
# What a recorded step's memory holds; `temporary` is freed in the phase that allocates it, `value` later.
StorageKind = Literal[
    "weight", "buffer", "optimizer", "gradient", "input", "value", "temporary", "host", "pinned"
]
HOST_KINDS = ("host", "pinned")  # memory of the host, pageable or pinned


class Ref(Record, frozen=True):
    """A use of a value by its name."""

    name: str


class Opaque(Record, frozen=True):
    """An argument that graphflops passes along without looking inside: an operator's name, a custom object, a layout."""

    what: str


def tensor_type(value: object, types: Mapping[str, object]) -> TensorType | None:
    """The type of the tensor that an argument or a name refers to; None for anything else."""
    name = value.name if isinstance(value, Ref) else value
    found = types.get(name) if isinstance(name, str) else None
    return found if isinstance(found, TensorType) else None


Type = Union[TensorType, SequenceType, OptionalType, UnknownType, Opaque]
Scalar = Union[Dim, float, bool, str, complex, None]
Argument = Union[Ref, "Graph", Opaque, DType, Scalar, "tuple[Argument, ...]"]


class Node(Record, frozen=True):
    """One call of an operator."""

    name: str
    op: str  # `aten.conv2d.default`, `onnx.Conv`, `higher_order.cond`, `_operator.mul`
    args: tuple[Argument, ...] = ()  # references, literals, nested graphs, and tuples of these, as in kwargs
    kwargs: tuple[tuple[str, Argument], ...] = ()  # by the operator's own names
    outputs: tuple[str | None, ...] = ()  # names of the results, flat; None for an unused one
    module: str = ""  # path of the innermost module around it; "" (and no type): top level or unknown
    module_type: str = ""
    source: str = ""  # `file.py:12`, the innermost line of the user's code; "" where the file records none
    python_stack: str = ""  # call stack; calls share the text. "" if not recorded, as the next
    module_stack: str = ""
    operator: Op = operator("")  # the canonical one of `op`; kept because each call is asked for it often

    def __post_init__(self) -> None:
        structs.force_setattr(self, "operator", operator(self.op))

    def arguments(self) -> dict[str, Argument]:
        """Arguments by the canonical names that `graphflops.ops` gives them."""
        return self.operator.arguments(self.args, self.kwargs)

    @property
    def group(self) -> str:
        """Name of the group of devices that exchange; "" where the call names none."""
        return str(self.arguments().get("group_name", ""))

    def reads(self) -> tuple[str, ...]:
        """Names of the values that the call reads, in order: what `uses` gives, without the slots."""
        names: list[str] = []
        _add_names(self.args, names)
        for _, value in self.kwargs:
            _add_names((value,), names)
        return tuple(names)

    def is_in(self, places: Collection[str]) -> bool:
        """Whether its first named value, a result or else an operand, is one of `places`: it then runs where they lie."""
        return next((name in places for name in (*self.outputs, *self.reads()) if name is not None), False)

    def renamed(self, instead: Mapping[str, str]) -> Node:
        """The call with other values in place of some that it reads."""
        return self if instead.keys().isdisjoint(self.reads()) else self.changed(_renaming(instead))

    def changed(self, change: Callable[[Argument], Argument]) -> Node:
        """The call with each of its arguments changed, those in tuples too."""
        args = mapped(self.args, change)
        return replace(self, args=args, kwargs=tuple([(key, mapped(x, change)) for key, x in self.kwargs]))

    def uses(self) -> Iterator[tuple[str, str]]:
        """(operand slot, value name) of every value the call reads: `0`, `2[1]` for a list's item, `mask` by keyword."""
        for index, argument in enumerate(self.args):
            yield from _uses(str(index), argument)
        for key, argument in self.kwargs:
            yield from _uses(key, argument)


class Input(Record, frozen=True):
    """An input of the program."""

    name: str  # the value's name
    role: InputRole
    target: str = ""  # its name outside the program (`layers.0.weight`)
    alias_of: str = ""  # the target whose memory this one shares, for tied parameters; "" otherwise


class Output(Record, frozen=True):
    """A result of the program; `target` names the parameter, buffer or input that a gradient or mutation belongs to."""

    value: Argument
    role: OutputRole = "user"
    target: str = ""

    def renamed(self, instead: Mapping[str, str]) -> Output:
        return replace(self, value=mapped(self.value, _renaming(instead)))

    def uses(self) -> Iterator[tuple[str, str]]:
        """(slot, value name) of every value in it."""
        yield from _uses("", self.value)


class Symbol(Record, frozen=True):
    """A size without a number."""

    name: str
    minimum: int | None = None  # inclusive, as the maximum
    maximum: int | None = None
    hint: int | None = None  # example value if the file has one
    where: tuple[str, ...] = ()  # the input axes that have this size
    assumed: int | None = None  # value without an example; None: what the name and the axes suggest


class Note(Record, frozen=True):
    """A diagnostic of a reader: stable code, node (or ""), one sentence."""

    code: str
    node: str
    message: str


class Stored(Record, frozen=True):
    """A weight or constant and its layout in memory."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in `memory`, counted in elements, as the offset
    offset: int
    memory: memoryview  # all its bytes, little-endian; weights that share memory share the object


class Origin(Record, frozen=True):
    """Where a graph came from; sha256 is of the program's own description, weights not included."""

    path: str = ""
    format: str = ""
    producer: str = ""
    sha256: str = ""


class EagerRun(Record, frozen=True, dict=True):
    """What one eager run of a program's module held, as a capture records it: the object in its file."""

    format: int
    producer: str
    values: tuple[str, ...]  # tensors that the program's calls make, in its order
    # For each value, the index of the last value made while its memory is held; -1: eager execution does not make it.
    until: tuple[int, ...]
    # By the value that an attention makes, which mask eager execution applies without making one.
    attentions: dict[str, Literal["none", "causal"]]

    @cached_property
    def left_out(self) -> frozenset[str]:
        """Values that only an export makes, not eager execution."""
        return frozenset(name for name, last in zip(self.values, self.until, strict=True) if last < 0)


class Group(Record, frozen=True):
    """Devices that take part in collectives. axis: of the mesh, along which they lie; `dp+tp` for several, "" for none."""

    axis: str
    ranks: tuple[int, ...]


class Mesh(Record, frozen=True):
    """The devices of a recorded step: their number by axis, the outermost first, and by name the groups of the rank."""

    axes: Mapping[str, int]
    groups: Mapping[str, Group]
    rank: int = 0


class Storage(Struct, array_like=True):
    """One memory of a recorded step, as its file stores it. It changes only during recording."""

    name: str  # of the parameter, buffer or input, else of the first value in it
    kind: StorageKind
    first: int  # the call that allocates it; -1: before the step
    last: int  # the last one that finds it held
    bytes: int


class Step(Record, frozen=True):
    """What the recording of one eager step of one rank holds beside its calls."""

    phases: tuple[Phase, ...]  # by call
    storages: tuple[Storage, ...]  # all memory, as it is allocated
    mesh: Mesh | None = None  # None on one device
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of each value
    views: frozenset[str] = frozenset()  # results that share the memory of an operand
    wrapped: tuple[int, ...] = ()  # by call, how many calls Python dispatched before it
    hooked: tuple[int, ...] = ()  # and how many hooks ran before it
    counters: frozenset[str] = frozenset()  # step counters of optimizers
    # By value: the index of its storage, and where its bytes begin and end there.
    places: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()  # values that the step makes in CUDA streams of its own

    @property
    def is_training(self) -> bool:
        return "backward" in self.phases

    def hosted(self) -> dict[str, StorageKind]:
        """Values in the host's memory, counters of optimizers apart, with the kind of that memory."""
        kinds = [memory.kind for memory in self.storages]
        return {name: kinds[at] for name, (at, _, _) in self.places.items() if kinds[at] in HOST_KINDS}


class Graph(Record, frozen=True, eq=False, dict=True):
    """A program, or a graph nested in one, as recorded."""

    nodes: tuple[Node, ...]  # in program order: a value is defined before it is used
    # By name of a value: its type, or the size or number that a scalar is.
    types: Mapping[str, Type | Scalar]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)  # types by path; empty where none is recorded
    origin: Origin = Origin()
    name: str = ""
    # For a nested graph: the outer values that it uses, by names that are the same inside.
    captures: tuple[str, ...] = ()
    # Types that the file gives for some values, maybe out of date, where types are derived; None where `types` has all.
    declared: Mapping[str, object] | None = None
    notes: tuple[Note, ...] = ()  # what the reader noticed
    # Reads the contents of an input that is not the user's (a mask), by its name; None if they are not at hand.
    contents: Callable[[str], Stored | None] | None = None
    # Values that live until the last call, used or not: autocast's copies of parameters.
    lasting: frozenset[str] = frozenset()
    # By name of a call: the number of the checkpoint that runs it again for the gradients.
    recomputed: Mapping[str, int] = field(default_factory=dict)
    # By name of an input that is not in row-major order: its axes, the outermost in memory first.
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    eager: EagerRun | None = None  # what an eager run of its module held, where the file records it
    step: Step | None = None  # what the recording of a step holds
    guards: Mapping[str, Dim] = field(default_factory=dict)  # conditions on input axes by text: `x[1] == 12`
    lists_guards: bool = False  # whether these are all

    def __repr__(self) -> str:
        name = self.name or self.origin.path or "program"
        return f"<Graph {name}: {len(self.nodes):,} nodes, {len(self.inputs):,} inputs>"

    @cached_property
    def nx(self) -> networkx.MultiDiGraph:
        """The graph as a frozen `networkx.MultiDiGraph`: one edge per use of a value, keyed by operand slot.

        A node is named after the input's value or the call, and its attribute `data` is the `Input` or `Node`; an edge's
        `value` names the value used. Built on first use: importing networkx takes a quarter as long as a whole analysis.
        """
        import networkx

        graph = networkx.MultiDiGraph()
        graph.add_nodes_from((entry.name, {"data": entry}) for entry in self.inputs)
        makers = {entry.name: entry.name for entry in self.inputs}
        for node in self.nodes:
            graph.add_node(node.name, data=node)
            for slot, value in node.uses():
                graph.add_edge(makers[value], node.name, key=slot, value=value)
            makers.update((name, node.name) for name in node.outputs if name is not None)
        frozen: networkx.MultiDiGraph = networkx.freeze(graph)
        return frozen

    @cached_property
    def has_exchanges(self) -> bool:
        """Whether the program runs collectives, in nested graphs too."""
        if any(operator(op).is_exchange for op in {node.op for node in self.nodes}):
            return True
        around = [node.args for node in self.nodes if node.operator.kind == "control"]
        return any(graph.has_exchanges for args in around for graph in args if isinstance(graph, Graph))

    @cached_property
    def operands(self) -> tuple[tuple[str, ...], ...]:
        """By call: the names of the values it reads."""
        return tuple([node.reads() for node in self.nodes])

    @cached_property
    def makers(self) -> Mapping[str, Node]:
        """The call that makes a value, by the value's name."""
        return {name: node for node in self.nodes for name in node.outputs if name is not None}

    @cached_property
    def used(self) -> frozenset[str]:
        """Names of the values that some call or the program's outputs use."""
        return frozenset(self.returned).union(*self.operands)

    @cached_property
    def returned(self) -> tuple[str, ...]:
        return tuple([name for output in self.outputs for _, name in output.uses()])

    @cached_property
    def seeds(self) -> tuple[str, ...]:
        """Names of the values whose gradients come from outside: the loss, else all results but mutated inputs."""
        losses = [output for output in self.outputs if output.role == "loss"]
        outputs = losses or [output for output in self.outputs if output.role != "mutation"]
        return tuple([name for output in outputs for _, name in output.uses()])

    @cached_property
    def phases(self) -> Mapping[str, Phase]:
        """For a joint graph or a recorded step, the phase of every node by name; else empty. In a joint graph, calls that
        lead to the loss, a user output or a mutation are forward, others backward.
        """
        if self.step is not None:
            return {node.name: phase for node, phase in zip(self.nodes, self.step.phases, strict=True)}
        if not any(output.role == "gradient" for output in self.outputs):
            return {}
        needed = {name for output in self.outputs if output.role != "gradient" for _, name in output.uses()}
        phases: dict[str, Phase] = {node.name: "backward" for node in self.nodes}
        for node, operands in zip(reversed(self.nodes), reversed(self.operands), strict=True):
            if not needed.isdisjoint(node.outputs):
                phases[node.name] = "forward"
                needed.update(operands)
        return phases


def _renaming(instead: Mapping[str, str]) -> Callable[[Argument], Argument]:
    return lambda value: Ref(instead.get(value.name, value.name)) if isinstance(value, Ref) else value


def _add_names(arguments: Iterable[Any], names: list[str]) -> None:
    """Add the names that `_uses` finds, without the slots, whose text takes longer to make than the rest."""
    for argument in arguments:
        kind = type(argument)
        if kind is Ref:
            names.append(argument.name)
        elif kind is tuple:
            _add_names(argument, names)
        elif kind is Graph:
            names.extend(argument.captures)


def _uses(slot: str, argument: Any) -> Iterator[tuple[str, str]]:
    if isinstance(argument, Ref):
        yield slot, argument.name
    elif isinstance(argument, tuple):
        for index, item in enumerate(argument):
            yield from _uses(f"{slot}[{index}]", item)
    elif isinstance(argument, Graph):
        for name in argument.captures:
            yield f"{slot}.{name}", name
