"""Contents of stored tensors in ONNX files, however they are held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphflops import analyze
from graphflops.attention.constants import array_of
from graphflops.errors import FileError, ModelError
from graphflops.exporters import load
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Graph, Origin
from tests.exporters.onnx_files import model, value

RNG = np.random.default_rng(0)
NUMBERS = {
    "float32": RNG.normal(size=(5, 70)).astype(np.float32),
    "float64": RNG.normal(size=(3, 70)),
    "float16": RNG.normal(size=(9, 70)).astype(np.float16),
    "bool": RNG.random((40, 70)) > 0.5,
    "int8": RNG.integers(-128, 127, (40, 70), dtype=np.int8),
    "uint8": RNG.integers(0, 255, (40, 70), dtype=np.uint8),
    "int32": RNG.integers(-(2**31), 2**31, (7, 70), dtype=np.int32),
    "uint32": RNG.integers(0, 2**32, (7, 70), dtype=np.uint32),
    "int64": RNG.integers(-(2**63), 2**63 - 1, (4, 70), dtype=np.int64),
    "small": np.arange(6, dtype=np.int64).reshape(2, 3),
    "scalar": np.asarray(True),
    "empty": np.zeros((0, 4), np.float32),
}


def typed(array: np.ndarray[Any, Any], name: str) -> TensorProto:
    """The tensor with its elements in a typed field."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())


def raw(array: np.ndarray[Any, Any], name: str) -> TensorProto:
    return numpy_helper.from_array(array, name)


def model_of(tensors: list[TensorProto], constants: tuple[TensorProto, ...] = ()) -> onnx.ModelProto:
    """A model that returns every one of its stored tensors as it is."""
    made = [helper.make_node("Constant", [], [t.name], value=t) for t in constants]
    given = [
        helper.make_tensor_value_info(f"{t.name}_out", t.data_type, t.dims) for t in (*tensors, *constants)
    ]
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}_out"]) for t in (*tensors, *constants)]
    graph = helper.make_graph([*made, *nodes], "g", [], given, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def graph_of(model: onnx.ModelProto, path: Path | None) -> Graph:
    if path is None:
        return Program(model).graph(Origin())
    onnx.save(model, path)
    return load(path)


def contents(graph: Graph, name: str) -> Any:
    assert graph.contents is not None
    stored = graph.contents(name)
    return None if stored is None else array_of(stored)


@pytest.mark.parametrize("make", [typed, raw])
def test_contents_of_constants_in_branches_and_functions(make: Any, tmp_path: Path) -> None:
    """The constant and the initializer of a branch, and the constant of a function, of 350 numbers each."""
    array = NUMBERS["float32"]
    y = helper.make_empty_tensor_value_info("y")
    made = [helper.make_node("Constant", [], ["c"], value=make(array, "c"))]
    nodes = [*made, helper.make_node("Add", ["c", "w"], ["y"])]
    branch = helper.make_graph(nodes, "branch", [], [y], [make(array + 1, "w")])
    calls = [
        helper.make_node("If", ["is"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("f", ["y"], ["z"], domain="d", name="call"),
    ]
    given = [helper.make_tensor_value_info("is", TensorProto.BOOL, ())]
    whole = model(calls, given, [helper.make_empty_tensor_value_info("z")])
    inside = [*made, helper.make_node("Add", ["c", "x"], ["r"])]
    whole.functions.append(helper.make_function("d", "f", ["x"], ["r"], inside, whole.opset_import))
    graph = graph_of(whole, tmp_path / "model.onnx")
    held = {entry.name: contents(graph, entry.name) for entry in graph.inputs if entry.role != "user"}
    assert held.keys() == {"c", "w", "c_1", "w_1", "call/c"}
    for name, found in held.items():
        np.testing.assert_array_equal(found, array + (name[0] == "w"))


@pytest.mark.parametrize("suffix", [".onnx", ".json", ".textproto", None])
def test_contents(suffix: str | None, tmp_path: Path) -> None:
    tensors = [
        make(array, f"{name}_{make.__name__}") for name, array in NUMBERS.items() for make in (typed, raw)
    ]
    model = model_of(tensors[::2], tuple(tensors[1::2]))
    graph = graph_of(model, tmp_path / f"model{suffix}" if suffix else None)
    for name, array in NUMBERS.items():
        for make in (typed, raw):
            found = contents(graph, f"{name}_{make.__name__}")
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)


def test_bfloat16() -> None:
    tensor = helper.make_tensor("x", TensorProto.BFLOAT16, (4,), [1.0, -2.5, 0.0, float("-inf")])
    np.testing.assert_array_equal(
        contents(graph_of(model_of([tensor]), None), "x"), [1.0, -2.5, 0.0, -np.inf]
    )


def test_other_files_are_not_opened(tmp_path: Path) -> None:
    model = model_of([raw(NUMBERS["float32"], "x")])
    onnx.save(
        model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0, location="weights"
    )
    (tmp_path / "weights").unlink()
    assert contents(load(tmp_path / "model.onnx"), "x") is None


@pytest.mark.parametrize("length", [0, 699, 701])
def test_data_of_another_length(length: int, tmp_path: Path) -> None:
    tensor = TensorProto(name="x", data_type=TensorProto.BOOL, dims=[10, 70], raw_data=b"\1" * length)
    large = TensorProto(
        name="y", data_type=TensorProto.BOOL, dims=[100, 70], raw_data=b"\1" * (length + 6300)
    )
    graph = graph_of(model_of([tensor, large]), tmp_path / "model.onnx")
    for name in "xy":
        with pytest.raises(FileError, match="export the model again"):
            contents(graph, name)


def test_what_is_not_stored_as_whole_bytes() -> None:
    four_bits = helper.make_tensor("x", TensorProto.INT4, (6,), [1, 2, 3, -4, 5, 6])
    text = helper.make_tensor("t", TensorProto.STRING, (1,), [b"one"])
    graph = graph_of(model_of([four_bits, text]), None)
    assert contents(graph, "x") is None
    assert contents(graph, "t") is None
    assert contents(graph, "no such value") is None


def test_a_file_that_has_changed(tmp_path: Path) -> None:
    graph = graph_of(model_of([raw(NUMBERS["float32"], "x")]), tmp_path / "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a" + b"\xff" * 50)
    assert contents(graph, "x") is None


@pytest.mark.parametrize("sizes", [(), (1,)])
@pytest.mark.parametrize("largest", [2, 5])
def test_the_number_that_an_input_holds_is_given_by_its_name(
    sizes: tuple[int, ...], largest: int, tmp_path: Path
) -> None:
    """The k largest of 7 numbers, or the numbers from 0 to k."""
    first = (
        ("TopK", ["x", "k"], ["z", "i"], {"axis": 0}) if sizes else ("Range", ["zero", "k", "one"], ["z"], {})
    )
    then = ("Shape", ["z"], ["y"], {})
    nodes = [helper.make_node(name, given, made, **more) for name, given, made, more in (first, then)]
    stored = [
        helper.make_tensor(name, TensorProto.INT64, (), [number])
        for name, number in (("zero", 0), ("one", 1))
    ]
    inputs = [value("x", (7,)), value("k", sizes, TensorProto.INT64)]
    made = model(nodes, inputs, [helper.make_empty_tensor_value_info("y")], stored)
    (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
    report = analyze(tmp_path / "a.onnx", dims={"k": largest})
    assert report.rows[0].outputs[0].type.shape == (largest,)  # type: ignore[union-attr]
    assert report.symbols["k"].given_by == "user"
    with pytest.raises(ModelError, match="q: no such size"):
        analyze(tmp_path / "a.onnx", dims={"q": largest})
