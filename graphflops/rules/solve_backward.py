"""Gradients of solves and inverses, in the steps of torch's autograd (torch/csrc/autograd/FunctionsManual.cpp).

Products of matrices are matrix FLOPs; solves are vector FLOPs by the formulas of `lapack`, as forward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Dim, dim_min, prod
from graphflops.rules import lapack
from graphflops.rules.elementwise import result_of
from graphflops.rules.linalg import matrices
from graphflops.rules.linalg_backward import gradients, operand
from graphflops.rules.registry import ForwardCall, backward
from graphflops.rules.solve import pseudo_inverse

if TYPE_CHECKING:
    from graphflops.cost import Estimate

# Inverses.


@backward("aten.linalg_inv", "aten.inverse", "aten.linalg_inv_ex")
def inverse(call: ForwardCall) -> Estimate:
    """A product with the inverse from either side."""
    found = result_of(call)
    n = found.shape[-1]
    return gradients(call, found, 2 * n * n * n, n * n, found)


@backward("aten.linalg_tensorinv")
def tensorinv(call: ForwardCall) -> Estimate:
    """A product with the inverse from either side."""
    found = result_of(call)
    n = prod(operand(call).shape[: call.arguments.get("ind", 2)])
    return gradients(call, found, 2 * n * n * n, n * n, found, times=1)


@backward("aten.cholesky_inverse")
def cholesky_inverse(call: ForwardCall) -> Estimate:
    """A product with the inverse from either side, and one with the factor."""
    found, factor = result_of(call), operand(call)
    n = found.shape[-1]
    return gradients(call, found, 3 * n * n * n, 2 * n * n, found, factor)


@backward(
    *("aten.linalg_pinv", "aten.pinverse"),
    *("aten.linalg_pinv.atol_rtol_float", "aten.linalg_pinv.atol_rtol_tensor"),
)
def pinv(call: ForwardCall) -> Estimate:
    """Eight products of the pseudo-inverse, the matrix and the gradient."""
    x, found = operand(call), result_of(call)
    _, m, n = matrices(x)
    return gradients(call, found, pseudo_inverse_gradient(m, n), 4 * m * n, x, found)


def pseudo_inverse_gradient(m: Dim, n: Dim) -> Dim:
    """Multiply-adds of eight products, four of which are as long as the rows both ways where these are more."""
    return 4 * m * n * (m + dim_min(m, n))


# Solves.


@backward("aten.linalg_solve", "aten.linalg_solve_ex", "aten._linalg_solve_ex")
def solve(call: ForwardCall) -> Estimate:
    """A solve with the forward's factors; for the matrix, the product of what that gives with the solution."""
    return _solved(call, call.arguments["A"].shape[-1])


@backward("aten.linalg_tensorsolve")
def tensorsolve(call: ForwardCall) -> Estimate:
    """A solve with the forward's factors; for the matrix, the product of what that gives with the solution."""
    return _solved(call, result_of(call).numel)


def _solved(call: ForwardCall, n: Dim) -> Estimate:
    A, found = call.arguments["A"], result_of(call)
    products = n if "A" in call.wants else 0
    return gradients(call, found, products, 2 * n, A.like(), found, times=found.numel)


@backward("aten.linalg_solve_triangular", "aten.triangular_solve")
def solve_triangular(call: ForwardCall) -> Estimate:
    """A triangular solve; for the matrix, the product of what that gives with the solution."""
    A, found = call.arguments["A"], result_of(call)
    n = A.shape[-1]
    return gradients(call, found, n if "A" in call.wants else 0, n, A, found, times=found.numel)


@backward("aten.cholesky_solve", "aten._cholesky_solve_helper")
def cholesky_solve(call: ForwardCall) -> Estimate:
    """Two triangular solves; for the factor, their product with the solution and one with the factor."""
    A, found = call.arguments["A"], result_of(call)
    n, sides = found.shape[-2:]
    products = n * n * sides + n * n * n if "A" in call.wants else 0
    return gradients(call, found, products, 2 * lapack.triangular_solve(n, sides) + 2 * n * n, A, found)


@backward("aten.linalg_lu_solve", "aten.lu_solve")
def lu_solve(call: ForwardCall) -> Estimate:
    """Two triangular solves for the right-hand sides; for the factors two more of squares, and products between them.

    With the system on the right, or adjoint, the permutation takes a product on each side of them.
    """
    given, found = call.arguments, result_of(call)
    factors = given.get("LU", given.get("LU_data"))
    left, adjoint = given.get("left", True), given.get("adjoint", False)
    n, sides = found.shape[-2:] if left else found.shape[:-3:-1]
    wants_factors = bool(call.wants & {"LU", "LU_data"})
    wants_sides = "B" in call.wants
    products: Dim = 0
    others: Dim = 2 * lapack.triangular_solve(n, sides) if wants_sides else 0
    if wants_factors:
        moved = n * n * sides + n * n * n if left == adjoint else 0
        products = n * n * sides + n * n * n + moved
        others = others + 2 * lapack.triangular_solve(n, n) + 2 * n * n
    return gradients(call, found, products, others, factors, found if wants_factors else None)


@backward("aten.linalg_lstsq")
def lstsq(call: ForwardCall) -> Estimate:
    """The pseudo-inverse times the gradient; for the matrix its own gradient, after a product with the right sides."""
    A, B = call.arguments["A"], call.arguments["B"]
    _, m, n = matrices(A)
    sides = 1 if B.rank < A.rank else B.shape[-1]
    inverse = pseudo_inverse(A, False)
    products = m * n * sides * len(call.wants & {"A", "B"})
    if "A" in call.wants:
        products = products + pseudo_inverse_gradient(m, n)
    back = gradients(call, A, products, 4 * m * n if "A" in call.wants else 0, A, B)
    return replace(
        back,
        matrix_flops=back.matrix_flops + inverse.matrix_flops,
        vector_flops=back.vector_flops + inverse.vector_flops,
    )
