"""Scores and probabilities laid out anew between the products: which axis is that of the keys, how many heads there are."""

from __future__ import annotations

import pytest
from onnx import parser

from graphflops.analysis import analyze
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
# Batch 2, 8 heads, 16 queries, 32 keys, width 4.
BATCHED = (
    "int64[3] q3 = {16, 16, 4}, int64[3] k3 = {16, 4, 32}, int64[3] p3 = {16, 16, 32}, int64[3] v3 = {16, 32, 4},"
    " int64[4] s4 = {2, 8, 16, 32}, int64[5] s5 = {2, 8, 16, 1, 32}, int64[1] two = {2}, int64[1] four = {4}"
)


def program(scores: str, probabilities: str, queries: str = "float[2,8,16,4] q") -> str:
    """Products of three axes, batch and heads in one; `scores` makes `x` of `s`, `probabilities` makes `z` of `p`."""
    return (
        f"{HEAD} g ({queries}, float[2,8,32,4] k, float[2,8,32,4] v) => (y) <{BATCHED}> {{"
        " t = Transpose <perm = [0,1,3,2]> (k) \n a = Reshape(q0, q3) \n b = Reshape(t, k3) \n c = Reshape(v, v3)"
        f" \n s = MatMul(a, b) \n {scores} \n p = Softmax <axis = -1> (x) \n {probabilities} \n y = MatMul(z, c) }}"
    )


# As torch decomposes an einsum: the summed axis comes back as one of length one before the keys, and is moved behind them.
EINSUM = (
    "s5_ = Reshape(s, s5) \n m = Transpose <perm = [0,1,2,4,3]> (s5_) \n x = Squeeze(m, four)",
    "u = Unsqueeze(p, four) \n r = Transpose <perm = [0,1,2,4,3]> (u) \n z = Reshape(r, p3)",
)
PLAIN = ("x = Reshape(s, s4)", "z = Reshape(p, p3)")
TURNED = ("h = Reshape(s, s4) \n x = Transpose <perm = [0,1,3,2]> (h)", "z = Reshape(p, p3)")
TURNED_BACK = (TURNED[0], "r = Transpose <perm = [0,1,3,2]> (p) \n z = Reshape(r, p3)")


@pytest.mark.parametrize(
    "queries",
    [
        # Batch and heads first; the sequence first, then batch and heads; an axis of length one among them.
        ("float[2,8,16,4] q", "q0 = Identity(q)"),
        ("float[16,2,8,4] q", "q0 = Transpose <perm = [1,2,0,3]> (q)"),
        (
            "float[16,2,8,4] q",
            "w = Unsqueeze(q, four) \n o = Transpose <perm = [1,2,0,3,4]> (w) \n q0 = Squeeze(o, four)",
        ),
    ],
    ids=["batch first", "sequence first", "axis of one"],
)
@pytest.mark.parametrize("layout", [PLAIN, EINSUM], ids=["plain", "einsum"])
def test_axes_of_length_one_are_no_axes(layout: tuple[str, str], queries: tuple[str, str]) -> None:
    declared, made = queries
    text = program(*layout, declared).replace("t = Transpose", f"{made} \n t = Transpose", 1)
    (use,) = analyze(Program(parser.parse_model(text)).graph(Origin())).attentions
    assert (use.batch, use.heads, use.queries, use.keys, use.width) == (2, 8, 16, 32, 4)
    assert use.flops == 2 * (2 * 2 * 8 * 16 * 32 * 4)


@pytest.mark.parametrize("layout", [TURNED, TURNED_BACK], ids=["turned", "turned back"])
def test_a_softmax_over_the_queries_is_none(layout: tuple[str, str]) -> None:
    text = program(*layout).replace("t = Transpose", "q0 = Identity(q) \n t = Transpose", 1)
    assert analyze(Program(parser.parse_model(text)).graph(Origin())).attentions == ()


def test_one_key() -> None:
    """An axis of length one that is that of the keys."""
    text = (
        f"{HEAD} g (float[2,8,16,4] q, float[2,8,1,4] k, float[2,8,1,4] v) => (y) <int64[4] r = {{2, 8, 16, 1}}> {{"
        " t = Transpose <perm = [0,1,3,2]> (k) \n s = MatMul(q, t) \n a = Transpose <perm = [0,2,1,3]> (s)"
        " \n b = Transpose <perm = [0,2,1,3]> (a) \n p = Softmax(b) \n y = MatMul(p, v) }"
    )
    (use,) = analyze(Program(parser.parse_model(text)).graph(Origin())).attentions
    assert (use.heads, use.queries, use.keys) == (8, 16, 1)
