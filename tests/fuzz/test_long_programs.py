"""Programs of three times as many calls take about three times as much work, whatever their shape and the options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphflops import Training, analyze, compare
from graphflops.base.limits import MOST, Limits, limited
from graphflops.errors import DimError, LimitError
from graphflops.render.formats import render
from tests.exporters.build import meta, program, save, size
from tests.fuzz import heavy_sizes
from tests.fuzz.long_programs import SHAPES, written

FIRST, SHORT, LONG = 10, 300, 900
OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"execution": "eager", "training": True},
    "compiled": {"execution": "compiled", "training": True},
    "checkpoints": {"execution": "eager", "training": Training(recompute=("*",))},
}


def lines_run(path: Path, options: dict[str, Any], device: str | None = "h200") -> int:
    """Lines of Python that an analysis runs: a measure of work that other programs on the machine do not disturb."""
    count = 0

    def traced(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return traced

    sys.settrace(traced)
    try:
        analyze(path, device=device, **options)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_work_is_linear(shape: Callable[[int], Any], options: str, tmp_path: Path) -> None:
    if options == "checkpoints" and shape.__name__ != "layers":
        pytest.skip("no modules to run again")
    first, short, long = (written(shape, count, tmp_path / f"{count}.pt2") for count in (FIRST, SHORT, LONG))
    given = OPTIONS[options]
    analyze(first, device="h200", **given)  # imports, and what is read once
    assert lines_run(long, given) < 1.5 * LONG / SHORT * lines_run(short, given)


@pytest.mark.parametrize("shape", heavy_sizes.SHAPES, ids=lambda shape: shape.__name__)
def test_work_on_open_sizes_is_linear(shape: Callable[[int], Any], tmp_path: Path) -> None:
    first, short, long = (tmp_path / f"{count}.onnx" for count in (FIRST, SHORT, LONG))
    for path in (first, short, long):
        path.write_bytes(heavy_sizes.written(shape, int(path.stem)))
    analyze(first)  # imports
    assert lines_run(long, {}, None) < 1.5 * LONG / SHORT * lines_run(short, {}, None)


def test_sizes_that_all_are_equal_become_one(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(heavy_sizes.written(heavy_sizes.pairs, 50))
    assert [*analyze(path).symbols] == ["s0"]


def test_sums_of_sizes_are_put_into_one_another(tmp_path: Path) -> None:
    """Each size is the sum of the next two: from the last two on, the numbers of Fibonacci."""
    path = tmp_path / "m.onnx"
    path.write_bytes(heavy_sizes.written(heavy_sizes.sums, 20))
    found = analyze(path, dims={"s10": 1, "s11": 1})
    assert [name.type.shape for name in found.inputs][::-1][:7] == [(n,) for n in (1, 1, 2, 3, 5, 8, 13)]


def test_formulas_too_large_to_compute_with_are_refused(tmp_path: Path) -> None:
    few = Limits(work={**MOST, "terms of sizes": 2_000})
    path = tmp_path / "m.onnx"
    path.write_bytes(heavy_sizes.written(heavy_sizes.products, 20))
    with (
        pytest.raises(LimitError, match=r"2,000 terms of sizes \(at Mul_\d+, onnx\.Mul\.14\): its formulas"),
        limited(few),
    ):
        analyze(path)
    text = "(a+b+c+d+e+f+g+h)*(k+l+m+n+o+p+q+r)*(s+t+u+v+w+x+y+z)"
    values = {"x": meta(*(size(f"{text}+{number}") for number in range(60))), "y": meta(4)}
    with pytest.raises(LimitError, match=r"2,000 terms of sizes \(at value x\): its formulas"), limited(few):
        analyze(save(tmp_path / "m.pt2", program(values=values)))


def test_sums_too_large_to_print_are_said_in_words(tmp_path: Path) -> None:
    """2,100 sizes, each named by the program when it runs: of all calls, no table has a formula."""
    path = tmp_path / "m.onnx"
    path.write_bytes(heavy_sizes.written(heavy_sizes.joined, 2_100))
    report = analyze(path, assume=False)
    assert "a formula too large to print" in render(report, "table")
    with pytest.raises(
        DimError, match=r"m\.onnx and .*m\.onnx: symbolic size grew past 2000 terms: give sizes$"
    ):
        compare(path, path, assume=False)
