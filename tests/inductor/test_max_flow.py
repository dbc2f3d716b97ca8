"""Minimum cuts against networkx, on random graphs."""

from __future__ import annotations

import random

import networkx
import pytest

from graphflops.inductor.partition import SINK, SOURCE, FlowGraph


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_has_the_capacity_that_networkx_finds(seed: int) -> None:
    drawn = random.Random(seed)
    own, other = FlowGraph(), networkx.DiGraph()
    nodes = [SOURCE, SINK, *(own.new() for _ in range(10))]
    other.add_nodes_from(nodes)
    edges = {(drawn.choice(nodes), drawn.choice(nodes)): drawn.randint(1, 9) for _ in range(35)}
    edges = {pair: capacity for pair, capacity in edges.items() if pair[0] != pair[1]}
    for (tail, head), capacity in edges.items():
        own.connect(tail, head, capacity)
        other.add_edge(tail, head, capacity=capacity)
    beyond = own.beyond_cut()
    assert SINK in beyond
    assert SOURCE not in beyond
    cut = sum(capacity for (tail, head), capacity in edges.items() if tail not in beyond and head in beyond)
    assert cut == networkx.maximum_flow_value(other, SOURCE, SINK)


def test_of_equal_cuts_it_is_the_one_nearest_to_the_sink() -> None:
    graph = FlowGraph()
    middle = graph.new()
    graph.connect(SOURCE, middle, 3)
    graph.connect(middle, SINK, 3)
    assert graph.beyond_cut() == {SINK}
