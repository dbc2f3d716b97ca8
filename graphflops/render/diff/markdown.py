"""A comparison as GitHub-flavoured Markdown, for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from graphflops.comparison.result import Comparison
from graphflops.render.diff.causes import VISIBLE, causes
from graphflops.render.diff.tables import tables
from graphflops.render.diff.words import compared_at, headlines, notes
from graphflops.render.markdown import escaped, rows
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
    """The answer, then what changed, one cause a line: twelve lines at most; every total and table is folded below these.

    One line where nothing differs. Of an export the answer alone, unless more is asked for. limit: characters.
    """
    first, *others = headlines(comparison, verbose=verbose)
    lines = [f"**{escaped(first)}**"]
    brief = not (verbose or by or top) and depth is None
    said = [f"- {escaped(line)}" for line in others]
    if brief and comparison.same and not comparison.export:
        return within([*lines, *([""] if said else []), *said], limit)
    at = [f"- {escaped(line)}" for line in compared_at(comparison)]
    lines += ["", *said]
    room = VISIBLE - len(said) - len(at) - 2  # the first line, and the one that unfolds the rest
    for grid in () if comparison.export else causes(comparison, room):
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
