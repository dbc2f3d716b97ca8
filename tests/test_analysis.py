"""The loop over a graph: pricing, nested graphs, sizes, gradients, memory. Graphs here are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops import analysis
from graphflops.analysis import analyze
from graphflops.dims import parse_dim, symbol
from graphflops.errors import DimError, ModelError
from graphflops.graph import Graph, Input, Node, Output, Ref, Symbol
from graphflops.report import Report
from graphflops.tensor import BOOL, INT64, TensorType
from graphflops.training import Training
from tests.support import t


def graph(nodes, types, inputs, outputs, **fields):
    roles = {"w": "parameter", "b": "buffer"}
    entries = tuple(Input(name, roles.get(name[0], "user"), f"layer.{name}") for name in inputs)
    returned = tuple(Output(Ref(name)) for name in outputs)
    return Graph(tuple(nodes), types, entries, returned, **fields)


def two_products(batch="n"):
    """(n, 8) @ (8, 16) @ (16, 4)."""
    n = symbol(batch) if isinstance(batch, str) else batch
    return graph(
        [
            Node(
                "hidden",
                "aten.mm.default",
                (Ref("x"), Ref("w1")),
                outputs=("hidden",),
                module="layer",
                source="m.py:1",
            ),
            Node(
                "y",
                "aten.mm.default",
                (Ref("hidden"), Ref("w2")),
                outputs=("y",),
                module="layer",
                source="m.py:2",
            ),
        ],
        {"x": t(n, 8), "w1": t(8, 16), "w2": t(16, 4), "hidden": t(n, 16), "y": t(n, 4)},
        ["x", "w1", "w2"],
        ["y"],
        symbols={"n": Symbol("n", 2, 64, hint=4, where=("x[0]",))} if isinstance(batch, str) else {},
    )


def test_totals_are_formulas_first_and_numbers_second():
    report = analyze(two_products())
    assert report.total().matrix_flops == parse_dim("2*n*8*16 + 2*n*16*4")
    assert report.value(report.total().matrix_flops) == 2 * 4 * 8 * 16 + 2 * 4 * 16 * 4
    assert report.parameters == 8 * 16 + 16 * 4
    assert report.parameter_bytes == 4 * (8 * 16 + 16 * 4)


def test_a_bound_size_is_a_number_everywhere():
    report = analyze(two_products(), dims={"n": 10})
    assert report.total().matrix_flops == 2 * 10 * 8 * 16 + 2 * 10 * 16 * 4
    assert report.rows[0].outputs[0].type.shape == (10, 16)
    assert report.symbols["n"].given_by == "user"


@pytest.mark.parametrize("given", [{"dims": {"x[0]": 10}}, {"inputs": {"x": (10, 8)}}])
def test_a_symbol_can_be_bound_through_the_input_axis_where_it_stands(given):
    assert analyze(two_products(), **given).symbols["n"].value == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dims": {"m": 3}}, "no such size; the program has n, x\\[0\\], x\\[1\\]"),
        ({"dims": {"x[2]": 3}}, "x has 2 axes"),
        ({"dims": {"n": 3, "x[0]": 4}}, "x\\[0\\] is n = 3 at the sizes given, not 4"),
        ({"dims": {"n": -1}}, "n: -1 is no size"),
        ({"inputs": {"z": (1,)}}, "no such input; the program has x"),
        ({"inputs": {"x": (1,)}}, "1 sizes given"),
    ],
)
def test_a_wrong_size_is_refused_with_what_there_is(given, message):
    with pytest.raises(ModelError, match=message):
        analyze(two_products(), **given)


def test_a_size_outside_the_exported_range_is_said():
    assert [d.code for d in analyze(two_products(), dims={"n": 65}).diagnostics] == ["GF106"]


def test_a_static_program_is_propagated_again_from_a_new_shape():
    report = analyze(two_products(batch=4), inputs={"x": (6, 8)})
    assert report.total().matrix_flops == 2 * 6 * 8 * 16 + 2 * 6 * 16 * 4
    assert report.rows[1].outputs[0].type.shape == (6, 4)


def test_a_size_fixed_in_the_program_contradicts_a_new_shape_and_is_placed():
    with pytest.raises(
        ModelError, match=r"hidden \(m.py:1\), aten.mm.default: .*export it with dynamic shapes"
    ):
        analyze(two_products(batch=4), inputs={"x": (4, 9)})


def test_an_unknown_operator_is_listed_and_not_free():
    nodes = [Node("y", "mine.magic.default", (Ref("x"),), outputs=("y",))]
    report = analyze(graph(nodes, {"x": t(4), "y": t(4)}, ["x"], ["y"]))
    assert report.rows[0].state == "unknown"
    assert report.coverage.unknown_ops == {"mine.magic.default": 1}
    assert [d.code for d in report.diagnostics] == ["GF101"]


def test_a_rule_that_fails_leaves_one_call_unknown_and_the_rest_counted():
    nodes = [
        Node("bad", "aten.mm.default", (Ref("x"), Ref("x")), outputs=("bad",)),
        Node("y", "aten.mm.default", (Ref("x"), Ref("w")), outputs=("y",)),
    ]
    report = analyze(
        graph(nodes, {"x": t(4, 8), "w": t(8, 2), "bad": t(4, 8), "y": t(4, 2)}, ["x", "w"], ["bad", "y"])
    )
    assert [row.state for row in report.rows] == ["unknown", "counted"]
    assert report.diagnostics[0].code == "GF118"
    assert report.total().matrix_flops == 2 * 4 * 8 * 2


def test_the_recorded_shape_wins_and_the_disagreement_is_said():
    nodes = [Node("y", "aten.mm.default", (Ref("x"), Ref("w")), outputs=("y",))]
    report = analyze(graph(nodes, {"x": t(4, 8), "w": t(8, 2), "y": t(4, 3)}, ["x", "w"], ["y"]))
    assert report.rows[0].outputs[0].type.shape == (4, 3)
    assert [d.code for d in report.diagnostics] == ["GF102"]


def test_arguments_without_kind_are_bound_by_name_or_place():
    kwargs = (("self", Ref("x")), ("mat2", Ref("w")))
    nodes = [Node("y", "aten.mm.default", kwargs=kwargs, outputs=("y",))]
    report = analyze(graph(nodes, {"x": t(4, 8), "w": t(8, 2), "y": t(4, 2)}, ["x", "w"], ["y"]))
    assert report.total().matrix_flops == 2 * 4 * 8 * 2


def rows_that_a_tensor_counts():
    """The first rows of w, as many as a tensor made from the size n says: a size that exporting leaves to the data."""
    n, u0, u1 = symbol("n"), symbol("u0"), symbol("u1")
    nodes = [
        Node("n", "aten.sym_size.int", (Ref("x"), 0), outputs=("n",)),
        Node("count", "aten.scalar_tensor.default", (Ref("n"),), (("dtype", INT64),), outputs=("count",)),
        Node("kept", "aten.detach_.default", (Ref("count"),), outputs=("kept",)),
        Node("end", "aten.item.default", (Ref("kept"),), outputs=("end",)),
        Node("rows", "aten.slice.Tensor", (Ref("w"), 0, 0, Ref("end")), outputs=("rows",)),
        Node("y", "aten.mm.default", (Ref("rows"), Ref("v")), outputs=("y",)),
    ]
    tensors = {"x": t(n, 8), "w": t(64, 8), "v": t(8, 4), "rows": t(u1, 8), "y": t(u1, 4)}
    scalars = {"n": n, "count": t(dtype="int64"), "kept": t(dtype="int64"), "end": u0}
    symbols = {
        "n": Symbol("n", 2, 64, hint=4, where=("x[0]",)),
        "u0": Symbol("u0"),
        "u1": Symbol("u1", 0, 64),
    }
    return graph(nodes, {**tensors, **scalars}, ["x", "w", "v"], ["y"], symbols=symbols)


def test_a_size_left_to_the_data_is_told_by_contents_that_the_program_computes_from_sizes():
    report = analyze(rows_that_a_tensor_counts())
    assert report.value(report.total().matrix_flops) == 2 * 4 * 8 * 4
    assert analyze(rows_that_a_tensor_counts(), dims={"n": 10}).total().matrix_flops == 2 * 10 * 8 * 4
    assert report.symbols["u0"].value == 4
    assert not report.diagnostics


def test_a_size_left_to_the_data_that_nothing_tells_stays_what_the_file_calls_it():
    program = rows_that_a_tensor_counts()
    written = Node("kept", "aten.random_.default", (Ref("count"),), outputs=("kept",))
    program = replace(program, nodes=(*program.nodes[:2], written, *program.nodes[3:]))
    report = analyze(program)
    assert str(report.total().matrix_flops) == "64*u1"
    assert analyze(program, dims={"u1": 7}).total().matrix_flops == 2 * 7 * 8 * 4


def test_a_list_of_another_length_at_the_sizes_given_is_refused():
    nodes = [Node("parts", "aten.unbind.int", (Ref("x"),), outputs=("a", "b"))]
    program = graph(nodes, {"x": t(2, 8), "a": t(8), "b": t(8)}, ["x"], ["a", "b"])
    with pytest.raises(ModelError, match="it would give 3 results, the program takes 2; a size is fixed"):
        analyze(program, dims={"x[0]": 3})


# Nested graphs


def branch(name, *products):
    """A graph of one input x (16, 16) that multiplies it by itself as often as `products` says."""
    nodes = [
        Node(f"{name}_{i}", "aten.mm.default", (Ref("x"), Ref("x")), outputs=(f"{name}_{i}",))
        for i in range(*products)
    ]
    types = {"x": t(16, 16), **{node.name: t(16, 16) for node in nodes}}
    return graph(nodes, types, ["x"], [nodes[-1].name], name=name)


def control(op, args, out=t(16, 16)):
    nodes = [Node("call", op, args, outputs=("y",), module="layer")]
    types = {"x": t(16, 16), "p": t(dtype=BOOL), "xs": t(5, 16, 16), "y": out}
    return graph(nodes, types, ["x", "p", "xs"], ["y"])


def test_cond_costs_the_dearer_branch_and_lists_both():
    args = (Ref("p"), branch("yes", 1), branch("no", 2), (Ref("x"),))
    report = analyze(control("higher_order.cond", args))
    one_product = 2 * 16 * 16 * 16
    assert report.total().matrix_flops == 2 * one_product
    assert {(use.name, use.times, use.cost.matrix_flops) for use in report.rows[0].regions} == {
        ("no", 1, 2 * one_product),
        ("yes", 0, one_product),
    }


def test_work_around_a_cond_is_added_once():
    program = control("higher_order.cond", (Ref("p"), branch("yes", 1), branch("no", 2), (Ref("x"),)))
    outer = Node("z", "aten.mm.default", (Ref("y"), Ref("x")), outputs=("z",))
    program = graph([*program.nodes, outer], {**program.types, "z": t(16, 16)}, ["x", "p", "xs"], ["z"])
    assert analyze(program).total().matrix_flops == (2 + 1) * 2 * 16 * 16 * 16


def test_scan_runs_its_body_once_per_slice():
    nodes = [Node("m", "aten.mm.default", (Ref("c"), Ref("x")), outputs=("m",))]
    types = {"c": t(8, 8), "x": t(8, 8), "m": t(8, 8)}
    body = graph(nodes, types, ["c", "x"], ["m", "m"], name="body")
    call = Node("call", "higher_order.scan", (body, (Ref("c0"),), (Ref("xs"),), ()), outputs=("c1", "ys"))
    types = {"c0": t(8, 8), "xs": t(5, 8, 8), "c1": t(8, 8), "ys": t(5, 8, 8)}
    report = analyze(graph([call], types, ["c0", "xs"], ["c1", "ys"]))
    assert report.total().matrix_flops == 5 * 2 * 8 * 8 * 8
    assert not report.diagnostics
    assert [(row.node, row.times) for row in report.rows] == [("call", 1), ("call/m", 5)]


def test_what_a_turn_hands_on_wants_a_gradient_in_the_next_one():
    """The state begins without; its product with a slice that wants one wants one, and is a factor of the next product."""
    nodes = [Node("m", "aten.mm.default", (Ref("c"), Ref("x")), outputs=("m",))]
    body = graph(nodes, {"c": t(8, 8), "x": t(8, 8), "m": t(8, 8)}, ["c", "x"], ["m"], name="body")
    scan = Node("scan", "higher_order.scan", (body, (Ref("c0"),), (Ref("xs"),), ()), outputs=("c1",))
    training = Training(grad_inputs=("xs",))
    scanned = graph([scan], {"c0": t(8, 8), "xs": t(5, 8, 8), "c1": t(8, 8)}, ["c0", "xs"], ["c1"])
    assert analyze(scanned, training=training).backward.cost.matrix_flops == 5 * 2 * (2 * 8 * 8 * 8)
    condition = graph([], {"c": t(8, 8), "x": t(8, 8)}, ["c", "x"], ["x"], name="cond")
    loop = (condition, body, (Ref("c0"),), (Ref("xs"),))
    call = Node("loop", "higher_order.while_loop", loop, outputs=("c1",))
    looped = graph([call], {"c0": t(8, 8), "xs": t(8, 8), "c1": t(8, 8)}, ["c0", "xs"], ["c1"])
    found = analyze(looped, training=training, dims={"while_loop_trips_0": 5})
    assert found.backward.cost.matrix_flops == 5 * 2 * (2 * 8 * 8 * 8)


def test_while_loop_runs_a_named_number_of_times():
    nodes = [Node("go", "aten.any.default", (Ref("x"),), outputs=("go",))]
    condition = graph(nodes, {"x": t(8, 8), "go": t(dtype=BOOL)}, ["x"], ["go"], name="cond")
    nodes = [Node("m", "aten.mm.default", (Ref("x"), Ref("x")), outputs=("m",))]
    body = graph(nodes, {"x": t(8, 8), "m": t(8, 8)}, ["x"], ["m"], name="body")
    call = Node("call", "higher_order.while_loop", (condition, body, (Ref("x"),), ()), outputs=("y",))
    program = graph([call], {"x": t(8, 8), "y": t(8, 8)}, ["x"], ["y"])
    report = analyze(program)
    assert str(report.total().matrix_flops) == f"{2 * 8 * 8 * 8}*while_loop_trips_0"
    assert report.value(report.total().matrix_flops) is None
    assert report.symbols["while_loop_trips_0"].value is None
    ten = analyze(program, dims={"while_loop_trips_0": 10})
    assert ten.total().matrix_flops == 10 * 2 * 8 * 8 * 8
    # before each of the ten turns the condition holds; it is computed once more, to end the loop
    assert ten.total().vector_flops == (10 + 1) * 8 * 8
    assert (ten.symbols["while_loop_trips_0"].value, ten.symbols["while_loop_trips_0"].given_by) == (
        10,
        "user",
    )
    with pytest.raises(ModelError, match="while_loop_trips_1: no such size"):
        analyze(program, dims={"while_loop_trips_1": 10})


def test_regions_without_gradients_or_with_autocast_are_entered():
    for op, head in (
        ("higher_order.wrap_with_set_grad_enabled", (False,)),
        ("higher_order.wrap_with_autocast", ("cuda", None, True, None)),
    ):
        report = analyze(control(op, (*head, branch("body", 1), Ref("x"))))
        assert report.total().matrix_flops == 2 * 16 * 16 * 16
        assert report.rows[1].module == "layer"


# Joint graphs


def test_what_leads_to_a_mutation_of_a_joint_graph_is_forward():
    """y = x w is the loss; the buffer b becomes 2 b, on which nothing else depends; the gradient of w is x y."""
    nodes = [
        Node("y", "aten.mm.default", (Ref("x"), Ref("w")), outputs=("y",)),
        Node("update", "aten.mul.Tensor", (Ref("b"), 2), outputs=("update",)),
        Node("dw", "aten.mm.default", (Ref("x"), Ref("y")), outputs=("dw",)),
    ]
    names = ("x", "w", "b", "y", "update", "dw")
    program = replace(
        graph(nodes, dict.fromkeys(names, t(8, 8)), ["x", "w", "b"], []),
        outputs=(
            Output(Ref("update"), "mutation", "layer.b"),
            Output(Ref("y"), "loss"),
            Output(Ref("dw"), "gradient", "layer.w"),
        ),
    )
    assert program.phases == {"y": "forward", "update": "forward", "dw": "backward"}
    assert [row.phase for row in analyze(program).rows] == ["forward", "forward", "backward"]


# Training


def trainable(*frozen):
    program = two_products(batch=4)
    types = {
        name: TensorType(value.shape, value.dtype, requires_grad=name.startswith("w") and name not in frozen)
        for name, value in program.types.items()
    }
    return Graph(program.nodes, types, program.inputs, program.outputs)


def test_the_input_of_the_first_layer_wants_no_gradient():
    report = analyze(trainable(), training=True)
    first, second = 2 * 4 * 8 * 16, 2 * 4 * 16 * 4
    assert report.backward.cost.matrix_flops == first + 2 * second


def test_a_frozen_first_layer_needs_one_gradient_product_only():
    report = analyze(trainable("w1"), training=True)
    assert report.backward.cost.matrix_flops == 2 * 4 * 16 * 4


def test_a_step_is_forward_backward_and_optimizer():
    report = analyze(trainable(), training=True)
    step = report.step()
    assert step.cost.matrix_flops == report.total().matrix_flops + report.backward.cost.matrix_flops
    assert step.cost.written_bytes > report.total().written_bytes + 3 * report.parameter_bytes


def test_a_file_that_records_no_trainable_parameter_trains_all_of_them():
    report = analyze(trainable("w1", "w2"), training=True)
    assert report.backward.cost.matrix_flops > 0


# Memory


def test_peak_memory_counts_what_is_alive_together():
    report = analyze(two_products(batch=4))
    # x is the caller's; hidden and y are alive together at the second product
    assert report.totals.peak_bytes == 4 * (4 * 8 + 4 * 16 + 4 * 4)
    assert report.totals.peak_node == "y"


def test_a_value_is_freed_after_its_last_use():
    chain = [
        Node(f"h{i}", "aten.mm.default", (Ref("x" if i == 0 else f"h{i - 1}"), Ref("w")), outputs=(f"h{i}",))
        for i in range(5)
    ]
    types = {"x": t(4, 16), "w": t(16, 16), **{node.name: t(4, 16) for node in chain}}
    assert analyze(graph(chain, types, ["x", "w"], ["h4"])).totals.peak_bytes == 4 * (3 * 4 * 16)


def test_a_symbolic_peak_is_the_maximum_of_polynomials():
    n = symbol("n")
    nodes = [
        Node("wide", "aten.mm.default", (Ref("x"), Ref("w1")), outputs=("wide",)),
        Node("thin", "aten.mm.default", (Ref("wide"), Ref("w2")), outputs=("thin",)),
        Node("square", "aten.mm.default", (Ref("thin"), Ref("bt")), outputs=("square",)),
    ]
    types = {
        "x": t(n, 1),
        "w1": t(1, 100),
        "w2": t(100, 1),
        "bt": t(1, n),
        "wide": t(n, 100),
        "thin": t(n, 1),
        "square": t(n, n),
    }
    sizes = {"n": Symbol("n")}
    peak = analyze(graph(nodes, types, ["x", "w1", "w2", "bt"], ["square"], symbols=sizes)).totals.peak_bytes
    # x, wide, thin against x, thin, square: they cross at n = 100
    for size in (10, 99, 100, 101, 1000):
        assert peak.substitute({"n": size}) == 4 * max(size + 100 * size + size, size + size + size * size)


def test_a_report_survives_json():
    report = analyze(two_products(), training=True)
    assert Report.from_json(report.to_json()).to_json() == report.to_json()


# Sizes that depend on data


def test_a_size_only_data_can_tell_is_called_what_the_file_calls_it():
    found = symbol("u0")
    nodes = [
        Node("i", "aten.nonzero.default", (Ref("x"),), outputs=("i",)),
        Node("j", "aten.nonzero.default", (Ref("x"),), outputs=("j",)),
    ]
    types = {"x": t(4), "i": t(found, 1, dtype="int64"), "j": t(symbol("u1"), 1, dtype="int64")}
    sizes = {name: Symbol(name) for name in ("u0", "u1")}
    report = analyze(graph(nodes, types, ["x"], ["i", "j"], symbols=sizes))
    assert [row.outputs[0].type.shape for row in report.rows] == [(found, 1), (symbol("u1"), 1)]
    assert report.rows[1].cost.written_bytes == 8 * symbol("u1")
    assert not report.diagnostics


@pytest.mark.ill_formed
def test_a_size_only_data_can_tell_is_numbered_where_the_file_is_silent():
    nodes = [Node(name, "aten.nonzero.default", (Ref("x"),), outputs=(name,)) for name in ("i", "j")]
    report = analyze(graph(nodes, {"x": t(4)}, ["x"], ["i", "j"]))
    assert [str(row.outputs[0].type.shape[0]) for row in report.rows] == ["nonzero_0", "nonzero_1"]


def wanted(*calls, outputs=("y",), **types):
    """Which calls (result, operator, operands) have a backward, with one parameter w."""
    nodes = [Node(name, op, tuple(map(argument, args)), outputs=(name,)) for name, op, args in calls]
    made = dict.fromkeys((name for name, _, _ in calls), t(8, 8))
    given = {"x": t(8, 8), "w": t(8, 8, requires_grad=True)}
    program = graph(nodes, {**given, **made, **types}, ["x", "w"], outputs)
    report = analyze(program, training=True)
    return [row.node for row in report.rows if row.backward is not None], report


def argument(value):
    return Ref(value) if isinstance(value, str) else value


PRODUCT = ("a", "aten.mm.default", ("x", "w"))


@pytest.mark.parametrize(
    "calls, expected",
    [
        ([("y", "aten.exp.default", ("a",))], ["a", "y"]),
        # nothing flows back through a detached value, a comparison or whole numbers, nor from what the results do not need
        ([("d", "aten.detach.default", ("a",)), ("y", "aten.mm.default", ("d", "w"))], ["y"]),
        ([("b", "aten.exp.default", ("x",)), ("y", "aten.mul.Tensor", ("b", "w"))], ["y"]),
        # what is written in place leads on from the tensor written, and from what it is a view of
        ([("i", "aten.mul_.Tensor", ("a", "a")), ("y", "aten.exp.default", ("a",))], ["a", "i", "y"]),
        (
            [
                *(("z", "aten.clone.default", ("x",)), ("v", "aten.slice.Tensor", ("z", 0, 0, 8))),
                *(("i", "aten.copy_.default", ("v", "a")), ("y", "aten.exp.default", ("z",))),
            ],
            ["a", "i", "y"],
        ),
    ],
)
def test_only_what_leads_to_a_result_has_a_backward(calls, expected):
    assert wanted(PRODUCT, *calls)[0] == expected


def test_an_unknown_operator_does_not_stop_the_backward():
    calls = [("u", "mine.magic.default", ("a",)), ("y", "aten.exp.default", ("u",))]
    assert wanted(PRODUCT, *calls)[0] == ["a", "y"]


def test_a_program_whose_results_need_no_gradient_says_so():
    names, report = wanted(PRODUCT, ("y", "aten.gt.Scalar", ("a", 0)), y=t(8, 8, dtype=BOOL))
    assert names == []
    assert [d.code for d in report.diagnostics] == ["GF109"]


def test_a_graph_run_without_recording_gradients_returns_what_wants_none():
    body = branch("body", 1)
    call = Node("a", "higher_order.wrap_with_set_grad_enabled", (False, body, Ref("w")), outputs=("a",))
    last = Node("y", "aten.mm.default", (Ref("a"), Ref("w")), outputs=("y",))
    types = {"w": t(16, 16, requires_grad=True), "a": t(16, 16), "y": t(16, 16)}
    report = analyze(graph([call, last], types, ["w"], ["y"]), training=True)
    # the product inside is not differentiated, and the last has one gradient
    assert report.backward.cost.matrix_flops == 2 * 16 * 16 * 16
    assert [row.node for row in report.rows if row.backward is not None] == ["y"]


def test_formulas_that_grow_too_large_are_said_with_their_place(monkeypatch):
    """A sum over calls may, although each call's sizes could be computed with."""

    def grown(*_):
        raise DimError("symbolic size grew past 2000 terms")

    monkeypatch.setattr(analysis.attention, "find_attentions", grown)
    with pytest.raises(
        DimError, match=r"^the program: symbolic size grew past 2000 terms: give sizes with --dim$"
    ):
        analyze(two_products())
