"""Batch normalisation: by the batch's own statistics in training, by the running ones in inference.

Work per element in training: mean 1, centre 1, square 1, sum 1; normalise 1; weight 1 and bias 1 where there
are any; per channel a reciprocal square root and 3 for each running statistic that is updated. In inference
all of it folds into one scale and one shift per channel, as ATen computes it: 2 per element. What is kept of
the statistics then, nothing on a CPU and a copy on a GPU, is not written here.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import differ, prod
from graphflops.rules.elementwise import promote
from graphflops.rules.norm import computed_in, normalised
from graphflops.rules.registry import Derived, aten, require, rule
from graphflops.rules.shapes import tensors_of
from graphflops.tensor import UINT8, TensorType

KIND = "normalisation"

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


def scaled(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    mean: TensorType | None,
    var: TensorType | None,
) -> Estimate:
    """Inference: one scale and one shift per element, one reciprocal root per channel."""
    channels = channels_of(x).numel
    work = SCALE_AND_SHIFT * x.numel
    reads = (x, weight, bias, mean, var)
    return Estimate((x.like(),), vector_flops=work, transcendentals=channels, reads=reads)


def updated(estimate: Estimate, *running: TensorType | None) -> Estimate:
    """The estimate with the work of updating the running statistics, which are read and written."""
    statistics = tuple(statistic for statistic in running if statistic is not None)
    return replace(
        estimate,
        vector_flops=estimate.vector_flops + sum(UPDATE * statistic.numel for statistic in statistics),
        reads=(*estimate.reads, *statistics),
        writes=(*(x for x in estimate.out if isinstance(x, TensorType)), *statistics),
    )


@rule("aten.batch_norm")
def batch_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType | None,
    running_var: TensorType | None,
    training: bool,
) -> Estimate:
    """In training seven operations per element with weight and bias, in inference two."""
    check_statistics(x, weight, bias, running_mean, running_var)
    if not training:
        return scaled(x, weight, bias, running_mean, running_var)
    return updated(normalised(x, channels_of(x).numel, weight, bias), running_mean, running_var)


@rule("aten.instance_norm")
def instance_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType | None,
    running_var: TensorType | None,
    use_input_stats: bool,
) -> Estimate:
    """Each channel of each sample is normalised on its own; with running statistics, as `batch_norm` in inference."""
    check_statistics(x, weight, bias, running_mean, running_var)
    if not use_input_stats:
        return scaled(x, weight, bias, running_mean, running_var)
    estimate = normalised(x, prod(x.shape[:2]), weight, bias)
    return updated(estimate, running_mean, running_var)


@rule(
    *aten(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats",
        "_native_batch_norm_legit_no_training",
    )
)
def native_batch_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    *,
    running_mean: TensorType | None = None,
    running_var: TensorType | None = None,
    training: bool = False,
) -> Estimate:
    """As `batch_norm`; training also returns the mean and the reciprocal deviation, in the type used on a CPU."""
    estimate = batch_norm(x, weight, bias, running_mean, running_var, training)
    if not training:
        kept = channels_of(x).like((data_dependent("kept_statistics"),))
        return replace(estimate, out=(*estimate.out, kept, kept), writes=estimate.out)  # type: ignore[arg-type]
    kept = channels_of(x)
    return replace(estimate, out=(*estimate.out, kept, kept), writes=(*(estimate.writes or ()), kept, kept))


@rule("aten._batch_norm_with_update")
def batch_norm_with_update(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType,
    running_var: TensorType,
) -> Estimate:
    """As `native_batch_norm` in training, with memory that cuDNN reserves."""
    running = {"running_mean": running_mean, "running_var": running_var}
    return with_reserved(native_batch_norm(x, weight, bias, training=True, **running))


@rule("aten.miopen_batch_norm")
def miopen_batch_norm(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    running_mean: TensorType | None,
    running_var: TensorType | None,
    training: bool,
) -> Estimate:
    """As `native_batch_norm`; in inference no statistics are returned."""
    running = {"running_mean": running_mean, "running_var": running_var}
    estimate = native_batch_norm(x, weight, bias, training=training, **running)
    kept = channels_of(x).like(dtype=weight.dtype) if training else weight.like((0,))
    return replace(estimate, out=(x.like(), kept, kept))


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


rule("aten.cudnn_batch_norm")(Derived(miopen_batch_norm, with_reserved))
rule("aten._batch_norm_no_update")(Derived(native_batch_norm, with_reserved))
rule("aten._batch_norm_impl_index")(Derived(native_batch_norm, with_index))
rule("aten._batch_norm_with_update_functional")(Derived(batch_norm_with_update, with_statistics))
rule("aten._native_batch_norm_legit_functional")(Derived(native_batch_norm, with_statistics))


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


@rule("aten.batch_norm_elemt")
def batch_norm_elemt(
    x: TensorType, weight: TensorType | None, bias: TensorType | None, mean: TensorType, invstd: TensorType
) -> Estimate:
    """One scale and one shift per element."""
    return Estimate(
        (x.like(),), vector_flops=SCALE_AND_SHIFT * x.numel, reads=(x, weight, bias, mean, invstd)
    )


@rule("aten.batch_norm_gather_stats", "aten.batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(
    x: TensorType,
    mean: TensorType,
    invstd: TensorType,
    running_mean: TensorType | None,
    running_var: TensorType | None,
) -> Estimate:
    """Merges the statistics of several batches one after another: eight operations per channel."""
    merged = mean.like(mean.shape[-1:])
    work = Estimate(
        (merged, merged), vector_flops=8 * mean.numel, transcendentals=merged.numel, reads=(mean, invstd)
    )
    return updated(work, running_mean, running_var)
