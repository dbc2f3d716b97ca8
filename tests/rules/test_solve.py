"""Solving, inverting, least squares and functions of matrices."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

b = symbol("b")
LU_6 = 2 * 216 // 3


@pytest.mark.parametrize(
    ("op", "arguments", "named", "expected", "flops"),
    [
        ("aten.linalg_solve.default", (t(6, 6), t(6, 2)), {}, [(6, 2)], LU_6 + 2 * 36 * 2),
        ("aten.linalg_solve.default", (t(6, 6), t(6)), {}, [(6,)], LU_6 + 2 * 36),
        ("aten.linalg_solve.default", (t(3, 6, 6), t(3, 6)), {}, [(3, 6)], 3 * (LU_6 + 2 * 36)),
        # one factorization serves five batches of right-hand sides
        ("aten.linalg_solve.default", (t(6, 6), t(5, 6, 2)), {}, [(5, 6, 2)], LU_6 + 5 * 2 * 36 * 2),
        ("aten.linalg_solve.default", (t(6, 6), t(2, 6)), {"left": False}, [(2, 6)], LU_6 + 2 * 36 * 2),
        ("aten.linalg_solve.default", (t("b", 6, 6), t("b", 6, 2)), {}, [(b, 6, 2)], (LU_6 + 2 * 36 * 2) * b),
        ("aten.linalg_solve_ex.default", (t(3, 6, 6), t(3, 6, 2)), {}, [(3, 6, 2), (3,)], 3 * (LU_6 + 144)),
        (
            "aten._linalg_solve_ex.default",
            (t(6, 6, dtype="complex64"), t(6, 2, dtype="complex64")),
            {},
            [(6, 2), (6, 6), (6,), ()],
            4 * (LU_6 + 144),
        ),
        ("aten.linalg_lu_solve.default", (t(6, 6), t(6), t(5, 6, 2)), {}, [(5, 6, 2)], 5 * 2 * 36 * 2),
        ("aten.lu_solve.default", (t(6, 2), t(6, 6), t(6)), {}, [(6, 2)], 2 * 36 * 2),
        ("aten.cholesky_solve.default", (t(6, 2), t(6, 6)), {}, [(6, 2)], 2 * 36 * 2),
        ("aten.linalg_ldl_solve.default", (t(6, 6), t(6), t(6, 2)), {}, [(6, 2)], 2 * 36 * 2),
        ("aten.linalg_solve_triangular.default", (t(6, 6), t(6, 2)), {"upper": True}, [(6, 2)], 36 * 2),
        ("aten.triangular_solve.default", (t(6, 2), t(3, 6, 6)), {}, [(3, 6, 2), (3, 6, 6)], 3 * 36 * 2),
        ("aten.linalg_tensorsolve.default", (t(2, 3, 6), t(2, 3)), {}, [(6,)], LU_6 + 2 * 36),
        ("aten.linalg_tensorsolve.default", (t(3, 6, 2), t(6)), {"dims": (0, 2)}, [(3, 2)], LU_6 + 2 * 36),
        ("aten.inverse.default", (t(3, 6, 6),), {}, [(3, 6, 6)], 3 * 2 * 216),
        ("aten.linalg_inv_ex.default", (t(3, 6, 6),), {}, [(3, 6, 6), (3,)], 3 * 2 * 216),
        ("aten.cholesky_inverse.default", (t(6, 6),), {}, [(6, 6)], 2 * 216 // 3),
        ("aten.linalg_tensorinv.default", (t(6, 2, 3),), {"ind": 1}, [(2, 3, 6)], 2 * 216),
        ("aten.linalg_matrix_rank.default", (t(6, 3), 1e-3), {}, [()], 4 * 6 * 9 - 36 + 2 * 3),
        (
            "aten.linalg_matrix_rank.atol_rtol_float",
            (t(6, 6),),
            {"hermitian": True},
            [()],
            4 * 216 // 3 + 2 * 6,
        ),
        ("aten.linalg_matrix_rank.tol_tensor", (t(2, 6, 3), t(5, 2)), {}, [(5, 2)], 2 * 180 + 10 * 2 * 3),
        ("aten.linalg_cond.default", (t(6, 3),), {}, [()], 180 + 1),
        ("aten.linalg_cond.p_str", (t(6, 6), "fro"), {}, [()], 2 * 216 + 2 * (2 * 36) + 1),
        # QR 90, its reflectors on two sides 4*6*2*3 - 2*2*9, back substitution 9 * 2
        ("aten.linalg_lstsq.default", (t(6, 3), t(6, 2)), {}, [(3, 2), (0,), (), (0,)], 90 + 108 + 18),
        (
            "aten.linalg_lstsq.default",
            (t(6, 3), t(6, 2)),
            {"driver": "gels"},
            [(3, 2), (2,), (0,), (0,)],
            216,
        ),
        (
            "aten.linalg_lstsq.default",
            (t(6, 3), t(6, 2)),
            {"driver": "gelsd"},
            [(3, 2), (2,), (), (3,)],
            14 * 6 * 9 + 8 * 27 + 2 * 9 * 3 * 2,
        ),
        ("aten.linalg_cross.default", (t(5, 3), t(1, 3)), {}, [(5, 3)], 3 * 15),
        ("aten.cross.default", (t(3, 5), t(3, 5)), {}, [(3, 5)], 3 * 15),
    ],
)
def test_solutions(op: str, arguments: Any, named: Any, expected: Any, flops: Any) -> None:
    priced = price(op, *arguments, **named)
    assert shapes(priced) == expected
    assert priced.vector_flops == flops
    assert priced.matrix_flops == 0


def test_pivots_and_info_are_int32() -> None:
    dtypes = [out.dtype.name for out in price("aten._linalg_solve_ex.default", t(6, 6), t(6)).out if out]
    assert dtypes == ["float32", "float32", "int32", "int32"]


def test_a_pseudo_inverse_ends_in_a_product() -> None:
    priced = price("aten.linalg_pinv.atol_rtol_tensor", t(2, 6, 3))
    assert shapes(priced) == [(2, 3, 6)]
    assert priced.matrix_flops == 2 * (2 * 3 * 3 * 6)
    assert priced.vector_flops == 2 * (14 * 6 * 9 + 8 * 27 + 3 + 3 * 3)
    hermitian = price("aten.linalg_pinv.default", t(6, 6), 1e-3, True)
    assert hermitian.vector_flops == 9 * 216 + 6 + 36


def test_an_exponential_is_five_products_and_squarings() -> None:
    priced = price("aten.matrix_exp.default", t(3, 6, 6))
    assert priced.matrix_flops == 3 * (5 + symbol("squarings?")) * 2 * 216
    given = {"x": t(3, 6, 6)}
    gradient = find_backward("aten.matrix_exp.default")
    assert gradient is not None
    assert gradient(ForwardCall(priced, given, frozenset({"x"}))).matrix_flops == 8 * priced.matrix_flops


def test_operands_that_do_not_meet() -> None:
    with pytest.raises(ShapeError, match="order 6 does not fit right-hand sides of 5"):
        price("aten.linalg_solve.default", t(6, 6), t(5, 2))
    with pytest.raises(ShapeError, match="vectors of 3, not 4"):
        price("aten.linalg_cross.default", t(5, 4), t(5, 4))
    with pytest.raises(ShapeError, match="6 rows and 4 columns"):
        price("aten.linalg_tensorinv.default", t(6, 2, 2), 1)


def test_symbolic_right_sides() -> None:
    (out,) = price("aten.linalg_solve_triangular.default", t(6, 6), t(6, "b"), upper=False).out
    assert isinstance(out, TensorType)
    assert out.shape == (6, b)
