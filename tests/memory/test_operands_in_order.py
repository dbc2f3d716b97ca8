"""Copies of operands that do not lie in row-major order, as measured on an H200 (PyTorch 2.11), in units of the operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphflops

if TYPE_CHECKING:
    from collections.abc import Callable


class Called(nn.Module):
    """A function of images that are computed, so that their memory can be freed."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(torch.sin(x) * self.scale)


FUNCTIONS = {
    "group norm": lambda x: functional.group_norm(x, 8),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "roll": lambda x: torch.roll(x, (1, 1), (2, 3)),
    "softmax": lambda x: torch.softmax(x, 1),
}


@pytest.mark.parametrize(
    ("function", "in_order", "channels_last"),
    [("group norm", 0, 1), ("layer norm", 0, 1), ("roll", 1, 1), ("softmax", 0, 1)],
)
def test_operands_are_copied_into_row_major_order(function: str, in_order: int, channels_last: int) -> None:
    module = Called(FUNCTIONS[function]).to("meta")
    images = torch.empty(4, 32, 28, 28, device="meta")
    for x, copies in ((images, in_order), (images.to(memory_format=torch.channels_last), channels_last)):
        program = graphflops.capture(module, (x,))
        report = graphflops.analyze(program, execution="eager")
        held = [held.bytes for held in report.memory_use[0].timeline.held if held.kind == "workspace"]
        assert sum(held) == pytest.approx(copies * images.nbytes, rel=0.01)


def test_the_gradient_of_a_group_norm_reads_the_copy_of_its_operand() -> None:
    module = Called(FUNCTIONS["group norm"]).to("meta")
    x = torch.empty(4, 32, 28, 28, device="meta").to(memory_format=torch.channels_last)
    report = graphflops.analyze(graphflops.capture(module, (x,)), training=True, execution="eager")
    kept = [held.bytes for held in report.memory.held if (held.name, held.kind) == ("group_norm", "saved")]
    assert sum(kept) == pytest.approx(x.nbytes, rel=0.01)
    (scaled,) = (held for held in report.memory.held if (held.name, held.kind) == ("mul", "value"))
    assert scaled.last < (report.memory.gradients_from or 0)
