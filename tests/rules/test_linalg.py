"""Factorizations: sizes and types of all results, textbook operation counts."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import Dim, dim_min, evaluate, symbol
from graphflops.errors import ShapeError
from graphflops.rules import lapack
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

n, b = symbol("n"), symbol("b")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (lapack.lu(30, 30), 2 * 30**3 // 3),
        (lapack.lu(60, 30), 60 * 30**2 - 30**3 // 3),
        (lapack.lu(30, 60), lapack.lu(60, 30)),
        (lapack.cholesky(30), 30**3 // 3),
        (lapack.inverse(30), 2 * 30**3),
        (lapack.qr(60, 30), 2 * 60 * 30**2 - 2 * 30**3 // 3),
        (lapack.householder_product(60, 30, 30), 2 * 60 * 30**2 - 2 * 30**3 // 3),
        (lapack.householder_apply(60, 5, 30), 4 * 60 * 5 * 30 - 2 * 5 * 30**2),
        (lapack.svd(60, 30, vectors=False), 4 * 60 * 30**2 - 4 * 30**3 // 3),
        (lapack.svd(30, 60), 14 * 60 * 30**2 + 8 * 30**3),
        (lapack.svd(60, 30, full=True), 4 * 60**2 * 30 + 8 * 60 * 30**2 + 9 * 30**3),
        (lapack.eigh(30), 9 * 30**3),
        (lapack.eigh(30, vectors=False), 4 * 30**3 // 3),
        (lapack.eig(30), 25 * 30**3),
        (lapack.least_squares(60, 30, 1), 2 * 60 * 900 - 18_000 + 4 * 60 * 30 - 2 * 900 + 900),
    ],
)
def test_textbook_counts(count: Dim, expected: int) -> None:
    assert count == expected


LU_4, CHOLESKY_4 = 2 * 64 // 3, 64 // 3


@pytest.mark.parametrize(
    ("op", "arguments", "expected", "dtypes", "flops"),
    [
        ("aten.cholesky.default", (t(3, 4, 4),), [(3, 4, 4)], "float32", 3 * CHOLESKY_4),
        (
            "aten.linalg_cholesky_ex.default",
            (t(3, 4, 4),),
            [(3, 4, 4), (3,)],
            "float32 int32",
            3 * CHOLESKY_4,
        ),
        (
            "aten.linalg_ldl_factor_ex.default",
            (t(4, 4),),
            [(4, 4), (4,), ()],
            "float32 int32 int32",
            CHOLESKY_4,
        ),
        ("aten.linalg_ldl_factor.default", (t(4, 4),), [(4, 4), (4,)], "float32 int32", CHOLESKY_4),
        ("aten.linalg_lu_factor.default", (t(2, 6, 3),), [(2, 6, 3), (2, 3)], "float32 int32", 2 * (54 - 9)),
        (
            "aten.linalg_lu_factor_ex.default",
            (t(4, 4, dtype="complex64"),),
            [(4, 4), (4,), ()],
            "complex64 int32 int32",
            4 * LU_4,
        ),
        ("aten._lu_with_info.default", (t(4, 4),), [(4, 4), (4,), ()], "float32 int32 int32", LU_4),
        ("aten.linalg_lu.default", (t(6, 3),), [(6, 6), (6, 3), (3, 3)], "float32 float32 float32", 45),
        (
            "aten.lu_unpack.default",
            (t(6, 3), t(3, dtype="int32")),
            [(6, 6), (6, 3), (3, 3)],
            "float32 float32 float32",
            0,
        ),
        (
            "aten.lu_unpack.default",
            (t(6, 3), t(3, dtype="int32"), True, False),
            [(0,), (6, 3), (3, 3)],
            "float32 float32 float32",
            0,
        ),
        ("aten.linalg_det.default", (t(3, 4, 4),), [(3,)], "float32", 3 * (LU_4 + 4)),
        ("aten._linalg_det.default", (t(4, 4),), [(), (4, 4), (4,)], "float32 float32 int32", LU_4 + 4),
        (
            "aten.slogdet.default",
            (t(4, 4, dtype="complex64"),),
            [(), ()],
            "complex64 float32",
            4 * (LU_4 + 8),
        ),
        ("aten.logdet.default", (t(4, 4),), [()], "float32", LU_4 + 8),
        # 2*6*9 - 18 for the reflectors and R, as much again for the first three columns of Q
        ("aten.linalg_qr.default", (t(6, 3),), [(6, 3), (3, 3)], "float32 float32", 90 + 90),
        ("aten.linalg_qr.default", (t(6, 3), "r"), [(0,), (3, 3)], "float32 float32", 90),
        # all six columns: 4*6*6*3 - 2*12*9 + 36
        ("aten.linalg_qr.default", (t(6, 3), "complete"), [(6, 6), (6, 3)], "float32 float32", 90 + 252),
        ("aten.qr.default", (t(3, 6),), [(3, 3), (3, 6)], "float32 float32", 90 + 36),
        ("aten.geqrf.default", (t(6, 3),), [(6, 3), (3,)], "float32 float32", 90),
        ("aten.linalg_householder_product.default", (t(6, 3), t(3)), [(6, 3)], "float32", 90),
        ("aten.ormqr.default", (t(6, 3), t(3), t(6, 5)), [(6, 5)], "float32", 4 * 6 * 5 * 3 - 2 * 5 * 9),
        (
            "aten.ormqr.default",
            (t(6, 3), t(3), t(5, 6), False),
            [(5, 6)],
            "float32",
            4 * 6 * 5 * 3 - 2 * 5 * 9,
        ),
        (
            "aten.linalg_eigh.default",
            (t(4, 4, dtype="complex64"),),
            [(4,), (4, 4)],
            "float32 complex64",
            4 * 9 * 64,
        ),
        ("aten._linalg_eigh.default", (t(4, 4), "L", False), [(4,), (0,)], "float32 float32", 4 * 64 // 3),
        ("aten.linalg_eigvalsh.default", (t(4, 4),), [(4,)], "float32", 4 * 64 // 3),
        ("aten.linalg_eig.default", (t(4, 4),), [(4,), (4, 4)], "complex64 complex64", 25 * 64),
        ("aten.linalg_eigvals.default", (t(4, 4),), [(4,)], "complex64", 10 * 64),
        (
            "aten.linalg_svd.default",
            (t(6, 3), False),
            [(6, 3), (3,), (3, 3)],
            "float32 float32 float32",
            14 * 6 * 9 + 8 * 27,
        ),
        (
            "aten.linalg_svd.default",
            (t(2, 6, 3, dtype="complex64"),),
            [(2, 6, 6), (2, 3), (2, 3, 3)],
            "complex64 float32 complex64",
            2 * 4 * (4 * 36 * 3 + 8 * 6 * 9 + 9 * 27),
        ),
        (
            "aten._linalg_svd.default",
            (t(6, 3), False, False),
            [(0,), (3,), (0,)],
            "float32 float32 float32",
            4 * 6 * 9 - 36,
        ),
        ("aten.linalg_svdvals.default", (t(6, 3),), [(3,)], "float32", 4 * 6 * 9 - 36),
        (
            "aten.svd.default",
            (t(6, 3),),
            [(6, 3), (3,), (3, 3)],
            "float32 float32 float32",
            14 * 6 * 9 + 8 * 27,
        ),
        (
            "aten.svd.default",
            (t(6, 3), True, False),
            [(6, 6), (3,), (3, 3)],
            "float32 float32 float32",
            4 * 6 * 9 - 36,
        ),
    ],
)
def test_factorizations(op: str, arguments: Any, expected: Any, dtypes: str, flops: int) -> None:
    priced = price(op, *arguments)
    assert shapes(priced) == expected
    assert " ".join(out.dtype.name for out in priced.out if isinstance(out, TensorType)) == dtypes
    assert priced.vector_flops == flops
    assert priced.matrix_flops == 0


def test_symbolic_sizes() -> None:
    assert price("aten.linalg_cholesky.default", t("b", 6, 6)).vector_flops == 72 * b
    lu = price("aten.linalg_lu_factor.default", t("n", "n"))
    assert evaluate(lu.vector_flops, {"n": 30}) == 18_000
    q, r = shapes(price("aten.linalg_qr.default", t("n", 8)))
    assert (q, r) == ((n, dim_min(n, 8)), (dim_min(n, 8), 8))


def test_logarithms_of_the_diagonal() -> None:
    assert price("aten.linalg_slogdet.default", t(3, 4, 4)).transcendentals == 12


def test_without_pivoting_there_is_no_permutation() -> None:
    assert shapes(price("aten.linalg_lu.default", t(4, 4), pivot=False)) == [(0,), (4, 4), (4, 4)]


def test_only_square_matrices_have_determinants() -> None:
    with pytest.raises(ShapeError, match="not square: 4 rows, 5 columns"):
        price("aten.linalg_det.default", t(4, 5))
    with pytest.raises(ShapeError, match="at least two axes, not 1"):
        price("aten.linalg_qr.default", t(4))


def test_roots_and_polar_factors_end_in_products() -> None:
    assert price("aten.linalg_matrix_sqrth", t(2, 8, 8)).matrix_flops == 2 * (2 * 8 * 8 * 8)
    polar = price("aten.linalg_polar", t(6, 4))
    assert polar.matrix_flops == 2 * 6 * 4 * 4 + 2 * 4 * 4 * 4
    assert shapes(polar) == [(6, 4), (4, 4)]
