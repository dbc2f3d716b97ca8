"""Sorting and searching: comparisons by n*log2(n) and by halving."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import evaluate, symbol
from graphflops.errors import ShapeError
from graphflops.rules.lapack import halvings, n_log_n
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

n = symbol("n")


@pytest.mark.parametrize(
    ("size", "comparisons"),
    [(0, 0), (1, 0), (2, 2), (1024, 1024 * 10), (1000, 9965)],  # 1000 * 9.96578...
)
def test_n_log_n(size: int, comparisons: int) -> None:
    assert n_log_n(size) == comparisons
    assert size == 0 or evaluate(n_log_n(n), {"n": size}) == comparisons


@pytest.mark.parametrize(("size", "steps"), [(1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11)])
def test_halvings(size: int, steps: int) -> None:
    assert halvings(size) == steps
    assert evaluate(halvings(n), {"n": size}) == steps


@pytest.mark.parametrize(
    ("op", "arguments", "named", "shape", "dtypes", "flops"),
    [
        ("aten.sort.default", (t(4, 8),), {}, (4, 8), ("float32", "int64"), 4 * 8 * 3),
        ("aten.sort.default", (t(4, 8), 0), {}, (4, 8), ("float32", "int64"), 8 * 4 * 2),
        ("aten.sort.stable", (t(4, 8),), {"stable": True}, (4, 8), ("float32", "int64"), 4 * 8 * 3),
        ("aten.sort.default", (t(),), {}, (), ("float32", "int64"), 0),
        ("aten.argsort.default", (t(4, 8),), {}, (4, 8), ("int64",), 4 * 8 * 3),
        ("aten.argsort.stable", (t(4, 8),), {"stable": True, "dim": 0}, (4, 8), ("int64",), 8 * 4 * 2),
        ("aten.msort.default", (t(8, 4),), {}, (8, 4), ("float32",), 4 * 8 * 3),
        ("aten.topk.default", (t(4, 100), 8), {}, (4, 8), ("float32", "int64"), 4 * (100 + 8 * 3)),
        ("aten.topk.default", (t(4, 100), 8, -1, True, False), {}, (4, 8), ("float32", "int64"), 4 * 100),
        ("aten.searchsorted.Tensor", (t(16), t(3, 5)), {}, (3, 5), ("int64",), 15 * 5),
        ("aten.searchsorted.Scalar", (t(16), 2.5), {"out_int32": True}, (), ("int32",), 5),
        ("aten.bucketize.Tensor", (t(3, 5), t(16)), {}, (3, 5), ("int64",), 15 * 5),
        ("aten.isin.Tensor_Tensor", (t(10), t(16)), {}, (10,), ("bool",), 16 * 4 + 10 * 5),
        ("aten.isin.Tensor_Scalar", (t(10), 3.0), {}, (10,), ("bool",), 10),
    ],
)
def test_sorts_and_searches(op: str, arguments: Any, named: Any, shape: Any, dtypes: Any, flops: int) -> None:
    priced = price(op, *arguments, **named)
    assert shapes(priced) == [shape] * len(dtypes)
    assert tuple(out.dtype.name for out in priced.out if isinstance(out, TensorType)) == dtypes
    assert priced.vector_flops == flops


def test_a_symbolic_lane() -> None:
    priced = price("aten.sort.default", t(4, "n"))
    assert evaluate(priced.vector_flops, {"n": 8}) == 4 * 8 * 3


def test_a_symbolic_batch() -> None:
    assert price("aten.topk.default", t("n", 100), 8).vector_flops == n * (100 + 8 * 3)


def test_more_than_there_is() -> None:
    with pytest.raises(ShapeError, match="9 largest of 8"):
        price("aten.topk.default", t(8), 9)


def test_gradients_are_scattered() -> None:
    gradient = find_backward("aten.topk.default")
    assert gradient is not None
    given = {"x": t(4, 100), "k": 8}
    priced = gradient(ForwardCall(price("aten.topk.default", *given.values()), given, frozenset({"x"})))
    assert shapes(priced) == [(4, 100)]
    assert priced.vector_flops == 0
    assert priced.cost.read_bytes == 32 * 4 + 32 * 8
