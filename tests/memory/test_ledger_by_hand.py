"""Figures of the ledger from a timeline of round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.dims import evaluate, symbol
from graphflops.errors import ModelError
from graphflops.fitting.varied_size import known_sizes, repeated_peak
from graphflops.graph import Graph, Input, Node, Output, Ref, Symbol
from graphflops.loading import analyze
from graphflops.memory.allocator import MIB, Allocator
from graphflops.memory.ledger import at_sizes, is_alive, peak_moment
from graphflops.report import Held, Timeline
from tests.support import t

N = symbol("n")
HELD = (
    Held("w", "weight", 0, 3, 100 * MIB),
    Held("a", "value", 0, 1, 30 * MIB),
    Held("b", "value", 1, 2, 40 * MIB),
    Held("c", "workspace", 2, 2, 10 * MIB),
    Held("lib", "library", 2, 3, 8 * MIB),
)
TIMELINE = Timeline((0, 1, 2, 3), HELD, None)


def sizes(timeline: Timeline) -> list[int]:
    return [held.bytes for held in timeline.held]  # type: ignore[misc]


def test_what_is_alive_at_each_moment() -> None:
    """Workspaces of libraries stay from run to run, so they are there from the start."""
    assert [size // MIB for size in TIMELINE.live_bytes(sizes(TIMELINE))] == [138, 178, 158, 108]
    assert [[is_alive(held, moment) for moment in range(4)] for held in HELD[1:]] == [
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, False],
        [True, True, True, True],
    ]
    assert peak_moment(TIMELINE, {}) == 1


def test_open_sizes_are_taken_to_be_large() -> None:
    held = (*HELD, Held("d", "value", 3, 3, N * 2**20))
    timeline = replace(TIMELINE, held=held)
    assert peak_moment(timeline, {}) == 3
    assert peak_moment(timeline, {"n": 1}) == 1
    assert peak_moment(timeline, {"n": 71}) == 3


def phase() -> Any:
    """The phase of a sample, whose timeline a test replaces."""
    report = analyze("samples/convnet.pt2", device="h200")
    return report.memory_use[0], report.rows


def test_the_parts_of_a_peak() -> None:
    entry, rows = phase()
    entry = replace(entry, timeline=TIMELINE, requested_peak=178 * MIB, workspaces=0, context=5 * MIB)
    found = at_sizes(entry, {}, Allocator(), rows)
    assert (found.weights, found.activations, found.workspaces) == (100 * MIB, 70 * MIB, 8 * MIB)
    assert found.peak_node == rows[1].node
    assert found.allocated_peak == 178 * MIB
    assert found.device_total == found.reserved_peak + 5 * MIB
    larger = at_sizes(replace(entry, requested_peak=178 * MIB + N * 0), {"n": 1}, Allocator(), rows)
    assert larger.allocated_peak == 178 * MIB
    without = at_sizes(replace(entry, workspaces=None, context=None), {}, Allocator(), rows)
    assert (without.workspaces, without.device_total) == (None, None)
    open_sizes = replace(entry, timeline=replace(TIMELINE, held=(*HELD, Held("d", "value", 3, 3, N * 2**20))))
    assert at_sizes(open_sizes, {}, Allocator(), rows).reserved_peak is None


def test_sizes_without_a_value_or_below_zero_are_refused() -> None:
    entry, _ = phase()
    held = (*HELD, Held("d", "value", 3, 3, N * 2**20))
    entry = replace(entry, timeline=replace(TIMELINE, held=held), requested_peak=N)
    assert known_sizes(entry, {"n": 7})[-1] == 7 * MIB
    with pytest.raises(ModelError, match="the size n has no value: give it with --dim"):
        known_sizes(entry, {})
    with pytest.raises(ModelError, match="negative"):
        known_sizes(entry, {"n": -1})


def test_a_margin_enlarges_what_does_not_last() -> None:
    entry, _ = phase()
    held = (Held("w", "weight", 0, 1, 100 * MIB), Held("a", "value", 0, 1, 40 * MIB))
    entry = replace(entry, timeline=Timeline((0, 1), held, None), requested_peak=140 * MIB)
    assert repeated_peak(entry, {}, 0) == 140 * MIB
    assert repeated_peak(entry, {}, 500) == 160 * MIB


def test_the_peak_of_open_sizes_is_at_each_size_where_most_is_alive() -> None:
    """Beside a weight and rows of the caller a copy of the weight, of 1 MiB, or one of the rows, of 256 n bytes."""
    types = {"w": t(512, 512), "a": t(512, 512), "x": t(N, 64), "y": t(N, 64)}
    inputs = (Input("w", "parameter", "w"), Input("x", "user"))
    nodes = tuple(
        Node(out, "aten.relu.default", (Ref(x),), outputs=(out,)) for x, out in (("w", "a"), ("x", "y"))
    )
    symbols = {"n": Symbol("n", hint=8)}
    report = analyze(
        Graph(nodes, types, inputs, (Output(Ref("y")),), symbols), device="h200", execution="graph"
    )
    (entry,) = report.memory_use
    assert evaluate(entry.requested_peak, {"n": 8}) == 2 * MIB + 256 * 8
    assert evaluate(entry.requested_peak, {"n": 8192}) == (1 + 2 + 2) * MIB
