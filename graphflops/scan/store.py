"""A table as a folder of Parquet files: parts are written whole, named by their content, and never changed."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphflops.base import files
from graphflops.errors import FileError, OptionError, shown
from graphflops.scan.worker import TABLES, Row, TableName

_SUFFIX = ".parquet"
_UNFINISHED = ".writing"  # suffix of a part that is not whole yet; readers ignore it


def pyarrow() -> Any:
    """The library, or an error that says how to get it."""
    try:
        import pyarrow as module
        import pyarrow.parquet
    except ImportError:
        raise OptionError('tables need pyarrow: pip install "graphflops[scan]"') from None
    return module


def schema(name: TableName) -> Any:
    """The columns of a table as pyarrow has them."""
    arrow = pyarrow()
    kinds = {"text": arrow.string(), "number": arrow.int64(), "real": arrow.float64()}
    kinds["texts"] = arrow.list_(arrow.string())
    return arrow.schema([(column, kinds[kind]) for column, kind in TABLES[name].items()])


def parts(folder: str) -> list[str]:
    """The files of a table in a folder, or the one file that it is; FileError if there is none."""
    if os.path.isfile(folder):
        return [folder]
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))
    except OSError as error:
        raise FileError(f"{shown(folder)}: no table: {error.strerror or error}") from None
    return [os.path.join(folder, name) for name in names]


def read(folder: str, name: TableName = "results", columns: Sequence[str] | None = None) -> Any:
    """A whole table; FileError if a part is not one."""
    arrow = pyarrow()
    wanted = schema(name)
    if columns is not None:
        wanted = arrow.schema([wanted.field(column) for column in columns])
    tables = [_part(path, wanted) for path in parts(folder)]
    return arrow.concat_tables([wanted.empty_table(), *tables], promote_options="default")


def _part(path: str, wanted: Any) -> Any:
    arrow = pyarrow()
    try:
        files.opened(path).close()
        names = [name for name in wanted.names if name in arrow.parquet.read_schema(path).names]
        found = arrow.parquet.read_table(path, columns=names)
        for name in {"path", "binding", "status"}.intersection(wanted.names):  # each row states them
            if name not in names or found.column(name).null_count:
                raise ValueError(f"a row states no {name}")
        return found.cast(arrow.schema([wanted.field(name) for name in names]))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise FileError(f"{shown(path)}: no table of graphflops scan: {shown(str(error), 200)}") from None


def write(folder: str, rows: Iterable[Row], name: TableName = "results") -> None:
    """Adds a part, whole or not at all; the same rows twice are one part."""
    _write(folder, pyarrow().Table.from_pylist([dict(row) for row in rows], schema=schema(name)))


def _write(folder: str, table: Any) -> None:
    arrow = pyarrow()
    if not table.num_rows:
        return
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    target = os.path.join(folder, f"part-{hashlib.sha256(data).hexdigest()[:32]}{_SUFFIX}")
    unfinished = f"{target}.{os.urandom(4).hex()}{_UNFINISHED}"
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except OSError as error:
        raise FileError(f"{shown(folder)}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def prepare(folder: str) -> None:
    """Makes the folder, and removes unfinished parts of killed scans."""
    pyarrow()  # without it no folder is left behind
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise FileError(f"{shown(folder)}: is a file, and a scan writes a folder of parts")
    try:
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            if name.endswith(_UNFINISHED):
                os.unlink(os.path.join(folder, name))
    except OSError as error:
        raise FileError(f"{shown(folder)}: cannot be written: {error.strerror or error}") from None


def keep(
    folder: str, wanted: Callable[[Mapping[str, Any]], bool], name: TableName, columns: Sequence[str]
) -> None:
    """Removes rows: a part that has some is replaced by one without them. columns: those that `wanted` reads."""
    every = schema(name)
    seen = pyarrow().schema([every.field(column) for column in columns])
    for path in parts(folder):
        mask = [wanted(row) for row in rows_of(_part(path, seen))]
        if not all(mask):
            _write(folder, _part(path, every).filter(pyarrow().array(mask)))
            os.unlink(path)


def rows_of(table: Any) -> Iterator[Row]:
    """The rows of a table, a few at a time in memory."""
    for batch in table.to_batches(max_chunksize=1_000):
        yield from batch.to_pylist()
