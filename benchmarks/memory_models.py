"""Models whose memory is measured: of torchvision, timm and transformers with random weights, and a few of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


def ids(batch: int, length: int) -> torch.Tensor:
    """Token numbers."""
    return torch.randint(0, 1000, (batch, length))


def images(batch: int, size: int = 224) -> torch.Tensor:
    """Images in bfloat16."""
    return torch.randn(batch, 3, size, size, dtype=torch.bfloat16)


class Field(nn.Module):
    """A model whose outputs are an object: one field of it."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.model(*args, **kwargs)
        return outputs[self.field]


class Unet(nn.Module):
    """Three levels with two convolutions each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            layers: list[nn.Module] = []
            for channels in (before, after):
                layers += [nn.Conv2d(channels, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        y = self.down[2](functional.max_pool2d(second, 2))
        y = self.up[0](torch.cat([functional.interpolate(y, scale_factor=2.0), second], 1))
        y = self.up[1](torch.cat([functional.interpolate(y, scale_factor=2.0), first], 1))
        return self.out(y)


class Lstm(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self, width: int = 1024, tokens: int = 32_000) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.layers(self.embedding(x))
        return self.head(y)


class Block(nn.Module):
    """One layer of a GPT with queries, keys and values from one product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        packed = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.first(x))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """A decoder."""

    def __init__(self, layers: int = 8, width: int = 1024, tokens: int = 50_257) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(tokens, width), nn.Embedding(4096, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def vision(name: str, batch: int, size: int = 224) -> Built:
    """A model of torchvision."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import torchvision

        if name.startswith(("deeplab", "fcn", "lraspp")):
            module = torchvision.models.get_model(name, weights=None, weights_backbone=None)
            return Field(module, "out"), (images(batch, size),), {}
        return torchvision.models.get_model(name, weights=None), (images(batch, size),), {}

    return build


def video(name: str, frames: int) -> Built:
    """A model of torchvision for videos."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import torchvision

        clip = torch.randn(2, 3, frames, 112, 112, dtype=torch.bfloat16)
        return torchvision.models.get_model(name, weights=None), (clip,), {}

    return build


def timm(name: str, batch: int, size: int = 224) -> Built:
    """A model of timm."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import timm

        return timm.create_model(name), (images(batch, size),), {}

    return build


def hugging(
    name: str, inputs: Callable[[], tuple[Any, ...]], head: str = "Model", more: Any = dict, **config: Any
) -> Built:
    """A model of transformers: the name of its classes, what follows the name, and what differs from the default."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import transformers

        configuration = getattr(transformers, f"{name}Config")(**config)
        configuration.use_cache = False
        module = getattr(transformers, f"{name}{head}")(configuration)
        return Field(module, "last_hidden_state" if head == "Model" else "logits"), inputs(), more()

    return build


def own(module: Callable[[], nn.Module], inputs: Callable[[], tuple[Any, ...]]) -> Built:
    """A model of this file or of torch.nn."""
    return lambda: (module(), inputs(), {})


def decoder(layers: int, width: int, heads: int, shared: int, tokens: int = 32_000) -> dict[str, Any]:
    """Sizes of a decoder, by the names that most configurations have for them."""
    return {
        "hidden_size": width,
        "intermediate_size": 11 * width // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "vocab_size": tokens,
    }


def encoder_decoder(layers: int, width: int, heads: int) -> dict[str, Any]:
    """The same of an encoder with a decoder."""
    sides = ("encoder", "decoder")
    sizes: dict[str, Any] = {"d_model": width}
    for side in sides:
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    return sizes


def text(batch: int, length: int) -> Callable[[], tuple[torch.Tensor]]:
    """Inputs of a language model."""
    return lambda: (ids(batch, length),)


def masked(batch: int, length: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Inputs of a language model with a mask that hides nothing."""
    return lambda: (ids(batch, length), torch.ones(batch, length, dtype=torch.long))


def answers(batch: int, length: int) -> Callable[[], dict[str, torch.Tensor]]:
    """What a decoder beside an encoder is given."""
    return lambda: {"decoder_input_ids": ids(batch, length)}


def pixels(batch: int, size: int = 224) -> Callable[[], tuple[torch.Tensor]]:
    """Inputs of an image model."""
    return lambda: (images(batch, size),)


def sound(batch: int, *shape: int) -> Callable[[], tuple[torch.Tensor]]:
    """Inputs of an audio model."""
    return lambda: (torch.randn(batch, *shape, dtype=torch.bfloat16),)


_LM = "ForCausalLM"
_FOUR = {"num_hidden_layers": 4}
_LAYER = partial(nn.TransformerEncoderLayer, 512, 8, 2048, 0.0, batch_first=True)

READ_FROM: dict[str, Built] = {
    "vgg16": vision("vgg16", 16),
    "resnet50": vision("resnet50", 32),
    "resnet18_b1": vision("resnet18", 1),
    "r3d_18": video("r3d_18", 16),
    "efficientnet": vision("efficientnet_b0", 32),
    "mobilenet_v3": vision("mobilenet_v3_large", 32),
    "mobilenet_v2": vision("mobilenet_v2", 16),
    "densenet121": vision("densenet121", 16),
    "regnet": vision("regnet_y_1_6gf", 16),
    "convnext": vision("convnext_tiny", 16),
    "swin": vision("swin_t", 16),
    "vit_b_16": vision("vit_b_16", 16),
    "timm_vit": timm("vit_small_patch16_224", 16),
    "mixer": timm("mixer_s16_224", 16),
    "beit": timm("beit_base_patch16_224", 8),
    "deeplab": vision("deeplabv3_resnet50", 4, 256),
    "fcn": vision("fcn_resnet50", 2, 256),
    "unet": own(Unet, pixels(8, 128)),
    "gpt": own(Gpt, text(4, 1024)),
    "gpt_long": own(partial(Gpt, 4), text(1, 4096)),
    "bert": hugging("Bert", text(16, 256)),
    "bert_masked": hugging("Bert", masked(16, 256)),
    "roberta_eager": hugging("Roberta", text(8, 256), attn_implementation="eager"),
    "modernbert": hugging("ModernBert", masked(8, 512), num_hidden_layers=8),
    "gpt2": hugging("GPT2", text(4, 512), "LMHeadModel"),
    "llama": hugging("Llama", text(2, 1024), _LM, **decoder(6, 1024, 16, 4)),
    "llama_b1": hugging("Llama", text(1, 128), _LM, **decoder(6, 1024, 16, 16)),
    "qwen3": hugging("Qwen3", text(2, 1024), _LM, head_dim=64, **decoder(6, 1024, 16, 8, 50_000)),
    "mixtral": hugging("Mixtral", text(2, 512), _LM, **decoder(4, 512, 8, 4)),
    "mamba2": hugging(
        *("Mamba2", text(2, 512), _LM),
        **{"hidden_size": 512, "num_heads": 16, "head_dim": 64, "n_groups": 1, "state_size": 64, **_FOUR},
    ),
    "t5": hugging("T5", text(8, 256), more=answers(8, 128), d_model=512, num_layers=6),
    "bart": hugging("Bart", text(8, 256), more=answers(8, 128), **encoder_decoder(6, 768, 12)),
    "whisper": hugging("Whisper", sound(4, 80, 3000), more=answers(4, 64), **encoder_decoder(6, 512, 8)),
    "wav2vec2": hugging("Wav2Vec2", sound(2, 32_000), num_hidden_layers=6),
    "clip": hugging("CLIPVision", pixels(16), num_hidden_layers=8),
    "dinov2": hugging("Dinov2", pixels(8), num_hidden_layers=6),
    "deberta": hugging("DebertaV2", text(4, 256), hidden_size=768, num_attention_heads=12, **_FOUR),
    "opt": hugging("OPT", text(4, 512), _LM, num_hidden_layers=6),
    "phi3": hugging("Phi3", text(4, 1024), pad_token_id=0, **decoder(4, 768, 12, 12)),
    "squeezenet": vision("squeezenet1_1", 16),
    "shufflenet": vision("shufflenet_v2_x1_0", 32),
    "resnext50": vision("resnext50_32x4d", 16),
    "levit": timm("levit_128s", 16),
    "encoder": own(lambda: nn.TransformerEncoder(_LAYER(), 6), sound(16, 256, 512)),
}
HELD_OUT: dict[str, Built] = {
    "alexnet": vision("alexnet", 32),
    "mnasnet": vision("mnasnet1_0", 16),
    "wide_resnet": vision("wide_resnet50_2", 8),
    "vgg11_bn": vision("vgg11_bn", 8),
    "swin_v2": vision("swin_v2_t", 8),
    "maxvit": vision("maxvit_t", 4),
    "efficientnet2": vision("efficientnet_v2_s", 8),
    "mc3_18": video("mc3_18", 8),
    "deit": timm("deit_small_patch16_224", 32),
    "cait": timm("cait_xxs24_224", 8),
    "mobilevit": timm("mobilevit_s", 8, 256),
    "convnextv2": timm("convnextv2_nano", 16),
    "resmlp": timm("resmlp_12_224", 16),
    "poolformer": timm("poolformer_s12", 16),
    "eva02": timm("eva02_tiny_patch14_224", 16),
    "distilbert": hugging("DistilBert", text(16, 128)),
    "albert": hugging(
        "Albert", text(8, 256), hidden_size=768, num_attention_heads=12, intermediate_size=3072, **_FOUR
    ),
    "electra": hugging("Electra", text(32, 128), **_FOUR),
    "gpt_neox": hugging(
        "GPTNeoX",
        text(2, 512),
        _LM,
        hidden_size=1024,
        num_attention_heads=16,
        intermediate_size=4096,
        **_FOUR,
    ),
    "bloom": hugging("Bloom", text(2, 256), _LM, hidden_size=512, n_layer=4, n_head=8),
    "mistral": hugging("Mistral", text(4, 512), _LM, **decoder(4, 768, 12, 4)),
    "qwen2": hugging("Qwen2", text(2, 2048), **decoder(4, 768, 12, 2, 50_000)),
    "olmo2": hugging("Olmo2", text(4, 1024), **decoder(4, 768, 12, 12)),
    "gemma2": hugging("Gemma2", text(2, 1024), head_dim=96, **decoder(4, 768, 8, 4)),
    "pegasus": hugging("Pegasus", text(4, 256), more=answers(4, 128), **encoder_decoder(4, 512, 8)),
    "vit": hugging("ViT", pixels(32), **_FOUR),
    "siglip": hugging("SiglipVision", pixels(16), **_FOUR),
    "clip_text": hugging("CLIPText", text(64, 77), **_FOUR),
    "hf_swin": hugging("Swin", pixels(8), depths=[2, 2, 2, 2]),
    "hf_convnext": hugging("ConvNext", pixels(8)),
    "hubert": hugging("Hubert", sound(2, 24_000), **_FOUR),
    "granite": hugging("Granite", text(4, 512), _LM, **decoder(4, 512, 8, 8)),
    "lstm": own(Lstm, text(16, 256)),
    "gpt_small": own(partial(Gpt, 6, 512, 32_000), text(1, 2048)),
}
