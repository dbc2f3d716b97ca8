"""Finds the element types of stored weights in the header of a `.safetensors` or `.gguf` file. No weight is read."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO

import msgspec

from graphflops.base import files
from graphflops.errors import FileError, shown

_LONGEST = 2**27  # bytes of a header; that of the largest published checkpoint has 15 MB
_SAFETENSORS_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "U16": 16, "U32": 32, "U64": 64,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip
# ggml's types by number: name, elements of a block, bytes of a block (ggml.c, type_traits, as of 2025-10).
_GGML = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
_GGUF_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)  # bytes of a value by type; 8 is text, 9 an array
_TEXT, _ARRAY = 8, 9
_COMPUTED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def computed_in(stored: Mapping[str, int]) -> str:
    """The type of parameters of a model that is loaded from a file: the type with the most bytes in it.

    Integers, float8 and blocks are unpacked to the 16-bit type of the tensors beside them (scales, embeddings), as
    transformers does; if there are none, to bfloat16.
    """
    most = max(stored, key=stored.__getitem__, default="F32")
    half = {name: size for name, size in stored.items() if name in ("F16", "BF16")}
    return _COMPUTED.get(most) or _COMPUTED[max(half, key=half.__getitem__, default="BF16")]


def stored(path: str) -> Mapping[str, int]:
    """Bytes of stored tensors by element type, under the format's name of the type, from a file's header.

    Raises FileError for a file that has neither format or contradicts itself.
    """
    place = shown(path)
    try:
        with files.opened(path) as file:
            head = file.read(8)
            return _gguf(file) if head[:4] == b"GGUF" else _safetensors(file, head)
    except OSError as error:
        raise FileError(f"{place}: {error.strerror}") from None
    except (
        msgspec.DecodeError,
        struct.error,
        ValueError,
        LookupError,
        OverflowError,
        RecursionError,
    ) as error:
        advice = "give a .safetensors or .gguf file"
        raise FileError(
            f"{place}: no header of weights that can be read ({shown(str(error), 100)}): {advice}"
        ) from None


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _safetensors(file: IO[bytes], head: bytes) -> Counter[str]:
    (length,) = struct.unpack("<Q", head)
    if length > _LONGEST:
        raise ValueError(f"it claims {length:,} bytes")
    entries = msgspec.json.decode(_exactly(file, length), type=dict[str, msgspec.Raw])
    entries.pop("__metadata__", None)
    found: Counter[str] = Counter()
    for raw in entries.values():
        tensor = msgspec.json.decode(raw, type=_Tensor)
        size = _elements(tensor.shape) * _SAFETENSORS_BITS[tensor.dtype] // 8
        begin, end = tensor.data_offsets
        if end - begin != size:
            raise ValueError(f"a tensor of {size:,} bytes in {end - begin:,}")
        found[tensor.dtype] += size
    return found


def _gguf(file: IO[bytes]) -> Counter[str]:
    tensors, keys = _numbers(file, "QQ")
    for _ in range(keys):
        _text(file)
        _skip(file, *_numbers(file, "I"))
    found: Counter[str] = Counter()
    for _ in range(tensors):
        _text(file)
        (rank,) = _numbers(file, "I")
        if rank > 8:
            raise ValueError(f"a tensor of {rank} axes")
        shape = _numbers(file, "Q" * rank)
        kind, _ = _numbers(file, "IQ")
        name, block, size = _GGML[kind]
        found[name] += -(-_elements(shape) // block) * size
        _refuse_long(file)
    return found


def _skip(file: IO[bytes], kind: int) -> None:
    if kind == _TEXT:
        _text(file)
    elif kind == _ARRAY:
        inner, count = _numbers(file, "IQ")
        if inner in (_TEXT, _ARRAY):
            for _ in range(count):
                _text(file) if inner == _TEXT else _skip(file, inner)
        else:
            file.seek(_GGUF_SIZES[inner] * count, 1)
    else:
        file.seek(_GGUF_SIZES[kind], 1)
    _refuse_long(file)


def _refuse_long(file: IO[bytes]) -> None:
    if file.tell() > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST:,} bytes")


def _text(file: IO[bytes]) -> None:
    (length,) = _numbers(file, "Q")
    _exactly(file, length if length <= _LONGEST else -1)


def _numbers(file: IO[bytes], form: str) -> tuple[int, ...]:
    form = f"<{form}"
    return struct.unpack(form, _exactly(file, struct.calcsize(form)))


def _exactly(file: IO[bytes], length: int) -> bytes:
    data = file.read(length) if length >= 0 else b""
    if len(data) != length:
        raise ValueError("it ends early")
    return data


def _elements(shape: Iterator[int] | list[int] | tuple[int, ...]) -> int:
    sizes = list(shape)
    if any(size < 0 or size > 2**48 for size in sizes):
        raise ValueError("a tensor of impossible sizes")
    return math.prod(sizes)
