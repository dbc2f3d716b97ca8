"""Sizes of the tensors in a checkpoint of `torch.save`: what its pickle says, read as data.

A checkpoint is a zip archive of raw storages and one pickle, a program for a small machine that builds objects. Only its
instructions for tuples, dictionaries, numbers and texts are followed, and nothing is imported or called:
`_rebuild_tensor_v2` is a name here, and its operands are the sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from graphflops.exporters import pt2_schema as schema
from graphflops.exporters.pt2_values import SCALAR_TYPES

MAX_PICKLE_BYTES = 64 * 2**20
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_NUMBERS = {dtype.name: number for number, dtype in SCALAR_TYPES.items()}
# Instructions with an operand of fixed length, and those that push a value.
_OPERANDS = {
    b"\x80": "<B", b"q": "<B", b"r": "<I", b"h": "<B", b"j": "<I", b"K": "<B", b"M": "<H", b"J": "<i", b"G": ">d",
}  # fmt: skip
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
_MARK = object()


class UnreadableError(Exception):
    """A pickle does what no table of tensors needs."""


class _Global(NamedTuple):
    """What the pickle would import."""

    name: str


class _Call(NamedTuple):
    name: str
    operands: tuple[Any, ...]


def tensors(pickle: bytes) -> dict[str, schema.Payload | None]:
    """The tensors of a checkpoint by name, that of a single one ""; None for one of unknown sizes.

    Raises UnreadableError for a pickle that is no table of tensors.
    """
    try:
        found = _built(pickle)
        table = found if isinstance(found, dict) else {"": found}
        if not all(isinstance(name, str) for name in table):
            raise UnreadableError
        return {name: _payload(value) for name, value in table.items()}
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise UnreadableError from error


def _payload(value: object) -> schema.Payload | None:
    """A tensor as the table of a newer file would have it."""
    is_trained = None
    if isinstance(value, _Call) and value.name == "torch._utils _rebuild_parameter":
        value, is_trained, _ = value.operands
    if (
        not isinstance(value, _Call)
        or value.name not in _REBUILT
        or len(value.operands) != _REBUILT[value.name]
    ):
        return None
    storage, offset, sizes, strides, requires_grad = value.operands[:5]
    _, kind, key, _, _ = storage.operands
    dtype = _STORAGES.get(kind.name.removeprefix("torch ").removesuffix("Storage"), "")
    if value.name.endswith("v3"):
        dtype = value.operands[6].name.removeprefix("torch ")
    counts = [schema.SymInt(as_int=number) for number in (*sizes, *strides, offset)]
    if dtype not in _NUMBERS or len(sizes) != len(strides) or not all(type(x.as_int) is int for x in counts):
        return None
    rank = len(sizes)
    is_trained = requires_grad if is_trained is None else is_trained
    meta = schema.TensorMeta(_NUMBERS[dtype], counts[:rank], is_trained, counts[rank:-1], counts[-1])
    return schema.Payload(f"data/{key}", tensor_meta=meta)


_REBUILT = {"torch._utils _rebuild_tensor_v2": 6, "torch._utils _rebuild_tensor_v3": 7}


def _built(pickle: bytes) -> object:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for code, operand in _instructions(pickle):
        if code in (b"q", b"r"):
            memo[operand] = stack[-1]
        elif code in (b"h", b"j"):
            stack.append(memo[operand])
        elif code in (b"K", b"M", b"J", b"G", b"X", b"\x8a"):
            stack.append(operand)
        elif code == b"c":
            stack.append(_Global(operand))
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == b"}":
            stack.append({})
        elif code == b"(":
            stack.append(_MARK)
        elif code in b"t\x85\x86\x87":
            count = b"\x85\x86\x87".find(code) + 1 or _since_mark(stack)
            operands = tuple(stack[len(stack) - count :])
            del stack[len(stack) - count :]
            stack[-1:] = [operands] if code == b"t" else [*stack[-1:], operands]
        elif code in b"su":
            count, is_marked = (2, False) if code == b"s" else (_since_mark(stack), True)
            items = stack[len(stack) - count :]
            del stack[len(stack) - count - is_marked :]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif code == b"Q":
            stack[-1] = _Call("storage", stack[-1])
        else:  # a call (R), or attributes of a dictionary (b), which say nothing of its entries
            operand = stack.pop()
            if code == b"R" and isinstance(operand, tuple):
                name = stack[-1].name
                is_dict = (name, operand) == ("collections OrderedDict", ())
                stack[-1] = {} if is_dict else _Call(name, operand)
            elif code != b"b" or not isinstance(stack[-1], dict):
                raise UnreadableError
    (result,) = stack
    return result


def _since_mark(stack: list[Any]) -> int:
    count = 0
    while stack[-1 - count] is not _MARK:
        count += 1
    return count


def _instructions(pickle: bytes) -> Iterator[tuple[bytes, Any]]:
    """Each instruction with its operand, up to the last."""
    place = 0
    while (code := pickle[place : place + 1]) != b".":
        place += len(code)
        if not code:
            raise UnreadableError
        operand: Any = None
        if code in _OPERANDS:
            (operand,) = struct.unpack_from(_OPERANDS[code], pickle, place)
            place += struct.calcsize(_OPERANDS[code])
        elif code == b"c":
            end = pickle.index(b"\n", pickle.index(b"\n", place) + 1)
            operand, place = pickle[place:end].decode().replace("\n", " "), end + 1
        elif code in (b"X", b"\x8a"):
            form = "<I" if code == b"X" else "<B"
            begin = place + struct.calcsize(form)
            data = pickle[begin : begin + struct.unpack_from(form, pickle, place)[0]]
            operand = data.decode() if code == b"X" else int.from_bytes(data, "little", signed=True)
            place = begin + len(data)
        if code != b"\x80":
            yield code, operand
