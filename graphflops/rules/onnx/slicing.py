"""Slices and borders of tensors: only the returned elements are read."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, ceil_div, differ, dim_min, floor_div, total
from graphflops.rules.arrangement import bordered, picked
from graphflops.rules.axes import axis as place_of
from graphflops.rules.onnx.entries import (
    chosen_axes,
    filled,
    fixed,
    known_contents,
    many,
    moved,
    size,
    sizes,
    unknown,
)
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import Shape, replaced, shown
from graphflops.rules.signs import kept_by_slice, start_of_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.rules.onnx.entries import Numbers, Place
    from graphflops.rules.onnx.values import Number
    from graphflops.tensor import TensorType

# Pieces of an axis.


@rule("onnx.Split")
def split(
    x: TensorType,
    split: Numbers = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    outputs: tuple[bool, ...] = (),
) -> Estimate:
    """Pieces of the given sizes, else equal ones of which the last may be shorter."""
    place, count = place_of(axis, x.rank), num_outputs or len(outputs)
    require(len(outputs) <= count, f"{count} pieces are asked for, but {len(outputs)} named")
    parts = pieces(x, place, split_lengths(x.shape[place], split, count))
    return _wanted(parts, outputs)


@rule("onnx.Split.1", "onnx.Split.2", "onnx.Split.11", "onnx.Split.13")
def split_evenly(
    x: TensorType, split: Numbers = None, *, axis: int = 0, outputs: tuple[bool, ...] = ()
) -> Estimate:
    """Pieces of the given sizes, else equal ones."""
    place = place_of(axis, x.rank)
    length, count = x.shape[place], len(outputs)
    if split is None and count:
        return _wanted(pieces(x, place, (floor_div(length, count),) * count), outputs)
    return _wanted(pieces(x, place, split_lengths(length, split, count)), outputs)


def _wanted(parts: tuple[TensorType, ...], outputs: tuple[bool, ...]) -> Estimate:
    """The pieces; only the wanted ones are read and written."""
    wanted = tuple(part for part, asked in zip(parts, outputs or (True,) * len(parts), strict=False) if asked)
    return Estimate(parts, reads=wanted, writes=wanted)


MOST_PIECES = 100_000


def split_lengths(length: Dim, given: Numbers, count: int) -> tuple[Dim, ...]:
    """The lengths of the pieces: as given, else `count` equal ones."""
    if given is not None:
        said = many(given) or count
        require(said <= MOST_PIECES, f"{said} pieces are too many")
        lengths = sizes(given) or tuple(unknown("split", place) for place in range(said))
        require(not differ(total(lengths), length), f"{shown(lengths)} do not add up to {length}")
        return lengths
    require(0 < count <= MOST_PIECES, f"{count} is not a valid number of pieces")
    step = ceil_div(length, count)
    if isinstance(length, int) and isinstance(step, int):
        require(length == 0 or step * (count - 1) < length, f"{length} do not make {count} pieces of {step}")
        return tuple(max(0, min(step, length - step * place)) for place in range(count))
    return (*(step,) * (count - 1), length - step * (count - 1))


def pieces(x: TensorType, place: int, lengths: Sequence[Dim]) -> tuple[TensorType, ...]:
    """The parts of those lengths along an axis, one after another, contents included."""
    starts = accumulate(lengths, initial=0)
    shapes = [replaced(x.shape, place, length) for length in lengths]
    return tuple(_window(x, shape, {place: (start, 1)}) for shape, start in zip(shapes, starts, strict=False))


def _window(x: TensorType, shape: Shape, where: dict[int, tuple[Dim, int]]) -> TensorType:
    """A part of that shape; `where` gives start and step per axis."""
    out = x.like(shape)
    named = (where.get(place, (0, 1)) for place in range(x.rank))
    steps = [(start, step) for start, step in named if isinstance(start, int)]
    if len(steps) < x.rank:
        return out
    return moved(x, out, lambda at: [start + i * step for i, (start, step) in zip(at, steps, strict=True)])


@rule("onnx.Slice")
def slice_(
    x: TensorType, starts: Numbers, ends: Numbers, axes: Numbers = None, steps: Numbers = None
) -> Estimate:
    """A range of each named axis; a bound past either end means that end."""
    places = chosen_axes(axes, x.rank, many(starts))
    if places is None:
        return picked(x.like(unknown("slice", place) for place in range(x.rank)))
    every = [sizes(given) for given in (starts, ends)]
    strides = (1,) * len(places) if steps is None else sizes(steps)
    shape, where = x.shape, {}
    for at, place in enumerate(places):
        start, end, step = (None if known is None else known[at] for known in (*every, strides))
        if start is None or end is None or not isinstance(step, int):
            shape = replaced(shape, place, unknown("slice", place))
            where[place] = (unknown("slice", place), 1)
        else:
            require(step != 0, "a slice cannot have a step of 0")
            where[place] = (start_of_slice(x.shape[place], start, step), step)
            shape = replaced(shape, place, kept_by_slice(x.shape[place], start, end, step))
    return picked(_window(x, shape, where))


# Borders.


@rule("onnx.Pad")
def pad(
    x: TensorType,
    pads: Numbers = None,
    constant_value: Numbers = None,
    axes: Numbers = None,
    *,
    mode: str = "constant",
    value: float = 0.0,
    paddings: Sequence[int] | None = None,
) -> Estimate:
    """A copy with a border: widths before every axis, then behind; a negative width crops."""
    places = chosen_axes(axes, x.rank)
    widths = sizes(pads if paddings is None else paddings)
    if places is None or widths is None:
        touched = range(x.rank) if places is None else places
        return Estimate((x.like(_opened(x.shape, touched)),), reads=(x,))
    require(len(widths) == 2 * len(places), f"{shown(widths)} are not pairs of widths for {len(places)} axes")
    pairs = dict(zip(places, zip(widths[: len(places)], widths[len(places) :], strict=True), strict=True))
    ahead = {at: before for at, (before, _) in pairs.items()}
    fill = 0 if constant_value is None else size(constant_value)
    out = x.like(bordered(x.shape, pairs))
    return Estimate((_with_border(x, out, ahead, mode, fill),), reads=(x,))


def _opened(shape: Shape, places: Sequence[int]) -> Shape:
    return tuple(unknown("pad", at) if at in places else length for at, length in enumerate(shape))


def _with_border(
    x: TensorType, out: TensorType, ahead: dict[int, Dim], mode: str, fill: Dim | None
) -> TensorType:
    """`out` with the contents of `x` and of its border."""
    known = known_contents(x)
    widths = [width for at in range(x.rank) if isinstance(width := ahead.get(at, 0), int)]
    shape = fixed(out.shape)
    if known is None or shape is None or len(widths) < x.rank:
        return out
    # A negative width crops first; the border is drawn from what remains.
    first = [max(0, -width) for width in widths]
    last = [min(n, length - width) for n, length, width in zip(known.shape, shape, widths, strict=True)]
    border = [max(0, width) for width in widths]

    def entry(at: Place) -> Number | None:
        source = [
            _drawn(i - n, end - start, mode) for i, n, start, end in zip(at, border, first, last, strict=True)
        ]
        inside = [start + i for start, i in zip(first, source, strict=True) if i is not None]
        return known.at(inside) if len(inside) == len(source) else fill

    return filled(out, entry)


def _drawn(index: int, length: int, mode: str) -> int | None:
    """The source index of an element of the border; None if it is the fill value."""
    if 0 <= index < length:
        return index
    if mode == "edge":
        return min(max(index, 0), length - 1)
    if mode == "wrap":
        return index % length
    if mode == "reflect" and length > 1:
        back = index % (2 * length - 2)
        return min(back, 2 * length - 2 - back)
    return 0 if mode == "reflect" else None


@rule("onnx.CenterCropPad")
def center_crop_pad(x: TensorType, shape: Numbers, *, axes: Sequence[int] | None = None) -> Estimate:
    """Crops axes to a size about their centre, or pads them with zeros."""
    places, wanted = chosen_axes(axes, x.rank, many(shape)), sizes(shape)
    if places is None or wanted is None:
        wanted, places = tuple(unknown("crop", at) for at in places or ()), places or ()
    named = dict(zip(places, wanted, strict=True))
    out = x.like(named.get(at, length) for at, length in enumerate(x.shape))
    seen = x.like(dim_min(*pair) for pair in zip(x.shape, out.shape, strict=True))
    return Estimate((out,), reads=(seen,))
