"""The numbers of torch's `test/test_flop_counter.py`, by our rules; docs/torch_tests.md names them one by one."""

from __future__ import annotations

import torch

import graphflops
from tests.support import price, t


def flops(op: str, *args: object, **kwargs: object) -> object:
    return price(op, *args, **kwargs).cost.matrix_flops


def counted(module: torch.nn.Module, *inputs: torch.Tensor, training: bool = False) -> object:
    report = graphflops.analyze(torch.export.export(module, inputs), training=training)
    return report.totals.cost.matrix_flops + (report.backward.cost.matrix_flops if report.backward else 0)


def test_variety() -> None:
    parts = (
        flops("aten.mm.default", t(4, 5), t(5, 6)),
        flops("aten.addmm.default", t(4, 6), t(4, 5), t(5, 6), beta=0.5, alpha=0.5),
        flops("aten.matmul.default", t(5, 6), t(6, 7)),
        flops("aten.einsum.default", "ab,bc->ac", (t(6, 7), t(7, 8))),
        flops("aten.linear.default", t(8, 9), t(10, 9), t(10)),
    )
    assert sum(parts) == 3012


def test_products() -> None:
    assert flops("aten.mm.default", t(4, 5), t(5, 6)) == 240
    assert flops("aten.bmm.default", t(3, 4, 5), t(3, 5, 6)) == 720
    shapes = ((4, 6), (4, 1), (6,))
    assert sum(flops("aten.addmm.default", t(*shape), t(4, 5), t(5, 6)) for shape in shapes) == 720
    assert flops("aten.baddbmm.default", t(3, 4, 6), t(3, 4, 5), t(3, 5, 6)) == 720
    assert flops("aten.mm.default", t(10, 10), t(10, 10)) == 2000


def test_convolutions() -> None:
    pads = {"padding": (1, 1)}
    assert flops("aten.conv2d.default", t(2, 3, 6, 6), t(6, 3, 4, 4), None, (1, 1), **pads) == 28800
    assert flops("aten.conv1d.default", t(2, 3, 6), t(6, 3, 4), None, (1,), padding=(1,)) == 1440


def test_first_layer_of_a_residual_network() -> None:
    """Four convolutions of 64 by 64 channels, 3 x 3, over 56 x 56 pixels; their gradients are twice as much."""
    each = price("aten.conv2d.default", t(1, 64, 56, 56), t(64, 64, 3, 3), None, (1, 1), padding=(1, 1))
    assert 4 * each.cost.matrix_flops == 924844032


def test_transposed_convolution() -> None:
    """50 steps of 4 x 8 channels and 2 x 2 taps over 30 x 2 pixels: forward and the gradient of the weight."""
    forward = flops("aten.conv_transpose2d.input", t(1, 4, 30, 2), t(4, 8, 2, 2), None, (2, 2))
    assert 50 * 2 * forward == 1536000


def test_backward() -> None:
    class Products(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.randn(4, 5))

        def forward(self, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return torch.bmm(torch.mm(self.a, b).unsqueeze(0).expand(7, 4, 6), c)

    found = counted(Products(), torch.randn(5, 6), torch.randn(7, 6, 7), training=True)
    assert found == 5184  # 240 + 2,352, and as much again: b and c need no gradient


def test_no_products() -> None:
    assert flops("aten.cos.default", t(4, 5)) == 0


def test_attention() -> None:
    """Batch 4, 8 heads, width 64: 128 queries and 128 keys, then 256; torch counts a causal mask's scores too."""
    op = "aten.scaled_dot_product_attention.default"
    q, k = t(4, 8, 128, 64, dtype="float16"), t(4, 8, 256, 64, dtype="float16")
    assert flops(op, q, q, q, None, 0.0, True) == 134217728
    assert flops(op, q, k, k, None, 0.0, True) == 268435456


def test_backward_of_two_products() -> None:
    """`x x` twice over: 2,000 FLOPs each, and two gradients of each."""

    class Square(torch.nn.Module):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.randn(10, 10))
            self.times = times

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            x = self.x + y
            for _ in range(self.times):
                x = torch.mm(x, x)
            return x

    assert counted(Square(2), torch.randn(10, 10), training=True) == 12000
    assert counted(Square(1), torch.randn(10, 10), training=True) == 6000
