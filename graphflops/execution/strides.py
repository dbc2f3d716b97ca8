"""Strides of tensors: their order of axes, and what they are after axes are merged and split."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from graphflops.dims import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim
    from graphflops.tensor import TensorType

Strides = tuple["Dim", ...]  # elements from one position of an axis to the next, by axis
_FALLBACK = 97  # of an open size where strides are compared


class HasStrides(Protocol):
    """Values and how they lie, their sizes known or open."""

    values: Mapping[str, Value]

    def typed(self, name: str) -> TensorType:
        """The type of a value that is a tensor."""

    def of(self, name: str) -> Strides:
        """Its strides."""


def row_major(shape: Sequence[Dim], order: Sequence[int] | None = None) -> Strides:
    """Strides of a tensor without gaps; order: its axes from outermost to innermost, 0, 1, 2, ... where not given."""
    strides: list[Dim] = [1] * len(shape)
    step: Dim = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def is_contiguous(shape: Sequence[Dim], strides: Strides) -> bool:
    """Whether elements lie in row-major order without gaps; the stride of an axis of size 1 does not matter."""
    expected = row_major(shape)
    return len(shape) == len(strides) and all(
        size == 1 or own == wanted for size, own, wanted in zip(shape, strides, expected, strict=True)
    )


def has_channels_last(shape: Sequence[Dim], strides: Strides) -> bool:
    """Whether the channels of images are their innermost axis in memory."""
    return len(shape) > 2 and strides[1] == 1 and shape[1] != 1 and strides[-1] != 1


def order_of(strides: Strides) -> list[int]:
    """The axes from outermost to innermost; open sizes are compared by their hints."""
    numbers = [size_hint(stride) for stride in strides]
    return sorted(range(len(strides)), key=lambda axis: -numbers[axis])


def size_hint(size: Dim, fallback: int = _FALLBACK) -> int:
    """A number for a size: of a formula its value where all open sizes are `fallback`."""
    if isinstance(size, int):
        return size
    return evaluate(size, dict.fromkeys(size.symbols, fallback)) or fallback


def regrouped(old: Sequence[Dim], strides: Strides, new: Sequence[Dim]) -> Strides | None:
    """Strides after axes are merged and split; None where that takes a copy."""
    if is_contiguous(old, strides) or 0 in (*old, *new):  # without elements there is nothing to copy
        return row_major(new)
    groups = _groups(old, new)
    if groups is None:
        return None
    found: list[Dim] = [1] * len(new)
    for before, after in groups:
        wide = [axis for axis in before if old[axis] != 1]
        for outer, inner in pairwise(wide):
            if strides[outer] != strides[inner] * old[inner]:
                return None
        step: Dim = strides[wide[-1]] if wide else 1
        for axis in reversed(after):
            found[axis] = step
            step = step * new[axis]
    return tuple(found)


def _groups(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Axes of two shapes that hold the same elements, in the shortest runs; None if sizes do not determine them."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [i] if i < len(old) else [], [j] if j < len(new) else []
        a, b = (old[i] if before else 1), (new[j] if after else 1)
        i, j = i + len(before), j + len(after)
        while a != b:
            is_less = _is_less(a, b)
            if is_less is None:
                return None
            size = (old[i] if i < len(old) else None) if is_less else (new[j] if j < len(new) else None)
            if size is None:
                return None
            if is_less:
                a, i = a * size, i + 1
                before.append(i - 1)
            else:
                b, j = b * size, j + 1
                after.append(j - 1)
        groups.append((before, after))
    return groups


def _is_less(a: Dim, b: Dim) -> bool | None:
    """Which of two sizes is the smaller one: of open ones that which goes into the other; None for others."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return True if b // a * a == b else False if a // b * b == a else None
