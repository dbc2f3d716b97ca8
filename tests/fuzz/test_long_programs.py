"""Programs of three times as many calls take about three times as much work, whatever their shape and the options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphflops import Training, analyze
from tests.fuzz.long_programs import SHAPES, written

SHORT, LONG = 300, 900
OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"execution": "eager", "training": True},
    "compiled": {"execution": "compiled", "training": True},
    "checkpoints": {"execution": "eager", "training": Training(recompute=("*",))},
}


def lines_run(path: Path, options: dict[str, Any]) -> int:
    """Lines of Python that an analysis runs: a measure of work that other programs on the machine do not disturb."""
    count = 0

    def traced(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return traced

    sys.settrace(traced)
    try:
        analyze(path, device="h200", **options)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_work_is_linear(shape: Callable[[int], Any], options: str, tmp_path: Path) -> None:
    if options == "checkpoints" and shape.__name__ != "layers":
        pytest.skip("no modules to run again")
    short, long = (written(shape, count, tmp_path / f"{count}.pt2") for count in (SHORT, LONG))
    given = OPTIONS[options]
    lines_run(short, given)  # imports, and what is read once
    assert lines_run(long, given) < 1.5 * LONG / SHORT * lines_run(short, given)
