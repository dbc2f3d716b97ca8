"""Primitives that decompositions leave behind."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from tests.support import price, shapes, t

INTEGERS = t(8, dtype="int64")


@pytest.mark.parametrize(
    ("op", "operands", "out", "flops", "evaluations"),
    [
        ("prims.add", (t(8), t(8)), t(8), 8, 0),
        ("prims.div", (INTEGERS, INTEGERS), INTEGERS, 8, 0),
        ("prims.mul", (t(8, dtype="complex64"), t(8, dtype="complex64")), t(8, dtype="complex64"), 48, 0),
        ("prims.lt", (t(8), t(8)), t(8, dtype="bool"), 8, 0),
        ("prims.exp", (t(8),), t(8), 0, 8),
        ("prims.abs", (t(8, dtype="complex64"),), t(8), 24, 8),
        ("prims.where", (t(8, dtype="bool"), t(8), t(8)), t(8), 8, 0),
        ("prims.convert_element_type", (t(8), t(dtype="bfloat16").dtype), t(8, dtype="bfloat16"), 8, 0),
        ("prims.convert_element_type", (t(8), t().dtype), t(8), 0, 0),
        ("prims.device_put", (t(8), "cuda"), t(8), 0, 0),
        ("prims.fill", (t(8), 0.0), t(8), 0, 0),
    ],
)
def test_elementwise_primitives(op, operands, out, flops, evaluations) -> None:
    estimate = price(op, *operands)
    (result,) = estimate.out
    assert (result.shape, result.dtype) == (out.shape, out.dtype)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)
    assert estimate.cost.written_bytes == out.nbytes


@pytest.mark.parametrize(
    ("op", "arguments", "shape"),
    [
        ("prims.broadcast_in_dim", (t(3), (2, 3, 4), (1,)), (2, 3, 4)),
        ("prims.transpose", (t(2, 3, 4), (2, 0, 1)), (4, 2, 3)),
        ("prims.squeeze", (t(1, 3, 1), (0, 2)), (3,)),
        ("prims.split_dim", (t("s", 6), 1, 2), (symbol("s"), 2, 3)),
        ("prims.collapse_view", (t(2, "s", 4), 0, 1), (2 * symbol("s"), 4)),
        ("prims.view_of", (t(2, 3),), (2, 3)),
        ("prims.real", (t(2, dtype="complex64"),), (2,)),
    ],
)
def test_views_are_free(op, arguments, shape) -> None:
    estimate = price(op, *arguments)
    assert shapes(estimate) == [shape]
    assert not estimate.cost
    assert estimate.alias


def test_broadcast_stores_only_its_operand() -> None:
    (out,) = price("prims.broadcast_in_dim", t(3), (2, 3, 4), (1,)).out
    assert (out.numel, out.nbytes) == (24, 4 * 3)


def test_fresh_tensors_are_written_not_read() -> None:
    for estimate in (
        price("prims.full", (2, 4), 1.0, dtype=t().dtype, requires_grad=False),
        price("prims.full_like", t(2, 4), 1.0, dtype=t().dtype, requires_grad=False),
        price("prims.iota", 8, start=0, step=1, dtype=t().dtype, requires_grad=False),
    ):
        assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (0, 32)
    assert not price("prims.empty", (2, 4), dtype=t().dtype, requires_grad=False).cost


def test_tokens_and_items() -> None:
    assert shapes(price("prims._make_token")) == [(0,)]
    assert price("prims.item", t(dtype="int64", value=7)).out == (7,)
    assert price("prims.item", t(dtype="int64")).out == (symbol("item?"),)
