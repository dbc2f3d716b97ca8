"""Counts that contain a logarithm, for concrete and symbolic sizes."""

from __future__ import annotations

import math

from graphflops.dims import Dim, call, floor_div


def n_log_n(n: Dim, times: int = 1) -> Dim:
    """`times` times n*log2(n), rounded down; exact where n is a power of two, 0 for n below two."""
    if isinstance(n, int):
        return math.floor(times * n * math.log2(n)) if n > 1 else 0
    return floor_div(times * n * call("log2", n), 1)


def halvings(n: Dim) -> Dim:
    """Comparisons of a binary search among n sorted values: floor(log2(n)) + 1."""
    return n.bit_length() if isinstance(n, int) else floor_div(call("log2", n), 1) + 1
