"""Programs whose files record no types: derived types, fallback types, and sizes that prove to be equal."""

from __future__ import annotations

import pytest
from onnx import parser

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin
from graphflops.tensor import DType, UnknownType
from tests.support import t


def graph_of(text, domain="d"):
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "{domain}": 1]> {text}')
    return Program(model).graph(Origin())


def result(report):
    return report.rows[-1].outputs[0].type


def messages(report, code):
    return [diagnostic.message for diagnostic in report.diagnostics if diagnostic.code == code]


def test_sizes_follow_through_the_shapes_that_a_program_computes():
    report = analyze(
        graph_of(
            """g (float[B, S, 64] x) => (y) <int64[1] heads = {8, -1}, int64 zero = {0}, int64 one = {1}> {
              s = Shape(x) b = Gather(s, zero) n = Gather(s, one)
              b1 = Unsqueeze(b, z1) n1 = Unsqueeze(n, z1)
              to = Concat<axis = 0>(b1, n1, heads)
              r = Reshape(x, to) y = Transpose<perm = [0, 2, 1, 3]>(r)
            }""".replace("int64[1] heads = {8, -1}", "int64[2] heads = {8, -1}, int64[1] z1 = {0}")
        )
    )
    assert result(report).shape == (symbol("B"), 8, symbol("S"), 8)
    assert report.diagnostics == ()


def test_what_the_file_declares_does_not_count_against_what_is_derived():
    report = analyze(
        graph_of("g (float[2, 3] x) => (float[2, 3] y) <float[9, 9] a> { a = Relu(x) y = Relu(a) }")
    )
    assert result(report) == t(2, 3)
    assert messages(report, "GF213") == [
        "what the file declares is out of date: a is float32[2, 3], declared as float32[9, 9]"
    ]


def test_a_declared_size_that_is_left_out_is_a_question_mark():
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2, 3] x) => (float[2] y) { y = Relu(x) }'
    )
    model.graph.output[0].type.tensor_type.shape.dim[0].ClearField("value")
    report = analyze(Program(model).graph(Origin()))
    (said,) = messages(report, "GF213")
    assert said.endswith("y is float32[2, 3], declared as float32[?]")


def test_a_call_without_rule_has_the_type_that_the_file_declares():
    report = analyze(graph_of("g (float[N, 3] x) => (y) <float[N, 5] a> { a = d.Unheard(x) y = Relu(a) }"))
    assert result(report) == t("N", 5)
    assert messages(report, "GF110") == ["the types of a are known only from what the file declares"]


def test_sizes_that_the_file_leaves_out_get_names_of_their_own():
    report = analyze(graph_of("g (float[N, 3] x) => (y) <float[?, ?, N] a> { a = d.Unheard(x) y = Relu(a) }"))
    assert result(report) == t("unknown_axis0_0", "unknown_axis1_0", "N")


def test_a_rule_that_does_not_fit_leaves_the_type_to_the_file():
    text = "g (float[N, 3] x) => (y) <int64[1] s = {-1}> { a = Transpose<new = 1>(x) y = Reshape(a, s) }"
    report = analyze(graph_of(text))
    assert report.coverage.unknown == 1
    assert report.rows[-1].outputs == ()
    assert messages(report, "GF110") == ["the types of a, y are not known"]
    report = analyze(graph_of(text.replace("int64[1] s", "float[3, N] a, int64[1] s")))
    assert result(report) == t(3 * symbol("N"))
    assert messages(report, "GF110") == ["the types of a are known only from what the file declares"]


def test_operands_that_cannot_meet_have_no_result():
    report = analyze(
        graph_of(
            "g (float[N, 3, 8, 8] x, float[4, 3, 1, 1] w) => (y) { a = Conv<group = 0>(x, w) y = Relu(a) }"
        )
    )
    assert report.coverage.unknown == 2
    assert messages(report, "GF110") == ["the types of a, y are not known"]


def test_calls_on_values_of_unknown_rank_are_unknown_until_the_rank_is_known():
    report = analyze(
        graph_of("g (x) => (y) <int64[2] s = {2, 3}> { a = Relu(x) r = Reshape(a, s) y = Relu(r) }")
    )
    assert [row.state for row in report.rows] == ["unknown", "free", "unknown"]
    report = analyze(graph_of("g (float[] z) => (y) <int64[2] s = {1, 1}> { r = Reshape(z, s) y = Relu(r) }"))
    assert result(report) == t(1, 1)


def test_an_input_of_unknown_rank_may_be_given_a_shape():
    graph = graph_of("g (float x) => (y) { y = Relu(x) }")
    graph.types["x"] = UnknownType(graph.types["x"].dtype)
    assert analyze(graph).coverage.unknown == 1
    report = analyze(graph, inputs={"x": (2, 3)})
    assert result(report) == t(2, 3)


def test_results_that_nobody_wants_are_not_written():
    used, unused = (
        analyze(graph_of(f"g (float[8] x) => ({results}) <int64[1] k = {{2}}> {{ v, i = TopK(x, k) }}"))
        for results in ("v, i", "v")
    )
    assert used.total().written_bytes == 2 * 4 + 2 * 8
    assert unused.total().written_bytes == 2 * 4


# Sizes that prove to be equal.


def merged(text, **dims):
    report = analyze(graph_of(text), dims=dims)
    return list(report.symbols), messages(report, "GF112"), report


def test_sizes_that_meet_in_a_broadcast_are_one():
    symbols, said, report = merged("g (float[a, 4] x, float[b, 4] z) => (y) { y = Add(x, z) }")
    assert symbols == ["a"]
    assert report.symbols["a"].where == ("x[0]", "z[0]")
    assert said == ["operators require equal sizes, from which follows b = a"]
    assert result(report) == t("a", 4)


def test_sizes_that_meet_side_by_side_are_one():
    symbols, _, report = merged("g (float[a, n] x, float[b, m] z) => (y) { y = Concat<axis = 1>(x, z) }")
    assert symbols == ["a", "n", "m"]
    assert result(report).shape == (symbol("a"), symbol("n") + symbol("m"))


def test_sizes_that_meet_in_a_product_are_one():
    symbols, _, report = merged("g (float[4, k] x, float[l, 5] z) => (y) { y = MatMul(x, z) }")
    assert symbols == ["k"]
    assert report.total().matrix_flops == 2 * 4 * 5 * symbol("k")


CACHE = """g (float[b, t, 64] k, float[b2, past, 64] old, float[b3, t, total] mask) => (y) {
  all = Concat<axis = 1>(old, k) turned = Transpose<perm = [0, 2, 1]>(all)
  s = MatMul(k, turned) y = Add(s, mask)
}"""


def test_a_size_that_is_the_sum_of_others_goes():
    symbols, said, report = merged(CACHE)
    assert symbols == ["b", "t", "past"]
    assert said == ["operators require equal sizes, from which follows b2 = b, b3 = b, total = past + t"]
    b, new, past = map(symbol, ("b", "t", "past"))
    assert report.total().matrix_flops == 2 * b * new * (past + new) * 64


@pytest.mark.parametrize(
    "dims", [{"b": 2, "t": 3, "past": 7}, {"b3": 2, "t": 3, "past": 7}, {"b2": 2, "t": 3, "total": 10}]
)
def test_any_of_several_equal_sizes_may_be_given(dims):
    assert merged(CACHE, **dims)[2].total().matrix_flops == 2 * 2 * 3 * 10 * 64


def test_sizes_that_the_user_gives_are_not_made_equal():
    _, said, report = merged(CACHE, b=4, b3=1, t=3, past=7)
    assert report.total().matrix_flops == 2 * 4 * 3 * 10 * 64
    assert said == ["operators require equal sizes, from which follows b2 = b, total = past + t"]


WEIGHTS = "g (float[n, t] x, float[9, 3] w) => (y) { y = MatMul(x, w) }"


@pytest.mark.parametrize("dims", [{}, {"t": 9}, {"x[1]": 9}])
def test_a_size_that_meets_a_number_in_a_product_is_that_number(dims):
    symbols, said, report = merged(WEIGHTS, **dims)
    assert symbols == ["n"]
    assert said == ["operators require equal sizes, from which follows t = 9"]
    assert report.total().matrix_flops == 2 * 9 * 3 * symbol("n")


def test_another_number_that_the_user_gives_cannot_run():
    assert messages(merged(WEIGHTS, t=64)[2], "GF118") == ["inner dimensions differ: 64 and 9"]


def test_a_size_that_is_broadcast_with_a_number_is_assumed_to_be_it():
    """It may be 1 as well, and nothing else."""
    text = "g (float[n, t] x, float[9] c) => (y) { y = Add(x, c) z = MatMul(x, w) }"
    _, said, report = merged(text.replace("float[9] c", "float[9] c, float[t, 2] w"))
    assert said == []
    assert report.symbols["t"].value == 9
    assert report.symbols["t"].given_by == "assumption"
    assert report.value(report.total().matrix_flops) == 2 * 9 * 2  # of one row
    narrow = merged(text.replace("float[9] c", "float[9] c, float[t, 2] w"), t=1)[2]
    assert narrow.value(narrow.total().matrix_flops) == 2 * 2


def test_one_given_size_is_put_in_everywhere():
    report = analyze(graph_of("g (float[N, 3] x) => (y) { y = Relu(x) }"), dims={"N": 5})
    assert result(report) == t(5, 3)


def test_string_tensors_have_a_type_of_their_own():
    report = analyze(graph_of("g (string[N] x) => (y) { y = Identity(x) }"))
    assert isinstance(result(report).dtype, DType)
    assert result(report).dtype.name == "string"
