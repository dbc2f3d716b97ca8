"""Models of transformers by configuration, and the phases of those that decode with a cache of their own.

A cache is whatever the model makes from a prompt: keys and values, latents of MLA, windows, states of recurrences. So no
architecture is known here by name: the tensors in it are found, and which of their axes grow with the tokens.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves, tree_map

from graphflops.base.record import replace
from graphflops.capturing.configurations import model_of, parts
from graphflops.capturing.name import Choices, Example, Name, refuse_choices
from graphflops.errors import ModelError, OptionError, shown

# The names under which forwards take their cache; the second from transformers 5.24 on.
_CACHES = ("past_key_values", "cache", "cache_params")
Axes = Mapping[str, Any]  # as `Example.open_axes`


def examples(name: Name, *, training: bool) -> dict[str, Example]:
    """What is exported of a model, by phase; `model` if it has none. Raises OptionError for an axis that no phase has."""
    model = model_of(name)
    chosen = name.choices
    taken = inspect.signature(type(model).forward).parameters
    decodes = model.can_generate() and any(argument in taken for argument in _CACHES)
    phase = chosen.phase or ("prefill" if decodes and not training else "forward")
    if phase != "forward" and not decodes:
        text = f"{name}: {type(model).__name__} has no cache: --phase {phase} is of models that decode"
        raise OptionError(text)
    if phase == "forward":
        refuse_choices(name, cache=chosen.cache != "dynamic")
        made = {"model": _forward(name, model)}
    else:
        # Models run as if torch were exporting them: then they do not read data, which is missing here too.
        flags: Any = ("_is_compiling_flag", "_is_exporting_flag")
        flags = {flag: True for flag in flags if hasattr(torch.compiler, flag)}
        exporting = mock.patch.multiple(torch.compiler, **flags)
        with torch.no_grad(), torch.device("meta"), exporting:
            steps = _Steps(name, model)
            phases = ("prefill", "decode") if phase == "both" else (phase,)
            made = {kind: getattr(steps, kind)() for kind in phases}
        made = made if phase == "both" else {"model": made[phase]}
    opened = tree_leaves([example.open_axes for example in made.values()])
    refuse_choices(name, **dict.fromkeys({*chosen.dynamic}.difference(opened), True))
    return made


def _first(config: Any, *names: str) -> Any:
    """The first value under one of these names in a configuration or in those inside it."""
    values = (getattr(part, name, None) for part in parts(config) for name in names)
    return next((value for value in values if value is not None), None)


def _forward(name: Name, model: Any) -> Example:
    """One forward pass without a cache, on the inputs that the model takes."""
    taken = inspect.signature(type(model).forward).parameters
    inputs = _inputs(name, model, name.choices)
    if "decoder_input_ids" in taken:
        inputs["decoder_input_ids"] = _tokens(name.choices.batch, name.choices.length)
    fixed = {"use_cache": False} if "use_cache" in taken or model.can_generate() else {}

    def results(given: Mapping[str, Any]) -> Any:
        output = type(model).forward(model, **given, **fixed)
        # results without values that are in no container that torch can export
        held = output if isinstance(output, (tuple, list, dict)) else vars(output)
        found = [x for x in tree_leaves(held) if isinstance(x, torch.Tensor)]
        return found[0] if len(found) == 1 else found

    return _example(name, model, inputs, results, _axes(inputs, "pixel_values"))


def _axes(inputs: Mapping[str, Any], without_length: str) -> Axes:
    """The axes of inputs that may stay open. without_length: the input whose second axis is not a length."""
    return {
        kind: {0: "batch", **({1: "length"} if tensor.dim() == 2 and kind != without_length else {})}
        for kind, tensor in inputs.items()
    }


def _example(
    name: Name, model: Any, inputs: Mapping[str, Any], results: Callable[..., Any], axes: Axes
) -> Example:
    opened = name.choices.dynamic
    chosen = tree_map(lambda axis: axis if axis in opened else None, axes)
    return Example(model, inputs, chosen, results)


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.int64, device="meta")


def _inputs(name: Name, model: Any, chosen: Choices) -> dict[str, torch.Tensor]:
    """Example inputs by argument, for the kinds that the model's forward takes: text, images, sound."""
    taken = inspect.signature(type(model).forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    made: dict[str, torch.Tensor] = {}
    known = ("input_ids", "pixel_values", "input_features", "input_values")
    for kind in dict.fromkeys((main, *known)):
        is_needed = kind in taken and taken[kind].default is inspect.Parameter.empty
        if kind == main or is_needed or not model.can_generate():
            made.update({kind: _input(model, kind, chosen)} if kind in taken else {})
    if "bbox" in taken and "input_ids" in made:
        made["bbox"] = torch.zeros(chosen.batch, chosen.length, 4, dtype=torch.int64, device="meta")
    if not made:
        asked = shown(", ".join([parameter for parameter in taken if parameter != "self"]), 200)
        raise ModelError(
            f"{name}: the forward of {type(model).__name__} takes {asked}: name another class of its library, or write a "
            "factory of example inputs, PKG.MOD:FACTORY"
        )
    return made


def _input(model: Any, kind: str, chosen: Choices) -> torch.Tensor:
    config = model.config
    make = partial(torch.empty, dtype=model.dtype, device="meta")
    if kind == "pixel_values":
        size = chosen.image_size or _first(config, "image_size") or 224
        height, width = (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
        frames = _first(config, "num_frames")
        channels = _first(config, "num_channels", "in_channels") or 3
        return make(chosen.batch, *([frames] if frames else []), channels, height, width)
    if kind == "input_features":
        bins = _first(config, "num_mel_bins", "feature_size") or 80
        positions = _first(config, "max_source_positions")
        if positions and hasattr(config, "num_mel_bins") and config.is_encoder_decoder:
            return make(chosen.batch, bins, 2 * positions)  # a spectrogram of fixed length
        return make(chosen.batch, chosen.length, bins)
    if kind == "input_values":
        if (bins := _first(config, "num_mel_bins")) and (length := _first(config, "max_length")):
            return make(chosen.batch, length, bins)
        return make(chosen.batch, max(chosen.length, 16000))  # a second of sound
    return _tokens(chosen.batch, chosen.length)


class _Steps:
    """The phases of a decoder: prefill, a whole prompt at once, and decode, one token with a cache of `context` tokens."""

    def __init__(self, name: Name, model: Any) -> None:
        self.name, self.model, self.chosen = name, model, name.choices
        self.config = model.config
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        taken = inspect.signature(type(model).forward).parameters
        self.argument = next(name for name in _CACHES if name in taken)
        self.token = "decoder_input_ids" if self.is_encoder_decoder else "input_ids"
        self.encoded_as: Any = None  # the class of the encoder's output
        self.sizes = {"batch": self.chosen.batch, "context": self.chosen.context}
        self.sizes |= {"length": self.chosen.length} if self.is_encoder_decoder else {}
        if self.argument == "cache_params" and self.chosen.cache == "static":
            raise OptionError(f"{name}: its state has one size: leave out --cache")

    def run(self, inputs: Mapping[str, Any], cache: Any) -> Any:
        """Runs a step of the model. inputs: by argument. cache: None to begin a new one."""
        given = dict(inputs)
        if "encoder_hidden" in given:
            given["encoder_outputs"] = self.encoded_as(last_hidden_state=given.pop("encoder_hidden"))
        given[self.argument] = cache
        return type(self.model).forward(self.model, **given, use_cache=True, return_dict=True)

    def prompt(self, sizes: Mapping[str, int], length: int) -> dict[str, Any]:
        """The inputs of a prefill; for a model with encoder and decoder, those of both. length: tokens of the decoder."""
        if not self.is_encoder_decoder:
            return {self.token: _tokens(sizes["batch"], length)}
        chosen = replace(self.chosen, batch=sizes["batch"], length=sizes["length"])
        return {**_inputs(self.name, self.model, chosen), self.token: _tokens(sizes["batch"], length)}

    def empty(self, sizes: Mapping[str, int]) -> Any:
        """The cache before a prompt: one of fixed size, or None if the model makes a dynamic one."""
        if self.chosen.cache == "dynamic":
            return None
        from transformers import EncoderDecoderCache, StaticCache

        config = self.config.get_text_config(decoder=True)
        static = partial(StaticCache, config=config, max_cache_len=sizes["context"])
        return EncoderDecoderCache(static(), static()) if self.is_encoder_decoder else static()

    def filled(self, sizes: Mapping[str, int]) -> Any:
        """The cache after a prompt of `context` tokens, or one less for a static cache, which needs room for one more."""
        length = sizes["context"] - (self.chosen.cache == "static")
        output = self.run(self.prompt(sizes, length), self.empty(sizes))
        cache = getattr(output, self.argument, None)
        if cache is None or not places(cache):
            text = f"{self.name}: {type(self.model).__name__} leaves no cache: capture --phase forward"
            raise ModelError(text)
        return cache

    def decode(self) -> Example:
        """A decode step: takes one token for each sequence and a full cache; returns logits and the new cache."""
        sizes = self.sizes
        template = self.filled(sizes)
        axes = growing(template, self.filled, sizes) if self.chosen.dynamic else {}
        inputs: dict[str, Any] = {self.token: _tokens(self.chosen.batch, 1)}
        open_axes: dict[str, Any] = {self.token: {0: "batch"}}
        if self.is_encoder_decoder:
            given = {name: value for name, value in self.prompt(sizes, 1).items() if name != self.token}
            encoded = self.model.get_encoder()(**given, return_dict=True)
            self.encoded_as = type(encoded)
            hidden = encoded.last_hidden_state
            inputs["encoder_hidden"] = torch.empty_like(hidden)
            has_length = hidden.shape[1] == self.chosen.length
            open_axes["encoder_hidden"] = {0: "batch", **({1: "length"} if has_length else {})}
        inputs["cache"] = {name: torch.empty_like(tensor) for name, tensor in state(template).items()}
        open_axes["cache"] = {name: axes.get(name, {}) for name in inputs["cache"]}
        grows = next(
            ((n, i) for n, named in axes.items() for i, size in named.items() if size == "context"), None
        )

        def results(given: Mapping[str, Any]) -> Any:
            own = dict(given)
            tensors = own.pop("cache")
            kept = {id(place.value): place.value for place in _walk(template, "", 0) if _is_kept(place.value)}
            cache = copy.deepcopy(template, kept)
            if grows and "context" in self.chosen.dynamic:
                for place in [*_walk(cache, "", 0)]:
                    if type(place.value) is int and place.value == sizes["context"]:  # a count of tokens
                        place.put(tensors[grows[0]].shape[grows[1]])
            for place in places(cache):
                place.put(tensors[place.name])
            return self.left(self.run(own, cache))

        return _example(self.name, self.model, inputs, results, open_axes)

    def prefill(self) -> Example:
        inputs = self.prompt(self.sizes, 1 if self.is_encoder_decoder else self.chosen.length)

        def results(given: Mapping[str, Any]) -> Any:
            return self.left(self.run(given, self.empty(self.sizes)))

        axes = _axes(inputs, self.token if self.is_encoder_decoder else "")
        return _example(self.name, self.model, inputs, results, axes)

    def left(self, output: Any) -> Any:
        cache = getattr(output, self.argument, None)
        return output[0] if cache is None else (output[0], state(cache))


_DEEPEST = 8  # levels of objects in a cache


class Place(NamedTuple):
    """A place in a cache. name: `layers.0.keys`. holder: the object, list or dictionary that has the value under `key`."""

    name: str
    holder: Any
    key: Any
    value: Any

    def put(self, value: Any) -> None:
        if isinstance(self.holder, (dict, list)):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


def places(cache: Any) -> list[Place]:
    """The places of tensors in a cache, each tensor once, in the order of the layers."""
    seen: set[int] = set()
    found = []
    for place in _walk(cache, "", 0):
        is_own = str(place.key).startswith("_")  # a constant of the layer
        is_kept = isinstance(place.value, torch.Tensor) and place.value.numel() and not is_own
        if is_kept and id(place.value) not in seen:
            seen.add(id(place.value))
            found.append(place)
    return found


def _is_kept(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.device, torch.dtype)) or hasattr(value, "model_type")


def _walk(holder: Any, prefix: str, depth: int) -> Iterator[Place]:
    if isinstance(holder, dict):
        entries: list[tuple[Any, Any]] = [*holder.items()]
    elif isinstance(holder, (list, tuple)):
        entries = [*enumerate(holder)]
    else:
        entries = [*getattr(holder, "__dict__", {}).items()]
    for key, value in entries:
        name = f"{prefix}{key}"
        if isinstance(value, (int, torch.Tensor)):
            yield Place(name, holder, key, value)
        elif depth < _DEEPEST and not isinstance(value, type) and not _is_kept(value):
            yield from _walk(value, f"{name}.", depth + 1)


def state(cache: Any) -> dict[str, torch.Tensor]:
    """The tensors of a cache by name."""
    return {place.name: place.value for place in places(cache)}


def growing(
    template: Any, made: Callable[[Mapping[str, int]], Any], sizes: Mapping[str, int]
) -> dict[str, dict[int, str]]:
    """By tensor of a cache: its axes that grow with a size, each with the size's name; with the last, if it grows with two.
    template: the cache at `sizes`. made: makes the cache at other sizes.
    """
    base = state(template)
    axes: dict[str, dict[int, str]] = {name: {} for name in base}
    for size, number in sizes.items():
        for name, tensor in state(made({**sizes, size: number + 1})).items():
            if name in base and tensor.dim() == base[name].dim():
                before = base[name].shape
                axes[name].update({i: size for i, n in enumerate(tensor.shape) if n == before[i] + 1})
    return axes
