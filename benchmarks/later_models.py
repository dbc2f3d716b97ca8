"""Models that no rule and no constant was read from or fitted to."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.memory_models import (
    Built,
    Unet,
    answers,
    decoder,
    encoder_decoder,
    hugging,
    own,
    pixels,
    sound,
    text,
    timm,
    vision,
)

_LM = "ForCausalLM"
_WIDTH = 768


class DiffusionTransformer(nn.Module):
    """Layers whose norms are scaled and shifted by the time step (DiT)."""

    def __init__(self, layers: int = 6, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(4, _WIDTH, 2, 2)
        self.time = nn.Sequential(nn.Linear(256, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))
        self.norm = nn.LayerNorm(_WIDTH, elementwise_affine=False)
        self.modulation = nn.ModuleList(nn.Linear(_WIDTH, 6 * _WIDTH) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(_WIDTH, 4 * _WIDTH) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * _WIDTH, _WIDTH) for _ in range(layers))
        self.head = nn.Linear(_WIDTH, 16)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        condition = functional.silu(self.time(step))[:, None]
        layers = zip(self.modulation, self.qkv, self.out, self.up, self.down, strict=True)
        for modulation, qkv, out, up, down in layers:
            shift, scale, gate, shift2, scale2, gate2 = modulation(condition).chunk(6, -1)
            packed = qkv(self.norm(x) * (1 + scale) + shift).unflatten(-1, (3, self.heads, -1))
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + gate * out(y)
            y = self.norm(x) * (1 + scale2) + shift2
            x = x + gate2 * down(functional.gelu(up(y), approximate="tanh"))
        return self.head(x)


def noise() -> tuple[torch.Tensor, torch.Tensor]:
    """Latent images and embedded time steps."""
    return torch.randn(8, 4, 64, 64), torch.randn(8, 256)


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of a source and of a target."""
    return torch.randn(16, 128, 512), torch.randn(16, 64, 512)


_MODULE = partial(nn.Transformer, 512, 8, 3, 3, 2048, 0.1, batch_first=True, norm_first=True)

LATER: dict[str, Built] = {
    "densenet201": vision("densenet201", 8),
    "efficientnet_b3": vision("efficientnet_b3", 4),
    "regnet_x_32": vision("regnet_x_3_2gf", 32),
    "resnet152": vision("resnet152", 4),
    "wide_resnet101": vision("wide_resnet101_2", 16),
    "shufflenet_x2": vision("shufflenet_v2_x2_0", 8),
    "swin_v2_s": vision("swin_v2_s", 4),
    "deeplab_mobile": vision("deeplabv3_mobilenet_v3_large", 4, 320),
    "vit_b_b64": timm("vit_base_patch16_224", 64),
    "convnextv2_t": timm("convnextv2_tiny", 8),
    "lite0": timm("tf_efficientnet_lite0", 16),
    "resnetv2_50": timm("resnetv2_50", 8),
    "ecaresnet50": timm("ecaresnet50t", 8),
    "mobilenetv4": timm("mobilenetv4_conv_small", 16),
    "coatnet": timm("coatnet_0_rw_224", 8),
    "tiny_vit": timm("tiny_vit_5m_224", 8),
    "davit": timm("davit_tiny", 8),
    "convmixer": timm("convmixer_768_32", 2),
    "visformer": timm("visformer_small", 8),
    "dit": own(DiffusionTransformer, noise),
    "unet_big": own(partial(Unet, 96), pixels(4, 192)),
    "transformer": own(_MODULE, sequences),
    "qwen2_wide": hugging("Qwen2", text(8, 128), _LM, **decoder(6, 896, 14, 2, 151_936)),
    "gpt_neo": hugging(
        *("GPTNeo", text(2, 1024), _LM),
        hidden_size=768,
        num_layers=6,
        num_heads=12,
        attention_types=[[["global", "local"], 3]],
    ),
    "nemotron": hugging("Nemotron", text(2, 512), _LM, **decoder(4, 1024, 16, 8)),
    "persimmon": hugging("Persimmon", text(2, 512), _LM, **decoder(4, 1024, 16, 16)),
    "biogpt": hugging(
        *("BioGpt", text(2, 256), _LM),
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "mamba": hugging("Mamba", text(1, 256), _LM, hidden_size=768, num_hidden_layers=6, vocab_size=32_000),
    "mt5": hugging("MT5", text(4, 256), more=answers(4, 64), d_model=512, num_layers=4),
    "segformer": hugging("Segformer", pixels(4, 512)),
    "wav2vec2_long": hugging("Wav2Vec2", sound(4, 64_000), num_hidden_layers=8),
    "whisper_base": hugging(
        "Whisper", sound(2, 80, 3000), more=answers(2, 128), **encoder_decoder(8, 768, 12)
    ),
    "swin2sr": hugging("Swin2SR", pixels(1, 64), depths=[4, 4], num_heads=[6, 6], embed_dim=180),
    "big_bird": hugging("BigBird", text(2, 512), attention_type="original_full", num_hidden_layers=4),
}
