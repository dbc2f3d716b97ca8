"""Whether torch.compile turns images so that their channels are last: PyTorch's own `decide_layout_opt` decides the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from graphflops.analysis import as_graph
from graphflops.inductor.library_calls import _nodes, prefers_channels_last
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.inductor.one_call import plan_of
from tests.support import t


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(96, 128, 3),),
        (nn.Conv2d(96, 16, 3), nn.Conv2d(16, 8, 2)),  # small, and half as many results as channels
        (nn.Conv2d(96, 128, 3), nn.Conv2d(128, 64, 3)),
        (nn.Conv2d(96, 64, 1), nn.Conv2d(64, 128, 1)),
        (nn.Conv2d(96, 96, 3, groups=96), nn.Conv2d(96, 192, 1)),
        (nn.Conv2d(96, 96, 3, groups=4),),
    ],
)
def test_the_choice_is_that_of_pytorch(layers, training):
    from torch._inductor.graph import GraphLowering

    module, images = nn.Sequential(*layers).eval(), torch.empty(2, 96, 16, 16)
    program = torch.export.export(module, (images,)).run_decompositions()
    with torch.backends.mkldnn.flags(enabled=False):
        expected = GraphLowering.decide_layout_opt(program.graph_module, is_inference=not training)
    graph = as_graph(graphflops.capture(module, (images,)))
    priced = price(graph, bind(graph, {}, {}))
    calls, values = priced.main.calls, priced.main.values
    assert prefers_channels_last(calls, values, len(graph.inputs), training=training) == expected


@pytest.mark.parametrize(
    ("op", "operands", "nodes"),
    [
        ("dropout.default", (t(4, 8), 0.1, False), 0),  # in evaluation nothing is left of it
        ("dropout.default", (t(4, 8), 0.1, True), 1),
        ("linear.default", (t(4, 8), t(6, 8)), 4),
        ("relu.default", (t(4, 8),), 1),
        ("gelu.default", (t(4, 8),), 6),
    ],
)
def test_nodes_that_pytorch_counts(op, operands, nodes):
    (call,) = plan_of(f"aten.{op}", *operands).execution.calls
    assert _nodes(call) == nodes
