"""A comparison as JSON: the format that docs/diff.md describes; struct names are ours, field names are the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Union

import msgspec

from graphflops.render.json import inert
from graphflops.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.comparison.result import Comparison, Figure, GroupChange, ModuleChange
    from graphflops.dims import Dim
    from graphflops.graph import Origin
    from graphflops.report import Row

SCHEMA: Literal[1] = 1


class Formula(msgspec.Struct, frozen=True):
    """A quantity that depends on an open size."""

    value: int | None
    formula: str


Quantity = Union[int, Formula]


class Change(msgspec.Struct, frozen=True):
    """One quantity; delta is after less before."""

    before: Quantity
    after: Quantity
    delta: Quantity


class Tool(msgspec.Struct, frozen=True):
    """What wrote it."""

    name: str
    version: str


class Program(msgspec.Struct, frozen=True):
    """Where a program came from."""

    path: str
    format: str
    producer: str
    sha256: str


class SizePair(msgspec.Struct, frozen=True):
    """A size of both programs."""

    name: str
    where: list[str]
    before: str | int | None
    after: str | int | None
    value: int | None
    before_value: int | None
    after_value: int | None


class Remark(msgspec.Struct, frozen=True):
    """What limits the comparison."""

    name: str
    message: str


class UnknownOperator(msgspec.Struct, frozen=True):
    """Calls of unknown cost."""

    op: str
    before: int
    after: int


class ParameterType(msgspec.Struct, frozen=True):
    """Bytes of parameters of an element type."""

    dtype: str
    before: int
    after: int


class InputPair(msgspec.Struct, frozen=True):
    """An input whose type changed."""

    name: str
    before: str | None
    after: str | None


class Growth(msgspec.Struct, frozen=True):
    """A total that grows otherwise in a size."""

    quantity: str
    size: str
    before: int
    after: int
    modules: list[str]


class Crossing(msgspec.Struct, frozen=True):
    """A total that is less than before for small values of a size and more for large ones, or the other way round."""

    quantity: str
    size: str
    at: int
    more: bool


class Fact(msgspec.Struct, frozen=True):
    """One thing about a module that is not as it was."""

    kind: str
    what: str
    before: str
    after: str


class Call(msgspec.Struct, frozen=True):
    """One call, as a row of its report has it."""

    node: str
    op: str
    source: str
    state: str
    inputs: list[str]
    outputs: list[str]


class CallPair(msgspec.Struct, frozen=True):
    """A call that is not as it was."""

    before: Call | None
    after: Call | None


class Module(msgspec.Struct, frozen=True):
    """A module that is not as it was."""

    status: Literal["changed", "new", "gone", "moved"]
    before: str | None
    after: str | None
    before_type: str
    after_type: str
    whole: bool
    modules: int
    figures: dict[str, Change]
    backward: dict[str, Change]
    facts: list[Fact]
    calls: list[CallPair]
    before_unknown: int
    after_unknown: int


class Group(msgspec.Struct, frozen=True):
    """All calls of an operator or a source line."""

    before: str | None
    after: str | None
    before_calls: int
    after_calls: int
    before_unknown: int
    after_unknown: int
    figures: dict[str, Change]
    backward: dict[str, Change]


class Diff(msgspec.Struct, frozen=True):
    """The whole comparison."""

    diff: Literal[1]
    tool: Tool
    before: Program
    after: Program
    same: bool
    export: bool
    sizes: list[SizePair]
    remarks: list[Remark]
    unknown: list[UnknownOperator]
    totals: dict[str, dict[str, Change]]
    parameter_dtypes: list[ParameterType]
    inputs: list[InputPair]
    growth: list[Growth]
    crossings: list[Crossing]
    modules: list[Module]
    unchanged_modules: int
    renumbered: list[tuple[str, str]]
    ops: list[Group]
    unchanged_ops: int
    sources: list[Group]
    unchanged_sources: int


def json(comparison: Comparison) -> str:
    """The whole comparison, one object on one line."""
    return inert(msgspec.json.encode(wired(comparison)))


def wired(comparison: Comparison) -> Diff:
    """The comparison in the types of the format."""
    known: dict[int, dict[str, Change]] = {}

    def changes(figures: Mapping[str, Figure]) -> dict[str, Change]:
        found = known.get(id(figures))
        if found is None:
            found = known[id(figures)] = {name: _change(figure) for name, figure in figures.items()}
        return found

    def module(change: ModuleChange) -> Module:
        return Module(
            *(change.status, change.before, change.after, change.before_type, change.after_type),
            *(change.whole, change.modules, changes(change.figures), changes(change.backward)),
            facts=[Fact(fact.kind, fact.what, fact.before, fact.after) for fact in change.facts],
            calls=[CallPair(_call(pair.before), _call(pair.after)) for pair in change.calls],
            before_unknown=change.before_unknown,
            after_unknown=change.after_unknown,
        )

    def group(entry: GroupChange) -> Group:
        return Group(
            *(entry.before, entry.after, entry.before_calls, entry.after_calls),
            *(entry.before_unknown, entry.after_unknown, changes(entry.figures), changes(entry.backward)),
        )

    return Diff(
        diff=SCHEMA,
        tool=Tool("graphflops", __version__),
        before=_program(comparison.old.origin),
        after=_program(comparison.new.origin),
        same=comparison.same,
        export=comparison.export,
        sizes=[
            SizePair(s.name, list(s.where), s.before, s.after, s.value, s.before_value, s.after_value)
            for s in comparison.sizes
        ],
        remarks=[Remark(remark.name, remark.message) for remark in comparison.remarks],
        unknown=[UnknownOperator(entry.op, entry.before, entry.after) for entry in comparison.unknown],
        totals={phase: changes(figures) for phase, figures in comparison.totals.items()},
        parameter_dtypes=[
            ParameterType(entry.dtype, entry.before, entry.after) for entry in comparison.dtypes
        ],
        inputs=[InputPair(entry.name, entry.before, entry.after) for entry in comparison.inputs],
        growth=[Growth(g.quantity, g.size, g.before, g.after, list(g.modules)) for g in comparison.growth],
        crossings=[Crossing(c.quantity, c.size, c.at, c.more) for c in comparison.crossings],
        modules=[module(change) for change in comparison.modules],
        unchanged_modules=comparison.unchanged,
        renumbered=list(comparison.renumbered),
        ops=[group(entry) for entry in comparison.ops],
        unchanged_ops=comparison.unchanged_ops,
        sources=[group(entry) for entry in comparison.sources],
        unchanged_sources=comparison.unchanged_sources,
    )


def _quantity(dim: Dim, value: int | None) -> Quantity:
    return dim if isinstance(dim, int) else Formula(value, str(dim))


def _change(figure: Figure) -> Change:
    return Change(
        _quantity(figure.before, figure.before_value),
        _quantity(figure.after, figure.after_value),
        _quantity(figure.formula, figure.delta),
    )


def _program(origin: Origin) -> Program:
    path = origin.path.encode(errors="backslashreplace").decode()  # a file's name need not be any text
    return Program(path, origin.format, origin.producer, origin.sha256)


def _call(row: Row | None) -> Call | None:
    if row is None:
        return None
    tensors = ([str(named.type) for named in side] for side in (row.inputs, row.outputs))
    return Call(row.node, row.op, row.source, row.state, *tensors)
