"""Normalisation by statistics of the element's own group: layer, group, instance and root-mean-square norms.

Work per element: mean 1, centre 1, square 1, sum 1; normalise 1; weight 1 and bias 1 where there are any. The
root mean square takes square 1 and sum 1 instead of the first four. One reciprocal square root per group.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, differ, mod, prod
from graphflops.rules.registry import require, rule
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, DType, TensorType

STATISTICS = 4  # mean 1, centre 1, square 1, sum 1
MEAN_SQUARE = 2  # square 1, sum 1
NORMALISE = 1
AFFINE = 2  # weight 1, bias 1


def normalised(
    x: TensorType,
    groups: Dim,
    weight: TensorType | None = None,
    bias: TensorType | None = None,
    statistics: int = STATISTICS,
) -> Estimate:
    """`x` normalised within `groups` groups, with optional weight and bias."""
    per_element = statistics + NORMALISE + (weight is not None) + (bias is not None)
    return Estimate(
        (x.like(),), vector_flops=per_element * x.numel, transcendentals=groups, reads=(x, weight, bias)
    )


def with_results(estimate: Estimate, *results: TensorType) -> Estimate:
    """The estimate with the statistics as further results; computing them is already counted."""
    return replace(estimate, out=(*estimate.out, *results))


def computed_in(dtype: DType) -> DType:
    """The type in which sums over elements of that type are accumulated."""
    return FLOAT32 if dtype in (FLOAT16, BFLOAT16) else dtype


def outer_axes(x: TensorType, normalized_shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The axes before the normalised ones."""
    kept = x.rank - len(normalized_shape)
    require(
        kept >= 0 and not any(map(differ, x.shape[kept:], normalized_shape)),
        f"normalized_shape {list(map(str, normalized_shape))} is not the end of {x}",
    )
    return x.shape[:kept]


def one_per_row(x: TensorType, normalized_shape: tuple[Dim, ...], dtype: DType) -> TensorType:
    """A statistic: the normalised axes become ones."""
    return x.like((*outer_axes(x, normalized_shape), *(1 for _ in normalized_shape)), dtype)


@rule("aten.layer_norm")
def layer_norm(
    x: TensorType,
    normalized_shape: tuple[Dim, ...],
    weight: TensorType | None = None,
    bias: TensorType | None = None,
) -> Estimate:
    """Seven operations per element with weight and bias, a reciprocal root per row."""
    return normalised(x, prod(outer_axes(x, normalized_shape)), weight, bias)


@rule("aten.native_layer_norm")
def native_layer_norm(
    x: TensorType, normalized_shape: tuple[Dim, ...], weight: TensorType | None, bias: TensorType | None
) -> Estimate:
    """As `layer_norm`, with mean and reciprocal deviation as results, in the type used on a CPU."""
    statistic = one_per_row(x, normalized_shape, x.dtype)
    return with_results(layer_norm(x, normalized_shape, weight, bias), statistic, statistic)


@rule("aten.rms_norm")
def rms_norm(x: TensorType, normalized_shape: tuple[Dim, ...], weight: TensorType | None = None) -> Estimate:
    """Three operations per element and one for the weight, a reciprocal root per row."""
    return normalised(x, prod(outer_axes(x, normalized_shape)), weight, statistics=MEAN_SQUARE)


@rule("aten._fused_rms_norm")
def fused_rms_norm(x: TensorType, normalized_shape: tuple[Dim, ...], weight: TensorType | None) -> Estimate:
    """As `rms_norm`, with the reciprocal root kept."""
    estimate = rms_norm(x, normalized_shape, weight)
    return with_results(estimate, one_per_row(x, normalized_shape, computed_in(x.dtype)))


@rule("aten.group_norm")
def group_norm(
    x: TensorType, num_groups: int, weight: TensorType | None = None, bias: TensorType | None = None
) -> Estimate:
    """Seven operations per element with weight and bias, a reciprocal root per group."""
    require(x.rank >= 2, f"group_norm needs a batch and a channel axis, got {x}")
    channels = x.shape[1]
    require(not differ(mod(channels, num_groups), 0), f"{channels} channels do not make {num_groups} groups")
    return normalised(x, x.shape[0] * num_groups, weight, bias)


@rule("aten.native_group_norm")
def native_group_norm(
    x: TensorType, weight: TensorType | None, bias: TensorType | None, N: Dim, C: Dim, HxW: Dim, group: int
) -> Estimate:
    """As `group_norm`, with mean and reciprocal deviation kept."""
    require(not differ(x.numel, N * C * HxW), f"{x} has not {N}*{C}*{HxW} elements")
    statistic = x.like((N, group))
    return with_results(normalised(x, N * group, weight, bias), statistic, statistic)
