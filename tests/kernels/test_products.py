"""Kernels of matrix products at the borders between matrices, vectors and batches, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import complete, device
from graphflops.kernels.kernel import Kernel, Product, Rows
from graphflops.time.predict import predict
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made, pointwise


def product(m: int, n: int, k: int, batch: int = 1, layout: Any = "nn", bias: int = 0) -> Kernel:
    """In float32; of a bias so many elements are read, and added to each row."""
    moved = 4 * (batch * k * (m + n) + bias), 4 * batch * m * n
    return Kernel(
        "matmul", "float32", 2 * batch * m * n * k, m * bias, *moved, Product(m, n, k, batch, layout)
    )


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        # a vector stands first: the rows of the other are columns of the result
        ("mv", (t(4, 8), t(8)), product(1, 4, 8)),
        ("matmul", (t(4, 8), t(8)), product(1, 4, 8)),
        ("matmul", (t(2, 3, 4, 8), t(8)), product(1, 2 * 3 * 4, 8)),
        ("matmul", (t(8), t(8, 6)), product(1, 6, 8)),
        ("dot", (t(8), t(8)), product(1, 1, 8)),
        ("addmv", (t(4), t(4, 8), t(8)), product(1, 4, 8, bias=4)),
        ("linear", (t(8), t(6, 8), t(6)), product(1, 6, 8, 1, "tn", bias=6)),
        ("linear", (t(3, 8), t(1, 8)), product(3, 1, 8, 1, "tn")),
        ("matmul", (t(8), t(2, 8, 6)), product(1, 6, 8, 2)),  # a row for each matrix
        ("matmul", (t(8), t(3, 2, 8, 6)), product(1, 6, 8, 3 * 2)),
        ("matmul", (t(2, 3, 8), t(8, 6)), product(2 * 3, 6, 8)),  # all rows share the matrix
        ("bmm", (t(2, 3, 8), t(2, 8, 6)), product(3, 6, 8, 2)),
        ("bmm", (t(1, 3, 8), t(1, 8, 6)), product(3, 6, 8)),
        ("mm", (t(1, 1), t(1, 1)), product(1, 1, 1)),
    ],
)
def test_sizes_of_products(op: str, given: tuple[Any, ...], expected: Kernel) -> None:
    assert forward(f"aten.{op}.default", *given) == [expected]


def test_what_is_added_to_a_batch_is_copied_into_the_result_first() -> None:
    start, kernel = forward("aten.baddbmm.default", t(2, 4, 6), t(2, 4, 8), t(2, 8, 6))
    assert made([start]) == [pointwise(0, 4 * 2 * 4 * 6, 4 * 2 * 4 * 6)]
    assert kernel == product(4, 6, 8, 2)
    start, kernel = forward("aten.addmm.default", t(1, 6), t(4, 8), t(8, 6))
    assert made([start]) == [pointwise(0, 4 * 6, 4 * 4 * 6)]  # one row for all
    assert kernel == product(4, 6, 8)


def test_products_of_integers_write_wider_ones() -> None:
    (kernel,) = forward("aten._int_mm.default", t(32, 64, dtype="int8"), t(64, 16, dtype="int8"))
    sizes, read, written = Product(32, 16, 64, 1, "nn", "int8_across"), 32 * 64 + 64 * 16, 4 * 32 * 16
    assert kernel == Kernel("matmul", "int8", 2 * 32 * 16 * 64, 0, read, written, sizes)


def test_a_product_without_elements_is_no_kernel() -> None:
    for given in ((t(0, 8), t(8, 6)), (t(4, 8), t(8, 0)), (t(0, 0), t(0, 0))):
        assert forward("aten.mm.default", *given) == []
        assert backward("aten.mm.default", *(g(*x.shape) for x in given)) == []


@pytest.mark.parametrize(
    ("steps", "copies", "layout"),
    [
        (None, 0, "tn"),
        ((48, 16, 1), 0, "tn"),  # rows with gaps, evenly apart
        ((24, 1, 3), 1, "tn"),  # turned: copied into order
        ((8, 8, 1), 1, "tn"),  # the same image twice
    ],
)
def test_linear_layers_of_images(steps: Any, copies: int, layout: Any) -> None:
    kernels = forward("aten.linear.default", t(2, 3, 8), t(6, 8), strides={0: steps} if steps else {})
    assert [kernel.family for kernel in kernels] == ["copy"] * copies + ["matmul"]
    assert kernels[-1].sizes == Product(2 * 3, 6, 8, layout=layout)


@pytest.mark.parametrize(("steps", "layout"), [((1, 3), "tt"), ((8, 1), "tn"), ((16, 1), "tn")])
def test_matrices_are_read_as_they_lie(steps: tuple[int, int], layout: Any) -> None:
    """Only of more than two axes the bias is added apart."""
    (kernel,) = forward("aten.linear.default", t(3, 8), t(6, 8), t(6), strides={0: steps})
    assert kernel == product(3, 6, 8, 1, layout, bias=6)


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("mv", (g(4, 8), t(8)), [pointwise(4 * 8, 4 * (4 + 8), 4 * 4 * 8)]),
        ("matmul", (g(2, 3, 8), t(8)), [pointwise(48, 4 * (6 + 8), 4 * 48)]),
        ("dot", (g(8), t(8)), [pointwise(8, 4 * (8 + 1), 4 * 8)]),
        ("mv", (t(4, 8), g(8)), made([product(1, 8, 4, 1, "tn")])),
        ("matmul", (g(8), t(8, 6)), made([product(1, 8, 6, 1, "tn")])),
        ("matmul", (t(8), g(8, 6)), made([product(6, 8, 1, 1, "nt")])),
    ],
)
def test_gradients_of_products_with_vectors(op: str, given: tuple[Any, ...], expected: Any) -> None:
    assert made(backward(f"aten.{op}.default", *given)) == expected


@pytest.mark.parametrize(
    ("op", "given", "sums"),
    [
        ("linear", (t(4, 8), t(6, 8), g(6)), [Rows(6, 4, False)]),
        ("linear", (g(4, 8), t(6, 8), t(6)), []),
        ("addmm", (g(6), t(4, 8), t(8, 6)), [Rows(6, 4, False)]),
        ("addmm", (g(4, 6), t(4, 8), t(8, 6)), []),  # its gradient is the result's
        ("addmm", (g(1, 6), t(4, 8), t(8, 6)), [Rows(6, 4, False)]),
        ("addmm", (t(6), g(4, 8), t(8, 6)), []),
        ("baddbmm", (g(2, 4, 6), t(2, 4, 8), t(2, 8, 6)), []),
        ("baddbmm", (g(1, 4, 6), t(2, 4, 8), t(2, 8, 6)), [Rows(6, 8, False)]),
    ],
)
def test_gradients_of_what_is_added(op: str, given: tuple[Any, ...], sums: list[Rows]) -> None:
    kernels = backward(f"aten.{op}.default", *given)
    assert [kernel.sizes for kernel in kernels if kernel.family == "reduction"] == sums


def test_an_einsum_has_a_product_for_each_gradient() -> None:
    """Without names of its operands: those of both factors in order, or the first of them."""
    both = backward("aten.einsum.default", "ij,jk->ik", (g(4, 8), g(8, 6)))
    assert [kernel.sizes for kernel in both] == [
        Product(4, 8, 6, layout="tn"),
        Product(6, 8, 4, layout="nt"),
    ]
    assert len(backward("aten.einsum.default", "ij,jk->ik", (g(4, 8), t(8, 6)))) == 1


HALF = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("rows", "groups", "each", "read"),
    [
        # Groups that have a row where each of so many falls to any alike: groups less those that all rows miss.
        (1, 4, 1, 4 * (1 - 3 / 4)),
        (2, 2, 1, 2 * (1 - 1 / 4)),
        (2, 4, 1, 4 * (1 - 9 / 16)),
        (4, 2, 2, 2 * (1 - 1 / 16)),
        (5, 2, 3, 2 * (1 - 1 / 32)),
        (3, 1, 3, 1),
    ],
)
def test_groups_read_the_matrices_of_those_that_have_rows(
    rows: int, groups: int, each: int, read: float
) -> None:
    a, b = t(rows, 8, **HALF), t(groups, 8, 6, **HALF)
    offsets = t(groups, dtype="int32")
    finding, kernel = forward("aten._grouped_mm.default", a, b, offsets)
    assert finding == Kernel("elementwise", "int64")
    flops, written = 2 * rows * 8 * 6, 2 * rows * 6
    assert (kernel.family, kernel.dtype, kernel.flops, kernel.vector_flops) == (
        "matmul",
        "bfloat16",
        flops,
        0,
    )
    assert kernel.sizes == Product(each, 6, 8, groups, "nn", "grouped")
    assert kernel.written_bytes == written
    assert kernel.read_bytes == pytest.approx(2 * (rows * 8 + read * 8 * 6) + 4 * groups, abs=1)


def test_groups_of_as_many_rows_are_a_batch() -> None:
    """Three matrices times three, and a matrix whose columns are cut into three groups."""
    _, kernel = forward("aten._grouped_mm.default", t(3, 4, 8, **HALF), t(3, 8, 6, **HALF))
    assert (kernel.sizes.algorithm, kernel.read_bytes) == ("", 2 * 3 * (4 * 8 + 8 * 6))
    given = t(4, 12, **HALF), t(12, 6, **HALF), t(3, dtype="int32")
    _, kernel = forward("aten._grouped_mm.default", *given)
    assert (kernel.sizes.algorithm, kernel.written_bytes) == ("", 2 * 3 * 4 * 6)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("aten._grouped_mm.default", "float32"),
        ("aten._grouped_mm.default", "float16"),
        ("transformers.grouped_mm_fallback", "bfloat16"),
    ],
)
def test_groups_without_a_kernel_of_their_own_are_products_in_turn(op: str, dtype: str) -> None:
    """Of 400 rows nearly all of 4 groups have some: a product of 100 rows each, after zeros for the result."""
    x, weight = t(400, 8, dtype=dtype), t(4, 8, 6, dtype=dtype)
    zeros, *products = forward(op, x, weight, t(4, dtype="int32"))
    width = 2 if dtype != "float32" else 4
    assert (zeros.read_bytes, zeros.written_bytes) == (0, width * 400 * 6)
    assert [(each.sizes, each.flops) for each in products] == [
        (Product(100, 6, 8, 1, "nn"), 2 * 100 * 6 * 8)
    ] * 4


def test_groups_without_a_kernel_have_times() -> None:
    x, weight = t(1024, 2048), t(4, 2048, 512)
    kernels = forward("aten._grouped_mm.default", x, weight, t(4, dtype="int32"))
    assert all(predict(kernel, complete(device("h200"))).seconds > 0 for kernel in kernels)
