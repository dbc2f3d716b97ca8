"""The tables of a report as cells of text, for every format that draws tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from graphflops.attention import AttentionUse
from graphflops.base.patterns import DEEPEST, is_within, modules_around
from graphflops.base.record import replace
from graphflops.base.units import numbered, parameters, seconds
from graphflops.cost import REPORTED
from graphflops.dims import evaluate
from graphflops.render.ledger import Group, Ledger, Tree, traffic
from graphflops.render.text import Entry, Numbers, TextTable, operator_name, safe, short_type
from graphflops.report import Cut, Report, Row, phases_of
from graphflops.report.size_names import named
from graphflops.tensor import TensorType, grouped

_OPERATORS = 8  # lines of the table of operators under the tree
_WHOLE = [quantity for quantity in REPORTED if not quantity.part_of and quantity.name != "macs"]
_LINES = 25  # lines of a table that the user chose


def tables(
    report: Report, ledger: Ledger, by: Cut | None = None, depth: int | None = None, top: int | None = None,
    *, verbose: bool = False,
) -> Iterator[TextTable]:  # fmt: skip
    """The training step, if there is one, and where the work is.

    by: by which thing; None is the tree of modules and the top operators, "attention" one line for all equal ones.
    depth: levels of the tree; None shows as many as fit a screen.
    top: lines of a table, or lines under one module; what is left out is one line together.
    verbose: every layer, with the shapes of its input, output and weight.
    """
    if report.backward is not None:
        yield _phases(report, ledger.numbers)
    if by is None and (report.memory_use or report.exchanges):
        from graphflops.render import memory

        if report.memory_use:
            yield memory.parts(report, ledger.numbers)
            yield memory.at_peak(report, report.memory_use[-1], ledger.numbers)
        if report.exchanges:
            yield memory.exchanges(report, ledger.numbers)
    if by in (None, "module"):
        yield _modules(report, ledger, DEEPEST if verbose and depth is None else depth, top, verbose)
    if by in (None, "op"):
        most = _OPERATORS if by is None else _LINES
        yield _groups("operator", ledger, lambda row: operator_name(row.op), top or most, idle=by == "op")
    if by == "source":
        yield _groups("source", ledger, lambda row: row.source, top or _LINES, idle=True)
    if by == "attention":
        yield _attentions(report, ledger.numbers, top or _LINES)
    if report.device:
        from graphflops.render import time

        yield time.table(report, by, top)


def _phases(report: Report, numbers: Numbers) -> TextTable:
    phases = phases_of(report)
    leasts = {**dict.fromkeys(phases, ">= " if report.coverage.unknown else ""), "optimizer": ""}
    shown = [q for q in _WHOLE if not q.is_rare or any(getattr(t.cost, q.name) != 0 for t in phases.values())]
    entries = []
    for name, totals in phases.items():
        least = leasts[name]
        amounts = [numbers.amount(getattr(totals.cost, quantity.name), quantity.unit) for quantity in shown]
        held = f"{least}{numbers.memory(totals.peak_bytes)}" if totals.peak_bytes != 0 else ""
        cells = [name, *(f"{least}{amount}" for amount in amounts), held]
        if report.device:
            cells.append("" if totals.time is None else f"{least}{seconds(totals.time.seconds)}")
        entries.append(Entry(cells))
    heads = ("phase", *(quantity.head for quantity in shown), "peak memory", *["time"] * bool(report.device))
    return TextTable(heads, entries)


def _modules(report: Report, ledger: Ledger, depth: int | None, top: int | None, verbose: bool) -> TextTable:
    lines = Tree(report, ledger).lines(depth, top)
    whole, entries, nothing = lines[0].group, [], LayerShapes()
    found, heads = (layer_shapes(report), HEADS) if verbose else ({}, ())
    for line in lines:
        shapes = nothing if line.first is None else found.get(line.first, nothing)
        cells = [_text(report, tensor) for tensor in shapes] if verbose else []
        group, kind = line.group, safe(short_type(line.type)) if line.level else ""
        held = parameters(line.parameters) if line.parameters else ""
        moved = _known(group, ledger.numbers.memory(traffic(group.cost)))
        texts = [safe(line.label), kind, *cells, *_work(group, whole, ledger), held, moved]
        entries.append(Entry(texts, line.level, safe(line.path or line.label), group.unknown > 0))
    return TextTable(("module", "type", *heads, *_work_heads(ledger), "params", "bytes"), entries, names=2)


def _groups(head: str, ledger: Ledger, key: Callable[[Row], str], most: int, *, idle: bool) -> TextTable:
    """Groups in order; those without cost only if `idle`, unknown ones always."""
    counts, whole = ledger.counts(key), ledger.group(Counter(ledger.of))
    groups = ledger.groups(counts)
    worth = {name: group for name, group in groups.items() if idle or group.unknown or group.cost}
    names = list(worth)[:most]
    names += [name for name in worth if worth[name].unknown and name not in names][:most]
    chosen = [(safe(name) or f"(no {head})", worth[name]) for name in names]
    if rest := [name for name in worth if name not in names]:
        left = Counter[int]()
        for name in rest:  # a sum would copy what it has for each
            left.update(counts[name])
        chosen.append((f"… {len(rest):,} more", ledger.group(left)))
    entries = []
    for name, group in chosen:
        vector = _known(group, ledger.numbers.count(group.cost.vector_flops))
        moved = _known(group, ledger.numbers.memory(traffic(group.cost)))
        cells = [name, f"{group.calls:,}", *_work(group, whole, ledger), vector, moved]
        entries.append(Entry(cells, alarming=group.unknown > 0))
    return TextTable((head, "calls", *_work_heads(ledger), "vector", "bytes"), entries)


def _attentions(report: Report, numbers: Numbers, most: int) -> TextTable:
    """One line for all equal attentions, in program order of the first."""
    alike = grouped((replace(use, calls=(), module="", source=""), use) for use in report.attentions)
    groups = list(alike.items())
    rows = [_attention(use, group, numbers) for use, group in groups[:most]]
    rest = sum(len(group) for _, group in groups[most:])
    if rest:
        rows.append([f"… {rest:,} more", *[""] * (len(_ATTENTION) - 1)])
    # A column that no line fills is left out; without any line, those that few programs have.
    known = zip(*rows, strict=True) if rows else [[head not in _RARE] for head in _ATTENTION]
    kept = [place for place, column in enumerate(known) if any(column)]
    return TextTable([_ATTENTION[i] for i in kept], [Entry([row[i] for i in kept]) for row in rows])


_RARE = ("partial + full blocks", "kernel")
_ATTENTION = (
    "attention", "layers", "heads", "kv heads", "q x k", "width", "mask", "FLOPs", "visible", "scores moved",
    "KV bytes", "partial + full blocks", "operator", "kernel",
)  # fmt: skip


def _attention(use: AttentionUse, group: Sequence[AttentionUse], numbers: Numbers) -> list[str]:
    count = len(group)
    place = numbered([each.module or each.source or each.calls[0] for each in group])
    heads, kv_heads, queries, keys, *widths = (
        numbers.count(getattr(use, name))
        for name in ("heads", "kv_heads", "queries", "keys", "width", "value_width")
    )
    visible = numbers.count((use.flops - use.masked_flops) * count) if use.masked_flops != 0 else ""
    scores = numbers.memory(use.score_bytes * count) if use.score_bytes != 0 else ""
    blocks = [x for x in (use.partial_blocks, use.full_blocks) if x is not None]
    shape = (heads, kv_heads, f"{queries} x {keys}", "/".join(dict.fromkeys(widths)), _mask(use))
    work = (numbers.count(use.flops * count), visible, scores, numbers.memory(use.kv_bytes * count))
    tiles = " + ".join(numbers.count(x * count) for x in blocks)
    called = operator_name(use.op) or f"{len(group[0].calls)} calls"
    return [safe(place), f"{count:,}", *shape, *work, tiles, called, _kernel(use)]


def _kernel(use: AttentionUse) -> str:
    """The kernel, and why not the first that PyTorch tries; for the unfused one, why not the last."""
    why = use.kernel_reason.split("; ")[-1 if use.kernel == "math" else 0].partition(": ")[2]
    return f"{use.kernel} ({why})" if why else use.kernel


def _mask(use: AttentionUse) -> str:
    """`causal, window 128` where the form of the mask has a name, else what kind of mask it is."""
    if use.pattern:
        return safe(use.pattern, 60) + (" (stated)" if use.mask == "stated" else "")
    return {"none": "", "structure": "computed", "constant": "stored"}.get(use.mask, use.mask)


def _work_heads(ledger: Ledger) -> tuple[str, ...]:
    return ("forward", "backward", "%") if ledger.phases else ("FLOPs", "%")


def _work(group: Group, whole: Group, ledger: Ledger) -> list[str]:
    costs = (group.forward, group.backward) if ledger.phases else (group.forward,)
    figures = [_known(group, ledger.numbers.count(cost.matrix_flops)) for cost in costs]
    share = ledger.numbers.share(group.cost.matrix_flops, whole.cost.matrix_flops)
    return [*figures, "" if group.unknown and not group.cost else share]


def _known(group: Group, figure: str) -> str:
    """A figure of a group, marked as a lower bound if part of the group is unknown."""
    if group.unknown:
        return f">= {figure}" if group.cost else "unknown"
    return figure


HEADS = ("input", "output", "weight")


class LayerShapes(NamedTuple):
    """A module's first operand from outside, its last result, and the largest tensor stored for its own calls."""

    operand: TensorType | None = None
    result: TensorType | None = None
    weight: TensorType | None = None


def layer_shapes(report: Report) -> dict[str, LayerShapes]:
    """The shapes of each module by path, as the forward runs it; a module that runs several times has its last result."""
    given = {entry.name for entry in report.inputs}
    made: dict[str, str] = {}  # by value, the module that makes it
    found: dict[str, LayerShapes] = {}
    for row in report.rows:
        if row.phase == "backward":
            continue
        own = (x.type for x in row.inputs if not (x.name in made or x.name in given or row.regions))
        # No weights are single numbers, and the sizes and indices that exporters store.
        stored = [x for x in own if x.numel != 1 and x.rank > 0 and x.dtype.name != "int64"]
        for path in dict.fromkeys((row.module, *modules_around(row.module), "")):
            shapes = found.get(path, LayerShapes())
            outside = (
                x.type for x in row.inputs if x.name in given or not is_within(made.get(x.name, path), path)
            )
            operand = shapes.operand or next(outside, None)
            result = row.outputs[0].type if row.outputs else shapes.result
            found[path] = LayerShapes(operand, result, shapes.weight)
        shapes = found[row.module]
        weights = [*filter(None, [shapes.weight]), *stored]
        heaviest = max(weights, key=lambda one: one.numel if isinstance(one.numel, int) else 0, default=None)
        found[row.module] = shapes._replace(weight=heaviest)
        made.update((entry.name, row.module) for entry in row.outputs)
    return found


def _text(report: Report, tensor: TensorType | None) -> str:
    if tensor is None:
        return ""
    known = zip((evaluate(size, report.values) for size in tensor.shape), tensor.shape, strict=True)
    sizes = (named(str(size), report.names) if value is None else str(value) for value, size in known)
    return f"[{', '.join(sizes)}]"
