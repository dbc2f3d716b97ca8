"""Caches of decoders: the tensors in an object of any class, and which of their axes grow with the tokens.

A cache is what the model itself makes of a prompt: keys and values, latents of MLA, windows, states of recurrences and
convolutions, encoder's keys and values. No architecture is known by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

_DEEPEST = 8  # objects within one another


class Place(NamedTuple):
    """Where a value stands in a cache. name: `layers.0.keys`; holder: the object or dictionary that has it, under key."""

    name: str
    holder: Any
    key: Any
    value: Any

    def put(self, value: Any) -> None:
        """Put another value there."""
        if isinstance(self.holder, (dict, list)):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


def places(cache: Any) -> list[Place]:
    """Where a cache holds tensors, each tensor once, in the order of its layers."""
    seen: set[int] = set()
    found = []
    for place in _walk(cache, "", 0):
        is_own = str(place.key).startswith("_")  # a constant of the layer
        is_kept = isinstance(place.value, torch.Tensor) and place.value.numel() and not is_own
        if is_kept and id(place.value) not in seen:
            seen.add(id(place.value))
            found.append(place)
    return found


def counters(cache: Any, number: int) -> list[Place]:
    """Where a cache holds this integer, as the number of tokens that a layer has seen."""
    return [place for place in _walk(cache, "", 0) if type(place.value) is int and place.value == number]


def duplicate(cache: Any) -> Any:
    """A cache that holds the same tensors and may be changed."""
    return copy.deepcopy(
        cache, {id(place.value): place.value for place in _walk(cache, "", 0) if _is_kept(place.value)}
    )


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
    """By tensor of a cache: its axes that grow with a size, by the size's name.

    template: the cache at these sizes. made: the cache at others. An axis that follows two sizes belongs to the last.
    """
    base = state(template)
    axes: dict[str, dict[int, str]] = {name: {} for name in base}
    for size, number in sizes.items():
        for name, tensor in state(made({**sizes, size: number + 1})).items():
            if name in base and tensor.dim() == base[name].dim():
                before = base[name].shape
                axes[name].update({i: size for i, n in enumerate(tensor.shape) if n == before[i] + 1})
    return axes
