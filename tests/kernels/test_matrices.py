"""Decompositions and solutions of matrices are one kernel of all matrices, by the way they are worked on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from graphflops.kernels.kernel import Kernel, Rows
from graphflops.kernels.matrices import _WAY_OF
from graphflops.rules.registry import find
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward
from tests.time.toy_device import seconds, with_rates


@pytest.mark.parametrize(
    ("op", "shapes", "way", "rows"),
    [
        ("aten.linalg_inv_ex.default", [(3, 2, 8, 8)], "inverse", Rows(6, 8)),
        ("aten._linalg_solve_ex.default", [(2, 8, 8), (2, 8, 3)], "inverse", Rows(2, 8)),
        ("aten.linalg_cholesky_ex.default", [(8, 8)], "cholesky", Rows(1, 8)),
        ("aten.linalg_qr.default", [(4, 16, 8)], "qr", Rows(4, 8)),  # the fewer of rows and columns
        ("aten._linalg_eigh.default", [(4, 8, 8)], "eigh", Rows(4, 8)),
    ],
)
def test_all_matrices_are_one_kernel(op: str, shapes: list[tuple[int, ...]], way: str, rows: Rows) -> None:
    (kernel,) = forward(op, *(t(*shape) for shape in shapes))
    assert (kernel.family, kernel.variant, kernel.sizes) == ("decomposition", way, rows)


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("linalg_cross", (t(5, 3), t(5, 3))),
        ("linalg_inv_ex", (t(2, 0, 0),)),  # matrices without elements: whether each has an inverse is written
    ],
)
def test_what_is_no_decomposition_has_its_traffic(op: str, given: tuple[Any, ...]) -> None:
    (kernel,) = forward(f"aten.{op}.default", *given)
    assert (kernel.family, kernel.sizes) == ("other", None)


@pytest.mark.parametrize(
    ("op", "shapes", "counts"),
    [
        # of an inverse y the gradient is -y^T g y^T; of x = solve(a, b) a solution, and its outer product with x
        ("aten.linalg_inv_ex.default", [(3, 8, 8)], {"matmul": 2, "copy": 1}),
        (
            "aten._linalg_solve_ex.default",
            [(3, 8, 8), (3, 8, 8)],
            {"matmul": 1, "decomposition": 1, "copy": 3},
        ),
        ("aten.linalg_cholesky_ex.default", [(3, 8, 8)], {"matmul": 1, "decomposition": 2, "copy": 2}),
        ("aten._linalg_eigh.default", [(3, 8, 8)], {"matmul": 3, "copy": 7}),
    ],
)
def test_gradients_of_decompositions(op: str, shapes: list[tuple[int, ...]], counts: dict[str, int]) -> None:
    found = backward(op, *(g(*shape) for shape in shapes))
    assert Counter(kernel.family for kernel in found) == counts
    for kernel in found:
        if kernel.family == "matmul":
            assert kernel.flops == 3 * 2 * 8**3
        else:
            assert (kernel.read_bytes, kernel.written_bytes) == (3 * 64 * 4, 3 * 64 * 4)


def test_what_has_no_gradient_of_its_own() -> None:
    assert {kernel.family for kernel in backward("aten.linalg_cross.default", g(5, 3), g(5, 3))} == {"other"}


@pytest.mark.parametrize(
    ("op", "shape", "launches"),
    [
        ("linalg_inv_ex", (500, 8, 8), 10),
        ("linalg_qr", (100, 4, 4), 7 + 9 * 100),  # one matrix after the other
        ("_linalg_eigh", (100, 32, 32), 20),
        ("linalg_eig", (2, 2, 2), 1 + 100 * 2),
    ],
)
def test_how_many_kernels_the_processor_starts(op: str, shape: tuple[int, ...], launches: int) -> None:
    (kernel,) = forward(f"aten.{op}.default", t(*shape))
    assert kernel.launches == launches


RATES = {
    "floor": 1000.0,
    "column": 1e6,
    "square": 2e6,
    "row": 3e6,
    "cube": 4e6,
    "spread": 1.0,
}  # milliseconds


@pytest.mark.parametrize(
    ("rows", "columns", "together", "milliseconds"),
    [
        # A start and three columns, each longer by two a column; of each of five matrices three columns, and 3^3 elements.
        (5, 3, 3, 1 + 3 * (1 + 3 * 2) + 5 * (3 * 3 + 27 * 4)),
        (5, 3, 2, 5 * (1 + 3 * (1 + 3 * 2)) + 5 * (3 * 3 + 27 * 4)),  # one after the other
        (1, 3, 2, 1 + 3 * (1 + 3 * 2) + 3 * 3 + 27 * 4),
    ],
)
def test_columns_and_large_matrices_follow_one_another(
    rows: int, columns: int, together: int, milliseconds: float
) -> None:
    known = with_rates("decomposition.qr", {**RATES, "together": together})
    kernel = Kernel("decomposition", "float32", 0, 8, 8, 8, Rows(rows, columns), variant="qr")
    assert seconds(kernel, known) == pytest.approx(milliseconds * 1e-3)


@pytest.mark.parametrize("word", sorted(_WAY_OF))
def test_words_are_those_of_operators(word: str) -> None:
    assert find(f"aten.{word}") is not None
