"""Runs git without a shell and without questions, never a git that lies in the checkout; finds source files in it."""

import os
import subprocess
from collections.abc import Iterable
from functools import cache

from graphflops.errors import FileError, shown
from graphflops.tensor import grouped

_SECONDS = 30  # that git may take to list the files of a repository


def located(names: Iterable[str], folder: str = ".") -> dict[str, str]:
    """The path of each source file that can be identified, relative to `folder`.

    An export keeps `model.py` of `/home/me/src/model.py`, and `package/model.py` of an installed package: that is a file of
    the checkout if only one path ends so.
    """
    wanted = dict.fromkeys(names)
    by_name = grouped((path.rpartition("/")[2], path) for path in (tracked(folder) if wanted else ()))
    found = {}
    for name in wanted:
        ending = [x for x in by_name.get(name.rpartition("/")[2], ()) if f"/{x}".endswith(f"/{name}")]
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


_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
_SUFFIXES = (".exe", "") if os.name == "nt" else ("",)


def git(
    *command: str, given: bytes = b"", output: object = None, check: bool = True, seconds: float | None = None
) -> bytes:
    """Git's output; FileError with git's message if it fails and `check` is set.

    given: its standard input. output: a file for its output. seconds: the time limit.
    """
    try:
        done = subprocess.run(
            [executable(os.environ.get("PATH", "")), *command],
            input=given,
            stdout=output or subprocess.PIPE,  # type: ignore[call-overload]
            stderr=subprocess.PIPE,
            env={**os.environ, **_QUIET},
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise FileError(f"git {command[0]}: takes more than {seconds:g} s") from None
    if check and done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        if said and said[0].startswith("fatal: not a git repository"):
            where = "the current folder is in no git repository, so it has no revisions"
            raise FileError(f"{where}: name files, or change to the repository")
        raise FileError(f"git {command[0]}: {shown(said[0] if said else 'failed', 300)}")
    return b"" if done.returncode else done.stdout or b""


def succeeds(*command: str, seconds: float | None = None) -> bool:
    """True if git succeeds."""
    try:
        git(*command, seconds=seconds)
    except FileError:
        return False
    return True


@cache
def executable(path: str) -> str:
    """The git of the folders in PATH; FileError if there is none.

    Windows searches the current folder first, and so does a PATH with an empty or relative part: a pull request can put its
    own git there. So folders in the checkout are skipped.
    """
    # The nearest folder around that has a `.git`; "" if there is none.
    checkout = os.path.realpath(os.curdir)
    while checkout and not os.path.exists(os.path.join(checkout, ".git")):
        above = os.path.dirname(checkout)
        checkout = above if above != checkout else ""
    for folder in path.split(os.pathsep):
        place = f"{os.path.realpath(folder)}{os.sep}"
        is_within = bool(checkout) and place.startswith(checkout.rstrip(os.sep) + os.sep)
        if not os.path.isabs(folder) or is_within:
            continue
        for suffix in _SUFFIXES:
            file = os.path.join(folder, f"git{suffix}")
            if os.path.isfile(file) and os.access(file, os.X_OK):
                return file
    raise FileError("git is not installed, so that revisions cannot be read")
