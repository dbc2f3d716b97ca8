"""The answer to one analysis, and the only thing that renderers, comparisons and budgets read.

`Report.to_json` and `Report.from_json` are inverse to each other; the format is described in docs/report.md. A quantity
without symbols is a plain integer in it, one with symbols is `{"value": int or null, "formula": str}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Union

import msgspec

from graphflops import __version__
from graphflops.attention.group import SIZES, AttentionUse, Masking
from graphflops.cost import CONVENTIONS, QUANTITIES, Cost
from graphflops.dims import Dim, evaluate, parse_dim
from graphflops.errors import DimError, FileError
from graphflops.graph import Origin, Phase
from graphflops.tensor import TensorType, dtype_named

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Literal[1] = 1
State = Literal["counted", "free", "unknown"]
Grouping = Literal["op", "module", "source"]
Cut = Literal["op", "module", "source", "attention"]
HeldKind = Literal["input", "value", "saved", "workspace", "nested", "gradient"]


_NOTHING = Cost()


class Named(NamedTuple):
    """A tensor under the name its file gives it."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class RegionUse:
    """A graph nested in a row's operator: what running it once costs, and how often the totals contain it."""

    name: str
    times: Dim
    cost: Cost


@dataclass(frozen=True, slots=True)
class Row:
    """What one call costs.

    cost: forward work, already multiplied by `times` for a call inside a loop body (0 in a branch not taken).
    backward: work of the gradients, in a training analysis; None otherwise.
    state: counted, declared free by its rule, or unknown: then `cost` is empty and means nothing.
    matrix_dtype: element type of the matrix arithmetic, "" where there is none.
    phase: "backward" for what a joint graph does after its loss.
    """

    node: str
    op: str
    module: str
    module_type: str
    source: str
    state: State
    cost: Cost = _NOTHING
    backward: Cost | None = None
    inputs: tuple[Named, ...] = ()
    outputs: tuple[Named, ...] = ()
    matrix_dtype: str = ""
    phase: Phase = "forward"
    times: Dim = 1
    regions: tuple[RegionUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something the reader should know: stable code, name of the defect, node (or "" for the program), one sentence."""

    code: str
    name: str
    node: str
    message: str


@dataclass(frozen=True, slots=True)
class SymbolInfo:
    """A size by name: its value if one is known and who gave it, inclusive range, input axes where it stands."""

    value: int | None
    given_by: Literal["user", "hint"] | None
    minimum: int | None = None
    maximum: int | None = None
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Cost of a whole phase, the peak of live activation bytes in it (nested graphs included) and where that is."""

    cost: Cost = _NOTHING
    peak_bytes: Dim = 0
    peak_node: str = ""


class Held(NamedTuple):
    """Memory held from one moment to another, both included; views of it are not listed.

    name: the value it holds; for a workspace, what is saved and a nested graph the call.
    kind: input: an input of the program; value: a result of a call; saved: what a call keeps for its gradient beside its
    operands and results; workspace: only during the call; nested: the peak of a graph inside the call; gradient.
    """

    name: str
    kind: HeldKind
    first: int
    last: int
    bytes: Dim


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which memory is held when. A moment is a call that runs, a graph nested in it at its peak, or one of its gradients.

    rows: by moment, the row of the call; in training the calls come again for their gradients, the last one first.
    gradients_from: the first moment of the gradients, None outside of training.
    held: in the order in which it is let go.
    """

    rows: tuple[int, ...] = ()
    gradients_from: int | None = None
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many calls are counted, free and unknown, and how often each unknown operator occurs."""

    counted: int
    free: int
    unknown: int
    unknown_ops: Mapping[str, int]

    @property
    def nodes(self) -> int:
        """All calls, those in nested graphs included."""
        return self.counted + self.free + self.unknown


@dataclass(frozen=True, slots=True)
class Report:
    """One analysed program.

    totals: the forward (for a joint graph: all of it); backward, optimizer: what a training step adds, or None.
    parameters: elements, tied ones once; parameter_bytes, buffer_bytes: their memory, constants with the buffers.
    modules: type of each module by path, as the file records them. parameter_modules: own parameters of each module by path.
    parameter_dtypes: bytes of parameters by element type.
    memory: which activations are held when, in a training analysis through the gradients; empty where it is not known.
    inputs: the tensors that a caller passes in.
    attentions: every attention of the program, in program order, whether one operator or spelled out in several.
    """

    origin: Origin
    symbols: Mapping[str, SymbolInfo]
    totals: Totals
    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    coverage: Coverage
    rows: tuple[Row, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    parameter_modules: Mapping[str, int] = field(default_factory=dict)
    parameter_dtypes: Mapping[str, int] = field(default_factory=dict)
    backward: Totals | None = None
    optimizer: Totals | None = None
    memory: Timeline = Timeline()
    inputs: tuple[Named, ...] = ()
    attentions: tuple[AttentionUse, ...] = ()

    @property
    def values(self) -> Mapping[str, int]:
        """The known value of each symbol, given or hinted."""
        return {name: info.value for name, info in self.symbols.items() if info.value is not None}

    def value(self, quantity: Dim) -> int | None:
        """A quantity at the known sizes; None where a size is not known."""
        return evaluate(quantity, self.values)

    def total(self) -> Cost:
        """Cost of the whole program (forward; a joint graph: all of it)."""
        return self.totals.cost

    def step(self) -> Totals | None:
        """Forward, backward and optimizer together, for a training analysis."""
        parts = [part for part in (self.totals, self.backward, self.optimizer) if part is not None]
        if self.backward is None:
            return None
        peak = self.backward  # the forward's activations are still alive there, so its peak is the step's
        return Totals(Cost.sum(part.cost for part in parts), peak.peak_bytes, peak.peak_node)

    def by(self, grouping: Grouping, depth: int | None = None) -> dict[str, Cost]:
        """Forward cost grouped by operator, by module path cut to `depth` components, or by source line."""
        groups: dict[str, list[Cost]] = {}
        for row in self.rows:
            key = getattr(row, grouping)
            if grouping == "module" and depth is not None:
                key = ".".join(key.split(".")[:depth]) if depth else ""
            groups.setdefault(key, []).append(row.cost)
        return {key: Cost.sum(costs) for key, costs in groups.items()}

    def _repr_html_(self) -> str:
        """What a notebook shows: totals and where the work is."""
        from graphflops.render.html.fragment import fragment

        return fragment(self)

    def _repr_markdown_(self) -> str:
        """The same for a notebook that shows Markdown."""
        from graphflops.render.markdown import markdown

        return markdown(self)

    def to_json(self) -> bytes:
        """The report as JSON, UTF-8, one object; raises nothing."""
        return msgspec.json.encode(_to_wire(self))

    @staticmethod
    def from_json(data: bytes) -> Report:
        """Read what `to_json` wrote; FileError names the place in the JSON where it is not a report of this schema."""
        try:
            return _from_wire(msgspec.json.decode(data, type=WireReport))
        except (msgspec.MsgspecError, DimError, RecursionError) as error:
            raise FileError(f"not a graphflops report of schema {SCHEMA}: {error}") from error


# The wire format. Struct names are ours, field names are the format.


class _Formula(msgspec.Struct, frozen=True):
    value: int | None
    formula: str


_Quantity = Union[int, _Formula]
_Size = Union[int, str]


class _WireTensor(msgspec.Struct, frozen=True):
    name: str
    shape: list[_Size]
    dtype: str


class _WireCost(msgspec.Struct, frozen=True):
    matrix_flops: _Quantity = 0
    macs: _Quantity = 0
    vector_flops: _Quantity = 0
    transcendentals: _Quantity = 0
    masked_flops: _Quantity = 0
    read_bytes: _Quantity = 0
    written_bytes: _Quantity = 0


class _WirePhase(_WireCost, frozen=True, kw_only=True):
    peak_bytes: _Quantity
    peak_node: str
    parameters: int
    parameter_bytes: int
    buffer_bytes: int


class _WireTotals(_WirePhase, frozen=True, kw_only=True, omit_defaults=True):
    backward: _WirePhase | None = None
    optimizer: _WirePhase | None = None
    step: _WirePhase | None = None


class _WireRegion(msgspec.Struct, frozen=True):
    name: str
    times: _Quantity
    cost: _WireCost


class _WireRow(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    op: str
    module: str
    module_type: str
    source: str
    state: State
    inputs: list[_WireTensor]
    outputs: list[_WireTensor]
    cost: _WireCost
    backward: _WireCost | None = None
    matrix_dtype: str = ""
    phase: Phase = "forward"
    times: _Quantity = 1
    regions: list[_WireRegion] = []


class _WireHeld(msgspec.Struct, frozen=True):
    name: str
    kind: HeldKind
    first: int
    last: int
    bytes: _Quantity


class _WireTimeline(msgspec.Struct, frozen=True, omit_defaults=True):
    rows: list[int]
    held: list[_WireHeld]
    gradients_from: int | None = None


class _WireSymbol(msgspec.Struct, frozen=True):
    value: int | None
    given_by: Literal["user", "hint"] | None
    range: tuple[int | None, int | None]
    where: list[str]


class _WireCoverage(msgspec.Struct, frozen=True):
    nodes: int
    counted: int
    free: int
    unknown: int
    unknown_ops: dict[str, int]


class _WireDiagnostic(msgspec.Struct, frozen=True):
    code: str
    name: str
    node: str
    message: str


class _WireOrigin(msgspec.Struct, frozen=True):
    path: str
    format: str
    producer: str
    sha256: str


class _WireTool(msgspec.Struct, frozen=True):
    name: str
    version: str


class _WireAttention(msgspec.Struct, frozen=True, omit_defaults=True):
    calls: list[str]
    op: str
    module: str
    source: str
    batch: _Quantity
    heads: _Quantity
    kv_heads: _Quantity
    queries: _Quantity
    keys: _Quantity
    width: _Quantity
    value_width: _Quantity
    mask: Masking
    flops: _Quantity
    masked_flops: _Quantity = 0
    score_bytes: _Quantity = 0
    repeated_bytes: _Quantity = 0
    kv_bytes: _Quantity = 0
    times: _Quantity = 1


class WireReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report as it stands in JSON."""

    schema: Literal[1]
    tool: _WireTool
    origin: _WireOrigin
    symbols: dict[str, _WireSymbol]
    conventions: dict[str, str]
    totals: _WireTotals
    coverage: _WireCoverage
    modules: dict[str, str]
    parameter_modules: dict[str, int]
    parameter_dtypes: dict[str, int]
    rows: list[_WireRow]
    diagnostics: list[_WireDiagnostic]
    memory: _WireTimeline | None = None
    inputs: list[_WireTensor] = []
    attentions: list[_WireAttention] = []


def _to_wire(report: Report) -> WireReport:
    values = report.values
    cached: dict[Dim, _Quantity] = {}

    def quantity(dim: Dim) -> _Quantity:
        if isinstance(dim, int):
            return dim
        if dim not in cached:
            cached[dim] = _Formula(evaluate(dim, values), str(dim))
        return cached[dim]

    def cost(cost: Cost) -> dict[str, _Quantity]:
        wired = {name: quantity(getattr(cost, name)) for name in QUANTITIES}
        return {**wired, "macs": quantity(cost.macs)}

    def phase(totals: Totals | None) -> dict[str, object]:
        if totals is None:
            return {}
        return {
            **cost(totals.cost),
            "peak_bytes": quantity(totals.peak_bytes),
            "peak_node": totals.peak_node,
            "parameters": report.parameters,
            "parameter_bytes": report.parameter_bytes,
            "buffer_bytes": report.buffer_bytes,
        }

    def tensors(named: tuple[Named, ...]) -> list[_WireTensor]:
        return [
            _WireTensor(name, [d if isinstance(d, int) else str(d) for d in t.shape], t.dtype.name)
            for name, t in named
        ]

    def row(row: Row) -> _WireRow:
        return _WireRow(
            *(row.node, row.op, row.module, row.module_type, row.source, row.state),
            *(tensors(row.inputs), tensors(row.outputs), _WireCost(**cost(row.cost))),
            backward=None if row.backward is None else _WireCost(**cost(row.backward)),
            matrix_dtype=row.matrix_dtype,
            phase=row.phase,
            times=quantity(row.times),
            regions=[
                _WireRegion(use.name, quantity(use.times), _WireCost(**cost(use.cost))) for use in row.regions
            ],
        )

    def timeline(memory: Timeline) -> _WireTimeline:
        held = [_WireHeld(*entry[:4], quantity(entry.bytes)) for entry in memory.held]
        return _WireTimeline(list(memory.rows), held, memory.gradients_from)

    def attention(use: AttentionUse) -> _WireAttention:
        sizes = {name: quantity(getattr(use, name)) for name in SIZES}
        return _WireAttention(list(use.calls), use.op, use.module, use.source, mask=use.mask, **sizes)

    extra = {"backward": report.backward, "optimizer": report.optimizer, "step": report.step()}
    return WireReport(
        schema=SCHEMA,
        tool=_WireTool("graphflops", __version__),
        origin=_WireOrigin(*(_utf8(getattr(report.origin, f.name)) for f in fields(Origin))),
        symbols={
            name: _WireSymbol(info.value, info.given_by, (info.minimum, info.maximum), list(info.where))
            for name, info in report.symbols.items()
        },
        conventions=CONVENTIONS,
        totals=msgspec.convert(
            {
                **phase(report.totals),
                **{name: phase(part) for name, part in extra.items() if part is not None},
            },
            _WireTotals,
            from_attributes=True,
        ),
        coverage=_WireCoverage(
            *(report.coverage.nodes, report.coverage.counted, report.coverage.free, report.coverage.unknown),
            unknown_ops=dict(report.coverage.unknown_ops),
        ),
        modules=dict(report.modules),
        parameter_modules=dict(report.parameter_modules),
        parameter_dtypes=dict(report.parameter_dtypes),
        rows=[row(entry) for entry in report.rows],
        diagnostics=[_WireDiagnostic(d.code, d.name, d.node, d.message) for d in report.diagnostics],
        memory=timeline(report.memory) if report.memory.rows else None,
        inputs=tensors(report.inputs),
        attentions=[attention(use) for use in report.attentions],
    )


def _utf8(text: str) -> str:
    """The text as UTF-8 can hold it: a file's name need not be any text."""
    return text.encode(errors="backslashreplace").decode()


def _from_wire(wire: WireReport) -> Report:
    def dim(quantity: _Quantity | _Size) -> Dim:
        if isinstance(quantity, int):
            return quantity
        return parse_dim(quantity if isinstance(quantity, str) else quantity.formula)

    def cost(wired: _WireCost) -> Cost:
        return Cost(*(dim(getattr(wired, name)) for name in QUANTITIES))

    def totals(wired: _WirePhase | None) -> Totals | None:
        return None if wired is None else Totals(cost(wired), dim(wired.peak_bytes), wired.peak_node)

    def attention(wired: _WireAttention) -> AttentionUse:
        sizes = {name: dim(getattr(wired, name)) for name in SIZES}
        return AttentionUse(
            tuple(wired.calls), wired.op, wired.module, wired.source, mask=wired.mask, **sizes
        )

    def timeline(wired: _WireTimeline | None) -> Timeline:
        if wired is None:
            return Timeline()
        held = (Held(w.name, w.kind, w.first, w.last, dim(w.bytes)) for w in wired.held)
        return Timeline(tuple(wired.rows), wired.gradients_from, tuple(held))

    def named(wired: list[_WireTensor]) -> tuple[Named, ...]:
        return tuple(Named(w.name, TensorType(tuple(map(dim, w.shape)), dtype_named(w.dtype))) for w in wired)

    forward = totals(wire.totals)
    assert forward is not None
    return Report(
        origin=Origin(*(getattr(wire.origin, f.name) for f in fields(Origin))),
        symbols={
            name: SymbolInfo(info.value, info.given_by, *info.range, where=tuple(info.where))
            for name, info in wire.symbols.items()
        },
        totals=forward,
        parameters=wire.totals.parameters,
        parameter_bytes=wire.totals.parameter_bytes,
        buffer_bytes=wire.totals.buffer_bytes,
        coverage=Coverage(
            wire.coverage.counted, wire.coverage.free, wire.coverage.unknown, wire.coverage.unknown_ops
        ),
        rows=tuple(
            Row(
                *(row.node, row.op, row.module, row.module_type, row.source, row.state, cost(row.cost)),
                backward=None if row.backward is None else cost(row.backward),
                inputs=named(row.inputs),
                outputs=named(row.outputs),
                matrix_dtype=row.matrix_dtype,
                phase=row.phase,
                times=dim(row.times),
                regions=tuple(RegionUse(use.name, dim(use.times), cost(use.cost)) for use in row.regions),
            )
            for row in wire.rows
        ),
        diagnostics=tuple(Diagnostic(d.code, d.name, d.node, d.message) for d in wire.diagnostics),
        modules=wire.modules,
        parameter_modules=wire.parameter_modules,
        parameter_dtypes=wire.parameter_dtypes,
        backward=totals(wire.totals.backward),
        optimizer=totals(wire.totals.optimizer),
        memory=timeline(wire.memory),
        inputs=named(wire.inputs),
        attentions=tuple(map(attention, wire.attentions)),
    )


def scaled(row: Row, times: Dim, prefix: str) -> Row:
    """The row of a nested graph as part of the graph around it: run `times` times, named after the call it is in."""
    return replace(
        row,
        node=f"{prefix}/{row.node}",
        cost=row.cost * times,
        backward=None if row.backward is None else row.backward * times,
        times=row.times * times,
    )
