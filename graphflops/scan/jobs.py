"""What a scan is asked to do: files, sizes, options, limits."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from graphflops.base import files
from graphflops.base.patterns import matches_file
from graphflops.errors import FileError, OptionError, shown
from graphflops.exporters import MODEL_SUFFIXES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_LISTS = (".txt", ".lst")  # files that hold a path a line
_LARGEST_LIST = 2**28  # bytes
_PART = 2**20


class Binding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes to analyze models at. models: patterns of the paths that it is for; name: what the column `binding` says."""

    name: str = ""
    dims: dict[str, int] = {}
    inputs: dict[str, list[int]] = {}
    models: tuple[str, ...] = ("**",)

    @property
    def text(self) -> str:
        """Its name, else its sizes: `batch=8 ids=1,512`."""
        parts = [f"{name}={size}" for name, size in self.dims.items()]
        parts += [f"{name}={','.join(map(str, shape))}" for name, shape in self.inputs.items()]
        return self.name or " ".join(parts)


class _Bindings(msgspec.Struct, forbid_unknown_fields=True):
    binding: list[Binding]


class Options(msgspec.Struct, frozen=True):
    """What is computed of each file. rows: further tables. timeout: seconds, memory: bytes, that one file may take."""

    training: bool = False
    device: str = ""
    rows: tuple[str, ...] = ()
    timeout: float = 60.0
    memory: int | None = None

    @property
    def text(self) -> str:
        """What results depend on, as the column `options` has it."""
        parts = [*["training"] * self.training, *[f"device={self.device}"] * bool(self.device)]
        return " ".join([*parts, *(f"rows={name}" for name in self.rows)])

    @property
    def limits(self) -> str:
        """The limits; results of files that exceed them also depend on these."""
        return f"timeout={self.timeout:g} memory={self.memory}"


class Job(msgspec.Struct, frozen=True):
    """One file at one binding. path: a path or a URL."""

    path: str
    binding: Binding
    options: Options

    @property
    def name(self) -> str:
        """The path as the table has it: bytes that are no UTF-8 are spelled out."""
        return self.path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def is_url(path: str) -> bool:
    """True for what fsspec opens: `s3://bucket/model.onnx`."""
    scheme, found, _ = path.partition("://")
    return bool(found) and scheme.isalnum()


def bindings_of(path: str) -> list[Binding]:
    """The bindings of a TOML file: `[[binding]]` with `dims`, `inputs`, and optionally `name` and `models`."""
    try:
        with files.opened(path) as file:
            found = msgspec.convert(tomllib.load(file), _Bindings).binding
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise FileError(f"{shown(path)}: no bindings: {shown(str(error))}") from None
    texts = [one.text for one in found]
    if len({*texts}) < len(texts):
        raise FileError(f"{shown(path)}: two bindings are alike: give them names")
    return found


def jobs(sources: Iterable[str], bindings: Sequence[Binding], options: Options) -> list[Job]:
    """A job for each file and binding, by path; FileError for a source that names no model."""
    paths = dict.fromkeys(path for source in sources for path in _paths(source))
    every = [
        Job(path, binding, options)
        for path in sorted(paths)
        for binding in bindings
        if any(matches_file(pattern, path.replace(os.sep, "/")) for pattern in binding.models)
    ]
    if not every:
        raise FileError("no binding is for any of the files")
    return every


def _paths(source: str) -> Iterator[str]:
    if is_url(source):
        yield from _urls(source)
        return
    if os.path.isdir(source):
        files = (os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names)
        found = sorted(file for file in files if file.endswith(MODEL_SUFFIXES))
    elif source == "-" or (source.endswith(_LISTS) and os.path.isfile(source)):
        found = [path for line in _lines(source) for path in _paths(line)]
    elif os.path.isfile(source):
        found = [source]
    else:
        import glob

        found = sorted(path for path in glob.glob(source, recursive=True) if os.path.isfile(path))
    if not found:
        kinds = "a file, a folder, a pattern, a list (.txt) or a URL"
        raise FileError(f"{shown(source)}: no model: name {kinds}")
    yield from found


def _lines(source: str) -> list[str]:
    if source == "-":
        return [line.strip() for line in sys.stdin if line.strip()]
    with files.opened(source) as file:
        text = file.read(_LARGEST_LIST).decode(errors="surrogateescape")
    return [line.strip() for line in text.splitlines() if line.strip() and line.strip() != source]


def _urls(source: str) -> list[str]:
    system, path = opened(source)
    try:
        if any(mark in path for mark in "*?["):
            found = system.glob(path)
        else:
            found = system.find(path) if system.isdir(path) else [path]
    except (OSError, ValueError) as error:
        raise FileError(f"{shown(source)}: {shown(str(error))}") from None
    wanted = [name for name in found if name.endswith(MODEL_SUFFIXES) or name == path]
    if not wanted:
        raise FileError(f"{shown(source)}: no model there")
    return [system.unstrip_protocol(name) for name in sorted(wanted)]


def opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise OptionError('URLs need fsspec: pip install "graphflops[scan]"') from None
    try:
        system, path = fsspec.url_to_fs(url)
    except (ImportError, OSError, ValueError) as error:
        raise FileError(f"{shown(url)}: {shown(str(error))}") from None
    return system, path


def size_of(url: str) -> int:
    """Bytes of what a URL names; 0 if its file system does not tell."""
    system, path = opened(url)
    return int(system.size(path) or 0)


def fetch(url: str, target: str) -> None:
    """Copies what a URL names to a file; FileError if that fails."""
    system, path = opened(url)
    try:
        with system.open(path, "rb") as source, open(target, "wb") as copy:
            shutil.copyfileobj(source, copy, _PART)
    except Exception as error:  # noqa: BLE001 - each file system raises what it likes
        raise FileError(f"{shown(url)}: cannot be fetched: {shown(str(error))}") from None


class Result(msgspec.Struct, frozen=True):
    """What came of one job: its row, rows of further tables by name, and bytes that its worker process has had at most."""

    row: dict[str, Any]
    more: dict[str, list[dict[str, Any]]]
    memory: int = 0
