"""Every code block of README.md, CONTRIBUTING.md and docs/ is run, and prints what is shown beside it.

`sh` blocks are commands, one a line. In `console` blocks lines that begin with `$ ` are commands and the rest is what they
print; a line `...` stands for any lines. `python` blocks are executed, `toml`, `yaml` and `json` ones parsed; `text` and
`diff` ones are not looked at.
"""

from __future__ import annotations

import inspect
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import graphflops
from graphflops import cli
from graphflops.rules import registry
from tests.docs import models
from tests.docs.blocks import PROMPT, Block, Command, blocks, commands, same_output

FILES = [
    models.ROOT / "README.md",
    models.ROOT / "CONTRIBUTING.md",
    *sorted((models.ROOT / "docs").glob("*.md")),
    *sorted((models.ROOT / "docs" / "how-to").glob("*.md")),
]
BLOCKS = [block for path in FILES for block in blocks(path)]
LANGUAGES = {"sh", "console", "python", "toml", "yaml", "json", "text", "diff"}

# Why an example does not run here, by a part of its text.
CANNOT_RUN = {
    "pip install": "installs packages",
    ".venv/bin/pytest": "runs these tests",
    ".venv/bin/ruff": "is what CI runs beside the tests",
    ".ci/run": "runs these tests",
    "tests.oracle.": "takes minutes; the tests run a sample",
    "tests.fuzz": "takes as long as it is told; the tests run a minute",
    "tests/oracle/": "takes minutes; the tests run a sample",
    "python -m benchmarks.": "takes minutes, and times depend on the machine; benchmarks/results has what it printed",
    "--device cuda": "needs a GPU",
    "graphflops.runtime.counters": "needs a GPU and its profiler",
    "graphflops.runtime.flex": "needs a GPU",
    "@triton.jit": "is shown as it is generated",
    "counts as a matrix with an axis of length one": "shows a rule that is registered already",
}


def reason(text: str) -> str | None:
    return next((why for part, why in CANNOT_RUN.items() if part in text), None)


def of(*languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language in languages]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the exports are that several examples name."""
    return tmp_path_factory.mktemp("exports")


@pytest.fixture
def folder(
    tmp_path: Path, exports: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """A folder with the models and the limits that the documentation names, under git where an example is about it."""
    block = request.getfixturevalue("block")
    if any(name in block.text for name in models.EXPORTS) or "validate" in block.text:
        pytest.importorskip("torch")
    if "hf:" in block.text:
        pytest.importorskip("transformers")
    if "timm:" in block.text:
        pytest.importorskip("timm")
    models.make(tmp_path, block.text, exports)
    monkeypatch.chdir(tmp_path)
    budgets = [found for found in BLOCKS if found.language == "toml" and "[[budget]]" in found.text]
    limits = {found.path.stem: found.text for found in budgets}
    (tmp_path / "graphflops.toml").write_text(limits["budgets"])
    (tmp_path / "serving.toml").write_text(limits["serving"])
    (tmp_path / "edge.toml").write_text("[[budget]]\ncoverage = '100 %'\n")
    if "results.parquet" in block.text:
        pytest.importorskip("pyarrow")
        CliRunner().invoke(cli.main, ["scan", "models", "--output", "results.parquet"])
    if "graphflops check" in block.text:
        CliRunner().invoke(cli.main, ["check", "--update"])
    if not any(word in block.text for word in ("git", "HEAD", "history")):
        return tmp_path
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "-qb", "main"), ("add", "-A"), (*identity, "commit", "-qm", "models")):
        subprocess.run(["git", *arguments], check=True)
    subprocess.run(["git", "update-ref", "refs/remotes/origin/main", "main"], check=True)
    return tmp_path


def run(command: Command) -> None:
    if reason(command.text):
        return
    words = shlex.split(command.text, comments=True)
    if Path(words[0]).name != "graphflops":
        subprocess.run(["bash", "-c", command.text], check=True)
        return
    if "--memory-limit" in words:  # this process has torch in it, which takes more address space than that
        subprocess.run([sys.executable, "-m", "graphflops", *words[1:]], check=True)
        return
    result = CliRunner().invoke(cli.main, words[1:], prog_name="graphflops")
    assert result.exit_code == 0, f"{command.text}\n{result.output}"
    if command.output is not None:
        assert same_output(command.output, result.stdout), f"{command.text} prints now:\n{result.stdout}"


@pytest.mark.usefixtures("folder", "copied_children")
@pytest.mark.parametrize("block", of("sh", "console"))
def test_commands(block: Block) -> None:
    found = list(commands(block))
    assert found, f"{block} holds no command: a console block marks them by `{PROMPT}`"
    for command in found:
        run(command)


def names(text: str) -> dict[str, Any]:
    """What the text of an example takes for granted."""
    if "to_dataframe" in text:
        pytest.importorskip("pandas")
    if "duckdb" in text:
        pytest.importorskip("duckdb")
    if not any(name in text for name in ("torch.", "exported_program", "(module")):
        return {"pytest": pytest, "graphflops": graphflops}
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Linear(8, 4), torch.zeros(2, 8)
    return {
        "pytest": pytest,
        "graphflops": graphflops,
        "torch": torch,
        "module": module,
        "x": x,
        "exported_program": torch.export.export(module, (x,)),
        "Decoder": models.transformer,
    }


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", of("python"))
def test_python(block: Block, graphflops_budget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason(block.text):
        return
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    given = names(block.text)
    exec(compile(block.text, str(block), "exec"), given)
    for name, function in given.items():
        if name.startswith("test_"):
            function(*[graphflops_budget] * len(inspect.signature(function).parameters))


@pytest.mark.parametrize("block", of("toml", "yaml", "json"))
def test_data(block: Block) -> None:
    if block.language == "toml":
        tomllib = pytest.importorskip("tomllib")
        assert tomllib.loads(block.text)
    else:
        assert (json.loads if block.language == "json" else yaml.safe_load)(block.text)


def test_every_block_says_what_it_is() -> None:
    unknown = [str(block) for block in BLOCKS if block.language not in LANGUAGES]
    assert not unknown, f"these blocks have no language of {sorted(LANGUAGES)} after their fence: {unknown}"


def test_every_reason_not_to_run_is_needed() -> None:
    unused = [part for part in CANNOT_RUN if not any(part in block.text for block in BLOCKS)]
    assert not unused, f"no example holds these any more: {unused}"


def test_dots_stand_for_any_lines() -> None:
    assert same_output("a\n...\nd\n", "a\nb\nc\nd\n")
    assert same_output("...\nd", "d\n")
    assert same_output("a\n...", "a\n")
    assert not same_output("a\n...\nd\n", "a\nb\n")
    assert not same_output("a", "a\nb")
    assert not same_output("a (x)", "a x")
