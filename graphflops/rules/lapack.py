"""Floating-point operations of one dense factorization or solve, leading terms only; counts that contain a logarithm.

Sources: Blackford and Dongarra, LAPACK Working Note 41, appendix C (factorizations, solves, Householder
products); Golub and Van Loan, Matrix Computations (singular values by Golub and Reinsch, eigenvalues by QR
iteration). Thirds are rounded down.
"""

import math

from graphflops.dims import Dim, call, dim_max, dim_min, floor_div


def n_log_n(n: Dim, times: int = 1) -> Dim:
    """`times` times n*log2(n), rounded down; exact where n is a power of two, 0 for n below two."""
    if isinstance(n, int):
        return math.floor(times * n * math.log2(n)) if n > 1 else 0
    return floor_div(times * n * call("log2", n), 1)


def halvings(n: Dim) -> Dim:
    """Comparisons of a binary search among n sorted values: floor(log2(n)) + 1."""
    return n.bit_length() if isinstance(n, int) else floor_div(call("log2", n), 1) + 1


def lu(m: Dim, n: Dim) -> Dim:
    """Row-pivoted elimination: m*n^2 - n^3/3 for m >= n, so 2/3 n^3 for a square."""
    short, long = dim_min(m, n), dim_max(m, n)
    return floor_div(short * short * (3 * long - short), 3)


def cholesky(n: Dim) -> Dim:
    """n^3/3; the symmetric indefinite LDL^T takes as many."""
    return floor_div(n * n * n, 3)


def inverse(n: Dim) -> Dim:
    """Elimination and the inverse from its factors: 2 n^3."""
    return 2 * n * n * n


def triangular_solve(n: Dim, right: Dim) -> Dim:
    """n^2 per right-hand side; twice that where two triangles are solved."""
    return n * n * right


def qr(m: Dim, n: Dim) -> Dim:
    """Householder reflectors and R: 2*m*n^2 - 2/3 n^3 for m >= n."""
    short, long = dim_min(m, n), dim_max(m, n)
    return floor_div(2 * short * short * (3 * long - short), 3)


def householder_product(m: Dim, n: Dim, k: Dim) -> Dim:
    """The first n columns of Q from k reflectors of length m: 4*m*n*k - 2*(m + n)*k^2 + 4/3 k^3."""
    return floor_div(12 * m * n * k - 6 * (m + n) * k * k + 4 * k * k * k, 3)


def householder_apply(m: Dim, n: Dim, k: Dim) -> Dim:
    """Q of k reflectors of length m times a matrix of n columns: 4*m*n*k - 2*n*k^2."""
    return 4 * m * n * k - 2 * n * k * k


def svd(m: Dim, n: Dim, vectors: bool = True, full: bool = False) -> Dim:
    """For m >= n: 4mn^2 - 4/3 n^3 for the values, 14mn^2 + 8n^3 thin, 4m^2n + 8mn^2 + 9n^3 with all of U."""
    short, long = dim_min(m, n), dim_max(m, n)
    square = short * short
    if not vectors:
        return floor_div(4 * square * (3 * long - short), 3)
    if full:
        return 4 * long * long * short + 8 * long * square + 9 * short * square
    return 14 * long * square + 8 * short * square


def eigh(n: Dim, vectors: bool = True) -> Dim:
    """Symmetric QR iteration: 4/3 n^3 for the eigenvalues, 9 n^3 with eigenvectors."""
    return 9 * n * n * n if vectors else floor_div(4 * n * n * n, 3)


def eig(n: Dim, vectors: bool = True) -> Dim:
    """Unsymmetric QR iteration: 10 n^3 for the eigenvalues, 25 n^3 with the Schur vectors."""
    return (25 if vectors else 10) * n * n * n


def least_squares(m: Dim, n: Dim, right: Dim) -> Dim:
    """Householder QR: the factorization, its reflectors applied to the right-hand sides, and a triangular solve."""
    short = dim_min(m, n)
    return qr(m, n) + householder_apply(dim_max(m, n), right, short) + triangular_solve(short, right)
