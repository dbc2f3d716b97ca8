"""Memory of layers of experts on two devices, against what an H200 allocated with torch 2.11 (functional collectives)."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import Training
from graphflops.analysis import analyze
from tests.process_group import first_of

WIDTH, ROWS = 2048, 8192
INFERENCE, STEP = 503_414_784, 2_349_301_764  # measured, beyond weights and inputs


def _program(torch: Any, exchange: Any) -> Any:
    """Three layers, exported: rows are sent to the device of their expert, and back."""
    from torch import nn

    def linear(inputs: int, outputs: int) -> Any:
        return nn.Linear(inputs, outputs, bias=False)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = 4 * WIDTH
            self.gate, self.up, self.down = (
                linear(WIDTH, hidden),
                linear(WIDTH, hidden),
                linear(hidden, WIDTH),
            )

        def forward(self, x: Any) -> Any:
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.routers = nn.ModuleList(linear(WIDTH, 2) for _ in range(3))
            self.experts = nn.ModuleList(Gated() for _ in range(3))
            self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))

        def forward(self, x: Any) -> Any:
            for router, expert, norm in zip(self.routers, self.experts, self.norms, strict=True):
                y = norm(x)
                p = router(y).softmax(-1)
                order = p[:, 0].argsort(descending=True)
                z = y[order]
                z = exchange.all_to_all_single_autograd(z, None, None, "0")
                z = expert(z)
                z = exchange.all_to_all_single_autograd(z, None, None, "0")
                x = x.index_add(0, order, z * p.amax(-1, keepdim=True)[order])
            return x

    with torch.device("meta"):
        model, x = Experts().to(torch.bfloat16), torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)
    return torch.export.export(model, (x,), strict=False)


def test_peaks_are_those_measured() -> None:
    with first_of(2) as (torch, exchange):
        exported = _program(torch, exchange)
    report = analyze(exported, device="h200", execution="eager", training=Training(optimizer="none"))
    step = report.step()
    assert step is not None
    peaks = [
        (report.value(peak) or 0) - ROWS * WIDTH * 2 for peak in (report.totals.peak_bytes, step.peak_bytes)
    ]
    assert peaks == pytest.approx([INFERENCE, STEP], rel=1e-3)
