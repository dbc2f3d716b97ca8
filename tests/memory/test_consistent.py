"""Programs that contradict themselves: memory and time are still predicted, or said to be at least so much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphflops import analyze
from tests.exporters.build import call, meta, program, save, tensor

ATEN = "torch.ops.aten."


def written(path: Path, nodes: list[Any], values: dict[str, Any], inputs: list[str]) -> Path:
    entries = [{"user_input": {"arg": tensor(name)}} for name in inputs]
    return save(path, program(nodes, values, entries, [{"user_output": {"arg": tensor("y")}}]))


def transposed(path: Path) -> Path:
    """A transposed 4-axis tensor, recorded with 3 axes, and a product that reads it."""
    nodes = [
        call(f"{ATEN}transpose.int", tensor("x"), {"as_int": 1}, {"as_int": 2}, out="t"),
        call(f"{ATEN}matmul.default", tensor("t"), tensor("w")),
    ]
    values = {"x": meta(2, 8, 4, 16), "t": meta(2, 4, 128), "w": meta(128, 64), "y": meta(2, 4, 64)}
    return written(path, nodes, values, ["x", "w"])


def convolved(path: Path) -> Path:
    """A convolution of images, recorded with 3 axes."""
    nodes = [call(f"{ATEN}conv2d.default", tensor("x"), tensor("w"), tensor("b"))]
    values = {"x": meta(2, 3, 8, 8), "w": meta(4, 3, 3, 3), "b": meta(4), "y": meta(2, 4, 6)}
    return written(path, nodes, values, ["x", "w", "b"])


def of_few_axes(path: Path) -> Path:
    """A convolution by a weight of one axis, which has no rule."""
    nodes = [call(f"{ATEN}conv2d.default", tensor("x"), tensor("w"))]
    values = {"x": meta(2, 3, 8, 8, dtype=6), "w": meta(4, dtype=6), "y": meta(2, 4, 6, 6, dtype=6)}
    return written(path, nodes, values, ["x", "w"])


def without_operands(path: Path) -> Path:
    """A checkpointed graph that is called without the graph."""
    nodes = [call("torch.ops.higher_order.wrap_activation_checkpoint")]
    return written(path, nodes, {"x": meta(4), "y": meta(4)}, ["x"])


@pytest.mark.parametrize("execution", ["eager", "graph", "compiled"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("made", [transposed, convolved, of_few_axes, without_operands])
def test_a_contradiction_has_memory_and_time(
    made: Any, training: bool, execution: Any, tmp_path: Path
) -> None:
    report = analyze(made(tmp_path / "m.pt2"), device="h200", training=training, execution=execution)
    assert report.diagnostics
    assert report.totals.time is not None
    if made in (of_few_axes, without_operands):
        assert report.totals.time.is_lower_bound
    else:
        assert report.totals.time.seconds > 0
        assert report.memory_use[-1].device_total


def test_a_result_that_nobody_reads_contradicts_nothing(tmp_path: Path) -> None:
    """The second result of max is recorded with other sizes, as kernels of some devices keep other statistics."""
    nodes = [
        call(f"{ATEN}max.dim", tensor("x"), {"as_int": 1}, out=[tensor("y"), tensor("i")]),
    ]
    values = {"x": meta(64, 1024), "y": meta(64), "i": meta(7, 7, dtype=5)}
    report = analyze(written(tmp_path / "m.pt2", nodes, values, ["x"]), device="h200")
    (row,) = report.rows
    assert row.time is not None
    assert row.time.kernel == "reduction"
