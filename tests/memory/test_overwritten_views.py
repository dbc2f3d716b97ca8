"""Calls that overwrite a view: autograd copies the gradient of the base, predicted against the modules run eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from tests.memory.test_frames import LiveBytes


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
