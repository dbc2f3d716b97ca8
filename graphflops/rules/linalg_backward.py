"""Gradients of factorizations, solves and inverses, as torch computes them (torch/csrc/autograd/FunctionsManual.cpp).

Products of matrices are matrix FLOPs; solves are vector FLOPs by the formulas of `lapack`, as in the forward. Every result
is assumed to have a gradient. Work of the forward that only training needs (eigenvectors beside eigenvalues) is counted
here; tensors that it saves for backward beside operands and results are read here.
"""

from collections.abc import Callable
from functools import partial

from graphflops.base.record import replace
from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_max, dim_min, prod, same
from graphflops.rules import lapack
from graphflops.rules.distance import norm_backward
from graphflops.rules.elementwise import complex_of, wanted
from graphflops.rules.linalg import each, matrices, pseudo_inverse
from graphflops.rules.matmul import flops_of
from graphflops.rules.registry import Backward, ForwardCall, backward
from graphflops.rules.shapes import axes, reduced
from graphflops.tensor import TensorType


@backward("aten.linalg_tensorinv")
def tensorinv(call: ForwardCall) -> Estimate:
    """A product with the inverse from either side."""
    n = prod(operand(call).shape[: call.get("ind", 2)])
    return gradients(call, call.out, 2 * n * n * n, n * n, call.out, times=1)


def pseudo_inverse_gradient(m: Dim, n: Dim) -> Dim:
    """Multiply-adds of eight products: four of sizes m x n x m, four of sizes m x n x min(m, n)."""
    return 4 * m * n * (m + dim_min(m, n))


def solve(call: ForwardCall, n: Dim | None = None, triangles: int = 2) -> Estimate:
    """A solve with the forward's factors, of order n; the matrix's gradient takes one more product, with the solution."""
    A, found = call["A"], call.out
    n = A.shape[-1] if n is None else n
    products, factors = n if "A" in call.wants else 0, A.like() if triangles == 2 else A
    return gradients(call, found, products, triangles * n, factors, found, times=found.numel)


backward("aten.linalg_solve linalg_solve_ex _linalg_solve_ex")(solve)
backward("aten.linalg_solve_triangular", "aten.triangular_solve")(partial(solve, triangles=1))
backward("aten.linalg_tensorsolve")(lambda call: solve(call, call.out.numel))


@backward("aten.cholesky_solve", "aten._cholesky_solve_helper")
def cholesky_solve(call: ForwardCall) -> Estimate:
    """Two triangular solves; for the factor, their product with the solution and one with the factor."""
    factor, found = call["LU"], call.out
    n, sides = found.shape[-2:]
    products = n * n * sides + n * n * n if "LU" in call.wants else 0
    return gradients(call, found, products, 2 * lapack.triangular_solve(n, sides) + 2 * n * n, factor, found)


@backward("aten.linalg_lu_solve", "aten.lu_solve")
def lu_solve(call: ForwardCall) -> Estimate:
    """Two triangular solves for the right-hand sides; for the factors two more and two products, four if permuted."""
    found, factors, left = call.out, call["LU"], call.get("left", True)
    n, sides = found.shape[-2:] if left else found.shape[:-3:-1]
    others = 2 * lapack.triangular_solve(n, sides) if "B" in call.wants else 0
    if "LU" not in call.wants:
        return gradients(call, found, 0, others, factors)
    times = 2 if left == call.get("adjoint", False) else 1
    others = others + 2 * lapack.triangular_solve(n, n) + 2 * n * n
    return gradients(call, found, times * (n * n * sides + n * n * n), others, factors, found)


@backward("aten.linalg_lstsq")
def lstsq(call: ForwardCall) -> Estimate:
    """The pseudo-inverse times the gradient; for the matrix, a product with the right sides and its own gradient."""
    A, B = call["A"], call["B"]
    _, m, n = matrices(A)
    sides = 1 if B.rank < A.rank else B.shape[-1]
    inverse = pseudo_inverse(A, False)
    products = m * n * sides * len(call.wants & {"A", "B"})
    if "A" in call.wants:
        products = products + pseudo_inverse_gradient(m, n)
    return gradients(call, A, products, 4 * m * n if "A" in call.wants else 0, A, B).plus(inverse)


def gradients(
    call: ForwardCall,
    like: TensorType,
    products: Dim,
    others: Dim,
    *keeps: TensorType | None,
    times: Dim | None = None,
) -> Estimate:
    """The gradients of the operands that want one.

    like: a tensor of the call's batch and element type.
    products, others: multiply-adds in matrix products, and other operations, for each of `times` matrices (default: all).
    keeps: the tensors that are read beside the gradients of the results.
    """
    count = prod(like.shape[:-2]) if times is None else times
    return Estimate(
        tuple(x.like() for _, x in wanted(call)),
        matrix_flops=flops_of(count * products, like.dtype),
        vector_flops=(4 if like.dtype.kind == "complex" else 1) * count * others,
        reads=(*(value.like() for value in floating(call)), *keeps),
    )


def operand(call: ForwardCall) -> TensorType:
    """The one operand of a factorization."""
    return wanted(call)[0][1]


def floating(call: ForwardCall) -> list[TensorType]:
    """The floating results, which are those with gradients."""
    return [value for value in call.estimate.out if isinstance(value, TensorType) and value.dtype.is_floating]


@backward("aten.linalg_lu", "aten.linalg_lu_factor", "aten.linalg_lu_factor_ex", "aten._lu_with_info")
def lu(call: ForwardCall) -> Estimate:
    """A product and a triangular solve with each factor, and a product that undoes the permutation of rows."""
    x = operand(call)
    _, m, n = matrices(x)
    short, long = dim_min(m, n), dim_max(m, n)
    rows = m * m * n if call.get("pivot", True) else 0
    solves = lapack.triangular_solve(short, short) + lapack.triangular_solve(short, long)
    return gradients(call, x, short * short * (short + long) + rows, solves + short * short, *floating(call))


@backward("aten.linalg_householder_product", "aten.orgqr")
def householder_product(call: ForwardCall) -> Estimate:
    """A product of the result and its gradient; then the reflectors are removed from it one by one."""
    x, tau, found = call["x"], call["tau"], call.out
    return gradients(call, found, *reflectors(x.shape[-2], x.shape[-1], tau.shape[-1]), x, tau, found)


@backward("aten.ormqr")
def ormqr(call: ForwardCall) -> Estimate:
    """The reflectors applied in the other direction; their own gradients are those of `householder_product`."""
    found = call.out
    x, tau, other = call["x"], call["tau"], call["other"]
    _, m, n = matrices(other)
    length, lanes, k = (m, n, tau.shape[-1]) if call.get("left", True) else (n, m, tau.shape[-1])
    applied = lapack.householder_apply(length, lanes, k)
    if not call.wants & {"x", "tau"}:
        return gradients(call, other, 0, applied, x, tau)
    products, others = reflectors(length, lanes, k)
    return gradients(call, other, products, applied + others, x, tau, found)


def reflectors(m: Dim, n: Dim, k: Dim) -> tuple[Dim, Dim]:
    """Multiply-adds, and other operations, of the gradients of k reflectors of m rows.

    A product of (m, n) and (n, m); then each reflector's vector, a row shorter than the last, takes four products with m
    rows and one with itself. To remove it from both sides is a multiplication and a subtraction per element.
    """
    lengths = k * m - (k * k - k) // 2
    return m * m * n + (4 * m + 1) * lengths - m * (m - k + 1), 4 * m * lengths


def of_singular_values(call: ForwardCall, rows: int = -2, columns: int = -1) -> Estimate:
    """Gradient of a function of the singular values along two axes; the forward computes the vectors for it."""
    x = operand(call)
    m, n = x.shape[rows], x.shape[columns]
    short, long = dim_min(m, n), dim_max(m, n)
    batch = reduced(x.shape, (rows, columns))
    vectors = x.like((*batch, long, short)), x.like((*batch, short, short))
    also = lapack.svd(m, n) - lapack.svd(m, n, vectors=False)
    return gradients(call, vectors[0], long * short * short, short * short + also, *vectors)


backward("aten.linalg_svdvals")(of_singular_values)


backward("aten.nuclear_norm", "aten.nuclear_norm.dim")(
    lambda call: of_singular_values(call, *call.get("dim", (-2, -1)))
)


@backward("aten.linalg_matrix_norm", "aten.linalg_norm")
def matrix_norm(call: ForwardCall) -> Estimate:
    """For orders that need singular values of a matrix, their gradient; else that of a norm of its elements."""
    x, order = operand(call), call.get("ord")
    along = axes(call.get("dim"), x.rank)
    along = along if len(along) == 2 or x.rank < 2 else along[-2:]
    if len(along) == 2 and order in ("nuc", 2, -2):
        return of_singular_values(call, *along)
    order = 2 if isinstance(order, str) else order
    return norm_backward(replace(call, arguments=call.arguments | {"ord": order}))


def by_sizes(work: Callable[[Dim, Dim], tuple[Dim, Dim]], *kept: str) -> Backward:
    """The rule with the multiply-adds and other operations that `work` returns; they are complex if the result is.

    kept: the tensors that are read: the operand, its factors, the result or the results.
    """

    def priced(call: ForwardCall) -> Estimate:
        x = operand(call)
        _, m, n = matrices(x)
        like = x.like(dtype=complex_of(x.dtype)) if call.out.dtype.kind == "complex" else x
        read = {"operand": [x], "factors": [like.like()], "result": [call.out], "results": floating(call)}
        return gradients(call, like, *work(m, n), *(value for name in kept for value in read[name]))

    return priced


def _qr(m: Dim, n: Dim) -> tuple[Dim, Dim]:
    """Products with Q and R and a triangular solve with R; a wide matrix takes a product more for its spare columns."""
    if same(dim_min(m, n), n):
        return n * n * n + 2 * m * n * n, lapack.triangular_solve(n, m) + m * n + n * n
    return 2 * m * m * m + 2 * m * m * n, lapack.triangular_solve(m, m) + m * n + n * n


def _svd(m: Dim, n: Dim) -> tuple[Dim, Dim]:
    """Products with the singular vectors of both sides; between them, a division by differences of squared values."""
    short, long = dim_min(m, n), dim_max(m, n)
    beyond = 0 if same(m, n) else 2 * long * short * short  # the part that the thin factor does not span
    return short * short * short + 3 * long * short * short + beyond, 7 * short * short


def unless(argument: str, whole: Backward, less: Backward) -> Backward:
    """The rule `whole`, or `less` if an argument says that only values are wanted, without vectors."""
    return lambda call: (less if call.get(argument, True) is False else whole)(call)


def _linear_system(n: Dim) -> Dim:
    return lapack.lu(n, n) + 2 * lapack.triangular_solve(n, n)


backward("aten.linalg_qr", "aten.qr")(by_sizes(_qr, "results"))
backward("aten.linalg_svd", "aten._linalg_svd", "aten.svd", "prims.svd")(
    unless("compute_uv", by_sizes(_svd, "results"), of_singular_values)
)
# The scaled eigenvectors times their transpose.
_eigvalsh = by_sizes(
    lambda _, n: (n * n * n, n * n + lapack.eigh(n) - lapack.eigh(n, vectors=False)), "factors"
)
backward("aten.linalg_eigvalsh")(_eigvalsh)
# Three products with the eigenvectors; between them, a division by differences of eigenvalues.
backward("aten.linalg_eigh", "aten._linalg_eigh")(
    unless("compute_v", by_sizes(lambda _, n: (3 * n * n * n, 4 * n * n), "results"), _eigvalsh)
)
# Three products with the eigenvectors and a solve with them.
backward("aten.linalg_eig")(by_sizes(lambda _, n: (3 * n * n * n, _linear_system(n) + 4 * n * n), "results"))
_eigvals = by_sizes(lambda _, n: (0, _linear_system(n) + n * n), "factors")


@backward("aten.linalg_eigvals", "aten._linalg_eigvals")
def eigvals(call: ForwardCall) -> Estimate:
    """A solve with the eigenvectors, which the forward computes for it; the right-hand sides are their scaled transpose."""
    x = operand(call)
    found = lapack.eig(x.shape[-1]) - lapack.eig(x.shape[-1], vectors=False)
    return _eigvals(call).plus(vector_flops=each(x, found))


# The gradient of the singular values; for other norms, that of the inverse and of both norms.
_cond = by_sizes(lambda _, n: (2 * n * n * n, 5 * n * n), "operand", "factors")
backward("aten.linalg_cond")(
    lambda call: (of_singular_values if call.get("p") in (None, 2, -2) else _cond)(call)
)
# A product with the inverse from either side; `cholesky_inverse` takes one more, with the factor.
backward("aten.linalg_inv inverse linalg_inv_ex")(by_sizes(lambda _, n: (2 * n * n * n, n * n), "result"))
backward("aten.cholesky_inverse")(by_sizes(lambda _, n: (3 * n * n * n, 2 * n * n), "result", "operand"))
# Eight products of the pseudo-inverse, the matrix and the gradient.
backward("aten.linalg_pinv pinverse linalg_pinv.atol_rtol_float linalg_pinv.atol_rtol_tensor")(
    by_sizes(lambda m, n: (pseudo_inverse_gradient(m, n), 4 * m * n), "operand", "result")
)
# A product with the factor between two triangular solves.
backward("aten.cholesky", "aten.linalg_cholesky", "aten.linalg_cholesky_ex")(
    by_sizes(lambda _, n: (n * n * n, 2 * lapack.triangular_solve(n, n) + 2 * n * n), "result")
)
# The transposed inverse, by a solve with the forward's factors.
backward("aten.det linalg_det _linalg_det logdet slogdet linalg_slogdet _linalg_slogdet")(
    by_sizes(lambda _, n: (0, 2 * lapack.triangular_solve(n, n)), "result", "factors")
)
# The gradients of both triangles put together.
backward("aten.lu_unpack")(by_sizes(lambda m, n: (0, m * n)))
# The eigenvectors of the root, and four products with them.
backward("aten.linalg_matrix_sqrth")(
    by_sizes(lambda _, n: (4 * n * n * n, lapack.eigh(n) + 5 * n * n), "result")
)
# The second factor's eigenvectors, six products of the rows with a square and eight of squares.
backward("aten.linalg_polar")(
    by_sizes(lambda m, n: (6 * m * n * n + 8 * n * n * n, lapack.eigh(n) + 3 * m * n + 6 * n * n), "results")
)
