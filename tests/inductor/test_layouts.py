"""Whether torch.compile turns images so that their channels are last: PyTorch's own `decide_layout_opt` decides the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from graphflops.analysis import as_graph
from graphflops.inductor.layout_choice import prefers_channels_last
from graphflops.passes.bind import bind
from graphflops.passes.price import price


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
