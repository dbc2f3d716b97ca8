"""A stored mask that a file lies about is not followed: nothing is read out of bounds, and the analysis goes on."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, parser

from graphflops.analysis import analyze
from graphflops.attention.constants import array_of
from graphflops.errors import FileError
from graphflops.exporters.live import from_exported_program
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Graph, Origin, Stored
from graphflops.tensor import BFLOAT16, BOOL, COMPLEX64, FLOAT8, FLOAT32, INT4, INT64, STRING, DType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 40
SEEN = torch.rand(ROWS, ROWS, generator=torch.Generator().manual_seed(2)) > 0.5


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", SEEN)

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=self.mask)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return torch.export.export(Model(), (torch.randn(1, 1, ROWS, 4),))


@pytest.fixture(scope="module")
def graph(program: torch.export.ExportedProgram) -> Graph:
    return from_exported_program(program)


def is_dense(model: object) -> bool:
    (use,) = analyze(model).attentions
    return (use.mask, use.masked_flops) == ("tensor", 0)


WHOLE = memoryview(bytes(SEEN.numpy().tobytes()))
LIES: dict[str, Stored] = {
    "another shape": Stored(BOOL, (ROWS, ROWS - 1), (ROWS, 1), 0, WHOLE),
    "another rank": Stored(BOOL, (ROWS * ROWS,), (1,), 0, WHOLE),
    "another type": Stored(INT64, (ROWS, ROWS), (ROWS, 1), 0, WHOLE),
    "memory too short": Stored(BOOL, (ROWS, ROWS), (ROWS, 1), 0, WHOLE[:-1]),
    "no memory": Stored(BOOL, (ROWS, ROWS), (ROWS, 1), 0, memoryview(b"")),
    "strides too long": Stored(BOOL, (ROWS, ROWS), (ROWS + 1, 1), 0, WHOLE),
    "strides far too long": Stored(BOOL, (ROWS, ROWS), (2**62, 2**62), 0, WHOLE),
    "strides below zero": Stored(BOOL, (ROWS, ROWS), (-ROWS, 1), ROWS * ROWS - 1, WHOLE),
    "too few strides": Stored(BOOL, (ROWS, ROWS), (ROWS,), 0, WHOLE),
    "offset past the end": Stored(BOOL, (ROWS, ROWS), (ROWS, 1), 1, WHOLE),
    "offset below zero": Stored(BOOL, (ROWS, ROWS), (ROWS, 1), -1, WHOLE),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_about_memory(graph: Graph, name: str) -> None:
    assert is_dense(replace(graph, contents=lambda _: LIES[name]))


@pytest.mark.parametrize("error", [FileError("damaged"), OSError("gone"), ValueError("none")])
def test_what_cannot_be_read(graph: Graph, error: Exception) -> None:
    def fails(name: str) -> Stored | None:
        raise error

    assert is_dense(replace(graph, contents=fails))
    assert is_dense(replace(graph, contents=lambda _: None))
    assert is_dense(replace(graph, contents=None))


def test_arrays_of_memory() -> None:
    whole = memoryview(np.arange(24, dtype=np.float32).tobytes())
    turned = array_of(Stored(FLOAT32, (3, 4), (1, 6), 2, whole))
    assert turned.tolist() == [[2 + row + 6 * column for column in range(4)] for row in range(3)]
    repeated = array_of(Stored(FLOAT32, (1000, 2), (0, 1), 22, whole))
    assert repeated.shape == (1000, 2)
    assert repeated[999].tolist() == [22, 23]
    assert array_of(Stored(FLOAT32, (0, 2**40), (1, 1), 0, memoryview(b""))).size == 0
    assert array_of(Stored(BFLOAT16, (2,), (1,), 0, memoryview(b"\x80\x3f\x80\xff"))).tolist() == [
        1,
        float("-inf"),
    ]
    assert array_of(Stored(BOOL, (2,), (1,), 0, memoryview(b"\x00\x02"))).tolist() == [False, True]
    for shape in ((2**40, 2**40), (2**33,)):
        with pytest.raises(ValueError):
            array_of(Stored(FLOAT32, shape, (0,) * len(shape), 0, whole))


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with its members changed, or left out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return target


def meta(**changes: Any) -> Callable[[str, bytes], bytes]:
    """Another description of how the mask lies in memory."""

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("_weights_config.json"):
            return data
        config = json.loads(data)
        for payload in config["config"].values():
            payload["tensor_meta"].update(changes)
        return json.dumps(config).encode()

    return change


def member(change: Callable[[bytes], bytes | None]) -> Callable[[str, bytes], bytes | None]:
    """Another content of the member that holds the mask."""
    return lambda name, data: change(data) if "/data/weights/weight_" in name else data


CHANGES: dict[str, Callable[[str, bytes], bytes | None]] = {
    "huge": meta(sizes=[{"as_int": 2**40}, {"as_int": 2**40}]),
    "negative": meta(sizes=[{"as_int": -1}, {"as_int": ROWS}]),
    "strides": meta(strides=[{"as_int": 2**40}, {"as_int": 1}]),
    "offset": meta(storage_offset={"as_int": 2**40}),
    "cut short": member(lambda data: data[:-1]),
    "empty": member(lambda data: b""),
    "gone": member(lambda data: None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_archives_that_lie(program: torch.export.ExportedProgram, name: str, tmp_path: Path) -> None:
    torch.export.save(program, tmp_path / "honest.pt2")
    assert analyze(tmp_path / "honest.pt2").total().masked_flops == int((~SEEN).sum()) * 2 * (4 + 4)
    assert is_dense(rewritten(tmp_path / "honest.pt2", tmp_path / "lying.pt2", CHANGES[name]))


def test_a_mask_in_onnx_that_claims_to_be_huge() -> None:
    rows = 2**24
    nodes = parser.parse_graph(
        "g (float[1,1,16777216,4] q) => (y) { t = Transpose <perm = [0,1,3,2]> (q) \n s = MatMul(q, t) \n x = Add(s, m)"
        " \n p = Softmax(x) \n y = MatMul(p, q) }"
    )
    nodes.initializer.append(
        TensorProto(name="m", data_type=TensorProto.FLOAT, dims=[rows, rows], raw_data=b"\0" * 64)
    )
    model = helper.make_model(nodes, opset_imports=[helper.make_opsetid("", 21)])
    assert is_dense(Program(model).graph(Origin()))


@pytest.mark.parametrize("stored", ["", "<float[16,16] a0 = {{{}}}>".format(", ".join(["0", "-1e9"] * 128))])
def test_masks_made_by_many_calls(stored: str) -> None:
    chain = "\n".join(f"a{i + 1} = Neg(a{i})" for i in range(3000))
    ladder = "\n".join(f"b{i + 1} = Add(b{i}, b{i})" for i in range(40))
    given = "" if stored else ", float[16,16] a0"
    for body, mask in ((chain, "a3000"), (f"b0 = Neg(a0) \n {ladder}", "b40")):
        text = (
            f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,1,16,4] q{given}) => (y) {stored} {{ {body} \n'
            f" t = Transpose <perm = [0,1,3,2]> (q) \n s = MatMul(q, t) \n x = Add(s, {mask}) \n p = Softmax(x)"
            " \n y = MatMul(p, q) }"
        )
        (use,) = analyze(Program(parser.parse_model(text)).graph(Origin())).attentions
        # Of the ladder all is known; the chain is not followed to its end.
        assert use.mask == ("constant" if stored and mask == "b40" else "tensor")
        assert use.masked_flops == 0


@pytest.mark.parametrize("dtype", [COMPLEX64, FLOAT8[0], INT4, STRING])
def test_masks_of_other_types(dtype: DType) -> None:
    assert array_of(Stored(dtype, (4,), (1,), 0, memoryview(bytes(64)))) is None
