"""Memory of attention by kernel: the unfused kernel's scores, and masks that a library builds only while it exports.

Bytes measured are those of an H200 with PyTorch 2.11: requested during the call, less operands and result.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphflops
from graphflops.dims import symbol
from graphflops.memory.on_gpu import say_unfused
from tests.memory.renaming import in_library
from tests.one_call import g, program_of
from tests.support import t

MIB = 2**20


class Biased(torch.nn.Module):
    """Attention with a table of positions whose last axis does not lie in order, as in T5."""

    def __init__(self, heads: int, keys: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.empty(keys, keys, heads, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = x.view(batch, length, -1, 64).transpose(1, 2)
        mask = self.bias.permute(2, 0, 1)[None]
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)
        return out.transpose(1, 2).reshape(batch, length, width)


def attention_workspace(batch: int, heads: int, keys: int) -> int:
    x = torch.empty(batch, keys, heads * 64, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(Biased(heads, keys).to("meta"), (x,))
    report = graphflops.analyze(program, execution="eager")
    buffers = [
        held.bytes for held in report.memory.held if held.kind == "workspace" and "scaled_dot" in held.name
    ]
    return sum(size for size in buffers if isinstance(size, int))


def test_the_unfused_kernel_stores_scores_in_single_precision() -> None:
    """T5: three operands of 4 MiB in float32, the scaled query, scores and probabilities of 16 MiB, a truth value each."""
    assert attention_workspace(8, 8, 256) == (3 * 4 + 4 + 2 * 16 + 16 // 4 - 2) * MIB


def create_bidirectional_mask(x: torch.Tensor) -> torch.Tensor:
    """A mask that hides nothing, made from sizes alone, as transformers makes it while exporting."""
    places = torch.arange(x.shape[1], device=x.device)
    return (places >= 0)[None, None, None].expand(x.shape[0], 1, x.shape[1], x.shape[1])


class Masked(torch.nn.Module):
    """Attention with a mask that eager execution does not build."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = create_bidirectional_mask(x)
        heads = x.view(*x.shape[:2], -1, 64).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)
        return out.transpose(1, 2).flatten(2)


class Unmasked(torch.nn.Module):
    """The same without a mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(*x.shape[:2], -1, 64).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("training", [False, True])
def test_a_mask_built_while_exporting_takes_no_memory(training: bool) -> None:
    x = torch.empty(4, 128, 256, dtype=torch.bfloat16, device="meta")
    masked, unmasked = (graphflops.capture(module, (x,)) for module in (Masked(), Unmasked()))
    peaks = [
        graphflops.analyze(model, execution="eager", training=training).totals.peak_bytes
        for model in (in_library(masked, "mask("), unmasked, masked)
    ]
    assert peaks[0] == peaks[1] < peaks[2]


@pytest.mark.parametrize(
    ("operand", "scores", "said"),
    [
        (
            t(4),
            [10**6],
            "1 attention runs unfused and stores its scores in float32, up to 1.000 MB at a time: odd",
        ),
        (
            t(4),
            [10**6, 2 * 10**6],
            "2 attentions run unfused and store their scores in float32, up to 2.000 MB at a time: odd",
        ),
        (
            g(4),
            [10**6, 2 * 10**6],
            "2 attentions run unfused and store their scores in float32, 3.000 MB of them kept for the gradients: odd",
        ),
        (t(4), [symbol("n")], "1 attention runs unfused and stores its scores in float32: odd"),
        (g(4), [symbol("n")], "1 attention runs unfused and stores its scores in float32: odd"),
    ],
)
def test_scores_are_kept_for_the_gradients_or_one_at_a_time(
    operand: Any, scores: list[Any], said: str
) -> None:
    program = program_of("aten.relu.default", operand)
    say_unfused(program, "flash: odd", scores, {})
    (note,) = [one for one in program.notes.found.values() if one.code == "GF122"]
    assert note.message == said
