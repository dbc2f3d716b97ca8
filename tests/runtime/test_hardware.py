"""What counters say is put beside each call: the verdicts, with a stand-in for the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphflops
from graphflops.analysis import as_graph
from graphflops.errors import ModelError
from graphflops.runtime import isolated
from graphflops.runtime.counters import KernelCount, RangeCount, range_name

CONVNET = Path(__file__).parents[2] / "samples" / "convnet.pt2"


def kernel(flops: int, name: str = "sm90_gemm_kernel") -> RangeCount:
    """One kernel that did so many FLOPs of bfloat16 on the tensor cores, and read and wrote 3 + 4 bytes."""
    return RangeCount((KernelCount(name, {"bfloat16": flops}, {}, (1, 1, 1), 3, 4),))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counters as given: by operator, how many times the model's FLOPs; None launches nothing."""

    def with_counters(times: dict[str, float | None]) -> Any:
        found = graphflops.validate(as_graph(CONVNET), repeats=0)  # in this process
        report = graphflops.analyze(CONVNET)
        counted = {
            range_name(node.row): kernel(int((node.flops or 0) * (times.get(node.op, 1) or 0)))
            for node in found.nodes
            if node.flops and times.get(node.op, 1) is not None
        }
        commands: list[list[str]] = []
        monkeypatch.setattr(isolated, "measure", lambda argv: commands.append(argv) or counted)
        told = isolated.with_counters(found, report, {"dims": {}})
        assert commands[0][1] == "-c"
        return {node.op: node for node in told.nodes}, told

    return with_counters


def test_equal_counts_hold(asked: Any) -> None:
    nodes, told = asked({})
    assert told.holds
    linear = nodes["aten.linear.default"]
    assert [check.verdict for check in linear.checks if check.what == "hardware"] == ["equal"]
    assert linear.counted_bytes == 3 + 4


@pytest.mark.parametrize("times", [0.5, 1.37, None])
def test_other_counts_differ(asked: Any, times: float | None) -> None:
    nodes, told = asked({"aten.linear.default": times})
    assert not told.holds
    assert nodes["aten.linear.default"].verdict == "different"
    assert nodes["aten.relu.default"].verdict == "equal"


def test_where_there_are_no_counters(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give --device cuda"):
        graphflops.validate(CONVNET, counters="hardware")
