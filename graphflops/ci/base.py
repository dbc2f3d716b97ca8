"""The commit that a push or a pull request is compared with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphflops.errors import GraphflopsError, shown
from graphflops.versions.git import git, succeeds

_SECONDS = 120  # that one fetch may take
_DEEPENED = (50, 500, 5_000)  # commits that a shallow checkout gets until the histories meet
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules")


@dataclass(frozen=True, slots=True)
class Event:
    """What the job runs for.

    base: the commit to compare with, None where there is none: the tip of the branch that a pull request is for, or what a
    push began with. head: the last commit of a pull request, "" if it is none.
    """

    base: str | None
    pull_request: int | None
    head: str = ""


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

    Of a pull request: where its branch left the branch that it is for, so that later commits there are not taken for its
    own. GitHub checks out a merge of both: then it is the first parent of that merge. The other branch may be that of
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
        notes.append(
            f"No common commit with {base[:12]} is known: the comparison is with that commit itself."
        )
    return common or base


def _merged_into(head: str) -> str | None:
    """The first parent of the checkout, if that is GitHub's merge of the pull request's last commit."""
    words = git("cat-file", "-p", "HEAD", check=False).decode(errors="replace").partition("\n\n")[0].split()
    parents = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "parent"]
    return parents[0] if head and len(parents) == 2 and parents[1] == head else None


def _available(base: str, notes: list[str]) -> str | None:
    """The commit, fetched if the checkout is shallow; None, and a note, if it cannot be."""
    if not _has(base) and not (
        succeeds(*_FETCH, "--depth=1", "origin", base, seconds=_SECONDS) and _has(base)
    ):
        notes.append(f"The base commit {base[:12]} cannot be fetched, so nothing is compared.")
        return None
    return base


def _has(commit: str) -> bool:
    return succeeds("cat-file", "-e", f"{commit}^{{commit}}", seconds=_SECONDS)


def _common(base: str) -> str | None:
    """The last commit that the base and the checkout have in common; a shallow history is fetched until it has one."""
    for deepen in _histories(base):
        if deepen and not succeeds(*deepen, seconds=_SECONDS):
            return None
        found = git("merge-base", base, "HEAD", check=False).decode().split()
        if found:
            return found[0]
    return None


def _histories(base: str) -> Iterator[tuple[str, ...]]:
    """What to fetch before each look: first nothing, then more and more commits without their files."""
    yield ()
    if git("rev-parse", "--is-shallow-repository", check=False).strip() != b"true":
        return
    here = git("rev-parse", "HEAD").decode().strip()
    for count in _DEEPENED:
        yield (*_FETCH, "--filter=blob:none", f"--deepen={count}", "origin", base, here)
