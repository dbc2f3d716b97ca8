"""The command line, on real files: what it prints, where, and with which exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphflops import __version__, cli
from graphflops.errors import FileError
from graphflops.report import Report

ROOT = Path(__file__).parents[1]
SAMPLES = sorted((ROOT / "samples").glob("*.pt2"))
MODEL = str(ROOT / "samples" / "gqa_transformer.pt2")
STATIC = str(ROOT / "samples" / "convnet.pt2")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["analyse", MODEL], "did you mean analyze?"),
        (["Diff", MODEL], "did you mean diff?"),
        ([MODEL], f"did you mean analyze {MODEL}?"),
        (["multiply"], "there are analyze, audit, capture"),
    ],
)
def test_a_command_that_does_not_exist_names_those_that_do(words: list[str], advice: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert advice in result.stderr


def test_the_shell_completes_commands_and_options() -> None:
    for words, found in (("graphflops va", "validate"), ("graphflops audit --fail", "--fail-on")):
        typed = {
            "_GRAPHFLOPS_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        result = CliRunner().invoke(cli.main, [], prog_name="graphflops", env=typed)
        assert f"plain,{found}" in result.stdout


def test_a_picture_is_refused_in_one_line(tmp_path: Path) -> None:
    result = run("analyze", MODEL, "-o", tmp_path / "costs.png")
    assert result.exit_code == 2
    assert ".png is the suffix of no format for a report: use .json" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_saved_report_is_evaluated_at_other_sizes(tmp_path: Path) -> None:
    run("analyze", MODEL, "-o", tmp_path / "report.json")
    result = run("analyze", tmp_path / "report.json", "--dim", "ids[1]=1024", "--format", "json")
    expected = run("analyze", MODEL, "--dim", "ids[1]=1024", "--format", "json")
    assert result.stdout == expected.stdout
    unknown = run("analyze", tmp_path / "report.json", "--dim", "ids[4]=1024")
    assert unknown.exit_code == 1
    assert len(unknown.stderr.splitlines()) == 1


def run(*args: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(cli.main, [os.fspath(arg) for arg in args], prog_name="graphflops")


def ok(*args: str | os.PathLike[str]) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def failed(*args: str | os.PathLike[str], code: int = 1) -> str:
    """The one line on stderr of a command that fails."""
    result = run(*args)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("graphflops: error: ")
    assert result.stderr[:-1].isprintable()
    return result.stderr


def misused(*args: str | os.PathLike[str]) -> str:
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


@pytest.fixture
def unknown(tmp_path: Path) -> str:
    """The transformer with an operator that has no rule."""
    path = tmp_path / "fused.pt2"
    with zipfile.ZipFile(MODEL) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            new.writestr(
                entry, old.read(entry).replace(b"torch.ops.aten.silu.default", b"torch.ops.my.silu.default")
            )
    return str(path)


# What it prints


@pytest.mark.parametrize("model", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_every_sample_in_every_format(model: Path, form: str) -> None:
    text = ok("analyze", model, "--format", form)
    assert text.endswith("\n")
    if form == "json":
        assert Report.from_json(text.encode()).rows
        assert text.count("\n") == 1
    elif form == "csv":
        assert all(row["state"] in ("counted", "free") for row in csv.DictReader(io.StringIO(text)))
    else:
        assert "FLOPs" in text
        assert "0 unknown" in text


def test_the_table_answers_the_question_first() -> None:
    lines = ok("analyze", MODEL).splitlines()
    assert re.match(r"gqa_transformer.pt2  torch [\d.]+ · \d+ nodes · 205.4 k parameters, 821.5 kB", lines[0])
    assert re.match(r"  ids\[0\] = 2 +s\d+, from the export \(1..64\)", lines[1])
    assert re.match(
        r"  FLOPs +13.63 M   \(6.816 M MACs, float32\)    409.6 k·ids\[0\]·ids\[1\] \+ 1,024·ids\[0\]·ids\[1\]²",
        lines[4],
    )
    assert any("blocks (x4)" in line for line in lines)


def test_sizes_by_axis_and_by_shape() -> None:
    by_axis = json.loads(
        ok("analyze", MODEL, "--dim", "ids[0]=1", "--dim", "ids[1]=4_096", "--format", "json")
    )
    by_shape = json.loads(ok("analyze", MODEL, "--input", "ids=1,4096", "--format", "json"))
    assert by_axis["totals"] == by_shape["totals"]
    assert by_shape["totals"]["matrix_flops"] == 409_600 * 4096 + 1_024 * 4096**2
    assert {entry["given_by"] for entry in by_shape["symbols"].values()} == {"user"}
    assert "given (2..4,096)" in ok("analyze", MODEL, "--input", "ids=1,4096")


def test_one_table_only() -> None:
    by_op = ok("analyze", MODEL, "--by", "op", "--top", "3")
    assert re.search(r"^  operator +calls +FLOPs", by_op, re.MULTILINE)
    assert re.search(r"^  … \d+ more ", by_op, re.MULTILINE)
    assert "  module " not in by_op
    assert "make.py:" in ok("analyze", MODEL, "--by", "source")
    assert "  operator " not in ok("analyze", MODEL, "--by", "module")
    flat = ok("analyze", MODEL, "--depth", "1")
    assert "attention" not in flat.partition("  operator ")[0].partition("  module ")[2]


def test_training() -> None:
    text = ok("analyze", MODEL, "--training")
    assert [
        line.split()[0]
        for line in text.splitlines()
        if re.match("  (forward|backward|optimizer|step) ", line)
    ] == [
        *("forward", "forward", "backward", "optimizer", "step"),
    ]
    step = json.loads(ok("analyze", MODEL, "--training", "--format", "json"))["totals"]["step"]
    assert step["matrix_flops"]["value"] > 2.5 * 13_630_000


def test_the_json_of_an_onnx_model_is_no_report(tmp_path: Path) -> None:
    import onnx
    from google.protobuf import json_format

    model = onnx.load(ROOT / "samples" / "convnet.onnx", load_external_data=False)
    path = tmp_path / "model.json"
    path.write_text(json_format.MessageToJson(model))
    binary = json.loads(ok("analyze", ROOT / "samples" / "convnet.onnx", "--format", "json"))
    assert json.loads(ok("analyze", path, "--format", "json"))["totals"] == binary["totals"]


def test_a_saved_report_is_as_good_as_the_model(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert ok("analyze", MODEL, "--output", saved) == ""
    for form in ("table", "json", "csv", "markdown"):
        assert ok("analyze", saved, "--format", form) == ok("analyze", MODEL, "--format", form)
    assert "saved report" in misused("analyze", saved, "--training")
    assert ok("rules", saved) == ok("rules", MODEL)


@pytest.mark.parametrize(
    "name, start", [("r.json", "{"), ("r.csv", "node,op"), ("r.md", "## "), ("r.txt", "gqa"), ("r", "gqa")]
)
def test_the_suffix_of_the_output_says_the_format(tmp_path: Path, name: str, start: str) -> None:
    ok("analyze", MODEL, "-o", tmp_path / name)
    assert (tmp_path / name).read_text().startswith(start)
    assert os.listdir(tmp_path) == [name]


def test_an_output_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "r.md", tmp_path / "link.md"
    target.write_text("x" * 1_000_000)
    target.chmod(0o640)
    link.symlink_to(target)
    ok("analyze", MODEL, "-o", link)
    assert link.is_symlink()
    assert target.read_text().startswith("## gqa")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_device_is_written_and_not_replaced() -> None:
    ok("analyze", MODEL, "-o", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_rules() -> None:
    rows = json.loads(ok("rules", "--format", "json"))
    linear = next(row for row in rows if row["operator"] == "aten.linear")
    assert linear["file"] == "matmul.py"
    assert linear["what is counted"]
    assert [row["operator"] for row in rows] == sorted(row["operator"] for row in rows)
    assert ok("rules", "--format", "csv").startswith("operator,rule,file,what is counted\n")
    assert "aten.linear " in ok("rules")


def test_rules_of_a_model(unknown: str) -> None:
    rows = json.loads(ok("rules", unknown, "--format", "json"))
    assert rows[0] == {
        "operator": "my.silu.default",
        "calls": 4,
        "state": "unknown",
        "priced as": "",
        "rule": "",
        "file": "",
    }
    by_op = {row["operator"]: row for row in rows}
    assert by_op["aten.linear.default"]["priced as"] == "aten.linear"
    assert by_op["aten.view.default"]["state"] == "free"


def test_own_rules(unknown: str, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import graphflops\n"
        "from graphflops.cost import Estimate\n"
        "@graphflops.rule('my.silu')\n"
        "def silu(x):\n"
        "    '''A made-up count.'''\n"
        "    return Estimate((x.like(),), vector_flops=7 * x.numel, reads=(x,))\n"
    )
    code = (
        "from click.testing import CliRunner; from graphflops.cli import main; import sys;"
        "r = CliRunner().invoke(main, sys.argv[1:]); print(r.stdout); sys.exit(r.exit_code)"
    )  # in a process of its own: registering a rule is for good
    for args in (["analyze", unknown, "--strict", "--by", "op"], ["rules", unknown], ["rules"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *args, "--rules", str(own)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert "my.silu" in done.stdout
        if args != ["rules"]:  # which tells what each rule counts, in its own words
            assert "unknown" not in done.stdout.replace("0 unknown", "")


@pytest.mark.parametrize(
    "text, says",
    [
        ("1 / 0", "ZeroDivisionError: division by zero (own.py:1)"),
        ("x = (", "SyntaxError"),
        ("import graphflops\n@graphflops.rule('aten.mm')\ndef mm(a, b): ...", "aten.mm has a rule already"),
    ],
)
def test_a_broken_rule_file(tmp_path: Path, text: str, says: str) -> None:
    own = tmp_path / "own.py"
    own.write_text(text)
    assert says in failed("analyze", MODEL, "--rules", own)


def test_a_rule_file_that_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("")
    assert ".py" in failed("rules", "--rules", tmp_path / "own.txt")
    assert "does not exist" in misused("rules", "--rules", tmp_path / "none.py")


# Exit codes


def test_strict(unknown: str, tmp_path: Path) -> None:
    result = run("analyze", unknown, "--strict", "-o", tmp_path / "r.json")
    assert result.exit_code == 3
    assert result.stderr == (
        "graphflops: strict: 4 nodes unknown: my.silu.default (x4); price them with --rules FILE.py\n"
    )
    assert json.loads((tmp_path / "r.json").read_text())["coverage"]["unknown"] == 4
    result = run("analyze", unknown, "--strict")
    assert result.exit_code == 3
    assert ">= 13.63 M" in result.stdout
    assert run("analyze", unknown).exit_code == 0
    assert ok("analyze", MODEL, "--strict")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.pt2").touch()
    (tmp_path / "zip.pt2").write_bytes(Path(MODEL).read_bytes()[:3000])
    (tmp_path / "other.json").write_text('{"schema": 99}')
    (tmp_path / "list.json").write_text("{" * 100_000)
    for name in ("missing.pt2", ".", "empty.pt2", "zip.pt2", "other.json", "list.json", "\udcff\n.pt2"):
        output = tmp_path / "out.json"
        failed("analyze", tmp_path / name, "-o", output)
        failed("rules", tmp_path / name, "-o", output)
        assert not output.exists()
    assert "schema 1" in failed("analyze", tmp_path / "other.json")


def test_a_file_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    odd = tmp_path / "\udcff\x1b[31m.pt2"
    odd.write_bytes(Path(STATIC).read_bytes())
    assert "\\udcff\\x1b[31m.pt2" in ok("analyze", odd)
    for form in ("json", "csv", "markdown"):
        assert ok("analyze", odd, "--format", form).replace("\n", "").isprintable()


def test_sizes_that_contradict_the_program() -> None:
    assert "no_such" in failed("analyze", MODEL, "--dim", "no_such=3")
    assert "no such input" in failed("analyze", MODEL, "--input", "x=3")
    assert "ids" in failed("analyze", MODEL, "--input", "ids=3")


@pytest.mark.parametrize(
    "args",
    [
        *(
            ["--dim", text]
            for text in ("s0", "=3", "s0=", "s0=x", "s0=-1", "s0=1.5", "s0=99999999999999999999", "s0=²")
        ),
        *(["--input", text] for text in ("x", "x=", "x=1,", "x=1,a", "=1,2", "x=[1,2]")),
        ["--dim", "s0=1", "--dim", "s0=2"],
        ["--depth", "-1"],
        ["--top", "0"],
        ["--format", "yaml"],
        ["--by", "weather"],
        ["--format", "json", "--by", "op"],
        ["--format", "csv", "--depth", "2"],
        ["--by", "op", "--depth", "2"],
        ["--no-such-option"],
        ["second.pt2", "--depth", "1"],
    ],
    ids=" ".join,
)
def test_wrong_usage(args: list[str]) -> None:
    assert "Traceback" not in misused("analyze", MODEL, *args)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["analyze"], "Missing argument 'MODEL...' (see graphflops analyze --help)"),
        (["analyse", MODEL], "no such command 'analyse': did you mean analyze?"),
        (["--nothing"], "No such option '--nothing' (see graphflops --help)"),
        (["analyze", MODEL, "--device", "h900"], "h900: unknown device; known: h100, "),
        (["serve", MODEL, "--device", "h200", "--engine", "none of these"], "engine: no 'none of these'; there are "),
        (["analyze", MODEL, "--by", "size"], "Invalid value for '--by': 'size' is not one of "),
        (["plan", MODEL, "--device", "h100", "--devices", "2", "--tpot", "1ms"], "--tpot is of requests: give --serve"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exits_with_2(args: list[str], said: str) -> None:
    done = CliRunner().invoke(cli.main, args, prog_name="graphflops")
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"graphflops: error: {said}")


def test_wrong_usage_of_the_rest() -> None:
    misused("analyze")
    misused("no-such-command")
    misused("capture", "a.b:c")
    misused("capture", "a.b:c", "-o", "x.txt")


def test_version_and_help() -> None:
    assert ok("--version") == f"graphflops {__version__}\n"
    for args in ([], ["analyze"], ["capture"], ["rules"]):
        text = ok(*args, "--help")
        assert text.startswith("Usage: graphflops")
        assert f"graphflops {args[0] if args else 'analyze'}" in text


@pytest.mark.parametrize(
    "error, code, says",
    [
        (KeyboardInterrupt(), 130, ""),
        (RecursionError(), 1, "nested too deeply"),
        (MemoryError(), 1, "memory"),
        (PermissionError(13, "Permission denied", "m.pt2"), 1, "m.pt2: Permission denied"),
        (FileError("a\nb \x1b[31m"), 1, "a\\nb \\x1b[31m"),
        (KeyError("what"), 1, "KeyError: 'what' (test_cli.py:"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str) -> None:
    def raises(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("graphflops.analysis.analyze", raises)
    if code == 130:
        result = run("analyze", MODEL)
        assert (result.exit_code, result.output) == (130, "")
    else:
        assert says in failed("analyze", MODEL)


def test_a_defect_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*args: object, **options: object) -> None:
        raise KeyError

    monkeypatch.setattr("graphflops.analysis.analyze", raises)
    monkeypatch.setenv("GRAPHFLOPS_TRACEBACK", "1")
    assert isinstance(run("analyze", MODEL).exception, KeyError)


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    assert "No such file" in failed("analyze", MODEL, "-o", tmp_path / "none" / "r.json")
    misused("analyze", MODEL, "-o", tmp_path)


def test_nothing_is_written_on_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.write_text("old")
    failed("analyze", MODEL, "--dim", "no_such=1", "-o", target)

    def raises(*args: object, **options: object) -> str:
        raise MemoryError

    monkeypatch.setattr("graphflops.render.formats.render", raises)
    failed("analyze", MODEL, "-o", target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]
