"""`graphflops diff` on files: formats, sizes, exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphflops import cli
from graphflops.render.text import plain_ascii

SAMPLES = Path(__file__).parents[2] / "samples"
MODEL, ONNX, CONV = (
    str(SAMPLES / name) for name in ("gqa_transformer.pt2", "gqa_transformer.onnx", "convnet.pt2")
)


def run(*args: str, command: str = "diff") -> Result:
    return CliRunner().invoke(cli.main, [command, *args], prog_name="graphflops")


def ok(*args: str, command: str = "diff") -> str:
    result = run(*args, command=command)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def test_identical_files_print_0() -> None:
    text = ok(MODEL, MODEL, "--exit-code")
    assert text == "gqa_transformer.pt2 → gqa_transformer.pt2: identical, FLOPs 13.63 M\n"


def test_an_export_is_checked() -> None:
    text = ok(MODEL, ONNX, "--exit-code")
    assert text.splitlines()[0] == (
        "gqa_transformer.pt2 → gqa_transformer.onnx: the export keeps the work: FLOPs 13.63 M in both (0)"
    )


def test_a_difference_is_an_exit_code_only_when_asked_for() -> None:
    assert run(MODEL, CONV).exit_code == 0
    assert run(MODEL, CONV, "--exit-code").exit_code == 3


def test_a_saved_report_is_a_model(tmp_path: Path) -> None:
    saved = str(tmp_path / "old.json")
    ok(MODEL, "--output", saved, command="analyze")
    assert "identical" in ok(saved, MODEL)


@pytest.mark.parametrize("given", [("--dim", "ids[1]=64"), ("--dim", "s27=64"), ("--dim", "sequence=64")])
def test_sizes_are_for_both_programs_whatever_they_call_them(given: tuple[str, str]) -> None:
    found = json.loads(ok(MODEL, ONNX, *given, "--dim", "ids[0]=1", "--format", "json"))
    # 64 tokens: 100,352 of 102,400 multiply-adds in the weights, and 1024 FLOPs for each pair of tokens
    flops = 409_600 * 64 + 1_024 * 64 * 64
    assert found["totals"]["forward"]["matrix_flops"] == {"before": flops, "after": flops, "delta": 0}


def test_inputs_are_for_both_programs() -> None:
    found = json.loads(ok(CONV, CONV, "--input", "image=3,3,64,64", "--format", "json"))
    assert found["same"]
    result = run(CONV, CONV, "--input", "picture=3,3,64,64")
    assert result.exit_code == 1
    assert "no such input; the program has image" in result.stderr
    result = run(MODEL, ONNX, "--dim", "wide=2")
    assert result.exit_code == 1
    assert "no such size" in result.stderr


def test_csv_has_a_line_for_each_entry() -> None:
    rows = [*csv.DictReader(io.StringIO(ok(CONV, MODEL, "--format", "csv")))]
    assert len({tuple(row) for row in rows}) == 1
    new = next(row for row in rows if row["after"] == "blocks")
    assert (new["status"], new["before"], new["matrix_flops_before"]) == ("new", "", "0")
    assert new["matrix_flops_after"] == new["matrix_flops_delta"]
    ops = [*csv.DictReader(io.StringIO(ok(CONV, MODEL, "--format", "csv", "--by", "op")))]
    assert {row["after"] for row in ops} >= {"aten.scaled_dot_product_attention.default"}


def test_json_holds_both_sides_and_their_difference() -> None:
    found = json.loads(ok(CONV, MODEL, "--format", "json"))
    assert (found["diff"], found["same"], found["export"]) == (1, False, False)
    parameters = found["totals"]["forward"]["parameters"]
    assert parameters == {"before": 4_626, "after": 205_376, "delta": 200_750}
    assert sum(module["figures"]["parameters"]["delta"] for module in found["modules"]) == 200_750


@pytest.mark.parametrize(
    "args, says",
    [
        ((), "name OLD and NEW"),
        ((MODEL, CONV, MODEL), "name OLD and NEW"),
        (
            (MODEL, CONV, "--format", "json", "--top", "3"),
            "--top: not an option of --format json",
        ),
        ((MODEL, CONV, "--by", "op", "--depth", "1"), "--depth is for the module tree"),
    ],
)
def test_misuse(args: tuple[str, ...], says: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert says in result.stderr


def test_depth_adds_up() -> None:
    text = ok(CONV, MODEL, "--depth", "1", "--top", "2")
    assert "more that changed" in text
    lines = text.splitlines()
    assert lines[-1].split()[0] == "total"


def test_a_pipe_that_takes_only_ascii_gets_an_arrow() -> None:
    assert plain_ascii("8 → 2, n²") == "8 -> 2, n**2"


def test_a_device_adds_a_line_of_memory() -> None:
    old, new = "samples/gqa_transformer.pt2", "samples/convnet.pt2"
    text = CliRunner().invoke(cli.main, ["diff", old, new, "--device", "h200", "--training"]).output
    (line,) = [line for line in text.splitlines() if line.startswith("  memory")]
    assert re.search(
        r"memory runs in \S+ MB as before \(0, 0.0 %\), trains in \S+ MB → \S+ MB \(.*%\)", line
    ), line
    assert "H200" not in CliRunner().invoke(cli.main, ["diff", old, new]).output


def test_a_file_of_pytorch_and_its_export_run_by_one_execution() -> None:
    """On a device the first would run eagerly and the second as a graph."""
    found = json.loads(ok(MODEL, ONNX, "--device", "h200", "--format", "json"))
    assert found["time"]["execution"] == "graph"
    assert found["remarks"] == []


def test_a_page_says_what_the_table_says():
    from graphflops.comparison.models import compare
    from graphflops.render.html.diff import fragment

    changed = fragment(compare(SAMPLES / "convnet.pt2", SAMPLES / "gqa_transformer.pt2"))
    assert (
        "[new] blocks: +12.58 M FLOPs, +556.5 % of all, +188.9 k params" in changed
    )  # as the row of the table
    assert "more changes: " in changed
    export = fragment(compare(SAMPLES / "gqa_transformer.pt2", SAMPLES / "gqa_transformer.onnx"))
    said = export.partition("<table")[0]
    assert [
        line for line in said.split("<p>") if line.startswith(("[", "blocks", "head"))
    ] == []  # the ledger alone
