"""A report as JSON and back, described in docs/report.md.

A quantity without symbols is a plain integer, one with symbols is `{"value": int or null, "formula": str}`. Struct names are
ours, field names are the format.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal, Union

import msgspec

from graphflops.attention.group import BLOCKS, SIZES, AttentionUse, Masking
from graphflops.cost import CONVENTIONS, QUANTITIES, Cost
from graphflops.dims import Dim, evaluate, parse_dim
from graphflops.errors import DimError, FileError
from graphflops.graph import Origin, Phase
from graphflops.report import (
    Coverage,
    Diagnostic,
    Held,
    HeldKind,
    Named,
    RegionUse,
    Report,
    Row,
    State,
    SymbolInfo,
    Timeline,
    Totals,
)
from graphflops.tensor import TensorType, dtype_named
from graphflops.version import __version__

SCHEMA: Literal[1] = 1


def encoded(report: Report) -> bytes:
    """The report as JSON, UTF-8, one object; raises nothing."""
    return msgspec.json.encode(_to_wire(report))


def decoded(data: bytes) -> Report:
    """The report that JSON holds; FileError names the place in it where it is not a report of this schema."""
    try:
        return _from_wire(msgspec.json.decode(data, type=WireReport))
    except (msgspec.MsgspecError, DimError, RecursionError) as error:
        raise FileError(f"not a graphflops report of schema {SCHEMA}: {error}") from error


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
    partial_blocks: _Quantity | None = None
    full_blocks: _Quantity | None = None


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
        sizes |= {name: quantity(blocks) for name in BLOCKS if (blocks := getattr(use, name)) is not None}
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
        sizes |= {name: dim(blocks) for name in BLOCKS if (blocks := getattr(wired, name)) is not None}
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
