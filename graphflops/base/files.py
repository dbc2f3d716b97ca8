"""Files that the user names: opened, read, found in the nearest folder, and written completely or not at all."""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import IO

from graphflops.errors import FileError, shown


@contextlib.contextmanager
def locked(output: str) -> Iterator[None]:
    """Keeps other processes out of the body while a file is rewritten: locks its folder, if the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        folder = os.open(os.path.dirname(os.path.realpath(output)), os.O_RDONLY)
    except OSError as error:
        raise FileError(f"{shown(output)}: cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextlib.contextmanager
def whole(output: str) -> Iterator[str]:
    """A temporary path that replaces `output` if the body succeeds; a device or pipe is written directly."""
    if os.path.exists(output) and not os.path.isfile(output):
        yield output
        return
    target = os.path.realpath(output)
    mode = os.stat(target).st_mode & 0o777 if os.path.exists(target) else None
    part = os.path.join(os.path.dirname(target), f".{os.urandom(6).hex()}{os.path.splitext(output)[1]}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        if mode is not None:
            os.chmod(part, mode)
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and error.filename in (None, part):
            raise FileError(f"{shown(output)}: cannot be written: {error.strerror or error}") from error
        raise


def copied(source: str, output: str) -> None:
    """Copy a finished file to `output`, so that a process that is killed leaves what was there: while it is written, the
    copy has no name, if the system has such files, and is else written as by `whole`.
    """
    import shutil  # it imports all kinds of compression

    folder = os.path.dirname(os.path.realpath(output))
    try:
        nameless = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except (AttributeError, OSError):
        nameless = -1
    if nameless < 0:
        with whole(output) as part:
            shutil.copyfile(source, part)
        return
    with open(nameless, "wb") as file, open(source, "rb") as finished:
        shutil.copyfileobj(finished, file)
        file.flush()
        os.fsync(nameless)
        with whole(output) as part:
            os.unlink(part)
            os.link(f"/proc/self/fd/{nameless}", part, src_dir_fd=nameless)


# Opening a pipe that nobody writes to would wait; regular files know no difference.
_AT_ONCE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """The file, to be read. Raises OSError where it cannot be opened, FileError for a folder, a pipe or a device."""
    handle = os.open(path, _AT_ONCE)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    what = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
    raise FileError(f"{shown(os.fspath(path))}: is {what}, not a file")


def content(path: str | os.PathLike[str], kind: str, most: int, *, otherwise: str = "") -> bytes:
    """All bytes of a small file of a kind; FileError if there is none (otherwise: what to do) or it has more than `most`."""
    place = shown(os.fspath(path))
    try:
        with opened(path) as file:
            # Python asks for all the memory that a read may need before it reads.
            data = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
    except FileNotFoundError:
        raise FileError(f"{place}: no such {kind}{otherwise and ': '}{otherwise}") from None
    except OSError as error:
        raise FileError(f"{place}: cannot be read: {error.strerror or error}") from None
    if len(data) > most:
        raise FileError(f"{place}: larger than any {kind}: at most {most:,} bytes")
    return data


CONFIGURATION = "graphflops.toml"


def nearest() -> str | None:
    """Path of the configuration in this folder or in the nearest one above it; None if there is none."""
    folder = ""
    while True:
        path = os.path.join(folder, CONFIGURATION)
        if os.path.exists(path) and not os.path.isdir(path):  # a pipe of that name is refused, not skipped
            return path
        if os.path.dirname(os.path.abspath(folder)) == os.path.abspath(folder):
            return None
        folder = os.path.join(folder, os.pardir)
