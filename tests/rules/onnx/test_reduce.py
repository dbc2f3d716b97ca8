"""Reductions by both spellings of their axes, running sums, the largest of many."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import Expr, symbol
from graphflops.errors import RuleError
from graphflops.tensor import INT64, TensorType
from tests.support import price, shapes, t

Shape = tuple[int, ...]
ALL = ["Sum", "Prod", "Max", "Min", "Mean", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


def axes_of(*places: int) -> TensorType:
    """Axes as an operand."""
    return t(len(places), dtype=INT64, value=places)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "axes, keepdims, out",
    [((1,), 1, (2, 1, 4)), ((-1, 0), 0, (3,)), ((0, 2), 1, (1, 3, 1)), (None, 0, ()), (None, 1, (1, 1, 1))],
)
def test_axes_by_attribute_and_by_operand(name: str, axes: Shape | None, keepdims: int, out: Shape) -> None:
    x = t(2, 3, 4)
    old = price(f"onnx.Reduce{name}.11", x, axes=axes, keepdims=keepdims)
    new = price(f"onnx.Reduce{name}.18", x, None if axes is None else axes_of(*axes), keepdims=keepdims)
    assert shapes(old) == shapes(new) == [out]
    assert (old.vector_flops, old.transcendentals) == (new.vector_flops, new.transcendentals)


def test_a_tensor_without_elements_holds_no_axes_whoever_gives_it() -> None:
    """By default over all axes then, as onnxruntime reduces."""
    assert shapes(price("onnx.ReduceSum.13", t(2, 3, 4), t(0, dtype=INT64), keepdims=0)) == [()]
    assert shapes(price("onnx.ReduceSum.13", t(2, 3, 4), t(0, dtype=INT64))) == [(1, 1, 1)]


@pytest.mark.parametrize(
    "name, vector, functions",
    [
        ("Sum", 24, 0),
        ("Mean", 24 + 8, 0),
        ("L1", 48, 0),
        ("L2", 48, 8),
        ("LogSum", 24, 8),
        ("LogSumExp", 72 + 8, 24 + 8),
    ],
)
def test_work(name: str, vector: int, functions: int) -> None:
    estimate = price(f"onnx.Reduce{name}.18", t(2, 3, 4), axes_of(1))
    assert (estimate.vector_flops, estimate.transcendentals) == (vector, functions)


@pytest.mark.parametrize(
    "name, vector, functions",
    [("Sum", 0, 0), ("Max", 0, 0), ("L1", 24, 0), ("SumSquare", 24, 0), ("LogSum", 0, 24)],
)
def test_over_no_axes_only_what_is_done_beside_remains(name: str, vector: int, functions: int) -> None:
    for axes in (None, t(0, dtype=INT64, value=())):
        estimate = price(f"onnx.Reduce{name}.18", t(2, 3, 4), axes, noop_with_empty_axes=1)
        assert shapes(estimate) == [(2, 3, 4)]
        assert (estimate.vector_flops, estimate.transcendentals) == (vector, functions)
        (out,) = price(f"onnx.Reduce{name}.18", t(2, 3, 4), axes, noop_with_empty_axes=2, keepdims=0).out
        assert out.shape == ()  # onnxruntime takes nothing but 1 as true


def test_axes_only_data_can_tell() -> None:
    (out,) = shapes(price("onnx.ReduceSum.13", t(2, 3, 4), t(1, dtype=INT64), keepdims=0))
    assert len(out) == 2
    assert all(isinstance(size, Expr) for size in out)
    assert len(shapes(price("onnx.ReduceSum.13", t(2, 3, 4), t("k", dtype=INT64)))[0]) == 3
    with pytest.raises(RuleError):
        price("onnx.ReduceSum.13", t(2, 3, 4), t("k", dtype=INT64), keepdims=0)


def test_symbolic_sizes() -> None:
    b, s = symbol("b"), symbol("s")
    estimate = price("onnx.ReduceMean.18", t("b", "s", 8), axes_of(-1))
    assert (shapes(estimate), estimate.vector_flops) == ([(b, s, 1)], 8 * b * s + b * s)


@pytest.mark.parametrize("op", ["onnx.ArgMax.13", "onnx.ArgMin.11"])
@pytest.mark.parametrize(
    "settings, out", [({}, (1, 3, 4)), ({"axis": -1}, (2, 3, 1)), ({"axis": 1, "keepdims": 0}, (2, 4))]
)
def test_where_the_extreme_is(op: str, settings: dict[str, Any], out: Shape) -> None:
    assert price(op, t(2, 3, 4), **settings).out == (t(*out, dtype=INT64),)


def test_running_sum_is_one_addition_per_element() -> None:
    estimate = price("onnx.CumSum.14", t("b", 8), t(dtype=INT64, value=-1), reverse=1)
    assert (shapes(estimate), estimate.vector_flops) == ([(symbol("b"), 8)], 8 * symbol("b"))


def test_the_largest_of_many() -> None:
    for estimate in (
        price("onnx.TopK.1", t(2, 64), k=8),
        price("onnx.TopK.11", t(2, 64), t(1, dtype=INT64, value=(8,))),
    ):
        assert estimate.out == (t(2, 8), t(2, 8, dtype=INT64))
        assert estimate.vector_flops == 2 * 64 + 2 * (8 * 3)
    unsorted = price("onnx.TopK.11", t(64, 2), t(1, dtype=INT64, value=(8,)), axis=0, sorted=0)
    assert (shapes(unsorted)[0], unsorted.vector_flops) == ((8, 2), 128)


def test_how_many_only_data_can_tell() -> None:
    (found, _) = shapes(price("onnx.TopK.11", t(2, 64), t(1, dtype=INT64)))
    assert found == (2, symbol("topk?"))
