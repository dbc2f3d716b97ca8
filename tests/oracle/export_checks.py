"""Healthy exports keep the work, module by module: `python -m tests.oracle.export_checks [MODEL...]`.

Each model of export_models.py is exported by both exporters and quantized by onnxruntime; at the sizes of the export every
module to depth 3 has the matrix FLOPs that it has in the `.pt2`, and the export check finds nothing unexplained. Prints a line for each export; exits 1 if one deviates.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from graphflops.comparison.models import compare
from graphflops.dims import evaluate
from tests.oracle.export_models import MODELS, export

if TYPE_CHECKING:
    from graphflops.comparison.result import Comparison
    from graphflops.report import Report

DEPTH = 3


def deviations(comparison: Comparison) -> dict[str, tuple[int, int]]:
    """By module to depth 3: matrix FLOPs before and after, where they differ."""
    before = _by_module(
        comparison.old, {str(size.before): size.value for size in comparison.sizes if size.value is not None}
    )
    after = _by_module(
        comparison.new, {str(size.after): size.value for size in comparison.sizes if size.value is not None}
    )
    return {path: (before[path], after[path]) for path in {**before, **after} if before[path] != after[path]}


def unexplained(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    """What the export check does not explain."""
    return [(entry.kind, entry.names) for entry in comparison.ledger if entry.status == "unexplained"]


def _by_module(report: Report, sizes: dict[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in report.rows:
        flops = evaluate(row.cost.matrix_flops, sizes)
        assert flops is not None, f"{row.node} has {row.cost.matrix_flops} FLOPs"
        found[".".join(row.module.split(".")[:DEPTH])] += flops
    return found


def main(names: list[str]) -> int:
    wrong = 0
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            files = export(name, Path(folder))
            program = files.pop("pt2")
            for kind, path in files.items():
                comparison = compare(program, path)
                found = [deviations(comparison), unexplained(comparison)]
                wrong += any(found)
                print(f"{name} {kind}: {[part for part in found if part] or 'agrees'}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
