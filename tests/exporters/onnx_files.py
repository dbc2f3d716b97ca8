"""Short spellings of ONNX models for tests."""

from __future__ import annotations

from onnx import TensorProto, helper

HEAD = '<ir_version: 10, opset_import: ["": 21, "d": 1, "local": 1]>'
RELU = "g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"
node = helper.make_node


def value(name, shape=("N", 4), code=TensorProto.FLOAT):
    """An input or result of that type."""
    return helper.make_tensor_value_info(name, code, shape)


def model(nodes, inputs, outputs, stored=(), **fields):
    """A model of these calls."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(stored))
    fields.setdefault("opset_imports", [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)])
    return helper.make_model(graph, **fields)


ZEROS = f"{{ {', '.join('0' * 16)} }}"


def roles(graph):
    return {entry.name: entry.role for entry in graph.inputs}


def ops(graph):
    return [node.op for node in graph.nodes]


def result(report):
    return report.rows[-1].outputs[0].type


def messages(report, code):
    return [said.message for said in report.diagnostics if said.code == code]
