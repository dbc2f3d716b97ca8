"""Programs whose totals are published, or can be written down: exported on the meta device, so no weight is ever made."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import graphflops  # noqa: E402

SAMPLES = Path(__file__).parents[1] / "samples"


def analyzed(make, *shape, dtype=torch.float32, **options):
    with torch.device("meta"):
        program = torch.export.export(make().eval(), (torch.empty(shape, dtype=dtype),))
    return graphflops.analyze(program, **options)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(100, 100, bias=False)

    def forward(self, x):
        return self.linear(self.linear(self.linear(x)))


def test_a_layer_called_thrice_costs_thrice_and_is_held_once():
    report = analyzed(Shared, 1, 100)
    assert report.total().matrix_flops == 3 * 2 * 100 * 100 == 60_000
    assert report.parameters == 100 * 100
    assert report.by("module", depth=1)["linear"].matrix_flops == 60_000


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, inner, bias):
        super().__init__()
        head = width // heads
        self.heads, self.kv_heads = heads, kv_heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, kv_heads * head, bias=bias)
        self.v = nn.Linear(width, kv_heads * head, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def attend(self, x):
        q, k, v = (
            y.unflatten(-1, (count, -1)).transpose(1, 2)
            for y, count in ((self.q(x), self.heads), (self.k(x), self.kv_heads), (self.v(x), self.kv_heads))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.out(y.transpose(1, 2).flatten(2))


class GPT2Block(Block):
    def __init__(self):
        super().__init__(768, 12, 12, 3072, bias=True)
        self.norm1, self.norm2 = nn.LayerNorm(768), nn.LayerNorm(768)
        self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT2(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks = nn.ModuleList(GPT2Block() for _ in range(12))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50257, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize(("tied", "parameters"), [(True, 124_439_808), (False, 163_037_184)])
def test_gpt2_small_holds_its_tied_weight_once(tied, parameters):
    assert analyzed(lambda: GPT2(tied), 1, 8, dtype=torch.int64).parameters == parameters


def test_a_float8_product_says_so_whatever_its_result_is():
    from graphflops.tensor import BFLOAT16
    from tests.support import price, t

    a, b, scale = t(16, 32, dtype="float8_e4m3fn"), t(32, 64, dtype="float8_e4m3fn"), t()
    estimate = price("aten._scaled_mm.default", a, b, scale, scale, out_dtype=BFLOAT16)
    assert estimate.out[0].dtype is BFLOAT16
    assert (estimate.matrix_dtype or estimate.reads[0].dtype).name == "float8_e4m3fn"


class LlamaBlock(Block):
    def __init__(self):
        super().__init__(4096, 32, 8, 14336, bias=False)
        self.gate, self.up = nn.Linear(4096, 14336, bias=False), nn.Linear(4096, 14336, bias=False)
        self.down = nn.Linear(14336, 4096, bias=False)

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.tokens = nn.Embedding(128256, 4096)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(layers))
        self.head = nn.Linear(4096, 128256, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_llama_3_8b_at_a_sequence_of_1024():
    """Layers are equal: the whole is one layer's program and 31 times the difference that a second layer makes."""
    one, two = (analyzed(lambda n=n: Llama(n), 1, 1024, dtype=torch.int64).total() for n in (1, 2))
    total = one.matrix_flops + 31 * (two.matrix_flops - one.matrix_flops)
    hidden = one.masked_flops + 31 * (two.masked_flops - one.masked_flops)
    assert total == 15_369_540_468_736 + 549_755_813_888
    assert total - hidden == 15_369_540_468_736 + 275_146_342_400


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride, first):
        super().__init__()
        strides = (stride, 1) if first else (1, stride)
        self.a = nn.Conv2d(inputs, width, 1, stride=strides[0], bias=False)
        self.b = nn.Conv2d(width, width, 3, stride=strides[1], padding=1, bias=False)
        self.c = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width, width, 4 * width))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = x
        for conv, norm in zip((self.a, self.b, self.c), self.norms, strict=True):
            y = norm(conv(y))
        return F.relu(y + self.shortcut(x))


def resnet50(first):
    """`first`: the stride is in the first, 1x1 convolution of a stage, as published; else in the 3x3 one ("v1.5")."""
    stages, inputs = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    stages.append(nn.MaxPool2d(3, stride=2, padding=1))
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(blocks):
            stages.append(Bottleneck(inputs, width, 2 if index == 0 and width != 64 else 1, first))
            inputs = 4 * width
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


@pytest.mark.parametrize(("first", "giga_macs"), [(True, 3.86), (False, 4.09)])
def test_resnet_50_depends_on_where_the_stride_is(first, giga_macs):
    report = analyzed(lambda: resnet50(first), 1, 3, 224, 224)
    assert report.parameters == 25_557_032
    assert round(report.total().macs / 1e9, 2) == giga_macs


def test_an_lstm_is_counted_whole_and_its_length_can_be_changed():
    path = SAMPLES / "lstm.pt2"
    ten = graphflops.analyze(path)
    twenty = graphflops.analyze(path, inputs={"x": (2, 20, 16)})
    per_step = 2 * 2 * 2 * (4 * 32 * (16 + 32) + 4 * 32 * (64 + 32))  # two directions, batch of 2, two layers
    assert [row.op for row in ten.rows].count("aten.lstm.input") == 1
    assert twenty.total().matrix_flops - ten.total().matrix_flops == 10 * per_step
