"""What requests wait for and keep, and how many fit: in plans, budgets, sweeps, the largest size and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import analyze, compare, fits, serve
from graphflops.budget import limits
from graphflops.ci.changes import loosened
from graphflops.cli import main
from graphflops.errors import FileError
from graphflops.fitting.cells import cell_of

pytest.importorskip("torch")

LAYERS, HIDDEN, HEADS, MLP, VOCABULARY = 2, 64, 4, 128, 100
EACH = HIDDEN // HEADS
LOAD = {"batch": 16, "context": 2048}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A step by its number of heads of keys and values."""
    from benchmarks.serving import export

    folder = tmp_path_factory.mktemp("steps")
    found = {}
    for heads in (4, 1):
        (folder / str(heads)).mkdir()
        found[heads], _ = export(folder / str(heads), LAYERS, HIDDEN, HEADS, heads, MLP, VOCABULARY)
    return found


def checked(tmp_path: Path, step: Path, text: str) -> Any:
    (tmp_path / "step.pt2").write_bytes(step.read_bytes())
    budget = tmp_path / "graphflops.toml"
    budget.write_text(f'models = "step.pt2"\n[[budget]]\ndevice = "h200"\n{text}')
    done = CliRunner().invoke(main, ["check", "--budget", str(budget), "--format", "json"])
    assert done.exit_code in (0, 3), done.output
    return json.loads(done.output)["models"][0]


def test_a_budget_limits_what_a_plan_says(tmp_path: Path, steps: dict[int, Path]) -> None:
    (cell,) = serve(steps[4], device="h200", batch=[16], context=[2048], engine="trtllm").cells
    assert cell.each is not None
    load = 'serving = {batch = 16, context = 2048, engine = "trtllm"}\n'
    limited = f'min_concurrency = {cell.most}\nmax_tpot = "1 us"\nmin_tokens_per_second = "1 T"\n'
    found = checked(tmp_path, steps[4], load + limited)
    measured = {one["quantity"]: (one["measured"], one["verdict"]) for one in found["limits"]}
    assert measured["min_concurrency"] == (cell.most, "within")
    assert measured["max_tpot"] == (pytest.approx(cell.each, abs=1e-9), "over")
    assert measured["min_tokens_per_second"] == (int(16 / cell.each), "over")
    assert [one["code"] for one in found["findings"]] == ["GF301", "GF301"]


def test_what_does_not_fit_keeps_no_time(tmp_path: Path, steps: dict[int, Path]) -> None:
    found = checked(tmp_path, steps[4], 'serving = {batch = 1_000_000_000, context = 2048}\nmax_tpot = "1 s"')
    assert "do not fit" in found["findings"][0]["message"]


def test_a_first_token_needs_a_prefill(tmp_path: Path, steps: dict[int, Path]) -> None:
    found = checked(tmp_path, steps[4], 'serving = {batch = 1, context = 2048}\nmax_ttft = "1 s"')
    assert "no program of a prefill" in found["findings"][0]["message"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_tpot": "1 s"}, "needs a load"),
        ({"serving": LOAD, "max_tpot": "1 s", "peak_bytes": "1 GB"}, "no quantity of serving"),
        ({"serving": LOAD, "min_concurrency": "+2 %"}, "is no number"),
        ({"serving": {"batch": 1}, "max_tpot": "1 s"}, "context"),
    ],
)
def test_limits_that_make_no_sense(given: Any, told: str) -> None:
    with pytest.raises(FileError, match=told):
        limits.given({"device": "h200", **given})


def test_a_lower_least_is_looser() -> None:
    old, less = (
        limits.given({"device": "h200", "serving": LOAD, "min_concurrency": n, "max_tpot": "1 s"})
        for n in (64, 32)
    )
    assert [*loosened(old, less)] == [
        "** at on h200 batch=16 context=2048: min_concurrency was at least 64, is at least 32 now"
    ]
    assert [*loosened(less, old)] == []


def test_fewer_heads_are_more_requests(steps: dict[int, Path]) -> None:
    found = compare(steps[4], steps[1], device="h200")
    assert found.serving is not None
    kept = found.serving.before["request_bytes"], found.serving.after["request_bytes"]
    assert kept == tuple(LAYERS * 2 * heads * EACH * found.serving.context * 2 for heads in (4, 1))
    cells = cell_of(analyze(steps[4], device="h200")), cell_of(analyze(steps[1], device="h200"))
    before, after = (None if cell is None else cell.most for cell in cells)
    assert before is not None
    assert after is not None
    assert f"requests that fit {before:,} → {after:,} ({after / before:.1f}x)" in found.summary()


def test_a_sweep_and_the_largest_size_know_them(steps: dict[int, Path]) -> None:
    length = next(name for name, info in analyze(steps[4]).symbols.items() if "ids[0]" not in info.where)
    given = ["analyze", str(steps[4]), "--device", "h200", "--execution", "graph", "--format", "json"]
    done = CliRunner().invoke(main, [*given, "--sweep", f"{length}=2048,4096"])
    rows = json.loads(done.output)
    plan = serve(steps[4], device="h200", batch=[1], context=[2048, 4096])
    assert [row["concurrency"] for row in rows] == [most for _, most in plan.requests]
    found = fits(steps[4], device="h200", vary=length, execution="graph")
    assert found.cell is not None
    assert found.cell.context == found.at_size
    sizes = {length: found.at_size}
    assert found.cell.step == analyze(steps[4], device="h200", execution="graph", dims=sizes).totals.time
