"""Times of recurrent layers against graphs of them on an H200 with torch 2.11 (microseconds)."""

from __future__ import annotations

import pytest
import torch

import graphflops
from graphflops.devices import device
from graphflops.kernels.kernel import Kernel, Pass, Recurrence
from graphflops.time.predict import predict

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# Cell, element type, batch, steps, inputs, hidden, layers, directions; of one and the same graph.
_FORWARD = [
    (("lstm", "bfloat16", 224, 14, 192, 48, 1, 2), 127),
    (("lstm", "bfloat16", 14, 7, 512, 128, 1, 2), 71),
    (("lstm", "bfloat16", 32, 100, 512, 64, 1, 1), 506),
    (("gru", "bfloat16", 2, 512, 256, 256, 2, 1), 4077),
    (("lstm", "bfloat16", 1, 200, 512, 512, 3, 1), 2118),
    (("lstm", "float32", 128, 32, 256, 64, 1, 2), 72),
    (("lstm", "float32", 896, 56, 512, 128, 1, 2), 2149),
    (("rnn", "float32", 1, 200, 384, 384, 1, 1), 1804),
]
_GRADIENTS = [
    (("lstm", "float32", 128, 32, 256, 64, 1, 2), 121),
    (("gru", "bfloat16", 1024, 2, 512, 48, 2, 1), 103),
    (("lstm", "float32", 16, 200, 512, 192, 2, 1), 3671),
]


def microseconds(layers: tuple[str, str, int, int, int, int, int, int], phase: Pass) -> float:
    """Predicted time of a stack of layers."""
    cell, dtype, batch, steps, inputs, hidden, count, directions = layers
    sizes = Recurrence(steps, batch, inputs, hidden, _GATES[cell], count, directions, phase)
    return predict(Kernel("recurrence", dtype, 1, 0, 4, 4, sizes), device("h200")).seconds * 1e6


@pytest.mark.parametrize(("layers", "measured"), _FORWARD)
def test_layers_take_about_as_long_as_measured(
    layers: tuple[str, str, int, int, int, int, int, int], measured: float
) -> None:
    assert microseconds(layers, "forward") == pytest.approx(measured, rel=0.35)


@pytest.mark.parametrize(("layers", "measured"), _GRADIENTS)
def test_gradients_take_about_as_long_as_measured(
    layers: tuple[str, str, int, int, int, int, int, int], measured: float
) -> None:
    assert microseconds(layers, "backward") == pytest.approx(measured, rel=0.35)


def test_a_weight_that_fits_the_registers_stays_there_in_float32_only() -> None:
    """128 x 512 elements stay on chip; PyTorch gives cuDNN no such kernel for bfloat16, which takes two kernels a step."""
    single = microseconds(("lstm", "float32", 32, 100, 128, 128, 1, 1), "forward")
    half = microseconds(("lstm", "bfloat16", 32, 100, 128, 128, 1, 1), "forward")
    assert half > 1.5 * single


def test_directions_run_beside_each_other() -> None:
    one = microseconds(("lstm", "bfloat16", 8, 200, 64, 64, 1, 1), "forward")
    both = microseconds(("lstm", "bfloat16", 8, 200, 64, 64, 1, 2), "forward")
    assert one < both < 1.7 * one


class Cells(torch.nn.Module):
    """A cell over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(0):
            state = self.cell(step, state)
        assert state is not None
        return state[0]


def test_a_cell_is_two_products_and_a_kernel_for_the_gates() -> None:
    """Measured: 260 us for 32 steps of 8 sequences, of which 64 products 146 and 32 cells 66."""
    program = graphflops.capture(Cells().to(torch.bfloat16), (torch.zeros(32, 8, 512, dtype=torch.bfloat16),))
    report = graphflops.analyze(program, device="h200", execution="graph")
    assert report.totals.time is not None
    assert report.totals.time.seconds * 1e6 == pytest.approx(260, rel=0.25)
    cells = [row for row in report.rows if "cell" in row.op]
    assert {row.time.kernel for row in cells if row.time is not None} == {"matmul, elementwise"}
