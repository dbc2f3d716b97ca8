"""Models that no rule and no constant was read from or fitted to."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.memory_models import (
    Built,
    answers,
    decoder,
    encoder_decoder,
    hugging,
    own,
    sound,
    text,
    timm,
    vision,
)

_LM = "ForCausalLM"
_FOUR = {"num_hidden_layers": 4}


class Speakers(nn.Module):
    """Residual convolutions over time and attentive pooling, as x-vectors have them."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 5, padding=2)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=n, dilation=n, groups=8) for n in (2, 3, 4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.score = nn.Sequential(nn.Conv1d(width, 128, 1), nn.Tanh(), nn.Conv1d(128, width, 1))
        self.out = nn.Linear(2 * width, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + functional.relu(norm(layer(x)))
        weights = self.score(x).softmax(-1)
        mean = (weights * x).sum(-1)
        spread = ((weights * x * x).sum(-1) - mean * mean).clamp(min=1e-4).sqrt()
        return self.out(torch.cat([mean, spread], 1))


class Recommender(nn.Module):
    """Tables of embeddings, dot products between them, and two stacks of linear layers (DLRM)."""

    def __init__(self, tables: int = 20, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(20_000 + 7_000 * n, width, mode="sum") for n in range(tables)
        )
        self.below = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        dense = self.below(dense)
        rows = torch.stack([dense, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        return self.above(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)).sigmoid()


class Captions(nn.Module):
    """A recurrent decoder over the features of a small convolutional network."""

    def __init__(self, width: int = 512, tokens: int = 12_000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 64), (64, 128), (128, 256), (256, width)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.1)]
        self.see = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.words, self.out = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.layers = nn.GRU(width, width, 2, batch_first=True)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        seen = self.see(x)[None].repeat(2, 1, 1)
        y, _ = self.layers(self.words(words), seen)
        return self.out(y)


class Upscaler(nn.Module):
    """Residual blocks at full size and a shuffle of pixels at the end."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, width, 1))
            for _ in range(8)
        )
        self.out = nn.Sequential(nn.Conv2d(width, 48, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for block in self.blocks:
            y = y + 0.2 * block(y)
        return self.out(y) + functional.interpolate(x, scale_factor=4, mode="bilinear")


class SwitchingExperts(nn.Module):
    """Layers whose tokens go to one of eight experts by a product of all with a one-hot choice."""

    def __init__(self, width: int = 512, experts: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.up = nn.ParameterList(torch.randn(experts, width, 4 * width) * 0.02 for _ in range(layers))
        self.down = nn.ParameterList(torch.randn(experts, 4 * width, width) * 0.02 for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for router, up, down in zip(self.routers, self.up, self.down, strict=True):
            weights = router(x).softmax(-1)
            chosen = functional.one_hot(weights.argmax(-1), weights.shape[-1]).to(x.dtype) * weights
            y = torch.einsum("bte,btd,edf->ebtf", chosen, x, up)
            x = x + torch.einsum("ebtf,efd->btd", functional.gelu(y), down)
        return x


_BERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_LAYER = partial(nn.TransformerDecoderLayer, 512, 8, 2048, 0.0, batch_first=True)


class Decoders(nn.Module):
    """Four decoder layers that read a longer memory, causally."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(_LAYER(), 4)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        return self.layers(x, memory, tgt_mask=mask, tgt_is_causal=True)


def captions() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and the words so far."""
    return torch.randn(32, 3, 128, 128), torch.randint(0, 1000, (32, 40))


def clicks() -> tuple[torch.Tensor, torch.Tensor]:
    """Dense features and one index for each table."""
    return torch.randn(4096, 13), torch.randint(0, 20_000, (4096, 20, 1))


LATER: dict[str, Built] = {
    "resnext101_64x4d": vision("resnext101_64x4d", 4),
    "densenet161": vision("densenet161", 16),
    "efficientnet_b2": vision("efficientnet_b2", 16, 260),
    "shufflenet_x1_5": vision("shufflenet_v2_x1_5", 64),
    "vgg13_bn": vision("vgg13_bn", 4),
    "regnet_y_800mf": vision("regnet_y_800mf", 64),
    "convnext_large": vision("convnext_large", 4),
    "swin_v2_b": vision("swin_v2_b", 4),
    "mnasnet0_75": vision("mnasnet0_75", 1),
    "vit_l_32": vision("vit_l_32", 16),
    "gernet": timm("gernet_m", 16),
    "mobileone": timm("mobileone_s1", 16),
    "mobilenetv4_hybrid": timm("mobilenetv4_hybrid_medium", 16),
    "fbnetc": timm("fbnetc_100", 32),
    "lcnet": timm("lcnet_100", 128),
    "tinynet": timm("tinynet_a", 16, 192),
    "selecsls": timm("selecsls42b", 16),
    "darknet53": timm("darknet53", 8, 256),
    "repghost": timm("repghostnet_100", 16),
    "inception_resnet": timm("inception_resnet_v2", 4, 299),
    "halonet": timm("halonet26t", 8, 256),
    "lambda_resnet": timm("lambda_resnet26t", 8, 256),
    "gcresnet": timm("gcresnet33ts", 8, 256),
    "seresnext": timm("seresnext26d_32x4d", 16),
    "dpn92": timm("dpn92", 4),
    "nf_regnet": timm("nf_regnet_b1", 8, 256),
    "deit3": timm("deit3_small_patch16_224", 64),
    "vit_small_b1": timm("vit_small_patch32_224", 1),
    "convformer": timm("convformer_s18", 8),
    "efficientformerv2": timm("efficientformerv2_s1", 16),
    "hieradet": timm("hieradet_small", 4, 256),
    "swinv2_cr": timm("swinv2_cr_tiny_224", 4),
    "coatnext": timm("coatnext_nano_rw_224", 8),
    "mobilevitv2": timm("mobilevitv2_100", 16, 256),
    "gmixer": timm("gmixer_24_224", 16),
    "vit_medium_gap": timm("vit_medium_patch16_gap_240", 16, 240),
    "cs3darknet": timm("cs3darknet_m", 16, 256),
    "ernie": hugging("Ernie", text(8, 256), **_FOUR),
    "roberta_prelayernorm": hugging("RobertaPreLayerNorm", text(4, 512), **_FOUR),
    "xlm": hugging("XLM", text(8, 128), emb_dim=512, n_layers=4, n_heads=8),
    "lilt": hugging("Lilt", text(4, 256), **_FOUR),
    "openai_gpt": hugging("OpenAIGPT", text(4, 256), "LMHeadModel", n_layer=6),
    "arcee": hugging("Arcee", text(2, 512), _LM, **decoder(4, 768, 12, 4)),
    "helium": hugging("Helium", text(1, 1024), _LM, head_dim=64, **decoder(4, 768, 12, 12)),
    "apertus": hugging("Apertus", text(4, 256), _LM, **decoder(4, 768, 12, 4)),
    "exaone4": hugging("Exaone4", text(2, 512), _LM, **decoder(4, 768, 12, 4)),
    "seed_oss": hugging("SeedOss", text(1, 2048), _LM, head_dim=64, **decoder(4, 768, 12, 4)),
    "olmo": hugging("Olmo", text(8, 512), _LM, **decoder(6, 1024, 16, 16)),
    "mbart": hugging(
        "MBart", text(4, 128), more=answers(4, 128), vocab_size=50_000, **encoder_decoder(4, 768, 12)
    ),
    "speech2text": hugging(
        "Speech2Text", sound(4, 800, 80), more=answers(4, 40), **encoder_decoder(4, 256, 4)
    ),
    "time_series": own(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True), 4),
        sound(64, 96, 256),
    ),
    "decoder_layers": own(Decoders, lambda: (torch.randn(8, 128, 512), torch.randn(8, 400, 512))),
    "speakers": own(Speakers, sound(64, 80, 300)),
    "recommender": own(Recommender, clicks),
    "captions": own(Captions, captions),
    "upscaler": own(Upscaler, sound(4, 3, 128, 128)),
    "experts": own(SwitchingExperts, sound(4, 256, 512)),
}
