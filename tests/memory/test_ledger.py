"""The memory of a program on a device: its parts, its peak, and what the allocator takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import analyze
from graphflops.dims import evaluate
from graphflops.report import PhaseMemory, Report

SAMPLES = Path(__file__).parents[2] / "samples"
PARTS = ("weights", "buffers", "inputs", "activations", "gradients", "optimizer", "temporaries", "workspaces")
BLOCK, SEGMENT = 512, 2 * 2**20  # what sizes are rounded to
BLAS = 32 * 2**20  # PyTorch's workspace of cuBLAS on a Hopper device


def phases(name: str, **options: object) -> tuple[Report, tuple[PhaseMemory, ...]]:
    report = analyze(SAMPLES / name, training=True, device="h200", **options)  # type: ignore[arg-type]
    return report, report.memory_use


@pytest.mark.parametrize(
    "name", ["gqa_transformer.pt2", "convnet.pt2", "lstm.pt2", "cond.pt2", "convnet.onnx"]
)
def test_the_parts_add_up_to_the_peak(name: str) -> None:
    report, entries = phases(name)
    assert [entry.phase for entry in entries] == ["inference", "training"]
    for entry in entries:
        parts = [report.value(getattr(entry, part)) or 0 for part in PARTS]
        peak = report.value(entry.requested_peak)
        assert peak == sum(parts)
        allocated, reserved = (
            report.value(size or 0) for size in (entry.allocated_peak, entry.reserved_peak)
        )
        assert peak is not None
        assert allocated is not None
        assert reserved is not None
        assert peak <= allocated <= reserved


def test_inference_holds_activations_parameters_and_one_workspace() -> None:
    report, (inference, _) = phases("gqa_transformer.pt2")
    assert inference.weights == report.parameter_bytes
    assert inference.workspaces == BLAS
    assert report.value(inference.requested_peak) == (
        report.parameter_bytes + (report.value(report.totals.peak_bytes) or 0) + BLAS
    )
    assert inference.execution == "eager"
    assert "H200" in inference.device


def test_adamw_holds_two_moments_and_its_step_a_temporary_of_all_parameters() -> None:
    report, (_, training) = phases("gqa_transformer.pt2")
    own = report.parameter_bytes
    assert (training.optimizer, training.gradients, training.temporaries) == (2 * own, own, own)
    assert training.peak_node == ""


def test_the_gradient_of_a_parameter_has_its_name() -> None:
    _, (_, training) = phases("gqa_transformer.pt2")
    held = {
        kind: {one.name for one in training.timeline.held if one.kind == kind}
        for kind in ("weight", "gradient")
    }
    assert "head.weight" not in held["weight"]  # it is that of the embedding
    assert held["weight"] <= held["gradient"]


def test_without_a_device_workspaces_and_context_are_not_known() -> None:
    (entry,) = analyze(SAMPLES / "gqa_transformer.pt2", execution="eager").memory_use
    assert (entry.device, entry.workspaces, entry.context, entry.device_total) == ("", None, None, None)


def test_a_plain_analysis_has_no_ledger() -> None:
    assert analyze(SAMPLES / "gqa_transformer.pt2").memory_use == ()


def test_an_open_size_leaves_the_allocator_open() -> None:
    (entry,) = analyze(SAMPLES / "gqa_transformer.onnx", device="h200", assume=False).memory_use
    assert entry.allocated_peak is None
    assert entry.execution == "graph"
    assert not isinstance(entry.requested_peak, int)


@pytest.mark.parametrize("sizes", [{"s23": 1, "s27": 8}, {"s23": 4, "s27": 32}])
def test_what_the_allocator_takes_is_a_formula(sizes: dict[str, int]) -> None:
    _, entries = phases("gqa_transformer.pt2")
    _, simulated = phases("gqa_transformer.pt2", dims=sizes)
    for entry, there in zip(entries, simulated, strict=True):
        for name, unit in (("allocated_peak", BLOCK), ("reserved_peak", SEGMENT)):
            formula, number = getattr(entry, name), getattr(there, name)
            assert abs(evaluate(formula, sizes) - number) < unit * len(there.timeline.held)
        assert entry.device_total == entry.reserved_peak + entry.context  # type: ignore[operator]


def test_json_keeps_the_ledger() -> None:
    report, _ = phases("gqa_transformer.pt2")
    assert Report.from_json(report.to_json()).memory_use == report.memory_use


def test_a_saved_report_at_other_sizes_is_that_of_an_analysis_there() -> None:
    report, _ = phases("gqa_transformer.pt2")
    _, expected = phases("gqa_transformer.pt2", dims={"ids[0]": 16, "ids[1]": 256})
    resized = analyze(report, dims={"ids[0]": 16, "ids[1]": 256}).memory_use
    for entry, other in zip(resized, expected, strict=True):
        for name in (
            *PARTS,
            "requested_peak",
            "allocated_peak",
            "reserved_peak",
            "device_total",
            "peak_node",
        ):
            assert getattr(entry, name) == getattr(other, name), name
