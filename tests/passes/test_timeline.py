"""What is held when: the curve of live memory against the peak, which is found by another way, and on programs by hand."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from graphflops import analyze
from graphflops.report import Held, Report, Timeline

SAMPLES = Path(__file__).parents[2] / "samples"
# Sizes that a file has no example of.
DIMS = {"gqa_transformer.onnx": {"batch": 2, "sequence": 16}}
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path.suffix in (".pt2", ".onnx"))
# A program that holds its gradients takes no further ones.
CASES = [
    (name, training)
    for name in NAMES
    for training in (False, True)
    if (name, training) != ("training_step.pt2", True)
]


def live(report: Report) -> list[int]:
    """Bytes alive at each moment, at the known sizes."""
    changes = [0] * (len(report.memory.rows) + 1)
    for held in report.memory.held:
        size = report.value(held.bytes)
        assert size is not None
        changes[held.first] += size
        changes[held.last + 1] -= size
    return [*accumulate(changes)][:-1]


@pytest.mark.parametrize(("name", "training"), CASES)
def test_the_most_that_is_held_is_the_peak(name: str, training: bool) -> None:
    report = analyze(SAMPLES / name, training=training, dims=DIMS.get(name))
    totals = report.backward if report.backward is not None else report.totals
    curve = live(report)
    assert max(curve) == report.value(totals.peak_bytes)
    node = report.rows[report.memory.rows[curve.index(max(curve))]].node
    assert node == totals.peak_node or totals.peak_node.startswith(f"{node}/")
    assert min(curve) >= 0


def test_every_call_is_a_moment_in_program_order() -> None:
    report = analyze(SAMPLES / "gqa_transformer.pt2")
    assert report.memory.rows == tuple(range(len(report.rows)))
    assert report.memory.gradients_from is None


def test_a_value_is_held_from_its_call_to_its_last_use() -> None:
    report = analyze(SAMPLES / "gqa_transformer.pt2", dims={"s23": 2, "s27": 16})
    held = {one.name: one for one in report.memory.held}
    end = len(report.rows) - 1
    assert held["ids"] == Held("ids", "input", 0, end, 2 * 16 * 8)
    place = {row.node: index for index, row in enumerate(report.rows)}
    assert held["linear_4"] == Held("linear_4", "value", place["linear_4"], place["mul"], 2 * 16 * 192 * 4)
    assert held["linear_24"].last == end, "the result is held to the end"
    assert "view" not in held, "a view holds nothing of its own"


def test_gradients_come_last_call_first() -> None:
    report = analyze(SAMPLES / "gqa_transformer.pt2", training=True)
    turn = report.memory.gradients_from
    assert turn == len(report.rows)
    back = report.memory.rows[turn:]
    assert list(back) == sorted(back, reverse=True)
    kinds = {held.kind for held in report.memory.held}
    assert {"input", "value", "gradient"} <= kinds
    assert all(held.first >= turn for held in report.memory.held if held.kind == "gradient")


@pytest.mark.parametrize("training", [False, True])
def test_json_reads_back(training: bool) -> None:
    report = analyze(SAMPLES / "cond.pt2", training=training)
    assert report.memory.held
    assert Report.from_json(report.to_json()).memory == report.memory


def test_a_report_without_it_reads_back() -> None:
    from dataclasses import replace

    report = replace(analyze(SAMPLES / "convnet.pt2"), memory=Timeline())
    assert b'"memory"' not in report.to_json()
    assert Report.from_json(report.to_json()).memory == Timeline()
