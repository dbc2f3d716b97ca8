"""Models that no rule and no constant was read from or fitted to."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.memory_models import (
    Built,
    Gpt,
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
_FOUR = {"num_hidden_layers": 4}


class Generator(nn.Module):
    """Images from noise by transposed convolutions (DCGAN)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index, (before, after) in enumerate(((128, 512), (512, 256), (256, 128), (128, 64))):
            stride, padding = (2, 1) if index else (1, 0)
            layers += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False)]
            layers += [nn.BatchNorm2d(after), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Unet3d(nn.Module):
    """Three levels of convolutions over volumes."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            layers: list[nn.Module] = []
            for channels in (before, after):
                layers += [nn.Conv3d(channels, after, 3, padding=1), nn.InstanceNorm3d(after, affine=True)]
                layers += [nn.LeakyReLU(0.01, inplace=True)]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList([block(1, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([block(4 * width, 2 * width), block(2 * width, width)])
        self.wider = nn.ModuleList(nn.ConvTranspose3d(2 * after, after, 2, 2) for after in (2 * width, width))
        self.out = nn.Conv3d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x)
        second = self.down[1](functional.max_pool3d(first, 2))
        y = self.down[2](functional.max_pool3d(second, 2))
        y = self.up[0](torch.cat([self.wider[0](y), second], 1))
        return self.out(self.up[1](torch.cat([self.wider[1](y), first], 1)))


class DilatedConvolutions(nn.Module):
    """Residual causal convolutions of growing dilation (TCN)."""

    def __init__(self, width: int = 128, layers: int = 6) -> None:
        super().__init__()
        self.first, self.out = nn.Conv1d(16, width, 1), nn.Linear(width, 10)
        self.wide = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**n) for n in range(layers))
        self.narrow = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for index, (wide, narrow) in enumerate(zip(self.wide, self.narrow, strict=True)):
            y = functional.relu(wide(functional.pad(x, (2 ** (index + 1), 0))))
            x = x + narrow(y)
        return self.out(x.mean(-1))


class GraphConvolutions(nn.Module):
    """Two layers that add up the features of neighbours."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first, self.second, self.out = (
            nn.Linear(64, width),
            nn.Linear(width, width),
            nn.Linear(width, 16),
        )

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        def summed(y: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), y.shape[1], dtype=y.dtype, device=y.device).index_add(0, edges[1], y)

        degree = summed(torch.ones(edges.shape[1], 1, dtype=x.dtype, device=x.device)).clamp(min=1)
        x = functional.relu(summed(self.first(x)[edges[0]]) / degree)
        x = functional.relu(summed(self.second(x)[edges[0]]) / degree)
        return self.out(x).log_softmax(-1)


def nodes() -> tuple[torch.Tensor, torch.Tensor]:
    """Features of nodes, and the nodes at both ends of each edge."""
    return torch.randn(20_000, 64), torch.randint(0, 20_000, (2, 200_000))


_LAYER = partial(nn.TransformerEncoderLayer, 1024, 16, 4096, 0.1, batch_first=True, norm_first=True)
_BERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

LATER: dict[str, Built] = {
    "resnet101": vision("resnet101", 8),
    "resnet18_b64": vision("resnet18", 64),
    "resnext50_b1": vision("resnext50_32x4d", 1),
    "densenet169": vision("densenet169", 2),
    "convnext_small": vision("convnext_small", 16),
    "swin_s": vision("swin_s", 4),
    "alexnet_b128": vision("alexnet", 128),
    "cspdarknet53": timm("cspdarknet53", 8, 256),
    "xception41": timm("xception41", 4, 299),
    "hgnetv2": timm("hgnetv2_b0", 16),
    "ghostnetv2": timm("ghostnetv2_100", 8),
    "eca_nfnet": timm("eca_nfnet_l0", 8),
    "resnest14": timm("resnest14d", 8),
    "vovnet": timm("ese_vovnet19b_dw", 8),
    "tresnet": timm("tresnet_m", 4),
    "fasternet": timm("fasternet_t0", 32),
    "rdnet": timm("rdnet_tiny", 8),
    "botnet": timm("botnet26t_256", 8, 256),
    "caformer": timm("caformer_s18", 8),
    "convit": timm("convit_tiny", 16),
    "efficientvit_m2": timm("efficientvit_m2", 32),
    "gcvit": timm("gcvit_xxtiny", 8),
    "maxxvit": timm("maxxvit_rmlp_nano_rw_256", 8, 256),
    "mvitv2": timm("mvitv2_tiny", 8),
    "sequencer2d": timm("sequencer2d_s", 2),
    "tnt": timm("tnt_s_patch16_224", 4),
    "vit_registers": timm("vit_small_patch14_reg4_dinov2", 2, 518),
    "swiftformer": hugging("SwiftFormer", pixels(8)),
    "glpn": hugging("GLPN", pixels(2, 256)),
    "aimv2": hugging("Aimv2Vision", pixels(8), num_hidden_layers=6),
    "phi": hugging("Phi", text(2, 512), _LM, **decoder(6, 768, 12, 12)),
    "cohere2": hugging("Cohere2", text(2, 512), _LM, **decoder(4, 768, 12, 4)),
    "glm4": hugging("Glm4", text(1, 1024), _LM, head_dim=64, pad_token_id=0, **decoder(4, 768, 12, 4)),
    "granite_moe": hugging(
        *("GraniteMoe", text(2, 256), _LM),
        **{"num_local_experts": 8, "num_experts_per_tok": 2, **decoder(4, 512, 8, 4)},
    ),
    "lfm2": hugging("Lfm2", text(2, 512), _LM, **decoder(6, 768, 12, 4)),
    "qwen3_long": hugging("Qwen3", text(1, 8192), _LM, head_dim=64, **decoder(3, 768, 12, 4)),
    "gpt_b1": own(partial(Gpt, 6, 768), text(1, 64)),
    "canine": hugging("Canine", text(2, 512), **_FOUR),
    "megatron_bert": hugging("MegatronBert", text(4, 256), num_hidden_layers=6, **_BERT),
    "rembert": hugging("RemBert", text(4, 256), vocab_size=50_000, **_FOUR, **_BERT),
    "splinter": hugging("Splinter", text(8, 128), **_FOUR),
    "xlm_roberta_xl": hugging("XLMRobertaXL", text(4, 128), vocab_size=50_000, **_FOUR, **_BERT),
    "marian": hugging("Marian", text(8, 64), more=answers(8, 64), **encoder_decoder(4, 512, 8)),
    "unispeech": hugging("UniSpeechSat", sound(2, 32_000), **_FOUR),
    "conformer": hugging("Wav2Vec2Conformer", sound(2, 32_000), **_FOUR),
    "ts_mixer": hugging(
        *("PatchTSMixer", lambda: (torch.randn(16, 512, 7),)),
        num_input_channels=7,
        context_length=512,
        patch_length=16,
        patch_stride=8,
    ),
    "encoder_wide": own(lambda: nn.TransformerEncoder(_LAYER(), 6), sound(4, 512, 1024)),
    "dcgan": own(Generator, sound(128, 128, 1, 1)),
    "unet3d": own(Unet3d, sound(1, 1, 64, 96, 96)),
    "tcn": own(DilatedConvolutions, sound(32, 16, 1000)),
    "gcn": own(GraphConvolutions, nodes),
}
