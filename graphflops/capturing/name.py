"""Names of models in libraries, and how they are captured: `hf:LlamaConfig(num_hidden_layers=2)@phase=decode`."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.errors import OptionError, require_choice, shown

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
    context: int = 1024  # tokens that a cache holds before a decode step
    image_size: int | None = None  # height and width in pixels, as the model's configuration says where None
    dynamic: tuple[str, ...] = ()  # axes that stay open, of AXES, from 2 on
    dtype: str | None = None  # of parameters, as the library chooses where None
    phase: str | None = None  # of PHASES; without one, prefill for a model with its own cache, else forward
    cache: str = "dynamic"  # of CACHES
    weights: str | None = None  # path of a file whose header says the dtype
    quantize: str | None = None  # of QUANTIZED, what weights of products are stored and multiplied in

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
            if getattr(self, axis) == 1:  # which torch.export takes for fixed
                structs.force_setattr(self, axis, 2)

    def with_texts(self, texts: Mapping[str, str]) -> Choices:
        """These choices with others that are written as text: `{"batch": "8", "dynamic": "batch+context"}`."""
        given: dict[str, Any] = {}
        for name, text in texts.items():
            require_choice("choice", name, [field.name for field in fields(self)])
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
    """The name of a model of a library; None for other text, and for a file that is called so.

    choices: those that the text does not make. Raises OptionError for what is malformed.
    """
    library, colon, rest = text.partition(":")
    if not colon or library not in LIBRARIES or os.path.exists(text):
        return None
    target, at, settings = rest.rpartition("@")
    if not at or not all(_SETTING.fullmatch(part) for part in settings.split(",")):
        target, settings = rest, ""
    texts = dict(part.split("=") for part in settings.split(",")) if settings else {}
    sizes: Mapping[str, Any] = {}
    if _CALL.fullmatch(target) and not os.path.exists(target):
        target, sizes = _call(target)
    if not target:
        raise OptionError(f"{shown(text)}: names no model; write it as in hf:config.json or timm:resnet50")
    return Name(library, target, sizes, (choices or Choices()).with_texts(texts))


def _call(text: str) -> tuple[str, Mapping[str, Any]]:
    """The name and the literal arguments of `Name(size=2)`; nothing is evaluated."""
    wrong = f"{shown(text)}: write sizes as literals by name, as in LlamaConfig(num_hidden_layers=2)"
    try:
        call = ast.parse(text, mode="eval").body
        if (
            not isinstance(call, ast.Call)
            or call.args
            or not isinstance(call.func, (ast.Name, ast.Attribute))
        ):
            raise OptionError(wrong)
        sizes = {str(given.arg): ast.literal_eval(given.value) for given in call.keywords if given.arg}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise OptionError(wrong) from None
    if len(sizes) < len(call.keywords):
        raise OptionError(wrong)
    return text.partition("(")[0], sizes
