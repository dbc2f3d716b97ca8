"""`--sweep`: a report's formulas at many sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from graphflops.analysis import analyze
from graphflops.cli import main
from graphflops.derived.resize import Sweep, beyond, resized, sweep
from graphflops.errors import ModelError
from graphflops.render.document import text as table
from graphflops.report.as_json import decoded
from tests.render.reports import with_unknown

MODEL = Path(__file__).parents[1] / "samples" / "gqa_transformer.pt2"


def run(*args: str) -> str:
    result = CliRunner().invoke(main, ["analyze", str(MODEL), *args], prog_name="graphflops")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("training", [False, True])
def test_each_point_is_the_analysis_at_these_sizes(training: bool) -> None:
    points = sweep(analyze(MODEL, training=training), {"ids[0]": (1, 3), "s27": (64, 128)})
    assert [dict(point.sizes) for point in points] == [
        {"ids[0]": batch, "s27": length} for batch in (1, 3) for length in (64, 128)
    ]
    for point in points:
        report = analyze(
            MODEL, dims={"s23": point.sizes["ids[0]"], "s27": point.sizes["s27"]}, training=training
        )
        whole = report.step() or report.totals
        assert point.cost == {name: getattr(whole.cost, name) for name in point.cost}
        assert point.peak_bytes == whole.peak_bytes
        moved = whole.cost.read_bytes + whole.cost.written_bytes
        assert point.traffic == moved
        assert point.intensity == pytest.approx(whole.cost.matrix_flops / moved)  # type: ignore[operator]


def test_the_table_has_a_line_for_each_size() -> None:
    lines = run("--sweep", "ids[1]=128,8192").splitlines()
    assert lines[0].split()[:3] == ["ids[1]", "FLOPs", "visible"]
    assert [line.split()[0] for line in lines[1:]] == ["128", "8,192"]


def test_calls_of_unknown_cost_make_every_figure_the_least() -> None:
    report = analyze(MODEL)
    found = Sweep.of(with_unknown(report), {"ids[1]": (128,)})
    known, line = (
        table(each, width=500).splitlines()[1].split()
        for each in (Sweep.of(report, {"ids[1]": (128,)}), found)
    )
    assert found.points[0].intensity is None  # FLOPs or bytes may be more
    assert ">=" not in known
    assert line.count(">=") == 6  # FLOPs, visible ones, vector ones, transcendentals, bytes, peak memory
    assert "my.fused.default" in found.notes[0]


def test_programs_read_whole_numbers() -> None:
    rows = json.loads(run("--sweep", "s27=128", "--format", "json"))
    assert rows[0]["s27"] == 128
    # Four blocks and a head: 409,600 a token and 1,024 a pair, two sequences.
    assert rows[0]["matrix_flops"] == 409_600 * 2 * 128 + 1_024 * 2 * 128 * 128


def test_sizes_that_are_always_equal() -> None:
    (point,) = sweep(analyze(MODEL), {"ids[0]=ids[1]": (64,)})
    (other,) = sweep(analyze(MODEL), {"ids[0]": (64,), "ids[1]": (64,)})
    assert point.cost == other.cost
    assert run("--sweep", "ids[0] = ids[1] = 64,128").split()[:3] == ["ids[0]", "=", "ids[1]"]


def test_a_page_holds_the_points(tmp_path: Path) -> None:
    run("--sweep", "ids[1]=128,8192", "--output", str(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text("utf-8")
    assert '<td class="figure">8,192</td>' in text
    assert "<svg" in text


def test_sizes_that_the_program_was_not_exported_for(tmp_path: Path) -> None:
    # It was for 1 to 64 sequences of 2 to 4,096.
    report = analyze(MODEL)
    assert beyond(report, {"ids[0]": (1, 64), "ids[1]": (2, 4096)}) == []
    (line,) = beyond(report, {"ids[0]": (1, 65), "ids[1]": (2, 4096)})
    assert line == "ids[0] = 65: the program was exported for 1..64"
    path = tmp_path / "report.html"
    args = ["analyze", str(MODEL), "--sweep", "ids[1]=1,128,5000", "--output", str(path)]
    result = CliRunner().invoke(main, args, prog_name="graphflops")
    assert result.exit_code == 0
    assert "ids[1] = 1, 5,000: the program was exported for 2..4,096" in result.stderr
    assert "ids[1] = 1, 5,000: the program was exported for 2..4,096" in path.read_text("utf-8")


def test_a_device_adds_time_throughput_and_price_in_every_format(tmp_path: Path) -> None:
    options = ("--device", "h200", "--price-per-hour", "3.6", "--sweep", "ids[1]=8,64")
    for row in json.loads(run(*options, "--format", "json")):
        tokens = 2 * row["ids[1]"] / row["seconds"]  # two sequences
        assert row["samples_per_second"] == pytest.approx(2 / row["seconds"])
        assert row["tokens_per_second"] == pytest.approx(tokens)
        assert row["price_of_a_million_tokens"] == pytest.approx(1e6 / tokens / 1000)
    heads = run(*options, "--format", "csv").splitlines()[0].split(",")
    assert heads[-4:] == [
        *("samples_per_second", "tokens_per_second"),
        *("price_of_a_million_samples", "price_of_a_million_tokens"),
    ]
    page = tmp_path / "page.html"
    run(*options, "--output", str(page))
    for text in (run(*options), run(*options, "--format", "markdown"), page.read_text("utf-8")):
        for head in ("time", "90 % interval", "samples/s", "tokens/s", "price of 1 M tokens"):
            assert head in text


def test_a_saved_report_has_no_times_at_other_sizes_and_says_so(tmp_path: Path) -> None:
    run("--device", "h200", "--output", str(tmp_path / "report.json"))
    arguments = ["analyze", str(tmp_path / "report.json"), "--sweep", "ids[1]=8,64"]
    result = CliRunner().invoke(main, arguments, prog_name="graphflops")
    assert (result.exit_code, "seconds" in result.stdout) == (0, False)
    assert "a saved report has none at other sizes" in result.stderr


def test_wrong_sweeps() -> None:
    with pytest.raises(ModelError, match=r"length: no such size; the program has ids\[0\], ids\[1\]"):
        sweep(analyze(MODEL), {"length": (1, 2)})
    with pytest.raises(ModelError, match="s27 is 8 in the report, which does not hold it open"):
        sweep(analyze(MODEL, dims={"s27": 8}), {"s27": (1, 2)})
    with pytest.raises(ModelError, match="10,000"):
        sweep(analyze(MODEL), {"s23": range(1, 1_000), "s27": range(1, 1_000)})
    with pytest.raises(ModelError, match=r"ids\[1\] twice"):
        sweep(analyze(MODEL), {"s27": (1, 2), "ids[1]": (1, 2)})
    with pytest.raises(ModelError, match=r"ids\[2\]: ids has 2 axes"):
        sweep(analyze(MODEL), {"ids[0]=ids[2]": (1, 2)})
    for args in (["--by", "op"], ["--format", "dot"], ["--depth", "2"]):
        result = CliRunner().invoke(main, ["analyze", str(MODEL), "--sweep", "s27=8", *args])
        assert result.exit_code == 2


def test_a_peak_at_a_moment_that_the_formula_leaves_out(tmp_path: Path) -> None:
    """x copies of a beside y of b, in turn, for x and y on a quarter of a circle of 100: at a = 1000 it is the last one."""
    turns = [(x, math.isqrt(100**2 - x**2)) for x in range(0, 101, 4)]
    calls = []
    for turn, (x, y) in enumerate(turns):
        calls.append(helper.make_node("Concat", ["a"] * x + ["b"] * y, [f"joined_{turn}"], axis=0))
        calls.append(helper.make_node("ReduceSum", [f"joined_{turn}"], [f"sum_{turn}"], keepdims=0))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [name.upper()]) for name in "ab"]
    results = [helper.make_tensor_value_info(f"sum_{turn}", TensorProto.FLOAT, []) for turn in range(26)]
    graph = helper.make_graph(calls, "g", inputs, results)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    report = analyze(path)
    (point,) = sweep(report, {"A": [1000], "B": [1]})
    assert point.peak_bytes == 4 * (100 * 1000 + 1000 + 1 + len(turns))  # a and b beside it, and the sums
    at_sizes = resized(report, {"A": 1000, "B": 1}, {})
    assert (
        at_sizes.totals.peak_bytes
        == analyze(path, dims={"A": 1000, "B": 1}).totals.peak_bytes
        == point.peak_bytes
    )
    for device in (None, "h200"):
        half = resized(analyze(path, device=device), {"A": 1000}, {})  # B = 64 is assumed
        assert not [one for one in decoded(half.to_json()).diagnostics if one.code == "GF120"]
