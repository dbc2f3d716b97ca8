"""A type checker sees the types of the public names from outside of the package (`py.typed`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSUMER = """
import graphflops
from graphflops.cost import Estimate
from graphflops.rules import rule
from graphflops.tensor import TensorType

report = graphflops.analyze("model.pt2", dims={"batch": 4})
reveal_type(report)
reveal_type(report.total().matrix_flops)
reveal_type(graphflops.compare(report, report))

@rule("mylib.scale")
def scale(x: TensorType) -> Estimate:
    return Estimate((x.like(),), vector_flops=x.numel, reads=(x,))

graphflops.analyze("model.pt2", dims=4)
"""


def test_a_type_checker_sees_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "consumer.py").write_text(CONSUMER)
    # With the options and the cache of the package's own check, which would take a quarter of a minute again.
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(tmp_path / "consumer.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if "consumer.py:" in line]
    assert [line.partition(": ")[2] for line in said] == [
        'note: Revealed type is "graphflops.report.Report"',
        'note: Revealed type is "int | graphflops.dims.expr.Expr"',
        'note: Revealed type is "graphflops.comparison.result.Comparison"',
        'error: Argument "dims" to "analyze" has incompatible type "int"; expected "Mapping[str, int] | None"  [arg-type]',
    ]
