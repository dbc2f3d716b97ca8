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
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
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
@takes("x weight? bias? running_mean? running_var?")
def batch_norm(of: Operands, *, training: bool) -> Estimate:
    """In training seven operations per element with weight and bias, in inference two."""
    check_statistics(*of)
    if not training:
        return scaled(*of)
    x, weight, bias, *running = of
    return updated(normalised(x, channels_of(x).numel, weight, bias), *running)


@rule("aten.instance_norm")
@takes("x weight? bias? running_mean? running_var?")
def instance_norm(of: Operands, *, use_input_stats: bool) -> Estimate:
    """Each channel of each sample is normalised on its own; with running statistics, as `batch_norm` in inference."""
    check_statistics(*of)
    if not use_input_stats:
        return scaled(*of)
    x, weight, bias, *running = of
    return updated(normalised(x, prod(x.shape[:2]), weight, bias), *running)


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
        return replace(estimate, out=(*estimate.out, kept, kept), writes=estimate.out)  # type: ignore[arg-type]
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


@rule("aten.batch_norm_elemt")
@takes("x weight? bias? mean invstd")
def batch_norm_elemt(of: Operands) -> Estimate:
    """One scale and one shift per element."""
    return Estimate((of.x.like(),), vector_flops=SCALE_AND_SHIFT * of.x.numel, reads=(*of,))


@rule("aten.batch_norm_gather_stats", "aten.batch_norm_gather_stats_with_counts")
@takes("x mean invstd running_mean? running_var?")
def batch_norm_gather_stats(of: Operands) -> Estimate:
    """Merges the statistics of several batches one after another: eight operations per channel."""
    merged = of.mean.like(of.mean.shape[-1:])
    out, reads = (merged, merged), (of.mean, of.invstd)
    work = Estimate(out, vector_flops=8 * of.mean.numel, transcendentals=merged.numel, reads=reads)
    return updated(work, of.running_mean, of.running_var)
