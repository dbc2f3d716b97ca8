"""The priced program: what the passes pass to one another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from msgspec import Struct

from graphflops.attention import AttentionUse
from graphflops.base.lazy import imported
from graphflops.base.record import Record, field, replace
from graphflops.cost import QUANTITIES, Cost, Estimate, Value
from graphflops.dims import Dim, Meeting, symbol, total
from graphflops.errors import DimError
from graphflops.graph import Graph, Node
from graphflops.passes.bind import Binding
from graphflops.report import Coverage, Diagnostic, Named, Row, SymbolInfo, Timeline, known_values
from graphflops.report.contradictions import diagnostic
from graphflops.report.timeline import PhaseTime
from graphflops.tensor import TensorType, grouped
from graphflops.training import Training


class Backward(Record, frozen=True, dict=True):
    """The backward of one call, and what a training step saves for it."""

    estimate: Estimate  # the work; its results are the gradients of the operands that want one
    # For each gradient: its operand's place among the call's tensors, and whether it has own memory (a view shares it).
    gradients: tuple[tuple[int, bool], ...] = ()
    operands: frozenset[int] = frozenset()  # places of the call's tensors that gradients read
    results: frozenset[int] = frozenset()  # and of its results
    # Positions in the estimate's reads of what is neither: a dropout's mask, a normalisation's statistics.
    beside: tuple[int, ...] = ()

    @cached_property
    def sizes(self) -> list[Dim]:
        """Bytes of each gradient; equal calls share them."""
        return [value.nbytes if isinstance(value, TensorType) else 0 for value in self.estimate.out]

    @property
    def beside_bytes(self) -> Dim:
        """Bytes of what is saved beside the call's operands and results."""
        reads = [self.estimate.reads[place] for place in self.beside]
        return total(read.nbytes if isinstance(read, TensorType) else read or 0 for read in reads)


class PricedCall(Record, frozen=True):
    """One call of a graph with what its rule returned."""

    node: Node
    uses: tuple[str, ...]  # names of the values it reads
    estimate: Estimate
    gradient: Backward | None  # its backward in a training analysis; None if no gradient is computed
    row: int  # index of its row among the graph's rows; rows of its nested graphs follow
    # A number that equal calls share: one operator, operands of equal types, equal attributes. None if a pass has changed
    # the call, or if its results have sizes of their own.
    form: int | None = None

    @property
    def in_place(self) -> bool:
        return self.node.operator.mutates

    def renamed(self, instead: Mapping[str, str]) -> PricedCall:
        """The call with other values in place of some that it reads."""
        if instead.keys().isdisjoint(self.uses):
            return self
        uses = tuple(instead.get(name, name) for name in self.uses)
        return replace(self, node=self.node.renamed(instead), uses=uses, form=None)

    def tensors(self, values: Mapping[str, Value]) -> list[str]:
        return [name for name in self.uses if isinstance(values.get(name), TensorType)]


class PricedGraph(Record, frozen=True, eq=False, dict=True):
    """One graph, nested or not, priced at given operand types. Rules of control flow see it as a `RegionRun`."""

    graph: Graph
    out: tuple[Value, ...]  # types of its results
    cost: Cost  # sum over `rows`
    backward: Cost  # the same
    rows: tuple[Row, ...]
    calls: tuple[PricedCall, ...]
    values: Mapping[str, Value]  # the type of every value by name
    stuck: str = ""  # the first call that cannot run, and why; "" for none
    held: Mapping[tuple[str, str], Diagnostic] = {}  # of a stuck nested graph: reported if it runs
    # By operand of a function whose calls are inlined, the last of these: the function's caller holds the operand.
    until: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        return self.graph.name

    @cached_property
    def inlined(self) -> PricedGraph:
        """The graph with the calls of graphs that run once within a call in place of that call."""
        if not any(call.estimate.regions for call in self.calls):
            return self
        found: PricedGraph = imported("graphflops.passes.inlined:inlined")(self)
        return found


class PricedProgram(Record, frozen=True, eq=False):
    """A program with the cost of every call."""

    graph: Graph  # as recorded
    binding: Binding
    training: Training | None  # options of the training step; None without one
    operands: Mapping[str, Value]  # types of its inputs in this analysis
    main: PricedGraph  # with the rows of all nested graphs
    operators: Collection[str]  # spellings of all that were priced
    facts: Mapping[Node, Any]  # what rules got beyond the operands of a call
    # Pairs of sizes that an operator requires to be equal, each with whether one outside of nested graphs does.
    equalities: Mapping[Meeting, bool]
    names: Names  # of sizes without a formula; later passes add to them
    notes: Notes  # diagnostics; later passes add to them
    type_sources: tuple[Diagnostic, ...] = ()  # diagnostics about types that no rule gives
    attentions: tuple[AttentionUse, ...] = ()  # all, once their pass has run
    fused: int = 0  # how many calls are parts of others: conversions of quantized values
    symbols: Mapping[str, SymbolInfo] = field(default_factory=dict)  # by name, once the pass of sizes has run
    passed: tuple[Named, ...] = ()  # the tensors that a caller passes in; from the pass of sizes
    guards: Mapping[str, Dim] = field(default_factory=dict)  # conditions by text; from the pass of sizes

    @property
    def values(self) -> Mapping[str, int]:
        """The value of each symbol that has one."""
        return known_values(self.symbols)

    @property
    def summed(self) -> PricedGraph | None:
        """The graph whose results are summed into the loss, so that their gradients repeat one number."""
        return self.main.inlined if self.training is not None and self.training.loss == "sum" else None

    @property
    def coverage(self) -> Coverage:
        """How many calls are counted, free and unknown, and the unknown ones by operator."""
        states = Counter(row.state for row in self.main.rows)
        unknown = Counter(row.op for row in self.main.rows if row.state == "unknown")
        return Coverage(states["counted"], states["free"], states["unknown"], dict(unknown.most_common()))

    def typed_inputs(self, *roles: str) -> list[tuple[str, TensorType]]:
        """Inputs of these roles that are tensors, each storage once, under their names in the model."""
        chosen = [entry for entry in self.graph.inputs if entry.role in roles and not entry.alias_of]
        typed = [(entry.target, self.operands[entry.name]) for entry in chosen]
        return [(target, value) for target, value in typed if isinstance(value, TensorType)]


class Notes(Struct):
    """Diagnostics; each is kept once for its code and place."""

    found: dict[tuple[str, str], Diagnostic] = field(default_factory=dict)

    def say(self, code: str, node: str, message: str, where: str | None = None) -> None:
        """Keep a diagnostic. where: what makes two diagnostics of one code the same; by default the node."""
        self.found.setdefault((code, node if where is None else where), diagnostic(code, node, message))


class Names(Struct):
    """Names of data-dependent sizes and of formulas that grow too large, numbered by origin: `nonzero_0`."""

    taken: Collection[str]
    notes: Notes
    numbers: dict[str, Iterator[int]] = field(default_factory=lambda: defaultdict(count))

    def fresh(self, origin: str) -> Dim:
        names = (f"{origin}_{number}" for number in self.numbers[origin])
        return symbol(next(name for name in names if name not in self.taken))

    def too_large(self, quantity: str) -> Dim:
        """A name for a total whose formula grows too large, with a diagnostic."""
        size = self.fresh(quantity)
        text = f"the formula of {quantity} grows too large, and is called {size}: give sizes to get a number"
        self.notes.say("GF116", "", text, quantity)
        return size


def summed(costs: Sequence[Cost], names: Names) -> Cost:
    """The sum of costs; a quantity whose formula grows too large becomes a named symbol."""
    try:
        return Cost.sum(costs)
    except DimError:
        return Cost(**{name: summed_quantity(name, costs, names) for name in QUANTITIES})


def summed_quantity(name: str, costs: Sequence[Cost], names: Names) -> Dim:
    """The sum of one quantity over costs; a name if the formula grows too large."""
    try:
        return total(getattr(cost, name) for cost in costs)
    except DimError:
        return names.too_large(name)


def owners(
    calls: Sequence[PricedCall],
    values: Mapping[str, Value],
    is_view: Callable[[PricedCall], bool] = lambda call: call.estimate.alias,
) -> dict[str, str]:
    """The value whose memory each tensor shares: itself, unless it is a view.

    If there are as many results as operands (`broadcast_tensors`), each result is a view of its own operand.
    """
    root: dict[str, str] = {}
    for call in calls:
        operands = [root.get(name, name) for name in call.tensors(values)] if is_view(call) else []
        each = len(operands) == len(call.node.outputs)
        for place, name in enumerate(call.node.outputs):
            if name is not None and isinstance(values.get(name), TensorType):
                root[name] = operands[place * each] if operands else name
    return root


def latest(until: Mapping[str, int], owners: Mapping[str, str]) -> dict[str, int]:
    """By owner of memory, the latest place until which one of its values is held."""
    ends = grouped((owners.get(name, name), end) for name, end in until.items())
    return {owner: max(each) for owner, each in ends.items()}


class Peak(Record, frozen=True):
    """The most bytes live at once, and the call at which they are live at the hinted sizes."""

    bytes: Dim = 0
    node: str = ""


class MemoryUse(Record, frozen=True):
    """Peaks of a program's activations, and their timelines."""

    forward: Peak
    inference: Timeline
    training: Peak | None = None  # of the forward and its gradients; None, like `step`, outside of training
    step: Timeline | None = None
    # How many of the step's last entries are still held after it: inputs, results, gradients of parameters.
    lasting: int = 0

    @property
    def timeline(self) -> Timeline:
        """The timeline; in a training analysis, that of forward and gradients."""
        return self.inference if self.step is None else self.step


class ProgramTime(Record, frozen=True):
    """How long a program takes on a device. None: a phase that does not run."""

    device: str = ""
    rows: tuple[Row, ...] = ()  # those of the program, with the times of their calls
    # That of inference; in a step the CPU also records calls for the backward, which is part of `rows` and `step`.
    forward: PhaseTime | None = None
    backward: PhaseTime | None = None
    optimizer: PhaseTime | None = None
    step: PhaseTime | None = None
    # By family of kernels, the error of the device's profile on held-out measurements.
    profile_errors: Mapping[str, float] = field(default_factory=dict)
    # How many times longer than fused unfused attention takes, by the reason why no fused kernel runs.
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    network: str = ""  # how the devices of its collectives are connected, in words; "" without collectives


NO_TIME = ProgramTime()


class GradientKernels(NamedTuple):
    """The kernels of a call's gradients: what they need beside what they read and write, and in which order they run."""

    first: Sequence[Dim]  # bytes of the tensors that are allocated before the gradients
    # Bytes of the buffers of each kernel, which computes one gradient; the last computes all that are left.
    buffers: Sequence[Sequence[Dim]]
    is_last_operand_first: bool = False  # whether they run from the call's last operand to its first
    # Whether what the last gradient needs is only needed after those of the other operands are computed. By then a
    # checkpoint has freed what it recomputed for them.
    sums_afterwards: bool = False
    # Whether a parameter gets its gradient as a transposed view, to which nothing is added in place.
    is_transposed: bool = False


class CallByCall:
    """Execution of a graph call by call, as a graph runtime does it: a tensor is freed after its last use."""

    keeps_repeated = False  # whether a gradient that repeats one number is kept as that number

    def __init__(self, graph: PricedGraph, training: bool) -> None:
        self.graph = graph
        self.calls: Sequence[PricedCall] = graph.calls  # those that run, in order
        self.values, self.training = graph.values, training  # training: whether the calls' gradients run too
        self.recomputed = graph.graph.recomputed  # by name of a call, the checkpoint that runs it again
        # Results of layout operators that are copies, whose broadcast elements take memory too.
        self.copied: Container[str] = ()

    def owners(self) -> Mapping[str, str]:
        return owners(self.calls, self.values)

    def held_until(self) -> Mapping[str, int]:
        """Owners of memory that is held past their last use, each with the place of the last call that holds it."""
        places = {call.node.name: place for place, call in enumerate(self.calls)} if self.graph.until else {}
        until = {name: places[last] for name, last in self.graph.until.items() if last in places}
        return latest(until, self.owners())

    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """Bytes that a call needs beside its operands and results, and beside the bytes `saved` for its gradients."""
        return 0 if saved != 0 else call.estimate.workspace  # what is saved is what the workspace held

    def made_first(self, call: PricedCall) -> tuple[Sequence[Dim], Sequence[Dim]]:
        """Sizes that a call allocates before its results: of what it saves for gradients, and of what it frees again."""
        return (), ()

    def backward_bytes(self, call: PricedCall) -> Dim:
        """Bytes that a call's gradients need beside what they read and write."""
        return 0 if call.gradient is None else call.gradient.estimate.workspace

    def gradient_kernels(self, call: PricedCall, is_repeated: bool) -> GradientKernels:
        """How a call's gradients run. is_repeated: whether the gradient of its result repeats one number."""
        return GradientKernels((), ((self.backward_bytes(call),),))

    def saved_bytes(self, call: PricedCall) -> Dim:
        """Bytes that a call saves for its gradients beside its operands and results."""
        if call.gradient is None or call.gradient.beside_bytes == 0:
            return 0
        returned = total(self.values[name].nbytes for name in self.returned(call))  # type: ignore[union-attr]
        return call.gradient.beside_bytes - returned

    def returned(self, call: PricedCall) -> list[str]:
        """Results after the first that a call saves for its gradients: masks, positions of maxima, statistics."""
        if call.gradient is None:
            return []
        reads = [call.gradient.estimate.reads[place] for place in call.gradient.beside]
        others = [name for name in call.node.outputs[1:] if name is not None]
        typed = {name: value for name in others if isinstance(value := self.values[name], TensorType)}
        if reads and not isinstance(reads[0], TensorType):  # statistics, as bytes
            return [*typed] if total(value.nbytes for value in typed.values()) == reads[0] else []
        kinds = [(read.shape, read.dtype) for read in reads if isinstance(read, TensorType)]
        return [name for name, value in typed.items() if (value.shape, value.dtype) in kinds]

    def saved_values(self, call: PricedCall) -> list[str | None]:
        """Operands and results of a call that its gradients read."""
        if call.gradient is None:
            return []
        operands = call.tensors(self.values)
        names: list[str | None] = [operands[place] for place in call.gradient.operands]
        return [*names, *(call.node.outputs[place] for place in call.gradient.results), *self.returned(call)]
