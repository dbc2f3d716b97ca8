"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

s = symbol("s")
VALUES = 426  # singular values of 8 x 4: 4*8*4^2 - 4/3 * 4^3 = 426.67


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "dtype", "flops", "functions"),
    [
        ("aten.linalg_vector_norm.default", (t(4, 8),), (), "float32", 2 * 32, 1),
        ("aten.linalg_vector_norm.default", (t(4, 8), 1, (1,)), (4,), "float32", 2 * 32, 0),
        ("aten.linalg_vector_norm.default", (t(4, 8), math.inf, (1,), True), (4, 1), "float32", 2 * 32, 0),
        ("aten.linalg_vector_norm.default", (t(4, 8), 3, (1,)), (4,), "float32", 2 * 32, 32 + 4),
        ("aten.linalg_vector_norm.default", (t(4, dtype="complex64"),), (), "float32", 2 * 2 * 4, 1),
        ("aten.linalg_vector_norm.default", (t(4, dtype="complex64"), 1), (), "float32", 2 * 2 * 4, 4),
        ("aten.linalg_vector_norm.default", (t("s", 8), 2, (1,)), (s,), "float32", 16 * s, s),
        ("aten.linalg__powsum.default", (t(4, 8), 3), (), "float32", 2 * 32, 32),
        ("aten.norm.Scalar", (t(4, 8),), (), "float32", 2 * 32, 1),
        ("aten.norm.ScalarOpt_dim", (t(4, 8), None, (0,)), (8,), "float32", 2 * 32, 8),
        ("aten.frobenius_norm.dim", (t(4, 8), (0, 1)), (), "float32", 2 * 32, 1),
        ("aten.linalg_norm.default", (t(3, 4, 8),), (), "float32", 2 * 96, 1),
        ("aten.linalg_norm.default", (t(4, 8), 1), (), "float32", 2 * 32, 0),
        ("aten.linalg_norm.ord_str", (t(4, 8), "fro"), (), "float32", 2 * 32, 1),
        ("aten.linalg_norm.default", (t(4, 8), 1, (1,)), (4,), "float32", 2 * 32, 0),
        ("aten.linalg_norm.default", (t(4, 8), 2), (), "float32", VALUES, 0),
        ("aten.linalg_matrix_norm.str_ord", (t(3, 4, 8), "nuc"), (3,), "float32", 3 * VALUES, 0),
        (
            "aten.linalg_matrix_norm.default",
            (t(3, 4, 8), -2, (0, 2), True),
            (1, 4, 1),
            "float32",
            4 * (288 - 36),
            0,
        ),
        ("aten.nuclear_norm.default", (t(4, 8, dtype="complex64"),), (), "float32", 4 * VALUES, 0),
    ],
)
def test_norms(op: str, arguments: Any, shape: Any, dtype: str, flops: Any, functions: Any) -> None:
    priced = price(op, *arguments)
    (out,) = priced.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name) == (shape, dtype)
    assert (priced.vector_flops, priced.transcendentals) == (flops, functions)


def test_a_matrix_needs_two_axes() -> None:
    with pytest.raises(ShapeError, match="names an axis twice"):
        price("aten.linalg_matrix_norm.default", t(4, 8), 2, (1, -1))
    with pytest.raises(ShapeError, match="needs two axes, not 3"):
        price("aten.linalg_norm.ord_str", t(3, 4, 8), "nuc")


@pytest.mark.parametrize(("order", "flops", "functions"), [(2, 32, 0), (1, 3 * 32, 0), (3, 3 * 32, 32)])
def test_gradients(order: float, flops: int, functions: int) -> None:
    gradient = find_backward("aten.linalg_vector_norm.default")
    assert gradient is not None
    given = {"x": t(4, 8), "ord": order}
    forward = price("aten.linalg_vector_norm.default", *given.values())
    priced = gradient(ForwardCall(forward, given, frozenset({"x"})))
    assert shapes(priced) == [(4, 8)]
    assert (priced.vector_flops, priced.transcendentals) == (flops, functions)


def test_the_nuclear_norm_along_two_axes_is_that_of_each_matrix() -> None:
    one, batch = (
        price("aten.nuclear_norm.dim", t(6, 4), (0, 1)),
        price("aten.nuclear_norm.dim", t(3, 6, 4), (1, 2)),
    )
    assert one.cost == price("aten.nuclear_norm.default", t(6, 4)).cost
    assert (shapes(batch), batch.vector_flops) == ([(3,)], 3 * one.vector_flops)
