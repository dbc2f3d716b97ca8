"""Element types from headers of weights: files are written here, byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from graphflops.capturing.configurations import computed_in, stored
from graphflops.errors import FileError


def safetensors(path: Path, entries: object, length: int | None = None) -> str:
    data = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(data) if length is None else length) + data)
    return str(path)


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def gguf(path: Path, tensors: list[tuple[tuple[int, ...], int]]) -> str:
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3)
    data += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    data += text("counts") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3)
    data += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    for shape, kind in tensors:
        data += text("blk.0.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
    path.write_bytes(data)
    return str(path)


def test_safetensors(tmp_path: Path) -> None:
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [64, 76]},
    }
    found = stored(safetensors(tmp_path / "a.safetensors", entries))
    assert found == {"BF16": 64, "F32": 12}
    assert computed_in(found) == "bfloat16"


def test_gguf(tmp_path: Path) -> None:
    found = stored(gguf(tmp_path / "a.gguf", [((256, 2), 12), ((10,), 0), ((64,), 1)]))
    assert found == {
        "Q4_K": 2 * 144,
        "F32": 40,
        "F16": 128,
    }  # a block of Q4_K: 256 numbers in 144 bytes
    assert computed_in(found) == "float16"  # of what is no block
    assert computed_in(stored(gguf(tmp_path / "b.gguf", [((64,), 1)]))) == "float16"


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ({"I32": 900, "F16": 60}, "float16"),  # GPTQ: packed integers, scales, embeddings
        ({"F8_E4M3": 900, "BF16": 60, "F32": 70}, "bfloat16"),  # the scales are float32
        ({"I8": 900, "F16": 60, "BF16": 70}, "bfloat16"),
        ({"Q4_K": 900, "F32": 10}, "bfloat16"),
        ({"F32": 900, "F16": 60}, "float32"),
        ({}, "float32"),
    ],
)
def test_packed_weights_are_unpacked_to_the_type_beside_them(sizes: dict[str, int], dtype: str) -> None:
    assert computed_in(sizes) == dtype


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"PK\x03\x04" * 10,
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a":{}}',
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63),
        b"GGUF"
        + struct.pack("<IQQQBI", 3, 0, 1, 1, 97, 9)
        + struct.pack("<IQ", 9, 1) * 10_000,  # lists in lists
        b"GGUF" + struct.pack("<IQQQBI", 3, 0, 1, 1, 97, 13),  # a value of a type that there is not
        b"GGUF" + struct.pack("<IQQQBIIQ", 3, 0, 1, 1, 97, 9, 13, 1),
    ],
)
def test_other_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"a\.gguf"):
        stored(str(path))


@pytest.mark.parametrize(
    ("shape", "why"), [([-4, 8], "impossible sizes"), ([4, 8], "a tensor of 128 bytes in 127")]
)
def test_sizes_that_a_tensor_has_not(tmp_path: Path, shape: list[int], why: str) -> None:
    entries = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [1, 4 * 4 * 8]}}
    with pytest.raises(FileError, match=why):
        stored(safetensors(tmp_path / "a.safetensors", entries))
