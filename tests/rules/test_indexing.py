"""Reads and writes by index, tables of rows, searches: shapes, the traffic of what is touched, gradients."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import TensorType
from tests.rules.test_movement import gradient
from tests.support import price, shapes, t

s, v = symbol("s"), symbol("v")
nonzero, unique = symbol("nonzero?"), symbol("unique?")


def ids(*shape: Any) -> TensorType:
    return t(*shape, dtype="int64")


def mask(*shape: Any) -> TensorType:
    return t(*shape, dtype="bool")


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((ids(3),), (3, 5, 6)),
        ((ids(),), (5, 6)),
        ((None, ids(3)), (4, 3, 6)),
        ((ids(3), ids(3)), (3, 6)),
        ((ids(3), None, ids(3)), (3, 5)),  # indices apart: their axis goes in front
        ((None, ids(2, 1), ids(3)), (4, 2, 3)),
        ((ids(s, 1), ids(3)), (s, 3, 6)),
        ((mask(4),), (nonzero, 5, 6)),
        ((mask(4, 5),), (nonzero, 6)),
        ((mask(4, 5), ids(1)), (nonzero,)),
        ((None, t(5, dtype="uint8")), (4, nonzero, 6)),
        ((None, None), (4, 5, 6)),
    ],
)
def test_index_shapes(indices: tuple[TensorType | None, ...], expected: Any) -> None:
    x = t(4, 5, 6)
    assert shapes(price("aten.index.Tensor", x, indices)) == [expected]
    assert shapes(price("aten._unsafe_index.Tensor", x, indices)) == [expected]
    assert shapes(price("aten.index_put.default", x, indices, t())) == [x.shape]


def test_an_embedding_reads_the_rows_it_returns() -> None:
    cost = price("aten.embedding.default", t(1000, 64), ids(16)).cost
    rows = 16 * 64 * 4
    assert (rows, 16 * 8) == (4_096, 128)
    assert (cost.matrix_flops, cost.vector_flops) == (0, 0)
    assert (cost.read_bytes, cost.written_bytes) == (rows + 128, rows)
    assert cost.read_bytes + cost.written_bytes == 8_320
    assert price("aten.index.Tensor", t(1000, 64), (ids(16),)).cost == cost
    assert price("aten.index_select.default", t(1000, 64), 0, ids(16)).cost == cost


TOUCHED: list[tuple[Any, ...]] = [
    ("embedding", (t("v", 64), ids(2, "s")), (2, s, 64), 0, 512 * s + 16 * s, 512 * s),
    ("gather", (t(4, 9), 1, ids(4, 2)), (4, 2), 0, 32 + 64, 32),
    ("take", (t(4, 9), ids(3)), (3,), 0, 12 + 24, 12),
    ("take_along_dim", (t(3, 1), ids(3, 5), 1), (3, 5), 0, 60 + 120, 60),
    ("take_along_dim", (t(3, 4), ids(5)), (5,), 0, 20 + 40, 20),
    ("index_select", (t(), 0, ids(1)), (), 0, 4 + 8, 4),
    ("_unsafe_masked_index", (t(9), mask(4), (ids(4),), 0), (4,), 4, 16 + 4 + 32, 16),
    # copies of the whole around what is written
    ("index_put", (t(9, 4), (ids(2),), t(2, 4)), (9, 4), 0, 144 + 32 + 16, 144),
    ("index_put", (t(9, 4), (ids(2),), t(2, 4), True), (9, 4), 8, 144 + 32 + 16, 144),
    ("_unsafe_index_put", (t(9, 4), (ids(2),), t()), (9, 4), 0, 144 + 4 + 16, 144),
    ("index_add", (t(9, 4), 0, ids(2), t(2, 4)), (9, 4), 8, 144 + 16 + 32, 144),
    ("index_copy", (t(9, 4), 0, ids(2), t(2, 4)), (9, 4), 0, 144 + 16 + 32, 144),
    ("index_fill.int_Scalar", (t(9, 4), 0, ids(2), 0.5), (9, 4), 0, 144 + 16, 144),
    ("index_reduce", (t(9, 4), 0, ids(2), t(2, 4), "mean"), (9, 4), 2 * 8 + 36, 144 + 16 + 32, 144),
    ("scatter.src", (t(9), 0, ids(2), t(5)), (9,), 0, 36 + 16 + 8, 36),
    ("scatter.value", (t(9), 0, ids(2), 1), (9,), 0, 36 + 16, 36),
    ("scatter_add", (t(9), 0, ids(2), t(2)), (9,), 2, 36 + 16 + 8, 36),
    ("scatter_reduce.two", (t(9), 0, ids(2), t(2), "amax"), (9,), 2, 36 + 16 + 8, 36),
    ("put", (t(3, 3), ids(2), t(2), True), (3, 3), 2, 36 + 16 + 8, 36),
    # in place nothing but the part is touched, and read only where it is combined with
    ("index_put_.default", (t(9, 4), (ids(2),), t(2, 4)), (9, 4), 0, 32 + 16, 32),
    ("index_put_.default", (t(9, 4), (ids(2),), t(2, 4), True), (9, 4), 8, 32 + 16 + 32, 32),
    ("index_put_.default", (t("v", 4), (mask(v),), t()), (v, 4), 0, 4 + v, 16 * nonzero),
    ("index_put_.default", (t(8, 4), (mask(8),), t("v", 4)), (8, 4), 0, 16 * v + 8, 16 * v),
    ("index_add_.default", (t(9, 4), 0, ids(2), t(2, 4)), (9, 4), 8, 16 + 32 + 32, 32),
    ("index_copy_.default", (t(9, 4), 0, ids(2), t(2, 4)), (9, 4), 0, 16 + 32, 32),
    ("scatter_.value", (t(9), 0, ids(2), 1), (9,), 0, 16, 8),
    ("scatter_add_.default", (t(9), 0, ids(2), t(2)), (9,), 2, 16 + 8 + 8, 8),
    # gradients
    (
        "embedding_dense_backward",
        (t(16, 64), ids(16), 1000, -1, False),
        (1000, 64),
        1024,
        4096 + 128,
        256_000,
    ),
    (
        "embedding_sparse_backward",
        (t(16, 64), ids(16), 1000, -1, False),
        (1000, 64),
        0,
        4096 + 128,
        4096 + 128,
    ),
    ("index_select_backward", (t(3, 4), (9, 4), 0, ids(3)), (9, 4), 12, 48 + 24, 144),
    ("gather_backward", (t(2, 2), t(4, 4), 0, ids(2, 2), False), (4, 4), 4, 16 + 32, 64),
    # searches
    ("nonzero", (t(4, 5),), (nonzero, 2), 20, 80, 16 * nonzero),
    ("argwhere", (t("s"),), (nonzero, 1), s, 4 * s, 8 * nonzero),
    ("nonzero_static", (t(4, 5),), (7, 2), 20, 80, 7 * 2 * 8),
    ("one_hot", (ids(3), 10), (3, 10), 0, 24, 240),
    ("one_hot", (ids(3),), (3, symbol("one_hot?")), 0, 24, 24 * symbol("one_hot?")),
]


@pytest.mark.parametrize(("op", "operands", "shape", "flops", "read", "written"), TOUCHED)
def test_what_is_touched(
    op: str, operands: tuple[Any, ...], shape: Any, flops: Any, read: Any, written: Any
) -> None:
    keywords = {"size": 7} if op == "nonzero_static" else {}
    estimate = price(f"aten.{op}", *operands, **keywords)
    assert shapes(estimate) == [shape]
    cost = estimate.cost
    assert (cost.vector_flops, cost.read_bytes, cost.written_bytes) == (flops, read, written)


def test_index_add_multiplies_only_where_alpha_is_not_one() -> None:
    operands = (t(9, 4), 0, ids(2), t(2, 4))
    assert price("aten.index_add.default", *operands, alpha=1).vector_flops == 8
    assert price("aten.index_add.default", *operands, alpha=2).vector_flops == 16


@pytest.mark.parametrize(
    ("op", "mode", "flops"),
    [
        ("_embedding_bag", 0, 7 * 16),
        ("_embedding_bag", 1, 7 * 16 + 3 * 16),
        ("_embedding_bag_forward_only", 2, 7 * 16),
    ],
)
def test_bags_add_up_the_rows_they_read(op: str, mode: int, flops: int) -> None:
    estimate = price(f"aten.{op}.default", t(1000, 16), ids(7), ids(3), False, mode)
    assert shapes(estimate)[0] == (3, 16)
    assert estimate.cost.vector_flops == flops
    assert estimate.cost.read_bytes == 7 * 16 * 4 + 7 * 8 + 3 * 8


def test_weighted_bags_multiply_too_and_the_last_offset_ends_the_last_bag() -> None:
    estimate = price("aten._embedding_bag.default", t(9, 16), ids(7), ids(4), False, 0, False, t(7), True)
    assert shapes(estimate)[0] == (3, 16)
    assert estimate.cost.vector_flops == 2 * 7 * 16


def test_a_table_is_renormed_where_it_is_looked_up() -> None:
    cost = price("aten.embedding_renorm_.default", t(1000, 16), ids(4), 1.0, 2.0).cost
    assert (cost.vector_flops, cost.transcendentals) == (3 * 4 * 16, 4)
    assert (cost.read_bytes, cost.written_bytes) == (4 * 16 * 4 + 4 * 8, 4 * 16 * 4)


@pytest.mark.parametrize(
    ("op", "operands", "expected", "flops"),
    [
        ("_unique2", (t(4, 4),), [(unique,), (0,), (0,)], 16 * 4 + 16),
        ("_unique2", (t(4, 4), True, True, True), [(unique,), (4, 4), (unique,)], 16 * 4 + 16),
        ("_unique2", (t(0),), [(0,), (0,), (0,)], 0),
        ("unique_dim", (t(8, 3), 0), [(unique, 3), (8,), (unique,)], 8 * 3 * 3 + 24),
        ("unique_consecutive", (t(8, 3),), [(unique,), (0,), (0,)], 24),
        ("unique_consecutive", (t(8, 3), False, False, -1), [(8, unique), (3,), (unique,)], 24),
        ("nonzero_numpy", (t(4, 5),), [(nonzero,), (nonzero,)], 20),
    ],
)
def test_searches(op: str, operands: tuple[Any, ...], expected: Any, flops: int) -> None:
    estimate = price(f"aten.{op}.default", *operands)
    assert shapes(estimate) == expected
    assert estimate.cost.vector_flops == flops


@pytest.mark.parametrize(
    ("op", "operands", "message"),
    [
        ("index.Tensor", (t(4), (ids(2), ids(2))), r"2 indices are too many for \[4\]"),
        ("index.Tensor", (t(4), (mask(5),)), r"mask of shape \[5\] does not fit axes of \[4\]"),
        ("index_put.default", (t(4), (ids(2),), t(3)), r"\[3\] does not expand to \[2\]"),
        ("gather.default", (t(4, 4), 0, ids(4)), r"\[4\] does not index \[4, 4\]"),
        ("index_select.default", (t(4), 0, ids(2, 2)), r"a vector, not \[2, 2\]"),
    ],
)
def test_what_is_provably_wrong_is_refused(op: str, operands: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        price(f"aten.{op}", *operands)


@pytest.mark.parametrize(
    ("op", "wants", "arguments", "flops", "read", "written"),
    [
        # summed into zeros of the table's size
        (
            "aten.embedding.default",
            "weight",
            {"weight": t(1000, 64), "indices": ids(16)},
            1024,
            4224,
            256_000,
        ),
        ("aten.index.Tensor", "x", {"x": t(9, 4), "indices": (ids(2),)}, 8, 32 + 16, 144),
        ("aten.gather.default", "x", {"x": t(9), "dim": 0, "index": ids(2)}, 2, 8 + 16, 36),
        # read from where they went; a sum lets the old values' gradient pass
        (
            "aten.scatter_add.default",
            "x src",
            {"x": t(9), "dim": 0, "index": ids(2), "src": t(2)},
            0,
            8 + 16,
            8,
        ),
        (
            "aten.scatter.src",
            "x src",
            {"x": t(9), "dim": 0, "index": ids(2), "src": t(2)},
            0,
            36 + 8 + 16,
            36 + 8,
        ),
        ("aten.index_put.default", "values", {"x": t(9), "indices": (ids(2),), "values": t(2)}, 0, 8 + 16, 8),
    ],
)
def test_gradients(
    op: str, wants: str, arguments: dict[str, Any], flops: int, read: int, written: int
) -> None:
    cost = gradient(op, wants, **arguments).cost
    assert (cost.vector_flops, cost.read_bytes, cost.written_bytes) == (flops, read, written)


def test_the_gradient_of_bags_goes_to_the_table_and_to_the_weights() -> None:
    arguments = {"weight": t(1000, 16), "indices": ids(7), "offsets": ids(3), "per_sample_weights": t(7)}
    both = gradient("aten._embedding_bag.default", "weight per_sample_weights", **arguments)
    assert shapes(both) == [(1000, 16), (7,)]
    assert both.cost.vector_flops == 2 * 7 * 16 + 2 * 7 * 16
