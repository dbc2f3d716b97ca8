"""Weights and constants are found in the archive as torch wrote them, and never taken where the file contradicts itself."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import graphflops
from graphflops.errors import FileError

torch = pytest.importorskip("torch")


class Layouts(torch.nn.Module):
    """A transposed weight, two views of one memory, an empty one, half precision, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(24, dtype=torch.float32)
        self.transposed = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
        self.register_buffer("first", whole[:12].view(3, 4))
        self.register_buffer("second", whole[6:18].view(4, 3))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("narrow_type", torch.arange(4, dtype=torch.bfloat16))
        self.register_buffer("truth", torch.tensor([True, False, True]))
        self.constant = torch.tensor([5, 6, 7])

    def forward(self, x: torch.Tensor) -> Any:
        added = (
            self.transposed.sum()
            + self.first.sum()
            + self.second.sum()
            + self.empty.sum()
            + self.narrow_type.sum()
        )
        return x + added + self.truth.sum() + self.constant.sum()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Layouts(), (torch.ones(1),)), path)
    return path


def contents(path: Path) -> dict[str, Any]:
    graph = graphflops.load(path)
    assert graph.contents is not None
    return {entry.target: graph.contents(entry.name) for entry in graph.inputs if entry.role != "user"}


def numbers(stored: Any) -> list[Any]:
    """Elements in row-major order, read without torch."""
    import numpy

    types = {"float32": "<f4", "int64": "<i8", "bool": "?", "bfloat16": "<u2"}
    flat = numpy.frombuffer(stored.memory, dtype=types[stored.dtype.name])
    strides = [stride * flat.itemsize for stride in stored.strides]
    view = numpy.lib.stride_tricks.as_strided(flat[stored.offset :], stored.shape, strides)
    return list(view.reshape(-1).tolist())


def test_every_layout(saved: Path) -> None:
    held = contents(saved)
    assert numbers(held["transposed"]) == [0, 3, 1, 4, 2, 5]
    assert numbers(held["first"]) == list(range(12))
    assert numbers(held["second"]) == list(range(6, 18))
    assert held["empty"].shape == (0, 3)
    assert [bits << 16 for bits in numbers(held["narrow_type"])] == [0, 0x3F800000, 0x40000000, 0x40400000]
    assert numbers(held["truth"]) == [True, False, True]
    assert numbers(held["constant"]) == [5, 6, 7]


def test_a_name_that_is_no_weight(saved: Path) -> None:
    graph = graphflops.load(saved)
    assert graph.contents is not None
    assert graph.contents("x") is None
    assert graph.contents("nothing") is None


def test_writing_to_what_was_read_leaves_the_file_alone(saved: Path) -> None:
    before = saved.read_bytes()
    contents(saved)["first"].memory[0:4] = b"\xff\xff\xff\xff"
    assert saved.read_bytes() == before


def rewritten(path: Path, change: Any) -> Path:
    """The archive with the description of its weights changed."""
    target = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("weights_config.json"):
                config = json.loads(data)
                change(config["config"])
                data = json.dumps(config).encode()
            new.writestr(name, data)
    return target


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sizes", [{"as_int": 10**12}, {"as_int": 4}]),
        ("strides", [{"as_int": 10**9}, {"as_int": 1}]),
        ("storage_offset", {"as_int": 10**6}),
        ("sizes", [{"as_int": -3}, {"as_int": 4}]),
        ("storage_offset", {"as_int": -1}),
        ("strides", [{"as_int": 4}]),
        ("sizes", [{"as_expr": {"expr_str": "s0"}}, {"as_int": 4}]),
    ],
)
def test_what_reaches_outside_of_its_memory_is_refused(saved: Path, field: str, value: Any) -> None:
    def change(config: Any) -> None:
        config["first"]["tensor_meta"][field] = value

    with pytest.raises(FileError):
        contents(rewritten(saved, change))


def test_a_pickle_is_not_opened(saved: Path) -> None:
    def change(config: Any) -> None:
        config["first"]["use_pickle"] = True

    assert contents(rewritten(saved, change))["first"] is None


def test_a_member_that_is_missing(saved: Path) -> None:
    def change(config: Any) -> None:
        config["first"]["path_name"] = "../../etc/passwd"

    assert contents(rewritten(saved, change))["first"] is None


def test_packed_members_are_read_too(saved: Path) -> None:
    target = saved.with_name("packed.pt2")
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert numbers(contents(target)["transposed"]) == [0, 3, 1, 4, 2, 5]
