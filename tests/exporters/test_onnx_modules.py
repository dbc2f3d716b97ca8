"""Calls and weights of an ONNX file stand in the modules of the model; at length in tests/oracle/export_checks.py."""

from __future__ import annotations

import pytest
from onnx import helper, numpy_helper
from onnx.helper import make_node

from graphflops.exporters import onnx as reader
from tests.exporters.onnx_files import node

np = pytest.importorskip("numpy")


@pytest.fixture
def read(tmp_path):
    """The graph of calls with stored tensors, each by its name and shape."""

    def graph_of(nodes, **stored):
        import onnx

        tensors = [numpy_helper.from_array(np.ones(shape, "f4"), name) for name, shape in stored.items()]
        x = helper.make_tensor_value_info("x", 1, [2, 4])
        y = helper.make_tensor_value_info(nodes[-1].output[0], 1, None)
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors)), path)
        return reader.read(path)

    return graph_of


def recorded(call, *scopes, rewritten=False):
    """The call with the scopes that torch's exporter records."""
    found = {"pkg.torch.onnx.name_scopes": str(["", *scopes, call.name])}
    found["pkg.torch.onnx.class_hierarchy"] = str(["M", *("L" for _ in scopes), "op"])
    if rewritten:
        found["pkg.onnxscript.rewriter.rule_name"] = "FuseBatchNormIntoConv"
    for key, value in found.items():
        call.metadata_props.add(key=key, value=value)
    return call


def modules(graph):
    return {call.name: call.module for call in graph.nodes}


def test_the_weight_of_a_rewritten_call_tells_its_module(read):
    calls = [
        recorded(make_node("MatMul", ["x", "fc.weight"], ["a"], "fused"), "norm", rewritten=True),
        recorded(make_node("MatMul", ["a", "tied.weight"], ["b"], "plain"), "head"),
    ]
    graph = read(calls, **{"fc.weight": (4, 4), "tied.weight": (4, 4)})
    assert modules(graph) == {"fused": "fc", "plain": "head"}


def test_a_weight_that_another_module_uses_too_does_not_tell_the_module_of_a_rewritten_call(read):
    calls = [
        recorded(make_node("MatMul", ["x", "wte.weight"], ["a"], "first"), "wte"),
        recorded(make_node("MatMul", ["a", "wte.weight"], ["b"], "second"), "head", rewritten=True),
    ]
    assert modules(read(calls, **{"wte.weight": (4, 4)})) == {"first": "wte", "second": "head"}


def test_a_weight_stored_once_for_two_modules_does_not_tell_the_module_of_either(read):
    calls = [
        recorded(make_node("MatMul", ["x", "a.fc.weight"], ["h"], "first"), "a", rewritten=True),
        recorded(make_node("MatMul", ["h", "a.fc.weight"], ["y"], "second"), "b", rewritten=True),
    ]
    assert modules(read(calls, **{"a.fc.weight": (4, 4)})) == {"first": "a", "second": "b"}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/stages/stages.0/stages.0.1/Conv", "stages.0.1"),
        ("/blocks/fc/Conv", "blocks.fc"),
        ("/a.0/b.0/Conv", "a.0.b.0"),
    ],
)
def test_an_item_of_a_list_is_named_once(read, name, module):
    assert modules(read([node("Relu", ["x"], ["y"], name=name)])) == {name: module}


def test_a_parameter_completes_the_path_of_a_module_in_a_container_that_is_never_called(read):
    calls = [
        make_node("MatMul", ["x", "onnx::MatMul_9"], ["a"], "/layer.0/query/MatMul"),
        make_node("Add", ["a", "encoder.layer.0.query.bias"], ["b"], "/layer.0/query/Add"),
        make_node("Softmax", ["b"], ["c"], "/layer.0/Softmax"),
    ]
    graph = read(calls, **{"onnx::MatMul_9": (4, 8), "encoder.layer.0.query.bias": (8,)})
    assert [*modules(graph).values()] == ["encoder.layer.0.query", "encoder.layer.0.query", "encoder.layer.0"]
    assert {entry.target for entry in graph.inputs if entry.role == "parameter"} == {
        "encoder.layer.0.query.onnx::MatMul_9",
        "encoder.layer.0.query.bias",
    }
    assert "layer.0" not in graph.modules


def test_a_second_call_with_the_same_weights_is_of_the_same_module(read):
    calls = [
        make_node("MatMul", ["x", "head.0.weight"], ["a"], "/head/head.0/MatMul"),
        make_node("MatMul", ["a", "head.0.weight"], ["b"], "/head_1/head.0_1/MatMul"),
        make_node("MatMul", ["b", "fc_1.weight"], ["c"], "/fc_1/MatMul"),
    ]
    graph = read(calls, **{"head.0.weight": (4, 4), "fc_1.weight": (4, 4)})
    assert [*modules(graph).values()] == ["head.0", "head.0", "fc_1"]


def test_calls_of_a_quantizer_inherit_the_module_of_the_bias_or_of_the_block(read):
    calls = [
        recorded(make_node("LayerNormalization", ["x", "norm.weight"], ["n"], "norm"), "norm"),
        make_node("DynamicQuantizeLinear", ["n"], ["q", "s", "z"], "n_QuantizeLinear"),
        make_node("MatMulInteger", ["q", "val_7_quantized", "z"], ["p"], "node_linear_quant"),
        make_node("Cast", ["p"], ["f"], "p_cast", to=1),
        make_node("Mul", ["f", "s"], ["l"], "linear_mul"),
        recorded(make_node("Add", ["l", "block.fc.bias"], ["b"], "add"), "block", "block.fc"),
        make_node("DynamicQuantizeLinear", ["b"], ["q2", "s2", "z2"], "b_QuantizeLinear"),
        make_node("MatMulInteger", ["q2", "val_8_quantized", "z2"], ["p2"], "node_linear_1_quant"),
        recorded(make_node("Neg", ["p2"], ["y"], "neg"), "block"),
    ]
    graph = read(
        calls,
        **{"norm.weight": (4,), "val_7_quantized": (4, 8), "val_8_quantized": (8, 4), "block.fc.bias": (8,)},
    )
    found = modules(graph)
    assert found["node_linear_quant"] == "block.fc"
    assert found["node_linear_1_quant"] == "block"
    assert {entry.target for entry in graph.inputs if "val" in entry.name} == {
        "block.fc.val_7_quantized",
        "block.val_8_quantized",
    }


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_modules_of_a_program_and_of_its_exports_have_the_same_work(name, tmp_path):
    for needed in ("torch", "onnxruntime", "onnxscript"):
        pytest.importorskip(needed)
    from graphflops.comparison.models import compare
    from tests.oracle.export_checks import deviations
    from tests.oracle.export_models import export

    files = export(name, tmp_path)
    program = files.pop("pt2")
    assert len(files) == 3
    for path in files.values():
        comparison = compare(program, path)
        assert deviations(comparison) == {}, path
        assert not any(path.startswith("/") for path in comparison.new.parameter_modules)
