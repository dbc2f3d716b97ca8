"""A step of GitHub Actions: `python -m graphflops.ci.github`, its inputs and the event in the environment.

The summary is always written. A comment, which is found again by its mark and kept up to date, is written only if something
passes the threshold or breaks a limit, or if an earlier one would be outdated. Without a token that may write, there is
none, and that is no failure.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from graphflops.base.limits import Limits, cleanly_terminated, limited
from graphflops.base.patterns import matches_file
from graphflops.base.record import Record
from graphflops.budget import limits
from graphflops.budget.amounts import percent
from graphflops.budget.run import Checked, before_of, checked
from graphflops.ci.changes import Event, base_of, changes, event, loosened, page
from graphflops.errors import FileError, GraphflopsError, inert_in_logs, shown
from graphflops.exporters import MODEL_SUFFIXES
from graphflops.render.sarif import sarif, source_files
from graphflops.versions.git import located, tracked
from graphflops.versions.revisions import changed_file, file_at

if TYPE_CHECKING:
    from fractions import Fraction


MARK = "<!-- graphflops -->"
_PER_PAGE = 100
_PAGES = 30  # of comments looked through
_SECONDS = 30
_LARGEST = 2**24  # bytes of an answer
_TRUSTED = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class CommentError(Exception):
    """The comment could not be written: the token lacks the permission, or the server cannot be reached."""


_ANNOTATIONS = 10  # errors of one step that GitHub shows


class Inputs(Record, frozen=True):
    """The inputs of `action.yml`, as text."""

    models: tuple[str, ...]  # patterns of model files; () means what the budget names, or all
    budget: str
    threshold: Fraction  # the least change worth a comment
    enforce: bool
    sarif: str
    token: str


def main(environment: Mapping[str, str] | None = None) -> int:
    """Run the step; the exit code is 3 where a limit is broken, 1 for an error."""
    try:
        with cleanly_terminated(), limited(Limits()):
            return _run(os.environ if environment is None else environment)
    except (GraphflopsError, OSError) as error:
        print(f"::error title=graphflops::{_data(str(error))}")
        return 1


def _run(env: Mapping[str, str]) -> int:
    inputs, found_event = _inputs(env), event(env)
    notes: list[str] = []
    base = base_of(found_event, notes)
    budget = limits.read(inputs.budget) if os.path.exists(inputs.budget) else None
    loose = _loosened(inputs, budget, base)
    notes[:0] = loose
    found = None if budget is None else _checked(budget, inputs, base, notes)
    cache = env.get("GRAPHFLOPS_CACHE") or None
    changed = list(changes(base, partial(_wanted, inputs, budget), cache)) if base else None
    text = partial(page, changed, found.found if found else None, notes)
    _append(env.get("GITHUB_STEP_SUMMARY"), text())
    if found is not None:
        _annotate(found)
        if inputs.sarif:
            with open(inputs.sarif, "w", encoding="utf-8") as file:
                file.write(sarif(found.findings, locate=located))
    broken = found is not None and found.broken
    past = bool(loose) or broken or any(change.past(inputs.threshold) for change in changed or ())
    written = _commented(env, inputs, found_event, text, past=past)
    differing = sum(not change.identical for change in changed or ())
    outputs = {"changed": differing, "past-threshold": str(past).lower(), "comment": written}
    outputs["broken"] = str(broken).lower()
    _append(env.get("GITHUB_OUTPUT"), "".join(f"{name}={value}\n" for name, value in outputs.items()))
    return 3 if broken and inputs.enforce else 0


def _inputs(env: Mapping[str, str]) -> Inputs:
    def text(name: str, otherwise: str = "") -> str:
        return env.get(f"GRAPHFLOPS_{name}", "").strip() or otherwise

    try:
        threshold = percent(text("THRESHOLD", "1 %"))
    except ValueError as error:
        raise GraphflopsError(f"input comment-threshold: {error}") from None
    return Inputs(
        models=tuple(filter(None, map(str.strip, text("MODELS").splitlines()))),
        budget=text("BUDGET", "graphflops.toml"),
        threshold=threshold,
        enforce=text("ENFORCE", "true").lower() != "false",
        sarif=text("SARIF"),
        token=text("TOKEN"),
    )


def _loosened(inputs: Inputs, budget: limits.BudgetFile | None, base: str | None) -> list[str]:
    """What the change relaxes for itself: limits of its budget, or the baseline."""
    if base is None:
        return []
    try:
        with file_at(base, inputs.budget) as file:
            old = limits.read(file)
    except FileError:
        return []  # there was none, or none that could be read
    if budget is None:
        return [f"This change removes the budget {inputs.budget}."]
    lines = [f"This change loosens {inputs.budget}: {what}" for what in loosened(old, budget)]
    if budget.baseline_path is not None and changed_file(base, budget.baseline_path):
        what = f"rewrites the baseline {budget.baseline}"
        lines.append(f"This change {what}, which relative limits compare with.")
    return lines


def _wanted(inputs: Inputs, budget: limits.BudgetFile | None, path: str) -> bool:
    """True for a model that the inputs name, or else the budget."""
    if inputs.models:
        return any(matches_file(pattern, path) for pattern in inputs.models)
    if budget is not None and budget.models:
        return any(matches_file(pattern, budget.name_of(path)) for pattern in budget.models)
    return path.endswith(MODEL_SUFFIXES)


def _checked(budget: limits.BudgetFile, inputs: Inputs, base: str | None, notes: list[str]) -> Checked:
    """Checks the budget's models; relative limits compare with the baseline that it names, else with the base commit."""
    if inputs.models or not budget.models:
        models: Sequence[str] = sorted(path for path in tracked() if _wanted(inputs, budget, path))
    else:
        models = budget.files(tracked())
    by_commit = budget.relative and budget.baseline_path is None
    if by_commit and base is None:
        notes.append("Limits relative to an earlier commit are not checked.")
        budget = replace(budget, budgets=tuple(entry.absolute() for entry in budget.budgets))
    return checked(budget, models, before_of(budget, models, base if by_commit else None))


def _commented(
    env: Mapping[str, str], inputs: Inputs, run_for: Event, text: Callable[[str], str], *, past: bool
) -> str:
    """Write, update or leave the comment: `created`, `updated`, `none`. text: of a comment with that mark."""
    if run_for.pull_request is None or not inputs.token:
        return "none"
    call = partial(_call, env, inputs.token)
    of_request = f"issues/{run_for.pull_request}/comments"
    body = {"body": text(MARK)}
    try:
        for place in range(1, _PAGES + 1):
            comments = call("GET", f"{of_request}?per_page={_PER_PAGE}&page={place}")
            if not isinstance(comments, list):
                raise CommentError("the server's list of comments is none")
            for one in comments:
                # A comment of an earlier run begins with the mark, and its author is trusted.
                if isinstance(one, dict) and str(one.get("body", "")).startswith(MARK):
                    is_bot = (one.get("user") or {}).get("type") == "Bot"
                    if is_bot or one.get("author_association") in _TRUSTED:
                        call("PATCH", f"issues/comments/{int(one['id'])}", body)
                        return "updated"
            if len(comments) < _PER_PAGE:
                break
        if past:
            call("POST", of_request, body)
            return "created"
    except CommentError as error:
        print(f"::notice title=graphflops::no comment, see the job's summary: {_data(str(error))}")
    return "none"


def _call(
    env: Mapping[str, str], token: str, method: str, path: str, body: dict[str, str] | None = None
) -> Any:
    """The server's answer about the repository of the job; CommentError if it has none."""
    api, repository = env.get("GITHUB_API_URL", "https://api.github.com"), env.get("GITHUB_REPOSITORY", "")
    if not api.startswith(("https://", "http://")) or not _NAME.fullmatch(repository):
        raise CommentError(f"{api!r} and {repository!r} are no server and repository")
    request = urllib.request.Request(
        f"{api.rstrip('/')}/repos/{repository}/{path}",
        None if body is None else json.dumps(body).encode(),
        {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "User-Agent": "graphflops",
            "X-GitHub-Api-Version": "2022-11-28",
        },
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read(_LARGEST))
    except urllib.error.HTTPError as error:
        raise CommentError(f"{method} {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise CommentError(f"{method}: {error}") from None


def _annotate(found: Checked) -> None:
    """Prints errors as annotations of the source lines that they are about, if the checkout has these."""
    files = located(source_files(found.found))
    every = ((model, finding) for model in found.found for finding in model.findings)
    errors = [(model, finding) for model, finding in every if finding.severity == "error"]
    for model, finding in errors[:_ANNOTATIONS]:
        name, _, line = finding.source.rpartition(":")
        place = f"file={_property(files[name])},line={_property(line)}," if name in files else ""
        title = _property(f"{finding.code} {finding.name}")
        print(f"::error {place}title={title}::{_data(f'{model.model}: {finding.message}')}")


def _data(text: str) -> str:
    """Text in a workflow command."""
    return inert_in_logs(shown(text, 2_000)).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _append(path: str | None, text: str) -> None:
    """Appends to a file of the runner; prints the text if there is no such file."""
    if not path:
        print(inert_in_logs(text))
        return
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
