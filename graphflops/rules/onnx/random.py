"""Random numbers of a given shape, or of another tensor's shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.random import NORMAL, SCALED, UNIFORM, drawn
from graphflops.rules.random import multinomial as draws
from graphflops.rules.registry import rule
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.cost import Estimate
    from graphflops.dims import Dim


def _like(x: TensorType, dtype: int | None) -> TensorType:
    return x.like(dtype=None if dtype is None else onnx_dtype(dtype))


@rule("onnx.RandomUniform")
def uniform(*, shape: Sequence[Dim], dtype: int = 1) -> Estimate:
    """Uniform numbers; scaling to bounds is not counted."""
    return drawn(TensorType(tuple(shape), onnx_dtype(dtype)), *UNIFORM)


@rule("onnx.RandomUniformLike")
def uniform_like(x: TensorType, *, dtype: int | None = None) -> Estimate:
    """Uniform numbers of another tensor's shape, which is not read."""
    return drawn(_like(x, dtype), *UNIFORM)


@rule("onnx.RandomNormal")
def normal(*, shape: Sequence[Dim], dtype: int = 1) -> Estimate:
    """Normal numbers, scaled and shifted."""
    return drawn(TensorType(tuple(shape), onnx_dtype(dtype)), NORMAL[0] + SCALED, NORMAL[1])


@rule("onnx.RandomNormalLike")
def normal_like(x: TensorType, *, dtype: int | None = None) -> Estimate:
    """Normal numbers, scaled and shifted, of another tensor's shape, which is not read."""
    return drawn(_like(x, dtype), NORMAL[0] + SCALED, NORMAL[1])


@rule("onnx.Bernoulli")
def bernoulli(x: TensorType, *, dtype: int | None = None) -> Estimate:
    """One comparison with its own probability per element."""
    return drawn(_like(x, dtype), 1, 0, x)


@rule("onnx.Multinomial")
def multinomial(x: TensorType, *, dtype: int = 6, sample_size: int = 1) -> Estimate:
    """Samples with replacement from log-probabilities: one exponential per weight first."""
    draw = draws(x, sample_size, replacement=True)
    (out,) = draw.out
    assert isinstance(out, TensorType)
    return replace(draw, out=(out.like(dtype=onnx_dtype(dtype)),), transcendentals=x.numel)
