"""The smallest architecture of each family that timm registers, on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.oracle.zoo.case import Case
from tests.oracle.zoo.vision import torchvision_operators

if TYPE_CHECKING:
    from collections.abc import Iterator

_SMALL = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "xs",
    "tiny",
    "t",
    "s",
    "small",
    "050",
    "b0",
    "m0",
    "a",
    "18",
    "base",
)
# Modules whose smallest model takes long to trace, or that torchvision and transformers have as well.
_SLOW = (
    *(
        "cait",
        "coat",
        "csatv2",
        "deepseek_vit",
        "densenet",
        "efficientformer_v2",
        "efficientvit_msra",
        "gcvit",
        "gemma4_vit",
    ),
    *(
        "inception_resnet_v2",
        "inception_v3",
        "inception_v4",
        "metaformer",
        "mobilenetv5",
        "mvitv2",
        "nasnet",
        "nextvit",
    ),
    *(
        "pnasnet",
        "qwen3_vit",
        "rdnet",
        "regnet",
        "repghost",
        "repvit",
        "res2net",
        "resnetv2",
        "rexnet",
        "shvit",
        "swiftformer",
    ),
    *(
        "swin_transformer",
        "swin_transformer_v2",
        "swin_transformer_v2_cr",
        "tiny_vit",
        "tnt",
        "tresnet",
        "twins",
        "visformer",
    ),
    *(
        "vision_transformer_relpos",
        "vision_transformer_sam",
        "vitamin",
        "volo",
        "vovnet",
        "xception",
        "xcit",
        "davit",
        "levit",
    ),
    *(
        "pvt_v2",
        "sknet",
        "mobilevit",
        "hrnet",
        "dla",
        "dpn",
        "nest",
        "pit",
        "hieradet_sam2",
        "vision_transformer_hybrid",
    ),
)


def cases() -> Iterator[Case]:
    """One model of each module that is quick to trace."""
    return smallest(_SLOW)


def everything() -> Iterator[Case]:
    """One model of each module."""
    return smallest(())


def smallest(left_out: tuple[str, ...]) -> Iterator[Case]:
    """The model with the smallest name, so to speak, of each module of timm.models."""
    torchvision_operators()
    import timm

    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names and module not in left_out:
            yield picture(min(names, key=lambda name: (likely_size(name), len(name))))


def likely_size(name: str) -> int:
    """How large a name says the model is: the place of the first word of _SMALL in it."""
    parts = name.replace(".", "_").split("_")
    return next(
        (rank for rank, word in enumerate(_SMALL) if word in parts or name.endswith(word)), len(_SMALL)
    )


def picture(name: str) -> Case:
    def build() -> torch.nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    def inputs(n: int) -> tuple[torch.Tensor]:
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(name)
        return (torch.rand(n, *(config.input_size if config else (3, 224, 224))),)

    return Case(f"timm/{name}", build, inputs, ({"n": 2}, {"n": 3}, {"n": 8}), meta=True)
