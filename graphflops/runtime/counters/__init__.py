"""Reads a GPU's hardware counters with Nsight Compute, and explains how they differ from the analysis."""

from graphflops.runtime.counters.explain import Explanation, Tile, Verdict, explain, explain_row, tile_of
from graphflops.runtime.counters.ncu import KernelCount, RangeCount, available, measure, range_name, read_csv
from graphflops.runtime.counters.problems import (
    AttentionProblem,
    KernelJob,
    MatrixProduct,
    Products,
    TiledAxis,
    problem_of,
)

__all__ = [
    "AttentionProblem", "Explanation", "KernelCount", "KernelJob", "MatrixProduct", "Products", "RangeCount",
    "Tile", "TiledAxis", "Verdict", "available", "explain", "explain_row", "measure", "problem_of",
    "range_name", "read_csv", "tile_of",
]  # fmt: skip
