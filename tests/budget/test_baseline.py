"""The baseline: what is in it, and that it reads well in a diff."""

from __future__ import annotations

import json

import pytest

from graphflops.base.units import starred
from graphflops.budget import baseline, limits
from graphflops.budget.measure import Measures
from graphflops.errors import FileError
from tests.render.reports import decoder

(BUDGET,) = limits.given({"modules": {"blocks.*": {"macs": "+1 %"}, "head": {"macs": 1}}}).budgets
MEASURED = baseline.measured(Measures(decoder(3)), [BUDGET])
TEXT = baseline.to_json({"b.onnx": {"": MEASURED}, "a.onnx": {"ids[1]=8": MEASURED, "": MEASURED}})


def test_it_is_read_as_it_was_written() -> None:
    assert baseline.from_json(TEXT.encode(), "x") == {
        "a.onnx": {"": MEASURED, "ids[1]=8": MEASURED},
        "b.onnx": {"": MEASURED},
    }
    assert baseline.to_json(baseline.from_json(TEXT.encode(), "x")) == TEXT


def test_it_holds_what_limits_compare_with() -> None:
    assert MEASURED.sizes == {"ids[0]": 3, "ids[1]": 7}
    assert MEASURED.totals["parameters"] == decoder(3).parameters
    assert list(MEASURED.modules) == ["blocks.0", "blocks.1", "blocks.2"]  # head has no relative limit
    assert all("0" not in name and name for name in MEASURED.lines)


def test_it_is_sorted_with_one_line_for_each_fact() -> None:
    assert list(json.loads(TEXT)["models"]) == ["a.onnx", "b.onnx"]
    lines = TEXT.splitlines()
    names = [line.split('"')[1] for line in lines if line.startswith('    "')]
    assert len(names) == 3 * len(set(names))
    assert not any(line != line.rstrip() for line in lines)
    assert TEXT.endswith("}\n")


def test_more_layers_change_numbers_and_add_no_line() -> None:
    more = baseline.to_json({"a": {"": baseline.measured(Measures(decoder(30)), [])}})
    less = baseline.to_json({"a": {"": baseline.measured(Measures(decoder(3)), [])}})
    assert more.count("\n") == less.count("\n")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"schema": 2, "models": {}}',
        b'{"schema": 1, "models": {"a": 1}}',
        b"\xff",
        b"[" * 9999,
        b'{"schema": 1, "models": {"a": {"": {"totals": {"max_seconds": 1e308}}}}}',
    ],
)
def test_what_is_no_baseline(data: bytes) -> None:
    with pytest.raises(FileError, match=r"^costs\.json: no baseline of schema 1: .*--update$"):
        baseline.from_json(data, "costs.json")


@pytest.mark.parametrize(
    "path, collapsed",
    [
        ("blocks.0.fc", "blocks.*.fc"),
        ("0.1", "*.*"),
        ("conv2d.w1", "conv2d.w1"),
        ("blocks.10", "blocks.*"),
        ("", ""),
    ],
)
def test_numbers_in_paths(path: str, collapsed: str) -> None:
    assert starred(path) == collapsed
