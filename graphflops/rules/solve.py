"""Solving linear systems, inverting matrices, least squares, and functions of matrices.

Their arithmetic counts as vector FLOPs, by the formulas of `lapack`, except where matrices are multiplied.
"""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast, differ, dim_max, dim_min, meet, prod, same
from graphflops.rules import lapack
from graphflops.rules.distance import of_matrices
from graphflops.rules.elementwise import real_of, result_type
from graphflops.rules.linalg import each, eigvalsh, matrices, of_square, squares, svdvals, with_info
from graphflops.rules.reduce import parts
from graphflops.rules.registry import Derived, backward, require, rule
from graphflops.rules.shapes import axes, axis, only_result, results, tensors_of
from graphflops.tensor import INT32, INT64, TensorType

KIND = "linear_algebra"

Tolerance = TensorType | float | None


def right_sides(A: TensorType, B: TensorType, left: bool = True) -> tuple[TensorType, Dim]:
    """The solution's type for the batches broadcast, and how many right-hand sides each matrix has."""
    batch, n = squares(A)
    *more, rows, columns = B.shape
    length, sides = (rows, columns) if left else (columns, rows)
    meet(n, length, f"a matrix of order {n} does not fit right-hand sides of {length}")
    return B.like((*broadcast(batch, more), rows, columns)), sides


@rule("aten._linalg_solve_ex")
def solve_factors(A: TensorType, B: TensorType, *, left: bool = True) -> Estimate:
    """Elimination, then two triangular solves: 2/3 n^3, and 2 n^2 per right-hand side."""
    batch, n = squares(A)
    one = B.rank == 1 or (B.rank == A.rank - 1 and all(map(same, B.shape, A.shape[:-1])))
    found, sides = right_sides(A, B.like((*B.shape, 1)) if one else B, left or one)
    solution = found.like(found.shape[:-1]) if one else found
    work = each(A, lapack.lu(n, n)) + each(found, 2 * lapack.triangular_solve(n, sides))
    out = (solution, A.like(), A.like((*batch, n), INT32), A.like(batch, INT32))
    return Estimate(out, vector_flops=work, reads=(A, B))


rule("aten.linalg_solve_ex").derived(solve_factors, results(0, 3))
rule("aten.linalg_solve").derived(solve_factors, results(0))


@rule("aten.linalg_tensorsolve")
def tensorsolve(A: TensorType, B: TensorType, dims: tuple[int, ...] | None = None) -> Estimate:
    """The matrix system of `tensorsolve`: one row per element of the right-hand side."""
    moved = axes(dims or (), A.rank)
    shape = [size for place, size in enumerate(A.shape) if place not in moved] + [A.shape[at] for at in moved]
    n = B.numel
    work = lapack.lu(n, n) + 2 * lapack.triangular_solve(n, 1)
    real = 4 if A.dtype.kind == "complex" else 1
    return Estimate((A.like(shape[B.rank :]),), vector_flops=real * work, reads=(A, B))


@rule("aten.linalg_lu_solve")
def two_triangles(
    LU: TensorType, pivots: TensorType | None, B: TensorType, *, left: bool = True, adjoint: bool = False
) -> Estimate:
    """Two triangular solves: 2 n^2 per right-hand side; the gradient depends on `adjoint`."""
    out, sides = right_sides(LU, B, left)
    work = each(out, 2 * lapack.triangular_solve(LU.shape[-1], sides))
    return Estimate((out,), vector_flops=work, reads=(LU, B, pivots))


rule("aten.lu_solve").derived(two_triangles, order="B LU pivots")
rule("aten.linalg_ldl_solve").derived(two_triangles, order="LU pivots B")


@rule("aten.cholesky_solve", "aten._cholesky_solve_helper")
def cholesky_solve(B: TensorType, A: TensorType) -> Estimate:
    """Two triangular solves: 2 n^2 per right-hand side."""
    return two_triangles(A, None, B)


@rule("aten.linalg_solve_triangular")
def solve_triangular(A: TensorType, B: TensorType, *, left: bool = True) -> Estimate:
    """n^2 per right-hand side."""
    out, sides = right_sides(A, B, left)
    work = each(out, lapack.triangular_solve(A.shape[-1], sides))
    return Estimate((out,), vector_flops=work, reads=(A, B))


@rule("aten.triangular_solve")
def triangular_solve(B: TensorType, A: TensorType) -> Estimate:
    """n^2 per right-hand side; the second result is a copy of the matrix."""
    solved = solve_triangular(A, B)
    solution = only_result(solved)
    return replace(solved, out=(solution, A.like((*solution.shape[:-2], *A.shape[-2:]))))


inverse = Derived(of_square, says="2 n^3.", work=lapack.inverse)
rule("aten.linalg_inv", "aten.inverse")(inverse)
rule("aten.linalg_inv_ex").derived(inverse, with_info)
rule("aten.cholesky_inverse").derived(of_square, says="2/3 n^3.", work=lapack.cholesky_inverse)


@rule("aten.linalg_tensorinv")
def tensorinv(x: TensorType, ind: int = 2) -> Estimate:
    """2 n^3 for the matrix whose rows are the first `ind` axes."""
    n, columns = prod(x.shape[:ind]), prod(x.shape[ind:])
    meet(n, columns, f"{n} rows and {columns} columns are not invertible")
    real = 4 if x.dtype.kind == "complex" else 1
    out = x.like((*x.shape[ind:], *x.shape[:ind]))
    return Estimate((out,), vector_flops=real * lapack.inverse(n), reads=(x,))


@rule("aten.linalg_pinv", "aten.pinverse")
def pseudo_inverse(
    x: TensorType, atol: Tolerance = 1e-15, hermitian: bool = False, *, rtol: Tolerance = None
) -> Estimate:
    """Singular (or eigen-) values and vectors, and the product of the factors with the values inverted."""
    batch, m, n = matrices(x)
    k, limits = dim_min(m, n), tensors_of((atol, rtol))
    out = x.like((*broadcast(batch, *(limit.shape for limit in limits)), n, m))
    work = lapack.eigh(n) if hermitian else lapack.svd(m, n)
    return Estimate(
        (out,),
        matrix_flops=each(out, 2 * n * k * m),
        vector_flops=each(x, work) + parts(x) * prod(out.shape[:-2]) * (k + n * k),
        reads=(x, *limits),
    )


rule("aten.linalg_pinv.atol_rtol_float linalg_pinv.atol_rtol_tensor").derived(pseudo_inverse, order="x")


@rule("aten.linalg_matrix_rank", "aten.linalg_matrix_rank.tol_tensor")
def matrix_rank(
    x: TensorType, atol: Tolerance = None, hermitian: bool = False, *, rtol: Tolerance = None
) -> Estimate:
    """Singular (or eigen-) values, each compared with the tolerance and counted."""
    values = eigvalsh(x) if hermitian else svdvals(x)
    found, limits = only_result(values), tensors_of((atol, rtol))
    out = x.like(broadcast(found.shape[:-1], *(limit.shape for limit in limits)), INT64)
    compared = 2 * out.numel * found.shape[-1]
    return Estimate((out,), vector_flops=values.vector_flops + compared, reads=(x, *limits))


rule("aten.linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor").derived(
    matrix_rank, order="x"
)


@rule("aten.linalg_cond")
def cond(x: TensorType, p: float | str | None = None) -> Estimate:
    """The ratio of the extreme singular values; other norms are taken of the matrix and of its inverse."""
    batch, _, _ = matrices(x)
    out = x.like(batch, real_of(x.dtype))
    if p in (None, 2, -2):
        return Estimate((out,), vector_flops=svdvals(x).vector_flops + out.numel, reads=(x,))
    norm = of_matrices(x, p or "fro")
    work = inverse(x).vector_flops + 2 * norm.vector_flops + out.numel
    return Estimate((out,), vector_flops=work, transcendentals=2 * norm.transcendentals, reads=(x,))


@rule("aten.linalg_lstsq")
def lstsq(A: TensorType, B: TensorType, *, driver: str | None = None) -> Estimate:
    """By QR for the drivers gels and gelsy (the default on CPU), by singular values for gelsd and gelss.

    Residuals come with a tall matrix from the drivers that compute them.
    """
    batch, m, n = matrices(A)
    vector = B.rank < A.rank
    sides = 1 if vector else B.shape[-1]
    by_values = driver in ("gelsd", "gelss")
    by_svd = lapack.svd(m, n) + 2 * (m + n) * dim_min(m, n) * sides
    work = by_svd if by_values else lapack.least_squares(m, n, sides)
    tall = (by_values or driver == "gels") and same(dim_max(m, n), m) and differ(m, n)
    out = (
        A.like((*batch, n) if vector else (*batch, n, sides)),
        A.like((*batch, sides), real_of(A.dtype)) if tall else A.like((0,), real_of(A.dtype)),
        A.like((0,) if driver == "gels" else batch, INT64),
        A.like((*batch, dim_min(m, n)) if by_values else (0,), real_of(A.dtype)),
    )
    return Estimate(out, vector_flops=each(A, work), reads=(A, B))


# Functions of matrices and small products.

POLYNOMIAL_PRODUCTS = 5  # in a Taylor polynomial of degree 18 (Bader, Blanes and Casas, 2019)


def exponential(x: TensorType, n: Dim) -> Dim:
    """Products of the polynomial, and of the squarings after it, whose number depends on the norm."""
    return each(x, (POLYNOMIAL_PRODUCTS + data_dependent("squarings")) * 2 * n * n * n)


@rule("aten.linalg_matrix_exp", "aten.matrix_exp")
def matrix_exp(x: TensorType) -> Estimate:
    """Five products for the polynomial, and as many squarings as the norm asks for."""
    _, n = squares(x)
    return Estimate((x.like(),), matrix_flops=exponential(x, n), reads=(x,))


@rule("aten.matrix_exp_backward")
def matrix_exp_backward(x: TensorType, grad: TensorType) -> Estimate:
    """The exponential of a block matrix of twice the order."""
    _, n = squares(x)
    return Estimate((x.like(),), matrix_flops=exponential(x, 2 * n), reads=(x, grad))


backward("aten.linalg_matrix_exp", "aten.matrix_exp")(lambda call: matrix_exp_backward(call["x"], call["x"]))


@rule("aten.linalg_cross")
def linalg_cross(a: TensorType, b: TensorType, *, dim: int = -1) -> Estimate:
    """Two multiplications and a subtraction per component; a complex multiplication is six operations."""
    shape = broadcast(a.shape, b.shape)
    out = a.like(shape, result_type(a, b))
    length = shape[axis(dim, len(shape))]
    meet(length, 3, f"a cross product takes vectors of 3, not {length}")
    each_component = 2 * 6 + 2 if out.dtype.kind == "complex" else 3
    return Estimate((out,), vector_flops=each_component * out.numel, reads=(a, b))


@rule("aten.cross")
def cross(a: TensorType, b: TensorType, dim: int | None = None) -> Estimate:
    """As `linalg_cross`, along the first axis of three where none is named."""
    shape = broadcast(a.shape, b.shape)
    threes = [place for place, size in enumerate(shape) if not differ(size, 3)]
    require(bool(threes), "no axis holds vectors of 3")
    return linalg_cross(a, b, dim=threes[0] if dim is None else dim)
