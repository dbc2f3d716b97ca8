"""ONNX calls that cannot be as they stand in the file: each is unknown, and a diagnostic says which operand or attribute."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from graphflops.analysis import analyze
from tests.exporters.onnx_files import model, node, value

X = value("x", (1, 3, 8, 8))
W = helper.make_tensor("w", TensorProto.FLOAT, (4, 3, 3, 3), [0.0] * 108)
Y = [helper.make_empty_tensor_value_info("y")]


@pytest.mark.parametrize(
    "call, said",
    [
        (node("Conv", ["x"], ["y"]), "onnx.Conv.11 is called without its operand w"),
        (node("Conv", ["x", "", "w"], ["y"]), "onnx.Conv.11 is called without its operand w"),
        (node("Relu", [], ["y"]), "onnx.Relu.14 is called without its operand a"),
        (node("Conv", ["x", "w"], ["y"], group="two"), "group of onnx.Conv.11 must be an integer, not 'two'"),
        (
            node("Conv", ["x", "w"], ["y"], strides=2),
            "strides of onnx.Conv.11 must be a list of integers, not 2",
        ),
        (
            node("Conv", ["x", "w"], ["y"], auto_pad=[1]),
            "auto_pad of onnx.Conv.11 must be a string, not (1,)",
        ),
        (
            node("Softmax", ["x"], ["y"], axis="last"),
            "axis of onnx.Softmax.13 must be an integer, not 'last'",
        ),
        (node("Conv", ["x", "w"], ["y"], widht=3), "onnx.Conv.11 has no attribute widht"),
    ],
    ids=str,
)
def test_a_call_that_cannot_be(call, said, write):
    report = analyze(write(model([call], [X], Y, [W])))
    assert [d.message for d in report.diagnostics if d.code in ("GF104", "GF118")] == [said]
    assert report.coverage.unknown == 1
