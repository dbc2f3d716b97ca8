"""Memory of cuDNN's recurrent layers: requested bytes that an H200 measured with PyTorch 2.11, less results and states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphflops
from graphflops.kernels.products import Recurrent
from tests.memory.one_call import eager
from tests.one_call import g
from tests.support import t
from tests.time.one_call import one_call

UNIT = 16 * 128 * 512  # steps of all sequences, hidden states
FEW = 5  # steps, with which layers are exported: for each, torch computes the types of all its calls

MEASURED = [  # layers, both directions, element type; units of the reserve and of the workspace with the weights
    (1, False, torch.bfloat16, 7.04, 12.09),
    (2, False, torch.bfloat16, 15.07, 18.16),
    (3, False, torch.bfloat16, 23.11, 24.23),
    (2, True, torch.bfloat16, 32.14, 41.38),
    (2, False, torch.float32, 11.06, 14.16),
    (2, True, torch.float32, 22.13, 33.38),
]


@pytest.mark.parametrize(("layers", "both", "dtype", "reserve", "workspace"), MEASURED)
def test_reserve_and_workspace(
    layers: int, both: bool, dtype: torch.dtype, reserve: float, workspace: float
) -> None:
    module = nn.LSTM(512, 512, layers, bidirectional=both).to("meta", dtype)
    x = torch.empty(FEW, 16, 512, dtype=dtype, device="meta")
    training = graphflops.Training(loss="given", grad_inputs=("input",))
    program = graphflops.capture(module, (x,))
    report = graphflops.analyze(program, dims={"input[0]": 128}, training=training, execution="eager")
    unit = UNIT * dtype.itemsize
    kinds = {
        kind: max(held.bytes for held in report.memory.held if held.kind == kind and "lstm" in held.name)
        for kind in ("saved", "workspace")
    }
    assert kinds["saved"] / unit == pytest.approx(reserve, abs=0.3)
    assert kinds["workspace"] / unit == pytest.approx(workspace, abs=0.6)


def test_a_gru_of_several_layers() -> None:
    """The H200 requested 135,061,056 bytes beyond weights and input; with what LSTMs need it would be 139 MB."""
    module, x = (
        nn.GRU(768, 768, 3, batch_first=True).to("meta", torch.bfloat16),
        torch.empty(8, FEW, 768, dtype=torch.bfloat16, device="meta"),
    )
    program = graphflops.capture(module, (x,))
    report = graphflops.analyze(program, dims={"input[1]": 200}, execution="eager")
    assert report.totals.peak_bytes - x.nbytes // FEW * 200 == pytest.approx(135_061_056, rel=0.015)


# Inputs, hidden units, layers, both directions, sequences, steps, type; bytes requested in inference and in training.
PLAIN = [
    (320, 192, 1, False, 128, 178, torch.float32, 160_924_928, 341_935_616),  # weights on chip
    (345, 768, 1, False, 64, 101, torch.float32, 81_087_488, 149_973_504),
    (448, 559, 2, True, 50, 71, torch.float16, 83_768_056, 127_085_400),
]


@pytest.mark.parametrize("measured", PLAIN)
def test_layers_without_gates(measured: tuple[Any, ...]) -> None:
    """Beyond weights and operands: the result, the reserve and the workspace, to which few states are not added."""
    *sizes, dtype, inference, training = measured
    inputs, hidden, layers, both, batch, steps = sizes
    directions = 1 + both
    widths = [inputs, *[hidden * directions] * (layers - 1)]
    weights = tuple(
        [
            g(*shape, dtype=str(dtype)[6:])
            for width in widths
            for _ in range(directions)
            for shape in ((hidden, width), (hidden, hidden), (hidden,), (hidden,))
        ]
    )
    x = g(steps, batch, inputs, dtype=str(dtype)[6:])
    state = g(layers * directions, batch, hidden, dtype=str(dtype)[6:])
    for is_training, requested in ((False, inference), (True, training)):
        call = one_call(
            "aten.rnn_tanh.input", x, state, weights, True, layers, 0.0, is_training, both, False, outputs=2
        )
        found = Recurrent.of(call.call, call.values)
        assert found is not None
        result = steps * batch * hidden * directions * dtype.itemsize
        assert found.reserve + found.workspace + result == pytest.approx(requested, rel=0.02)


class GruAndLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(256, 256, batch_first=True), nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(x)[0])


def test_forward_and_backward_of_a_gru_with_the_batch_first() -> None:
    """The H200 requested 44,994,516 bytes beyond weights and input: gradients of input and result are copied once more."""
    module, x = (
        GruAndLinear().to("meta", torch.bfloat16),
        torch.empty(16, FEW, 256, dtype=torch.bfloat16, device="meta"),
    )
    training, program = graphflops.Training(optimizer="none"), graphflops.capture(module, (x,))
    report = graphflops.analyze(program, dims={"x[1]": 200}, training=training, execution="eager")
    step = report.step()
    assert step is not None
    assert step.peak_bytes - x.nbytes // FEW * 200 == pytest.approx(44_994_516, rel=0.01)


@pytest.mark.parametrize(("name", "gates", "around"), [("lstm", 4, 4 + 4 + 4), ("gru", 3, 3 + 3 + 5)])
def test_a_cell_makes_both_products_and_what_its_gradient_reads(name: str, gates: int, around: int) -> None:
    """For each row and hidden unit: gates of operand and state, and the kernel's workspace. Autograd keeps all of them."""
    weights = [(gates * 16, 8), (gates * 16, 16), (gates * 16,), (gates * 16,)]
    for make, is_kept in ((t, False), (g, True)):
        state = make(5, 16)
        given = make(5, 8), (state, make(5, 16)) if name == "lstm" else state
        execution, call = eager(f"aten.{name}_cell.default", *given, *(make(*shape) for shape in weights))
        bytes_around = around * 5 * 16 * 4
        assert execution.forward_bytes(call, 0) == (0 if is_kept else bytes_around)
        assert execution.saved_bytes(call) == (bytes_around if is_kept else 0)
