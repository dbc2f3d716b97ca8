"""The weights and constants of a `.pt2`: tables of how they are stored, compared with the program, and their contents.

Since torch 2.9 a table is a JSON member, and each tensor is a member of raw bytes. Before, and for tensors of a subclass, a
checkpoint of `torch.save` has both; only sizes are read from its pickle, which is code for a stack machine: instructions for
tuples, dictionaries, numbers and strings are followed, and `_rebuild_tensor_v2` is a name whose operands hold the sizes.
Nothing is imported or called.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from graphflops.base.limits import left
from graphflops.base.record import Record
from graphflops.errors import FileError, shown
from graphflops.exporters import pt2_schema as schema
from graphflops.exporters.archive import Archive, mapped
from graphflops.exporters.pt2_values import LAYOUTS, SCALAR_TYPES, dtype_of, named
from graphflops.exporters.types import storage
from graphflops.graph import Graph, Note, Stored
from graphflops.tensor import TensorType, extent

_OVERHEAD = 2**14  # bytes that a checkpoint may have in addition to its tensors
_CHECKPOINT_BYTES = 2**34  # the largest checkpoint that is read; it is read as a whole


OLD_PROGRAM = "serialized_exported_program.json"
OLD_CHECKPOINTS = {"weights": "serialized_state_dict.pt", "constants": "serialized_constants.pt"}


class Place(Record, frozen=True):
    """Where an archive has a program and its tensors. root: the folder of all members, which has the name of the file that
    torch saved, and so may be called `models/` too. model: "" until torch 2.7.
    """

    root: str
    model: str

    @staticmethod
    def of(member: str) -> "Place":
        """The place of the program that a member is; without a model for the old program and for other members."""
        root, slash, inner = member.partition("/")
        model = inner.removeprefix("models/").removesuffix(".json") if inner.startswith("models/") else ""
        return Place(root + slash, model)

    def table(self, kind: str) -> str:
        return f"{self.root}data/{kind}/{self.model}_{kind}_config.json"

    def checkpoint(self, kind: str) -> str:
        """The checkpoint that has weights or constants instead."""
        return f"{self.root}data/{kind}/{self.model}.pt" if self.model else OLD_CHECKPOINTS[kind]


class Entry(Record, frozen=True):
    """A stored weight or constant."""

    target: str  # its name in the model
    payload: schema.Payload
    member: str
    size: int  # of the member in bytes; -1 if there is none
    start: int | None  # offset of the member in the file; None if it is compressed, or in a checkpoint


class _Table(Record, frozen=True):
    entries: Mapping[str, Entry]
    is_checkpoint: bool = False
    unread: int = 0  # bytes of a checkpoint of which parts are not read


class Tables:
    """The tables of one program. member: the member with the program itself."""

    def __init__(self, archive: Archive, member: str, signature: schema.Signature) -> None:
        self._archive = archive
        self._place = Place.of(member)
        self._stored = list(_stored(signature))
        kinds = dict.fromkeys(kind for *_, kind in self._stored)
        self._tables = {kind: table for kind in kinds if (table := self._table(kind)) is not None}

    def shared(self) -> dict[str, str] | None:
        """By qualified name of a weight that shares memory with an earlier one: the earlier one's name.

        None if the file does not say: a program on fake tensors, for example, stores all weights in one empty member.
        """
        table = self._tables.get("weights")
        if table is None or table.unread:
            return {} if not any(kind == "weights" for *_, kind in self._stored) else None
        first: dict[Any, str] = {}
        shared: dict[str, str] = {}
        for _, target, kind in self._stored:
            entry = table.entries.get(target) if kind == "weights" else None
            if entry is None or entry.payload.tensor_meta is None:
                continue
            meta = entry.payload.tensor_meta
            if entry.size <= 0:
                if any(size.as_int == 0 for size in meta.sizes):
                    continue
                return None
            told = (*meta.sizes, None, *meta.strides, meta.storage_offset)
            sizes = [x and (x.as_int if x.as_expr is None else x.as_expr.expr_str) for x in told]
            earlier = first.setdefault((entry.member, meta.dtype, *sizes), target)
            if earlier != target:
                shared[target] = earlier
        return shared

    def contents(self) -> "Contents":
        tables = {kind: table.entries for kind, table in self._tables.items() if not table.is_checkpoint}
        found = ((value, tables.get(kind, {}).get(target)) for value, target, kind in self._stored)
        entries = {value: entry for value, entry in found if entry is not None}
        return Contents(self._archive.path, self._place, entries)

    def notes(self, graph: Graph) -> Iterator[Note]:
        """Notes on inputs whose type in the table differs from that in the program, and on tensors that are two inputs."""
        needed = dict.fromkeys(self._tables, 0)
        parameters = {entry.name for entry in graph.inputs if entry.role == "parameter"}
        first: dict[str, str] = {}
        for value, target, kind in self._stored:
            if first.setdefault(target, value) != value:
                text = f"{shown(target, 80)} is two inputs of the program, {shown(first[target], 80)} too"
                yield Note("GF119", value, text)
            ours, table = graph.types.get(value), self._tables.get(kind)
            if table is None or not isinstance(ours, TensorType):
                continue
            needed[kind] += ours.nbytes if isinstance(ours.nbytes, int) else 0
            entry = table.entries.get(target)
            is_open = table.unread or (table.is_checkpoint and not table.entries)
            if not (is_open or entry):
                yield Note("GF119", value, f"{shown(target, 80)} is not among the stored {kind}")
            if entry and value in parameters and entry.payload.is_param is False:
                yield Note("GF119", value, f"{shown(target, 80)} is a parameter, and not stored as one")
            if entry is not None and (theirs := self._differing(ours, entry)):
                text = f"{shown(target, 80)} is {ours} in the program, {theirs} in the table of stored {kind}"
                yield Note("GF119", value, shown(text, 500))
        for kind, table in self._tables.items():
            if _is_more(table.unread, needed[kind]):
                text = f"the {kind} take {needed[kind]:,} bytes in the program, {table.unread:,} in the file"
                yield Note("GF119", "", text)

    def _differing(self, ours: TensorType, entry: Entry) -> str:
        """Says what is stored for a tensor, if it differs from the tensor's type; else ""."""
        if entry.payload.use_pickle:
            inner = self._checkpoint(entry.member).entries.get("")
            if inner is None:
                is_more = _is_more(entry.size, ours.nbytes if isinstance(ours.nbytes, int) else 0)
                return f"a pickle of {entry.size:,} bytes" if is_more else ""
            entry = inner
        if (meta := entry.payload.tensor_meta) is None:
            return ""
        sizes, dtype = [size.as_int for size in meta.sizes], dtype_of(meta.dtype, "")
        is_sparse = named(LAYOUTS, meta.layout).startswith("sparse")
        strides = [stride.as_int for stride in meta.strides]
        repeated = storage(ours.shape, strides)
        if ours.shape != tuple(sizes) or ours.dtype is not dtype or is_sparse != (ours.nonzeros is not None):
            return f"{'sparse ' * is_sparse}{dtype.name}{sizes}"
        if repeated != ours.stored or None in (*sizes, *strides) or len(sizes) != len(strides):
            return f"with strides {strides}"
        offset = 0 if meta.storage_offset is None else meta.storage_offset.as_int or 0
        if offset < 0:
            return f"stored from element {offset}"
        needed = extent(sizes, strides, offset) * dtype.bits // 8  # type: ignore[arg-type]
        # On fake tensors, one empty member serves for all.
        is_short = entry.size != 0 and entry.size < needed and not is_sparse
        return f"stored in {max(entry.size, 0):,} bytes in place of {needed:,}" if is_short else ""

    def _table(self, kind: str) -> _Table | None:
        """The table of weights or constants; None if the file has none."""
        archive, place = self._archive, self._place
        if (checkpoint := place.checkpoint(kind)) in archive.names:
            return self._checkpoint(checkpoint)
        if not place.model or (config := place.table(kind)) not in archive.names:
            return None
        where = f"{archive}: {shown(config)}"
        entries = {}
        for name, payload in schema.decode(archive.read(config), schema.PayloadConfig, where).config.items():
            member = f"{place.root}data/{kind}/{payload.path_name}"
            size = archive.size(member) if member in archive.names else -1
            entries[name] = Entry(name, payload, member, size, archive.place(member))
        return _Table(entries)

    def _checkpoint(self, member: str) -> _Table:
        size = self._archive.size(member)
        if size == 0:
            return _Table({}, is_checkpoint=True)
        try:
            inner = self._archive.within(member)
            (pickle,) = [name for name in inner.names if name.endswith("/data.pkl")]
            payloads = tensors(inner.read(pickle, most=MAX_PICKLE_BYTES))
        except (FileError, UnreadableError, ValueError):
            return _Table({}, is_checkpoint=True, unread=size)
        root = pickle.removesuffix("data.pkl")
        entries = {
            name: Entry(name, payload, place := f"{root}{payload.path_name}", inner.size(place), None)
            for name, payload in payloads.items()
            if payload is not None
        }
        return _Table(entries, is_checkpoint=True, unread=size * (len(entries) < len(payloads)))


class Contents:
    """Contents of a program's inputs, by name of the value. entries: those that are stored as raw bytes."""

    def __init__(self, path: Path, place: Place, entries: Mapping[str, Entry]) -> None:
        self._path, self._place, self._entries = path, place, entries
        self._memory: dict[str, memoryview] = {}

    def __call__(self, name: str) -> Stored | None:
        """The contents of an input; None if they are not stored as raw bytes. Raises FileError if the bytes are too few."""
        entry = self._entries.get(name)
        if entry is None or entry.payload.use_pickle or entry.payload.tensor_meta is None:
            return None
        meta = entry.payload.tensor_meta
        if named(LAYOUTS, meta.layout) != "strided" or self._is_swapped:
            return None
        sizes, strides = _numbers(meta.sizes), _numbers(meta.strides)
        offset = 0 if meta.storage_offset is None else _numbers([meta.storage_offset])[0]
        dtype = dtype_of(meta.dtype, name)
        needed = extent(sizes, strides, offset) * dtype.bits // 8
        if needed and entry.size <= 0:
            return None  # exported on fake tensors: one empty member serves for all
        if needed > entry.size or len(sizes) != len(strides):
            raise FileError(
                f"{shown(str(self._path))}: {shown(entry.target)} reaches over {needed:,} bytes, and {shown(entry.member)} "
                f"has {entry.size:,}: export the model again"
            )
        if entry.member not in self._memory:
            limits = left()
            if not needed:
                memory = memoryview(b"")
            elif entry.start is None:
                with Archive(self._path) as archive:
                    memory = memoryview(bytearray(archive.read(entry.member)))
            elif limits is not None and limits.memory is not None:  # it may be less than the whole file
                memory = mapped(self._path, entry.start, entry.size)
            else:
                memory = self._file[entry.start : entry.start + entry.size]
            self._memory[entry.member] = memory
        return Stored(dtype, sizes, strides, offset, self._memory[entry.member])

    @cached_property
    def _is_swapped(self) -> bool:
        """Whether the file or this machine has the highest byte of a number first."""
        order = f"{self._place.root}byteorder"
        with Archive(self._path) as archive:
            stored = archive.read(order) if order in archive.names else b"little"
        return sys.byteorder != "little" or stored == b"big"

    @cached_property
    def _file(self) -> memoryview:
        """The whole file, mapped once: each mapping keeps the file open, and a process may open only few files."""
        return mapped(self._path, 0, self._path.stat().st_size)

    def checkpoints(self) -> list[bytes]:
        """The checkpoints of `torch.save` in which releases before 2.9 keep weights and constants."""
        with Archive(self._path) as archive:
            found = filter(archive.names.__contains__, map(self._place.checkpoint, OLD_CHECKPOINTS))
            return [archive.read(name, most=_CHECKPOINT_BYTES) for name in found]


def _numbers(sizes: Sequence[schema.Scalar]) -> tuple[int, ...]:
    """Sizes, strides or an offset; raises FileError for one that is not a number."""
    found = tuple([size.as_int for size in sizes if size.as_int is not None and size.as_int >= 0])
    if len(found) < len(sizes):
        raise FileError("the size of something stored is no number: export the model again")
    return found


def _is_more(size: int, needed: int) -> bool:
    """Whether stored bytes are more than a tensor needs, with an allowance of a quarter for scales and zero points."""
    return size > needed + needed // 4 + _OVERHEAD


def _stored(signature: schema.Signature) -> Iterator[tuple[str, str, str]]:
    """The inputs that torch takes from the tables: each value, its name in the model, and the kind of its table."""
    for spec in signature.input_specs:
        if (one := spec.parameter or spec.buffer or spec.tensor_constant) is not None:
            name = one.parameter_name or one.buffer_name or one.tensor_constant_name or ""
            is_state = spec.parameter is not None or (spec.buffer is not None and one.persistent)
            yield one.arg.name, name, "weights" if is_state else "constants"


MAX_PICKLE_BYTES = 64 * 2**20
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_NUMBERS = {dtype.name: number for number, dtype in SCALAR_TYPES.items()}
# Instructions that push a fixed value, and those that push their operand.
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSHING = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
_MARK = object()


class UnreadableError(Exception):
    """A pickle has an instruction that no table of tensors needs."""


class _Call(Record, frozen=True):
    """A name that the pickle would import, or a call that it would make with these operands."""

    name: str
    operands: tuple[Any, ...] = ()


def tensors(pickle: bytes) -> dict[str, schema.Payload | None]:
    """A checkpoint's tensors by name, "" for a single one; None for unknown sizes. UnreadableError if it has others."""
    try:
        found = _built(pickle)
        table = found if isinstance(found, dict) else {"": found}
        if not all(isinstance(name, str) for name in table):
            raise UnreadableError
        return {name: _payload(value) for name, value in table.items()}
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError from error


def _payload(value: object) -> schema.Payload | None:
    """A tensor in the form of a newer file's table; None if its sizes are unknown."""
    is_trained = None
    if isinstance(value, _Call) and value.name == "torch._utils _rebuild_parameter":
        value, is_trained, _ = value.operands
    if not isinstance(value, _Call) or len(value.operands) != _REBUILT.get(value.name):
        return None
    storage, offset, sizes, strides, requires_grad = value.operands[:5]
    _, kind, key, _, _ = storage.operands
    dtype = _STORAGES.get(kind.name.removeprefix("torch ").removesuffix("Storage"), "")
    if value.name.endswith("v3"):
        dtype = value.operands[6].name.removeprefix("torch ")
    counts = [schema.Scalar(as_int=number) for number in (*sizes, *strides, offset)]
    if dtype not in _NUMBERS or len(sizes) != len(strides) or not all(type(x.as_int) is int for x in counts):
        return None
    rank = len(sizes)
    is_trained = requires_grad if is_trained is None else is_trained
    meta = schema.TensorMeta(_NUMBERS[dtype], counts[:rank], is_trained, counts[rank:-1], counts[-1])
    return schema.Payload(f"data/{key}", tensor_meta=meta)


_REBUILT = {"torch._utils _rebuild_tensor_v2": 6, "torch._utils _rebuild_tensor_v3": 7}


def _built(pickle: bytes) -> object:
    import pickletools  # lists instructions and runs none of them

    stack: list[Any] = []
    memo: dict[int, Any] = {}
    operand: Any
    for instruction, operand, _ in pickletools.genops(pickle):
        name = instruction.name
        if name.endswith("BINPUT"):
            memo[operand] = stack[-1]
        elif name in _PUSHING or name.endswith("BINGET"):
            stack.append(operand if name in _PUSHING else memo[operand])
        elif name == "GLOBAL":
            stack.append(_Call(operand))
        elif name in _CONSTANTS or name in ("EMPTY_DICT", "MARK"):
            stack.append({} if name == "EMPTY_DICT" else _CONSTANTS.get(name, _MARK))
        elif name.startswith("TUPLE"):
            count = int(name[5:] or _since_mark(stack))
            operands = tuple(stack[len(stack) - count :])
            del stack[len(stack) - count :]
            stack[-1:] = [operands] if name == "TUPLE" else [*stack[-1:], operands]
        elif name.startswith("SETITEM"):
            count, is_marked = (2, False) if name == "SETITEM" else (_since_mark(stack), True)
            items = stack[len(stack) - count :]
            del stack[len(stack) - count - is_marked :]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "BINPERSID":
            stack[-1] = _Call("storage", stack[-1])
        elif name not in ("PROTO", "STOP"):
            # REDUCE is a call. BUILD sets attributes of a dictionary, which do not change its entries.
            given = stack.pop()
            if name == "REDUCE" and isinstance(given, tuple):
                is_dict = (stack[-1].name, given) == ("collections OrderedDict", ())
                stack[-1] = {} if is_dict else _Call(stack[-1].name, given)
            elif name != "BUILD" or not isinstance(stack[-1], dict):
                raise UnreadableError
    (result,) = stack
    return result


def _since_mark(stack: list[Any]) -> int:
    count = 0
    while stack[-1 - count] is not _MARK:
        count += 1
    return count
