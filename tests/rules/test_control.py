"""Operators that wrap one other operator: to order its effects, or to make its writes results."""

from __future__ import annotations

import pytest

from graphflops.analysis import analyze
from graphflops.cost import Estimate
from graphflops.errors import NoRuleError
from graphflops.graph import Graph, Input, Node, Opaque, Output, Ref
from graphflops.rules import registry
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
