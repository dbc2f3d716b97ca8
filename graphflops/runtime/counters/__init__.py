"""Reads a GPU's hardware counters with Nsight Compute, and explains how they differ from the analysis."""

from graphflops.runtime.counters.explain import Explanation, Tile, Verdict, explain, explain_row, tile_of
from graphflops.runtime.counters.ncu import KernelCount, RangeCount, available, measure, range_name, read_csv

__all__ = [
    "Explanation", "KernelCount", "RangeCount", "Tile", "Verdict", "available", "explain", "explain_row",
    "measure", "range_name", "read_csv", "tile_of",
]  # fmt: skip
