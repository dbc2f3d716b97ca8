"""Memory of attention by kernel: the unfused kernel's scores, and masks that a library builds only while it exports.

Bytes measured are those of an H200 with PyTorch 2.11: requested during the call, less operands and result.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import graphflops
from graphflops.devices import HOPPER
from graphflops.dims import symbol
from graphflops.execution.runs import Runs
from graphflops.memory.on_gpu import Eager, say_unfused
from graphflops.passes.memory import memory_use
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


def test_the_unfused_kernel_stores_scores_in_single_precision() -> None:
    """T5: three operands of 4 MiB in float32, the scaled query, scores and probabilities of 16 MiB, a truth value each."""
    x = torch.empty(8, 256, 8 * 64, dtype=torch.bfloat16, device="meta")
    report = graphflops.analyze(graphflops.capture(Biased(8, 256).to("meta"), (x,)), execution="eager")
    rows = 8 * 8 * 256  # whether all of a row is hidden
    given = sum(entry.type.nbytes for entry in report.inputs)
    assert report.totals.peak_bytes - given == (3 * 4 + 4 + 2 * 16 + 16 // 4) * MIB + rows


def kept(*operands: Any, **more: Any) -> int:
    """Bytes that one attention keeps for its gradients, beside its operands and result."""
    program = program_of("aten.scaled_dot_product_attention.default", *operands, **more)
    step = memory_use(program, partial(Eager, runs=Runs((), HOPPER, is_eager=True))).step
    assert step is not None
    assert step.gradients_from is not None
    found = [
        held for held in step.held if held.first < step.gradients_from <= held.last and held.name != "y0"
    ]
    return sum(
        held.bytes for held in found if held.kind in ("value", "saved") and isinstance(held.bytes, int)
    )


Q, S = 2 * 4 * 256 * 64, 2 * 4 * 256 * 256


def test_an_unfused_attention_keeps_what_its_products_read_and_the_probabilities() -> None:
    """Of float32: the scaled query, keys and values repeated for each query head."""
    query, key = g(2, 4, 256, 64), g(2, 2, 256, 64)
    assert kept(query, key, key, enable_gqa=True) == 4 * (3 * Q + S)


@pytest.mark.parametrize(("dropout", "scores"), [(0.0, 4), (0.1, 4 + 4 + 1)])
def test_dropout_keeps_scores_and_which_of_them_it_kept(dropout: float, scores: int) -> None:
    """Heads of 300 fit into no fused kernel of half precision, so all of it is in float32."""
    operands = [g(2, 4, 64, 300, dtype="bfloat16") for _ in range(3)]
    assert kept(*operands, None, dropout) == 4 * 3 * (2 * 4 * 64 * 300) + scores * (2 * 4 * 64 * 64)


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
