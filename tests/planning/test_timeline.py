"""What each rank of a planned pipeline runs when: as long as the plan says, with as much exposed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from graphflops import plan
from graphflops.errors import OptionError
from graphflops.planning.blocks import Recompute, Tally
from graphflops.planning.layouts import Costs, Layout, Step
from graphflops.planning.prices import Attended, Part
from graphflops.planning.timeline import Event, timeline
from tests.planning.test_plan import DECODER, costs

TENSOR: dict[str, Any] = {"gathered": (2**26, 2**25), "reduced": (2**26,)}
EXPERTS: dict[str, Any] = {"parameters": 4 * 10**8, "experts": 3 * 10**8}
RING: dict[str, Any] = {
    "attended": (Attended(Tally(0.004), Tally(0.01), 2**28), Attended(Tally(0.01), Tally(0.02), 2**31))
}


def priced(layout: Layout, *, first: bool = False, again: float = 0.0, **part: Any) -> Costs:
    """8 micro-batches of 8 layers, of 30 and 70 ms. first: with parts before and after them."""
    given = {"forward": 0.03, "backward": 0.07, "weight": 0.02, "parameters": 10**8, **part}
    found = costs(layout, batches=8, **given)
    ends = (
        Part(Tally(0.01), Tally(0.03), Tally(0.01), parameters=10**8, reduced=(2**24,)),
        Part(Tally(0.04), Tally(0.05), parameters=10**7),
    )
    before, layer, after = found.prices.parts
    parts = (ends[0], layer, ends[1]) if first else (before, layer, after)
    prices = replace(found.prices, parts=parts, boundary=2**27, dispatched=2**26)
    return replace(found, prices=prices, recompute=Recompute("full", 100, Tally(again)))


def busy(events: list[Event]) -> float:
    """Seconds in which kernels or collectives run; messages between stages pass meanwhile."""
    found = until = 0.0
    for event in sorted(events, key=lambda one: one.start):
        if event.peer is None and event.end > until:
            found, until = found + event.end - max(event.start, until), event.end
    return found


def assert_true(step: Step) -> list[list[Event]]:
    """The last event ends with the step, and the slowest rank waits for communication as long as the step says."""
    ranks = timeline(step)
    assert max(event.end for events in ranks for event in events) == pytest.approx(step.seconds)
    slowest = max(ranks, key=busy)
    alone = sum(event.work.seconds for event in slowest if not event.work.axes)
    assert alone == pytest.approx(step.compute + step.again + step.update)
    assert busy(slowest) - alone == pytest.approx(step.exposed, abs=1e-9 * step.seconds)
    for events in ranks:
        kernels = [event for event in events if not event.work.axes]
        assert all(before.end <= after.start + 1e-9 for before, after in pairwise(kernels))
        for event in events:
            assert event.end >= event.start
            waits = [events[place].end for place in event.waits]
            assert event.is_received or event.start == pytest.approx(max(waits, default=0.0), abs=1e-9)
    return ranks


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("again", [0.0, 0.015])
@pytest.mark.parametrize(
    ("layout", "part"),
    [
        (Layout(1, sharding="none"), {}),
        (Layout(8, sharding="none"), {}),
        (Layout(8, sharding="optimizer"), {}),
        (Layout(8), {}),
        (Layout(8), {"parameters": 10**10}),  # gathers take longer than kernels
        (Layout(1, tensor=8, sharding="none"), TENSOR),
        (Layout(2, tensor=4), TENSOR),
        (Layout(8, expert=4), EXPERTS),
        (Layout(2, context=4), RING),
        (Layout(1, pipeline=4, sharding="none"), {}),
        (Layout(2, tensor=2, pipeline=4), TENSOR),
        (Layout(16, pipeline=4, sharding="optimizer"), {}),
        (Layout(2, pipeline=4, context=2, schedule="zero-bubble"), RING),
        (Layout(4, pipeline=4, schedule="zero-bubble"), {"parameters": 10**10}),
        (Layout(4, pipeline=2, virtual=2, expert=2, schedule="interleaved"), EXPERTS),
    ],
)
def test_a_trace_takes_as_long_as_the_step(layout: Layout, part: Any, again: float, first: bool) -> None:
    assert_true(priced(layout, first=first, again=again, **part).step(runs=True))


def test_each_layout_that_a_plan_finds_has_its_trace() -> None:
    for step in plan(DECODER, devices=8, device="h100", batch_tokens=4096).steps:
        assert_true(step)


def test_a_layer_gathers_computes_and_sums() -> None:
    step = priced(Layout(1, tensor=8, sharding="none"), **TENSOR).step(runs=True)
    (events,) = assert_true(step)
    turn = [event for event in events if event.turn == ("F", 0, 0)]
    layer = ["all_gather", "all_gather", "forward", "reduce_scatter"]
    assert [event.work.name for event in turn] == 8 * layer
    assert [event.work.nbytes for event in turn[:4]] == [2**26 // 8, 2**25 // 8, 0, 2**26]
    back = [event.work.name for event in events if event.turn == ("B", 0, 7)]
    assert back == 8 * ["all_gather", "backward", "reduce_scatter", "reduce_scatter"]


def test_weights_are_gathered_beside_the_kernels() -> None:
    """Sharded: bfloat16 of an eighth of a layer; sums of gradients in float32. Both slow the kernels down."""
    (events,) = assert_true(priced(Layout(8)).step(runs=True))
    kernels, gather = events[:2]
    assert (kernels.work.name, gather.work.name) == ("forward", "all_gather")
    assert gather.work.nbytes == 2 * 10**8 // 8
    assert gather.start == kernels.start == 0.0
    assert kernels.end > kernels.work.seconds == 0.03
    assert gather.end > gather.work.seconds
    back = [event.work for event in events if event.turn == ("B", 0, 7)][:3]
    assert [(one.name, one.nbytes) for one in back] == [
        ("backward", 0), ("all_gather", 2 * 10**8 // 8), ("reduce_scatter", 4 * 10**8),
    ]  # fmt: skip


def test_messages_go_from_stage_to_stage() -> None:
    step = priced(Layout(1, pipeline=4, sharding="none")).step(runs=True)
    ranks = timeline(step)
    for place, events in enumerate(ranks):
        for event in events:
            if event.peer is not None:
                twin = [
                    one
                    for one in ranks[event.peer]
                    if (one.turn, one.peer) == (event.turn, place)
                    and one.is_received is not event.is_received
                ]
                assert [(one.start, one.end, one.work) for one in twin] == [
                    (event.start, event.end, event.work)
                ]
    sent = [sum(event.peer is not None and not event.is_received for event in events) for events in ranks]
    assert sent == [8, 2 * 8, 2 * 8, 8]


def test_too_many_micro_batches_are_refused() -> None:
    step = replace(priced(Layout(1, pipeline=4)), batches=2000).step(runs=True)
    with pytest.raises(OptionError, match="take fewer --batch-tokens"):
        timeline(step)
