"""Pooling: a reduction over a window, or over everything, per output; and maxima put back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, prod
from graphflops.rules import pool
from graphflops.rules.onnx.conv import Ints, transposed_sizes, window_counts
from graphflops.rules.onnx.entries import sizes, unknown
from graphflops.rules.onnx.fused import Outputs, chosen
from graphflops.rules.operands import Operands, takes
from graphflops.rules.pool import adaptive, windowed
from graphflops.rules.reduce import indexed
from graphflops.rules.registry import Derived, require, rule
from graphflops.rules.shapes import shown
from graphflops.tensor import TensorType

KIND = "pooling"


@dataclass(frozen=True, slots=True)
class Pooling:
    """Operations and functions per window element, and per output."""

    each: int = 1
    final: int = 0
    evaluated: int = 0
    evaluated_final: int = 0


MAXIMUM, AVERAGE = Pooling(), Pooling(final=1)


def norm_of(p: float) -> Pooling:
    """The p-norm of a window: magnitudes, squares or powers summed, and their root."""
    if p == 1:
        return Pooling(2)
    return Pooling(2, evaluated=0 if p == 2 else 1, evaluated_final=1)


def pooled(x: TensorType, kernel: tuple[Dim, ...], counts: tuple[Dim, ...], kind: Pooling) -> Estimate:
    """Windows of that size at `counts` positions along the spatial axes."""
    require(x.rank > 2, f"no spatial axes to pool over in {x}")
    estimate = windowed(x, kernel, counts, kind.each, kind.final)
    outputs = prod((*x.shape[:2], *counts))
    return replace(estimate, transcendentals=(kind.evaluated * prod(kernel) + kind.evaluated_final) * outputs)


def moving(x: TensorType, *, kernel_shape: Ints, kind: Pooling = AVERAGE, **geometry: Any) -> Estimate:
    """One addition per window element and a division per output."""
    return pooled(x, kernel_shape, window_counts(x.shape[2:], kernel_shape, **geometry), kind)


average_pool = Derived(moving, kind=AVERAGE)
rule("onnx.AveragePool")(average_pool)


@rule("onnx.MaxPool")
def max_pool(x: TensorType, *, kernel_shape: Ints, outputs: Outputs = (True,), **geometry: Any) -> Estimate:
    """One comparison per window element; the indices of the maxima cost no extra work."""
    found = moving(x, kernel_shape=kernel_shape, kind=MAXIMUM, **geometry)
    values, places = indexed(found).out
    assert isinstance(values, TensorType)
    assert isinstance(places, TensorType)
    return replace(found, out=chosen(outputs, values, places))


@rule("onnx.LpPool")
def lp_pool(x: TensorType, *, kernel_shape: Ints = (), p: float = 2, **geometry: Any) -> Estimate:
    """A magnitude, a square or a power, and an addition per window element, and a root per output."""
    return moving(x, kernel_shape=kernel_shape, kind=norm_of(p), **geometry)


@rule("onnx.GlobalMaxPool")
def global_max_pool(x: TensorType) -> Estimate:
    """Adaptive pooling to a single maximum per channel: one comparison per element."""
    return adaptive(x, one_window(x), final=0)


@rule("onnx.GlobalAveragePool")
def global_average_pool(x: TensorType) -> Estimate:
    """Adaptive pooling to a single average per channel: one addition per element and a division per channel."""
    return adaptive(x, one_window(x), final=1)


@rule("onnx.GlobalLpPool")
def global_lp_pool(x: TensorType, *, p: float = 2) -> Estimate:
    """A magnitude, a square or a power, and an addition per element, and a root per channel."""
    return pooled(x, x.shape[2:], one_window(x), norm_of(p))


def one_window(x: TensorType) -> tuple[Dim, ...]:
    """A single output along each spatial axis."""
    require(x.rank > 2, f"no spatial axes to pool over in {x}")
    return (1,) * (x.rank - 2)


@rule("onnx.MaxUnpool")
@takes("x indices output_shape?")
def max_unpool(of: Operands, *, kernel_shape: Ints, **geometry: Any) -> Estimate:
    """Writes values to their former positions and zeros elsewhere; no arithmetic."""
    x, indices, output_shape = of
    spatial = transposed_sizes(x.shape[2:], kernel_shape, **geometry)
    shape = least = (*x.shape[:2], *spatial)
    if output_shape is not None:
        shape = sizes(output_shape) or tuple(unknown("unpooled", place) for place in range(x.rank))
        fits = len(shape) == x.rank and not any(at_least(a, b + 1) for a, b in zip(least, shape, strict=True))
        require(fits, f"{shown(shape)} is not as large as {shown(least)}")
    return replace(pool.max_unpool(x, indices, shape), reads=(*of,))
