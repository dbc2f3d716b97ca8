"""Normalisation by statistics of the element's own group (layer, group, instance and root-mean-square norms) or the batch.

Work per element: mean 1, centre 1, square 1, sum 1; normalise 1; weight 1 and bias 1 where there are any. The
root mean square takes square 1 and sum 1 instead of the first four. One reciprocal square root per group.

Batch normalisation takes the batch's own statistics in training, where each running statistic that is updated costs 3 more
per channel. In inference all of it folds into one scale and one shift per channel, as ATen computes it: 2 per element. What
is kept of the statistics then, nothing on a CPU and a copy on a GPU, is not written here.
"""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, differ, meet, mod, prod
from graphflops.rules.elementwise import promote
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import tensors_of
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, UINT8, DType, TensorType

KIND = "normalisation"

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
@takes("x normalized_shape= weight? bias?")
def layer_norm(of: Operands) -> Estimate:
    """Seven operations per element with weight and bias, a reciprocal root per row."""
    return normalised(of.x, prod(outer_axes(of.x, of.normalized_shape)), of.weight, of.bias)


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
    meet(mod(channels, num_groups), 0, f"{channels} channels do not make {num_groups} groups")
    return normalised(x, x.shape[0] * num_groups, weight, bias)


@rule("aten.native_group_norm")
def native_group_norm(
    x: TensorType, weight: TensorType | None, bias: TensorType | None, N: Dim, C: Dim, HxW: Dim, group: int
) -> Estimate:
    """As `group_norm`, with mean and reciprocal deviation kept."""
    meet(x.numel, N * C * HxW, f"{x} has not {N}*{C}*{HxW} elements")
    statistic = x.like((N, group))
    return with_results(normalised(x, N * group, weight, bias), statistic, statistic)


SCALE_AND_SHIFT = 2
UPDATE = 3  # updating a running statistic: two products and an addition


def channels_of(x: TensorType) -> TensorType:
    """A tensor with one element for each channel."""
    require(x.rank >= 1, f"batch_norm needs a channel axis, got {x}")
    return x.like(x.shape[min(1, x.rank - 1) :][:1])


def check_statistics(x: TensorType, *each: TensorType | None) -> None:
    """Raises ShapeError where a weight or statistic has another number of elements than there are channels."""
    channels = channels_of(x).numel
    for tensor in each:
        fits = tensor is None or not differ(tensor.numel, channels)
        require(fits, f"{tensor} does not fit {channels} channels")


def scaled(x: TensorType, *parameters: TensorType | None) -> Estimate:
    """Inference by weight, bias, mean and variance: a scale and a shift per element, a reciprocal root per channel."""
    channels = channels_of(x).numel
    work = SCALE_AND_SHIFT * x.numel
    return Estimate((x.like(),), vector_flops=work, transcendentals=channels, reads=(x, *parameters))


def updated(estimate: Estimate, *running: TensorType | None) -> Estimate:
    """The estimate with the work of updating the running statistics, which are read and written."""
    statistics = tuple(statistic for statistic in running if statistic is not None)
    return estimate.plus(
        vector_flops=sum(UPDATE * statistic.numel for statistic in statistics),
        reads=statistics,
        writes=(*(x for x in estimate.out if isinstance(x, TensorType)), *statistics),
    )


def by_channel(of: Operands, groups: Dim, own: bool) -> Estimate:
    """Normalised in so many groups by statistics of its own, or by running ones."""
    check_statistics(*of)
    if not own:
        return scaled(*of)
    x, weight, bias, *running = of
    return updated(normalised(x, groups, weight, bias), *running)


@rule("aten.batch_norm")
@takes("x weight? bias? running_mean? running_var?")
def batch_norm(of: Operands, *, training: bool) -> Estimate:
    """In training seven operations per element with weight and bias, in inference two."""
    return by_channel(of, channels_of(of.x).numel, training)


@rule("aten.instance_norm")
@takes("x weight? bias? running_mean? running_var?")
def instance_norm(of: Operands, *, use_input_stats: bool) -> Estimate:
    """Each channel of each sample is normalised on its own; with running statistics, as `batch_norm` in inference."""
    return by_channel(of, prod(of.x.shape[:2]), use_input_stats)


@rule(
    "aten.native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_no_training",
)
@takes("x weight? bias? * running_mean? running_var?")
def native_batch_norm(of: Operands, *, training: bool = False) -> Estimate:
    """As `batch_norm`; training also returns the mean and the reciprocal deviation, in the type used on a CPU."""
    estimate, kept = batch_norm(*of, training=training), channels_of(of.x)
    if not training:
        kept = kept.like((data_dependent("kept_statistics"),))
        return replace(estimate, out=(*estimate.out, kept, kept), writes=estimate.out)
    return replace(estimate, out=(*estimate.out, kept, kept), writes=(*(estimate.writes or ()), kept, kept))


@rule("aten._batch_norm_with_update")
@takes("x weight? bias? running_mean running_var")
def batch_norm_with_update(of: Operands) -> Estimate:
    """As `native_batch_norm` in training, with memory that cuDNN reserves."""
    return with_reserved(native_batch_norm(*of, training=True))


@rule("aten.miopen_batch_norm")
@takes("x weight bias? running_mean? running_var?")
def miopen_batch_norm(of: Operands, *, training: bool) -> Estimate:
    """As `native_batch_norm`; in inference no statistics are returned."""
    kept = channels_of(of.x).like(dtype=of.weight.dtype) if training else of.weight.like((0,))
    return replace(native_batch_norm(*of, training=training), out=(of.x.like(), kept, kept))


def with_reserved(estimate: Estimate) -> Estimate:
    """The estimate with the memory that only cuDNN keeps for the backward pass as another result."""
    (x, *_) = tensors_of(estimate.out)
    return replace(estimate, out=(*estimate.out, x.like((0,), UINT8)))


def with_index(estimate: Estimate) -> Estimate:
    """The estimate with reserved memory and the implementation's index, assumed to be 0, ATen's own."""
    return replace(estimate, out=(*with_reserved(estimate).out, 0))


def with_statistics(estimate: Estimate) -> Estimate:
    """The estimate with new running statistics, the last two reads, as further results."""
    x, *_, mean, var = tensors_of(estimate.reads)
    new = (statistic.like(dtype=promote(computed_in(x.dtype), statistic.dtype)) for statistic in (mean, var))
    return replace(estimate, out=(*estimate.out, *new))


rule("aten.cudnn_batch_norm").derived(miopen_batch_norm, with_reserved)
rule("aten._batch_norm_no_update").derived(native_batch_norm, with_reserved)
rule("aten._batch_norm_impl_index").derived(native_batch_norm, with_index)
rule("aten._batch_norm_with_update_functional").derived(batch_norm_with_update, with_statistics)
rule("aten._native_batch_norm_legit_functional").derived(native_batch_norm, with_statistics)


@rule("aten.batch_norm_stats")
def batch_norm_stats(x: TensorType) -> Estimate:
    """Mean and reciprocal deviation of each channel: four operations per element."""
    kept = channels_of(x).like(dtype=computed_in(x.dtype))
    return Estimate((kept, kept), vector_flops=4 * x.numel, transcendentals=kept.numel, reads=(x,))


@rule("aten.batch_norm_update_stats")
def batch_norm_update_stats(
    x: TensorType, running_mean: TensorType | None, running_var: TensorType | None
) -> Estimate:
    """Mean and variance of each channel, mixed into the running ones: four operations per element."""
    kept = channels_of(x)
    return updated(Estimate((kept, kept), vector_flops=4 * x.numel, reads=(x,)), running_mean, running_var)


@rule("aten.batch_norm_gather_stats", "aten.batch_norm_gather_stats_with_counts")
@takes("x mean invstd running_mean? running_var?")
def batch_norm_gather_stats(of: Operands) -> Estimate:
    """Merges the statistics of several batches one after another: eight operations per channel."""
    merged = of.mean.like(of.mean.shape[-1:])
    out, reads = (merged, merged), (of.mean, of.invstd)
    work = Estimate(out, vector_flops=8 * of.mean.numel, transcendentals=merged.numel, reads=reads)
    return updated(work, of.running_mean, of.running_var)
