"""The memory snapshot, read by PyTorch's own tools."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops import analyze
from graphflops.cli import main

DECODER = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"


def test_the_trace_peaks_where_the_ledger_does() -> None:
    from graphflops.render.memory import snapshot

    report = analyze(DECODER, training=True, device="h200")
    data = pickle.loads(snapshot(report))
    live = most = 0
    blocks: dict[int, int] = {}
    for event in data["device_traces"][0]:
        if event["action"] == "alloc":
            blocks[event["addr"]] = event["size"]
            live += event["size"]
            most = max(most, live)
        elif event["action"] == "free_completed":
            live -= blocks.pop(event["addr"])
    assert most == report.value(report.memory_use[-1].requested_peak)
    for segment in data["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert sum(segment["requested_size"] for segment in data["segments"]) == live


def test_pytorch_draws_it(tmp_path: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "step.pickle"
    done = CliRunner().invoke(
        main, ["analyze", str(DECODER), "--training", "--device", "h200", "--output", str(path)]
    )
    assert done.exit_code == 0, done.output
    data = pickle.loads(path.read_bytes())
    assert "Active Memory Timeline" in viz.trace_plot(data)
    reserved = sum(segment["total_size"] for segment in data["segments"])
    assert f"total_reserved: {reserved / 2**20:.1f}MiB" in viz.segsum(data)
    assert "cudaMalloc(2097152, 2.0MiB)" in viz.trace(data)


def test_without_a_device_it_says_what_is_missing(tmp_path: Path) -> None:
    given = ["analyze", str(DECODER), "--format", "memory-snapshot", "--output", str(tmp_path / "step")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 2
    assert "--device" in done.output
