"""The first screen of every command: nothing is wider than the screen, no name is shortened, and it reads as it should.

`GRAPHFLOPS_OVERWRITE=1 pytest tests/render/test_first_screens.py` draws the files in golden/screens. The models are the
samples, and a decoder and an image model as their libraries export them, without weights.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops.cli import main
from graphflops.render.text import columns

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "screens"
LINES = 45  # of a screen
BUDGET = """
models = ["gemma3.pt2", "swin_t.pt2"]
[[budget]]
matrix_flops = "400 G"
parameters = "200 M"
"""
# Shown in full: what a user sees first.
READ = {
    "analyze_gemma3": "analyze gemma3.pt2",
    "analyze_swin": "analyze swin_t.pt2",
    "analyze_onnx": "analyze gqa_transformer.onnx --training",
    "attention": "analyze gemma3.pt2 --by attention",
    "several": "analyze gemma3.pt2 swin_t.pt2 convnet.onnx",
    "sweep": "analyze gqa_transformer.onnx --sweep sequence=128,4096",
    "audit": "audit gqa_transformer.onnx --ignore GF228",
    "statistics": "audit gqa_transformer.onnx convnet.onnx --statistics",
    "check": "check",
}
# Other commands, and what other parts of the tool print: they fit the screen too.
FITTING = {
    "by_source": "analyze gemma3.pt2 --by source",
    "by_op": "analyze swin_t.pt2 --by op",
    "depth": "analyze gemma3.pt2 --by module --depth 9",
    "device": "analyze gemma3.pt2 --device h200 --training",
    "open": "analyze gqa_transformer.onnx --open",
    "diff": "diff gqa_transformer.pt2 gqa_transformer.onnx",
    "diff_models": "diff gemma3.pt2 swin_t.pt2 -v",
    "fits": "fits gemma3.pt2 --device h200",
    "rules": "rules swin_t.pt2",
}
_ELIDED = re.compile(r"\w…\w")  # a name cut in its middle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("screens")
    for path in (*(ROOT / "tests/data/models").glob("*.pt2"), *(ROOT / "samples").glob("*.[po]*")):
        shutil.copy(path, made)
    (made / "graphflops.toml").write_text(BUDGET)
    return made


def screen(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, width: int | None) -> str:
    monkeypatch.chdir(folder)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code in (0, 3), result.output
    return re.sub(
        r" +\d+\.\d\d s$", "  0.00 s", result.stdout, flags=re.MULTILINE
    )  # how long the analysis took


@pytest.mark.parametrize("width", [80, 120, None])
@pytest.mark.parametrize("name", READ)
def test_what_is_read_first(
    name: str, width: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = screen(folder, monkeypatch, READ[name], width)
    text = "".join(text.splitlines(keepends=True)[:LINES])
    path = GOLDEN / f"{name}.{width or 'piped'}.txt"
    if os.environ.get("GRAPHFLOPS_OVERWRITE"):
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_bytes().decode()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", [*READ, *FITTING])
def test_nothing_is_wider_than_the_screen(
    name: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = screen(folder, monkeypatch, {**READ, **FITTING}[name], width)
    assert [line for line in text.splitlines() if columns(line) > width] == []
    assert _ELIDED.findall(text) == []


@pytest.mark.parametrize("name", [*READ, *FITTING])
def test_nothing_is_shortened_for_a_pipe(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = screen(folder, monkeypatch, {**READ, **FITTING}[name], None)
    assert [
        line for line in text.splitlines() if "…" in line and "more" not in line and "unchanged" not in line
    ] == []
