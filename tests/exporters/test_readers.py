"""The table of readers: each row has its module, each module its row, and a third reader needs no more than the two."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from graphflops import exporters
from graphflops.analysis import analyze
from graphflops.errors import FileError
from graphflops.exporters import READERS, Reader, load
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.loading import is_report
from graphflops.tensor import TensorType, dtype_named
from graphflops.verify import verify

FOLDER = Path(exporters.__file__).parent


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_row_has_a_module_that_reads(reader):
    module = importlib.import_module(f"graphflops.exporters.{reader.name}")
    assert hasattr(module, "read"), f"graphflops/exporters/{reader.name}.py needs read(path, model)"
    assert reader.magic or hasattr(module, "recognises"), (
        f"{reader.name}: neither a magic nor recognises(head)"
    )
    assert all(suffix.startswith(".") for suffix in reader.suffixes)


def test_every_module_that_reads_has_a_row():
    reading = {
        path.stem
        for path in FOLDER.glob("*.py")
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.FunctionDef) and statement.name == "read"
    }
    missing = reading - {reader.name for reader in READERS}
    assert not missing, f"add a row to READERS in graphflops/exporters/__init__.py for {sorted(missing)}"


# A third dialect: {"toy": 1, "inputs": {"x": [2, 3]}, "calls": [["y", "aten.relu.default", ["x"]]], "outputs": ["y"]}


def read(path: Path, model: str | None) -> Graph:
    described = json.loads(path.read_text())
    types = {
        name: TensorType(tuple(shape), dtype_named("float32")) for name, shape in described["inputs"].items()
    }
    nodes = []
    for name, op, operands in described["calls"]:
        nodes.append(Node(name, op, tuple(map(Ref, operands)), outputs=(name,)))
        types[name] = types[operands[0]]
    return Graph(
        tuple(nodes),
        types,
        tuple([Input(name, "user") for name in described["inputs"]]),
        tuple([Output(Ref(name)) for name in described["outputs"]]),
    )


def recognises(head: bytes) -> bool:
    return head.startswith(b'{"toy"')


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A module of these two functions, its row, and a file."""
    module = ModuleType("graphflops.exporters.toy")
    module.read, module.recognises = read, recognises
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(exporters, "READERS", (*READERS, Reader("toy", (".toy",))))
    path = tmp_path / "model.json"
    calls = [["h", "aten.relu.default", ["x"]], ["y", "aten.mm.default", ["h", "w"]]]
    toy = {"toy": 1, "inputs": {"x": [4, 4], "w": [4, 4]}, "calls": calls, "outputs": ["y"]}
    path.write_text(json.dumps(toy))
    return path, module


def test_a_third_reader(toy):
    path, _ = toy
    verify(load(path))
    assert analyze(path).total().matrix_flops == 2 * 4 * 4 * 4
    assert not is_report(path)


def test_a_file_goes_to_the_reader_of_its_suffix_where_none_recognises_it(toy, tmp_path):
    assert toy
    path = tmp_path / "model.toy"
    path.write_text("garbage")
    with pytest.raises(ValueError, match="Expecting value"):
        load(path)
    path = tmp_path / "model.unheard"
    path.write_text("garbage")
    with pytest.raises(FileError, match=r"is not a \.pt2"):
        load(path)
