"""Operators that wrap one other operator: to order its effects, or to make its writes results."""

from __future__ import annotations

import pytest

from graphflops.analysis import analyze
from graphflops.cost import QUANTITIES, Estimate
from graphflops.errors import NoRuleError
from graphflops.graph import Graph, Input, Node, Opaque, Output, Ref
from graphflops.rules import registry
from graphflops.tensor import INT32
from tests.support import price, shapes, t

V2 = "higher_order.auto_functionalized_v2"


def test_an_operator_with_effects_comes_after_the_token():
    wrapped = price("higher_order.with_effects", None, Opaque("aten.mm.default"), t(4, 8), t(8, 2))
    assert wrapped.out == (None, t(4, 2))
    assert wrapped.matrix_flops == 2 * 4 * 8 * 2
    assert wrapped.cost.written_bytes == 4 * 4 * 2


def test_an_effect_that_returns_nothing_is_recorded_as_none():
    checked = Opaque("aten._linalg_check_errors.default")
    wrapped = price("higher_order.with_effects", None, checked, t(4, dtype="int32"), "inv", is_matrix=False)
    assert wrapped.out == (None, None)


def test_a_product_of_small_integers_may_be_oncer_than_they_are():
    a, b = t(4, 8, dtype="int8"), t(8, 2, dtype="int8")
    product = price("higher_order.out_dtype", Opaque("aten.mm.default"), INT32, a, b)
    assert product.out == (t(4, 2, dtype="int32"),)
    assert (product.matrix_flops, product.cost.written_bytes) == (2 * 4 * 8 * 2, 4 * 4 * 2)


@pytest.fixture
def accumulate(monkeypatch):
    """An operator that adds to one tensor and to each of a list."""

    def accumulate(x, into, others=()):
        written = (into, *(other for other in others if other is not None))
        return Estimate(
            (), vector_flops=sum(each.numel for each in written), reads=(x, *written), writes=written
        )

    monkeypatch.setitem(registry._rules, "mine.accumulate", registry.Rule("mine.accumulate", accumulate))


@pytest.mark.parametrize(
    ("how", "written"),
    [
        ({"_into_base_index": 0, "_others_length": 0}, 4 * 8),
        ({"_into_base_index": 1, "_into_size": (8,), "_into_stride": (1,), "_into_storage_offset": 16}, 8),
        ({"_into_base_index": 1, "_into_slice_dim": 0, "_into_slice_start": 2, "_into_slice_end": 5}, 3 * 8),
        (
            {
                "_into_base_index": 0,
                "_others_length": 2,
                "_others_0_base_index": 1,
                "_others_1_base_index": None,
            },
            32 + 9 * 8,
        ),
    ],
)
@pytest.mark.usefixtures("accumulate")
def test_an_operator_that_writes_operands_returns_all_bases(how, written):
    wrapped = price(V2, Opaque("mine.accumulate.default"), x=t(8), **how, _all_bases=(t(4, 8), t(9, 8)))
    assert wrapped.out == (None, t(4, 8), t(9, 8))
    assert wrapped.vector_flops == written
    assert wrapped.cost.written_bytes == 4 * written


def test_a_wrapped_operator_without_a_rule_is_unknown_by_its_own_name():
    with pytest.raises(NoRuleError, match=r"no rule for operator mine\.fused\.default"):
        price(V2, Opaque("mine.fused.default"), x=t(4), _all_bases=())
    call = Node(
        "y", V2, (Opaque("mine.fused.default"),), (("x", Ref("x")), ("_all_bases", ())), outputs=("y",)
    )
    report = analyze(Graph((call,), {"x": t(4), "y": t(4)}, (Input("x", "user"),), (Output(Ref("y")),)))
    assert report.coverage.unknown == 1
    assert [(d.code, d.message.partition(":")[0]) for d in report.diagnostics] == [
        ("GF101", "no rule for operator mine.fused.default")
    ]


def test_results_of_the_operator_come_before_the_bases():
    wrapped = price(V2, Opaque("aten.mm.default"), a=t(4, 8), b=t(8, 2), _all_bases=(t(3),))
    assert shapes(wrapped) == [(4, 2), (3,)]


# One of several graphs


def choices(op, *branches):
    """A program that runs one of the branches, each a chain of operators on a weight (16, 16)."""

    def chain(name, ops):
        steps = [f"{name}_{place}" for place in range(len(ops))]
        nodes = tuple(
            Node(step, op, tuple(Ref(before) for _ in range(1 + (op == "aten.mm.default"))), outputs=(step,))
            for step, before, op in zip(steps, ("v", *steps), ops, strict=False)
        )
        return Graph(
            nodes, dict.fromkeys(("v", *steps), t(16, 16)), (Input("v", "user"),), (Output(Ref(steps[-1])),)
        )

    graphs = tuple(chain(f"branch{place}", ops) for place, ops in enumerate(branches))
    given = graphs if op == "higher_order.cond" else (graphs,)
    types = {"i": t(dtype="int64"), "w": t(16, 16, requires_grad=True), "y": t(16, 16)}
    call = Node("y", op, (Ref("i"), *given, (Ref("w"),)), outputs=("y",))
    inputs = (Input("i", "user"), Input("w", "parameter", "layer.w"))
    return Graph((call,), types, inputs, (Output(Ref("y")),))


PRODUCT, SINE, SQUARE = "aten.mm.default", "aten.sin.default", "aten.square.default"
BRANCHES = ((PRODUCT, PRODUCT), (SINE, SINE, SINE), (SQUARE, PRODUCT))


@pytest.mark.parametrize(
    ("op", "branches"),
    [
        ("higher_order.cond", BRANCHES[:2]),
        ("higher_order.cond", BRANCHES[1::-1]),
        ("higher_order.switch", BRANCHES[:1]),
        ("higher_order.switch", BRANCHES),
    ],
)
def test_what_one_of_several_costs_is_the_most_of_each_quantity_forward_and_backward(op, branches):
    report = analyze(choices(op, *branches), training=True)
    alone = [analyze(choices("higher_order.switch", branch), training=True) for branch in branches]
    for quantity in QUANTITIES:
        assert getattr(report.total(), quantity) == max(getattr(one.total(), quantity) for one in alone)
        assert getattr(report.backward.cost, quantity) == max(
            getattr(one.backward.cost, quantity) for one in alone
        )


def test_the_branch_that_a_known_condition_selects_counts_alone():
    """Three rows are more than two: torch multiplies them by a matrix, fewer by one of twice its size."""
    torch = pytest.importorskip("torch")

    def once(x):
        return (x @ torch.ones(8, 8)).sum(1)

    def twice(x):
        return (x @ torch.ones(8, 16)).sum(1)

    class Branches(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 2, once, twice, (x,))

    shapes = ({0: torch.export.Dim("rows", min=2)},)
    program = torch.export.export(Branches(), (torch.ones(4, 8),), dynamic_shapes=shapes)
    for rows, columns in ((2, 16), (3, 8), (9, 8)):
        assert analyze(program, dims={"x[0]": rows}).total().matrix_flops == 2 * rows * 8 * columns


def test_switch_counts_the_dearest_and_lists_all():
    report = analyze(choices("higher_order.switch", *BRANCHES))
    product = 2 * 16 * 16 * 16
    assert report.total().matrix_flops == 2 * product
    assert report.total().transcendentals == 3 * 16 * 16
    assert [(use.times, use.cost.matrix_flops) for use in report.rows[0].regions] == [
        (1, 2 * product),
        (0, 0),
        (0, product),
    ]
