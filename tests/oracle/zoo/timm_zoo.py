"""The smallest architecture of each family that timm registers, on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from zoo.case import Case
from zoo.vision import torchvision_operators

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


def cases() -> Iterator[Case]:
    """One model per module of timm.models."""
    torchvision_operators()
    import timm

    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
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
