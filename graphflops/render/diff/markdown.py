"""A comparison as GitHub-flavoured Markdown, for a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.diff.tables import tables
from graphflops.render.diff.words import compared_at, headlines, notes
from graphflops.render.markdown import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.comparison.result import Comparison
    from graphflops.render.tables import TextTable
    from graphflops.report import Grouping

COMMENT = 65_536  # characters of a comment on GitHub


def markdown(
    comparison: Comparison,
    *,
    by: Grouping | None = None,
    depth: int | None = None,
    top: int | None = None,
    verbose: bool = False,
    limit: int | None = COMMENT,
) -> str:
    """The answer in three lines, every total, and where the difference is; at most `limit` characters.

    Of an export the answer alone, unless more is asked for.
    """
    first, *others = headlines(comparison, verbose=verbose)
    brief = comparison.export and not verbose and by is None and depth is None and top is None
    said = compared_at(comparison) if brief else notes(comparison)
    lines = [f"**{escaped(first)}**", "", *(f"- {escaped(line)}" for line in (*others, *said))]
    for grid in () if brief else tables(comparison, by, depth, top):
        lines += ["", *rows(grid)]
    return within(lines, limit)


def rows(grid: TextTable) -> list[str]:
    """A table, line by line."""
    rules = ["---" if index < grid.names else "---:" for index in range(len(grid.heads))]
    cells: list[Sequence[str]] = [grid.heads, rules]
    cells += [
        [escaped(cell) for cell in (entry.path or entry.cells[0], *entry.cells[1:])] for entry in grid.entries
    ]
    return [f"| {' | '.join(line)} |" for line in cells]


def within(lines: Sequence[str], limit: int | None) -> str:
    """The lines as one text of at most `limit` characters; the last line says how many had to be left out."""
    text = "\n".join(lines) + "\n"
    if limit is None or len(text) <= limit:
        return text
    room = limit - len(_left_out(len(lines)))
    kept = 0
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept += 1
    return "\n".join([*lines[:kept], _left_out(len(lines) - kept)])[: max(limit, 0)]


def _left_out(count: int) -> str:
    return f"\n… {count:,} more lines left out\n"
