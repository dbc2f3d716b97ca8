"""Compares two reports: joins their sizes, numbers their calls, pairs their modules and lists what differs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from graphflops.comparison.calls import InternedCalls, Rewired, aligned, rewired, told
from graphflops.comparison.causes import causes, crossings, folded, growth
from graphflops.comparison.entries import Trees, attributed, by_operator, by_source, changed, listed, shared
from graphflops.comparison.export_check import is_export, ledger, under_common_names
from graphflops.comparison.modules import ComparedModule, align, grown
from graphflops.comparison.result import Comparison, Fact, Figure, ModuleChange, Remark, UnknownChange
from graphflops.comparison.sizes import JointSizes, Renamed, different_dtypes, different_inputs, join
from graphflops.cost import REPORTED
from graphflops.dims import Dim, evaluate, total
from graphflops.ops import operator
from graphflops.report import HELD, Report, Row, phases_of
from graphflops.report.contradictions import contradicted
from graphflops.tensor import DTYPES, grouped

_PARTS = tuple(q.name for q in REPORTED if q.part_of)
_TRAFFIC = tuple(q.name for q in REPORTED if q.unit == "B")
_OTHER = tuple(q.name for q in REPORTED[2:] if q.name not in (*_PARTS, *_TRAFFIC))
_RANKED_AT = 1024  # the value of a size without one when entries are ranked

Rank = Callable[[Any], tuple[int, ...]]  # of what has figures and figures of the backward


def compared(old: Report, new: Report, uniform: Callable[[str], float | None] = lambda _: None) -> Comparison:
    """Computes what differs between two programs. uniform: the number that fills a stored vector."""
    old, new, uniform = under_common_names(old, new, uniform)
    trees = _trees(old, new)
    sizes, export = trees.joined, trees.export
    has_modules = not export or all(any(row.module for row in report.rows) for report in (old, new))
    (found, unchanged, renumbered), rank = listed(trees), _rank(sizes)
    modules = sorted(_handed_over(found) if export else found, key=rank) if has_modules else []
    folds = sorted(folded(modules), key=rank)
    totals = _totals(old, new, sizes, trees.kinds, training=trees.training)
    before, after = old.coverage.unknown_ops, new.coverage.unknown_ops
    calls_of = ((op, before.get(op, 0), after.get(op, 0)) for op in {**after, **before})
    unknown = tuple([UnknownChange(*each) for each in calls_of if each[1] != each[2]])
    inputs = tuple(different_inputs(old, new, sizes))
    equal = {} if export else aligned(old, new, trees.pairs, trees.numbers)
    wiring = rewired(old, new, equal, trees.numbers)
    comparison = Comparison(
        old=old,
        new=new,
        same=False,
        export=export,
        sizes=sizes.sizes,
        remarks=(*sizes.remarks, *_remarks(old, new, wiring, has_modules=has_modules)),
        unknown=unknown,
        totals=totals,
        dtypes=tuple(different_dtypes(old, new)),
        inputs=inputs,
        growth=tuple(growth(totals["forward"], sizes.sizes, folds)),
        crossings=tuple(crossings(totals["forward"], sizes.sizes, sizes.values)),
        modules=tuple(modules),
        unchanged=unchanged if has_modules else 0,
        renumbered=tuple(renumbered),
        **changed([] if export else by_operator(trees), rank, "ops"),
        **changed(by_source(trees), rank, "sources"),
        folded=tuple(folds),
        causes=tuple(sorted(causes(folds), key=rank)),
        ledger=ledger(old, new, sizes, unknown, inputs, uniform) if export else (),
        calls=equal | _changed_calls(old, new, modules),
    )
    return replace(comparison, same=_is_same(comparison))


def _trees(old: Report, new: Report) -> Trees:
    joined = join(old, new)
    kinds = InternedCalls(joined.value)
    numbers = (kinds.of(old, joined.old), kinds.of(new, joined.new))
    export = is_export(old, new)
    signatures: dict[Hashable, int] = {}

    def marks(report: Report, renamed: Renamed) -> Callable[[ComparedModule], Hashable]:
        if export:
            return partial(_exported, report, renamed)
        return lambda module: tuple(kind for _, kind in module.calls)

    trees = (
        grown(old, numbers[0], old.parameter_modules, signatures, marks(old, joined.old)),
        grown(new, numbers[1], attributed(old, new), signatures, marks(new, joined.new)),
    )
    return Trees(
        (old, new),
        *trees,
        pairs=align(*trees, by_contents=not export),
        kinds=kinds,
        joined=joined,
        shared=(shared(old), shared(new)),
        export=export,
        training=old.backward is not None and new.backward is not None,
        numbers=numbers,
    )


def _is_same(found: Comparison) -> bool:
    """True if nothing differs; of an export, if nothing is unexplained."""
    if found.export:
        return all(entry.status != "unexplained" for entry in found.ledger)
    return not (
        (found.unknown or found.inputs or found.dtypes or found.modules)
        or any(size.opened or size.fixed or None in (size.before, size.after) for size in found.sizes)
        or any(remark.name in ("sizes-differ", "rewired", "results-differ") for remark in found.remarks)
        or any(figure.differs for phase in found.totals.values() for figure in phase.values())
    )


def _exported(report: Report, renamed: Renamed, module: ComparedModule) -> Hashable:
    """What an export keeps: the matrix work of a module and its element type; its operators differ."""
    rows = [report.rows[index] for index, _ in module.calls]
    worked = [row for row in rows if row.cost.matrix_flops != 0]
    flops = total(renamed(row.cost.matrix_flops) for row in worked)
    return flops, frozenset(row.matrix_dtype for row in worked), sum(row.state == "unknown" for row in rows)


def _handed_over(modules: Sequence[ModuleChange]) -> Iterator[ModuleChange]:
    """Entries of an export, with the module that the work went to or came from: exporters fuse what follows a product."""
    by_delta = grouped((change.figures["matrix_flops"].delta or 0, change) for change in modules)
    for change in modules:
        delta = change.figures["matrix_flops"].delta or 0
        others = by_delta.get(-delta, ()) if delta else ()
        if others and len(others) == len(by_delta[delta]):
            ends = (others[by_delta[delta].index(change)].path, "")
            change = replace(change, facts=(Fact("fused", *ends[:: 1 if delta > 0 else -1]), *change.facts))
        yield change


def _rank(joined: JointSizes) -> Rank:
    """The sort key of entries: how much work changed, then traffic, then other work, then parameters."""
    values = defaultdict(lambda: _RANKED_AT, joined.values)
    rough = cache(lambda dim: evaluate(dim, values) or 0)

    def change(figure: Figure | None) -> int:
        if figure is None or not figure.differs:
            return 0
        delta = figure.delta
        return rough(figure.after) - rough(figure.before) if delta is None else delta

    def rank(one: Any) -> tuple[int, ...]:
        def both(*names: str) -> int:
            return -abs(sum(change(part.get(name)) for part in (one.figures, one.backward) for name in names))

        return (both("matrix_flops"), both(*_PARTS), both(*_TRAFFIC), both(*_OTHER), both("parameters"))

    return rank


def _totals(
    old: Report, new: Report, joined: JointSizes, kinds: InternedCalls, *, training: bool
) -> dict[str, dict[str, Figure]]:
    phases, others = phases_of(old), phases_of(new)
    found: dict[str, dict[str, Figure]] = {}
    for name in [name for name in phases if name in others] if training else ["forward"]:
        before, after = phases[name], others[name]
        figures = dict(kinds.compared(joined.old.cost(before.cost), joined.new.cost(after.cost)))
        figures["peak_bytes"] = kinds.figure(joined.old(before.peak_bytes), joined.new(after.peak_bytes))
        found[name] = figures
    needed: list[dict[str, Dim]] = [  # on their devices: in total, or if a size is open the requested bytes
        {use.phase: use.requested_peak if use.device_total is None else use.device_total for use in side}
        for side in (old.memory_use, new.memory_use)
    ]
    for phase, name in (("inference", "forward"), ("training", "step")):
        if all(phase in of for of in needed):
            taken = kinds.figure(joined.old(needed[0][phase]), joined.new(needed[1][phase]))
            found.get(name, found["forward"])["device_bytes"] = taken
    for held in HELD:
        found["forward"][held] = kinds.figure(getattr(old, held), getattr(new, held))
    return found


def _changed_calls(old: Report, new: Report, modules: Iterable[ModuleChange]) -> dict[int, int]:
    """By row of the old program, the row of the new program that it changed into."""
    places = [{id(row): place for place, row in enumerate(report.rows)} for report in (old, new)]
    calls = [call for change in modules for call in change.calls]
    return {
        places[0][id(call.before)]: places[1][id(call.after)]
        for call in calls
        if call.before is not None and call.after is not None
    }


def _remarks(old: Report, new: Report, wiring: Iterable[Rewired], *, has_modules: bool) -> Iterator[Remark]:
    for which, report in (("old", old), ("new", new)):
        if problem := contradicted(report):
            yield Remark("contradiction", f"the {which} side: {problem}")
    if (old.backward is None) != (new.backward is None):
        which = "old" if new.backward is None else "new"
        what = f"only the {which} report prices training"
        yield Remark("training-in-one", f"{what}: the forward passes are compared")
    if old.execution != new.execution:
        how = f"{old.execution} before, {new.execution} after"
        yield Remark("executions-differ", f"memory is compared across executions: {how}")
    for said in dict.fromkeys((*old.diagnostics, *new.diagnostics)):
        if said.name == "measured-busy":
            yield Remark(said.name, said.message)
    # The types that more products, or fewer, compute in or have their weights in than before: `8 of 9 products`.
    before, after = (
        Counter(_how(row, report) for row in report.rows if row.cost.matrix_flops != 0)
        for report in (old, new)
    )
    for kind in sorted({*before, *after} - {""}, key=lambda kind: (kind.startswith("weights"), kind)):
        count, was = after[kind], before[kind]
        if count > was:
            earlier = f", {was:,} before" if was else ""
            yield Remark("quantized", f"{kind}: {count:,} of {after.total():,} products{earlier}")
        elif count < was:
            text = f"no longer {kind}: {was - count:,} of {before.total():,} products"
            yield Remark("quantized", text)
    if not has_modules:
        what = "one file does not say which module a call is made in"
        yield Remark("no-modules", f"{what}: only totals are compared")
    if text := told(tuple(wiring)):
        yield Remark("rewired", text)
    was, count = len(old.outputs), len(new.outputs)
    if was and count and was != count and old.origin.format == new.origin.format:
        yield Remark("results-differ", f"the program returns {count:,} results, {was:,} before")


_FEW = 16  # bits of what a quantizer stores, at most
_BYTE = 8  # bits


def _how(row: Row, report: Report) -> str:
    """How a product is quantized: both factors, only the weights, or not at all."""
    dtype = DTYPES.get(row.matrix_dtype)
    if dtype is None or dtype.bits < _FEW or dtype.kind in ("int", "uint"):
        return f"quantized to {row.matrix_dtype.removeprefix('u')}"
    small = (
        x for _, x in row.inputs if x.rank > 1 and x.dtype.bits <= _BYTE and x.dtype.kind in ("int", "uint")
    )
    weight = next(small, None)
    if weight is None:
        return ""
    bits, x = weight.dtype.bits, row.inputs[0].type
    if operator(row.op).kind == "product" and x.dtype.is_floating and x.rank:
        # If bytes hold several weights, the rows of the first operand show how many there are.
        sizes = map(report.value, (row.cost.matrix_flops, x.shape[-1], x.numel, weight.nbytes))
        flops, inner, elements, stored = (size or 0 for size in sizes)
        weights = flops * inner // (2 * elements) if elements else 0
        packed = _BYTE * stored // weights if weights else _BYTE
        bits = packed if 0 < packed < _BYTE else bits
    return f"weights quantized to int{bits}"
