"""vmap as it is recorded: operators see tensors without the axis that is mapped over."""

from __future__ import annotations

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.graph import Graph, Input, Node, Output, Ref, Symbol
from tests.support import price, shapes, t

MARKS = "torch._functorch.predispatch."
n = symbol("n")


def mapped_linear(batch, in_dim=0, **fields):
    """`vmap(lambda row: row @ w)(x)`: x is (batch, 5, 8), or has its mapped axis elsewhere."""
    x = [5, 8]
    x.insert(in_dim, batch)
    nodes = [
        Node("enter", f"{MARKS}_vmap_increment_nesting", (batch, "error"), outputs=(None,)),
        Node("row", f"{MARKS}_add_batch_dim", (Ref("x"), in_dim, 1), outputs=("row",)),
        Node("y", "aten.matmul.default", (Ref("row"), Ref("w")), outputs=("y",)),
        Node("z", "aten.relu.default", (Ref("y"),), outputs=("z",)),
        Node("out", f"{MARKS}_remove_batch_dim", (Ref("z"), 1, batch, 0), outputs=("out",)),
        Node("leave", f"{MARKS}_vmap_decrement_nesting", (), outputs=(None,)),
    ]
    types = {"x": t(*x), "w": t(8, 4), "row": t(5, 8), "y": t(5, 4), "z": t(5, 4), "out": t(batch, 5, 4)}
    inputs = (Input("x", "user"), Input("w", "parameter", "w"))
    return Graph(tuple(nodes), types, inputs, (Output(Ref("out")),), **fields)


def test_work_is_done_once_per_hidden_element():
    report = analyze(mapped_linear(6))
    assert report.coverage.unknown == 0
    assert report.diagnostics == ()
    assert report.total().matrix_flops == 6 * 2 * 5 * 8 * 4
    assert report.total().vector_flops == 6 * 5 * 4


def test_a_weight_is_read_once_for_all_hidden_elements():
    product = analyze(mapped_linear(6, in_dim=1)).rows[2]
    assert product.cost.read_bytes == 4 * (6 * 5 * 8 + 8 * 4)
    assert product.cost.written_bytes == 4 * 6 * 5 * 4


def test_a_hidden_axis_may_be_symbolic_and_is_part_of_memory():
    program = mapped_linear(n, symbols={"n": Symbol("n", 2, 64, hint=6, where=("x[0]",))})
    report = analyze(program)
    assert report.total().matrix_flops == n * (2 * 5 * 8 * 4)
    assert analyze(program, dims={"x[0]": 10}).total().matrix_flops == 10 * 2 * 5 * 8 * 4
    assert report.value(report.totals.peak_bytes) == 4 * 6 * (5 * 8 + 5 * 4 + 5 * 4)


def test_gradients_are_of_all_hidden_elements_and_a_weight_has_one():
    program = mapped_linear(6)
    types = {**program.types, "w": t(8, 4, requires_grad=True)}
    report = analyze(Graph(program.nodes, types, program.inputs, program.outputs), training=True)
    product = report.rows[2].backward
    assert product.matrix_flops == 6 * 2 * 5 * 8 * 4
    assert product.written_bytes == 4 * 8 * 4


def test_axes_hide_and_show_where_they_are_said_to():
    hidden = price(f"{MARKS}_add_batch_dim", t(3, 6, 5), 1, 1)
    assert shapes(hidden) == [(3, 5)]
    assert hidden.out[0].nbytes == 4 * 3 * 6 * 5
    inner = price(f"{MARKS}_add_batch_dim", hidden.out[0], -1, 2)
    assert inner.out[0].mapped == ((1, 6), (2, 5))
    shown = price(f"{MARKS}_remove_batch_dim", inner.out[0], 2, 5, 1)
    assert shapes(shown) == [(3, 5)]
    assert shown.out[0].mapped == ((1, 6),)


def test_what_is_the_same_for_all_is_repeated_without_a_copy():
    shown = price(f"{MARKS}_remove_batch_dim", t(3), 1, 7, 0)
    assert shapes(shown) == [(7, 3)]
    assert shown.out[0].nbytes == 4 * 3


def test_outside_of_a_differentiated_function_a_tensor_is_the_same():
    same = price(f"{MARKS}_unwrap_for_grad", t(3, 4), 1)
    assert (shapes(same), same.cost.written_bytes, same.alias) == ([(3, 4)], 0, True)
