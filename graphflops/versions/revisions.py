"""Models at a git revision, and what one cost at each commit that changed it: blobs read through `git`, Git LFS pointers
resolved from the local store.

Nothing is checked out. The user's text is never passed where git takes an option, and no filter, hook or external diff of
the repository runs. The hash of an object of Git LFS is checked; it is fetched only if the user allows it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from graphflops import exporters
from graphflops.base.limits import next_analysis
from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.derived.overview import OverviewLine, overview
from graphflops.dims import evaluate
from graphflops.errors import FileError, GraphflopsError, shown
from graphflops.report import Report
from graphflops.versions.git import git, succeeds

LIMIT = "GRAPHFLOPS_LFS_LIMIT"  # environment variable: bytes that one object may have for git-lfs to fetch it
_HEAD = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST = 1024  # bytes of a pointer, by its specification
_FIELDS = re.compile(rb"^oid sha256:([0-9a-f]{64})\n(?:.*\n)*?size (\d{1,15})$", re.MULTILINE)
_CHUNK = 2**20


def is_pointer(path: str) -> bool:
    """True if a file is not the model but a Git LFS pointer to it."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LONGEST:
            return False
        with open(path, "rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except OSError:
        return False


def resolve(file: str, place: str) -> None:
    """Replaces a pointer file by what it points to; FileError if that is not in the local store and may not be fetched.

    place: what errors call the file.
    """
    if not is_pointer(file):
        return
    with open(file, "rb") as opened:
        text = opened.read()
    found = _FIELDS.search(text)
    if found is None:
        raise FileError(f"{place}: a Git LFS pointer without an object id and a size")
    digest, size = found[1].decode(), int(found[2])
    what = f"{place}: a Git LFS pointer to {size:,} bytes"
    folder = git("config", "--type=path", "lfs.storage", check=False).decode().strip() or "lfs"
    store = os.path.join(os.path.abspath(os.fsdecode(git("rev-parse", "--git-common-dir")).strip()), folder)
    stored = os.path.join(store, "objects", digest[:2], digest[2:4], digest)
    if os.path.isfile(stored):
        _copied(stored, file, digest, size, what)
    else:
        _fetched(text, file, digest, size, what)


def _copied(source: str, target: str, digest: str, size: int, what: str) -> None:
    """Copies an object; FileError if it is not what the pointer says."""
    hashed, copied = hashlib.sha256(), 0
    with open(source, "rb") as read, open(target, "wb") as written:
        while (part := read.read(_CHUNK)) and copied <= size:
            copied += written.write(part)
            hashed.update(part)
    if copied != size or hashed.hexdigest() != digest:
        raise FileError(f"{what}: the object that is there has another hash or size")


def _fetched(text: bytes, file: str, digest: str, size: int, what: str) -> None:
    """Fetches an object with git-lfs, if the user allows one of that size."""
    from graphflops.budget.amounts import amount

    allowed = os.environ.get(LIMIT, "").strip()
    try:
        limit = int(amount(allowed, "B")) if allowed else None
    except ValueError as error:
        raise FileError(f"{LIMIT}: {shown(str(error))}") from None
    if limit is None:
        advice = f"run git lfs fetch, or set {LIMIT} (such as 2GB) to let git-lfs fetch it"
        raise FileError(f"{what} that the local store does not have: {advice}")
    if size > limit:
        raise FileError(f"{what}, more than the {limit:,} of {LIMIT}: it is not fetched")
    if not succeeds("lfs", "version"):
        raise FileError(f"{what}, and git-lfs is not installed")
    fetched = f"{file}.fetched"
    try:
        with open(fetched, "wb") as out:
            git("lfs", "smudge", given=text, output=out)
        _copied(fetched, file, digest, size, what)
    except FileError as error:
        raise FileError(f"{what} that git-lfs cannot fetch: {error}") from error
    finally:
        os.unlink(fetched)


SUFFIXES = (*exporters.SUFFIXES, ".json")  # what a folder is searched for
_OWN_DIFF = ("--no-ext-diff", "--no-textconv")  # options of git: none of the repository's programs
_LINK = "120000"


class ModelFile(Record, frozen=True):
    """A model's file: in the checkout, or at a git commit."""

    path: str
    commit: str = ""
    name: str = ""  # how the user calls the revision
    from_top: bool = False  # the path counts from the top of the repository, as in REVISION:PATH

    @property
    def title(self) -> str:
        """The file as git spells it: `REVISION:PATH`."""
        return f"{self.name}:{self.path}" if self.commit else self.path

    def opened(self) -> AbstractContextManager[str]:
        """The path of a file with its contents: a temporary one where the checkout does not have it."""
        if self.commit:
            return file_at(self.commit, self.path, from_top=self.from_top)
        return file_here(self.path)

    @staticmethod
    def named(text: str) -> ModelFile | None:
        """The file that a path or REVISION:PATH names; None for what can only be a revision."""
        if os.path.exists(text):
            return ModelFile(text)
        revision, colon, path = text.partition(":")
        if colon and revision and path:
            return ModelFile(path, resolved(revision), revision, from_top=not path.startswith("./"))
        if not colon and os.path.splitext(text)[1] in SUFFIXES:
            raise FileError(f"{shown(text)}: no such file")
        return None

    @staticmethod
    def at(path: str, revision: str) -> ModelFile:
        return ModelFile(path, resolved(revision), revision)


class RevisionRange(Record, frozen=True):
    """Two git revisions. merge_base: the old one stands for the last commit that the two have in common."""

    old: str
    new: str
    merge_base: bool = False


def range_of(text: str) -> RevisionRange | None:
    """`main..HEAD`, `main...HEAD` or `main..` as two revisions; None if the text is no range."""
    old, dots, new = text.partition("...")
    if not dots:
        old, dots, new = text.partition("..")
    if not dots or ".." in new or "/" in (old[-1:], new[:1]):  # ../model.pt2 is a path
        return None
    return RevisionRange(old or "HEAD", new or "HEAD", dots == "...")


def resolved(revision: str) -> str:
    """The commit that a revision names; FileError if there is none, or no repository."""
    if not revision or revision.startswith("-"):
        raise FileError(f"{shown(revision)!r} is no git revision")
    found = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
    commit = found.decode().strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        git("rev-parse", "--git-dir")  # raises if this is no repository
        hint = "a range, which stands alone: name files behind --" if range_of(revision) else ""
        raise FileError(f"{shown(revision)}: {hint or 'neither a file nor a git revision'}")
    return commit


def merge_base(old: str, new: str) -> str:
    """The commit that two commits have in common."""
    found = git("merge-base", old, new, check=False).decode().split()
    if not found:
        raise FileError("the two revisions have no commit in common")
    return found[0]


def changed(old: str, new: str | None, paths: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Models that differ between two commits (`new` None: and the checkout), by path in either; None if one lacks it.

    paths: only in these files and folders; none means everywhere. A file that was renamed is one model.
    """
    command = ["diff", "--name-status", "-z", "-M", *_OWN_DIFF, "--relative", old]
    fields = git(*command, *([new] if new is not None else []), "--", *paths).split(b"\0")
    found: list[tuple[str | None, str | None]] = []
    entries = iter(fields[:-1])
    for status in entries:
        before = after = os.fsdecode(next(entries))
        if status[:1] in b"RC":
            after = os.fsdecode(next(entries))
        sides = (None if status[:1] == b"A" else before, None if status[:1] == b"D" else after)
        if any(side is not None and side.endswith(exporters.MODEL_SUFFIXES) for side in sides):
            found.append(sides)
    return found


def changed_file(commit: str, path: str) -> bool:
    """True if a file that was there at a commit is not the same in the checkout."""
    status = ["diff", "--name-status", *_OWN_DIFF, "--no-renames", commit, "--", path]
    return git(*status)[:1] in (b"M", b"D", b"T")


@contextmanager
def file_at(commit: str, path: str, *, from_top: bool = False) -> Iterator[str]:
    """A model at a commit as a temporary file; FileError if there is none, or only a pointer to it.

    from_top: the path counts from the top of the repository, else from the current folder.
    """
    place = f"{shown(path)} at {commit[:12]}"
    listed = _listed(commit, path, *(["--full-tree"] if from_top else []))
    if not listed or b"\0" in listed:
        raise FileError(f"{place}: no such file in that revision" if not listed else f"{place}: not one file")
    mode, kind, blob = listed.partition(b"\t")[0].decode().split()
    if kind != "blob" or mode == _LINK:
        what = {"tree": "a folder", "commit": "a submodule"}.get(kind, "a symbolic link")
        raise FileError(f"{place}: {what}, not a model")
    with tempfile.TemporaryDirectory(prefix="graphflops-") as folder:
        file = os.path.join(folder, f"model{os.path.splitext(path)[1]}")
        with open(file, "wb") as out:
            git("cat-file", "blob", blob, output=out)
        resolve(file, place)
        yield file


@contextmanager
def file_here(path: str) -> Iterator[str]:
    """A file of the checkout; for a Git LFS pointer, a temporary copy of its object."""
    if not is_pointer(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="graphflops-") as folder:
        file = os.path.join(folder, f"model{os.path.splitext(path)[1]}")
        shutil.copyfile(path, file)
        resolve(file, shown(path))
        yield file


class Version(Record, frozen=True):
    """A file at a commit that changed it."""

    commit: str
    date: str
    subject: str
    path: str  # from the top of the repository
    blob: str  # its object, "" if it is gone
    renamed_from: str = ""  # its path before the commit


def versions(path: str, span: RevisionRange | None, most: int) -> list[Version]:
    """The last commits that changed a file, the oldest first; of a range also the file as it was at its beginning.

    A file that was renamed is followed. Raises FileError if no commit of the range has it.
    """
    new = resolved(span.new if span else "HEAD")
    old = resolved(span.old) if span else None
    if span and span.merge_base and old:
        old = merge_base(old, new)
    shown_as = "--format=%H%x00%cs%x00%s"
    command = ["log", "--follow", "--raw", "--no-abbrev", "-z", "-M", *_OWN_DIFF, shown_as]
    text = git(*command, f"--max-count={most}", f"{old}..{new}" if old else new, "--", path)
    parts = iter([os.fsdecode(part).strip("\n") for part in text.split(b"\0")])
    found = []
    for commit in filter(None, parts):
        # One entry: date, subject, `:modes blobs status`, and one path, or two where it was renamed.
        date, subject, raw, place = (next(parts) for _ in range(4))
        blob, status = raw.split()[3:5]
        before, place = (place, next(parts)) if status[:1] in "RC" else ("", place)
        found.append(Version(commit, date, subject, place, "" if status == "D" else blob, before))
    if old:  # the file as it was where the range begins, if it was there
        place = found[-1].renamed_from or found[-1].path if found else path
        if listed := _listed(old, place, "--full-tree" if found else "--full-name"):
            about, _, name = listed.partition(b"\t")
            date, subject = os.fsdecode(git("log", "-1", "--format=%cs%x00%s", old)).strip("\n").split("\0")
            found.append(Version(old, date, subject, os.fsdecode(name), about.decode().split()[2]))
    if not found:
        raise FileError(f"{shown(path)}: no commit of that range has such a file")
    return found[::-1]


def there(path: str, commit: str | None) -> bool:
    """True if the path is a file or folder at a commit, or in the checkout for None."""
    if commit is None:
        return os.path.lexists(path)
    return bool(_listed(commit, path, "--name-only", check=False))


def _listed(commit: str, path: str, *options: str, check: bool = True) -> bytes:
    """What git lists of a path at a commit."""
    asked = os.path.relpath(path) if os.path.isabs(path) else path
    return git("ls-tree", "-z", *options, commit, "--", asked, check=check).rstrip(b"\0")


QUANTITIES = ("matrix_flops", "parameters", "moved_bytes", "peak_bytes")


class HistoryPoint(Record, frozen=True):
    """The model at one commit. line: what it cost there, or why that is not known."""

    version: Version
    line: OverviewLine

    def value(self, quantity: str) -> int | None:
        """A quantity of `QUANTITIES` as a number; None if it is not known or depends on a size without a value."""
        cost = self.line.cost
        return None if cost is None else evaluate(getattr(cost, quantity), cost.values)


class History(Rendered, Record, frozen=True):
    """One model at the commits that changed it, the oldest first."""

    path: str
    points: tuple[HistoryPoint, ...]


def history(path: str, span: RevisionRange | None, most: int, analyze: Callable[[str], Report]) -> History:
    """Analyzes a model at the last `most` commits of a range that changed it, and at the range's beginning.

    span: None means all commits up to HEAD. analyze: turns a file into a report. Raises FileError if no commit has it.
    """
    known: dict[str, OverviewLine] = {}
    points = []
    for version in versions(path, span, most):
        if version.blob not in known:
            next_analysis()
            known[version.blob] = _line(version, analyze)
        points.append(HistoryPoint(version, known[version.blob]))
    return History(path, tuple(points))


def _line(version: Version, analyze: Callable[[str], Report]) -> OverviewLine:
    if not version.blob:
        return OverviewLine(version.path, error="deleted")

    def analyzed(path: str) -> Report:
        with file_at(version.commit, path, from_top=True) as file:
            try:
                return analyze(file)
            except GraphflopsError as error:
                raise FileError(str(error).removeprefix(f"{shown(file)}: ")) from error

    return overview([version.path], analyzed).lines[0]
