"""What the reader makes of ONNX files: names, nested graphs, functions, stored tensors, sizes, places."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf import json_format, text_format
from onnx import TensorProto, helper, parser

from graphflops.analysis import analyze
from graphflops.dims import evaluate, parse_dim, symbol
from graphflops.exporters import load
from graphflops.exporters.onnx_proto import messages, without_weights
from graphflops.exporters.onnx_sizes import Sizes
from graphflops.graph import Graph, Ref
from graphflops.ops import onnx_versions
from graphflops.tensor import BOOL, FLOAT32, INT64, SequenceType, TensorType
from tests.support import t

SAMPLES = Path(__file__).parents[2] / "samples"
HEAD = '<ir_version: 10, opset_import: ["": 21, "local": 1]>'
ZEROS = f"{{ {', '.join('0' * 16)} }}"


@pytest.fixture
def read(tmp_path):
    """The graph of a model, given as text or as a message."""

    def read_model(model):
        if isinstance(model, str):
            model = parser.parse_model(f"{HEAD} {model}")
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return load(path)

    return read_model


def roles(graph):
    return {entry.name: entry.role for entry in graph.inputs}


def ops(graph):
    return [node.op for node in graph.nodes]


RELU = "g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"


@pytest.mark.parametrize("form", ["binary", "text", "json", "prototext"])
def test_every_form_of_a_file_is_read(form, tmp_path):
    model = parser.parse_model(f"{HEAD} {RELU}")
    path = tmp_path / "model.onnx"
    path.write_bytes(
        {
            "binary": model.SerializeToString(),
            "text": f"{HEAD} {RELU}".encode(),
            "json": json_format.MessageToJson(model).encode(),
            "prototext": text_format.MessageToString(model).encode(),
        }[form]
    )
    graph = load(path)
    assert ops(graph) == ["onnx.Relu.14"]
    assert graph.types == {"x": t("N", 4)}
    assert graph.symbols["N"].where == ("x[0]",)
    assert graph.origin.format == "onnx"


@pytest.mark.parametrize(
    "opset, op",
    [(1, "onnx.Softmax.1"), (10, "onnx.Softmax.1"), (12, "onnx.Softmax.11"), (13, "onnx.Softmax.13")],
)
def test_an_operator_bears_the_version_in_force(opset, op, read):
    node = helper.make_node("Softmax", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", opset)]
    )
    assert ops(read(model)) == [op]


def test_versions_are_those_of_the_onnx_package():
    if onnx.defs.onnx_opset_version() == onnx_versions.NEWEST[""]:
        assert onnx_versions.table() == onnx_versions._TABLE.strip()
    assert (
        onnx_versions.NEWEST_IR >= onnx.IR_VERSION
        or onnx.defs.onnx_opset_version() > onnx_versions.NEWEST[""]
    )


def test_operands_left_out_are_none_and_trailing_ones_are_dropped(read):
    graph = read('g (float[4] x, float high) => (float[4] y) { a = Clip(x, "", high) y = Clip(a, "", "") }')
    assert graph.nodes[0].args == (Ref("x"), None, Ref("high"))
    assert graph.nodes[1].args == (Ref("a"),)


def test_results_that_nobody_uses_are_unwanted(read):
    graph = read("g (float[4, 4] x) => (float[4, 2] y) { y, other = Split<axis = 1, num_outputs = 2>(x) }")
    assert graph.nodes[0].outputs == ("y", None)


def test_attributes_are_python_values(read):
    node = helper.make_node(
        "Custom",
        ["x"],
        ["y"],
        domain="local",
        i=3,
        f=0.5,
        s="text",
        ints=[1, 2],
        floats=[0.5, 2.0],
        strings=["a", "b"],
        tensor=helper.make_tensor("t", TensorProto.INT64, (2,), [7, 8]),
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [x]), opset_imports=[helper.make_opsetid("local", 1)]
    )
    (call,) = read(model).nodes
    kwargs = dict(call.kwargs)
    assert call.op == "local.Custom.1"
    assert kwargs["tensor"] == TensorType((2,), INT64, value=(7, 8))
    del kwargs["tensor"]
    assert kwargs == {
        "i": 3,
        "f": 0.5,
        "s": "text",
        "ints": (1, 2),
        "floats": (0.5, 2.0),
        "strings": ("a", "b"),
    }


# Stored tensors.


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
        "GF114",
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


def test_a_sparse_tensor_stores_its_elements_only(read):
    values = helper.make_tensor("w", TensorProto.FLOAT, (3,), [1.0, 2.0, 3.0])
    indices = helper.make_tensor("w_indices", TensorProto.INT64, (3,), [0, 5, 9])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [x])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, (4, 4)))
    del graph.output[:]
    graph.output.append(onnx.ValueInfoProto(name="y"))
    assert read(helper.make_model(graph)).types["w"] == t(4, 4, stored=3)


def test_stored_tensors_may_be_listed_as_inputs(read):
    model = parser.parse_model(
        f"{HEAD} g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) <float[4, 4] w = {ZEROS}> {{ y = MatMul(x, w) }}"
    )
    assert roles(read(model)) == {"x": "user", "w": "parameter"}


# Names.


def test_names_of_calls_are_made_unique(read):
    relu = helper.make_node("Relu", ["x"], ["a"], name="twice")
    again = helper.make_node("Relu", ["a"], ["b"], name="twice")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))
    graph = helper.make_graph([relu, again, helper.make_node("Relu", ["b"], ["y"])], "g", [x], [])
    graph.output.append(onnx.ValueInfoProto(name="y"))
    assert [node.name for node in read(helper.make_model(graph)).nodes] == ["twice", "twice_1", "Relu"]


def test_values_of_two_scopes_are_made_unique(read):
    graph = read(
        """g (float[2, 6] x) => (y) { a = Relu(x) b = d.F(a) y = Add(a, b) }
        <domain: "d", opset_import: ["": 21]>
        F (v) => (w) { a = Relu(v) w = Relu(a) }"""
    )
    assert [node.outputs for node in graph.nodes] == [("a",), ("F/a",), ("b",), ("y",)]


def test_calls_that_are_not_in_order_are_sorted(read):
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in (("b", "y"), ("x", "a"), ("a", "b"))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))
    assert [
        node.outputs[0] for node in read(helper.make_model(helper.make_graph(nodes, "g", [x], [y]))).nodes
    ] == [
        "a",
        "b",
        "y",
    ]


def test_a_stored_tensor_that_is_an_input_too_is_a_default(read):
    """A caller may pass another: its contents decide nothing. Before IR version 4 all stored tensors had to be inputs."""
    text = "g (float[2, 6] x, int64[2] to) => (y) <int64[2] to = {3, 4}> { y = Reshape(x, to) }"
    for version, contents in ((3, (3, 4)), (4, None)):
        graph = read(parser.parse_model(f'<ir_version: {version}, opset_import: ["": 21]> {text}'))
        assert graph.types["to"] == t(2, dtype="int64", value=contents)


# Nested graphs.

IF = """g (bool c, float[N, 4] x) => (float[N, 4] y)
    <float[4, 4] w = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}>
    {
      z = Relu(x)
      y = If(c) <
        then_branch = then () => (float[N, 4] r) { r = MatMul(z, w) },
        else_branch = other () => (float[N, 4] z1) <float one = {1}> { z1 = Add(z, one) }
      >
    }"""


def test_nested_graphs_see_the_values_around_them(read):
    graph = read(IF)
    branches = dict(graph.nodes[1].kwargs)
    then, other = branches["then_branch"], branches["else_branch"]
    assert isinstance(then, Graph)
    assert then.captures == ("z", "w")
    assert other.captures == ("z", "one")
    assert roles(graph)["one"] == "constant"
    assert {name for _, name in graph.nodes[1].uses()} == {"c", "z", "w", "one"}
    report = analyze(graph)
    assert report.total().matrix_flops == 2 * 4 * 4 * symbol("N")
    assert report.coverage.unknown == 0
    assert report.parameters == 16


def test_a_name_inside_may_shadow_one_around(read):
    graph = read(
        """g (bool c, float[4] x) => (float[4] y) {
          a = Relu(x)
          b = If(c) <then_branch = t () => (float[4] a) { a = Neg(x) }, else_branch = e () => (float[4] a) { a = Abs(x) }>
          y = Add(a, b)
        }"""
    )
    branches = [value for _, value in graph.nodes[1].kwargs]
    assert [branch.nodes[0].outputs for branch in branches] == [("a_1",), ("a_2",)]
    assert graph.nodes[2].args == (Ref("a"), Ref("b"))


def test_a_value_reaches_through_two_nested_graphs(read):
    graph = read(
        """g (bool c, float[4] x) => (float[4] y) {
          y = If(c) <
            then_branch = t () => (float[4] a) {
              a = If(c) <
                then_branch = tt () => (float[4] b) { b = Neg(x) }, else_branch = te () => (float[4] d) { d = Abs(x) }
              >
            },
            else_branch = e () => (float[4] f) { f = Identity(x) }
          >
        }"""
    )
    outer = dict(graph.nodes[0].kwargs)["then_branch"]
    inner = dict(outer.nodes[0].kwargs)["then_branch"]
    assert set(outer.captures) == {"c", "x"}
    assert inner.captures == ("x",)


def test_regions_with_other_values_around_are_other_calls(read):
    graph = read(
        """g (bool c, float[2, 2] a, float[3, 3] b) => (float[2, 2] y, float[3, 3] q) {
          y = If(c) <
            then_branch = t () => (float[2, 2] r) { z = Relu(a) r = MatMul(z, z) },
            else_branch = e () => (float[2, 2] s) { s = Abs(a) }
          >
          q = If(c) <
            then_branch = t () => (float[3, 3] r) { z = Relu(b) r = MatMul(z, z) },
            else_branch = e () => (float[3, 3] s) { s = Abs(b) }
          >
        }"""
    )
    assert analyze(graph).total().matrix_flops == 2 * 2 * 2 * 2 + 2 * 3 * 3 * 3


def test_one_body_called_with_different_values_around(read):
    """A function that holds a branch is written out twice; what the branch captures differs."""
    graph = read(
        """g (bool c, float[2, 2] a, float[3, 3] b) => (float[2, 2] y, float[3, 3] q) { y = local.F(c, a) q = local.F(c, b) }
        <domain: "local", opset_import: ["": 21]>
        F (c, v) => (w) {
          w = If(c) <then_branch = t () => (r) { r = MatMul(v, v) }, else_branch = e () => (s) { s = Abs(v) }>
        }"""
    )
    assert analyze(graph).total().matrix_flops == 2 * 2 * 2 * 2 + 2 * 3 * 3 * 3


# Functions.


def test_functions_are_written_out_with_their_attributes(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = local.Outer<axis = 0>(x) }
        <domain: "local", opset_import: ["": 21, "local": 1]>
        Outer <axis> (a) => (b) { t = local.Inner<axis = @axis>(a) b = Relu(t) }
        <domain: "local", opset_import: ["": 21]>
        Inner <axis, keep: int = 7> (a) => (b) { b = Softmax<axis = @axis>(a) }"""
    )
    assert ops(graph) == ["onnx.Softmax.13", "onnx.Relu.14"]
    assert graph.nodes[0].kwargs == (("axis", 0),)
    assert graph.nodes[0].name == "Outer/Inner/Softmax"
    assert graph.nodes[1].outputs == ("y",)


def test_a_function_follows_its_own_opset(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = local.F(x) }
        <domain: "local", opset_import: ["": 11]>
        F (a) => (b) { b = Softmax(a) }"""
    )
    assert ops(graph) == ["onnx.Softmax.11"]


def test_defaults_of_attributes_and_operands_left_out(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = local.F(x) }
        <domain: "local", opset_import: ["": 21]>
        F <axis: int = 1> (a, low) => (b) { t = Clip(a, low) b = Softmax<axis = @axis>(t) }"""
    )
    assert graph.nodes[0].args == (Ref("x"),)
    assert graph.nodes[1].kwargs == (("axis", 1),)


def test_a_function_of_the_file_runs_in_place_of_an_operator_of_its_name(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = com.microsoft.Gelu(x) }
        <domain: "com.microsoft", opset_import: ["": 21]>
        Gelu (a) => (b) { b = Relu(a) }"""
    )
    assert ops(graph) == ["onnx.Relu.14"]


# Sizes.


@pytest.mark.parametrize(
    "text, expected",
    [
        ("batch", "batch"),
        ("2", "2"),
        ("past + 1", "past + 1"),
        ("(((s0 - 1)//8)) + 1", "(s0 - 1)//8 + 1"),
        ("Min(256, s50)", "min(256, s50)"),
        ("floor(height/2 - 1/2)", "(height - 1)//2"),
        ("4*h4", "4*h4"),
        ("seq-len", "seq_len"),
        ("batch.size", "batch_size"),
        ("batch size", "batch_size"),
        ("unk__12", "unk__12"),
    ],
)
def test_sizes_by_name_and_by_expression(text, expected):
    assert Sizes().read(text) == parse_dim(expected)


def test_names_of_sizes_are_not_confused():
    sizes = Sizes()
    assert [str(sizes.read(text)) for text in ("a b", "a_b", "a.b", "a b", "true")] == [
        "a_b",
        "a_b_2",
        "a_b_3",
        "a_b",
        "size_true",
    ]


def test_sizes_without_a_name_get_one(read):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (None, "?", 4))
    x.type.tensor_type.shape.dim.add().dim_value = -1
    graph = read(helper.make_model(helper.make_graph([], "g", [x], [x])))
    assert graph.types["x"] == t("x_0", "x_1", 4, "x_3")
    assert graph.symbols["x_3"].where == ("x[3]",)


def test_ranges_of_sizes(read):
    model = parser.parse_model(f"{HEAD} {RELU}")
    entry = model.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.range_constraints"
    entry.value = "{N: VR[2, 64], s7: VR[0, int_oo]}"
    symbols = read(model).symbols
    assert (symbols["N"].minimum, symbols["N"].maximum) == (2, 64)
    assert "s7" not in symbols


def test_a_sequence_has_a_length_by_name(read):
    element = helper.make_tensor_type_proto(TensorProto.BOOL, (2,))
    x = helper.make_value_info("x", helper.make_sequence_type_proto(element))
    graph = read(helper.make_model(helper.make_graph([], "g", [x], [x])))
    assert graph.types["x"] == SequenceType(TensorType((2,), BOOL), symbol("x_length"))


# Places.


def test_module_and_source_from_metadata(read):
    model = parser.parse_model(f"{HEAD} {RELU}")
    for key, value in {
        "name_scopes": "['', 'blocks.0', 'blocks.0.act', 'relu']",
        "class_hierarchy": "['m.Net', 'm.Block', 'torch.nn.modules.activation.ReLU', 'aten.relu.default']",
        "stack_trace": 'File "/home/me/net.py", line 7, in forward\n    return self.act(x)',
    }.items():
        entry = model.graph.node[0].metadata_props.add()
        entry.key, entry.value = f"pkg.torch.onnx.{key}", value
    graph = read(model)
    (node,) = graph.nodes
    assert (node.module, node.module_type) == ("blocks.0.act", "torch.nn.modules.activation.ReLU")
    assert node.source == "net.py:7"
    assert graph.modules["blocks.0"] == "m.Block"
    assert graph.modules[""] == "m.Net"


def test_module_from_a_name_with_slashes(read):
    model = parser.parse_model(f"{HEAD} {RELU}")
    model.graph.node[0].name = "/layers.0/act/Relu_1"
    graph = read(model)
    assert graph.nodes[0].module == "layers.0.act"
    assert graph.modules == {"layers.0": "", "layers.0.act": ""}


def test_a_folded_weight_bears_the_name_it_had(read):
    model = parser.parse_model(
        f"{HEAD} g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] val_8 = {ZEROS}> {{ y = MatMul(x, val_8) }}"
    )
    value = model.graph.value_info.add(name="val_8")
    entry = value.metadata_props.add()
    entry.key, entry.value = "pkg.onnxscript.optimizer.folded_from", "['layer.weight']"
    assert read(model).inputs[1].target == "layer.weight"


@pytest.mark.parametrize("name", ["convnet", "gqa_transformer"])
def test_a_sample_costs_what_the_same_model_costs_as_pt2(name):
    ours, theirs = (analyze(SAMPLES / f"{name}.{ending}") for ending in ("onnx", "pt2"))
    assert ours.coverage.unknown == 0
    assert ours.diagnostics == ()
    sizes = {"batch": 2, "sequence": 7}
    others = dict(zip(theirs.symbols, sizes.values(), strict=False))
    assert evaluate(ours.total().matrix_flops, sizes) == evaluate(theirs.total().matrix_flops, others)


def test_a_sample_has_the_module_tree_of_its_model():
    report = analyze(SAMPLES / "gqa_transformer.onnx")
    assert report.modules["blocks.3.attention"] == "make.Attention"
    assert report.parameters == 205_376
    (attention,) = {row.source for row in report.rows if row.op.startswith("onnx.Softmax")}
    assert attention.startswith("samples/make.py:")
