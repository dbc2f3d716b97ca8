"""A comparison as one HTML file: both programs in one page, with what changed."""

from collections.abc import Iterator

from graphflops.base.record import replace
from graphflops.comparison.entries import followed
from graphflops.comparison.result import Comparison, Fold
from graphflops.dims.solving import affine
from graphflops.render.diff import words
from graphflops.render.diff.tables import tables
from graphflops.render.diff.texts import VISIBLE, causes, compared_at, notes
from graphflops.render.html.data import PageChange, PageSize, page_data, page_size
from graphflops.render.html.fragment import escaped, scripted, table
from graphflops.render.picture.nest import joined
from graphflops.render.picture.svg import fitted
from graphflops.render.text import safe
from graphflops.report import Report, SymbolInfo, Timeline

_FACTS = 6  # facts shown of one module


def fragment(found: Comparison) -> str:
    """The comparison as a piece of HTML without script or style."""
    title = f"<p><b>{escaped(' → '.join(words.titles(found)))}</b></p>"
    lines = "".join(f"<p>{escaped(line)}</p>" for line in _lead(found))
    return f"<div>{title}{lines}{''.join(map(table, tables(found)))}</div>"


def _lead(found: Comparison) -> list[str]:
    """The lines before the tables: headlines, causes with their figures, and notes."""
    said = words.headlines(found)
    room = VISIBLE - len(said) - len(compared_at(found))
    told = [
        f"{label}: "
        + ", ".join(f"{cell} {head}" for cell, head in zip(cells, grid.heads[1:], strict=True) if cell)
        for grid in causes(found, room)
        for label, *cells in (entry.cells for entry in grid.entries)
    ]
    return [*said, *told, *notes(found)]


def html(found: Comparison) -> str:
    """The comparison as a page."""
    titles = words.titles(found)
    old = _moved(found)
    sides: tuple[Report, ...] = (old, found.new)
    if (found.old.backward is None) != (found.new.backward is None):
        sides = tuple(map(_forward_only, sides))
    data = page_data(
        sides,
        list(_sizes(found)),
        titles=titles,
        lead=_lead(found),
        changes=[_change(fold) for fold in found.folded],
        operators=not found.export,
    )
    title, plain = " → ".join(titles), fragment(found)
    alone = scripted(data, title, plain)
    if found.export:  # which always changes operators
        return alone
    note = "Figures are those of each program's own sizes."
    return scripted(data, title, plain, fitted(joined(found, old), found.new.modules, alone, note))


def _sizes(found: Comparison) -> Iterator[PageSize]:
    """The joint sizes, then those that only one program's formulas name."""
    reports = (found.old, found.new)
    told: tuple[set[str], set[str]] = (set(), set())
    for size in found.sizes:
        own = [name if isinstance(name, str) else None for name in (size.before, size.after)]
        if own == [None, None]:
            continue
        values = (size.before_value, size.after_value) if size.value is None else (size.value, size.value)
        pairs, nothing = zip(reports, own, strict=True), SymbolInfo(None, None)
        infos = [report.symbols.get(name, nothing) for report, name in pairs if name is not None]
        for side, name in enumerate(own):
            told[side].add(name or "")
        lines = [None if each is None else affine(each) for each in (size.before_as, size.after_as)]
        scales = [(1, 0) if line is None else line[1:] for line in lines]
        symbols = [{name: scale} if name is not None else {} for name, scale in zip(own, scales, strict=True)]
        shown = affine(size.computed[size.axis]) if size.axis else None
        slope, offset = (1, 0) if shown is None else shown[1:]
        low, high = (None if end is None else slope * end + offset for end in (size.minimum, size.maximum))
        where = tuple(safe(axis, 60) for axis in size.where if axis != size.stated)
        yield PageSize(
            size.stated, (slope, offset), size.name, tuple(symbols), values, infos[-1], (low, high), where
        )
    for side, report in enumerate(reports):
        for name in report.symbols:
            if name not in told[side]:
                yield page_size(report, [name], [[name] if side == other else [] for other in (0, 1)])


def _change(fold: Fold) -> PageChange:
    first = fold.first
    facts = words.fact_words(first, fold.figures.get("masked_flops"), most=_FACTS)
    names = (("matrix_flops",), ("read_bytes", "written_bytes"), ("parameters",))
    figures = [[fold.figures[name] for name in group if name in fold.figures] for group in names]
    return PageChange(
        first.status,
        words.path_of(fold) + (f" (x{len(fold.members):,})" if len(fold.members) > 1 else ""),
        words.type_of(first),
        tuple(facts),
        tuple((sum((f.before for f in each), 0), sum((f.after for f in each), 0)) for each in figures),
    )


def _forward_only(report: Report) -> Report:
    """The report without its training step, because the other report has none."""
    rows = tuple(row._replace(backward=None) for row in report.rows)
    memory = Timeline() if report.memory.gradients_from is not None else report.memory
    return replace(report, rows=rows, backward=None, optimizer=None, memory=memory)


def _moved(found: Comparison) -> Report:
    """The old report with the module paths and source lines that its calls have in the new program."""
    paths = dict(found.renumbered)
    for change in found.modules:
        if change.before is not None and change.after is not None:
            paths[change.before] = change.after
    old = found.old
    taken = set(paths.values())

    def renamed(path: str) -> str:
        """The new path of an old one; a module that is gone is renamed if another has its path now."""
        if path not in paths:
            above, _, last = path.rpartition(".")
            moved = f"{renamed(above)}.{last}" if above else path
            paths[path] = f"{moved} (gone)" if moved in taken else moved
        return paths[path]

    rows = tuple(row._replace(module=renamed(row.module)) for row in old.rows)
    new = found.new.rows
    lines = followed((old.rows[ours].source, new[theirs].source) for ours, theirs in found.calls.items())
    return replace(
        old,
        rows=tuple(row._replace(source=lines.get(row.source, row.source)) for row in rows),
        modules={renamed(path): kind for path, kind in old.modules.items()},
        parameter_modules={renamed(path): count for path, count in old.parameter_modules.items()},
    )
