"""Small models of many architectures with distinct weights, and how each is exported: `export(name, folder)`.

Every weight is drawn at random, so that no exporter merges two of them by accident.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracle.export_networks import (
    Autoencoder,
    DenseNet,
    Encoder,
    Inception,
    Segmenter,
    WaveNet,
    Windows,
)
from tests.torch_tables import onnx_export

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


class ConvNorm(nn.Module):
    """A convolution with its batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Stages of residual blocks in nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class Plain(nn.Module):
    """VGG: one long nn.Sequential of layers, and another one behind it."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1)]
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class Inverted(nn.Module):
    """MobileNet's block, with squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 3 * width
        self.block = nn.Sequential(
            ConvNorm(width, inner, 1), ConvNorm(inner, inner, groups=inner), ConvNorm(inner, width, 1)
        )
        self.squeeze = nn.Conv2d(width, 4, 1)
        self.excite = nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))


class MobileNet(nn.Module):
    """Depthwise convolutions; blocks in a list of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 8, stride=2)
        self.stages = nn.Sequential(*(nn.Sequential(Inverted(8), Inverted(8)) for _ in range(2)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)))


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then an MLP over channels that are last, scaled by a parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """Stages with a strided convolution between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.stages = nn.ModuleList([nn.Sequential(ConvNextBlock(8), ConvNextBlock(8)), ConvNextBlock(16)])
        self.downsample = nn.Conv2d(8, 16, 2, 2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages[1](self.downsample(self.stages[0](self.stem(x))))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and what was left out concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([ConvNorm(3, 8), ConvNorm(8, 16, stride=2)])
        self.middle = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down[0](x)
        y = self.norm(self.up(self.middle(self.down[1](skip))))
        return self.out(torch.cat((skip, y), 1))


class Detector(nn.Module):
    """A head that runs on two scales, and a neck that upsamples."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleList([ConvNorm(3, 8, stride=2), ConvNorm(8, 16, stride=2)])
        self.lateral = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)])
        self.head = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.backbone[0](x)
        coarse = self.lateral[1](self.backbone[1](fine))
        fine = self.lateral[0](fine) + F.interpolate(coarse, scale_factor=2.0)
        return self.head(fine), self.head(coarse)


class Attention(nn.Module):
    """Attention by the fused operator, some heads sharing keys and values, with or without rotated positions."""

    def __init__(
        self, width: int, heads: int, kv_heads: int, *, causal: bool, rotary: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.causal = heads, kv_heads, width // heads, causal
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=bias)
        self.rotary = rotary
        if rotary:
            frequencies = 1 / 100 ** (torch.arange(0, self.size, 2) / self.size)
            angles = torch.outer(torch.arange(64), frequencies).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        length = x.shape[2]
        return x * self.cos[:length] + torch.cat((-b, a), -1) * self.sin[:length]

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        seen = x if memory is None else memory
        q = self._heads(self.q_proj(x), self.heads)
        k, v = self._heads(self.k_proj(seen), self.kv_heads), self._heads(self.v_proj(seen), self.kv_heads)
        if self.rotary:
            q, k = self._rotated(q), self._rotated(k)
        shared = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=shared)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A block of GPT: attention and an MLP in nn.Sequential, each behind a norm."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, 4, 4, causal=causal)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """A decoder with learned positions, its output tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(50, 32)
        self.wpe = nn.Embedding(64, 32)
        self.h = nn.ModuleList(Block(32, causal=True) for _ in range(2))
        self.ln_f = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 50, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Gated(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nn.Module):
    """Scaled by the root of the mean square, spelled out: TorchScript's exporter does not know the operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaLayer(nn.Module):
    """Attention with rotated positions and shared key heads, then a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = Attention(width, 4, 2, causal=True, rotary=True, bias=False)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = Gated(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    """The layers of a decoder between its embedding and its last norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(50, width)
        self.layers = nn.ModuleList(LlamaLayer(width) for _ in range(2))
        self.norm = RMSNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    """A decoder with an output layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaModel(32)
        self.lm_head = nn.Linear(32, 50, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.model(ids))


class SelfAttention(nn.Module):
    """Attention spelled out in products and a softmax, under a mask of padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, 4, width // 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / (width // 4) ** 0.5 + (1 - mask[:, None, None, :]) * -1e4
        return self.dense((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class BertLayer(nn.Module):
    """Attention and an MLP, the norm behind each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width)
        self.norm = nn.LayerNorm(width)
        self.intermediate, self.output = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x, mask))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """An encoder with a mask and a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(50, 32)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(BertLayer(32) for _ in range(2))})
        self.pooler = nn.Sequential(nn.Linear(32, 32), nn.Tanh())

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return self.pooler(x[:, 0])


class Vit(nn.Module):
    """Patches, a class token, learned positions, torch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 32, 8, 8)
        self.cls_token = nn.Parameter(torch.rand(1, 1, 32))
        self.pos_embed = nn.Parameter(torch.rand(1, 17, 32))
        self.blocks = nn.Sequential(Block(32, causal=False), Block(32, causal=False))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class Seq2Seq(nn.Module):
    """An encoder of sound by convolutions over time, and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(8, 32, 3, padding=1)
        self.conv2 = nn.Conv1d(32, 32, 3, stride=2, padding=1)
        self.encoder = nn.ModuleList([Block(32, causal=False)])
        self.embed = nn.Embedding(50, 32)
        self.self_attn = Attention(32, 4, 4, causal=True)
        self.cross_attn = Attention(32, 4, 4, causal=False)
        self.proj_out = nn.Linear(32, 50, bias=False)

    def forward(self, sound: Tensor, ids: Tensor) -> Tensor:
        memory = F.gelu(self.conv2(F.gelu(self.conv1(sound)))).transpose(1, 2)
        for block in self.encoder:
            memory = block(memory)
        x = self.embed(ids)
        x = x + self.self_attn(x)
        return self.proj_out(x + self.cross_attn(x, memory))


class Mixer(nn.Module):
    """Products over tokens, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 8, 8)
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)) for _ in "ab"
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 16)) for _ in "ab"
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for tokens, channels in zip(self.tokens, self.channels, strict=True):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return self.head(x.mean(1))


class Experts(nn.Module):
    """A router and experts, all of which run; the weights of the experts in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.router = nn.Linear(32, 4, bias=False)
        self.up = nn.Parameter(torch.rand(4, 32, 48))
        self.down = nn.Parameter(torch.rand(4, 48, 32))
        self.out = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        share = self.router(x).softmax(-1)
        y = torch.einsum("bth,ehf->betf", x, self.up)
        y = torch.einsum("betf,efh->beth", F.silu(y), self.down)
        return self.out(x + torch.einsum("beth,bte->bth", y, share))


class Recurrent(nn.Module):
    """A recurrent layer of two directions behind an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 24, bidirectional=True, batch_first=True)
        self.classifier = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 10))

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.rnn(self.embedding(ids))[0])


class DitBlock(nn.Module):
    """A block whose norms are scaled and shifted by the condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, 4, 4, causal=False)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 4 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, shift2, scale2 = self.modulation(condition)[:, None].chunk(4, -1)
        x = x + self.attn(self.norm1(x) * (1 + scale) + shift)
        return x + self.mlp(self.norm1(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    """A diffusion transformer: patches, a condition of time and class."""

    def __init__(self) -> None:
        super().__init__()
        self.x_embedder = nn.Conv2d(4, 32, 2, 2)
        self.t_embedder = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32))
        self.y_embedder = nn.Embedding(11, 32)
        self.blocks = nn.ModuleList(DitBlock(32) for _ in range(2))
        self.final = nn.Linear(32, 16)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        condition = self.t_embedder(t) + self.y_embedder(y)
        x = self.x_embedder(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, condition)
        return self.final(x)


class StateSpace(nn.Module):
    """A gated block with a causal depthwise convolution over time, as in Mamba, without its scan."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(16, 64, bias=False)
        self.conv1d = nn.Conv1d(32, 32, 4, padding=3, groups=32)
        self.x_proj = nn.Linear(32, 34, bias=False)
        self.dt_proj = nn.Linear(2, 32)
        self.A_log = nn.Parameter(torch.rand(32, 16))
        self.D = nn.Parameter(torch.rand(32))
        self.out_proj = nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y, z = self.in_proj(x).chunk(2, -1)
        y = F.silu(self.conv1d(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        dt, b, c = self.x_proj(y).split((2, 16, 16), -1)
        decay = torch.exp(F.softplus(self.dt_proj(dt))[..., None] * -torch.exp(self.A_log))
        state = (decay * b[:, :, None] * y[..., None]).cumsum(1)
        return self.out_proj(((state @ c[..., None])[..., 0] + self.D * y) * F.silu(z))


class Model(NamedTuple):
    """A kind of module and its example. open: axes by input, open sizes of the export. quantized: how.

    by_torchscript: whether that exporter knows its operators.
    """

    make: Callable[[], nn.Module]
    example: Callable[[], tuple[Tensor, ...]]
    open: Mapping[str, Mapping[int, str]] = MappingProxyType({})
    quantized: str = ""
    by_torchscript: bool = True


def _image(size: int = 32, channels: int = 3) -> tuple[Tensor, ...]:
    return (torch.rand(2, channels, size, size),)


def _ids(length: int = 12) -> Tensor:
    return torch.randint(50, (2, length))


MODELS = {
    "resnet": Model(ResNet, _image, {"x": {0: "batch"}}, "static"),
    "plain": Model(Plain, _image, {}, "static"),
    "mobilenet": Model(MobileNet, _image, {"x": {0: "batch"}}),
    "convnext": Model(ConvNext, _image),
    "unet": Model(UNet, _image),
    "detector": Model(Detector, _image),
    "gpt": Model(Gpt, lambda: (_ids(),), {"ids": {1: "length"}}, "dynamic"),
    "llama": Model(
        Llama, lambda: (_ids(),), {"ids": {0: "batch", 1: "length"}}, "dynamic", by_torchscript=False
    ),
    "bert": Model(Bert, lambda: (_ids(), torch.ones(2, 12)), {}, "dynamic"),
    "vit": Model(Vit, _image, {"x": {0: "batch"}}, "static"),
    "seq2seq": Model(Seq2Seq, lambda: (torch.rand(2, 8, 20), _ids())),
    "mixer": Model(Mixer, _image),
    "experts": Model(Experts, lambda: (torch.rand(2, 6, 16),)),
    "recurrent": Model(Recurrent, lambda: (_ids(),)),
    "dit": Model(Dit, lambda: (torch.rand(2, 4, 8, 8), torch.rand(2, 8), torch.tensor([1, 2]))),
    "statespace": Model(StateSpace, lambda: (torch.rand(2, 10, 16),)),
    "densenet": Model(DenseNet, _image, {}, "static"),
    "inception": Model(Inception, _image, {"x": {0: "batch"}}),
    "segmenter": Model(Segmenter, _image),
    "wavenet": Model(WaveNet, lambda: (torch.rand(2, 1, 20),), {"x": {2: "time"}}),
    "encoder": Model(Encoder, lambda: (torch.rand(2, 10, 32),), {}, "dynamic"),
    "autoencoder": Model(Autoencoder, _image),
    "windows": Model(Windows, _image),
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def made(name: str) -> nn.Module:
    """The model in evaluation mode, every number of it drawn at random."""
    torch.manual_seed(0)
    model = MODELS[name].make().eval()
    for value in (*model.parameters(), *model.buffers()):
        if value.is_floating_point():
            value.detach().uniform_(0.1, 1.0)
    return model


def export(name: str, folder: Path, *kinds: str) -> dict[str, Path]:
    """The `.pt2` of a model and its exports by kind: dynamo, torchscript, and where it is quantized, quantized."""
    model, entry = made(name), MODELS[name]
    example = entry.example()
    known = {"dynamo": True, "torchscript": entry.by_torchscript, "quantized": bool(entry.quantized)}
    wanted = kinds or [kind for kind, made in known.items() if made]
    files = {kind: folder / f"{name}.{kind}.onnx" for kind in wanted}
    files["pt2"] = folder / f"{name}.pt2"
    with quiet():
        shapes = _shapes(model, entry)
        torch.export.save(torch.export.export(model, example, dynamic_shapes=shapes), files["pt2"])
        if "dynamo" in wanted or "quantized" in wanted:
            path = folder / f"{name}.dynamo.onnx"
            onnx_export(model, example, path, dynamo=True, dynamic_shapes=shapes, external_data=False)
        if "torchscript" in wanted:
            _by_torchscript(model, example, entry, files["torchscript"])
        if "quantized" in wanted:
            _quantize(entry, example, folder / f"{name}.dynamo.onnx", files["quantized"])
    return files


def _shapes(model: nn.Module, entry: Model) -> dict[str, Any] | None:
    """What is open, as torch.export wants to be told."""
    if not entry.open:
        return None
    return {
        name: {axis: torch.export.Dim(size, min=2, max=64) for axis, size in axes.items()}
        for name, axes in entry.open.items()
    }


def _by_torchscript(model: nn.Module, example: tuple[Tensor, ...], entry: Model, path: Path) -> None:
    names = list(model.forward.__code__.co_varnames[1 : 1 + len(example)])
    torch.onnx.export(
        model, example, path, dynamo=False, input_names=names, dynamic_axes=entry.open, opset_version=17
    )


def _quantize(entry: Model, example: tuple[Tensor, ...], path: Path, into: Path) -> None:
    """By onnxruntime: weights ahead and activations as they come, or both ahead with nodes that quantize."""
    import onnx
    from onnxruntime import quantization

    if entry.quantized == "dynamic":
        quantization.quantize_dynamic(path, into)
        return
    name = onnx.load(path).graph.input[0].name

    class Examples(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{name: example[0].numpy()}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantization.quantize_static(path, into, Examples())
