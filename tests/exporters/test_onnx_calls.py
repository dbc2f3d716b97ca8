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
        (node("Conv", ["x"], ["y"]), "onnx.Conv.11 is called without operand 2"),
        (node("Conv", ["x", "", "w"], ["y"]), "onnx.Conv.11 is called without operand 2"),
        (node("Relu", [], ["y"]), "onnx.Relu.14 is called without operand 1"),
        (node("Relu", ["x", "w"], ["y"]), "onnx.Relu.14 is called with more operands than 1"),
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


@pytest.mark.parametrize(
    ("rows", "flops", "codes"),
    [(3, 2 * 5 * 3 * 6, {"GF137"}), (4, 2 * 5 * 4 * 7, {"GF137"}), (8, 0, {"GF118"})],
    ids=["one branch can run", "the other can", "neither can"],
)
def test_a_branch_that_cannot_run_is_not_taken(rows, flops, codes, write):
    """Weights are 3 x 6 in one branch, 4 x 7 in the other: x has the rows of one of them, if the model runs at all."""
    report = analyze(
        write(
            f"""g (bool c, float[5,{rows}] x) => (float[5,k] y)
            <float[3,6] v = {{{", ".join("0" * 18)}}}, float[4,7] w = {{{", ".join("0" * 28)}}}>
            {{ y = If (c) <then_branch = one () => (float[5,6] a) {{ a = MatMul(x, v) }},
                          else_branch = two () => (float[5,7] b) {{ b = MatMul(x, w) }}> }}"""
        )
    )
    assert {said.code for said in report.diagnostics} & {"GF118", "GF137"} == codes
    assert (report.total().matrix_flops, report.coverage.unknown) == (flops, 1 + (flops == 0))
    assert flops == 0 or report.rows[0].outputs[0].type.shape == (5, flops // (2 * 5 * rows))
