"""Readers, one for each accepted way of exporting a model, in one table; `load` chooses by the file's first bytes.

A reader is a module with `read(path, model)`, which returns a Graph or raises FileError in one line, and a row in `READERS`.
"""

import contextlib
import gc
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphflops.base.lazy import imported
from graphflops.base.record import Record
from graphflops.errors import FileError, OptionError, shown
from graphflops.graph import Graph

_HEAD = 512  # bytes that identify the format of a file
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # what zip archives begin with: a member, or the end if they are empty
_MOST_CALLS = 1_000_000  # in all graphs of a program; they take 1 GiB


class Reader(Record, frozen=True):
    """One accepted way of exporting a model."""

    name: str  # the format's name in reports, and the name of its module in this folder
    suffixes: tuple[str, ...]  # of its files; the first is the one that models are usually stored under
    # Bytes that such a file has at `offset`, any one of them. (): no fixed bytes identify the format, so the module's
    # `recognises(head)` looks at the first 512 bytes.
    magic: tuple[bytes, ...] = ()
    offset: int = 0

    def recognises(self, head: bytes) -> bool:
        if self.magic:
            return head.startswith(self.magic, self.offset)
        return bool(imported(f"{__name__}.{self.name}:recognises")(head))

    def read(self, path: Path, model: str | None, **options: Any) -> Graph:
        """The program in a file. model: which one, if the file holds several. options: those that this reader takes."""
        graph: Graph = imported(f"{__name__}.{self.name}:read")(path, model, **options)
        return graph


READERS = (
    Reader("recorded", (".recorded",), (b"graphflops_step/step.json",), offset=30),  # the first member's name
    Reader("pt2", (".pt2",), ZIP),
    Reader("onnx", (".onnx", ".onnxtxt", ".textproto")),
)
SUFFIXES = tuple(suffix for reader in READERS for suffix in reader.suffixes)
MODEL_SUFFIXES = tuple(reader.suffixes[0] for reader in READERS)


def recognised(head: bytes) -> Reader | None:
    """The reader of files with these first bytes; None if there is none."""
    return next((reader for reader in READERS if reader.recognises(head)), None)


def load(path: Path | str, model: str | None = None, mesh: Mapping[str, int] | None = None) -> Graph:
    """The program in a file. model: which of several in an archive. mesh: sizes of a recorded step's axes. Raises FileError,
    in one line, for a file that no reader reads, and ModelError for a mesh that the step cannot have.
    """
    path = regular_file(path)
    reader = reader_of(path)
    if mesh and reader.name != "recorded":
        raise OptionError(f"{shown(str(path))}: is no recorded step, whose mesh could be another")
    return reader.read(path, model, **({"mesh": mesh} if mesh else {}))


def reader_of(path: Path) -> Reader:
    """The reader of a file. If none recognises the file, the reader of its suffix: it refuses the file and says why."""
    with in_one_line(shown(str(path))), path.open("rb") as file:
        head = file.read(_HEAD)
    by_suffix = (reader for reader in READERS if path.suffix in reader.suffixes)
    return recognised(head) or next(by_suffix, READERS[0])


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within this context no garbage is collected: a collection walks every object of a large program."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


@contextlib.contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """Turns errors of reading a file into a FileError that begins with its name."""
    try:
        with uncollected():  # nothing here is garbage yet
            yield
    except FileError as error:
        said = str(error)
        raise (error if said.startswith(name) else FileError(f"{name}: {shown(said, 800)}")) from None
    except OSError as error:
        raise FileError(f"{name}: {reason(error)}") from None
    except RecursionError:
        raise FileError(f"{name}: nests too deep") from None
    except MemoryError:
        raise FileError(f"{name}: the program does not fit in memory") from None


def regular_file(path: Path | str) -> Path:
    """The path, if it names a regular file that is not empty; raises FileError otherwise."""
    path = Path(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileError(f"{shown(str(path))}: no such file") from None
    except (OSError, ValueError) as error:  # a name that is too long or holds a NUL
        raise FileError(f"{shown(str(path))}: {reason(error)}") from None
    if stat.S_ISDIR(status.st_mode):
        raise FileError(f"{shown(str(path))}: is a directory: give the model file in it")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{shown(str(path))}: is a device or a pipe, not a file")
    if status.st_size == 0:
        raise FileError(f"{shown(str(path))}: is empty: export or copy it again")
    return path


def require_few(calls: int) -> None:
    """Raises FileError for more calls than a program may have."""
    if calls > _MOST_CALLS:
        raise FileError(f"has more than {_MOST_CALLS:,} calls, which are not read")


def reason(error: BaseException) -> str:
    """The operating system's message for an error, in one line."""
    return shown(getattr(error, "strerror", None) or str(error) or type(error).__name__, 200)
