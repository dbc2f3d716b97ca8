"""Quantising in blocks, and what a quantised weight consists of."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.tensor import BFLOAT16, FLOAT32, INT8
from tests.support import price, shapes, t

s = symbol("s")
scale = t(4, 2)
zero = t(4, 2, dtype="int8")


@pytest.mark.parametrize(
    ("op", "operands", "dtype", "flops"),
    [
        ("quantize_affine.default", (t(4, 64), (1, 32), scale, zero, INT8, -128, 127), "int8", 6 * 4 * 64),
        ("quantize_affine.default", (t(4, 64), (1, 32), scale, None, INT8), "int8", 5 * 4 * 64),
        (
            "dequantize_affine.default",
            (t(4, 64, dtype="int8"), (1, 32), scale, zero, INT8),
            "float32",
            3 * 4 * 64,
        ),
        (
            "dequantize_affine.default",
            (t(4, 64, dtype="int8"), (1, 32), scale, None, INT8, -8, 7, BFLOAT16),
            "bfloat16",
            2 * 4 * 64,
        ),
        ("quantize_affine_float8_non_decomposed.default", (t(4, 64), scale), "float8_e4m3fn", 4 * 4 * 64),
        (
            "dequantize_affine_float8_non_decomposed.default",
            (t(4, 64, dtype="float8_e4m3fn"), scale),
            "float32",
            2 * 4 * 64,
        ),
    ],
)
def test_conversions(op: str, operands: tuple[Any, ...], dtype: str, flops: int) -> None:
    priced = price(f"torchao.{op}", *operands)
    assert shapes(priced) == [(4, 64)]
    assert priced.out[0].dtype.name == dtype
    assert priced.vector_flops == flops
    assert operands[0] in priced.reads


@pytest.mark.parametrize(
    ("x", "block", "keepdim", "expected"),
    [
        (t(4, 64), (4, 64), False, ()),
        (t(4, 64), (1, 64), False, (4,)),
        (t(4, 64), (1, 64), True, (4, 1)),
        (t(4, 64), (1, 32), False, (4, 2)),
        (t("s", 64), (1, 32), False, (s, 2)),
        (t("s", 1), (1, 1), False, (s, 1)),
    ],
)
def test_one_scale_and_one_zero_point_for_each_block(
    x: Any, block: Any, keepdim: bool, expected: Any
) -> None:
    priced = price("torchao.choose_qparams_affine.default", x, "ASYMMETRIC", block, INT8, keepdim=keepdim)
    assert shapes(priced) == [expected, expected]
    assert [value.dtype.name for value in priced.out] == ["float32", "int32"]
    assert priced.vector_flops == 2 * x.numel


def test_blocks_must_have_the_axes_of_the_tensor() -> None:
    with pytest.raises(ShapeError, match="blocks of 1 axes do not fit a tensor of 2"):
        price("torchao.choose_qparams_affine.default", t(4, 64), "SYMMETRIC", (64,), INT8)


def test_scales_of_float8_keep_every_axis() -> None:
    assert shapes(price("torchao.choose_scale_float8.default", t(4, 64), (1, 64))) == [(4, 1)]


def test_a_part_of_a_weight_has_the_type_that_the_file_records() -> None:
    nodes = (
        Node("data", "export.access_subclass_inner_tensor.default", (Ref("w"), "qdata"), outputs=("data",)),
        Node("y", "aten.to.dtype", (Ref("data"), FLOAT32), outputs=("y",)),
    )
    types = {"w": t(4, 8), "data": t(4, 8, dtype="int8"), "y": t(4, 8)}
    report = analyze(Graph(nodes, types, (Input("w", "parameter", "w"),), (Output(Ref("y")),)))
    assert [row.state for row in report.rows] == ["free", "counted"]
    assert report.rows[1].cost.read_bytes == 4 * 8
    assert not report.diagnostics
