"""Masks that the program builds are followed to the pairs that they let through: closed forms, exact for every size."""

from __future__ import annotations

import itertools

import pytest
import torch
from onnx import parser

from graphflops.analysis import analyze
from graphflops.dims import evaluate
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin
from graphflops.report import Report

HEADS, WIDTH = 2, 4


class Masked(torch.nn.Module):
    """Attention under a mask that `kind` builds from the two lengths."""

    def __init__(self, kind: str, spelling: str) -> None:
        super().__init__()
        self.kind, self.spelling = kind, spelling

    def mask(self, rows: int, keys: int) -> torch.Tensor:
        i, j = torch.arange(rows)[:, None], torch.arange(keys)[None, :]
        if self.kind == "causal":
            return j <= i
        if self.kind == "bottom right":
            return j <= i + (keys - rows)
        if self.kind == "window":
            return (j <= i) & (i - j < 3)
        if self.kind == "both sides":
            return ~((j > i + 2) | (j < i - 1))
        if self.kind == "tril":
            return torch.ones(rows, keys, dtype=torch.bool).tril()
        if self.kind == "not triu":
            return ~torch.triu(torch.ones(rows, keys, dtype=torch.bool), diagonal=2)
        assert self.kind == "counted"
        return torch.ones(keys).cumsum(0)[None, :] - 1 <= i

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = self.mask(q.shape[-2], k.shape[-2])
        if self.spelling == "boolean":
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.spelling == "added":
            bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        if self.spelling in (
            "in the product",
            "times 0",
        ):  # as nn.MultiheadAttention; as older GPT-2 scales its scores
            bias, scale = (
                torch.zeros(mask.shape).masked_fill(~mask, float("-inf")),
                int(self.spelling != "times 0"),
            )
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            return torch.baddbmm(bias, q, k.transpose(-2, -1), beta=scale, alpha=0.5).softmax(-1) @ v
        scores = q @ k.transpose(-2, -1) * 0.5
        if self.spelling == "filled":
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        elif self.spelling == "chosen":
            scores = torch.where(mask, scores, -1e9)
        else:
            scores = scores + (1.0 - mask.to(scores.dtype)) * -10000.0
        return scores.softmax(-1) @ v


KINDS = ["causal", "bottom right", "window", "both sides", "tril", "not triu", "counted"]
SPELLINGS = ["boolean", "added", "filled", "chosen", "subtracted", "in the product"]


def visible(kind: str, rows: int, keys: int) -> int:
    return int(Masked(kind, "").mask(rows, keys).sum())


def report_of(kind: str, spelling: str, core: bool = False) -> Report:
    tensors = [torch.randn(3, HEADS, length, WIDTH) for length in (5, 7, 7)]
    rows, keys = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("keys", min=2, max=64)
    program = torch.export.export(
        Masked(kind, spelling), tuple(tensors), dynamic_shapes=({2: rows}, {2: keys}, {2: keys}), strict=False
    )
    return analyze(program.run_decompositions() if core else program)


@pytest.mark.parametrize("kind", KINDS)
def test_the_count_is_exact_for_every_length(kind: str) -> None:
    report = report_of(kind, "boolean")
    (use,) = report.attentions
    for rows, keys in itertools.product((2, 3, 5, 8), (2, 4, 7)):
        sizes = dict(zip((str(use.queries), str(use.keys)), (rows, keys), strict=True))
        hidden = rows * keys - visible(kind, rows, keys)
        assert evaluate(use.masked_flops, sizes) == 2 * 3 * HEADS * hidden * (WIDTH + WIDTH), (rows, keys)
        assert evaluate(report.total().masked_flops, sizes) == evaluate(use.masked_flops, sizes)


@pytest.mark.parametrize("core", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_one_total(spelling: str, core: bool) -> None:
    report = report_of("causal", spelling, core)
    (use,) = report.attentions
    assert use.mask == "structure"
    hidden = 5 * 7 - (1 + 2 + 3 + 4 + 5)
    assert report.value(report.total().masked_flops) == 2 * 3 * HEADS * hidden * (WIDTH + WIDTH)
    assert report.value(report.total().matrix_flops) == 2 * 3 * HEADS * 5 * 7 * (WIDTH + WIDTH)
    assert sum(report.value(row.cost.masked_flops) or 0 for row in report.rows) == report.value(
        report.total().masked_flops
    )


def test_a_mask_times_zero_hides_nothing() -> None:
    report = report_of("causal", "times 0")
    assert [use.mask for use in report.attentions] == ["none"]
    assert report.total().masked_flops == 0


def onnx_masked(body: str, extra: str = "") -> int | None:
    """masked_flops of attention of 5 queries and 7 keys in ONNX, its mask `m` made by `body`."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[3,2,5,4] q, float[3,2,7,4] k, float[3,2,7,4] v'
        f"{extra}) => (y) <int64 zero = {{0}}, int64 one = {{1}}, int64 rows = {{5}}, int64 keys = {{7}}, "
        "int64[1] last = {-1}, int64[1] keys1 = {7}, int64[1] least = {-9223372036854775808}, "
        "float low = {-1e9}, float none = {0}> "
        "{ i0 = Range(zero, rows, one) \n i = Unsqueeze(i0, last) \n j = Range(zero, keys, one) \n"
        f"{body} \n t = Transpose <perm = [0,1,3,2]> (k) \n s = MatMul(q, t) \n x = Add(s, m) \n p = Softmax(x) "
        "\n y = MatMul(p, v) }"
    )
    report = analyze(Program(parser.parse_model(text)).graph(Origin()))
    return report.value(report.total().masked_flops)


PAIR = 2 * 3 * HEADS * (WIDTH + WIDTH)


@pytest.mark.parametrize(
    "body, extra, hidden",
    [
        ("c = LessOrEqual(j, i) \n m = Where(c, none, low)", "", 5 * 7 - 15),
        ("c = Greater(j, i) \n m = Where(c, low, none)", "", 5 * 7 - 15),
        ("c = Less(i, j) \n f = Cast <to = 1> (c) \n m = Mul(f, low)", "", 5 * 7 - 15),
        # A slice from before the first place is one from the first.
        ("n = Slice(j, least, keys1) \n c = LessOrEqual(n, i) \n m = Where(c, none, low)", "", 5 * 7 - 15),
        # And a mask that the caller gives: what follows from the structure is certain.
        ("c = LessOrEqual(j, i) \n d = And(c, g) \n m = Where(d, none, low)", ", bool[7] g", 5 * 7 - 15),
        # Or: nothing is certain.
        ("c = LessOrEqual(j, i) \n d = Or(c, g) \n m = Where(d, none, low)", ", bool[7] g", 0),
        ("d = Not(g) \n m = Where(d, none, low)", ", bool[5,7] g", 0),
        # Not far enough below zero to hide anything.
        ("c = LessOrEqual(j, i) \n f = Cast <to = 1> (c) \n m = Neg(f)", "", 0),
    ],
)
def test_masks_in_onnx(body: str, extra: str, hidden: int) -> None:
    assert onnx_masked(body, extra) == PAIR * hidden
