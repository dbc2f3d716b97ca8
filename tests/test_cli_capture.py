"""Modules that are captured from the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.test_cli import failed, misused, ok


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "own_models.py").write_text(
        "import torch\n"
        "def pair(): return torch.nn.Linear(8, 4), (torch.zeros(2, 8),)\n"
        "def named(): return dict(module=pair()[0], args=(), kwargs={'input': torch.zeros(2, 8)})\n"
        "def free(): return torch.nn.Linear(8, 4), (torch.zeros(2, 8),), {}, ({0: torch.export.Dim('n')},)\n"
        "def meta():\n"
        "    with torch.device('meta'): return torch.nn.Linear(2**20, 2**20), (torch.zeros(2, 2**20),)\n"
        "def wrong(): return torch.nn.Linear(8, 4)\n"
        "def mismatch(): return torch.nn.Linear(8, 4), (torch.zeros(2, 9),)\n"
        "def raises(): raise ValueError('first\\nsecond')\n"
        "def ends(): raise SystemExit(0)\n"
        "class Compressed(torch.nn.Module):\n"
        "    def forward(self, x): return x.to_sparse_csr()\n"
        "def unsaved(): return Compressed(), (torch.eye(2),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_capture(package: Path) -> None:
    for name, flops in (("pair", 128), ("named", 128), ("meta", 4 * 2**40)):
        assert ok("capture", f"own_models:{name}", "-o", "r.json") == ""
        assert json.loads(Path("r.json").read_text())["totals"]["matrix_flops"] == flops
    assert ok("capture", "own_models:free", "-o", "m.pt2") == ""
    totals = json.loads(ok("analyze", "m.pt2", "--dim", "input[0]=3", "--format", "json"))["totals"]
    assert totals["matrix_flops"] == 3 * 64
    assert {*os.listdir()} - {"__pycache__"} == {"m.pt2", "own_models.py", "r.json"}


@pytest.mark.filterwarnings("ignore")
def test_joint(package: Path) -> None:
    assert ok("capture", "own_models:pair", "--joint", "-o", "m.pt2") == ""
    document = json.loads(ok("analyze", "m.pt2", "--format", "json"))
    assert document["totals"]["matrix_flops"] == 2 * 128  # the input wants no gradient
    assert {row.get("phase") for row in document["rows"]} == {None, "backward"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "factory, says",
    [
        ("own_models:missing", "AttributeError"),
        ("no_such_package:f", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("own_models:wrong", "not (module, args, kwargs, dynamic_shapes)"),
        ("own_models:raises", "ValueError: first (own_models.py:"),
        (
            "own_models:ends",
            "SystemExit: 0 (own_models.py:",
        ),  # else nothing is captured, with the exit code of success
        ("own_models:mismatch", "torch cannot export it"),
        ("own_models:unsaved", "torch cannot save it"),
    ],
)
def test_what_cannot_be_captured(package: Path, factory: str, says: str) -> None:
    assert says in failed("capture", factory, "-o", "m.pt2")
    assert not Path("m.pt2").exists()


def test_capture_names_a_factory(package: Path) -> None:
    assert "PKG.MOD:FACTORY" in misused("capture", "own_models", "-o", "m.pt2")


def test_a_module_that_does_not_exist_is_told_without_pythons_own_lines(tmp_path: Path) -> None:
    said = failed("capture", "no_such_module:make", "-o", os.fspath(tmp_path / "a.pt2"))
    assert "No module named 'no_such_module'" in said
    assert "frozen" not in said
