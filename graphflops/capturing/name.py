"""Names of models in libraries and choices of how to capture them (`hf:LlamaConfig(num_hidden_layers=2)@phase=decode`);
what is exported: a module with example inputs, and the axes that stay open. Models of timm and torchvision are built here.
"""

import ast
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec import structs

from graphflops.base.record import Record, replace
from graphflops.errors import ModelError, OptionError, require_choice, shown

LIBRARIES = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision"}
PHASES = ("forward", "prefill", "decode", "both")
AXES = ("batch", "length", "context")
DTYPES = ("float32", "bfloat16", "float16")
CACHES = ("dynamic", "static")
QUANTIZED = ("fp8",)
_CALL = re.compile(r"[A-Za-z_][\w.]*\(.*\)", re.DOTALL)
_SETTING = re.compile(r"[a-z_]+=[^,=]*")


class Choices(Record, frozen=True):
    """How a model is captured."""

    batch: int = 1  # sequences or images
    length: int = 128  # tokens (samples of sound) of an input
    context: int = 1024  # tokens in the cache before a decode step
    image_size: int | None = None  # height and width in pixels; None: by the model's configuration
    dynamic: tuple[str, ...] = ()  # axes that stay open, of AXES, from 2 on
    dtype: str | None = None  # of parameters; None: the library's choice
    phase: str | None = None  # of PHASES; None: prefill for a model with a cache of its own, else forward
    cache: str = "dynamic"  # of CACHES
    weights: str | None = None  # path of a file of weights, whose header shows the dtype
    quantize: str | None = None  # of QUANTIZED: the type in which linear layers store weights and multiply

    def __post_init__(self) -> None:
        for name in ("batch", "length", "context", "image_size"):
            size = getattr(self, name)
            if size is not None and not 0 < size < 2**31:
                raise OptionError(f"{name}: {size} is no size")
        lists = {"phase": PHASES, "dtype": DTYPES, "cache": CACHES, "quantize": QUANTIZED}
        for name, choices in lists.items():
            if getattr(self, name) is not None:
                require_choice(name, getattr(self, name), choices)
        for axis in self.dynamic:
            require_choice("dynamic", axis, AXES)
            if getattr(self, axis) == 1:  # torch.export takes such an axis for fixed
                structs.force_setattr(self, axis, 2)

    def with_texts(self, texts: Mapping[str, str]) -> "Choices":
        """These choices, with those changed that are given as text: `{"batch": "8", "dynamic": "batch+context"}`."""
        given: dict[str, Any] = {}
        for name, text in texts.items():
            require_choice("choice", name, self.__struct_fields__)
            if name in ("batch", "length", "context", "image_size"):
                if not (text.isdecimal() and len(text) < 10):
                    raise OptionError(f"{name}: {shown(text)} is no size")
                given[name] = int(text)
            else:
                given[name] = tuple(text.split("+")) if name == "dynamic" else text
        return replace(self, **given)


class Name(Record, frozen=True):
    """A model of a library. library: of LIBRARIES; target: its name there, or a file; sizes: literal keyword arguments."""

    library: str
    target: str
    sizes: Mapping[str, Any]
    choices: Choices

    def __str__(self) -> str:
        return shown(f"{self.library}:{self.target}")


def parsed(text: str, choices: Choices | None = None) -> Name | None:
    """The name of a library's model; None for other text. choices: where it has none. Raises OptionError if malformed."""
    library, colon, rest = text.partition(":")
    if not colon or library not in LIBRARIES or os.path.exists(text):
        return None
    target, at, settings = rest.rpartition("@")
    if not at or not all(_SETTING.fullmatch(part) for part in settings.split(",")):
        target, settings = rest, ""
    texts = dict(part.split("=") for part in settings.split(",")) if settings else {}
    sizes: Mapping[str, Any] = {}
    if _CALL.fullmatch(target) and not os.path.exists(target):
        wrong = f"{shown(target)}: write sizes as literals by name, as in LlamaConfig(num_hidden_layers=2)"
        try:  # nothing is evaluated
            call: Any = ast.parse(target, mode="eval").body
            is_named = isinstance(call, ast.Call) and isinstance(call.func, (ast.Name, ast.Attribute))
            given = call.keywords if is_named else []
            sizes = {str(x.arg): ast.literal_eval(x.value) for x in given if x.arg}
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise OptionError(wrong) from None
        if not is_named or call.args or len(sizes) < len(given):
            raise OptionError(wrong)
        target = target.partition("(")[0]
    if not target:
        raise OptionError(f"{shown(text)}: names no model; write it as in hf:config.json or timm:resnet50")
    return Name(library, target, sizes, (choices or Choices()).with_texts(texts))


class Example(Record, frozen=True):
    """A module on the meta device with its inputs by name."""

    module: Any
    inputs: Mapping[str, Any]
    # By input (and by name where it is several tensors) and axis: the axis's name, None for one that does not stay open.
    open_axes: Mapping[str, Any]
    # Runs the module on its inputs by name and returns the results; None: the module's own forward does.
    results: Callable[[Mapping[str, Any]], Any] | None = None

    @contextmanager
    def ready(self) -> Iterator[Any]:
        """The module, with a forward that takes exactly the inputs. Modules and parameters keep the library's names."""
        from unittest import mock  # no other command needs it

        results = self.results
        if results is None:
            yield self.module
            return

        def forward(**given: Any) -> Any:
            return results(given)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        taken = [inspect.Parameter(name, kind) for name in self.inputs]
        forward.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        with mock.patch.object(self.module, "forward", forward):
            yield self.module

    def dynamic_shapes(self) -> Any:
        """The open axes as `torch.export.export` takes them; axes with the same name have the same size."""
        import torch

        names = filter(None, torch.utils._pytree.tree_leaves(self.open_axes))
        dims = {name: torch.export.Dim(name, min=2) for name in names}
        return torch.utils._pytree.tree_map(dims.get, self.open_axes) if dims else None


def library(name: Name) -> Any:
    """A library's module. Raises ModelError if it, or something that it needs, is not installed."""
    try:
        return importlib.import_module(LIBRARIES[name.library])
    except ImportError as error:
        problem = shown(str(error)) if error.name != LIBRARIES[name.library] else "it is not installed"
        advice = "pip install 'graphflops[capture]'"
        raise ModelError(f"{name}: needs {LIBRARIES[name.library]}: {problem}: {advice}") from None


def unknown(name: Name, there: Iterable[str]) -> ModelError:
    """The error for a model that a library does not have, with similar names."""
    from difflib import get_close_matches  # no other command needs it

    near = get_close_matches(name.target, [*there], 3)
    advice = f"; it has {', '.join(near)}" if near else ""
    return ModelError(f"{name}: {LIBRARIES[name.library]} has no model of that name{advice}")


def refuse_choices(name: Name, **given: object) -> None:
    """Raises OptionError for choices that a model does not have. given: each choice's value, falsy if it is the default."""
    for choice, value in given.items():
        if value:
            raise OptionError(f"{name}: has no {choice} to choose")


def from_timm(name: Name) -> Example:
    """A model of timm, with images of the size that it was trained on."""
    import torch

    timm = library(name)
    if not timm.is_model(name.target):
        raise unknown(name, timm.list_models())
    sizes: dict[str, Any] = {**name.sizes}
    size = name.choices.image_size
    build = partial(timm.create_model, name.target, pretrained=False, **sizes)
    with torch.device("meta"):
        try:  # models whose parameters depend on it take it as an argument
            module = build() if size is None else build(img_size=size)
        except TypeError:
            module = build()
    channels, *spatial = module.pretrained_cfg.get("input_size") or (3, 224, 224)
    channels = sizes.get("in_chans", channels)
    return _of_images(name, module, [channels, *([size, size] if size else spatial)])


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
    return Example(module, inputs, dict.fromkeys(inputs, axes))
