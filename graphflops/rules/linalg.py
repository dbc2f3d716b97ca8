"""Dense matrices factored, solved and inverted: determinants, eigenvalues, singular values, least squares, functions.

Their arithmetic counts as vector FLOPs, by the formulas of `lapack`, except where matrices are multiplied; a complex
operation counts as four.
"""

from collections.abc import Callable

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast, differ, dim_max, dim_min, floor_div, meet, prod, same
from graphflops.rules import lapack
from graphflops.rules.distance import of_matrices
from graphflops.rules.elementwise import complex_of, real_of
from graphflops.rules.matmul import flops_of
from graphflops.rules.operands import Operands
from graphflops.rules.reduce import parts
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import Shape, axes, only_result, results, tensors_of
from graphflops.tensor import INT32, INT64, TensorType

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


def factored(
    A: TensorType, pivot: bool = True, *, made: str, work: Callable[[Dim, Dim], Dim], functions: bool = False
) -> Estimate:
    """Results for each matrix of m rows and n columns; k is the smaller of the two.

    made: the results by their sizes, `mk n:int32`; `-` is one number, `0` one that was not requested. A matrix must be
    square if these name neither m nor k. functions: whether one is evaluated for each row.
    """
    wanted = [each.partition(":") for each in made.split()]
    is_square = not any({*shape} & {"m", "k"} for shape, _, _ in wanted)
    batch, m, n = (*squares(A), A.shape[-1]) if is_square else matrices(A)
    sizes = {"m": m, "n": n, "k": dim_min(m, n)}
    types = {"int32": INT32, "real": real_of(A.dtype), "complex": complex_of(A.dtype)}
    shapes = {named: (*batch, *(sizes[x] for x in named.strip("-0"))) for named, *_ in wanted} | {"0": (0,)}
    out = tuple(A.like(shapes[named], types.get(dtype)) for named, _, dtype in wanted)
    return Estimate(out, 0, each(A, work(m, n)), prod(batch) * n * functions, reads=(A,))


_LU = "2/3 n^3 per square matrix; the gradient depends on `pivot`."
_DETERMINANT = "Elimination, then the diagonal multiplied."
_LOGARITHM = "Elimination, then the diagonal's signs multiplied and the logarithms of its magnitudes added."
for _names, _made, _work, _says in (
    ("cholesky linalg_cholesky", "nn", lambda _, n: lapack.cholesky(n), "n^3/3 per matrix."),
    ("linalg_cholesky_ex", "nn -:int32", lambda _, n: lapack.cholesky(n), "n^3/3 per matrix."),
    ("linalg_ldl_factor", "nn n:int32", lambda _, n: lapack.cholesky(n), "n^3/3 per matrix."),
    ("linalg_ldl_factor_ex", "nn n:int32 -:int32", lambda _, n: lapack.cholesky(n), "n^3/3 per matrix."),
    ("linalg_lu_factor", "mn k:int32", lapack.lu, _LU),
    ("linalg_lu_factor_ex _lu_with_info", "mn k:int32 -:int32", lapack.lu, _LU),
    ("_linalg_det", "- nn n:int32", lambda _, n: lapack.lu(n, n) + n, _DETERMINANT),
    ("det linalg_det", "-", lambda _, n: lapack.lu(n, n) + n, _DETERMINANT),
    ("_linalg_slogdet", "- -:real nn n:int32", lambda _, n: lapack.lu(n, n) + 2 * n, _LOGARITHM),
    ("slogdet linalg_slogdet", "- -:real", lambda _, n: lapack.lu(n, n) + 2 * n, _LOGARITHM),
    ("logdet", "-", lambda _, n: lapack.lu(n, n) + 2 * n, _LOGARITHM),
    ("geqrf", "mn k", lapack.qr, "The reflectors and R: 2*m*n^2 - 2/3 n^3."),
    ("linalg_eig", "n:complex nn:complex", lambda _, n: lapack.eig(n), "25 n^3."),
    ("linalg_eigvals _linalg_eigvals", "n:complex", lambda _, n: lapack.eig(n, vectors=False), "10 n^3."),
    ("linalg_eigvalsh", "n:real", lambda _, n: lapack.eigh(n, vectors=False), "4/3 n^3."),
    ("linalg_eigh", "n:real nn", lambda _, n: lapack.eigh(n), "9 n^3."),
    ("linalg_svdvals", "k:real", lambda m, n: lapack.svd(m, n, vectors=False), "4*m*n^2 - 4/3 n^3."),
    ("linalg_inv inverse", "nn", lambda _, n: lapack.inverse(n), "2 n^3."),
    ("linalg_inv_ex", "nn -:int32", lambda _, n: lapack.inverse(n), "2 n^3."),
    ("cholesky_inverse", "nn", lambda _, n: floor_div(2 * n * n * n, 3), "2/3 n^3."),
):
    rule(f"aten.{_names}").derived(
        factored,
        says=_says,
        order="" if _says is _LU else "A",
        made=_made,
        work=_work,
        functions="logdet" in _names,
    )


@rule("aten.linalg_lu")
def lu(A: TensorType, *, pivot: bool = True) -> Estimate:
    """2/3 n^3 per square matrix; without pivoting there is no permutation."""
    return factored(A, made=f"{'mm' if pivot else '0'} mk kn", work=lapack.lu)


@rule("aten.lu_unpack").takes("LU_data LU_pivots; unpack_data=True unpack_pivots=True")
def lu_unpack(of: Operands) -> Estimate:
    """The triangles and the permutation written out: no arithmetic."""
    made = f"{'mm' if of.unpack_pivots else '0'} {'mk kn' if of.unpack_data else '0 0'}"
    reads = (of.LU_data if of.unpack_data else None, of.LU_pivots if of.unpack_pivots else None)
    found = factored(of.LU_data, made=f"{made} k", work=lambda m, n: 0)
    return replace(found, out=found.out[:3], reads=reads)


@rule("aten.linalg_qr")
def linalg_qr(A: TensorType, mode: str = "reduced") -> Estimate:
    """The reflectors and R, then Q unless only R is asked for."""
    columns, wants_q = "m" if mode == "complete" else "k", mode != "r"

    def work(m: Dim, n: Dim) -> Dim:
        k = dim_min(m, n)
        product = lapack.householder_product(m, m if columns == "m" else k, k) if wants_q else 0
        return lapack.qr(m, n) + product

    return factored(A, made=f"m{columns} {columns}n" if wants_q else f"0 {columns}n", work=work)


@rule("aten.qr")
def qr(x: TensorType, some: bool = True) -> Estimate:
    """The reflectors and R, then Q."""
    return linalg_qr(x, "reduced" if some else "complete")


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


@rule("aten._linalg_eigh")
def eigh(A: TensorType, *, compute_v: bool = True) -> Estimate:
    """9 n^3 with eigenvectors, 4/3 n^3 without."""
    made = f"n:real {'nn' if compute_v else '0'}"
    return factored(A, made=made, work=lambda _, n: lapack.eigh(n, compute_v))


@rule("aten._linalg_svd")
def svd_factors(A: TensorType, full_matrices: bool = False, compute_uv: bool = True) -> Estimate:
    """FLOPs depend on which singular vectors are requested."""
    left, right = ("mm", "nn") if full_matrices else ("mk", "kn")
    made = f"{left} k:real {right}" if compute_uv else "0 k:real 0"
    return factored(A, made=made, work=lambda m, n: lapack.svd(m, n, compute_uv, full_matrices))


rule("prims.svd").derived(svd_factors, order="A")
rule("aten.linalg_svd").derived(svd_factors, order="A full_matrices", usually={"full_matrices": True})


@rule("aten.svd")
def svd(x: TensorType, some: bool = True, compute_uv: bool = True) -> Estimate:
    """As `linalg_svd`, with V instead of its transpose; vectors that are not requested are square and zero."""
    full = not some or not compute_uv
    made = "mm k:real nn" if full else "mk k:real nk"
    return factored(x, made=made, work=lambda m, n: lapack.svd(m, n, compute_uv, full))


@rule("aten.linalg_matrix_sqrth")
def matrix_sqrth(x: TensorType) -> Estimate:
    """Eigenvectors, scaled by the roots of the eigenvalues, and their product with their transpose."""
    batch, n = squares(x)
    product, work = flops_of(prod((*batch, n, n, n)), x.dtype), eigh(x).vector_flops + x.numel
    return Estimate((x.like(),), product, work, prod((*batch, n)), reads=(x,))


@rule("aten.linalg_polar")
def polar(A: TensorType) -> Estimate:
    """Reduced SVD, the product of its vectors, and the product of V, the singular values and V's transpose."""
    batch, m, n = matrices(A)
    h, products = A.like((*batch, n, n)), flops_of(prod(batch) * (m + n) * n * n, A.dtype)
    return Estimate((A.like(), h), products, svd_factors(A).vector_flops + h.numel, reads=(A,))


Tolerance = TensorType | float | None


def right_sides(A: TensorType, B: TensorType, left: bool = True) -> tuple[TensorType, Dim]:
    """The type of the solution, with broadcast batch axes, and the number of right-hand sides of each matrix."""
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
    return Estimate((A.like(shape[B.rank :]),), vector_flops=each(A.like((n, n)), work), reads=(A, B))


@rule("aten.linalg_lu_solve").takes("LU pivots? B")
def two_triangles(of: Operands, *, left: bool = True, adjoint: bool = False) -> Estimate:
    """Two triangular solves: 2 n^2 per right-hand side; the gradient depends on `adjoint`."""
    out, sides = right_sides(of.LU, of.B, left)
    work = each(out, 2 * lapack.triangular_solve(of.LU.shape[-1], sides))
    return Estimate((out,), vector_flops=work, reads=(of.LU, of.B, of.pivots))


rule("aten.lu_solve").derived(two_triangles, order="B LU pivots")
rule("aten.linalg_ldl_solve").derived(two_triangles, order="LU pivots B")
rule("aten.cholesky_solve", "aten._cholesky_solve_helper").derived(two_triangles, order="B LU", pivots=None)


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


@rule("aten.linalg_tensorinv")
def tensorinv(x: TensorType, ind: int = 2) -> Estimate:
    """2 n^3 for the matrix whose rows are the first `ind` axes."""
    n, columns = prod(x.shape[:ind]), prod(x.shape[ind:])
    meet(n, columns, f"{n} rows and {columns} columns are not invertible")
    out = x.like((*x.shape[ind:], *x.shape[:ind]))
    return Estimate((out,), vector_flops=each(x.like((n, n)), lapack.inverse(n)), reads=(x,))


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
    batch, m, n = matrices(x)
    limits = tensors_of((atol, rtol))
    out = x.like(broadcast(batch, *(limit.shape for limit in limits)), INT64)
    work = lapack.eigh(n, vectors=False) if hermitian else lapack.svd(m, n, vectors=False)
    compared = 2 * out.numel * (n if hermitian else dim_min(m, n))
    return Estimate((out,), vector_flops=each(x, work) + compared, reads=(x, *limits))


rule("aten.linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor").derived(
    matrix_rank, order="x"
)


@rule("aten.linalg_cond")
def cond(x: TensorType, p: float | str | None = None) -> Estimate:
    """The ratio of the extreme singular values; other norms are taken of the matrix and of its inverse."""
    batch, m, n = matrices(x)
    out = x.like(batch, real_of(x.dtype))
    if p in (None, 2, -2):
        work = each(x, lapack.svd(m, n, vectors=False)) + out.numel
        return Estimate((out,), vector_flops=work, reads=(x,))
    norm = of_matrices(x, p or "fro")
    work = each(x, lapack.inverse(squares(x)[1])) + 2 * norm.vector_flops + out.numel
    return Estimate((out,), vector_flops=work, transcendentals=2 * norm.transcendentals, reads=(x,))


@rule("aten.linalg_lstsq")
def lstsq(A: TensorType, B: TensorType, *, driver: str | None = None) -> Estimate:
    """QR for the drivers gels and gelsy (the default on CPU), singular values for gelsd and gelss; residuals if tall."""
    batch, m, n = matrices(A)
    require(0 <= A.rank - B.rank <= 1, f"right sides of {B.rank} axes for {A}")
    vector = B.rank == 1 or (B.rank < A.rank and not any(map(differ, B.shape, A.shape)))
    sides, rows = (1, B.shape[-1]) if vector else (B.shape[-1], B.shape[-2])
    meet(m, rows, f"{rows} right sides for {m} rows")
    shared = broadcast(batch, B.shape[: A.rank - 2])
    by_values = driver in ("gelsd", "gelss")
    by_svd = lapack.svd(m, n) + 2 * (m + n) * dim_min(m, n) * sides
    work = by_svd if by_values else lapack.least_squares(m, n, sides)
    tall = (by_values or driver == "gels") and same(dim_max(m, n), m) and differ(m, n)
    out = (
        A.like((*shared, n) if vector else (*shared, n, sides)),
        A.like((*shared, sides), real_of(A.dtype)) if tall else A.like((0,), real_of(A.dtype)),
        A.like((0,) if driver == "gels" else batch, INT64),
        A.like((*batch, dim_min(m, n)) if by_values else (0,), real_of(A.dtype)),
    )
    return Estimate(out, vector_flops=each(A.like((*shared, m, n)), work), reads=(A, B))


POLYNOMIAL_PRODUCTS = 5  # in a Taylor polynomial of degree 18 (Bader, Blanes and Casas, 2019)


@rule("aten.linalg_matrix_exp", "aten.matrix_exp")
def matrix_exp(x: TensorType) -> Estimate:
    """Five products for the polynomial, and as many squarings as the norm asks for."""
    _, n = squares(x)
    products = POLYNOMIAL_PRODUCTS + data_dependent("squarings")
    return Estimate((x.like(),), matrix_flops=each(x, products * 2 * n * n * n), reads=(x,))


@rule("aten.matrix_exp_backward")
def matrix_exp_backward(x: TensorType, grad: TensorType) -> Estimate:
    """The exponential of a block matrix of twice the order."""
    return replace(matrix_exp(x), matrix_flops=2**3 * matrix_exp(x).matrix_flops, reads=(x, grad))


backward("aten.linalg_matrix_exp", "aten.matrix_exp")(lambda call: matrix_exp_backward(call["x"], call["x"]))
