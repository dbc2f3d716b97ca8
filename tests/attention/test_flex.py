"""Flexible attention, counted from its functions: each compared with an evaluation of every pair."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from graphflops.analysis import analyze
from graphflops.attention import AttentionUse
from graphflops.dims import evaluate
from graphflops.report import Row
from tests.runtime import flex_cases
from tests.runtime.flex_cases import CASES, Case, Sizes

if TYPE_CHECKING:
    from collections.abc import Sequence


CPU = torch.device("cpu")
SIZES = Sizes(batch=2, heads=4, key_heads=2, queries=50, keys=71, width=8, value_width=4)
SCORES = 2 * 4 * 50 * 71
PAIR = 2 * (8 + 4)  # FLOPs
BLOCK = (16, 32)
FORWARD, BACKWARD = "higher_order.flex_attention", "higher_order.flex_attention_backward"
MADE_INSIDE = [flex_cases.case(name) for name in ("identity", "natten 2d", "jagged causal")]


class Attention(torch.nn.Module):
    """Attention for every case, its mask of blocks made in the program or before it."""

    def __init__(self, cases: Sequence[Case], sizes: Sizes, inside: bool) -> None:
        super().__init__()
        self.sizes, self.inside = sizes, inside
        self.functions = [case.make(sizes, CPU) for case in cases]
        self.masks = [self.made(mask) or self.empty() for _, mask in self.functions]

    def made(self, mask: Any) -> Any:
        sizes = (self.sizes.batch, self.sizes.heads, self.sizes.queries, self.sizes.keys)
        return mask and flex.create_block_mask(mask, *sizes, device="cpu", BLOCK_SIZE=BLOCK)

    def empty(self) -> Any:
        """torch's mask for want of one."""
        q, k, _ = flex_cases.operands(self.sizes, torch.float32, CPU)[:3]
        return flex._create_empty_block_mask(q, k)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        masks = [self.made(mask) for _, mask in self.functions] if self.inside else self.masks
        return [
            flex.flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True)
            for (score, _), mask in zip(self.functions, masks, strict=True)
        ]


def export(module: torch.nn.Module, sizes: Sizes = SIZES, **how: Any) -> Any:
    operands = flex_cases.operands(sizes, torch.float32, CPU)[:3]
    with torch.no_grad():
        return torch.export.export(module, tuple(operands), **{"strict": False, **how})


Found = dict[str, tuple[AttentionUse, Row]]


def found(cases: Sequence[Case], inside: bool, **how: Any) -> Found:
    """By case, what the report says of its attention."""
    report = analyze(export(Attention(cases, SIZES, inside), **how))
    assert not report.diagnostics
    assert not report.coverage.unknown_ops
    rows = [row for row in report.rows if row.op == FORWARD]
    each = zip(report.attentions, rows, strict=True)
    return dict(zip(map(str, cases), each, strict=True))


@pytest.fixture(scope="module")
def given() -> Found:
    return found(CASES, inside=False, strict=True)


@pytest.fixture(scope="module")
def made() -> Found:
    return found(MADE_INSIDE, inside=True)


def visible(case: Case, sizes: Sizes = SIZES) -> int:
    """Pairs for which the mask is true and the score does not come out as minus infinity."""
    score, mask = case.make(sizes, CPU)
    seen = flex_cases.seen(mask, sizes, CPU)
    if score is not None:
        scores = torch.full((sizes.batch, sizes.heads, sizes.queries, sizes.keys), 0.5)
        seen = seen & ~torch.isneginf(score(scores, *flex_cases.places(sizes, CPU)))
    return int(seen.sum())


def blocks(case: Case) -> tuple[int | None, int | None]:
    """Blocks with some and with only visible pairs; None where there is no mask."""
    mask = case.make(SIZES, CPU)[1]
    if mask is None:
        return None, None
    seen = flex_cases.seen(mask, SIZES, CPU)
    padded = torch.nn.functional.pad(seen, (0, -SIZES.keys % BLOCK[1], 0, -SIZES.queries % BLOCK[0]))
    pairs = padded.unflatten(2, (-1, BLOCK[0])).unflatten(4, (-1, BLOCK[1])).sum((3, 5))
    whole = BLOCK[0] * BLOCK[1]
    return int(((pairs > 0) & (pairs < whole)).sum()), int((pairs == whole).sum())


def check(case: Case, use: AttentionUse, row: Row) -> None:
    assert use.flops == row.cost.matrix_flops == PAIR * SCORES
    assert use.masked_flops == row.cost.masked_flops
    assert use.flops - use.masked_flops == PAIR * visible(case)
    assert (use.partial_blocks, use.full_blocks) == blocks(case)
    assert (use.mask == "none") == (visible(case) == SCORES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lists_of_blocks_given(case: Case, given: Found) -> None:
    check(case, *given[str(case)])


@pytest.mark.parametrize("case", MADE_INSIDE, ids=str)
def test_lists_of_blocks_made_in_the_program(case: Case, made: Found) -> None:
    check(case, *made[str(case)])


def test_the_lengths_are_symbols() -> None:
    """Causal by the mask, and by the scores: half a square each, its diagonal with it."""
    lines = torch.export.Dim("lines", min=2, max=40)
    sizes = replace(SIZES, queries=64, keys=64)
    report = analyze(export(Growing(), sizes, dynamic_shapes=({2: 16 * lines},) * 3))
    assert len(report.attentions) == 2
    (name,) = report.symbols
    for count in (2, 3, 7):
        length, heads = 16 * count, 2 * 4
        for use in report.attentions:
            pairs = evaluate(use.flops - use.masked_flops, {name: count})
            assert pairs == PAIR * heads * length * (length + 1) // 2
        of_mask = report.attentions[0]
        found = [evaluate(blocks, {name: count}) for blocks in (of_mask.partial_blocks, of_mask.full_blocks)]
        assert found == [heads * count, heads * count * (count - 1) // 2]


class Growing(torch.nn.Module):
    """Causal attention of any length that is a multiple of a block's."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        length = q.shape[2]
        causal = flex.create_block_mask(
            lambda b, h, i, j: i >= j, None, None, length, length, device="cpu", BLOCK_SIZE=16
        )
        first = flex.flex_attention(q, k, v, block_mask=causal, enable_gqa=True)
        scored = flex_cases.case("causal").make(SIZES, CPU)[0]
        return first, flex.flex_attention(q, k, v, score_mod=scored, enable_gqa=True)


class Loss(torch.nn.Module):
    """A loss of causal attention under a score function, in front of which something is trained."""

    def __init__(self, score: Any) -> None:
        super().__init__()
        self.score = score
        self.linear = torch.nn.Linear(8, 24, bias=False)
        self.causal = flex.create_block_mask(
            lambda b, h, i, j: i >= j, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=16
        )

    def forward(self, x: Any) -> Any:
        q, k, v = self.linear(x).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        return flex.flex_attention(q, k, v, score_mod=self.score, block_mask=self.causal).sum()


EXECUTED, ASKED, VISIBLE = 2 * 10 * 16 * 16, 2 * 4 * 16 * 16, 2 * 64 * 65 // 2  # pairs of two batch entries
SOFTMAX, SCALE, SELECT = 4, 1, 1


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.export.experimental import _export_forward_backward

    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # torch does not run gradients on a CPU
    program = torch.export.export(Loss(lambda s, b, h, i, j: s * s), (torch.randn(2, 64, 8),), strict=True)
    report = analyze(_export_forward_backward(program))
    forward, backward = (next(row.cost for row in report.rows if row.op == op) for op in (FORWARD, BACKWARD))
    assert forward.matrix_flops - forward.masked_flops == 2 * (8 + 8) * VISIBLE
    assert backward.matrix_flops - backward.masked_flops == 5 * 2 * 8 * VISIBLE
    assert forward.vector_flops == EXECUTED * (SCALE + SOFTMAX + 1) + ASKED * (1 + SELECT)
    # Scores, weights and softmax's gradient anew: 1 + 1 + 3; the score function; its gradient, a sum of two products.
    gradient = EXECUTED * (1 + 1 + 3 + 1 + 3) + ASKED * (1 + SELECT)
    assert backward.vector_flops == gradient + 2 * (2 * 64 * 8)  # and row sums of the result
    assert forward.transcendentals == backward.transcendentals == EXECUTED


def test_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    program = torch.export.export(
        Loss(lambda s, b, h, i, j: torch.tanh(s)), (torch.randn(2, 64, 8),), strict=True
    )
    (row,) = (row for row in analyze(program, training=True).rows if row.op == FORWARD)
    assert row.backward is not None
    assert row.backward.matrix_flops - row.backward.masked_flops == 5 * 2 * 8 * VISIBLE
    assert row.cost.transcendentals == EXECUTED * 2
    assert row.backward.transcendentals == EXECUTED * (1 + 1 + 1)
