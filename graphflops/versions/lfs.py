"""Contents of Git LFS pointers: from the local store, their hash checked; fetched only where the user allows it."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

from graphflops.errors import FileError, shown
from graphflops.versions.git import git, succeeds

LIMIT = "GRAPHFLOPS_LFS_LIMIT"  # environment variable: bytes that one object may have for git-lfs to fetch it
_HEAD = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST = 1024  # bytes of a pointer, by its specification
_FIELDS = re.compile(rb"^oid sha256:([0-9a-f]{64})\n(?:.*\n)*?size (\d{1,15})$", re.MULTILINE)
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a pointer file points to."""

    digest: str
    size: int


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
    """Replaces a pointer file by what it points to; FileError where that is not in the local store and may not be fetched.

    place: what errors call the file.
    """
    if not is_pointer(file):
        return
    with open(file, "rb") as opened:
        text = opened.read()
    found = _FIELDS.search(text)
    if found is None:
        raise FileError(f"{place}: a Git LFS pointer without an object id and a size")
    pointer = Pointer(found[1].decode(), int(found[2]))
    what = f"{place}: a Git LFS pointer to {pointer.size:,} bytes"
    stored = _stored(pointer)
    if stored is not None:
        _copied(stored, file, pointer, what)
    else:
        _fetched(text, file, pointer, what)


def _stored(pointer: Pointer) -> str | None:
    """The object's file in the local store; None where it is not there."""
    folder = git("config", "--type=path", "lfs.storage", check=False).decode().strip()
    common = os.path.abspath(os.fsdecode(git("rev-parse", "--git-common-dir")).strip())
    store = os.path.join(common, folder or "lfs")
    path = os.path.join(store, "objects", pointer.digest[:2], pointer.digest[2:4], pointer.digest)
    return path if os.path.isfile(path) else None


def _copied(source: str, target: str, pointer: Pointer, what: str) -> None:
    """Copies an object; FileError where it is not what the pointer says."""
    digest, size = hashlib.sha256(), 0
    with open(source, "rb") as read, open(target, "wb") as written:
        while (part := read.read(_CHUNK)) and size <= pointer.size:
            size += written.write(part)
            digest.update(part)
    if size != pointer.size or digest.hexdigest() != pointer.digest:
        raise FileError(f"{what}: the object that is there has another hash or size")


def _fetched(text: bytes, file: str, pointer: Pointer, what: str) -> None:
    """Fetches an object with git-lfs, if the user allows one of that size."""
    limit = _limit()
    if limit is None:
        advice = f"run git lfs fetch, or set {LIMIT} (such as 2GB) to let git-lfs fetch it"
        raise FileError(f"{what} that the local store does not have: {advice}")
    if pointer.size > limit:
        raise FileError(f"{what}, more than the {limit:,} of {LIMIT}: it is not fetched")
    if not succeeds("lfs", "version"):
        raise FileError(f"{what}, and git-lfs is not installed")
    fetched = f"{file}.fetched"
    try:
        with open(fetched, "wb") as out:
            git("lfs", "smudge", given=text, output=out)
        _copied(fetched, file, pointer, what)
    except FileError as error:
        raise FileError(f"{what} that git-lfs cannot fetch: {error}") from error
    finally:
        os.unlink(fetched)


def _limit() -> int | None:
    from graphflops.budget.amounts import amount

    text = os.environ.get(LIMIT, "").strip()
    try:
        return int(amount(text, "B")) if text else None
    except ValueError as error:
        raise FileError(f"{LIMIT}: {shown(str(error))}") from None
