"""Stored tensors of ONNX files: roles, contents, data in other files."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, parser

from graphflops.analysis import analyze
from graphflops.exporters.onnx_proto import messages, without_weights
from graphflops.tensor import FLOAT32, INT64, TensorType
from tests.exporters.onnx_files import HEAD, ZEROS, ops, roles
from tests.support import t


def test_roles_of_stored_tensors(read):
    graph = read(
        """g (float[2, 3, 8, 8] x) => (float[2, 3, 8, 8] y)
        <float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1},
         float[1] epsilon = {0.1}, int64[4] shape = {2, 3, 8, 8}>
        { a = BatchNormalization(x, scale, bias, mean, var) b = Add(a, epsilon) y = Reshape(b, shape) }"""
    )
    assert roles(graph) == {
        "x": "user",
        "scale": "parameter",
        "bias": "parameter",
        "mean": "buffer",
        "var": "buffer",
        "epsilon": "constant",
        "shape": "constant",
    }
    assert graph.types["shape"] == TensorType((4,), INT64, value=(2, 3, 8, 8))


@pytest.mark.parametrize(
    "call",
    [
        "y = own.norm(x, scale, bias, mean, var)",
        """one = Constant<value = bool {1}>()
           y = If (one) <then_branch = a () => (float[2, 3, 8, 8] p) { p = own.norm(x, scale, bias, mean, var) },
                         else_branch = b () => (float[2, 3, 8, 8] q) { q = Identity(x) }>""",
    ],
)
def test_statistics_of_norms_inside_functions_and_branches_are_no_parameters(call, read):
    """3 of scale and 3 of bias."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[2, 3, 8, 8] x) => (float[2, 3, 8, 8] y)
        <float[3] scale = {{1, 1, 1}}, float[3] bias = {{0, 0, 0}}, float[3] mean = {{0, 0, 0}}, float[3] var = {{1, 1, 1}}>
        {{ {call} }}
        <opset_import: ["" : 17], domain: "own">
        norm (v, w, b, m, s) => (r) {{ r = BatchNormalization(v, w, b, m, s) }}"""
    )
    assert analyze(read(model)).parameters == 6


def test_constant_nodes_are_stored_tensors(read):
    graph = read("g (float[4] x) => (float[4] y) { one = Constant<value_float = 1.0>() y = Add(x, one) }")
    assert ops(graph) == ["onnx.Add.14"]
    assert roles(graph)["one"] == "constant"
    assert graph.types["one"] == TensorType((), FLOAT32, value=1.0)


@pytest.mark.parametrize(
    "code, name, values, expected",
    [
        (TensorProto.INT64, "int64", [-1, 2**40], (-1, 2**40)),
        (TensorProto.INT32, "int32", [-1, 5], (-1, 5)),
        (TensorProto.UINT8, "uint8", [0, 255], (0, 255)),
        (TensorProto.INT8, "int8", [-128, 127], (-128, 127)),
        (TensorProto.BOOL, "bool", [True, False], (1, 0)),
        (TensorProto.UINT64, "uint64", [2**63, 1], (2**63, 1)),
        (TensorProto.INT4, "int4", [-8, 7, 3], (-8, 7, 3)),
        (TensorProto.UINT4, "uint4", [15, 0, 1], (15, 0, 1)),
        (TensorProto.FLOAT, "float32", [0.5, 2.0], (0.5, 2.0)),
        (TensorProto.FLOAT16, "float16", [0.5, 2.0], (0.5, 2.0)),
        (TensorProto.BFLOAT16, "bfloat16", [0.5, -2.0], (0.5, -2.0)),
        (TensorProto.DOUBLE, "float64", [0.5, 2.0], (0.5, 2.0)),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_small_contents_are_read_from_every_field(code, name, values, expected, raw, read):
    tensor = helper.make_tensor("c", code, (len(values),), values)
    if raw:
        tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), "c")
    y = helper.make_tensor_value_info("y", code, (len(values),))
    graph = helper.make_graph([helper.make_node("Identity", ["c"], ["y"])], "g", [], [y], [tensor])
    assert read(helper.make_model(graph)).types["c"] == t(len(values), dtype=name, value=expected)


def test_large_data_is_left_out_and_its_length_is_kept(read):
    weight = helper.make_tensor("w", TensorProto.FLOAT, (64, 64), b"\0" * (64 * 64 * 4), raw=True)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 64))
    model = helper.make_model(helper.make_graph([node], "g", [x], [x], [weight]))
    slim = without_weights(model.SerializeToString())
    assert len(slim) < 500
    parsed = messages().ModelProto.FromString(slim)
    assert parsed.graph.node[0] == model.graph.node[0]
    assert not parsed.graph.initializer[0].raw_data
    assert read(model).notes == ()
    weight.dims[0] = 65
    model.graph.initializer[0].CopyFrom(weight)
    (note,) = read(model).notes
    assert (note.code, note.message) == (
        "GF210",
        "tensor w is float32[65, 64], 16640 bytes, but its data in the file has 16384",
    )


def external(name, shape, **entries):
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
    )
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_data_is_not_opened_but_its_length_is_compared(read):
    tensors = [
        external("a", (4, 8), location="nowhere.bin", offset=0, length=128),
        external("b", (4, 8), location="nowhere.bin", offset=128, length=64),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 8))
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", [], [y], tensors)
    found = read(helper.make_model(graph))
    assert [note.message for note in found.notes] == [
        "tensor b is float32[4, 8], 128 bytes, but its data in another file has 64"
    ]


def test_tensors_with_the_same_external_data_are_one_parameter(read):
    tensors = [external(name, (4, 8), location="w", offset=0, length=128) for name in ("head", "embedding")]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 8))
    graph = helper.make_graph([helper.make_node("Add", ["head", "embedding"], ["y"])], "g", [], [y], tensors)
    found = read(helper.make_model(graph))
    assert [entry.alias_of for entry in found.inputs] == ["", "head"]
    assert analyze(found).parameters == 32


def test_external_small_constants_have_a_type_but_no_contents(read):
    tensor = external("shape", (2,), location="w", offset=0, length=16)
    tensor.data_type = TensorProto.INT64
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", [x], [x], [tensor])
    del graph.output[:]
    graph.output.append(onnx.ValueInfoProto(name="y"))
    model = read(helper.make_model(graph))
    assert model.types["shape"] == TensorType((2,), INT64)
    (row,) = analyze(model).rows
    assert row.state != "unknown"
    assert row.outputs[0].type.rank == 2


def test_stored_tensors_may_be_listed_as_inputs(read):
    model = parser.parse_model(
        f"{HEAD} g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) <float[4, 4] w = {ZEROS}> {{ y = MatMul(x, w) }}"
    )
    assert roles(read(model)) == {"x": "user", "w": "parameter"}
