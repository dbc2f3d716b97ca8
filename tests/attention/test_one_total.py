"""One decoder with grouped heads, in four spellings: one matrix total, one masked total, the same attentions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphflops.analysis import analyze
from graphflops.report import Report

SAMPLES = Path(__file__).parents[2] / "samples"
BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 2, 16, 4, 2, 8


class Attention(torch.nn.Module):
    def __init__(self, eager: bool) -> None:
        super().__init__()
        self.eager = eager
        self.q = torch.nn.Linear(32, HEADS * WIDTH, bias=False)
        self.k = torch.nn.Linear(32, KV_HEADS * WIDTH, bias=False)
        self.v = torch.nn.Linear(32, KV_HEADS * WIDTH, bias=False)
        self.out = torch.nn.Linear(HEADS * WIDTH, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).unflatten(-1, (n, WIDTH)).transpose(1, 2)
            for f, n in ((self.q, HEADS), (self.k, KV_HEADS), (self.v, KV_HEADS))
        )
        if not self.eager:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            b, _, s, d = k.shape
            k, v = (
                t[:, :, None].expand(b, KV_HEADS, HEADS // KV_HEADS, s, d).reshape(b, HEADS, s, d)
                for t in (k, v)
            )
            scores = q @ k.transpose(-2, -1) / WIDTH**0.5
            seen = torch.ones(s, s, dtype=torch.bool).tril()
            y = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(-2))


def reports() -> dict[str, Report]:
    batch = length = torch.export.Dim.AUTO
    programs = {
        name: torch.export.export(
            Attention(eager).eval(),
            (torch.randn(BATCH, LENGTH, 32),),
            dynamic_shapes=({0: batch, 1: length},),
        )
        for name, eager in (("sdpa", False), ("eager", True))
    }
    programs["decomposed"] = programs["sdpa"].run_decompositions()
    programs["eager, decomposed"] = programs["eager"].run_decompositions()
    return {name: analyze(program) for name, program in programs.items()}


@pytest.fixture(scope="module")
def spelled() -> dict[str, Report]:
    return reports()


@pytest.mark.parametrize("name", ["sdpa", "eager", "decomposed", "eager, decomposed"])
def test_one_total(spelled: dict[str, Report], name: str) -> None:
    report = spelled[name]
    projections = 2 * BATCH * LENGTH * 32 * (HEADS + KV_HEADS + KV_HEADS + HEADS) * WIDTH
    products = 2 * BATCH * HEADS * LENGTH * LENGTH * (WIDTH + WIDTH)
    assert report.value(report.total().matrix_flops) == projections + products
    hidden = LENGTH * (LENGTH - 1) // 2  # of LENGTH * LENGTH pairs, those of a key after its query
    assert report.value(report.total().masked_flops) == 2 * BATCH * HEADS * hidden * (WIDTH + WIDTH)
    (use,) = report.attentions
    assert (use.heads, use.kv_heads, use.width) == (HEADS, KV_HEADS, WIDTH)
    assert report.value(use.kv_bytes) == 2 * BATCH * KV_HEADS * LENGTH * WIDTH * 4


def test_the_exported_onnx_file_agrees_with_the_program() -> None:
    sizes = {"ids[0]": 2, "ids[1]": 128}
    program = analyze(SAMPLES / "gqa_transformer.pt2", dims=sizes)
    onnx = analyze(SAMPLES / "gqa_transformer.onnx", dims=sizes)
    assert onnx.total().matrix_flops == program.total().matrix_flops
    assert onnx.total().masked_flops == program.total().masked_flops
    assert [(use.heads, use.kv_heads, use.kv_bytes) for use in onnx.attentions] == [
        (use.heads, use.kv_heads, use.kv_bytes) for use in program.attentions
    ]
