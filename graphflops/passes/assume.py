"""Assumes a value for each open size that has no example, so that a report has numbers beside its formulas.

docs/report.md has the same table, under "Sizes without an example".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from graphflops.dims import Expr
from graphflops.dims.solving import LARGEST_SIZE, affine
from graphflops.graph import Graph, Symbol
from graphflops.tensor import TensorType

BATCH = 1
IMAGE = 224  # height and width of an image
OTHER = 64  # sequences, features, lists, and whatever the table does not name

_BATCH_WORDS = frozenset({"b", "bs", "nbatch"})
_LENGTH_WORDS = frozenset({"seq", "sequence", "len", "length", "token", "tokens", "past", "time", "frames"})
_IMAGE_WORDS = frozenset({"h", "w", "height", "width"})
# Axes of height and width and of the channels, counted from the end: channels first, channels last.
_LAYOUTS = (((-2, -1), -3), ((-3, -2), -1))
_COLOURS = 3


def assumed_sizes(graph: Graph, known: Collection[str]) -> dict[str, int]:
    """The assumed value of each symbol of the program that is not known.

    A size of an input axis follows the table, within its range. One that depends on data is at its upper bound, and has
    no value where its range has none.
    """
    axes: dict[frozenset[str], list[_Axis]] = {}
    for axis in _axes(graph):
        axes.setdefault(axis.size.symbols, []).append(axis)
    return {
        name: value
        for name, entry in graph.symbols.items()
        if name not in known and (value := _assumed(entry, axes.get(frozenset((name,)), ()))) is not None
    }


class _Axis(NamedTuple):
    """One open axis of an input."""

    size: Expr
    tensor: TensorType
    place: int

    def value(self, words: Collection[str]) -> int:
        """The assumed length of the axis. words: those in the name of its size."""
        if self._is_of_image(words):
            return IMAGE
        return BATCH if self._is_batch(words) else OTHER

    def _is_batch(self, words: Collection[str]) -> bool:
        if any(word in _BATCH_WORDS or word.startswith("batch") for word in words):
            return True
        return self.place == 0 and self.tensor.rank > 1 and _LENGTH_WORDS.isdisjoint(words)

    def _is_of_image(self, words: Collection[str]) -> bool:
        """True for an axis of an image: two open axes beside 3 channels, or one with the name of an image's axis."""
        shape, rank = self.tensor.shape, self.tensor.rank
        for pair, channel in _LAYOUTS:
            if rank < (3 if channel == -3 else 4) or self.place - rank not in pair:
                continue
            channels = shape[channel]
            if channels == _COLOURS and all(isinstance(shape[axis], Expr) for axis in pair):
                return True
            is_channel = channels in (1, _COLOURS) or (
                isinstance(channels, Expr) and _IMAGE_WORDS.isdisjoint(_words(str(channels)))
            )
            if is_channel and not _IMAGE_WORDS.isdisjoint(words):
                return True
        return False


def _axes(graph: Graph) -> Iterator[_Axis]:
    """The open axes of the inputs, in order."""
    for entry in graph.inputs:
        tensor = graph.types.get(entry.name)
        if entry.role == "user" and isinstance(tensor, TensorType):
            for place, size in enumerate(tensor.shape):
                if isinstance(size, Expr):
                    yield _Axis(size, tensor, place)


def _assumed(entry: Symbol, axes: Collection[_Axis]) -> int | None:
    """The assumed value of a symbol. axes: those whose size depends on nothing else."""
    if entry.assumed is not None:
        return entry.assumed
    if not entry.where:
        return entry.maximum if entry.maximum is not None and entry.maximum <= LARGEST_SIZE else None
    words = _words(entry.name)
    axis = min(axes, key=lambda axis: len(axis.size.terms), default=None)  # `h` says more than `h + 1`
    value = OTHER if axis is None else _solved(axis.size, entry.name, axis.value(words))
    lowest = 1 if entry.minimum is None else entry.minimum
    return max(lowest, value if entry.maximum is None else min(value, entry.maximum))


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+", name.lower()))


def _solved(size: Expr, name: str, wanted: int) -> int:
    """The value of the symbol at which an axis is about as long as wanted: 56 for an axis of `4*h` and 224."""
    linear = affine(size)
    if linear is None or linear[1] <= 0:
        return wanted
    return max((wanted - linear[2]) // linear[1], 1)
