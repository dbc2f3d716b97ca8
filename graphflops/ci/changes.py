"""What a push or a pull request changes in models and their budget, compared and checked, as the page of a job."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from graphflops.base.files import whole
from graphflops.base.limits import next_analysis
from graphflops.base.record import Record
from graphflops.base.units import number
from graphflops.budget.limits import Budget, BudgetFile
from graphflops.budget.measure import Limit
from graphflops.budget.run import EXPORTED, measures_before
from graphflops.comparison.compare import compared
from graphflops.comparison.result import WORK, Comparison
from graphflops.errors import GraphflopsError, shown
from graphflops.loading import analyze
from graphflops.onnx_audit.audit import audit
from graphflops.render import findings as render
from graphflops.render.diff.texts import COMMENT, markdown
from graphflops.render.document import escaped, fitted
from graphflops.render.summary import headline
from graphflops.render.text import assumptions, count_of, listed as named
from graphflops.report import HELD, Report
from graphflops.report.contradictions import contradicted, contradictions
from graphflops.report.findings import Findings, ModelFindings
from graphflops.version import tool
from graphflops.versions.git import git, succeeds
from graphflops.versions.revisions import changed, file_here

if TYPE_CHECKING:
    from fractions import Fraction

_WATCHED = (*WORK, "peak_bytes", *HELD)  # the totals that a threshold is for


class ModelChange(Record, frozen=True):
    """One model that changed."""

    path: str  # where it is, or was if it is gone
    # None if the model is new or gone, or if one of the two cannot be analyzed; `report` if it is gone.
    comparison: Comparison | None = None
    report: Report | None = None
    error: str = ""  # why it cannot be analyzed
    offer: str = ""  # the command that fixes what an audit of an ONNX file finds

    @property
    def identical(self) -> bool:
        """True if the file changed, but no cost did."""
        found = self.comparison
        return found is not None and found.same and not contradictions(found.new)

    def past(self, threshold: Fraction) -> bool:
        """True if a total changed by more than the threshold, or its change has no percentage."""
        if self.comparison is None or contradictions(self.comparison.new):
            return True
        totals = self.comparison.totals["forward"]
        figures = [totals[name] for name in _WATCHED if name in totals and totals[name].differs]
        pairs = [(figure.delta, figure.before_value) for figure in figures]
        is_large = any(not was or change is None or abs(change) > threshold * was for change, was in pairs)
        opened = any(size.opened or size.fixed for size in self.comparison.sizes)
        return is_large or opened or bool(self.comparison.unknown)


def changes(base: str, wanted: Callable[[str], bool], cache: str | None) -> Iterator[ModelChange]:
    """Each model that differs from a commit. wanted: whether a path is meant. cache: a folder of kept reports."""
    pairs = ((new or old or "", old, new) for old, new in changed(base, None, []))
    for path, old, new in sorted(pairs, key=lambda pair: pair[0]):
        if wanted(path):
            yield _change(base, old, new, cache)


def _change(base: str, old: str | None, new: str | None, cache: str | None) -> ModelChange:
    next_analysis()
    path = new or old or ""
    if new is None:
        return ModelChange(path)
    try:
        with file_here(new) as file:
            report = _named(analyze(file), new)
            found = audit(file).of_model() if new.endswith(".onnx") else None
        offer = "" if found is None else render.offered(replace(found, model=new))
        comparison = None if old is None else compared(_before(base, old, cache), report)
        return ModelChange(path, comparison, report, offer=offer)
    except (GraphflopsError, OSError, RecursionError) as error:
        return ModelChange(path, error=shown(str(error), 500))


def _before(base: str, path: str, cache: str | None) -> Report:
    """The report of a model at the base, kept under its commit, its path, the version and the options."""
    made = f"{tool()} {EXPORTED!r} ".encode()  # another version, or other options, give another report
    name = hashlib.sha256(made + os.fsencode(path)).hexdigest()
    kept = None if cache is None else os.path.join(cache, base, f"{name}.json")
    if kept is not None and os.path.isfile(kept):
        try:
            with open(kept, "rb") as file:
                return _named(Report.from_json(file.read()), path)
        except (GraphflopsError, OSError):
            pass  # of another version, or not written to its end: made again
    report = measures_before(base, path).report
    if kept is not None:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        with whole(kept) as part, open(part, "wb") as file:
            file.write(report.to_json())
    return _named(report, path)


def _named(report: Report, path: str) -> Report:
    return replace(report, origin=replace(report.origin, path=path))


_SECONDS = 120  # that one fetch may take
_DEEPENED = (50, 500, 5_000)  # commits that a shallow checkout gets until the histories meet
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules")


class Event(Record, frozen=True):
    """What the job runs for."""

    # The commit to compare with: the tip of the branch that a pull request is for, or the one before a push; None if there
    # is none.
    base: str | None
    pull_request: int | None
    head: str = ""  # the last commit of a pull request, "" if it is none


def event(env: Mapping[str, str]) -> Event:
    """The event, from the file that the runner wrote."""
    name, path = env.get("GITHUB_EVENT_NAME", ""), env.get("GITHUB_EVENT_PATH", "")
    try:
        with open(path, "rb") as file:
            said: dict[str, Any] = json.load(file)
        if "pull_request" in said:
            request = said["pull_request"]
            head = _commit(request["head"].get("sha") or "") or ""
            return Event(_commit(request["base"]["sha"]), int(request["number"]), head)
        before = said["merge_group"]["base_sha"] if name == "merge_group" else said.get("before", "")
        return Event(_commit(before), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GraphflopsError(f"GITHUB_EVENT_PATH: {shown(path)}: no event: {error!r}") from None


def _commit(name: str) -> str | None:
    """A commit by its name; None for the name of zeros, which means no commit."""
    return name if re.fullmatch(r"[0-9a-f]{40,64}", name) and name.strip("0") else None


def base_of(found: Event, notes: list[str]) -> str | None:
    """The commit to compare the checkout with; None, and a note, if it is not available.

    For a pull request it is the commit where its branch left the target branch, so that later commits there do not count as
    its own; if GitHub checked out a merge of both, it is the first parent of that merge. The target may be the branch of
    another pull request, and the checkout may be of a fork.
    """
    if found.base is None:
        notes.append("There is no earlier commit to compare with.")
        return None
    if found.pull_request is not None and (merged := _merged_into(found.head)):
        return _available(merged, notes)
    base = _available(found.base, notes)
    if base is None or found.pull_request is None:
        return base
    common = _common(base)
    if common is None:
        where = f"No common commit with {base[:12]} is known"
        notes.append(f"{where}: the comparison is with that commit itself.")
    return common or base


def _merged_into(head: str) -> str | None:
    """The first parent of the checkout, if that is GitHub's merge of the pull request's last commit."""
    words = git("cat-file", "-p", "HEAD", check=False).decode(errors="replace").partition("\n\n")[0].split()
    parents = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "parent"]
    return parents[0] if head and len(parents) == 2 and parents[1] == head else None


def _available(base: str, notes: list[str]) -> str | None:
    """The commit, fetched if the checkout is shallow; None, and a note, if it cannot be."""
    there = ("cat-file", "-e", f"{base}^{{commit}}")
    fetch = (*_FETCH, "--depth=1", "origin", base)
    does = partial(succeeds, seconds=_SECONDS)
    if does(*there) or (does(*fetch) and does(*there)):
        return base
    notes.append(f"The base commit {base[:12]} cannot be fetched, so nothing is compared.")
    return None


def _common(base: str) -> str | None:
    """The last commit that base and checkout have in common, for which a shallow history is deepened, without files."""
    is_shallow = git("rev-parse", "--is-shallow-repository", check=False).strip() == b"true"
    here = git("rev-parse", "HEAD").decode().strip()
    for count in (0, *_DEEPENED) if is_shallow else (0,):
        deepen = (*_FETCH, "--filter=blob:none", f"--deepen={count}", "origin", base, here)
        if count and not succeeds(*deepen, seconds=_SECONDS):
            return None
        if found := git("merge-base", base, "HEAD", check=False).decode().split():
            return found[0]
    return None


SUMMARY = 2**20  # bytes of a job's summary
_OF_ONE = 12_000  # characters that one model may take of a comment of many
_NAMED = 8  # models named that are identical in cost
_REST = 200  # characters of the note on omitted sections


def page(
    changes: Sequence[ModelChange] | None, found: Sequence[ModelFindings] | None, notes: Sequence[str],
    mark: str = "",
) -> str:  # fmt: skip
    """The page as a job's summary or, with a mark, as a comment that begins with the mark.

    changes: None if there is nothing to compare with. found: the findings of the budget; None without one. notes: what the
    reader should know about the run.
    """
    limit = COMMENT - len(mark) - 1 if mark else SUMMARY

    def size(text: str) -> int:
        return len(text if mark else text.encode())

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
    share = min(max(_OF_ONE, room // max(len(listed), 1)) if mark else room // 4, room - _REST)
    sections = [(_section(change, share), 1) for change in listed]
    rest = fitted(sections, room, lambda count: f"\n… and {count_of(count, 'more changed model')}.\n", size)
    return "".join([*[f"{mark}\n"] * bool(mark), *parts, rest])


def _section(change: ModelChange, share: int) -> str:
    head = f"\n### {escaped(change.path)}"
    offer = f"\n{escaped(change.offer)}\n" if change.offer else ""
    if change.error:
        return f"{head}: not analyzed\n\n{escaped(change.error)}\n"
    if change.comparison is not None:
        return f"{head}\n\n{markdown(change.comparison, limit=share)}{offer}"
    if (report := change.report) is None:
        return f"{head}: gone\n"
    flops = report.value(report.total().matrix_flops)
    known = "a formula of" if flops is None else number(flops)
    least = "at least " if report.coverage.unknown else ""
    at = f" at {assumptions(report.assumed)}" if report.assumed else ""
    said = f"{head}: new\n\n{escaped(headline(report))} · {least}{known} FLOPs{escaped(at)}\n"
    doubt = contradicted(report)
    return said + (f"\n{escaped(doubt)}\n" if doubt else "") + offer


def loosened(old: BudgetFile, new: BudgetFile) -> Iterator[str]:
    """One line for each limit that is gone or looser, and for each model or operator that is no longer checked."""
    if gone := [pattern for pattern in old.models if pattern not in new.models]:
        yield f"models are no longer checked: {_names(gone)}"
    if old.baseline is not None and old.baseline != new.baseline:
        yield f"the baseline {shown(old.baseline)} is no longer the one compared with"
    for entry in old.budgets:
        same = [other for other in new.budgets if (other.models, other.sizes) == (entry.models, entry.sizes)]
        where = _names(entry.models) + (f" at {shown(str(entry.sizes))}" if str(entry.sizes) else "")
        if not same:
            yield f"{where}: all limits are gone"
        else:
            yield from (f"{where}: {what}" for what in _of_one(entry, same))


def _of_one(old: Budget, new: Sequence[Budget]) -> Iterator[str]:
    for pattern, limits in old.limits:
        same = [those for entry in new for path, those in entry.limits if path == pattern]
        others = [limit for those in same for limit in those]
        for limit in limits:
            yield from _larger(f" of {shown(pattern, 80)}" if pattern else "", limit, others)
    least = max((entry.coverage for entry in new if entry.coverage is not None), default=None)
    if old.coverage is not None and (least is None or least < old.coverage):
        now = f", is {float(100 * least):g} %" if least else ""
        yield f"coverage was {float(100 * old.coverage):g} %{now}"
    if freed := [op for op in old.forbid if not any(op in entry.forbid for entry in new)]:
        yield f"no longer forbidden: {_names(freed)}"
    if allowed := [op for op in new[0].unknown if op not in old.unknown]:
        yield f"may be of unknown cost now: {_names(allowed)}"


def _larger(scope: str, old: Limit, new: Sequence[Limit]) -> Iterator[str]:
    others = [one for one in new if (one.quantity, one.relative) == (old.quantity, old.relative)]
    side = "at least" if old.is_least else "at most"
    was = f"{old.quantity}{scope} was {side} {shown(old.text, 60)}"
    if not others:
        yield f"{was}, has no such limit now"
    elif not any(_as_strict(one, old) for one in others):
        yield f"{was}, is {side} {shown(others[0].text, 60)} now"


def _as_strict(new: Limit, old: Limit) -> bool:
    if isinstance(new.most, int) and isinstance(old.most, int):
        return new.most >= old.most if new.is_least else new.most <= old.most
    if isinstance(new.most, int) or isinstance(old.most, int):
        return False
    return new.most.share <= old.most.share and new.most.number <= old.most.number


def _names(names: Sequence[str]) -> str:
    return ", ".join(shown(name, 80) for name in names[:8]) + (", ..." if len(names) > 8 else "")
