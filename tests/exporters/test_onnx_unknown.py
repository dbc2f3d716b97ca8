"""What remains known after ONNX calls whose results are not known."""

from __future__ import annotations

import pytest
from onnx import parser

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.tensor import TensorType, UnknownType
from tests.exporters.onnx_files import HEAD, messages, result
from tests.support import t


@pytest.mark.parametrize(
    "calls, states, expected",
    [
        ("y = Shape(u)", "free", t("rank_0", dtype="int64")),
        ("y = Size(u)", "free", t(dtype="int64")),
        ("y = Identity(u)", "free", UnknownType(t().dtype)),
        ("y = Reshape(u, s)", "free", t(2, 3)),
        ("y = Reshape<allowzero = 1>(u, z)", "free", t(0, 3)),
        ("y = Reshape(u, z)", "free", t("reshape_axis0_0", 3)),
        ("y = Flatten(u)", "free", t("reshape_axis0_0", "reshape_axis1_0")),
        ("y = Squeeze(u)", "free", UnknownType(t().dtype)),
        ("a = Unsqueeze(u, s) y = Reshape(a, s)", "free free", t(2, 3)),
        ("y = Cast<to = 7>(u)", "unknown", UnknownType(t(dtype="int64").dtype)),
        ("a = Cast<to = 7>(u) y = Reshape(a, s)", "unknown free", t(2, 3, dtype="int64")),
        ("y = Relu(u)", "unknown", UnknownType(t().dtype)),
        ("q = SequenceConstruct(x, u) y = SequenceAt(q, k)", "free free", UnknownType()),
        ("q = SequenceConstruct(x, u) y = SequenceLength(q)", "free free", t(dtype="int64", value=2)),
        ("o = Optional(u) y = OptionalHasElement(o)", "free free", t(dtype="bool", value=1)),
    ],
)
def test_what_is_told_of_values_of_unknown_rank(calls, states, expected, write):
    text = f"""g (float[4] x) => (y) <int64[2] s = {{2, 3}}, int64[2] z = {{0, 3}}, int64 k = {{1}}> {{
      v = d.Unheard(x) u = Cast<to = 1>(v) {calls}
    }}"""
    report = analyze(write(text))
    states_of = [row.state for row in report.rows][2:]
    assert states_of == states.split()
    if isinstance(expected, TensorType):
        assert result(report) == expected
    else:
        assert not report.rows[-1].outputs
        assert any("y" in said for said in messages(report, "GF110"))


def test_a_branch_whose_condition_is_not_known_is_priced(write):
    text = """g (float[8, 8] x, float[2, 8, 8] b) => (y) {
      u = d.Unheard(x)
      y = If(u) <then_branch = one () => (p) { p = MatMul(x, x) }, else_branch = two () => (r) { r = MatMul(b, b) }>
    }"""
    report = analyze(write(text))
    assert report.coverage.unknown == 1
    assert report.total().matrix_flops == 2 * 2 * 8 * 8 * 8


def test_a_loop_whose_trip_count_is_not_known_is_priced(write):
    body = "b (int64 i, bool go, float[4, 4] s) => (bool go, float[4, 4] r) { r = MatMul(s, s) }"
    text = f'g (float[4, 4] x) => (y) {{ u = d.Unheard(x) y = Loop(u, "", x) <body = {body}> }}'
    report = analyze(write(text))
    assert report.coverage.unknown == 1
    assert report.total().matrix_flops == 2 * 4 * 4 * 4 * symbol("loop_trips_0")
    assert report.rows[1].outputs[0].type == t(4, 4)


def test_what_is_joined_of_a_list_that_is_not_known_is_not_free(write):
    text = "g (float[4] x) => (y) { u = d.Unheard(x) q = SequenceConstruct(u, u) y = ConcatFromSequence<axis = 0>(q) }"
    assert [row.state for row in analyze(write(text)).rows] == ["unknown", "free", "unknown"]


def test_gradients_have_types_but_a_cost_that_is_not_known(write):
    text = """g (float[2, 3] x, float[3, 5] w) => (dx, dw) {
      y = MatMul(x, w)
      dx, dw = ai.onnx.preview.training.Gradient<xs = ["x", "w"], y = "y">(x, w)
    }"""
    head = HEAD.replace('"d": 1', '"ai.onnx.preview.training": 1')
    report = analyze(write(parser.parse_model(f"{head} {text}")))
    assert [row.state for row in report.rows] == ["counted", "unknown"]
    assert [value.type for value in report.rows[1].outputs] == [t(2, 3), t(3, 5)]
    assert report.diagnostics[0].message.startswith(
        "its work is that of the calls that lead to y, run backwards"
    )


@pytest.mark.parametrize("sizes", ["0, 4, 8, 16", "2, 0, 8, 16", "2, 4, 0, 16", "2, 4, 8, 0"])
def test_attention_to_nothing_is_none(sizes, write):
    text = f"""g (float[{sizes}] q) => (y) {{
      k = Transpose<perm = [0, 1, 3, 2]>(q) s = MatMul(q, k) p = Softmax(s) y = MatMul(p, q)
    }}"""
    report = analyze(write(text))
    assert (report.coverage.unknown, report.total().matrix_flops, report.attentions) == (0, 0, ())
