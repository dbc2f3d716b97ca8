"""The tables of a comparison as cells of text, for every format that draws tables."""

from collections.abc import Iterator, Mapping, Sequence

from graphflops.base.units import measured
from graphflops.comparison.causes import added, summed
from graphflops.comparison.result import WORK, Comparison, Figure, GroupChange
from graphflops.cost import REPORTED
from graphflops.render.diff.words import NAMES, before_after, delta, fact_words, path_of, share, tag, type_of
from graphflops.render.formats import UNLIMITED
from graphflops.render.tables import Entry, TextTable
from graphflops.render.text import formula, safe, shortened
from graphflops.report import HELD, Grouping
from graphflops.tensor import grouped

LINES = 25  # default number of lines of a table
_FORMULA = 60
_NARROWEST = 12  # a column of formulas is not made narrower than this
# Columns: of the totals, of a module with its leading quantity, of another one.
_TOTALS, _LEAD, _QUANTITY = (68, 76, 11)
_PARTS = {quantity.name: quantity.head for quantity in REPORTED if quantity.part_of}
_LEADS = (*(q.name for q in REPORTED if not q.part_of and q.name != "macs"), "parameters", *_PARTS)
BRIEF = {
    "matrix_flops": "FLOPs", "vector_flops": "vector", "traffic": "bytes", "parameters": "params", **_PARTS,
}  # fmt: skip


def tables(
    comparison: Comparison,
    by: Grouping | None = None,
    depth: int | None = None,
    top: int | None = None,
    width: int = UNLIMITED,
) -> Iterator[TextTable]:
    """Totals of every phase, and the differences by module, or by what the user chose.

    depth: components of a module's path; what is below adds up. top: lines of the table; the others are one line together.
    width: columns of the screen; the formulas and the last quantities are left out where these do not suffice.
    """
    for phase in comparison.totals:
        yield totals(comparison, phase, width - _TOTALS)
    most, beside = top or LINES, max(width - _LEAD, 0) // _QUANTITY
    if by in (None, "module") and comparison.modules:
        yield modules(comparison, depth, most, beside)
    if by == "op" and not comparison.export:
        yield groups(comparison, comparison.ops, "operator", comparison.unchanged_ops, most, beside)
    if by == "source":
        yield groups(comparison, comparison.sources, "source", comparison.unchanged_sources, most, beside)


def totals(comparison: Comparison, phase: str, room: int) -> TextTable:
    """Every quantity of a phase before and after, except those that are zero in both. room: columns for formulas."""
    figures = comparison.totals[phase]
    least = [">= " if report.coverage.unknown else "" for report in (comparison.old, comparison.new)]
    symbolic = room >= _NARROWEST and any(not isinstance(f.formula, int) for f in figures.values())
    head = "total" if len(comparison.totals) == 1 else phase
    entries = []
    for name, figure in figures.items():
        if figure.before == 0 == figure.after and name not in ("matrix_flops", "parameters"):
            continue
        sides = before_after(name, figure)
        if name not in HELD:  # what parameters and buffers take does not depend on calls
            sides = f"{least[0]}{sides[0]}", f"{least[1]}{sides[1]}"
        cells = [NAMES[name], *sides, delta(name, figure), share(figure)]
        if symbolic:
            change = figure.formula
            cells.append("" if isinstance(change, int) else shortened(formula(change), min(room, _FORMULA)))
        entries.append(Entry(cells, path=NAMES[name]))
    heads = (head, "before", "after", "delta", "%", *(("delta as a formula",) if symbolic else ()))
    return TextTable(heads, entries)


def modules(comparison: Comparison, depth: int | None, most: int, quantities: int) -> TextTable:
    """The modules that changed, the sum of all others, and the total. quantities: how many are shown beside the main one."""
    folds = comparison.folded
    figures = [both(fold.figures, fold.backward) for fold in folds]
    lead, beside = _columns(figures, quantities)
    if depth is not None:
        return _cut(comparison, depth, most, lead, beside)
    entries = []
    for fold, part in zip(folds[:most], figures[:most], strict=True):
        label = " ".join(part for part in (tag(fold.first), path_of(fold)) if part)
        label += f" (x{len(fold.members):,})" if len(fold.members) > 1 else ""
        # The differences of a module, or its type if there are none.
        what = ", ".join(fact_words(fold.first, fold.figures.get("masked_flops"), most=2))
        cells = [label, what or type_of(fold.first), *_cells(part, lead, beside)]
        entries.append(Entry(cells, path=label, alarming=fold.first.after_unknown > 0))
    entries += _last(comparison, figures[most:], lead, beside, "module", comparison.unchanged)
    return TextTable(("module", "what", *_heads(lead, beside)), entries, names=2)


def groups(
    comparison: Comparison, changed: Sequence[GroupChange], head: str, unchanged: int, most: int,
    quantities: int,
) -> TextTable:  # fmt: skip
    """Operators or source lines whose work changed."""
    figures = [both(group.figures, group.backward) for group in changed]
    lead, beside = _columns(figures, quantities)
    entries = []
    for group, summed_up in zip(changed[:most], figures, strict=False):
        state = "[new] " if group.before is None else "[gone] " if group.after is None else ""
        name = safe((group.after if group.after is not None else group.before) or "", 120) or f"(no {head})"
        if group.before is not None and group.after is not None and group.before != group.after:
            name = f"{safe(group.before, 80) or f'(no {head})'} → {name}"
        calls = f"{group.before_calls:,} → " if group.before_calls != group.after_calls else ""
        label = state + name
        cells = [label, f"{calls}{group.after_calls:,}", *_cells(summed_up, lead, beside)]
        entries.append(Entry(cells, path=label, alarming=group.after_unknown > 0))
    entries += _last(comparison, figures[most:], lead, beside, head, unchanged)
    return TextTable((head, "calls", *_heads(lead, beside)), entries)


def _cut(comparison: Comparison, depth: int, most: int, lead: str, beside: Sequence[str]) -> TextTable:
    """Changes added up by the first components of the module's path."""
    changes = ((change.path.split(".")[:depth], change) for change in comparison.modules)
    cut = grouped((".".join(path), both(change.figures, change.backward)) for path, change in changes)
    entries = []
    ranked = sorted(cut.items(), key=lambda item: -abs(sum(f[lead].delta or 0 for f in item[1])))
    for path, parts in ranked[:most]:
        label = safe(path, 120) or "(the model itself)"
        cells = _cells(summed(parts), lead, beside)
        entries.append(Entry([label, f"{len(parts):,}", "", "", *cells[2:3], "", *cells[4:]], path=label))
    rest = [figures for _, parts in ranked[most:] for figures in parts]
    entries += _last(comparison, rest, lead, beside, "module", comparison.unchanged)
    return TextTable(("module", "changes", *_heads(lead, beside)), entries)


def _heads(lead: str, beside: Sequence[str]) -> tuple[str, ...]:
    """Before and after are of the leading quantity; a quantity's own column holds its delta."""
    return ("before", "after", BRIEF.get(lead, NAMES[lead]), "%", *(BRIEF[name] for name in beside))


def _cells(figures: Mapping[str, Figure], lead: str, beside: Sequence[str]) -> list[str]:
    """Before, after, delta and percent of the leading quantity, and the deltas of the others."""
    figure = figures[lead]
    cells = [*before_after(lead, figure), delta(lead, figure), share(figure)]
    for name in beside:
        known = figure_of(name, figures) if name in (*figures, "traffic") else None
        cells.append("" if known is None else delta("read_bytes" if name == "traffic" else name, known))
    return ["" if cell == "0" and index >= 4 else cell for index, cell in enumerate(cells)]


def figure_of(name: str, figures: Mapping[str, Figure]) -> Figure:
    """A quantity, or "traffic": bytes read and written together."""
    return added((figures["read_bytes"], figures["written_bytes"])) if name == "traffic" else figures[name]


def _columns(figures: Sequence[Mapping[str, Figure]], most: int) -> tuple[str, list[str]]:
    """The quantity that is shown in full, and the changed ones, whose deltas are shown, `most` of them."""

    def changed(name: str) -> bool:
        return any(name in part and part[name].differs for part in figures)

    lead = next((name for name in _LEADS if changed(name)), "matrix_flops")
    beside = []
    for name in BRIEF:
        quantities = ("read_bytes", "written_bytes") if name == "traffic" else (name,)
        if lead not in quantities and any(changed(quantity) for quantity in quantities):
            beside.append(name)
    return lead, beside[:most]


def _last(
    comparison: Comparison, rest: Sequence[Mapping[str, Figure]], lead: str, beside: Sequence[str], noun: str,
    unchanged: int,
) -> Iterator[Entry]:  # fmt: skip
    """The last lines: the sum of the lines left out, the number of unchanged ones, and the total."""
    if rest:
        label = f"… {len(rest):,} more that changed"
        yield Entry([label, "", *_cells(summed(rest), lead, beside)], path=label)
    if unchanged:
        label = f"… {unchanged:,} {noun}{'' if unchanged == 1 else 's'} unchanged"
        yield Entry([label, "", "", "", measured(lead, 0), "", *([""] * len(beside))], path=label)
    phases = [comparison.totals[phase] for phase in ("forward", "backward") if phase in comparison.totals]
    whole = {name: added([phase[name] for phase in phases]) for name in WORK}
    whole["parameters"] = phases[0]["parameters"]
    yield Entry(["total", "", *_cells(whole, lead, beside)], path="total")


def both(forward: Mapping[str, Figure], backward: Mapping[str, Figure]) -> Mapping[str, Figure]:
    """Work of both phases together."""
    if not backward:
        return forward
    return {**forward, **{name: added((forward[name], backward[name])) for name in backward}}
