"""Output sizes of convolutions and pools from their attributes, for any number of spatial axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Dim, at_least, ceil_div
from graphflops.rules.conv import upsampled
from graphflops.rules.pool import outputs
from graphflops.rules.registry import require
from graphflops.rules.shapes import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

Sizes = tuple[Dim, ...]
Ints = tuple[int, ...]


def per_axis(given: Ints, spatial: int, default: int = 1) -> Ints:
    """One setting for each spatial axis, the default where none is given."""
    require(len(given) in (0, spatial), f"{len(given)} settings for {spatial} spatial axes")
    return given or (default,) * spatial


def ends(pads: Ints, spatial: int) -> list[tuple[int, int]]:
    """Padding before and behind each axis; `pads` lists all beginnings, then all ends."""
    require(len(pads) in (0, 2 * spatial), f"{len(pads)} pads for {spatial} spatial axes")
    require(min(pads, default=0) >= 0, f"pads {pads} must not be negative")
    return list(zip(pads[:spatial], pads[spatial:], strict=True)) or [(0, 0)] * spatial


def _moves(kernel: Sizes, spatial: int, strides: Ints, dilations: Ints) -> tuple[Ints, Ints]:
    """Strides and dilations of a window; raises ShapeError if the window is invalid."""
    require(len(kernel) == spatial, f"a window of {len(kernel)} axes over {spatial} axes")
    require(not any(at_least(0, length) for length in kernel), f"a window of {shown(kernel)} is empty")
    steps, spread = per_axis(strides, spatial), per_axis(dilations, spatial)
    require(min((*steps, *spread), default=1) > 0, f"strides {steps} and dilations {spread} must be positive")
    return steps, spread


def window_counts(
    sizes: Sequence[Dim],
    kernel: Sizes,
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    auto_pad: str,
    ceil_mode: int = 0,
) -> Sizes:
    """The number of window positions along each axis."""
    spatial = len(sizes)
    steps, spread = _moves(kernel, spatial, strides, dilations)
    if auto_pad.startswith("SAME"):
        return tuple(ceil_div(size, step) for size, step in zip(sizes, steps, strict=True))
    padded = ends(() if auto_pad == "VALID" else pads, spatial)
    axes = zip(sizes, kernel, steps, padded, spread, strict=True)
    return tuple(outputs(*axis, ceil_mode=ceil_mode == 1) for axis in axes)


def transposed_sizes(
    sizes: Sequence[Dim],
    kernel: Sizes,
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    auto_pad: str,
    output_padding: Ints,
) -> Sizes:
    """The output sizes of a transposed convolution."""
    spatial = len(sizes)
    steps, spread = _moves(kernel, spatial, strides, dilations)
    if auto_pad.startswith("SAME"):
        return tuple(size * step for size, step in zip(sizes, steps, strict=True))
    padded = ends(() if auto_pad == "VALID" else pads, spatial)
    extra = per_axis(output_padding, spatial, 0)
    fits = all(0 <= more < max(moved) for more, *moved in zip(extra, steps, spread, strict=True))
    require(fits, f"output_padding {extra} is not smaller than strides {steps} or dilations {spread}")
    unpadded = upsampled(tuple(sizes), kernel, steps, spread, (0,) * spatial, extra)
    return tuple(size - before - after for size, (before, after) in zip(unpadded, padded, strict=True))
