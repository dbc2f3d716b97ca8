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
from graphflops.exporters.onnx_sizes import Sizes
from graphflops.graph import Ref
from graphflops.ops import onnx_operands as table
from graphflops.tensor import BOOL, INT64, SequenceType, TensorType
from tests.exporters.onnx_files import HEAD, RELU, ZEROS, ops
from tests.generated import onnx_attributes
from tests.support import t

SAMPLES = Path(__file__).parents[2] / "samples"


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
    if onnx.defs.onnx_opset_version() == table.NEWEST[""]:
        known = onnx_attributes().partition("\n\n")[0]
        assert table.ATTRIBUTES.read_text().partition("\n\n")[0] == known
    assert table.NEWEST_IR >= onnx.IR_VERSION or onnx.defs.onnx_opset_version() > table.NEWEST[""]


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
