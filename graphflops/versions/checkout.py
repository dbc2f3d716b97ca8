"""Finds the source files of a checkout by the ends of paths that exports record."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from graphflops.errors import FileError
from graphflops.versions.git import git

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECONDS = 30  # that git may take to list the files of a repository


def located(names: Iterable[str], folder: str = ".") -> dict[str, str]:
    """The path of each source file that can be told, relative to `folder`.

    An export keeps `model.py` of `/home/me/src/model.py`, and `package/model.py` of an installed package: a file of the
    checkout is meant where it is the only one whose path ends so.
    """
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}
    by_name: dict[str, list[str]] = {}
    for path in tracked(folder):
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    found = {}
    for name in wanted:
        parts = f"/{name}"
        ending = [path for path in by_name.get(name.rpartition("/")[2], ()) if f"/{path}".endswith(parts)]
        if name in ending or len(ending) == 1:
            found[name] = name if name in ending else ending[0]
    return found


def tracked(folder: str = ".") -> set[str]:
    """The files below a folder that git tracks, relative to it; none outside a repository."""
    try:
        listed = git("-C", folder, "ls-files", "-z", seconds=_SECONDS)
    except (FileError, OSError):
        return set()
    return set(os.fsdecode(listed).split("\0")[:-1])
