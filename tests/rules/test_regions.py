"""Higher-order operators that run a graph inside: how often it runs, on what, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from graphflops.cost import Cost, Value
from tests.support import price, shapes, t


@dataclass(frozen=True)
class Run:
    """What a nested graph returned and cost."""

    name: str
    out: tuple[Value, ...]
    cost: Cost


class Body:
    """A graph of 10 FLOPs that returns its first operand and keeps the types it was run on."""

    def __init__(self) -> None:
        self.operands: list[Any] = []

    def __call__(self, *operands: Value, **keywords: Value) -> Run:
        self.operands = [getattr(x, "shape", x) for x in operands]
        return Run("body", operands[:1], Cost(0, 10, 0, 0, 0, 0))


def times(estimate: Any) -> Any:
    ((_, count),) = estimate.regions
    return count


@pytest.mark.parametrize("op", ["higher_order.map", "higher_order.map_impl"])
def test_map_runs_its_body_for_each_slice_and_stacks_the_results(op: str) -> None:
    body = Body()
    estimate = price(op, body, (t(5, 3),), (t(7),))
    assert body.operands == [(3,), (7,)]
    assert (times(estimate), shapes(estimate)) == (5, [(5, 3)])


def test_associative_scan_combines_every_slice_but_the_first_with_what_comes_before() -> None:
    body = Body()
    estimate = price("higher_order.associative_scan", body, (t(5, 3), t(5, 2)), (t(7),))
    assert body.operands == [(3,), (2,), (3,), (2,), (7,)]
    assert (times(estimate), shapes(estimate)) == (4, [(5, 3), (5, 2)])


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("higher_order.invoke_subgraph", ("subgraph_0", t(4, 8), t(8))),
        ("higher_order.hints_wrapper", ((t(4, 8), t(8)), {}, {"outer": True})),
        ("higher_order.strict_mode", ((t(4, 8), t(8)),)),
        ("higher_order.foreach_map", ((t(4, 8), t(8)),)),
        ("higher_order.wrap", (t(4, 8), t(8))),
        ("higher_order.wrap_activation_checkpoint", (t(4, 8), t(8))),
        ("higher_order.tag_activation_checkpoint", (t(4, 8), t(8))),
        ("higher_order.local_map_hop", (t(4, 8), t(8))),
    ],
)
def test_a_wrapped_graph_runs_once(op: str, operands: tuple[Any, ...]) -> None:
    body = Body()
    estimate = price(op, body, *operands)
    assert body.operands == [(4, 8), (8,)]
    assert (times(estimate), shapes(estimate)) == (1, [(4, 8)])
    assert not estimate.cost  # the work is the region's


@pytest.mark.parametrize("op", ["higher_order.print", "higher_order._export_tracepoint"])
def test_effects_compute_nothing(op: str) -> None:
    assert not price(op, "text", x=t(4)).cost
