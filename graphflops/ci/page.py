"""The page that a job shows: what broke, what changed, what is new, within the limits of where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphflops.base.units import number
from graphflops.ci.changes import ModelChange
from graphflops.render import findings as render
from graphflops.render.diff.texts import COMMENT
from graphflops.render.diff.texts import markdown as compared
from graphflops.render.markdown import escaped
from graphflops.render.summary import headline
from graphflops.render.text import assumptions, count_of
from graphflops.render.text import listed as named
from graphflops.report.contradictions import contradicted
from graphflops.report.findings import Findings, ModelFindings

SUMMARY = 2**20  # bytes of a job's summary
_OF_ONE = 12_000  # characters that one model may take of a comment of many
_NAMED = 8  # models named that are identical in cost
_REST = 200  # characters of the note on omitted sections


def comment(
    changes: Sequence[ModelChange] | None,
    found: Sequence[ModelFindings] | None,
    notes: Sequence[str],
    mark: str,
) -> str:
    """The page as a comment that begins with a mark."""
    return f"{mark}\n{_page(changes, found, notes, COMMENT - len(mark) - 1, len)}"


def summary(
    changes: Sequence[ModelChange] | None, found: Sequence[ModelFindings] | None, notes: Sequence[str]
) -> str:
    """The page as a job's summary.

    changes: None where there is nothing to compare with. found: of the budget; None where there is none. notes: what
    the reader should know of the run.
    """
    return _page(changes, found, notes, SUMMARY, lambda text: len(text.encode()))


def _page(
    changes: Sequence[ModelChange] | None,
    found: Sequence[ModelFindings] | None,
    notes: Sequence[str],
    limit: int,
    size: Callable[[str], int],
) -> str:
    parts = ["## Cost of models\n", *(f"\n{escaped(note)}\n" for note in notes)]
    broken = [model for model in found or () if any(found.severity != "note" for found in model.findings)]
    if found is not None:
        budget = f"**All limits kept by {count_of(len(found), 'model')}.**\n"
        if broken:
            budget = render.markdown(Findings(tuple(broken)), limit=limit // 4)
        parts.append(f"\n{budget}")
    listed = [change for change in changes or () if not change.identical]
    if changes is not None and not listed:
        parts.append("\nNo model changed.\n")
    if same := [change.path for change in changes or () if change.identical]:
        parts.append(f"\nIdentical in cost: {escaped(named(same, _NAMED))}\n")
    room = limit - size("".join(parts)) - _REST
    # A character is 4 bytes at most.
    share = max(_OF_ONE, room // max(len(listed), 1)) if size is len else room // 4
    for index, section in enumerate(_sections(listed, min(share, room - _REST))):
        room -= size(section)
        if room < 0:
            parts.append(f"\n… and {count_of(len(listed) - index, 'more changed model')}.\n")
            break
        parts.append(section)
    return "".join(parts)


def _sections(changes: Sequence[ModelChange], share: int) -> Iterator[str]:
    for change in changes:
        head = f"\n### {escaped(change.path)}"
        if change.error:
            yield f"{head}: not analyzed\n\n{escaped(change.error)}\n"
        elif change.comparison is not None:
            yield f"{head}\n\n{compared(change.comparison, limit=share)}{_offer(change)}"
        elif change.report is not None:
            report = change.report
            flops = report.value(report.total().matrix_flops)
            known = "a formula of" if flops is None else number(flops)
            least = "at least " if report.coverage.unknown else ""
            at = f" at {assumptions(report.assumed)}" if report.assumed else ""
            yield f"{head}: new\n\n{escaped(headline(report))} · {least}{known} FLOPs{escaped(at)}\n"
            if doubt := contradicted(report):
                yield f"\n{escaped(doubt)}\n"
            yield _offer(change)
        else:
            yield f"{head}: gone\n"


def _offer(change: ModelChange) -> str:
    return f"\n{escaped(change.offer)}\n" if change.offer else ""
