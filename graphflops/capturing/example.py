"""What is exported: a module with example inputs, and which axes stay open; models of images, of timm and torchvision."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from graphflops.base.record import Record
from graphflops.capturing.name import LIBRARIES, Name
from graphflops.errors import ModelError, OptionError, shown


class Example(Record, frozen=True):
    """A module on the meta device with its inputs by name."""

    module: Any
    inputs: Mapping[str, Any]
    # By position of a tensor among the leaves of `inputs`, by its axis: what the axis is called.
    open_axes: Mapping[int, Mapping[int, str]]
    # Of the inputs by name, what the module computes; None for what its own forward does.
    results: Callable[[Mapping[str, Any]], Any] | None = None

    @contextmanager
    def ready(self) -> Iterator[Any]:
        """The module, whose forward takes exactly the inputs: modules and parameters keep the names of the library."""
        results = self.results
        if results is None:
            yield self.module
            return

        def forward(**given: Any) -> Any:
            return results(given)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        taken = [inspect.Parameter(name, kind) for name in self.inputs]
        forward.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        self.module.forward = forward
        try:
            yield self.module
        finally:
            del self.module.forward

    def dynamic_shapes(self) -> Any:
        """The open axes as `torch.export.export` takes them; axes of one name are one size."""
        import torch

        if not any(self.open_axes.values()):
            return None
        leaves, form = torch.utils._pytree.tree_flatten(dict(self.inputs))
        dims: dict[str, Any] = {}

        def dim(name: str) -> Any:
            return dims.setdefault(name, torch.export.Dim(name, min=2))

        shapes = [
            {axis: dim(name) for axis, name in self.open_axes.get(place, {}).items()}
            for place in range(len(leaves))
        ]
        return torch.utils._pytree.tree_unflatten(shapes, form)


def library(name: Name) -> Any:
    """The module of a library. Raises ModelError where it, or something that it needs, is not installed."""
    try:
        return importlib.import_module(LIBRARIES[name.library])
    except ImportError as error:
        problem = shown(str(error)) if error.name != LIBRARIES[name.library] else "it is not installed"
        advice = "pip install 'graphflops[capture]'"
        raise ModelError(f"{name}: needs {LIBRARIES[name.library]}: {problem}: {advice}") from None


def unknown(name: Name, there: Iterable[str]) -> ModelError:
    """The error for a model that a library does not have, with those that are called nearly so."""
    near = difflib.get_close_matches(name.target, [*there], 3)
    advice = f"; it has {', '.join(near)}" if near else ""
    return ModelError(f"{name}: {LIBRARIES[name.library]} has no model of that name{advice}")


def refuse_choices(name: Name, **given: object) -> None:
    """Raises OptionError for choices that a model does not have. given: by choice, its value unless it is the default."""
    for choice, value in given.items():
        if value:
            raise OptionError(f"{name}: has no {choice} to choose")


def from_timm(name: Name) -> Example:
    """A model of timm, with images of the size that it was trained on."""
    timm = library(name)
    if not timm.is_model(name.target):
        raise unknown(name, timm.list_models())
    sizes: dict[str, Any] = {**name.sizes}
    size = name.choices.image_size
    try:  # models whose parameters depend on it take it as an argument
        module = _built(timm, name, sizes if size is None else {**sizes, "img_size": size})
    except TypeError:
        module = _built(timm, name, sizes)
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
    kinds = ("detection", "segmentation", "video", "optical_flow")
    kind = next((x for x in kinds if name.target in models.list_models(getattr(models, x))), "")
    without = {"weights": None} | ({"weights_backbone": None} if kind == "segmentation" else {})
    if kind == "detection":
        raise ModelError(
            f"{name}: how many boxes a detector keeps depends on the image, which torch cannot export: "
            f"capture its backbone by a factory of yours, PKG.MOD:FACTORY"
        )
    with torch.device("meta"):
        module = models.get_model(name.target, **without, **name.sizes)
    weights = models.get_model_weights(name.target)
    crop = getattr(next(iter(weights)).transforms(), "crop_size", [224])
    spatial = [crop[0], crop[-1]] if name.choices.image_size is None else [name.choices.image_size] * 2
    if kind == "video":
        return _of_images(name, module, [3, 16, *spatial])
    if kind == "optical_flow":
        return _of_images(name, module, [3, 520, 960] if not name.choices.image_size else [3, *spatial], 2)
    return _of_images(name, module, [3, *spatial])


def _of_images(name: Name, module: Any, shape: Sequence[int], images: int = 1) -> Example:
    """The example of a module that takes `images` batches of one shape."""
    import torch

    chosen = name.choices
    refuse_choices(name, phase=chosen.phase not in (None, "forward"), cache=chosen.cache != "dynamic")
    others = dict.fromkeys({*chosen.dynamic} - {"batch"}, True)
    refuse_choices(name, weights=chosen.weights, quantize=chosen.quantize, **others)
    module.eval().to(getattr(torch, chosen.dtype) if chosen.dtype else None)
    dtype = next(module.parameters()).dtype
    taken = [*inspect.signature(module.forward).parameters][:images]
    if len(taken) < images:
        raise ModelError(f"{name}: its forward takes {shown(', '.join(taken) or 'nothing')}, not an image")
    inputs = {argument: torch.empty((chosen.batch, *shape), dtype=dtype, device="meta") for argument in taken}
    axes = {0: "batch"} if "batch" in chosen.dynamic else {}
    return Example(module, inputs, dict.fromkeys(range(images), axes))
