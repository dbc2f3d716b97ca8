"""Decompositions and solutions of matrices: the kernels of cuSOLVER, cuBLAS and MAGMA that PyTorch runs for them.

They are modelled as one kernel on all matrices. Some process all at once; others process large or all matrices one by one.
"""

from math import prod

from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import all_constants
from graphflops.kernels.kernel import Kernel, Product, Rows
from graphflops.kernels.products import multiplied

# The words of operators, by the way in which they process matrices.
_WAYS = {
    "lu": "linalg_lu linalg_lu_factor linalg_lu_factor_ex _lu_with_info linalg_ldl_factor linalg_ldl_factor_ex",
    "determinant": "det linalg_det _linalg_det slogdet linalg_slogdet _linalg_slogdet logdet",
    "inverse": "inverse linalg_inv linalg_inv_ex linalg_tensorinv "
    "linalg_solve linalg_solve_ex _linalg_solve_ex linalg_tensorsolve",
    "cholesky": "cholesky linalg_cholesky linalg_cholesky_ex",
    "cholesky_solve": "cholesky_solve cholesky_inverse",
    "triangular": "linalg_solve_triangular triangular_solve linalg_lu_solve lu_solve",
    "qr": "qr linalg_qr geqrf linalg_householder_product orgqr linalg_lstsq",
    "eigh": "linalg_eigh _linalg_eigh linalg_eigvalsh",
    "svd": "svd linalg_svd _linalg_svd linalg_svdvals linalg_pinv linalg_matrix_rank linalg_cond",
    "eig": "linalg_eig linalg_eigvals _linalg_eigvals",
    "exponential": "matrix_exp linalg_matrix_exp",
}
_WAY_OF = {word: way for way, words in _WAYS.items() for word in words.split()}
# Products, triangular solutions and copies of matrices in a gradient, by way (FunctionsManual.cpp of PyTorch).
_GRADIENTS = {
    "inverse": (2, 0, 1),
    "solve": (1, 1, 3),
    "triangular": (1, 1, 2),
    "cholesky": (1, 2, 2),
    "determinant": (0, 2, 3),
    "lu": (2, 2, 12),
    "qr": (3, 1, 6),
    "eigh": (3, 0, 7),
    "svd": (4, 0, 14),
}
# Kernels that the CPU launches for all matrices, and for each, by way.
_OF_ALL = all_constants("aten_2", "launches.decomposition")
_OF_EACH = all_constants("aten_2", "launches.matrix")


def decomposition(call: ConcreteCall) -> list[Kernel]:
    """One kernel for all matrices of the operand; none if the way is not known."""
    way, cost = _way(call), call.cost
    return [_decomposed(way, call.operands[0], cost.arithmetic, *cost.moved)] if way else []


def decomposition_gradient(call: ConcreteCall) -> list[Kernel]:
    """Products, triangular solutions and copies of matrices; none if the way is not known."""
    way = _way(call)
    counts = _GRADIENTS.get("solve" if way == "inverse" and "solve" in call.operator.word else way)
    if counts is None:
        return []
    x, (products, solutions, copies) = call.operands[0], counts
    batch, n, nbytes = prod(x.shape[:-2]), min(x.shape[-2:]), x.full_bytes
    product = multiplied(Product(n, n, n, batch, "nn"), x)
    copy = Kernel("copy", x.dtype, 0, 0, nbytes, nbytes, variant="strided")
    solution = _decomposed("triangular", x, 0, nbytes, nbytes)
    return [product] * products + [solution] * solutions + [copy] * copies


def _decomposed(way: str, x: Tensor, work: int, read: int, written: int) -> Kernel:
    rows = Rows(prod(x.shape[:-2]), min(x.shape[-2:]))
    launches = int(_OF_ALL.get(way, 1) + _OF_EACH.get(way, 0) * rows.rows)
    return Kernel("decomposition", x.dtype, 0, work, read, written, rows, way, launches)


def _way(call: ConcreteCall) -> str:
    x = next(iter(call.operands), None)
    is_known = x is not None and x.rank >= 2 and x.numel > 0
    return _WAY_OF.get(call.operator.word, "") if is_known else ""
