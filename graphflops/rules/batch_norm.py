"""Batch normalisation: by the batch's own statistics in training, by the running ones in inference.

Work per element in training: mean 1, centre 1, square 1, sum 1; normalise 1; weight 1 and bias 1 where there
are any; per channel a reciprocal square root and 3 for each running statistic that is updated. In inference
all of it folds into one scale and one shift per channel, as ATen computes it: 2 per element. What is kept of
the statistics then, nothing on a CPU and a copy on a GPU, is not written here.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import prod
from graphflops.rules.derived import Derived
from graphflops.rules.elementwise import promote
from graphflops.rules.norm import computed_in, normalised
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import tensors_of
from graphflops.tensor import UINT8, TensorType

SCALE_AND_SHIFT = 2
UPDATE = 3  # updating a running statistic: two products and an addition


def channels_of(x: TensorType) -> TensorType:
    """A tensor with one element for each channel."""
    require(x.rank >= 1, f"batch_norm needs a channel axis, got {x}")
    return x.like(x.shape[min(1, x.rank - 1) :][:1])


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
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Estimate:
    """In training seven operations per element with weight and bias, in inference two."""
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
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Estimate:
    """Each channel of each sample is normalised on its own; with running statistics, as `batch_norm` in inference."""
    if not use_input_stats:
        return scaled(x, weight, bias, running_mean, running_var)
    estimate = normalised(x, prod(x.shape[:2]), weight, bias)
    return updated(estimate, running_mean, running_var)


@rule("aten.native_batch_norm", "aten._native_batch_norm_legit")
def native_batch_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType | None,
    running_var: TensorType | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Estimate:
    """As `batch_norm`; training also returns the mean and the reciprocal deviation, in the type used on a CPU."""
    estimate = batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if not training:
        kept = channels_of(x).like((data_dependent("kept_statistics"),))
        return replace(estimate, out=(*estimate.out, kept, kept), writes=estimate.out)  # type: ignore[arg-type]
    kept = channels_of(x)
    return replace(estimate, out=(*estimate.out, kept, kept), writes=(*(estimate.writes or ()), kept, kept))


@rule("aten._native_batch_norm_legit.no_stats")
def native_batch_norm_without_running(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Estimate:
    """Normalises by the batch's own statistics, which are also results."""
    return native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


@rule("aten._native_batch_norm_legit_no_training")
def native_batch_norm_inference(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType,
    running_var: TensorType,
    momentum: float,
    eps: float,
) -> Estimate:
    """One scale and one shift per element."""
    return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


@rule("aten._native_batch_norm_legit_functional")
def native_batch_norm_functional(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType,
    running_var: TensorType,
    training: bool,
    momentum: float,
    eps: float,
) -> Estimate:
    """As `native_batch_norm`, with the new running statistics as results."""
    estimate = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    new = tuple(
        statistic.like(dtype=promote(computed_in(x.dtype), statistic.dtype))
        for statistic in (running_mean, running_var)
    )
    return replace(estimate, out=(*estimate.out, *new))


def reserved(x: TensorType) -> TensorType:
    """Memory that only cuDNN keeps for the backward pass."""
    return x.like((0,), UINT8)


def register_reserving(name: str, training: bool) -> None:
    """Register a batch norm that always trains, or never does."""

    @rule(f"aten.{name}")
    def reserving(
        x: TensorType,
        weight: TensorType | None,
        bias: TensorType | None,
        running_mean: TensorType | None,
        running_var: TensorType | None,
        momentum: float,
        eps: float,
    ) -> Estimate:
        """As `native_batch_norm`, with memory that cuDNN reserves."""
        estimate = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
        return replace(estimate, out=(*estimate.out, reserved(x)))


register_reserving("_batch_norm_with_update", training=True)
register_reserving("_batch_norm_no_update", training=False)


@rule("aten._batch_norm_with_update_functional")
def batch_norm_with_update_functional(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType,
    running_var: TensorType,
    momentum: float,
    eps: float,
) -> Estimate:
    """As `native_batch_norm` in training, with the new running statistics as results."""
    estimate = native_batch_norm_functional(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return replace(estimate, out=(*estimate.out[:3], reserved(x), *estimate.out[3:]))


@rule("aten._batch_norm_impl_index")
def batch_norm_impl_index(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    running_mean: TensorType | None,
    running_var: TensorType | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Estimate:
    """As `native_batch_norm`; the index of the implementation is assumed to be 0, ATen's own."""
    estimate = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return replace(estimate, out=(*estimate.out, reserved(x), 0))


@rule("aten.miopen_batch_norm")
def miopen_batch_norm(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    running_mean: TensorType | None,
    running_var: TensorType | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> Estimate:
    """As `native_batch_norm`; in inference no statistics are returned."""
    estimate = native_batch_norm(
        *(x, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon)
    )
    kept = channels_of(x).like(dtype=weight.dtype) if training else weight.like((0,))
    return replace(estimate, out=(x.like(), kept, kept))


def with_reserved(estimate: Estimate) -> Estimate:
    """The estimate with the memory that cuDNN reserves for the backward pass as another result."""
    (x, *_) = tensors_of(estimate.out)
    return replace(estimate, out=(*estimate.out, reserved(x)))


rule("aten.cudnn_batch_norm")(Derived(miopen_batch_norm, with_reserved))


@rule("aten.batch_norm_stats")
def batch_norm_stats(x: TensorType, eps: float) -> Estimate:
    """Mean and reciprocal deviation of each channel: four operations per element."""
    kept = channels_of(x).like(dtype=computed_in(x.dtype))
    return Estimate((kept, kept), vector_flops=4 * x.numel, transcendentals=kept.numel, reads=(x,))


@rule("aten.batch_norm_update_stats")
def batch_norm_update_stats(
    x: TensorType, running_mean: TensorType | None, running_var: TensorType | None, momentum: float
) -> Estimate:
    """Mean and variance of each channel, mixed into the running ones: four operations per element."""
    kept = channels_of(x)
    return updated(Estimate((kept, kept), vector_flops=4 * x.numel, reads=(x,)), running_mean, running_var)


@rule("aten.batch_norm_elemt")
def batch_norm_elemt(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    mean: TensorType,
    invstd: TensorType,
    eps: float,
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
    momentum: float,
    eps: float,
    counts: TensorType | int,
) -> Estimate:
    """Merges the statistics of several batches one after another: eight operations per channel."""
    merged = mean.like(mean.shape[-1:])
    work = Estimate(
        (merged, merged), vector_flops=8 * mean.numel, transcendentals=merged.numel, reads=(mean, invstd)
    )
    return updated(work, running_mean, running_var)
