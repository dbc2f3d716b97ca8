"""Calls that overwrite a view: autograd copies the gradient of the base, predicted against the modules run eagerly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphflops
from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.memory.on_gpu import Eager
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import FLOAT32
from tests.memory.one_call import eager
from tests.memory.test_frames import LiveBytes
from tests.one_call import g
from tests.support import t


class Normed(nn.Module):
    """An instance norm returns a view of a batch norm's result."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.norm, self.act = nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU(0.1, inplace=inplace)
        self.scale = nn.Parameter(torch.ones(1, 8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.act(self.norm(x * self.scale)))


class Viewed(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(32, 32), nn.ReLU(inplace=inplace)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.act(self.linear(x).view(16, 4, 64, 32)))


@pytest.mark.parametrize("make", [Normed, Viewed])
def test_the_gradient_of_a_base_and_of_its_view_are_copied(make: type[Normed | Viewed]) -> None:
    x = torch.randn(16, 8, 32, 32)
    peaks = []
    for inplace in (False, True):
        module = make(inplace)
        program = torch.export.export(module, (x,))
        training = graphflops.Training(optimizer="none")
        step = graphflops.analyze(program, execution="eager", training=training).step()
        assert step is not None
        with LiveBytes((x, *module.parameters())) as ran:
            out = module(x)
            out.sum().backward()
        assert step.peak_bytes - x.nbytes == pytest.approx(ran.peak, rel=0.001)  # statistics apart
        peaks.append(step.peak_bytes)
    assert peaks[1] - peaks[0] == 2 * x.nbytes


V, B = {"v"}, {"v", "b"}


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("relu", ("v",), V),  # a tensor of its own
        ("relu_", ("v",), B),
        ("relu_", ("a",), V),  # no view is written
        ("add_.Tensor", ("v", "w"), B),
        ("add_.Tensor", ("w", "v"), V),  # a view is only read
        ("dropout", ("v", 0.1, False), B),  # does nothing
        ("to.dtype", ("v", FLOAT32), B),
        ("transpose.int", ("v", 0, 1), B),
        ("transpose.int", ("a", 0, 1), B),
        ("reshape", ("turned", (32,)), {"v", "turned"}),  # has to be copied
    ],
)
def test_which_results_autograd_takes_for_views(op: str, given: tuple[Any, ...], expected: set[str]) -> None:
    """b is made of a, of its view v, of w, or of what transposes a."""
    nodes = [
        Node("a", "aten.sin.default", (Ref("x"),), outputs=("a",)),
        Node("w", "aten.cos.default", (Ref("x"),), outputs=("w",)),
        Node("v", "aten.view.default", (Ref("a"), (4, 8)), outputs=("v",)),
    ]
    if "turned" in given:
        nodes.append(Node("turned", "aten.transpose.int", (Ref("a"), 0, 1), outputs=("turned",)))
    name = op if "." in op else f"{op}.default"
    args = tuple(Ref(x) if isinstance(x, str) else x for x in given)
    nodes.append(Node("b", f"aten.{name}", args, outputs=("b",)))
    graph = Graph(tuple(nodes), {"x": t(4, 8)}, (Input("x", "user"),), (Output(Ref("b")),))
    main = price(graph, bind(graph, {}, {}), facts_of).main
    assert Eager(main, False, Runs((), HOPPER, is_eager=True)).views == expected


@pytest.mark.parametrize(("operand", "copied"), [(g(2, 3), 2 * 4 * 2 * 3), (t(2, 3), 0)])
def test_the_gradient_of_an_overwritten_view_is_copied_where_there_is_one(operand: Any, copied: int) -> None:
    execution, call = eager("aten.relu_.default", operand)
    assert execution.copied_slices(call) == 0  # no view
    execution.views = frozenset({"x0"})
    assert execution.copied_slices(call) == copied
