"""Factorizations of dense matrices and what follows from them: determinants, eigenvalues, singular values.

Their arithmetic counts as vector FLOPs, by the formulas of `lapack`; a complex operation counts as four.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_min, meet, prod
from graphflops.rules import lapack
from graphflops.rules.elementwise import complex_of, real_of
from graphflops.rules.matmul import flops_of
from graphflops.rules.registry import Derived, require, rule
from graphflops.rules.shapes import Shape, only_result, results
from graphflops.tensor import INT32, TensorType

KIND = "linear_algebra"


def matrices(x: TensorType) -> tuple[Shape, Dim, Dim]:
    """Batch sizes, rows and columns."""
    require(x.rank >= 2, f"a matrix has at least two axes, not {x.rank}")
    return x.shape[:-2], x.shape[-2], x.shape[-1]


def squares(x: TensorType) -> tuple[Shape, Dim]:
    """Batch sizes and order."""
    batch, m, n = matrices(x)
    meet(m, n, f"the matrix is not square: {m} rows, {n} columns")
    return batch, n


def each(x: TensorType, flops: Dim) -> Dim:
    """`flops` operations for every matrix of the batch."""
    return (4 if x.dtype.kind == "complex" else 1) * prod(x.shape[:-2]) * flops


def nothing(x: TensorType) -> TensorType:
    """An empty tensor in place of a result that was not requested."""
    return x.like((0,))


def with_info(estimate: Estimate) -> Estimate:
    """The estimate with a number for each matrix, which tells whether it was singular, as another result."""
    found = only_result(estimate)
    return replace(estimate, out=(found, found.like(found.shape[:-2], INT32)))


# Cholesky and LDL^T.


def of_square(A: TensorType, *, work: Callable[[Dim], Dim]) -> Estimate:
    """A result like the square matrix, by so many operations for its order."""
    _, n = squares(A)
    return Estimate((A.like(),), vector_flops=each(A, work(n)), reads=(A,))


cholesky = Derived(of_square, says="n^3/3 per matrix.", work=lapack.cholesky)
rule("aten.cholesky", "aten.linalg_cholesky")(cholesky)
rule("aten.linalg_cholesky_ex").derived(cholesky, with_info)


@rule("aten.linalg_ldl_factor_ex")
def ldl_factor_ex(x: TensorType) -> Estimate:
    """n^3/3 per matrix."""
    batch, n = squares(x)
    out = (x.like(), x.like((*batch, n), INT32), x.like(batch, INT32))
    return Estimate(out, vector_flops=each(x, lapack.cholesky(n)), reads=(x,))


rule("aten.linalg_ldl_factor").derived(ldl_factor_ex, results(0, 1))

# Elimination with row exchanges.


@rule("aten.linalg_lu_factor_ex", "aten._lu_with_info")
def lu_factor_ex(A: TensorType, pivot: bool = True) -> Estimate:
    """2/3 n^3 per square matrix; the gradient depends on `pivot`."""
    batch, m, n = matrices(A)
    out = (A.like(), A.like((*batch, dim_min(m, n)), INT32), A.like(batch, INT32))
    return Estimate(out, vector_flops=each(A, lapack.lu(m, n)), reads=(A,))


lu_factor = Derived(lu_factor_ex, results(0, 1))
rule("aten.linalg_lu_factor")(lu_factor)


@rule("aten.linalg_lu")
def lu(A: TensorType, *, pivot: bool = True) -> Estimate:
    """2/3 n^3 per square matrix; without pivoting there is no permutation."""
    batch, m, n = matrices(A)
    k = dim_min(m, n)
    permutation = A.like((*batch, m, m)) if pivot else nothing(A)
    out = (permutation, A.like((*batch, m, k)), A.like((*batch, k, n)))
    return Estimate(out, vector_flops=each(A, lapack.lu(m, n)), reads=(A,))


@rule("aten.lu_unpack")
def lu_unpack(
    LU_data: TensorType, LU_pivots: TensorType, unpack_data: bool = True, unpack_pivots: bool = True
) -> Estimate:
    """The triangles and the permutation written out: no arithmetic."""
    batch, m, n = matrices(LU_data)
    k = dim_min(m, n)
    permutation = LU_data.like((*batch, m, m)) if unpack_pivots else nothing(LU_data)
    left = LU_data.like((*batch, m, k)) if unpack_data else nothing(LU_data)
    right = LU_data.like((*batch, k, n)) if unpack_data else nothing(LU_data)
    reads = (LU_data if unpack_data else None, LU_pivots if unpack_pivots else None)
    return Estimate((permutation, left, right), reads=reads)


@rule("aten._linalg_det")
def det_factors(A: TensorType) -> Estimate:
    """Elimination, then the diagonal multiplied."""
    batch, n = squares(A)
    factored = lu_factor(A)
    return replace(factored, out=(A.like(batch), *factored.out), vector_flops=each(A, lapack.lu(n, n) + n))


det = Derived(det_factors, results(0))
rule("aten.det", "aten.linalg_det")(det)


@rule("aten._linalg_slogdet")
def slogdet_factors(A: TensorType) -> Estimate:
    """Elimination, then the diagonal's signs multiplied and the logarithms of its magnitudes added."""
    batch, n = squares(A)
    factored = lu_factor(A)
    return replace(
        factored,
        out=(A.like(batch), A.like(batch, real_of(A.dtype)), *factored.out),
        vector_flops=each(A, lapack.lu(n, n) + 2 * n),
        transcendentals=prod(batch) * n,
    )


rule("aten.slogdet", "aten.linalg_slogdet").derived(slogdet_factors, results(0, 1))
rule("aten.logdet").derived(slogdet_factors, results(0), says="As `slogdet`, in one result.")


@rule("aten.linalg_qr")
def linalg_qr(A: TensorType, mode: str = "reduced") -> Estimate:
    """The reflectors and R, then Q unless only R is asked for."""
    batch, m, n = matrices(A)
    k = dim_min(m, n)
    columns = m if mode == "complete" else k
    q = nothing(A) if mode == "r" else A.like((*batch, m, columns))
    work = lapack.qr(m, n) + (0 if mode == "r" else lapack.householder_product(m, columns, k))
    return Estimate((q, A.like((*batch, columns, n))), vector_flops=each(A, work), reads=(A,))


@rule("aten.qr")
def qr(x: TensorType, some: bool = True) -> Estimate:
    """The reflectors and R, then Q."""
    return linalg_qr(x, "reduced" if some else "complete")


@rule("aten.geqrf")
def geqrf(x: TensorType) -> Estimate:
    """The reflectors and R: 2*m*n^2 - 2/3 n^3."""
    batch, m, n = matrices(x)
    out = (x.like(), x.like((*batch, dim_min(m, n))))
    return Estimate(out, vector_flops=each(x, lapack.qr(m, n)), reads=(x,))


@rule("aten.linalg_householder_product", "aten.orgqr")
def householder_product(x: TensorType, tau: TensorType) -> Estimate:
    """The leading columns of the product of the reflectors."""
    _, m, n = matrices(x)
    work = lapack.householder_product(m, n, tau.shape[-1])
    return Estimate((x.like(),), vector_flops=each(x, work), reads=(x, tau))


@rule("aten.ormqr")
def ormqr(x: TensorType, tau: TensorType, other: TensorType, left: bool = True) -> Estimate:
    """The product of the reflectors, never formed, times a matrix from the left or the right."""
    _, m, n = matrices(other)
    length, lanes = (m, n) if left else (n, m)
    work = lapack.householder_apply(length, lanes, tau.shape[-1])
    return Estimate((other.like(),), vector_flops=each(other, work), reads=(x, tau, other))


# Eigenvalues and singular values.


@rule("aten._linalg_eigh")
def eigh_factors(A: TensorType, *, compute_v: bool = True) -> Estimate:
    """9 n^3 with eigenvectors, 4/3 n^3 without."""
    batch, n = squares(A)
    out = (A.like((*batch, n), real_of(A.dtype)), A.like() if compute_v else nothing(A))
    return Estimate(out, vector_flops=each(A, lapack.eigh(n, compute_v)), reads=(A,))


rule("aten.linalg_eigh").derived(eigh_factors, says="9 n^3.", order="A _")
eigvalsh = Derived(eigh_factors, results(0), says="4/3 n^3.", order="A _", compute_v=False)
rule("aten.linalg_eigvalsh")(eigvalsh)


@rule("aten.linalg_eig")
def eig(x: TensorType) -> Estimate:
    """25 n^3."""
    batch, n = squares(x)
    dtype = complex_of(x.dtype)
    out = (x.like((*batch, n), dtype), x.like(dtype=dtype))
    return Estimate(out, vector_flops=each(x, lapack.eig(n)), reads=(x,))


@rule("aten.linalg_eigvals", "aten._linalg_eigvals")
def eigvals(x: TensorType) -> Estimate:
    """10 n^3."""
    batch, n = squares(x)
    out = x.like((*batch, n), complex_of(x.dtype))
    return Estimate((out,), vector_flops=each(x, lapack.eig(n, vectors=False)), reads=(x,))


@rule("aten._linalg_svd")
def svd_factors(A: TensorType, full_matrices: bool = False, compute_uv: bool = True) -> Estimate:
    """FLOPs depend on which singular vectors are requested."""
    batch, m, n = matrices(A)
    k = dim_min(m, n)
    values = A.like((*batch, k), real_of(A.dtype))
    u, v = nothing(A), nothing(A)
    if compute_uv:
        u = A.like((*batch, m, m if full_matrices else k))
        v = A.like((*batch, n if full_matrices else k, n))
    work = lapack.svd(m, n, compute_uv, full_matrices)
    return Estimate((u, values, v), vector_flops=each(A, work), reads=(A,))


@rule("aten.linalg_svd")
def linalg_svd(A: TensorType, full_matrices: bool = True) -> Estimate:
    """FLOPs depend on which singular vectors are requested."""
    return svd_factors(A, full_matrices)


rule("prims.svd").derived(svd_factors, order="A")
svdvals = Derived(svd_factors, results(1), says="4*m*n^2 - 4/3 n^3.", order="A", compute_uv=False)
rule("aten.linalg_svdvals")(svdvals)


@rule("aten.svd")
def svd(x: TensorType, some: bool = True, compute_uv: bool = True) -> Estimate:
    """As `linalg_svd`, with V instead of its transpose; vectors that are not requested are square and zero."""
    batch, m, n = matrices(x)
    full = not some or not compute_uv
    factors = svd_factors(x, full, compute_uv)
    k = dim_min(m, n)
    u, v = x.like((*batch, m, m if full else k)), x.like((*batch, n, n if full else k))
    return replace(factors, out=(u, factors.out[1], v))


@rule("aten.linalg_matrix_sqrth")
def matrix_sqrth(x: TensorType) -> Estimate:
    """Eigenvectors, scaled by the roots of the eigenvalues, and their product with their transpose."""
    batch, n = squares(x)
    product, work = flops_of(prod((*batch, n, n, n)), x.dtype), eigh_factors(x).vector_flops + x.numel
    return Estimate((x.like(),), product, work, prod((*batch, n)), reads=(x,))


@rule("aten.linalg_polar")
def polar(A: TensorType) -> Estimate:
    """Reduced SVD, the product of its vectors, and the product of V, the singular values and V's transpose."""
    batch, m, n = matrices(A)
    h, products = A.like((*batch, n, n)), flops_of(prod(batch) * (m + n) * n * n, A.dtype)
    return Estimate((A.like(), h), products, svd_factors(A).vector_flops + h.numel, reads=(A,))
