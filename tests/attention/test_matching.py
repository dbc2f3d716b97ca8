"""Attention spelled out in ONNX: what is one, what its sizes are, and what only looks like one."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper, parser

from graphflops.analysis import analyze
from graphflops.attention import AttentionUse
from graphflops.dims import symbol
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin

# Batch b, 8 heads of 2 keys' and values', 16 rows, 32 keys, width 4, values' width 6.
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
QKV = "float[b,8,16,4] q, float[b,8,32,4] k, float[b,8,32,6] v"
TO_SCORES = "t = Transpose <perm = [0,1,3,2]> (k) \n s = MatMul(q, t)"
SPELLED = f"g ({QKV}) => (float[b,8,16,6] y) {{ {TO_SCORES} \n p = Softmax(s) \n y = MatMul(p, v) }}"


def attentions(text: str) -> tuple[AttentionUse, ...]:
    graph = Program(parser.parse_model(HEAD + text)).graph(Origin())
    return analyze(graph).attentions


def between(scores: str = "", probabilities: str = "", extra: str = "", stored: str = "") -> str:
    """Attention with other calls on the scores `s`, ending in `x`, and on the probabilities `p`, ending in `z`."""
    scores, end = (scores, "x") if scores else ("", "s")
    probabilities, last = (probabilities, "z") if probabilities else ("", "p")
    return (
        f"g ({QKV}{extra}) => (y) {stored} {{ {TO_SCORES} \n {scores} \n p = Softmax({end}) \n {probabilities}"
        f" \n y = MatMul({last}, v) }}"
    )


def test_sizes_and_costs() -> None:
    (use,) = attentions(SPELLED)
    b = symbol("b")
    assert (use.batch, use.heads, use.kv_heads, use.queries, use.keys) == (b, 8, 8, 16, 32)
    assert (use.width, use.value_width, use.mask, use.op) == (4, 6, "none", "")
    assert use.flops == 2 * b * 8 * 16 * 32 * 4 + 2 * b * 8 * 16 * 32 * 6
    # Scores are written, read and written by the softmax, and read by the second product.
    assert use.score_bytes == 4 * (b * 8 * 16 * 32 * 4)
    assert use.kv_bytes == b * 8 * 32 * (4 + 6) * 4
    assert use.repeated_bytes == 0


MASKED = [
    ("x = Add(s, m)", ", float[b,1,16,32] m"),
    ("x = Add(m, s)", ", float[16,32] m"),
    ("x = Where(m, s, low)", ", bool[16,32] m, float low"),
    ("x = Where(m, low, s)", ", bool[b,1,1,32] m, float low"),
    ("a = Mul(s, c) \n x = Add(a, m)", ", float c, float[32] m"),
    ("a = Cast <to = 1> (s) \n x = Add(a, m)", ", float[16,32] m"),
    ("a = Div(s, c) \n d = Tanh(a) \n e = Mul(d, c) \n x = Add(e, m)", ", float c, float[16,32] m"),
    ("a = Add(s, m) \n d = Add(a, n) \n x = Max(d, low)", ", float[16,32] m, float[b,1,1,32] n, float low"),
]


@pytest.mark.parametrize("scores, extra", MASKED)
def test_masks_scales_and_caps(scores: str, extra: str) -> None:
    (use,) = attentions(between(scores, extra=extra))
    assert use.mask == "tensor"
    assert (use.heads, use.queries, use.keys, use.width, use.value_width) == (8, 16, 32, 4, 6)


UNMASKED = [
    between("x = Mul(s, c)", extra=", float c"),
    between("x = Reshape(s, r)", stored="<int64[4] r = {-1, 8, 16, 32}>"),
    between("", "a = IsNaN(p) \n z = Where(a, zero, p)", extra=", float zero"),
    between("", "z = Dropout(p)"),
    between("x = Cast <to = 1> (s)", "z = Cast <to = 1> (p)"),
    # The scale on queries and keys before the product, half each.
    f"g ({QKV}, float c) => (y) {{ a = Mul(q, c) \n t = Transpose <perm = [0,1,3,2]> (k) \n d = Mul(t, c) "
    "\n s = MatMul(a, d) \n p = Softmax(s) \n y = MatMul(p, v) }",
    # A softmax written out.
    f"g ({QKV}) => (y) <int64[1] last = {{-1}}> {{ {TO_SCORES} \n m = ReduceMax(s, last) \n d = Sub(s, m) \n e = Exp(d) "
    "\n n = ReduceSum(e, last) \n p = Div(e, n) \n y = MatMul(p, v) }",
    # Einsum, keys as they are.
    f'g ({QKV}) => (y) {{ s = Einsum <equation = "bhid,bhjd->bhij"> (q, k) \n p = Softmax(s) '
    '\n y = Einsum <equation = "bhij,bhjd->bhid"> (p, v) }',
    # The probabilities are a result too.
    f"g ({QKV}) => (y, p) {{ {TO_SCORES} \n p = Softmax(s) \n y = MatMul(p, v) }}",
]


@pytest.mark.parametrize("text", UNMASKED)
def test_spellings(text: str) -> None:
    (use,) = attentions(text)
    assert use.mask == "none"
    assert (use.heads, use.kv_heads, use.queries, use.keys, use.width, use.value_width) == (
        8,
        8,
        16,
        32,
        4,
        6,
    )


def test_heads_of_scores_of_three_axes() -> None:
    text = (
        "g (float[b,8,16,4] q, float[b,8,32,4] k, float[b,8,32,4] v) => (y) <int64[3] r = {-1, 16, 4}, "
        "int64[3] w = {-1, 32, 4}> { a = Reshape(q, r) \n c = Reshape(k, w) \n d = Reshape(v, w) "
        "\n t = Transpose <perm = [0,2,1]> (c) \n s = MatMul(a, t) \n p = Softmax(s) \n y = MatMul(p, d) }"
    )
    (use,) = attentions(text)
    assert (use.batch, use.heads, use.kv_heads) == (symbol("b"), 8, 8)


def test_keys_repeated_for_groups_of_query_heads() -> None:
    text = (
        "g (float[3,8,16,4] q, float[3,2,32,4] k, float[3,2,32,4] v) => (y) <int64[1] two = {2}, "
        "int64[5] five = {3,2,4,32,4}, int64[4] four = {3,8,32,4}> { a = Unsqueeze(k, two) \n c = Expand(a, five) "
        "\n kk = Reshape(c, four) \n d = Unsqueeze(v, two) \n e = Expand(d, five) \n vv = Reshape(e, four) "
        "\n t = Transpose <perm = [0,1,3,2]> (kk) \n s = MatMul(q, t) \n p = Softmax(s) \n y = MatMul(p, vv) }"
    )
    (use,) = attentions(text)
    assert (use.batch, use.heads, use.kv_heads) == (3, 8, 2)
    assert use.kv_bytes == 2 * (3 * 2 * 32 * 4) * 4  # as they are stored, not as they are written out
    written = 3 * 8 * 32 * 4 * 4
    read = 3 * 2 * 32 * 4 * 4
    # Both are expanded; then the copies of the keys are transposed.
    assert use.repeated_bytes == 2 * (read + written) + 2 * written


def test_one_key_head_that_the_product_broadcasts() -> None:
    text = (
        "g (float[3,8,16,4] q, float[3,1,32,4] k, float[3,1,32,4] v) => (y) { t = Transpose <perm = [0,1,3,2]> (k) "
        "\n s = MatMul(q, t) \n p = Softmax(s) \n y = MatMul(p, v) }"
    )
    (use,) = attentions(text)
    assert (use.heads, use.kv_heads, use.kv_bytes) == (8, 1, 2 * (3 * 1 * 32 * 4) * 4)


def test_a_sink_beside_the_keys() -> None:
    text = (
        "g (float[3,8,16,4] q, float[3,8,32,4] k, float[3,8,32,4] v, float[3,8,16,1] sink) => (y) <int64[1] zero = {0},"
        " int64[1] end = {-1}, int64[1] axis = {3}> { t = Transpose <perm = [0,1,3,2]> (k) \n s = MatMul(q, t) "
        "\n x = Concat <axis = 3> (s, sink) \n p = Softmax(x) \n z = Slice(p, zero, end, axis) \n y = MatMul(z, v) }"
    )
    (use,) = attentions(text)
    assert (use.heads, use.queries, use.keys) == (8, 16, 32)


def test_an_operator_is_one_attention() -> None:
    head = HEAD.replace("21", "23")
    text = head + f"g ({QKV}) => (y) {{ y = Attention <is_causal = 1> (q, k, v) }}"
    (use,) = analyze(Program(parser.parse_model(text)).graph(Origin())).attentions
    b = symbol("b")
    assert (use.op, use.heads, use.kv_heads, use.queries, use.keys) == ("onnx.Attention.23", 8, 8, 16, 32)
    assert use.flops == 2 * b * 8 * 16 * 32 * (4 + 6)
    # Row i of 16 sees i + 1 of 32 keys: 16 * 17 / 2 pairs of 16 * 32.
    assert use.masked_flops == 2 * b * 8 * (16 * 32 - 16 * 17 // 2) * (4 + 6)
    assert use.score_bytes == use.repeated_bytes == 0


SQUARE = "float[b,8,16,16] q, float[b,8,16,16] k, float[b,8,16,16] v"


def square(body: str, extra: str = "", stored: str = "") -> str:
    return f"g ({SQUARE}{extra}) => (y) {stored} {{ {TO_SCORES} \n {body} }}"


NEAR_MISSES = {
    "softmax over the rows": square("p = Softmax <axis = 2> (s) \n y = MatMul(p, v)"),
    "softmax over the heads": square("p = Softmax <axis = 1> (s) \n y = MatMul(p, v)"),
    "no second product": square("y = Softmax(s)"),
    "no first product": f"g ({SQUARE}) => (y) {{ p = Softmax(q) \n y = MatMul(p, v) }}",
    "no softmax": square("y = MatMul(s, v)"),
    "a Relu between": square("r = Relu(s) \n p = Softmax(r) \n y = MatMul(p, v)"),
    "an Exp between": square("r = Exp(s) \n p = Softmax(r) \n y = MatMul(p, v)"),
    "a Gather between": square(
        "r = Gather <axis = 3> (s, i) \n p = Softmax(r) \n y = MatMul(p, v)", ", int64[16] i"
    ),
    "a cumulative sum between": square(
        "r = CumSum(s, three) \n p = Softmax(r) \n y = MatMul(p, v)", stored="<int64 three = {3}>"
    ),
    "a log-softmax": square("p = LogSoftmax(s) \n y = MatMul(p, v)"),
    "a hardmax": square("p = Hardmax(s) \n y = MatMul(p, v)"),
    "a sigmoid": square("p = Sigmoid(s) \n y = MatMul(p, v)"),
    "a logarithm after": square("p = Softmax(s) \n r = Log(p) \n y = MatMul(r, v)"),
    "something added to the probabilities": square("p = Softmax(s) \n r = Add(p, q) \n y = MatMul(r, v)"),
    "probabilities as columns": square("p = Softmax(s) \n y = MatMul(v, p)"),
    "probabilities transposed": square(
        "p = Softmax(s) \n r = Transpose <perm = [0,1,3,2]> (p) \n y = MatMul(r, v)"
    ),
    "rows weighed, not summed": square("p = Softmax(s) \n y = Mul(p, v)"),
    "a sum for a product": square(
        "p = Softmax(s) \n y = ReduceSum(p, last)", stored="<int64[1] last = {-1}>"
    ),
    "probabilities of probabilities": square("p = Softmax(s) \n y = MatMul(p, p)"),
    "a softmax of a softmax": square("r = Softmax(s) \n p = Softmax(r) \n y = MatMul(p, v)"),
    "a convolution for a product": "g (float[b,8,16,16] q, float[8,8,1,1] k, float[b,8,16,16] v) => (y) "
    "{ s = Conv(q, k) \n p = Softmax(s) \n y = MatMul(p, v) }",
}


@pytest.mark.parametrize("name", [*NEAR_MISSES])
def test_near_misses(name: str) -> None:
    assert attentions(NEAR_MISSES[name]) == ()


def test_a_layer_whose_activation_is_a_softmax() -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "u"], ["y"]),
    ]
    stored = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 8], bytes(4 * 8 * 4), raw=True),
        helper.make_tensor("u", TensorProto.FLOAT, [8, 4], bytes(4 * 8 * 4), raw=True),
    ]
    given = [helper.make_tensor_value_info("q", TensorProto.FLOAT, ["b", 16, 4])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 16, 4])]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    assert analyze(Program(model).graph(Origin())).attentions == ()


def test_a_ladder_of_sums_is_looked_at_once() -> None:
    # Each step may come from either of two values; there are 2 ** 22 ways back.
    steps = "\n".join(f"a{i + 1} = Add(a{i}, c{i}) \n c{i + 1} = Add(c{i}, a{i})" for i in range(22))
    text = f"g ({SQUARE}) => (y) {{ a0 = Relu(q) \n c0 = Relu(k) \n {steps} \n p = Softmax(a22) \n y = MatMul(p, v) }}"
    assert attentions(text) == ()


def test_heads_of_no_size_and_values_of_no_size() -> None:
    for sizes in ("0,8,16,4", "2,0,16,4", "2,8,0,4", "2,8,16,0"):
        given = ", ".join(f"float[{sizes}] {name}" for name in "qkv")
        text = f"g ({given}) => (y) {{ {TO_SCORES} \n p = Softmax(s) \n y = MatMul(p, v) }}"
        assert attentions(text) == ()


def test_an_attention_in_a_loop_moves_its_scores_and_reads_its_keys_every_time() -> None:
    """Five turns of one head of 16 rows, 32 keys and width 4: scores are written, read and written, and read."""
    text = (
        "g (float[16,4] q, float[32,4] k) => (y) <int64 five = {5}, bool on = {1}> {"
        " y = Loop (five, on, q) <body = turn (int64 i, bool c, float[16,4] x) => (c2, z) { c2 = Identity(c)"
        " \n t = Transpose <perm = [1,0]> (k) \n s = MatMul(x, t) \n p = Softmax(s) \n z = MatMul(p, k) }> }"
    )
    (use,) = attentions(text)
    assert use.times == 5
    assert use.score_bytes == 5 * 4 * (16 * 32 * 4)
    assert use.kv_bytes == 5 * 2 * (32 * 4 * 4)
