"""Rows and elements that are read from anywhere in a table, and gradients that are added to them, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Rows, Strided
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, backward, copied, forward, made, pointwise

LONG: dict[str, Any] = {"dtype": "int64"}
HALF: dict[str, Any] = {"dtype": "bfloat16"}


def gather(variant: str, read: int, written: int, sizes: Any) -> Made:
    return ("gather", variant, 0, read, written, sizes)


def each(count: int, indices: int, variant: str = "elements") -> Made:
    """Of so many elements each is read by itself."""
    return gather(variant, 4 * count + 8 * indices, 4 * count, Strided(count, 2, 3))


@pytest.mark.parametrize(
    ("op", "given", "strides", "expected"),
    [
        (
            "index.Tensor",  # rows beside columns: both are repeated in order first
            (t(10, 8, 6), (t(4, 1, **LONG), t(3, **LONG))),
            {},
            [copied(8 * 4, 8 * 12, Strided(12, 2, 2)), copied(8 * 3, 8 * 12, Strided(12, 2, 2)), each(72, 7)],
        ),
        ("index.Tensor", (t(10, 8, 6), (t(4, **LONG), t(4, **LONG))), {}, [each(24, 8)]),
        (
            "index.Tensor",  # rows of 32 bytes behind another axis
            (t(10, 7, 8), (None, t(5, **LONG))),
            {},
            [each(400, 5)],
        ),
        ("index.Tensor", (t(10, 7, 6), (None, t(5, **LONG))), {}, [each(300, 5)]),  # 24 bytes
        ("index.Tensor", (t(10, 8), (t(4, **LONG),)), {"1_0": (2,)}, [each(32, 4)]),  # every second index
        ("index.Tensor", (t(10, 8), (t(4, **LONG),)), {0: (1, 10)}, [each(32, 4)]),  # rows that lie scattered
        (
            "embedding.default",
            (t(100, 8), t(17, **LONG)),
            {},
            [gather("embedding", 4 * 136 + 8 * 17, 4 * 136, Rows(17, 8))],
        ),
        (
            "embedding.default",  # up to 16 rows one after the other
            (t(100, 8), t(4, 4, **LONG)),
            {},
            [gather("few", 4 * 128 + 8 * 16, 4 * 128, Rows(8, 16))],
        ),
        ("embedding.default", (t(100, 6), t(17, **LONG)), {}, [each(102, 17, "gather")]),
        (
            "embedding.default",  # columns of indices are no list
            (t(100, 8), t(6, 4, **LONG)),
            {1: (1, 6)},
            [
                copied(8 * 24, 8 * 24, Strided(24, 2, 2)),
                gather("embedding", 4 * 192 + 8 * 24, 4 * 192, Rows(24, 8)),
            ],
        ),
        ("embedding.default", (t(100, 8), t(20, **LONG)), {1: (2,)}, [each(160, 20, "gather")]),
        (
            "index_select.default",
            (t(100, 8), 0, t(17, **LONG)),
            {},
            [gather("index", 4 * 136 + 8 * 17, 4 * 136, Rows(17, 8))],
        ),
        (
            "index_select.default",  # of columns: a row for each row
            (t(10, 8), 1, t(20, **LONG)),
            {},
            [gather("index_select", 4 * 200 + 8 * 20, 4 * 200, Rows(10, 20))],
        ),
        (
            "gather.default",
            (t(10, 8), 1, t(10, 3, **LONG)),
            {},
            [gather("gather", 4 * 30 + 8 * 30, 4 * 30, Rows(10, 3))],
        ),
    ],
)
def test_what_is_read_from_anywhere(op: str, given: Any, strides: Any, expected: list[Made]) -> None:
    assert made(forward(f"aten.{op}", *given, strides=strides)) == expected


@pytest.mark.parametrize(("entries", "bags", "each_bag"), [(6, 3, 2), (7, 3, 3), (2, 3, 1)])
def test_a_thread_adds_up_a_bag(entries: int, bags: int, each_bag: int) -> None:
    given = t(10, 8), t(entries, **LONG), t(bags, **LONG)
    (kernel,) = forward("aten.embedding_bag.default", *given, outputs=4)
    assert (kernel.sizes, kernel.variant) == (Rows(bags, each_bag), "embedding_bag")


def sorts(kind: str, count: int) -> Made:
    return ("sort", f"{kind}_indices", 0, 8 * count, 8 * count, Rows(1, count))


def zeros(nbytes: int) -> Made:
    return pointwise(0, 0, nbytes)


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        (
            "embedding.default",  # few rows take all that is added to them at once
            (g(10, 64), t(4000, **LONG)),
            [
                zeros(4 * 640),
                sorts("embedding", 4000),
                ("scatter", "at_once", 0, 4 * 4000 * 64, 0, Rows(4000, 400)),
            ],
        ),
        (
            "embedding.default",  # in float32: half precision is converted
            (g(10, 64, **HALF), t(4000, **LONG)),
            [
                zeros(2 * 640),
                sorts("embedding", 4000),
                ("scatter", "at_once", 0, 2 * 4000 * 64, 0, Rows(4000, 400)),
                copied(2 * 640, 2 * 640),
            ],
        ),
        (
            # A block for each ten of 50,000 gradients and for each of 1100 rows makes 6,100 sums of 64 numbers in float32,
            # written and read; one for each row adds them up. A block of two warps takes as long as 3.3 warps.
            "embedding.default",
            (g(1100, 64), t(50_000, **LONG)),
            [
                zeros(4 * 1100 * 64),
                sorts("embedding", 50_000),
                (
                    "scatter",
                    "parts",
                    0,
                    4 * 50_000 * 64 + 2 * 4 * 64 * 6100,
                    0,
                    Rows(23_760, 1),  # 7,200 times 3.3
                ),
            ],
        ),
        (
            "index.Tensor",  # a warp for each entry; 40 of each row in the mean, three deviations of 6.3 more of one
            (g(100, 64), (t(4000, **LONG),)),
            [
                zeros(4 * 6400),
                sorts("index", 4000),
                ("scatter", "repeated", 0, 4 * 4000 * 64, 4 * 6400, Rows(4000, 58)),
            ],
        ),
        (
            "index.Tensor",  # of narrow rows three at a time
            (g(100, 32), (t(4000, **LONG),)),
            [
                zeros(4 * 3200),
                sorts("index", 4000),
                ("scatter", "repeated", 0, 4 * 4000 * 32, 4 * 3200, Rows(4000, 19)),
            ],
        ),
        (
            "index.Tensor",  # 1200 places of 80, each of 6 numbers: 15 of each, and 11.6 more of one
            (g(10, 8, 6), (t(40, 1, **LONG), t(30, **LONG))),
            [
                zeros(4 * 480),
                sorts("few", 1200),
                ("scatter", "repeated", 0, 4 * 1200 * 6, 4 * 480, Rows(1200, 26 // 3)),
            ],
        ),
    ],
)
def test_gradients_that_are_added_in_the_order_of_their_indices(
    op: str, given: Any, expected: list[Made]
) -> None:
    assert made(backward(f"aten.{op}", *given)) == expected


@pytest.mark.parametrize(("count", "kind"), [(2304, "few"), (2305, "index")])
def test_one_block_sorts_2304_indices(count: int, kind: str) -> None:
    _, order, _ = backward("aten.index.Tensor", g(100, 64), (t(count, **LONG),))
    assert order.variant == f"{kind}_indices"


@pytest.mark.parametrize(
    ("columns", "rows", "each_block"), [(1024, 17, 1024), (1025 * 4, 5 * 17, 820), (2048, 34, 1024)]
)
def test_a_block_copies_4096_bytes_of_a_row(columns: int, rows: int, each_block: int) -> None:
    (kernel,) = forward("aten.index_select.default", t(100, columns), 0, t(17, **LONG))
    assert kernel.sizes == Rows(rows, each_block)
