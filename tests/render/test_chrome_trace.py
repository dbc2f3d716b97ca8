"""A trace of predicted times: one event a call, one after another, inside of its modules and its phase."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphflops import analyze
from graphflops.errors import OptionError
from graphflops.render import render
from graphflops.report import Report

SAMPLE = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"


def tracks(report: Report) -> dict[str, list[dict[str, Any]]]:
    """The events by the name of their track."""
    events = json.loads(render(report, "chrome-trace"))["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for one in events:
        if one["ph"] == "X":
            found[names[one["tid"]]].append(one)
    return found


def end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def test_calls_follow_one_another_for_as_long_as_the_step() -> None:
    report = analyze(SAMPLE, device="h200", training=True)
    found = tracks(report)
    assert report.step_time is not None
    assert [one["name"] for one in found["phases"]] == ["forward", "backward", "optimizer"]
    assert end(found["phases"][-1]) == pytest.approx(1e6 * report.step_time.seconds)
    assert all(after["ts"] == pytest.approx(end(one)) for one, after in pairwise(found["calls"]))
    # The sum of the results, of which gradients are taken, belongs to no call.
    calls = [one for one in found["calls"] if one["name"] != "outside of calls"]
    assert 0 < len(found["calls"]) - len(calls) <= 2
    rows = [row for row in report.rows if row.time is not None and row.time.seconds]
    assert [one["args"]["node"] for one in calls[: len(rows)]] == [row.node for row in rows]


def test_a_call_is_inside_of_its_modules() -> None:
    found = tracks(analyze(SAMPLE, device="h200"))
    (call,) = [one for one in found["calls"] if one["args"].get("module") == "blocks.2.attention.q"]
    around = [
        one["name"] for one in found["modules"] if one["ts"] <= call["ts"] and end(call) <= end(one) + 1e-6
    ]
    assert sorted(around) == ["2", "attention", "blocks", "q"]


def test_a_report_without_device_has_no_trace() -> None:
    with pytest.raises(OptionError, match="name a device with --device"):
        render(analyze(SAMPLE), "chrome-trace")
