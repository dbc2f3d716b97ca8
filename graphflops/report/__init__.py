"""The report of one analysis: all that renderers, comparisons and budgets read. Its JSON form is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from msgspec import structs

from graphflops.attention.attention_use import AttentionUse
from graphflops.base.lazy import imported
from graphflops.base.record import Record, field
from graphflops.base.rendered import Rendered
from graphflops.cost import Cost
from graphflops.dims import Dim, evaluate
from graphflops.errors import require_choice
from graphflops.graph import Graph, Mesh, Origin, Phase
from graphflops.report.timeline import (
    ENTRIES as ENTRIES,
    LASTING as LASTING,
    PEAKS as PEAKS,
    CallTime,
    Held as Held,
    HeldKind as HeldKind,
    PhaseTime,
    Timeline as Timeline,
)
from graphflops.tensor import TensorType, grouped
from graphflops.training import Training

State = Literal["counted", "free", "unknown"]
Grouping = Literal["op", "module", "source"]
Cut = Literal["op", "module", "source", "attention"]
Execution = Literal["graph", "eager", "compiled"]
GraphLevel = Literal["call", "module"]
MemoryPhase = Literal["inference", "training"]
# Elements and bytes that do not depend on what calls cost.
HELD = ("parameters", "parameter_bytes", "buffer_bytes")


_NOTHING = Cost()


class Named(NamedTuple):
    """A tensor under the name its file gives it."""

    name: str
    type: TensorType


class RegionUse(Record, frozen=True):
    """A graph nested in a row's operator: what running it once costs, and how often the totals contain it."""

    name: str
    times: Dim
    cost: Cost


class Row(NamedTuple):
    """What one call costs."""

    node: str
    op: str
    module: str
    module_type: str
    source: str
    state: State  # counted, declared free by its rule, or unknown: then `cost` is empty and means nothing
    inputs: tuple[Named, ...] = ()
    outputs: tuple[Named, ...] = ()
    # Forward work, already multiplied by `times` for a call inside a loop body (0 in a branch not taken).
    cost: Cost = _NOTHING
    backward: Cost | None = None  # work of the gradients, in a training analysis; None otherwise
    matrix_dtype: str = ""  # element type of the matrix arithmetic, "" where there is none
    phase: Phase = "forward"  # "backward" after a joint graph's loss; in a recorded step that of the call
    times: Dim = 1
    regions: tuple[RegionUse, ...] = ()
    time: CallTime | None = None  # on the device; None, as the next, without one, or where it is not known
    backward_time: CallTime | None = None  # of its gradients

    @property
    def seconds(self) -> float:
        """The time of the call with its gradients; 0 where it runs no kernel, or its cost is unknown, as its state says."""
        return sum(time.seconds for time in (self.time, self.backward_time) if time is not None)


class Diagnostic(Record, frozen=True):
    """Something the reader should know: stable code, name of the defect, node (or "" for the program), one sentence."""

    code: str
    name: str
    node: str
    message: str


class SymbolInfo(Record, frozen=True):
    """A size by name: its value and who gave it, inclusive range, input axes where it stands."""

    value: int | None
    # The user, the example of the export (hint), or an assumption; None for a size without a value.
    given_by: Literal["user", "hint", "assumption"] | None
    minimum: int | None = None
    maximum: int | None = None
    where: tuple[str, ...] = ()
    label: str = ""  # the name that the user gives the size, "" without one
    computed: Mapping[str, Dim] = {}  # the size of each of these axes that is an expression, `2*h`
    label_axis: str = ""  # the axis that `label` names, where that is computed from the size

    @property
    def is_upper_bound(self) -> bool:
        """True for a size that depends on data, assumed as large as its range allows."""
        return self.given_by == "assumption" and not self.where and self.value == self.maximum


def known_values(symbols: Mapping[str, SymbolInfo]) -> dict[str, int]:
    """The value of each symbol that has one."""
    return {name: info.value for name, info in symbols.items() if info.value is not None}


def without_assumed(symbols: Mapping[str, SymbolInfo]) -> dict[str, SymbolInfo]:
    """The symbols whose values are not assumed."""
    return {name: info for name, info in symbols.items() if info.given_by != "assumption"}


class Totals(Record, frozen=True):
    """Cost of a whole phase, the peak of live activation bytes in it (nested graphs included) and where that is."""

    cost: Cost = _NOTHING
    peak_bytes: Dim = 0
    peak_node: str = ""
    time: PhaseTime | None = None  # on the device; None without one


class PhaseMemory(Record, frozen=True):
    """What one phase needs on a device: the bytes alive at its peak by what they hold, and what they take on the device."""

    phase: MemoryPhase
    device: str  # "" where none is named
    execution: Execution
    weights: Dim  # alive at the peak at the known sizes, like all up to workspaces
    buffers: Dim
    inputs: Dim
    activations: Dim  # results of calls, and what is kept for gradients
    gradients: Dim
    optimizer: Dim
    temporaries: Dim  # buffers of kernels and of the optimizer's step
    workspaces: Dim | None  # of libraries, None where no device is named
    requested_peak: Dim  # their sum, as PyTorch's `requested_bytes`
    # Of PyTorch's allocator, like the reserved peak: what it takes for the requested peak at the known sizes; None if a size
    # has no value.
    allocated_peak: Dim | None
    reserved_peak: Dim | None
    context: int | None  # the driver and the libraries; None where it is not known
    device_total: Dim | None
    peak_node: str  # the call at the peak, "" in the optimizer
    timeline: Timeline  # which memory is held when

    @property
    def taken(self) -> Dim:
        """Bytes that the phase takes: on the device, of the allocator, or as requested: the first of these that is known."""
        known = (size for size in (self.device_total, self.reserved_peak) if size is not None)
        return next(known, self.requested_peak)


class Exchange(NamedTuple):
    """Collectives of one operator among the devices along one axis of the mesh, in one module and phase."""

    axis: str  # `dp+tp` for several, "" for none
    op: str
    module: str
    phase: Phase
    calls: int
    bytes: Dim  # sent in all calls
    seconds: float = 0.0  # that they run
    exposed: float = 0.0  # in which they run and nothing else does


class Coverage(Record, frozen=True):
    """How many calls are counted, free and unknown, and how often each unknown operator occurs."""

    counted: int
    free: int
    unknown: int
    unknown_ops: Mapping[str, int]

    @property
    def nodes(self) -> int:
        """All calls, those in nested graphs included."""
        return self.counted + self.free + self.unknown


class Report(Rendered, Record, frozen=True):
    """One analysed program."""

    origin: Origin
    symbols: Mapping[str, SymbolInfo]
    totals: Totals  # the forward (for a joint graph: all of it)
    parameters: int  # elements, tied ones once
    parameter_bytes: int
    buffer_bytes: int  # constants are with the buffers
    coverage: Coverage
    rows: tuple[Row, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)  # type of each by path, as the file records them
    parameter_modules: Mapping[str, int] = field(default_factory=dict)  # own parameters of modules by path
    parameter_dtypes: Mapping[str, int] = field(default_factory=dict)  # bytes of parameters by element type
    backward: Totals | None = None  # what a training step adds, or None, like the next
    optimizer: Totals | None = None
    # Which activations are held when, in a training analysis through the gradients; empty where it is not known.
    memory: Timeline = field(default_factory=Timeline)
    inputs: tuple[Named, ...] = ()  # the tensors that a caller passes in
    outputs: tuple[str, ...] = ()  # values that the program returns or writes back, by name
    attentions: tuple[AttentionUse, ...] = ()  # in program order, one operator or spelled out in several
    execution: Execution = "graph"  # how the program runs, which peak memory depends on
    training: Training | None = None  # the options of the training step; None for inference alone
    memory_use: tuple[PhaseMemory, ...] = ()  # on a device; empty unless that or an execution is named
    device: str = ""  # that times are predicted for; "" without one
    kernels_of: str = ""  # PyTorch release whose kernels memory and times are of; "" where none is predicted
    step_time: PhaseTime | None = None  # of the whole training step
    # By family of kernels, the median relative error of points held out, of the worst variant that measured points of the
    # profile correct (constants predict the others); empty where no kernel of the device was measured.
    profile_errors: Mapping[str, float] = field(default_factory=dict)
    price_per_hour: float | None = None  # of one device, as the user says
    # How the devices of a program's collectives are joined, in words; "" where it has none, or no times.
    network: str = ""
    mesh: Mesh | None = None  # the devices of a recorded step; None on one device, and for any other program
    exchanges: tuple[Exchange, ...] = ()  # what a recorded step sends along the mesh
    # What torch requires of the sizes of inputs: by its text, `x[1] == 12`, a condition whose value is 0 or 1.
    guards: Mapping[str, Dim] = field(default_factory=dict)
    program: Graph | None = None  # the analyzed one, for `graph`; None for a saved report

    def __eq__(self, other: object) -> bool:
        """Whether all is equal but the programs: a saved report has none."""
        return isinstance(other, Report) and structs.astuple(self)[:-1] == structs.astuple(other)[:-1]

    @property
    def values(self) -> Mapping[str, int]:
        """The value of each symbol that has one: given, of the export, or assumed."""
        return known_values(self.symbols)

    @property
    def names(self) -> Mapping[str, str]:
        """What people read for each symbol: `batch`, or `ids[0]` for a name that the exporter made up."""
        names: Mapping[str, str] = imported("graphflops.open_sizes:of_report")(self).names
        return names

    @property
    def sizes(self) -> Mapping[str, int]:
        """Every known size as people read and give it: `batch`, or an axis `x[2]` by its own size."""
        sizes: Mapping[str, int] = imported("graphflops.open_sizes:of_report")(self).values(self.values)
        return sizes

    @property
    def assumed(self) -> Mapping[str, int]:
        """Those of `sizes` that are assumed."""
        infos = self.symbols
        known = {name: size for name, size in self.values.items() if infos[name].given_by == "assumption"}
        sizes: Mapping[str, int] = imported("graphflops.open_sizes:of_report")(self).values(known)
        return sizes

    def value(self, quantity: Dim) -> int | None:
        """A quantity at the known sizes; None where a size is not known, or where it would be negative."""
        if isinstance(quantity, int):
            return quantity if quantity >= 0 else None
        infos = self.symbols
        known = {name: infos[name].value for name in quantity.symbols if name in infos}
        value = evaluate(quantity, {name: size for name, size in known.items() if size is not None})
        return None if value is not None and value < 0 else value

    def total(self) -> Cost:
        """Cost of the whole program (forward; a joint graph: all of it)."""
        return self.totals.cost

    def step(self) -> Totals | None:
        """Forward and backward, of all micro-steps, and optimizer together; None outside of training."""
        if self.backward is None:
            return None
        times = 1 if self.training is None else self.training.accumulate
        peak = self.backward  # the forward's activations are still alive there, so its peak is the step's
        cost = (self.totals.cost + self.backward.cost) * times
        if self.optimizer is not None:
            cost = cost + self.optimizer.cost
        return Totals(cost, peak.peak_bytes, peak.peak_node, self.step_time)

    def by(self, grouping: Grouping, depth: int | None = None) -> dict[str, Cost]:
        """Forward cost by operator, source line, or module path cut to `depth` parts. OptionError for another grouping."""
        require_choice("by", grouping, get_args(Grouping))
        most = depth if grouping == "module" else None
        pairs = ((".".join(getattr(row, grouping).split(".")[:most]), row.cost) for row in self.rows)
        return {key: Cost.sum(costs) for key, costs in grouped(pairs).items()}

    def per(self, axis: str) -> Any:
        """FLOPs for each entry of an input axis, a token `ids[1]`: a `PerItem`. ModelError if no input has that axis."""
        return imported("graphflops.derived.items:per_item")(self, axis)

    def graph(self, level: GraphLevel = "call", depth: int | None = 2) -> Any:
        """The program as a `networkx.MultiDiGraph` with the costs of its nodes and the bytes of its edges.

        level: a node for each call, or for each module `depth` levels in (None: as deep as a page holds), repeated layers as
        one. docs/graph.md lists the attributes with their units. OptionError for another level or a negative depth.
        """
        return imported("graphflops.structure.build:graph_of")(self, level, depth)

    def to_dataframe(self, by: Cut | None = None, depth: int | None = None) -> Any:
        """A `pandas.DataFrame` with a line for each call, or for each module, operator, source line or attention.

        The columns are those of the CSV; what is not known is missing. OptionError where pandas is not installed.
        """
        return imported("graphflops.render.document:dataframe")(self, by=by, depth=depth)

    def to_json(self) -> bytes:
        """The report as JSON, UTF-8, one object; raises nothing."""
        return bytes(imported("graphflops.report.as_json:encoded")(self))

    @staticmethod
    def from_json(data: bytes) -> Report:
        """Reads what `to_json` wrote; FileError names the place in the JSON where it is not a report of this schema."""
        report: Report = imported("graphflops.report.as_json:decoded")(data)
        return report


def phases_of(report: Report) -> dict[str, Totals]:
    """The totals of the forward, of the other phases of a training step, and of the whole step, by name."""
    parts = {"forward": report.totals, "backward": report.backward, "optimizer": report.optimizer}
    return {name: part for name, part in (parts | {"step": report.step()}).items() if part is not None}


def scaled(row: Row, times: Dim, prefix: str) -> Row:
    """The row of a nested graph as part of the graph around it: run `times` times, named after the call it is in."""
    return row._replace(
        node=f"{prefix}/{row.node}",
        cost=row.cost * times,
        backward=None if row.backward is None else row.backward * times,
        times=row.times * times,
    )
