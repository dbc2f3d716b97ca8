"""Models of images: those of timm and torchvision, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.capturing.example import Example, library, refuse_choices, unknown
from graphflops.errors import ModelError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.capturing.name import Name


def from_timm(name: Name) -> Example:
    """A model of timm, with images of the size that it was trained on."""
    timm = library(name)
    if not timm.is_model(name.target):
        raise unknown(name, timm.list_models())
    sizes: dict[str, Any] = {**name.sizes}
    size = name.choices.image_size
    module = None
    if size is not None:
        try:  # models whose parameters depend on it take it as an argument
            module = _built(timm, name, {**sizes, "img_size": size})
        except TypeError:
            module = None
    module = _built(timm, name, sizes) if module is None else module
    channels, *spatial = module.pretrained_cfg.get("input_size") or (3, 224, 224)
    channels = sizes.get("in_chans", channels)
    return _of_images(name, module, [channels, *([size, size] if size else spatial)])


def _built(timm: Any, name: Name, sizes: dict[str, Any]) -> Any:
    import torch

    with torch.device("meta"):
        return timm.create_model(name.target, pretrained=False, **sizes)


def from_torchvision(name: Name) -> Example:
    """A model of torchvision, with images (and frames) of the size that its weights were trained on."""
    import torch

    models = library(name).models
    if name.target not in models.list_models():
        raise unknown(name, models.list_models())
    without = {"weights": None}
    if name.target in models.list_models(models.detection) or name.target in models.list_models(
        models.segmentation
    ):
        without["weights_backbone"] = None
    if name.target in models.list_models(models.detection):
        raise ModelError(
            f"{name}: how many boxes a detector keeps depends on the image, which torch cannot export: "
            f"capture its backbone by a factory of yours, PKG.MOD:FACTORY"
        )
    with torch.device("meta"):
        module = models.get_model(name.target, **without, **name.sizes)
    weights = models.get_model_weights(name.target)
    crop = getattr(next(iter(weights)).transforms(), "crop_size", [224])
    spatial = [crop[0], crop[-1]] if name.choices.image_size is None else [name.choices.image_size] * 2
    if name.target in models.list_models(models.video):
        return _of_images(name, module, [3, 16, *spatial])
    if name.target in models.list_models(models.optical_flow):
        return _of_images(name, module, [3, 520, 960] if not name.choices.image_size else [3, *spatial], 2)
    return _of_images(name, module, [3, *spatial])


def _of_images(name: Name, module: Any, shape: Sequence[int], images: int = 1) -> Example:
    """The example of a module that takes `images` batches of one shape."""
    import inspect

    import torch

    chosen = name.choices
    refuse_choices(name, phase=chosen.phase not in (None, "forward"), cache=chosen.cache != "dynamic")
    refuse_choices(
        name,
        weights=chosen.weights,
        quantize=chosen.quantize,
        **dict.fromkeys({*chosen.dynamic} - {"batch"}, True),
    )
    module.eval().to(getattr(torch, chosen.dtype) if chosen.dtype else None)
    dtype = next(module.parameters()).dtype
    taken = [*inspect.signature(module.forward).parameters][:images]
    if len(taken) < images:
        raise ModelError(f"{name}: its forward takes {shown(', '.join(taken) or 'nothing')}, not an image")
    inputs = {argument: torch.empty((chosen.batch, *shape), dtype=dtype, device="meta") for argument in taken}
    axes = {0: "batch"} if "batch" in chosen.dynamic else {}
    return Example(module, inputs, dict.fromkeys(range(images), axes))
