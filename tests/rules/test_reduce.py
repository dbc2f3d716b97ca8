"""Reductions: result types, work per element and per result, gradients, known contents."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

s = symbol("s")


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "dtype", "flops"),
    [
        ("aten.sum.default", (t(4, 8),), (), "float32", 32),
        ("aten.sum.dim_IntList", (t(4, 8), (1,)), (4,), "float32", 32),
        ("aten.sum.dim_IntList", (t(4, 8), (-1,), True), (4, 1), "float32", 32),
        ("aten.sum.dim_IntList", (t(4, 8), ()), (), "float32", 32),
        ("aten.sum.dim_IntList", (t("s", 8), (0,)), (8,), "float32", 8 * s),
        ("aten.sum.default", (t(4, dtype="bool"),), (), "int64", 4),
        ("aten.sum.default", (t(4, dtype="int8"),), (), "int64", 4),
        ("aten.sum.default", (t(4, dtype="complex64"),), (), "complex64", 2 * 4),
        ("aten.nansum.default", (t(4, 8),), (), "float32", 3 * 32),
        ("aten.mean.dim", (t(4, 8), (0,)), (8,), "float32", 32 + 8),
        ("aten.nanmean.default", (t(4, 8), (0,)), (8,), "float32", 4 * 32 + 8),
        ("aten.prod.default", (t(4, dtype="uint8"),), (), "int64", 4),
        ("aten.prod.dim_int", (t(4, 8), 0), (8,), "float32", 32),
        ("aten.prod.default", (t(4, dtype="complex64"),), (), "complex64", 6 * 4),
        ("aten.amax.default", (t(4, 8), (), True), (1, 1), "float32", 32),
        ("aten.amin.default", (t(4, 8), (1,)), (4,), "float32", 32),
        ("aten.argmax.default", (t(4, 8),), (), "int64", 32),
        ("aten.argmin.default", (t(4, 8), 1, True), (4, 1), "int64", 32),
        ("aten.any.default", (t(4, 8),), (), "bool", 32),
        ("aten.all.dim", (t(4, 8, dtype="uint8"), 0), (8,), "uint8", 32),
        ("aten.any.dims", (t(4, 8), (0, 1)), (), "bool", 32),
        ("aten.any.dims", (t(4, 8), ()), (4, 8), "bool", 32),
        ("aten.count_nonzero.default", (t(4, 8),), (), "int64", 2 * 32),
        ("aten.count_nonzero.dim_IntList", (t(4, 8), (0,)), (8,), "int64", 2 * 32),
        ("aten.hash_tensor.default", (t(4, 8),), (), "uint64", 32),
        ("aten.var.default", (t(4, 8),), (), "float32", 4 * 32 + 2),
        ("aten.var.dim", (t(4, 8), (1,), True, True), (4, 1), "float32", 4 * 32 + 2 * 4),
        ("aten.var.correction", (t(4, 8), (1,)), (4,), "float32", 4 * 32 + 2 * 4),
        ("aten.var.correction", (t(4, dtype="complex64"),), (), "float32", 2 * (4 * 4 + 2)),
        ("aten.std.default", (t(4, 8),), (), "float32", 4 * 32 + 2),
        ("aten.logsumexp.default", (t(4, 8), (1,)), (4,), "float32", 3 * 32 + 4),
        ("aten.logsumexp.default", (t(4, 8, dtype="int32"), (1,)), (4,), "float32", 3 * 32 + 4),
        ("aten.sum_to_size.default", (t(4, 8), (1, 8)), (1, 8), "float32", 32),
        ("aten.sum_to_size.default", (t(4, 8), (8,)), (8,), "float32", 32),
        ("aten.sum_to_size.default", (t(dtype="bool"), ()), (), "int64", 1),
        ("aten.sum_to_size.default", (t("s", 8), (s, 8)), (s, 8), "float32", 0),
        ("aten._is_all_true.default", (t(4, dtype="bool"),), (), "bool", 4),
        ("prims.sum.default", (t(4, 8), (0,)), (8,), "float32", 32),
        ("prims.var.default", (t(4, 8), (0,)), (8,), "float32", 4 * 32 + 2 * 8),
        (
            "aten.value_selecting_reduction_backward.default",
            (t(4), 1, t(4), (4, 8), False),
            (4, 8),
            "float32",
            0,
        ),
    ],
)
def test_reductions(op: str, arguments: tuple[Any, ...], shape: Any, dtype: str, flops: Any) -> None:
    priced = price(op, *arguments)
    (out,) = priced.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name, priced.vector_flops) == (shape, dtype, flops)
    assert priced.matrix_flops == 0


@pytest.mark.parametrize(
    ("op", "arguments", "dtypes", "flops"),
    [
        ("aten.max.dim", (t(4, 8), 1), ("float32", "int64"), 32),
        ("aten.min.dim", (t(4, 8), -1), ("float32", "int64"), 32),
        ("aten._aminmax.dim", (t(4, 8), 1), ("float32", "float32"), 2 * 32),
        ("aten.var_mean.correction", (t(4, 8), (1,)), ("float32", "float32"), 4 * 32 + 2 * 4),
        (
            "aten.std_mean.dim",
            (t(4, 8, dtype="complex64"), (1,)),
            ("float32", "complex64"),
            2 * (4 * 32 + 2 * 4),
        ),
    ],
)
def test_reductions_with_two_results(op: str, arguments: Any, dtypes: tuple[str, ...], flops: int) -> None:
    priced = price(op, *arguments)
    assert shapes(priced) == [(4,), (4,)]
    assert tuple(out.dtype.name for out in priced.out if isinstance(out, TensorType)) == dtypes
    assert priced.vector_flops == flops


def test_functions_are_counted_apart() -> None:
    assert price("aten.logsumexp.default", t(4, 8), (1,)).transcendentals == 32 + 4
    assert price("aten.std.correction", t(4, 8), (1,)).transcendentals == 4
    assert price("aten.var.correction", t(4, 8), (1,)).transcendentals == 0


def test_traffic_is_the_operand_and_the_result() -> None:
    cost = price("aten.max.dim", t(4, 8), 1).cost
    assert cost.read_bytes == 4 * 32
    assert cost.written_bytes == 4 * 4 + 8 * 4


def test_an_expanded_operand_is_read_at_its_stored_size() -> None:
    assert price("aten.sum.default", t(100, 8, stored=8)).cost.read_bytes == 4 * 8


def test_sum_to_the_same_size_is_a_view() -> None:
    kept = price("aten.sum_to_size.default", t(4, 8), (4, 8))
    assert kept.alias
    assert kept.cost.written_bytes == 0


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("aten.sum.default", s + 5),
        ("aten.prod.default", 6 * s),
        ("aten.amax.default", None),
    ],
)
def test_contents_of_shapes_are_followed(op: str, value: Any) -> None:
    (out,) = price(op, t(3, dtype="int64", value=(2, s, 3))).out
    assert isinstance(out, TensorType)
    if value is not None:
        assert out.value == value
    else:
        assert str(out.value) == "max(3, s)"


def test_an_axis_that_does_not_exist() -> None:
    with pytest.raises(ShapeError, match="axis 2 does not exist"):
        price("aten.sum.dim_IntList", t(4, 8), (2,))


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "functions", "read"),
    [
        ("aten.mean.dim", {"dim": (1,)}, 32, 0, 16),
        ("aten.amax.default", {"dim": (1,)}, 3 * 32, 0, 16 + 128 + 16),
        ("aten.max.dim", {"dim": 1}, 0, 0, 16 + 32),
        ("aten.prod.dim_int", {"dim": 1}, 2 * 32, 0, 16 + 128 + 16),
        ("aten.var.correction", {"dim": (1,)}, 3 * 32, 0, 16 + 128),
        ("aten.logsumexp.default", {"dim": (1,)}, 2 * 32, 32, 16 + 128 + 16),
    ],
)
def test_gradients(op: str, arguments: dict[str, Any], flops: int, functions: int, read: int) -> None:
    given = {"x": t(4, 8), **arguments}
    gradient = find_backward(op)
    assert gradient is not None
    priced = gradient(ForwardCall(price(op, *given.values()), given, frozenset({"x"})))
    assert shapes(priced) == [(4, 8)]
    assert (priced.vector_flops, priced.transcendentals) == (flops, functions)
    assert (priced.cost.read_bytes, priced.cost.written_bytes) == (read, 128)


def test_the_gradient_of_a_sum_is_a_view() -> None:
    gradient = find_backward("aten.sum.dim_IntList")
    assert gradient is not None
    given = {"x": t(4, 8), "dim": (1,)}
    priced = gradient(ForwardCall(price("aten.sum.dim_IntList", *given.values()), given, frozenset({"x"})))
    (out,) = priced.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.stored, priced.cost.written_bytes) == ((4, 8), 4, 0)
