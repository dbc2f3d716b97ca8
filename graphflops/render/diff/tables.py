"""The tables of a comparison as cells of text, for every format that draws tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphflops.base.units import measured
from graphflops.comparison.causes import added, summed
from graphflops.comparison.result import WORK, Comparison, Figure
from graphflops.cost import REPORTED
from graphflops.render.diff.words import NAMES, before_after, delta, fact_words, path_of, share, tag, type_of
from graphflops.render.formats import UNLIMITED
from graphflops.render.text import Entry, TextTable, count_of, formula, safe, shortened
from graphflops.report import HELD, Grouping
from graphflops.tensor import grouped

LINES = 25  # default number of lines of a table
MOVED = "moved_bytes"  # read and written together
_BYTES = ("read_bytes", "written_bytes")
_FORMULA = 60
_NARROWEST = 12  # a column of formulas is not made narrower than this
# Columns: of the totals, of a module with its leading quantity, of another one.
_TOTALS, _LEAD, _QUANTITY = (68, 76, 11)
_PARTS = {quantity.name: quantity.head for quantity in REPORTED if quantity.part_of}
_LEADS = (*(q.name for q in REPORTED if not q.part_of and q.name != "macs"), "parameters", *_PARTS)
BRIEF = {
    "matrix_flops": "FLOPs", "vector_flops": "vector", MOVED: "bytes", "parameters": "params", **_PARTS,
}  # fmt: skip


def tables(
    comparison: Comparison, by: Grouping | None = None, depth: int | None = None, top: int | None = None,
    width: int = UNLIMITED,
) -> Iterator[TextTable]:  # fmt: skip
    """Totals of every phase, and the differences by module, or by what the user chose.

    depth: components of a module's path; what is below adds up. top: lines of the table; the others are one line together.
    width: columns of the screen; the formulas and the last quantities are left out where these do not suffice.
    """
    for phase in comparison.totals:
        yield totals(comparison, phase, width - _TOTALS)
    most, beside = top or LINES, max(width - _LEAD, 0) // _QUANTITY
    if by in (None, "module") and comparison.modules:
        yield modules(comparison, depth, most, beside)
    if by == "source" or (by == "op" and not comparison.export):
        yield groups(comparison, by, most, beside)


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
        entries.append(Entry(cells))
    heads = (head, "before", "after", "delta", "%", *(("delta as a formula",) if symbolic else ()))
    return TextTable(heads, entries)


def modules(comparison: Comparison, depth: int | None, most: int, quantities: int) -> TextTable:
    """The modules that changed, the sum of all others, and the total. quantities: how many are shown beside the main one."""
    folds = comparison.folded
    figures = [both(fold.figures, fold.backward) for fold in folds]
    columns = _Columns(comparison, figures, quantities)
    if depth is not None:
        return _cut(columns, depth, most)
    entries = []
    for fold, part in zip(folds[:most], figures[:most], strict=True):
        label = " ".join(part for part in (tag(fold.first), path_of(fold)) if part)
        label += f" (x{len(fold.members):,})" if len(fold.members) > 1 else ""
        what = ", ".join(fact_words(fold.first, fold.figures.get("masked_flops"), most=2))
        entries.append(columns.entry(label, what or type_of(fold.first), part, fold.first.after_unknown))
    return columns.table(("module", "what"), entries, figures[most:], comparison.unchanged, names=2)


def groups(comparison: Comparison, by: Grouping, most: int, quantities: int) -> TextTable:
    """Operators or source lines whose work changed."""
    changed, head, unchanged = comparison.sources, "source", comparison.unchanged_sources
    if by == "op":
        changed, head, unchanged = comparison.ops, "operator", comparison.unchanged_ops
    figures = [both(group.figures, group.backward) for group in changed]
    columns = _Columns(comparison, figures, quantities)
    entries = []
    for group, part in zip(changed[:most], figures, strict=False):
        state = "[new] " if group.before is None else "[gone] " if group.after is None else ""
        name = safe((group.after if group.after is not None else group.before) or "", 120) or f"(no {head})"
        if group.before is not None and group.after is not None and group.before != group.after:
            name = f"{safe(group.before, 80) or f'(no {head})'} → {name}"
        calls = f"{group.before_calls:,} → " if group.before_calls != group.after_calls else ""
        calls += f"{group.after_calls:,}"
        entries.append(columns.entry(state + name, calls, part, group.after_unknown))
    return columns.table((head, "calls"), entries, figures[most:], unchanged)


def _cut(columns: _Columns, depth: int, most: int) -> TextTable:
    """Changes added up by the first components of the module's path."""
    changes = columns.comparison.modules
    cut = grouped((".".join(one.path.split(".")[:depth]), both(one.figures, one.backward)) for one in changes)
    ranked = sorted(cut.items(), key=lambda item: -abs(sum(f[columns.lead].delta or 0 for f in item[1])))
    entries = []
    for path, parts in ranked[:most]:
        label = safe(path, 120) or "(the model itself)"
        _, _, delta, _, *others = columns.cells(summed(parts))
        entries.append(Entry([label, f"{len(parts):,}", "", "", delta, "", *others]))
    rest = [figures for _, parts in ranked[most:] for figures in parts]
    return columns.table(("module", "changes"), entries, rest, columns.comparison.unchanged)


class _Columns:
    """Before, after, delta and percent of the leading quantity that changed, and the deltas of `most` others."""

    def __init__(self, comparison: Comparison, figures: Sequence[Mapping[str, Figure]], most: int) -> None:
        changed = {name for part in figures for name, figure in part.items() if figure.differs}
        self.comparison = comparison
        self.lead = next((name for name in _LEADS if name in changed), "matrix_flops")
        others = changed - {self.lead, *[MOVED] * (self.lead in _BYTES)}
        self.beside = [name for name in BRIEF if name in others][:most]

    def cells(self, figures: Mapping[str, Figure]) -> list[str]:
        figure = figures[self.lead]
        cells = [*before_after(self.lead, figure), delta(self.lead, figure), share(figure)]
        for name in self.beside:
            change = delta(name, figures[name]) if name in figures else ""
            cells.append("" if change == "0" else change)
        return cells

    def entry(self, label: str, what: str, figures: Mapping[str, Figure], unknown: int = 0) -> Entry:
        return Entry([label, what, *self.cells(figures)], alarming=unknown > 0)

    def table(
        self, heads: tuple[str, str], entries: list[Entry], rest: Sequence[Mapping[str, Figure]], unchanged: int,
        names: int = 1,
    ) -> TextTable:  # fmt: skip
        """The lines, then the sum of those left out, the number of unchanged ones, and the total."""
        if rest:
            entries.append(self.entry(f"… {len(rest):,} more that changed", "", summed(rest)))
        if unchanged:
            label = f"… {count_of(unchanged, heads[0])} unchanged"
            figures = ["", "", measured(self.lead, 0), "", *[""] * len(self.beside)]
            entries.append(Entry([label, "", *figures]))
        totals = self.comparison.totals
        phases = (totals[phase] for phase in ("forward", "backward") if phase in totals)
        whole = both(*({name: phase[name] for name in WORK} for phase in phases))
        entries.append(self.entry("total", "", whole | {"parameters": totals["forward"]["parameters"]}))
        lead = BRIEF.get(self.lead, NAMES[self.lead])
        of = ("before", "after", lead, "%", *(BRIEF[name] for name in self.beside))
        return TextTable((*heads, *of), entries, names)


def both(forward: Mapping[str, Figure], backward: Mapping[str, Figure] = {}) -> dict[str, Figure]:
    """Work of both phases together, and all bytes that it moves."""
    found = {**forward, **{name: added((forward[name], backward[name])) for name in backward}}
    return {**found, MOVED: added([found[name] for name in _BYTES])}
