"""Convolutions over sequences and shared heads: predicted, against bytes that an H200 measured (PyTorch 2.11, bfloat16)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphflops
from tests.memory.renaming import in_library

HEADER = 147  # bytes of cuDNN's own at most, which are not predicted


class Transposed(nn.Module):
    """A convolution over a sequence whose channels are the innermost axis in memory, as text and speech have them."""

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2))


# By convolution and sequence: the peak of requested bytes during the call less operands and result.
MEASURED = [
    (
        nn.Conv1d(768, 768, 1, groups=4),
        (8, 256, 768),
        9_437_248,
    ),  # operand twice: in row-major order, and back
    (nn.Conv1d(768, 3072, 1, groups=4), (8, 256, 768), 18_874_432),
    (nn.Conv1d(768, 768, 128, stride=2, padding=64, groups=16), (2, 99, 768), 304_128),  # the operand once
]


@pytest.mark.parametrize(("conv", "shape", "measured"), MEASURED, ids=lambda value: str(value)[:60])
def test_sequences_are_copied_into_row_major_order(
    conv: nn.Conv1d, shape: tuple[int, ...], measured: int
) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(Transposed(conv).to("meta", torch.bfloat16), (x,))
    graph, eager = (
        graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")
    )
    assert measured - HEADER <= eager - graph <= measured


BATCH, HEADS, SHARED, LENGTH, WIDTH = 2, 12, 4, 512, 64


class Grouped(nn.Module):
    """Keys and values of few heads, which are repeated because an export has a mask, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False)
        self.k, self.v = (nn.Linear(HEADS * WIDTH, SHARED * WIDTH, bias=False) for _ in range(2))

    def create_causal_mask(self, x: Any) -> Any:
        places = torch.arange(LENGTH)
        return (places[None, :] <= places[:, None])[None, None].expand(x.shape[0], 1, LENGTH, LENGTH)

    def attend(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        k, v = (
            x[:, :, None].expand(-1, -1, HEADS // SHARED, -1, -1).reshape(BATCH, HEADS, LENGTH, WIDTH)
            for x in (k, v)
        )
        return nn.functional.scaled_dot_product_attention(q, k, v, mask)

    def forward(self, x: Any) -> Any:
        mask = self.create_causal_mask(x)
        q, k, v = (
            part(x).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        return self.attend(q, k, v, mask)


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, "math"), (torch.bfloat16, "cudnn")])
def test_heads_that_only_an_export_repeats_are_shared(dtype: torch.dtype, kernel: str) -> None:
    """In float32 no fused kernel takes shared heads; in half precision keys and values stay as they are."""
    model = Grouped().to(dtype)
    program = torch.export.export(model, (torch.zeros(BATCH, LENGTH, HEADS * WIDTH, dtype=dtype),))
    report = graphflops.analyze(in_library(program, "mask("), training=True, device="h200")
    assert [use.kernel for use in report.attentions] == [kernel]
    assert not [held.name for held in report.memory_use[1].timeline.held if held.name.startswith("reshape")]


ROWS, COLUMNS = 512, 1024


class Scaled(nn.Module):
    """A head whose scores are divided, as those of Granite."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(COLUMNS, 8 * COLUMNS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) / 2


class Erf(nn.Module):
    """`erf` has a gradient of four temporary tensors: `2 / sqrt(pi) * exp(-(x ** 2)) * gradient` is one expression."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x * 2) * 2


def step_peak(module: nn.Module) -> int:
    """The peak of a step without an optimizer, in tensors of ROWS x COLUMNS float32 numbers, beyond the input's."""
    x = torch.zeros(ROWS, COLUMNS, requires_grad=True)
    training = graphflops.Training(optimizer="none", grad_inputs=("x",))
    report = graphflops.analyze(torch.export.export(module, (x,)), training=training, execution="eager")
    tensor = ROWS * COLUMNS * 4
    peak = report.value(report.step().peak_bytes) or 0
    assert peak % tensor == 0
    return peak // tensor - 1


def test_the_gradient_of_a_sum_takes_no_memory() -> None:
    """The scores, their gradient, those of the operand and the weight: what divides reads one number, repeated."""
    x, scores, weight = 1, 8, 8 * COLUMNS // ROWS
    assert step_peak(Scaled()) == scores + scores + x + weight


def test_gradients_of_one_expression_hold_all_that_it_makes() -> None:
    """x * 2, the result, and of the gradient: that of the result, four temporary tensors, and what is computed."""
    assert step_peak(Erf()) == 2 + 1 + 4 + 1


class Weighted(nn.Module):
    """A weight for each channel, as norms have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(COLUMNS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.weight


def test_the_gradient_of_a_repeated_operand_is_added_up_from_one_of_all_elements() -> None:
    """Of 8 rows: both results, the gradient of the activation, and that of the weight before and after it is summed."""
    x = torch.zeros(8, COLUMNS)
    training = graphflops.Training(optimizer="none", grad_inputs=("x",))
    report = graphflops.analyze(torch.export.export(Weighted(), (x,)), training=training, execution="eager")
    peak = report.value(report.step().peak_bytes) or 0
    assert peak - x.nbytes == 4 * COLUMNS * (8 + 8 + 8 + 8 + 1)


def test_adafactor_adds_up_columns_in_a_buffer_of_many_blocks() -> None:
    """An H200 measured 138.5 MB in steps of GPT-2, Llama and BERT alike: 132 x 2048 threads with 128 float32 sums each."""
    program = graphflops.capture(
        torch.nn.Linear(768, 32_000, bias=False).to("meta", torch.bfloat16),
        (torch.empty(8, 768, dtype=torch.bfloat16, device="meta"),),
    )
    training = graphflops.Training(optimizer="adafactor")
    report = graphflops.analyze(program, training=training, execution="eager", device="h200")
    made = [held.bytes for held in report.memory_use[1].timeline.held if held.kind == "temporary"]
    assert sum(made) == pytest.approx(132 * 2048 * 128 * 4, rel=1e-3)
