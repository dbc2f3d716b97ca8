"""What changed, in words: the first lines of every rendering of a comparison, quantities before and after, the ledger."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from graphflops.base.units import LEAST_SHARE, interval, measured, memory, number, seconds
from graphflops.comparison.result import Comparison, Fact, Figure, Fold, LedgerEntry, LedgerKind, ModuleChange
from graphflops.cost import REPORTED
from graphflops.fitting.cells import QUANTITIES
from graphflops.ops import operator
from graphflops.render.summary import title
from graphflops.render.text import count_of, formula, listed, safe, short_type, shortened

NAMES = {
    **{quantity.name: quantity.label for quantity in REPORTED},
    "peak_bytes": "peak memory",
    "device_bytes": "device memory",
    "parameters": "parameters",
    "parameter_bytes": "parameter memory",
    "buffer_bytes": "buffer memory",
}
_FORMULA = 80  # characters of a formula in a sentence
_LARGE = 10_000  # percent


def before_after(name: str, figure: Figure) -> tuple[str, str]:
    """Both sides as numbers, else as formulas."""
    sides = ((figure.before, figure.before_value), (figure.after, figure.after_value))
    first, second = (
        measured(name, value) if value is not None else shortened(formula(dim), _FORMULA)
        for dim, value in sides
    )
    return first, second


def delta(name: str, figure: Figure) -> str:
    """After less before, with its sign: `+1.049 M`; `0` where nothing changed."""
    change = figure.delta
    if change is None:
        text = shortened(formula(figure.formula), _FORMULA)
        return text if text.startswith("-") else f"+{text}"
    return f"+{measured(name, change)}" if change > 0 else measured(name, change)


def share(figure: Figure) -> str:
    """The delta in percent of before; `new` where there was nothing, "" where that has no value."""
    if figure.before == 0:
        return "" if figure.after == 0 else "new"
    ratio = figure.percent
    return "" if ratio is None else signed(ratio) if figure.delta else "0.0"


def signed(ratio: float) -> str:
    """A percentage with its sign; a large one without decimals; `+<0.1`, `-<0.1` for one that would print as 0."""
    if ratio and abs(ratio) < LEAST_SHARE:
        return "+<0.1" if ratio > 0 else "-<0.1"
    return f"{ratio:+.1f}" if abs(ratio) < _LARGE else f"{ratio:+,.0f}"


LINES = 6
_NAMES = 3  # named in a line
_STATUS = {"unexplained": "not explained", "costs_more": "costs more", "explained": "explained"}


def ledger_lines(comparison: Comparison, *, verbose: bool = False) -> list[str]:
    """A line for each entry; at most six with three names each, unless `verbose`."""
    entries = comparison.ledger
    shown = entries if verbose or len(entries) <= LINES else entries[: LINES - 1]
    lines = []
    for entry in shown:
        names = dict.fromkeys(safe(name, 80) or "(the model itself)" for name in entry.names)
        told = listed(names, len(entry.names) if verbose else _NAMES)
        lines.append(f"{_STATUS[entry.status]}: {_ledger_words(entry)} ({told})")
    rest = len(entries) - len(shown)
    return [*lines, f"and {rest:,} more explained kinds of differences (-v lists them)"] if rest else lines


_COUNTED: Mapping[LedgerKind, tuple[str, str]] = {
    "parameters_lost": ("trained parameter", "missing"),
    "cannot_run": ("call", "that cannot run"),
    "sizes_fixed": ("open size", "fixed"),
    "heads_expanded": ("attention", "with keys and values copied for each query head"),
    "batch_norms_folded": ("batch norm", "folded into the product before"),
    "shifts_left_out": ("batch norm", "folded, without a bias in any product: shifts of zeros are left out"),
    "zeros_left_out": ("parameter", "of zeros or ones left out"),
    "constants_folded": ("product", "of constants computed when the file was made"),
    "unused_left_out": ("product", "left out whose results nothing uses"),
    "constants_lifted": ("constant", "stored beside the parameters"),
    "parameters_folded": ("parameter", "folded into constants"),
    "weights_packed": ("weight", "joined or cut"),
    "weights_shared": ("weight", "stored once for equal ones"),
    "weights_split": ("shared weight", "stored more than once"),
    "weights_quantized": ("weight", "stored as small integers"),
}


def _ledger_words(entry: LedgerEntry) -> str:
    modules, many = count_of(len(entry.names), "module"), len(entry.names)
    before, after = (safe(text, 60) for text in (entry.before, entry.after))
    match entry.kind:
        case "work" if not entry.before:
            return "sizes cannot be made equal"
        case "work":
            sides = (entry.before, entry.after)
            was, now = (number(int(n)) if n.lstrip("-").isdecimal() else safe(n, 80) for n in sides)
            return f"FLOPs {was} → {now} in {modules}"
        case "element_types":
            return f"element type {before} → {after} of {many:,}"
        case "weight_shapes":
            return f"weight {before} → {after}"
        case "unknown":
            return f"calls of unknown cost {entry.before} → {entry.after}"
        case "attention_unfused":
            traffic = f"{memory(int(entry.before))} → {memory(int(entry.after))} read and written"
            return f"{count_of(many, 'attention')} unfused, {traffic}"
        case "quantized":
            return f"products of {modules} in {after}"
        case "repeated_work_merged":
            return f"repeated work done once in {modules}"
    noun, rest = _COUNTED[entry.kind]
    return f"{count_of(many, noun)} {rest}"


def titles(comparison: Comparison) -> tuple[str, str]:
    """What the two are called; by their whole paths where their names are the same."""
    both = title(comparison.old), title(comparison.new)
    if both[0] != both[1]:
        return both
    paths = comparison.old.origin.path, comparison.new.origin.path
    return both if paths[0] == paths[1] else (safe(paths[0], 80), safe(paths[1], 80))


PARTS = tuple(q.name for q in REPORTED if q.part_of)
_LEADING = tuple(q.name for q in REPORTED if not q.part_of and q.name != "macs")
_SAID = ("matrix_flops", "parameters", "parameter_bytes", *PARTS, *_LEADING[1:], "peak_bytes")
_OTHERS = tuple(q.name for q in REPORTED if q.name not in ("matrix_flops", "macs")) + ("peak_bytes",)
_GENERAL = 3  # changes of sizes, inputs and element types in the first lines
_DEGREES = {1: "linear", 2: "quadratic", 3: "cubic"}
_FACTS = 3  # facts of one module in a line


def headlines(comparison: Comparison, *, verbose: bool = False) -> list[str]:
    """The answer and what changed of the program itself; of an export the ledger, all of it if `verbose`."""
    if comparison.export:
        return [_whole(comparison), *device_lines(comparison), *ledger_lines(comparison, verbose=verbose)]
    general = [*_general(comparison)]
    rest = [f"{len(general) - _GENERAL:,} more changes of sizes and inputs"]
    said = general if verbose or len(general) <= _GENERAL + 1 else [*general[:_GENERAL], *rest]
    whole = [*_coverage(comparison), _whole(comparison), *device_lines(comparison)]
    figures = comparison.totals.get("step") or comparison.totals["forward"]
    others = [name for name in _OTHERS if abs(figures[name].percent or 0) >= LEAST_SHARE]
    shares = [f"{NAMES[name]} {share(figures[name])} %" for name in others if name != _instead(figures)]
    return [*whole, *said, *[", ".join(shares)] * bool(shares)]


def brief(comparison: Comparison) -> str:
    """The answer in one line."""
    return next(iter(headlines(comparison)), " → ".join(titles(comparison)))


def device_lines(comparison: Comparison) -> Iterator[str]:
    """Time and memory on a device, where both were analyzed for one."""
    least = _least(comparison)
    if (change := comparison.time) is not None:
        where = f"on {safe(change.device, 60)}, {change.execution}"
        sides = (change.before, change.after)
        before, after = (f"{mark}{seconds(time)}" for mark, time in zip(least, sides, strict=True))
        percent = "" if change.percent is None or before == after else f"{change.percent:+.0f} %"
        took = f"{after} as before" if before == after else f"{before} → {after}"
        beside = ", ".join(filter(None, (percent, interval(change.low, change.high))))
        yield f"time {took} ({beside}) {where}" if beside else f"time {took} {where}"
    # What changes for requests to a decoder: the memory that each keeps, and how many fit at once.
    said = []
    served = comparison.serving
    programs = (served.before, served.after) if served else ({}, {})
    for quantity in QUANTITIES:
        old, new = (side.get(quantity.name) for side in programs)
        if not quantity.is_step and old and new is not None and old != new:
            times = f"{new / old:.1f}x" if new >= 2 * old else f"{100 * (new / old - 1):+.0f} %"
            said.append(f"{quantity.head} {quantity.said(old)} → {quantity.said(new)} ({times})")
    if said and served:
        yield f"serving {', '.join(said)}" + (f" at {served.context:,} tokens each" if served.context else "")
    figures = [
        _changed("device_bytes", comparison.totals[phase]["device_bytes"], what, least)
        for phase, what in (("forward", "runs in"), ("step", "trains in"))
        if "device_bytes" in comparison.totals.get(phase, {})
    ]
    if figures:
        yield f"memory {', '.join(figures)} on {safe(comparison.new.memory_use[0].device, 60)}"


def _coverage(comparison: Comparison) -> Iterator[str]:
    changes = [(safe(entry.op, 80), entry.after - entry.before) for entry in comparison.unknown]
    parts = []
    for words, sign in (("of unknown cost now", 1), ("no longer of unknown cost", -1)):
        if named := listed(f"{op} ({change:+,})" for op, change in changes if change * sign > 0):
            parts.append(f"{words}: {named}")
    if parts:
        yield f"coverage: {'; '.join(parts)}; totals contain known calls only"


def _least(comparison: Comparison) -> list[str]:
    """By side, `>= ` before amounts to which calls of unknown cost may add, else ""."""
    return [">= " if report.coverage.unknown else "" for report in (comparison.old, comparison.new)]


def _whole(comparison: Comparison) -> str:
    ours, theirs = titles(comparison)
    figures = comparison.totals.get("step") or comparison.totals["forward"]
    forward = comparison.totals["forward"]
    both = f"{ours} → {theirs}"
    flops = figures["matrix_flops"]
    least = _least(comparison)
    what = "FLOPs of a training step" if "step" in comparison.totals else "FLOPs"
    if comparison.same and not comparison.export:
        return f"{both}: identical, {what} {least[0]}{before_after('matrix_flops', flops)[0]}"
    if comparison.export and comparison.same:
        kept = "in both (0)" if flops.delta == 0 else f"→ {before_after('matrix_flops', flops)[1]}"
        kept += " at these sizes, by another formula" * (flops.differs and flops.delta == 0)
        return f"{both}: the export keeps the work: {what} {least[0]}{before_after('matrix_flops', flops)[0]} {kept}"
    parts = [_changed("matrix_flops", flops, what, least)]
    held = forward["parameters"].differs, forward["parameter_bytes"].differs
    if held[0]:
        parts.append(_changed("parameters", forward["parameters"], NAMES["parameters"]))
    if held[1] and (not held[0] or comparison.dtypes):
        parts.append(_changed("parameter_bytes", forward["parameter_bytes"], NAMES["parameter_bytes"]))
    if len(parts) == 1 and (other := _instead(figures)):
        parts.append(_changed(other, figures[other], NAMES[other], least))
    verdict = "the export does not keep the work: " if comparison.export else ""
    return f"{both}: {verdict}{', '.join(parts)}"


def _instead(figures: Mapping[str, Figure]) -> str:
    """The quantity that the first line names where FLOPs did not change; "" where they did, or nothing did."""
    known = [] if figures["matrix_flops"].differs else [name for name in _SAID if figures.get(name)]
    return next((name for name in known if figures[name].differs), "")


def _changed(name: str, figure: Figure, what: str, least: Sequence[str] = ("", "")) -> str:
    """A total before and after; `least` marks sides that lack calls of unknown cost."""
    before, after = (f"{mark}{side}" for mark, side in zip(least, before_after(name, figure), strict=True))
    is_same = not figure.differs or (name == "device_bytes" and figure.delta == 0)
    if is_same and len({*least}) == 1:
        return f"{what} {after} as before (0, 0.0 %)"
    if figure.delta == 0 and not is_same:
        return f"{what} {after} at these sizes, by another formula"
    part = share(figure)
    ratio = f", {part} %" if part not in ("", "new") else ""
    return f"{what} {before} → {after} ({delta(name, figure)}{ratio})"


def _general(comparison: Comparison) -> Iterator[str]:
    """Changes of the whole program: sizes, inputs, element types and growth."""
    for size in comparison.sizes:
        place = safe(size.place, 60)
        also = "" if size.stated == place else f" ({safe(size.name, 40)})"
        if isinstance(size.before, int) and size.opened:
            yield f"{place} was {size.at(size.before):,}, is open now{also}"
        elif isinstance(size.after, int) and size.fixed:
            yield f"{place} was open{also}, is fixed at {size.at(size.after):,} now"
    for remark in comparison.remarks:
        yield safe(remark.message, 300)
    for entry in comparison.inputs:
        name = safe(entry.name, 60)
        if entry.before is None or entry.after is None:
            yield f"input {name} is {'new' if entry.before is None else 'gone'}"
        else:
            yield f"input {name} {safe(entry.before, 80)} → {safe(entry.after, 80)}"
    if comparison.dtypes:
        sides = (
            " and ".join(safe(e.dtype, 20) for e in comparison.dtypes if (e.after if now else e.before))
            or "none"
            for now in (False, True)
        )
        yield f"parameters {' → '.join(sides)}"
    yield from growths(comparison)
    masked = comparison.totals["forward"]["masked_flops"]
    if comparison.export and (masked.before == 0) != (masked.after == 0):
        ours, theirs = before_after("masked_flops", masked)
        side, hidden = ("second", ours) if masked.after == 0 else ("first", theirs)
        yield f"a mask makes {hidden} of the FLOPs unnecessary, which cannot be seen in the {side}"


def growths(comparison: Comparison, quantities: Iterable[str] = ("matrix_flops",)) -> Iterator[str]:
    """`FLOPs: linear in seq before, quadratic now`."""
    for entry in comparison.growth:
        if entry.quantity in quantities:
            size = safe(entry.size, 40)
            degrees = (entry.before, entry.after)
            before, now = (
                f"{_DEGREES.get(n, f'of degree {n}')} in {size}" if n else f"independent of {size}"
                for n in degrees
            )
            paths = listed((safe(path, 80) or "(itself)" for path in entry.modules), 2)
            yield f"{NAMES[entry.quantity]}: {before} before, {now} now{f' ({paths})' if paths else ''}"


def tag(change: ModuleChange) -> str:
    """`[new]`, `[gone]`, `[moved]`, or "" for what changed in its place."""
    return "" if change.status == "changed" else f"[{change.status}]"


def path_of(fold: Fold) -> str:
    """Its path, with the old path if it moved; the type for the model itself."""
    change = fold.first
    before, after = (
        "" if path is None else safe(path, 120) or safe(short_type(type_), 40) or "(program)"
        for path, type_ in ((fold.before_path, change.before_type), (fold.path, change.after_type))
    )
    if change.status == "moved" and before and after and before != after:
        return f"{before} → {after}"
    return after or before


def type_of(change: ModuleChange) -> str:
    """The module's type, or both types."""
    return safe(short_type(change.after_type or change.before_type), 40)


def fact_words(change: ModuleChange, masked: Figure | None, most: int = _FACTS) -> list[str]:
    """The most important differences of a module, in words."""
    # Differences in operands and results other than parameters follow from another difference.
    minor = [
        fact
        for fact in change.facts
        if fact.kind in ("shape", "dtype") and (fact.what.startswith("input") or fact.what == "result")
    ]
    chosen = [fact for fact in change.facts if fact not in minor]
    if not chosen:  # one operand, or the result if no operand changed: the change begins here
        operands = [fact for fact in minor if fact.what != "result"]
        chosen = operands[:1] or [replace(fact, what="same input, result") for fact in minor[:1]]
    words = dict.fromkeys(filter(None, (_said(fact) for fact in chosen if fact.kind != "mask")))
    if masked is not None and any(fact.kind == "mask" for fact in change.facts):
        came = masked.before == 0
        hidden = before_after("masked_flops", masked)[came]
        said = f"a mask hides {hidden} FLOPs now" if came else f"no mask hides {hidden} FLOPs any more"
        words = {said: None, **words}
    return [*words][:most]


def short_op(op: str) -> str:
    """`silu` for `aten.silu.default`, `Softmax` for `onnx.Softmax.13`; operators of other dialects are spelled in full."""
    called = operator(op)
    return safe(called.word if called.dialect in ("aten", "onnx") else op, 80)


def _said(fact: Fact) -> str:
    """A difference in words; "" where the figures say it."""
    before, after, what = (safe(text, 80) for text in (fact.before, fact.after, fact.what))
    match fact.kind:
        case "type" | "dtype" | "shape":
            return f"{safe(fact.what, 60)} {before} → {after}".strip()
        case "unknown":
            known = fact.after in ("0", "counted", "free")
            return f"{short_op(fact.what) or 'cost'} {'known now' if known else 'of unknown cost now'}"
        case "operator":
            short = short_op(fact.before), short_op(fact.after)
            return " → ".join(short if short[0] != short[1] else (before, after))
        case "fused":
            return f"work of {before} is here" if before else f"work is in {after}"
        case "heads":
            return f"{fact.what} heads {before} → {after}"
        case "operand":
            what = safe(fact.what, 40)
            return f"without {what} {before}" if before else f"with {what} {after}"
        case "shared":
            what = safe(fact.what, 40)
            if not after:
                return f"{what} no longer shared with {before}"
            return f"{what} shared with {after} now" + (f", with {before} before" if before else "")
        case "times":
            return f"runs {before} → {after} times"
        case "calls":
            change = int(fact.after) - int(fact.before)
            return f"{change:+,} {short_op(fact.what)}" if change else f"{short_op(fact.what)} otherwise"
        case "order":
            now, then = (f"after {safe(one, 60)}" if one else "first" for one in (fact.after, fact.before))
            return f"runs {now} now, {then} before"
    return ""
