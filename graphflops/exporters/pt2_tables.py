"""The tables of a `.pt2` that say how its weights and constants are stored, beside what the program says of them.

Since torch 2.9 a table is a JSON member. Before, and for tensors of a subclass, it is the pickle of a checkpoint: a program
for a small machine that builds objects. Only its instructions for tuples, dictionaries, numbers and strings are followed;
nothing is imported or called: `_rebuild_tensor_v2` is only a name here, and its operands are the sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.errors import FileError, shown
from graphflops.exporters import pt2_schema as schema
from graphflops.exporters.archive import Archive
from graphflops.exporters.pt2_schema import decode
from graphflops.exporters.pt2_values import (
    LAYOUTS,
    OLD_CHECKPOINTS,
    SCALAR_TYPES,
    dtype_of,
    named,
    root_and_model,
)
from graphflops.exporters.types import storage
from graphflops.graph import Graph, Input, Node, Note
from graphflops.tensor import TensorType

_OVERHEAD = 2**14  # bytes of a checkpoint in addition to its tensors


class _Table(Record, frozen=True):
    """What is stored, by name in the model; None for a form that is not read."""

    payloads: Mapping[str, schema.Payload | None]
    size: Callable[[str], int]  # the bytes of a member, by its name in the table
    unread: int = 0  # members of a checkpoint with parts that are not read


class Tables:
    """The tables of one program. member: the program's own member."""

    def __init__(self, archive: Archive, member: str, signature: schema.Signature) -> None:
        self._archive = archive
        self._member = member
        self._stored = list(_stored(signature))
        kinds = dict.fromkeys(kind for *_, kind in self._stored)
        self._tables = {kind: table for kind in kinds if (table := self._table(kind)) is not None}

    def shared(self) -> dict[str, str] | None:
        """By qualified name of a weight that shares memory with an earlier one: the earlier one's name.

        None if the file does not say where weights are: a program on fake tensors stores them all in one empty member.
        """
        table = self._tables.get("weights")
        if table is None or table.unread:
            return {} if not any(kind == "weights" for *_, kind in self._stored) else None
        first: dict[Any, str] = {}
        shared: dict[str, str] = {}
        for _, target, kind in self._stored:
            payload = table.payloads.get(target) if kind == "weights" else None
            if payload is None or payload.tensor_meta is None:
                continue
            meta = payload.tensor_meta
            if table.size(payload.path_name) == 0:
                if any(size.as_int == 0 for size in meta.sizes):
                    continue
                return None
            told = (*meta.sizes, None, *meta.strides, meta.storage_offset)
            sizes = [x and (x.as_int if x.as_expr is None else x.as_expr.expr_str) for x in told]
            earlier = first.setdefault((payload.path_name, meta.dtype, *sizes), target)
            if earlier != target:
                shared[target] = earlier
        return shared

    def notes(self, graph: Graph) -> Iterator[Note]:
        """Notes on inputs whose size or element type differs between table and program; on tensors that are two inputs."""
        needed = dict.fromkeys(self._tables, 0)
        first: dict[str, str] = {}
        for value, target, kind in self._stored:
            if first.setdefault(target, value) != value:
                text = f"{shown(target, 80)} is two inputs of the program, {shown(first[target], 80)} too"
                yield Note("GF119", value, text)
            ours, table = graph.types.get(value), self._tables.get(kind)
            if table is None or not isinstance(ours, TensorType):
                continue
            needed[kind] += ours.nbytes if isinstance(ours.nbytes, int) else 0
            payload = table.payloads.get(target)
            if payload is not None and (theirs := self._differing(ours, kind, payload)):
                text = f"{shown(target, 80)} is {ours} in the program, {theirs} in the table of stored {kind}"
                yield Note("GF119", value, shown(text, 500))
        for kind, table in self._tables.items():
            if _is_more(table.unread, needed[kind]):
                text = f"the {kind} take {needed[kind]:,} bytes in the program, {table.unread:,} in the file"
                yield Note("GF119", "", text)

    def _differing(self, ours: TensorType, kind: str, payload: schema.Payload) -> str:
        """What is stored for a tensor, if that is not of its type."""
        if payload.use_pickle:
            member = f"{self._folder(kind)}{payload.path_name}"
            size = self._archive.size(member)
            inner = self._checkpoint(member).payloads.get("")
            if inner is None:
                is_more = _is_more(size, ours.nbytes if isinstance(ours.nbytes, int) else 0)
                return f"a pickle of {size:,} bytes" if is_more else ""
            payload = inner
        if (meta := payload.tensor_meta) is None:
            return ""
        sizes, dtype = [size.as_int for size in meta.sizes], dtype_of(meta.dtype, "")
        is_sparse = named(LAYOUTS, meta.layout).startswith("sparse")
        strides = [stride.as_int for stride in meta.strides]
        repeated = storage(ours.shape, strides)
        if ours.shape != tuple(sizes) or ours.dtype is not dtype or is_sparse != (ours.nonzeros is not None):
            return f"{'sparse ' * is_sparse}{dtype.name}{sizes}"
        return "" if repeated == ours.stored else f"with strides {strides}"

    def _folder(self, kind: str) -> str:
        return f"{root_and_model(self._member)[0]}data/{kind}/"

    def _table(self, kind: str) -> _Table | None:
        """The table of weights or constants; None if the file has none."""
        _, model = root_and_model(self._member)
        if not model:
            old = OLD_CHECKPOINTS[kind]
            return self._checkpoint(old) if old in self._archive.names else None
        folder = self._folder(kind)
        if f"{folder}{model}.pt" in self._archive.names:
            return self._checkpoint(f"{folder}{model}.pt")
        config = f"{folder}{model}_{kind}_config.json"
        if config not in self._archive.names:
            return None
        where = f"{self._archive}: {shown(config)}"
        payloads = decode(self._archive.read(config), schema.PayloadConfig, where).config
        return _Table(payloads, lambda path: self._archive.size(f"{folder}{path}"))

    def _checkpoint(self, member: str) -> _Table:
        size = self._archive.size(member)
        if size == 0:
            return _Table({}, self._archive.size)
        try:
            inner = self._archive.within(member)
            (pickle,) = [name for name in inner.names if name.endswith("/data.pkl")]
            payloads = tensors(inner.read(pickle, most=MAX_PICKLE_BYTES))
        except (FileError, UnreadableError, ValueError):
            return _Table({}, self._archive.size, size)
        root = pickle.removesuffix("data.pkl")
        return _Table(payloads, lambda path: inner.size(root + path), size * (None in payloads.values()))


def _is_more(size: int, needed: int) -> bool:
    """Whether something stored is larger than what the program takes it for, with its scales and zero points."""
    return size > needed + needed // 4 + _OVERHEAD


def _stored(signature: schema.Signature) -> Iterator[tuple[str, str, str]]:
    """The inputs that torch takes from the tables: the value, its name in the model, the kind of table that has it.

    Buffers that are no part of the state are with the constants.
    """
    for spec in signature.input_specs:
        if (one := spec.parameter or spec.buffer or spec.tensor_constant) is not None:
            name = one.parameter_name or one.buffer_name or one.tensor_constant_name or ""
            is_state = spec.parameter is not None or (spec.buffer is not None and one.persistent)
            yield one.arg.name, name, "weights" if is_state else "constants"


def with_aliases(
    inputs: Sequence[Input], nodes: Sequence[Node], types: Mapping[str, object]
) -> tuple[Input, ...]:
    """The inputs, with each weight that shares memory with an earlier one marked.

    torch redirects every use of tied weights to one of them. So two weights of one type are tied if no call uses
    `embedding.weight` and calls of module `embedding` use `head.weight`. A weight of a module without calls is tied to
    the only weight of its type and name in a child of its module (`head.bias` to `head.decoder.bias`), or else to the
    only embedding table of its type that is tied already (`shared.weight`).
    """
    used = _tied(inputs, nodes, types)
    first: dict[str, str] = {}  # by the weight that is used: the first of its group
    marked = []
    for entry in inputs:
        earlier = first.setdefault(used[entry.name], entry.target) if entry.name in used else entry.target
        marked.append(entry if earlier == entry.target else replace(entry, alias_of=earlier))
    return tuple(marked)


def _tied(inputs: Sequence[Input], nodes: Sequence[Node], types: Mapping[str, object]) -> dict[str, str]:
    """By member of a tied group, the weight that is used."""
    targets = {entry.name: entry.target for entry in inputs if entry.role in ("parameter", "buffer")}
    owner = {name: target.rpartition(".")[0] for name, target in targets.items()}
    users: dict[str, set[str]] = {}  # by weight, the modules whose calls use it
    tables = set[str]()  # weights that embeddings look up
    for node in nodes:
        for name in filter(targets.__contains__, node.reads()):
            users.setdefault(name, set()).add(node.module)
            tables |= {name} if node.operator.is_embedding else set()
    unused = [name for name in targets if name not in users and owner[name]]
    by_module = {(owner[name], types.get(name)): name for name in reversed(unused)}
    used: dict[str, str] = {}
    for name, modules in users.items():
        for module in modules - {owner[name]}:
            alike = by_module.get((module, types.get(name)))
            if alike is not None:
                used[name] = used[alike] = name
    children = defaultdict[tuple[str, str, object], list[str]](list)
    tied = defaultdict[object, list[str]](list)  # tables by type
    for name in users:
        around, attribute = owner[name].rpartition(".")[0], targets[name].rpartition(".")[2]
        children[around, attribute, types.get(name)].append(name)
        if name in tables and name in used:
            tied[types.get(name)].append(name)
    for name in unused:
        kind, attribute = types.get(name), targets[name].rpartition(".")[2]
        found = children.get((owner[name], attribute, kind)) or tied.get(kind, [])
        if name not in used and len(found) == 1:
            used[found[0]] = used[name] = found[0]
    return used


MAX_PICKLE_BYTES = 64 * 2**20
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_NUMBERS = {dtype.name: number for number, dtype in SCALAR_TYPES.items()}
# Instructions that push a value: of their own, or their operand.
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSHING = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
_MARK = object()


class UnreadableError(Exception):
    """A pickle does what no table of tensors needs."""


class _Call(Record, frozen=True):
    """What the pickle would import, or would call with these operands."""

    name: str
    operands: tuple[Any, ...] = ()


def tensors(pickle: bytes) -> dict[str, schema.Payload | None]:
    """The tensors of a checkpoint by name, a single one under ""; None for a tensor of unknown sizes.

    Raises UnreadableError for a pickle that is no table of tensors.
    """
    try:
        found = _built(pickle)
        table = found if isinstance(found, dict) else {"": found}
        if not all(isinstance(name, str) for name in table):
            raise UnreadableError
        return {name: _payload(value) for name, value in table.items()}
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError from error


def _payload(value: object) -> schema.Payload | None:
    """A tensor as the table of a newer file would have it."""
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
    import pickletools  # which lists instructions, and runs none

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
            # A call, or attributes of a dictionary, which say nothing about its entries.
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
