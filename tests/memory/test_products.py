"""Copies that matrix products make, against torch: an operand is copied where `reshape` to three axes is not a view."""

from __future__ import annotations

import pytest
import torch

import graphflops

BATCH, ROWS, HEADS, WIDTH = 3, 7, 4, 8


class Product(torch.nn.Module):
    """A batched product of heads: `packed` heads lie beside one another in each row."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.packed:
            a, b = (z.view(BATCH, ROWS, HEADS, WIDTH).transpose(1, 2) for z in (x, y))
        else:
            a, b = (z.view(BATCH, HEADS, ROWS, WIDTH) for z in (x, y))
        return a @ b.transpose(-1, -2)


class Permuted(torch.nn.Module):
    """A linear layer over channels that are not the last axis in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(HEADS, HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(BATCH, HEADS, ROWS, WIDTH).permute(0, 2, 3, 1))


def peaks(module: torch.nn.Module, *inputs: torch.Tensor) -> list[int]:
    program = graphflops.capture(module, inputs)
    return [graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")]


@pytest.mark.parametrize("packed", [False, True])
def test_a_product_copies_heads_that_lie_beside_one_another(packed: bool) -> None:
    x = torch.empty(BATCH, ROWS, HEADS * WIDTH)
    graph, eager = peaks(Product(packed), x, x.clone())
    copies = 2 * 4 * x.numel() if packed else 0  # both operands, 4 bytes an element
    assert eager - graph == copies


def test_a_linear_layer_copies_what_its_rows_are_not() -> None:
    x = torch.empty(BATCH, HEADS * ROWS * WIDTH)
    graph, eager = peaks(Permuted(), x)
    assert eager - graph == 4 * x.numel()


class Softmax(torch.nn.Module):
    """A softmax over an axis that is not the last in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).softmax(-1)


def test_a_softmax_copies_what_does_not_lie_in_order() -> None:
    x = torch.empty(ROWS, WIDTH)
    graph, eager = peaks(Softmax(), x)
    assert eager - graph == 4 * x.numel()
