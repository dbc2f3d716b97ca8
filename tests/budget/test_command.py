"""`graphflops check` and `graphflops textconv` on real files and in real repositories."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphflops import cli
from graphflops.budget import baseline
from graphflops.versions.git import located

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
LIMITS = '[[budget]]\nmodels = "lm.pt2"\ndims = {"ids[0]" = 1, "ids[1]" = 64}\nmatrix_flops = '
FLOPS = 409_600 * 64 + 1_024 * 64 * 64  # of the transformer sample at 1 x 64 tokens


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.main, args, prog_name="graphflops")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, to be in."""
    shutil.copy(SAMPLES / "gqa_transformer.pt2", tmp_path / "lm.pt2")
    shutil.copy(SAMPLES / "convnet.pt2", tmp_path / "net.pt2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def budget(text: str) -> None:
    Path("graphflops.toml").write_text(text)


def git(*command: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *command], check=True, capture_output=True, text=True).stdout


def committed() -> None:
    git("init", "--quiet", "--initial-branch", "main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "x")


# check


def test_kept_and_broken() -> None:
    budget(f"{LIMITS}{FLOPS}")
    kept = run("check", "lm.pt2")
    assert (kept.exit_code, kept.stdout.splitlines()[0]) == (0, "lm.pt2  within budget")
    budget(f"{LIMITS}{FLOPS - 1}")
    broken = run("check", "lm.pt2")
    assert broken.exit_code == 3
    assert "matrix_flops is 30.41 MFLOP at ids[0]=1, ids[1]=64: 1 FLOP" in broken.stdout


@pytest.mark.parametrize(
    "suffix, start", [("json", '{"schema"'), ("sarif", '{"$schema"'), ("md", "**1 error in 1 of 1")]
)
def test_formats_by_suffix(suffix: str, start: str) -> None:
    budget(f"{LIMITS}1")
    assert run("check", "lm.pt2", "-o", f"out.{suffix}").exit_code == 3
    assert Path(f"out.{suffix}").read_text().startswith(start)


def test_assumed_sizes_are_warned_of_at_an_update_only() -> None:
    shutil.copy(SAMPLES / "gqa_transformer.onnx", "lm.onnx")
    budget(
        f'baseline = "b.json"\n[[budget]]\nmatrix_flops = [{FLOPS}, "+0 %"]'
    )  # at the assumed 1 x 64 tokens
    updated = run("check", "lm.onnx", "--update")
    assert updated.exit_code == 0
    assert "GF312 sizes-assumed" in updated.stdout
    assert "measured at batch=1 (assumed), sequence=64 (assumed)" in updated.stdout
    assert run("check", "lm.onnx").stdout.startswith("lm.onnx  within budget\n")
    left_open = run("check", "lm.onnx", "--open")
    assert left_open.exit_code == 3
    assert "GF304" in left_open.stdout


def test_every_limit_is_shown_beside_what_was_measured() -> None:
    budget(f'{LIMITS}"{2 * FLOPS}"\nforbid = "onnx.Loop"\ncoverage = "50 %"\nparameters = 1')
    text = run("check", "lm.pt2").stdout
    result = json.loads(run("check", "lm.pt2", "--format", "json").stdout)["models"][0]["limits"]
    assert [(entry["quantity"], entry["used"], entry["verdict"]) for entry in result] == [
        ("matrix_flops", 0.5, "within"),
        ("parameters", 205376.0, "over"),
        ("coverage", 2.0, "within"),
        ("calls of onnx.Loop", None, "within"),
    ]
    assert "  ok    matrix_flops" in text
    assert "50.0 %" in text
    assert "  OVER  parameters" in text


def test_an_undecidable_limit_is_marked() -> None:
    shutil.copy(SAMPLES / "gqa_transformer.onnx", "lm.onnx")
    budget("[[budget]]\nmatrix_flops = 1")
    assert "  ?  matrix_flops" in run("check", "lm.onnx", "--open").stdout


def test_a_first_budget_holds_and_is_never_replaced() -> None:
    shutil.copy(SAMPLES / "gqa_transformer.onnx", "lm.onnx")
    assert run("check", "--init").exit_code == 2
    assert run("check", "--init", "lm.onnx", "net.pt2").exit_code == 0
    text = Path("graphflops.toml").read_text()
    assert 'dims = {"ids[0]" = 1, "ids[1]" = 64}' in text
    assert 'parameters = "226 k"' in text  # 205,376 and 10 %, rounded up to three digits
    assert run("check").exit_code == 0
    again = run("check", "--init", "lm.pt2")
    assert again.exit_code == 1
    assert "graphflops.toml: exists" in again.stderr
    assert Path("graphflops.toml").read_text() == text


def test_folders_above_are_searched_for_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget('models = "*.pt2"\n[[budget]]\nparameters = "1 M"')
    Path("deep/deeper").mkdir(parents=True)
    monkeypatch.chdir("deep/deeper")
    result = run("check")
    assert result.exit_code == 0
    assert f"{Path('../../lm.pt2')}  within budget" in result.stdout
    monkeypatch.chdir("/")
    assert (
        "no graphflops.toml here or above: write one with graphflops check --init MODEL"
        in run("check").stderr
    )


def test_sizes_by_the_names_in_the_budget() -> None:
    names = 'names = {rows = "ids[0]", tokens = "s27"}'
    budget(f"[[budget]]\n{names}\ndims = {{rows = 1, tokens = 64}}\nmatrix_flops = {FLOPS - 1}")
    assert "matrix_flops is 30.41 MFLOP at rows=1, tokens=64: 1 FLOP" in run("check", "lm.pt2").stdout


def test_the_models_of_the_budget() -> None:
    budget(f'models = ["*.pt2"]\n{LIMITS}"1 T"')
    text = run("check").stdout
    assert "lm.pt2  within budget" in text
    assert "no limit of graphflops.toml is for this model" in text
    assert text.endswith("1 note in 1 of 2 models\n")


def test_a_model_that_cannot_be_read_does_not_stop_the_others() -> None:
    budget('models = "*.pt2"\n[[budget]]\nparameters = 0')
    Path("bad.pt2").write_text("words")
    result = run("check")
    assert result.exit_code == 1
    assert "GF310 not-analyzed" in result.stdout
    assert result.stdout.count("GF301 over-limit") == 2


def test_update_then_check(folder: Path) -> None:
    budget(
        'models = "*.pt2"\nbaseline = "costs.json"\n[[budget]]\nmatrix_flops = "+0 %"\nparameters = "+0 %"'
    )
    first = run("check")
    assert first.exit_code == 1
    assert "costs.json: no such baseline: make it with graphflops check --update" in first.stderr
    assert run("check", "--update").exit_code == 0
    kept = Path("costs.json").read_text()
    assert run("check").exit_code == 0
    shutil.copy("lm.pt2", "net.pt2")  # dearer
    (folder / "new.pt2").write_bytes((SAMPLES / "lstm.pt2").read_bytes())
    result = run("check", "net.pt2", "new.pt2")
    assert result.exit_code == 3
    assert "GF309" in result.stdout  # the convnet has fixed sizes
    assert "GF306" in result.stdout  # never measured
    assert run("check", "--update", "new.pt2").exit_code == 0
    updated = baseline.read("costs.json")
    assert sorted(updated) == ["lm.pt2", "net.pt2", "new.pt2"]
    (folder / "new.pt2").unlink()
    shutil.copy(SAMPLES / "convnet.pt2", "net.pt2")
    assert run("check", "--update").exit_code == 0
    assert Path("costs.json").read_text() == kept  # the model that is gone is gone from it


def test_a_model_that_cannot_be_read_leaves_the_baseline_as_it_is() -> None:
    budget('models = "*.pt2"\nbaseline = "costs.json"\n[[budget]]\nmacs = "+1 %"')
    assert run("check", "--update").exit_code == 0
    kept = Path("costs.json").read_text()
    Path("net.pt2").write_text("words")
    assert run("check", "--update").exit_code == 1
    assert Path("costs.json").read_text() == kept


def test_a_baseline_that_no_limit_needs_is_not_read() -> None:
    budget('baseline = "costs.json"\n[[budget]]\nmacs = "1 T"')
    assert run("check", "net.pt2").exit_code == 0


def test_update_checks_what_needs_no_baseline() -> None:
    budget('baseline = "costs.json"\n[[budget]]\nmatrix_flops = ["1 k", "+0 %"]')
    result = run("check", "--update", "net.pt2")
    assert result.exit_code == 3
    assert result.stdout.count("GF30") == 1
    assert Path("costs.json").exists()


def test_relative_limits_need_something_to_compare_with() -> None:
    budget('[[budget]]\nmacs = "+1 %"')
    result = run("check", "net.pt2")
    assert result.exit_code == 1
    assert 'relative limits need `baseline = "FILE"` in it, or --baseline' in result.stderr
    result = run("check", "net.pt2", "--update")
    assert result.exit_code == 1
    assert "--update needs `baseline" in result.stderr


def test_a_revision_as_baseline() -> None:
    budget('models = "*.pt2"\n[[budget]]\nmatrix_flops = "+0 %"')
    committed()
    assert run("check", "--baseline", "HEAD").exit_code == 0
    shutil.copy(SAMPLES / "lstm.pt2", "new.pt2")  # untracked: new
    git("mv", "net.pt2", "moved.pt2")
    assert run("check", "--baseline", "HEAD").exit_code == 0
    shutil.copy("lm.pt2", "new.pt2")
    git("add", "new.pt2")
    shutil.copy(SAMPLES / "lstm.pt2", "moved.pt2")
    result = run("check", "--baseline", "HEAD")
    assert result.exit_code == 0, result.stdout  # new is new, and an LSTM costs less than the convnet
    bad = run("check", "--baseline", "nowhere")
    assert bad.exit_code == 1
    assert "nowhere: neither a file nor a git revision" in bad.stderr


def test_growth_since_a_revision() -> None:
    shutil.copy(SAMPLES / "lstm.pt2", "net.pt2")
    budget('[[budget]]\nmatrix_flops = "+10 %"')
    committed()
    shutil.copy(SAMPLES / "convnet.pt2", "net.pt2")
    result = run("check", "net.pt2", "--baseline", "HEAD")
    assert result.exit_code == 3
    assert "GF302" in result.stdout


def test_a_report_as_baseline() -> None:
    budget('[[budget]]\nmodels = "n*.pt2"\nmatrix_flops = "+10 %"')
    shutil.copy(SAMPLES / "lstm.pt2", "new.pt2")
    assert run("analyze", "new.pt2", "-o", "before.json").exit_code == 0
    assert run("check", "new.pt2", "--baseline", "before.json").exit_code == 0
    result = run("check", "net.pt2", "--baseline", "before.json")
    assert "GF302 grown" in result.stdout
    assert run("check", "net.pt2", "new.pt2", "--baseline", "before.json").exit_code == 2
    assert "no baseline of schema 1" in run("check", "net.pt2", "--baseline", "graphflops.toml").stderr


def test_what_was_no_model_before() -> None:
    budget('[[budget]]\nmatrix_flops = ["+10 %", 1]')
    Path("net.pt2").write_text("words")
    committed()
    shutil.copy(SAMPLES / "convnet.pt2", "net.pt2")
    result = run("check", "net.pt2", "--baseline", "HEAD")
    assert "GF306 no-baseline" in result.stdout
    assert "it cannot be measured as it was: net.pt2 at" in result.stdout
    assert "GF301" in result.stdout


def test_processes_say_what_one_says() -> None:
    budget(
        'models = "*.pt2"\n[[budget]]\nmatrix_flops = 1\n[[budget]]\nmodels = "lm.pt2"\ndims = {"ids[1]" = 9}\nmacs = 1'
    )
    assert run("check", "--jobs", "2").stdout == run("check", "--jobs", "1").stdout


def test_own_rules() -> None:
    Path("rules.py").write_text("raise SystemError('mine')")
    budget("[[budget]]\nmacs = 1")
    assert "rules.py: SystemError: mine" in run("check", "net.pt2", "--rules", "rules.py").stderr


def test_a_saved_report_is_checked_as_it_is() -> None:
    assert run("analyze", "lm.pt2", "--input", "ids=1,64", "-o", "lm.json").exit_code == 0
    budget(f"[[budget]]\nmatrix_flops = {FLOPS}")
    assert run("check", "lm.json").exit_code == 0
    budget(f"[[budget]]\ndims = {{s27 = 64}}\nmatrix_flops = {FLOPS}")
    assert run("check", "lm.json").exit_code == 0
    budget(f"[[budget]]\ndims = {{s27 = 65}}\nmatrix_flops = {FLOPS}")
    assert "s27 is 64 in the report, which does not hold it open" in run("check", "lm.json").stdout


def test_wrong_usage() -> None:
    assert run("check").exit_code == 1  # no budget
    budget("[[budget]]\nmacs = 1")
    assert "name a MODEL, or list `models` at the top of graphflops.toml" in run("check").stderr


# Where a source file is


def test_source_files_are_found_where_only_one_can_be_meant(folder: Path) -> None:
    for name in ("src/lm/model.py", "a/twice.py", "b/twice.py", "package/part.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    committed()
    names = ["model.py", "twice.py", "part.py", "package/part.py", "gone.py", "odel.py"]
    assert located(names) == {
        "model.py": "src/lm/model.py",
        "part.py": "package/part.py",
        "package/part.py": "package/part.py",
    }


def test_outside_a_repository_nothing_is_found(folder: Path) -> None:
    (folder / "model.py").touch()
    assert located(["model.py"]) == {}


# textconv


def test_text_for_a_diff() -> None:
    lines = run("textconv", "lm.pt2").stdout.splitlines()
    assert "total FLOPs: 13,631,488 = 409600·ids[0]·ids[1] + 1024·ids[0]·ids[1]²" in lines
    assert (
        "blocks.*.attention.q aten.linear.default: 1 call, 262,144 FLOPs, 24,576 B read, 8,192 B written"
        in lines
    )
    assert "blocks.*: 4 alike (0-3)" in lines
    assert "parameters: 205,376 in 821,504 B, buffers 0 B" in lines
    assert not any("view" in line for line in lines)  # free


def test_a_file_that_is_no_model_is_said_to_be_none() -> None:
    Path("x.pt2").write_text("words")
    result = run("textconv", "x.pt2")
    assert result.exit_code == 0
    assert result.stdout.startswith("not analyzed: ")
    assert run("textconv", "nothing.pt2").exit_code == 0


def test_git_shows_it() -> None:
    Path(".gitattributes").write_text("*.pt2 diff=graphflops\n")
    committed()
    git("config", "diff.graphflops.textconv", f"{sys.executable} -m graphflops textconv")
    git("config", "diff.graphflops.cachetextconv", "true")
    shutil.copy(SAMPLES / "convnet.pt2", "lm.pt2")
    for _ in range(2):
        shown = git("diff", "lm.pt2")
        assert "\n-total FLOPs: 13,631,488 = 409600·ids[0]·ids[1] + 1024·ids[0]·ids[1]²\n" in shown
        assert "\n+total FLOPs: 2,261,152\n" in shown
    git("commit", "--all", "--quiet", "--message", "y")
    assert "+total FLOPs: 2,261,152" in git("log", "-p", "-1")


def test_json_of_findings_is_an_object() -> None:
    budget("[[budget]]\nmacs = 1")
    assert json.loads(run("check", "net.pt2", "--format", "json").stdout)["models"][0]["model"] == "net.pt2"
