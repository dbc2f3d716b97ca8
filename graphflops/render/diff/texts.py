"""A comparison as text: its causes, one a line, the largest first: where, why, and how much of the model's FLOPs."""

from collections.abc import Iterator, Mapping, Sequence

from graphflops.comparison.causes import summed
from graphflops.comparison.result import Cause, Comparison, Figure, Fold, GroupChange, ModuleChange, Resized
from graphflops.cost import REPORTED
from graphflops.render.diff import words
from graphflops.render.diff.tables import BRIEF, MOVED, both, tables
from graphflops.render.document import escaped, fitted, rows, written
from graphflops.render.table import Page
from graphflops.render.text import Entry, TextTable, count_of, listed, safe, short_type, told_apart
from graphflops.report import Grouping
from graphflops.report.size_names import alike, collapsed, pattern_of

VISIBLE = 12  # lines that a reader sees before anything is unfolded
_NARROWEST = 12  # columns of the words, however narrow the screen
_FEWEST = 3  # causes shown, however many lines come before them
_PARTS = 4  # modules named in a line
_SIZES = 2  # changed sizes named in a line
_BESIDE = ("parameters", MOVED, "vector_flops", "transcendentals", "masked_flops")


def causes(comparison: Comparison, lines: int, room: int | None = None) -> Iterator[TextTable]:
    """The table of causes in `lines` lines, the last counts those left out; none of an export. room: for the words."""
    found = comparison.causes
    if not found or comparison.export:
        return
    most = max(lines - 1, _FEWEST + 1)
    shown = found if len(found) <= most else found[: most - 1]
    figures = [both(cause.figures, cause.backward) for cause in found]
    beside = _beside(figures)
    entries = []
    said = [cause_words(cause, room) for cause in shown]
    labels = {} if room is None else told_apart(said, max(room, _NARROWEST))
    for cause, text, part in zip(shown, said, figures, strict=False):
        label = labels.get(text, text)
        alarming = any(fold.first.after_unknown for fold in cause.folds)
        entries.append(Entry([label, *_cells(comparison, part, beside)], alarming=alarming))
    if len(shown) < len(found):
        label = f"… {len(found) - len(shown):,} more changes"
        entries.append(Entry([label, *_cells(comparison, summed(figures[len(shown) :]), beside)]))
    named = [BRIEF.get(beside) or words.NAMES[beside]] if beside else []
    yield TextTable(("what changed", "FLOPs", "% of all", *named), entries)


def cause_words(cause: Cause, room: int | None = None) -> str:
    """`blocks.0-15 (x16): 192 → 256 wide in gate, up, down`; shorter where there is less room."""
    forms = _forms(cause)
    return next((form for form in forms if room is None or len(form) <= room), forms[-1])


def _forms(cause: Cause) -> list[str]:
    """Names of a cause, the longest first; for a single entry also its changed sizes alone if these say enough."""
    if len(cause.folds) == 1:
        forms = [_fold_words(cause.folds[0])]
        if cause.sizes and cause.sizes[0].noun:
            forms.append(f"{words.path_of(cause.folds[0])}: {listed(map(_size, cause.sizes), _SIZES)}")
        return forms
    depth = len(cause.place.split(".")) if cause.place else 0
    names: dict[str, None] = {}
    changed = ("matrix_flops", "parameters")
    for fold in sorted(cause.folds, key=lambda fold: not any(fold.figures[name].differs for name in changed)):
        rest = ".".join((fold.path or "").split(".")[depth:])
        lone = rest.startswith("{") and "." not in rest
        names.update(dict.fromkeys(rest.strip("{}").split(",") if lone else [rest] if rest else []))
    inside = [safe(name, 80) for name in names]
    where = safe(cause.place, 120) or (listed(inside) if len(inside) <= _PARTS else "the whole model")
    times = f" (x{cause.times:,})" if cause.times > 1 else ""
    sizes = listed(map(_size, cause.sizes), _SIZES)
    forms = [f"{where}{times}: {sizes}", f"{where}: {sizes}", f"{where}: {_size(cause.sizes[0])}"]
    if not cause.sizes[0].noun:
        return [*_followed(cause), *forms]
    if cause.place and inside:
        forms.insert(0, f"{forms[0]} in {listed(inside, _PARTS)}")
    return forms


def _followed(cause: Cause) -> list[str]:
    """For sizes that no weight has: what changed where the operands did not, and how many entries follow from it."""
    shapes = ((fold, [fact for fact in fold.first.facts if fact.kind == "shape"]) for fold in cause.folds)
    begins = (fold for fold, facts in shapes if all(fact.what == "result" for fact in facts))
    first = next(begins, cause.folds[0])
    others = [words.path_of(fold) for fold in cause.folds if fold is not first]
    begun = f"{words.path_of(first)}: {_size(cause.sizes[0])}"
    elsewhere = count_of(len(others), "more place")
    return [f"{_fold_words(first)}; then in {listed(others, 2)}", f"{begun}; then in {elsewhere}"]


def _fold_words(fold: Fold) -> str:
    """`blocks.0-15.up (x16, Linear): weight [192, 64] → [256, 64]`."""
    times = f"x{len(fold.members):,}" if len(fold.members) > 1 else ""
    about = ", ".join(part for part in (times, words.type_of(fold.first) if fold.first.path else "") if part)
    parts = (words.tag(fold.first), words.path_of(fold), f"({about})" if about else "")
    name = " ".join(filter(None, parts))
    said = words.fact_words(fold.first, fold.figures.get("masked_flops"), most=2)
    unknown = (fold.first.after_unknown - fold.first.before_unknown) * len(fold.members)
    if unknown > 0:
        said.append(f"{count_of(unknown, 'call')} of unknown cost more")
    return f"{name}: {', '.join(said)}" if said else name


def _size(size: Resized) -> str:
    sides = f"{size.before:,} → {size.after:,}"
    if size.noun == "kernel" or size.noun.endswith("heads"):
        return f"{size.noun} {sides}"
    return f"{sides} {size.noun}".strip()


def _beside(figures: Sequence[Mapping[str, Figure]]) -> str:
    """The quantity shown beside FLOPs: the first that changed where FLOPs did not, else the first that changed at all."""
    silent = [part for part in figures if not part["matrix_flops"].differs]
    pairs = ((name, part) for parts in (silent, figures) for name in _BESIDE for part in parts)
    return next((name for name, part in pairs if part[name].differs), "")


def _cells(comparison: Comparison, figures: Mapping[str, Figure], beside: str) -> list[str]:
    flops = figures["matrix_flops"]
    whole = (comparison.totals.get("step") or comparison.totals["forward"])["matrix_flops"].before_value
    part = "0.0" if not flops.differs else ""
    if flops.delta is not None and whole:
        part = words.signed(100 * flops.delta / whole) if flops.delta else "0.0"
    cells = [words.delta("matrix_flops", flops), part]
    if beside:
        cells.append(words.delta(beside, figures[beside]) if figures[beside].differs else "")
    return cells


def compared_at(comparison: Comparison) -> list[str]:
    """The sizes that the two are compared at, in one line."""
    known = {size.stated: size for size in comparison.sizes if size.value is not None}
    groups = alike(known, lambda name: (known[name].value, known[name].assumed))
    at = [
        f"{safe(pattern_of(names), 40)} = {size.at(size.value or 0):,}{' (assumed)' if size.assumed else ''}"
        for names in groups
        for size in [known[names[0]]]
    ]
    return [f"compared at {listed(at, 8)}"] if at else []


def notes(comparison: Comparison) -> list[str]:
    """Notes: the sizes compared at, changed growth, and modules of which only the path changed."""
    unset = [size.stated for size in comparison.sizes if size.value is None and size.before != size.after]
    lines = compared_at(comparison)
    if unset:
        names = listed((safe(name, 40) for name in collapsed(unset)), 8)
        lines.append(f"without one value for both: {names}")
    other = [name for name in words.NAMES if name not in ("matrix_flops", "macs", *words.PARTS)]
    lines += words.growths(comparison, other)
    sizes = {size.name: size for size in comparison.sizes}
    for entry in comparison.crossings:
        if entry.quantity in ("matrix_flops", "peak_bytes"):
            sides = ("less", "more") if entry.more else ("more", "less")
            at = f"{safe(sizes[entry.size].stated, 40)} = {sizes[entry.size].at(entry.at):,}"
            before, after = f"{sides[0]} than before below {at}", f"{sides[1]} from there on"
            lines.append(f"{words.NAMES[entry.quantity]}: {before}, {after}")
    if comparison.renumbered:
        paths = ([safe(path, 80) or "the model" for path in pair] for pair in comparison.renumbered)
        pairs = listed((f"{before} → {after}" for before, after in paths), 4)
        lines.append(f"only the path differs: {pairs}")
    return lines


_FIGURES = 34  # columns of a terminal that the figures beside a cause take


def table(
    comparison: Comparison, *, by: Grouping | None = None, depth: int | None = None, top: int | None = None,
    verbose: bool = False, width: int = 120, color: bool = False,
) -> str:  # fmt: skip
    """The answer, then a line for each cause, twelve at most; then tables, if `verbose` or a choice asks for them."""
    page = Page(width, color)
    first, *others = words.headlines(comparison, verbose=verbose)
    page.line((first, "bold"))
    brief = not (verbose or by or top) and depth is None
    identical = brief and comparison.same and not comparison.export
    notes_ = [] if identical else compared_at(comparison) if brief else notes(comparison)
    for line in others:
        page.line(f"  {line}")
    for grid in causes(comparison, VISIBLE - len(page.lines) - len(notes_), width - _FIGURES):
        page.table(grid)
    for line in notes_:
        page.line((f"  {line}", "dim"))
    for grid in () if brief else tables(comparison, by, depth, top, width):
        page.line()
        page.table(grid)
    return page.text()


COMMENT = 65_536  # characters of a comment on GitHub


def markdown(
    comparison: Comparison, *, by: Grouping | None = None, depth: int | None = None, top: int | None = None,
    verbose: bool = False, limit: int | None = COMMENT,
) -> str:  # fmt: skip
    """The answer, then a line for each cause, and folded tables. Of an export the answer alone. limit: characters."""
    first, *others = words.headlines(comparison, verbose=verbose)
    lines = [f"**{escaped(first)}**"]
    brief = not (verbose or by or top) and depth is None
    said = [f"- {escaped(line)}" for line in others]
    if brief and comparison.same and not comparison.export:
        return within([*lines, *([""] if said else []), *said], limit)
    at = [f"- {escaped(line)}" for line in compared_at(comparison)]
    lines += ["", *said]
    room = VISIBLE - len(said) - len(at) - 2  # the first line, and the one that unfolds the rest
    for grid in causes(comparison, room):
        lines += ["", *rows(grid), ""]
    lines += at
    if comparison.export and brief:
        return within(lines, limit)
    hidden = [f"- {escaped(line)}" for line in notes(comparison)[len(at) :]]
    for grid in tables(comparison, by, depth, top):
        hidden += ["", *rows(grid)]
    head = ["", "<details><summary>Totals and modules</summary>", "", *hidden]
    end = "\n</details>\n"
    return within([*lines, *head], None if limit is None else limit - len(end)) + end


def within(lines: Sequence[str], limit: int | None) -> str:
    """The lines as one text of at most `limit` characters; the last line says how many had to be left out."""
    each = [(f"{line}\n", 1) for line in lines]
    text = fitted(each, limit, lambda count: f"\n… {count:,} more lines left out\n")
    return text if limit is None else text[: max(limit, 0)]


_SIDES = ("before", "after", "delta")


def csv(comparison: Comparison, *, by: Grouping | None = None, top: int | None = None) -> str:
    """One line a module, operator or source line that changed: integers, or formulas, before, after and their delta."""
    is_modules = by in (None, "module")
    changed: Sequence[ModuleChange | GroupChange] = (
        comparison.modules if is_modules else comparison.ops if by == "op" else comparison.sources
    )
    names = _OF_MODULES if is_modules else _OF_GROUPS
    quantities = [quantity.name for quantity in REPORTED] + ["parameters"] * is_modules
    heads = [f"{name}_{side}" for name in quantities for side in _SIDES]
    if any(change.backward for change in changed):
        heads += [f"backward_{head}" for head in heads if not head.startswith("parameters")]
    rows: list[list[str | int]] = []
    for change in changed[:top]:
        cells = [(name, getattr(change, name)) for name in names]
        cells = [(name, "" if cell is None else cell) for name, cell in cells]
        rows.append([short_type(cell) if name.endswith("_type") else cell for name, cell in cells])
        for figure in (*change.figures.values(), *change.backward.values()):
            sides = ((figure.before, figure.before_value), (figure.after, figure.after_value))
            both = (*sides, (figure.formula, figure.delta))
            rows[-1] += [str(formula) if value is None else value for formula, value in both]
    return written([*names, *heads], rows)


_OF_GROUPS = ("before", "after", "before_calls", "after_calls", "before_unknown", "after_unknown")
_OF_MODULES = (
    "status", "before", "after", "before_type", "after_type", "modules", "before_unknown", "after_unknown",
)  # fmt: skip
