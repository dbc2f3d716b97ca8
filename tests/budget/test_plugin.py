"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphflops.pytest_plugin import checker

ROOT = Path(__file__).parents[2]
PLUGIN = "graphflops.pytest_plugin"
COMMAND = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "-rA"]


def ran(folder: Path, code: str) -> tuple[dict[str, int], str]:
    """The outcomes of a run of pytest on this code, and what it printed."""
    (folder / "test_it.py").write_text(code)
    done = subprocess.run(
        [*COMMAND, "-p", PLUGIN, "--rootdir", folder, folder / "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = dict.fromkeys(("passed", "failed", "error"), 0)
    for count, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout.strip().splitlines()[-1]):
        counts[word] = int(count)
    return counts, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "samples" / "convnet.pt2", tmp_path / "net.pt2")
    return tmp_path


def test_files_by_fixture_and_marker(folder: Path) -> None:
    (folder / "graphflops.toml").write_text('[[budget]]\nmodels = "net.pt2"\nmatrix_flops = "3 M"\n')
    counts, text = ran(
        folder,
        """
import pathlib
import pytest

def test_kept(graphflops_budget):
    report = graphflops_budget("net.pt2")
    assert report.total().matrix_flops == 2261152

def test_broken(graphflops_budget):
    graphflops_budget(pathlib.Path("net.pt2"), matrix_flops="2 MFLOP")

@pytest.mark.graphflops_budget("net.pt2")
def test_marked(): pass

@pytest.mark.graphflops_budget("net.pt2", parameters=1)
def test_marked_broken(): raise SystemExit("not reached")

@pytest.mark.graphflops_budget(matrix_flops="2 MFLOP")
def test_limits_of_the_marker(graphflops_budget):
    graphflops_budget("net.pt2")

def test_not_there(graphflops_budget):
    graphflops_budget("other.pt2", macs=1)

def test_wrong(graphflops_budget):
    graphflops_budget("net.pt2", macs="much")

def test_wrong_name(graphflops_budget):
    graphflops_budget("net.pt2", flops=1)
""",
    )
    assert counts == {"passed": 2, "failed": 5, "error": 1}
    assert text.count("matrix_flops is 2.261 MFLOP: 261.2 kFLOP (13.1 %) over the limit of 2.000 MFLOP") >= 2
    assert "macs: 'much' is no number of MACs" in text
    assert "unknown field `flops`; known are matrix_flops" in text
    assert "Traceback" not in text


def test_without_a_budget_for_the_file_it_fails(folder: Path) -> None:
    counts, text = ran(folder, "def test(graphflops_budget): graphflops_budget('net.pt2')")
    assert counts["failed"] == 1
    assert "graphflops.toml" in text


def test_modules_are_exported(pytestconfig: pytest.Config) -> None:
    torch = pytest.importorskip("torch")
    layer, rows = torch.nn.Linear(64, 32), (torch.zeros(8, 64),)
    check = checker(pytestconfig, {"coverage": "100 %"})
    report = check(layer, rows, matrix_flops=2 * 8 * 64 * 32)
    assert report.parameters == 64 * 32 + 32
    check(torch.export.export(layer, rows), matrix_flops=2 * 8 * 64 * 32)
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)Linear  1 error.*1 FLOP \(<0\.1 %\) over the limit"
    ):
        check(layer, rows, matrix_flops=2 * 8 * 64 * 32 - 1)
    with pytest.raises(pytest.fail.Exception, match="nothing was measured before"):
        check(layer, rows, matrix_flops="+1 %")


def test_loading_it_imports_nothing_but_pytest() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import graphflops.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"graphflops", "graphflops.pytest_plugin"}


def test_it_is_an_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\ngraphflops = "{PLUGIN}"\n' in text
