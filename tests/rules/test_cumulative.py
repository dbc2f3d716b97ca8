"""Cumulative sums, differences, trapezoids and slopes."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

s = symbol("s")


@pytest.mark.parametrize(
    ("op", "arguments", "named", "shape", "dtype", "flops"),
    [
        ("aten.cumsum.default", (t(4, 8), 1), {}, (4, 8), "float32", 32),
        ("aten.cumsum.default", (t(4, dtype="bool"), 0), {}, (4,), "int64", 4),
        ("aten.cumprod.default", (t(4, dtype="complex64"), 0), {}, (4,), "complex64", 6 * 4),
        ("aten.logcumsumexp.default", (t(4, 8), 1), {}, (4, 8), "float32", 3 * 32),
        ("aten.cumprod_backward.default", (t(4, 8), t(4, 8), 1, t(4, 8)), {}, (4, 8), "float32", 3 * 32),
        ("aten.cummaxmin_backward.default", (t(4), t(4), t(4, dtype="int64"), 0), {}, (4,), "float32", 4),
        ("aten.diff.default", (t(4, 8),), {}, (4, 7), "float32", 4 * 7),
        ("aten.diff.default", (t(4, 8), 3), {}, (4, 5), "float32", 4 * (7 + 6 + 5)),
        ("aten.diff.default", (t(4, 8), 9), {}, (4, 0), "float32", 4 * (7 + 6 + 5 + 4 + 3 + 2 + 1)),
        ("aten.diff.default", (t(4, 8), 1, 0, t(2, 8, dtype="float64")), {}, (5, 8), "float64", 8 * 5),
        ("aten.trapezoid.dx", (t(4, 8),), {"dim": 0}, (8,), "float32", 32 + 3 * 8),
        ("aten.trapz.dx", (t(4, dtype="int64"),), {}, (), "float32", 4 + 3),
        ("aten.trapezoid.x", (t(4, 8), t(8)), {}, (4,), "float32", 3 * 4 * 7 + 8 + 4),
        ("aten.trapezoid.x", (t(4, 8), t(1, 8, dtype="float64")), {}, (4,), "float64", 3 * 4 * 7 + 8 + 4),
        ("aten.cumulative_trapezoid.dx", (t(4, 8),), {}, (4, 7), "float32", 3 * 4 * 7),
        ("aten.cumulative_trapezoid.x", (t(4, 8), t(8)), {}, (4, 7), "float32", 4 * 4 * 7 + 8),
    ],
)
def test_along_an_axis(op: str, arguments: Any, named: Any, shape: Any, dtype: str, flops: Any) -> None:
    priced = price(op, *arguments, **named)
    (out,) = priced.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name, priced.vector_flops) == (shape, dtype, flops)


def test_symbolic_differences() -> None:
    priced = price("aten.diff.default", t("s", 8), 1, -1)
    assert shapes(priced) == [(s, 7)]
    assert priced.vector_flops == 7 * s


def test_cummax_gives_values_and_indices() -> None:
    priced = price("aten.cummax.default", t(4, 8), 0)
    assert shapes(priced) == [(4, 8), (4, 8)]
    assert priced.cost.written_bytes == 4 * 32 + 8 * 32


def test_the_helper_writes_into_what_it_is_given() -> None:
    priced = price("aten._cummax_helper.default", t(4, 8), t(4, 8), t(4, 8, dtype="int64"), 0)
    assert priced.out == ()
    assert priced.cost.written_bytes == 4 * 32 + 8 * 32


def test_contents_of_offsets_are_followed() -> None:
    (out,) = price("aten.cumsum.default", t(3, dtype="int32", value=(2, s, 3)), 0).out
    assert isinstance(out, TensorType)
    assert out.value == (2, s + 2, s + 5)


@pytest.mark.parametrize(
    ("named", "results", "flops"),
    [
        ({}, 2, 2 * 2 * 32),
        ({"dim": 0}, 1, 2 * 32),
        ({"spacing": 2.0, "dim": (0, 1)}, 2, 2 * 2 * 32),
        ({"spacing": (t(4), t(8)), "dim": (0, 1)}, 2, 5 * 2 * 32),
    ],
)
def test_slopes(named: dict[str, Any], results: int, flops: int) -> None:
    priced = price("aten.gradient.scalarint", t(4, 8), **named)
    assert shapes(priced) == [(4, 8)] * results
    assert priced.vector_flops == flops


@pytest.mark.parametrize(("op", "flops"), [("aten.cumprod.default", 3 * 32), ("aten.cummax.default", 32)])
def test_gradients(op: str, flops: int) -> None:
    given = {"x": t(4, 8), "dim": 1}
    gradient = find_backward(op)
    assert gradient is not None
    priced = gradient(ForwardCall(price(op, *given.values()), given, frozenset({"x"})))
    assert shapes(priced) == [(4, 8)]
    assert priced.vector_flops == flops
