"""Recorded steps that contradict themselves: one line that says what is wrong."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from graphflops import analyze
from graphflops.errors import FileError
from graphflops.exporters import load
from graphflops.exporters.step_file import MEMBER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# x of 4 rows of 8 is there before; call 0 gathers it from two ranks into 8 rows, call 1 adds that to itself.
STEP: dict[str, Any] = {
    "format": 1,
    "producer": "torch 2.13.0",
    "rank": 1,
    "axes": [["dp", 2]],
    "groups": [["7", "dp", [0, 1]]],
    "operators": ["_c10d_functional.all_gather_into_tensor.default", "aten.add.Tensor"],
    "modules": [["", ""], ["layers.0", "Block"]],
    "sources": ["", "train.py:3"],
    "storages": [["x", "input", -1, 1, 128], ["v1", "value", 0, 1, 256], ["v2", "temporary", 1, 1, 256]],
    "values": [
        [0, 0, [4, 8], [8, 1], "float32"],
        [1, 0, [8, 8], [8, 1], "float32"],
        [2, 0, [8, 8], [8, 1], "float32"],
    ],
    "inputs": [[0, "user", "x"]],
    "calls": [
        [0, [{"v": 0}, 2, "7"], {}, [1], 1, 1, "forward", 0],
        [1, [{"v": 1}, {"v": 1}], {"alpha": 1}, [2], 0, 0, "backward", 0],
    ],
}


def written(path: Path, step: object, name: str = MEMBER) -> Path:
    file = path / "step.recorded"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, json.dumps(step))
    return file


def test_a_step(tmp_path: Path) -> None:
    report = analyze(written(tmp_path, STEP))
    assert [(one.axis, one.module, one.phase, one.bytes) for one in report.exchanges] == [
        ("dp", "layers.0", "forward", 4 * 8 * 4)
    ]
    (memory,) = report.memory_use
    assert (memory.inputs, memory.activations, memory.temporaries) == (128, 256, 256)
    assert (memory.requested_peak, memory.peak_node) == (128 + 2 * 256, "call_1")
    assert report.totals.peak_bytes == memory.requested_peak
    assert report.mesh is not None
    assert report.mesh.rank == 1


def test_the_weights_of_a_saved_step_are_not_its_peak(tmp_path: Path) -> None:
    step = json.loads(json.dumps(STEP))
    step["storages"][0][1], step["inputs"][0][1] = "weight", "parameter"
    report = analyze(written(tmp_path, step))
    assert report.totals.peak_bytes == 2 * 256
    saved = tmp_path / "report.json"
    saved.write_bytes(report.to_json())
    assert "GF120" not in {one.code for one in analyze(saved).diagnostics}


def at(*place: str | int, value: Any) -> Callable[[Any], None]:
    def put(step: Any) -> None:
        for part in place[:-1]:
            step = step[part]
        step[place[-1]] = value

    return put


def of_another(operator: str) -> Callable[[Any], None]:
    """Call 1 of this operator, without keywords."""

    def put(step: Any) -> None:
        step["operators"][1], step["calls"][1][2] = operator, {}

    return put


def more(name: str, value: Any) -> Callable[[Any], None]:
    return lambda step: step[name].append(value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (at("format", value=2), "has format 2, this graphflops reads 1"),
        (at("axes", 0, 1, value=0), "an axis of no size"),
        (at("axes", 0, 1, value=2**21), "an axis of no size"),
        (at("axes", value=[["a", 2**19], ["b", 2**19]]), "the mesh is too large"),
        (at("rank", value=2), "there is no rank 2"),
        (at("groups", 0, 2, value=[0, 5]), "group 7 does not list ranks of the mesh, each once"),
        (at("groups", 0, 2, value=[0, 0]), "group 7 does not list ranks of the mesh, each once"),
        (at("storages", 1, 2, value=5), "memory v1 is freed before it is allocated"),
        (at("storages", 1, 3, value=2), "memory v1 is freed before it is allocated"),
        (at("storages", 1, 4, value=-1), "memory v1 has -1 bytes"),
        (at("values", 1, 0, value=9), "value 1 lies in no memory"),
        (at("values", 1, 2, value=[-8, 8]), "value 1 has a size out of range"),
        (at("values", 1, 3, value=[1]), "value 1 has not a stride for each axis"),
        (at("values", 1, 4, value="float33"), "value 1 has elements of float33"),
        (at("inputs", 0, 0, value=3), "makes value 3"),
        (at("calls", 0, 3, 0, value=0), "makes value 0, which is none or made twice"),
        (at("inputs", 0, 1, value="gift"), "is not of the documented form"),
        (at("calls", 0, 0, value=2), "call 0 has no operator"),
        (at("calls", 0, 4, value=2), "call 0 has no module"),
        (at("calls", 0, 5, value=-1), "call 0 has no source line"),
        (at("calls", 0, 1, 0, value={"v": 2}), "call 0 has an argument that is none"),
        (at("calls", 0, 1, 0, value={"v": True}), "call 0 has an argument that is none"),
        (at("calls", 0, 1, 0, value={"x": 2}), "call 0 has an argument that is none"),
        (at("calls", 1, 1, 0, value={}), "call 1 has an argument that is none"),
        (at("calls", 1, 3, value=[1]), "makes value 1, which is none or made twice"),
        (at("calls", 0, 6, value="sideways"), "is not of the documented form"),
        (at("modules", value=[["", ""], ["", "B"]]), "a module is listed twice"),
        (at("calls", value=[]), "has no call"),
        (at("groups", 0, 2, value=[1]), "group 7 is not along dp"),
        (at("groups", 0, 1, value="tp"), "group 7 is not along tp"),
        (at("groups", value=[["7", "dp", [0, 1]], ["7", "", [1]]]), "a process group is listed twice"),
        (at("groups", value=[]), "call 0 has no process group"),
        (at("storages", 0, 1, value="host"), "call 0 computes on the host and on the device"),
        (at("storages", 2, 1, value="weight"), "memory v2 of kind weight from call 1 holds other inputs"),
        (at("inputs", 0, 1, value="parameter"), "memory x of kind input from call -1 holds other inputs"),
        (at("storages", 0, 2, value=0), "memory x of kind input from call 0 holds other inputs"),
        (at("storages", 2, 4, value=255), "value 2 is longer than memory v2"),
        (at("values", 2, 1, value=1), "value 2 is longer than memory v2"),
        (at("storages", 1, 3, value=0), "call 1 uses memory v1, which is not there"),
        (at("storages", 1, 2, value=1), "call 0 uses memory v1, which is not there"),
        (at("storages", 2, 1, value="host"), "call 1 computes on the host and on the device"),
        (at("values", 2, 3, value=[0, 0]), "call 1 puts its result in memory of another value"),
        (at("calls", value=7), "is not of the documented form"),
        (at("calls", 1, 3, 0, value=None), "value 2 is of no call"),
        (more("operators", "aten.mm.default"), "operator 2 is of no call"),
        (at("operators", 1, value="onnx.Identity.13"), "is no operator that torch dispatches"),
        (at("calls", 0, 1, value=[{"v": 0}, 2, "7", 0]), "call 0 has 4 operands of 3"),
        (at("calls", 1, 2, value={"beta": 2}), "call 1 has an operand beta, and its operator none"),
        (at("calls", 0, 1, 1, value=4), "call 0 gives 64 of 32 elements, by 2 devices"),
        (at("values", 2, 3, value=[1, 1]), "call 1 puts its result in memory of another value"),
        (at("values", 2, 0, value=1), "call 1 puts its result in memory of another value"),
        (at("values", 1, 2, value=[7, 8]), "call 0 gives 56 of 32 elements, by 2 devices"),
        (at("operators", 1, value="aten.add_.Tensor"), "call 1 writes to memory that it is not given"),
        (of_another("aten.view.default"), "call 1 puts its result in memory of another value"),
    ],
)
def test_what_contradicts_itself(tmp_path: Path, change: Callable[[Any], None], problem: str) -> None:
    step = json.loads(json.dumps(STEP))
    change(step)
    with pytest.raises(FileError, match=problem) as error:
        load(written(tmp_path, step))
    assert "\n" not in str(error.value)


def test_a_product_in_the_memory_of_its_operand(tmp_path: Path) -> None:
    step = json.loads(json.dumps(STEP))
    step["operators"][1] = "aten.mm.default"
    step["calls"][1][2] = {}
    assert load(written(tmp_path, step)).nodes
    step["values"][2][0] = 1
    with pytest.raises(FileError, match="call 1 puts its result in memory of another value"):
        load(written(tmp_path, step))


def test_other_archives(tmp_path: Path) -> None:
    file = written(tmp_path, STEP)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("more", "")
    with pytest.raises(FileError, match="holds other members"):
        load(file)
    with pytest.raises(FileError, match="leave --model out"):
        load(written(tmp_path, STEP), "model")
    deep = written(tmp_path, 0)
    with zipfile.ZipFile(deep, "w") as archive:
        archive.writestr(MEMBER, "[" * 100_000)
    with pytest.raises(FileError, match="is not of the documented form"):
        load(deep)
