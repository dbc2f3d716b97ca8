"""Normalisation by statistics of the element's own group (layer, group, instance and root-mean-square norms) or the batch.

One reciprocal square root per group. In inference a batch norm folds into one scale and one shift per channel, as ATen
computes it. The saved statistics of inference (none on a CPU, a copy on a GPU) are not counted as written.
"""

from functools import partial
from typing import Any

from graphflops.base.record import Record, replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, differ, meet, mod, prod
from graphflops.rules.elementwise import promote
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, have_shape, shown, tensors_of, where_wanted
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
    return Estimate((x.like(),), 0, per_element * x.numel, groups, reads=(x, weight, bias))


def computed_in(dtype: DType) -> DType:
    """The type in which sums over elements of that type are accumulated."""
    return FLOAT32 if dtype in (FLOAT16, BFLOAT16) else dtype


@rule("aten.layer_norm").takes("x normalized_shape= weight? bias?")
def row_norm(of: Operands, *, statistics: int = STATISTICS, kept: int = 0) -> Estimate:
    """Seven operations per element with weight and bias, four by the root mean square; a root per row. kept: results."""
    x, inner = of.x, of.normalized_shape
    outer = x.shape[: max(x.rank - len(inner), 0)]
    fits = len(inner) <= x.rank and not any(map(differ, x.shape[len(outer) :], inner))
    require(fits, f"normalized_shape {list(map(str, inner))} is not the end of {x}")
    require(have_shape(inner, of.weight, of.bias), f"{of.weight} and {of.bias} do not scale {shown(inner)}")
    dtype = x.dtype if statistics == STATISTICS else computed_in(x.dtype)
    statistic = x.like((*outer, *(1 for _ in inner)), dtype)
    estimate = normalised(x, prod(outer), of.weight, of.bias, statistics)
    return replace(estimate, out=(*estimate.out, *(statistic,) * kept))


_ROOT: dict[str, Any] = {"order": "x normalized_shape weight", "statistics": MEAN_SQUARE}
rule("aten.native_layer_norm").derived(row_norm, kept=2)
rule("aten.rms_norm").derived(row_norm, **_ROOT)
rule("aten._fused_rms_norm").derived(row_norm, kept=1, **_ROOT)


@rule("aten.group_norm")
def group_norm(
    x: TensorType, num_groups: int, weight: TensorType | None = None, bias: TensorType | None = None
) -> Estimate:
    """Seven operations per element with weight and bias, a reciprocal root per group."""
    require(x.rank >= 2 and num_groups > 0, f"{num_groups} groups of the channels of {x}")
    channels = x.shape[1]
    meet(mod(channels, num_groups), 0, f"{channels} channels do not make {num_groups} groups")
    fits = any(have_shape((size,), weight, bias) for size in (channels, num_groups))  # ONNX 18: of groups
    require(fits, f"weight {weight} and bias {bias} for {channels} channels")
    return normalised(x, x.shape[0] * num_groups, weight, bias)


@rule("aten.native_group_norm")
def native_group_norm(
    x: TensorType, weight: TensorType | None, bias: TensorType | None, N: Dim, C: Dim, HxW: Dim, group: int
) -> Estimate:
    """As `group_norm`, with mean and reciprocal deviation kept."""
    meet(x.numel, N * C * HxW, f"{x} has not {N}*{C}*{HxW} elements")
    statistic, estimate = x.like((N, group)), normalised(x, N * group, weight, bias)
    return replace(estimate, out=(*estimate.out, statistic, statistic))


SCALE_AND_SHIFT = 2
UPDATE = 3  # updating a running statistic: two products and an addition


def channels_of(x: TensorType) -> TensorType:
    """A tensor with one element for each channel."""
    require(x.rank >= 1, f"batch_norm needs a channel axis, got {x}")
    return x.like(x.shape[min(1, x.rank - 1) :][:1])


def scaled(x: TensorType, *parameters: TensorType | None) -> Estimate:
    """Inference with weight, bias, mean and variance: a scale and a shift per element, a reciprocal root per channel."""
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
    """`x` normalised by the statistics of `groups` groups if `own`, else by running statistics."""
    x, *each = of
    channels = channels_of(x).numel
    for tensor in each:
        fits = tensor is None or not differ(tensor.numel, channels)
        require(fits, f"{tensor} does not fit {channels} channels")
    if not own:
        return scaled(x, *each)
    weight, bias, *running = each
    return updated(normalised(x, groups, weight, bias), *running)


@rule("aten.batch_norm").takes("x weight? bias? running_mean? running_var?")
def batch_norm(of: Operands, *, training: bool) -> Estimate:
    """In training seven operations per element with weight and bias, in inference two."""
    return by_channel(of, channels_of(of.x).numel, training)


@rule("aten.instance_norm").takes("x weight? bias? running_mean? running_var?")
def instance_norm(of: Operands, *, use_input_stats: bool) -> Estimate:
    """Each channel of each sample is normalised on its own; with running statistics, like `batch_norm` in inference."""
    return by_channel(of, prod(of.x.shape[:2]), use_input_stats)


@rule(
    "aten.native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_no_training",
).takes("x weight? bias? * running_mean? running_var?")
def native_batch_norm(of: Operands, *, training: bool = False) -> Estimate:
    """As `batch_norm`; training also returns the mean and the reciprocal deviation, in the type used on a CPU."""
    estimate, kept = batch_norm(*of, training=training), channels_of(of.x)
    kept = kept if training else kept.like((data_dependent("kept_statistics"),))
    writes = (*(estimate.writes or ()), kept, kept) if training else estimate.out
    return replace(estimate, out=(*estimate.out, kept, kept), writes=writes)


@rule("aten.miopen_batch_norm").takes("x weight bias? running_mean? running_var?")
def miopen_batch_norm(of: Operands, *, training: bool) -> Estimate:
    """As `native_batch_norm`; in inference no statistics are returned."""
    kept = channels_of(of.x).like(dtype=of.weight.dtype) if training else of.weight.like((0,))
    return replace(native_batch_norm(*of, training=training), out=(of.x.like(), kept, kept))


def with_reserved(estimate: Estimate) -> Estimate:
    """The estimate with one more result: the memory that only cuDNN saves for backward, taken to be empty."""
    (x, *_) = tensors_of(estimate.out)
    return replace(estimate, out=(*estimate.out, x.like((0,), UINT8)))


def with_statistics(estimate: Estimate) -> Estimate:
    """The estimate with the new running statistics as further results; the old ones are its last two reads."""
    x, *_, mean, var = tensors_of(estimate.reads)
    new = (statistic.like(dtype=promote(computed_in(x.dtype), statistic.dtype)) for statistic in (mean, var))
    return replace(estimate, out=(*estimate.out, *new))


rule("aten.cudnn_batch_norm").derived(miopen_batch_norm, with_reserved)
rule("aten._batch_norm_no_update").derived(native_batch_norm, with_reserved)
# The last result is the implementation's index, assumed to be 0, ATen's own.
rule("aten._batch_norm_impl_index").derived(
    native_batch_norm, lambda found: replace(found, out=(*with_reserved(found).out, 0))
)
with_update = rule("aten._batch_norm_with_update").derived(native_batch_norm, with_reserved, training=True)
rule("aten._batch_norm_with_update_functional").derived(with_update, with_statistics)
rule("aten._native_batch_norm_legit_functional").derived(native_batch_norm, with_statistics)


@rule("aten.batch_norm_stats")
def batch_norm_stats(x: TensorType) -> Estimate:
    """Mean and reciprocal deviation of each channel: four operations per element."""
    kept = channels_of(x).like(dtype=computed_in(x.dtype))
    return Estimate((kept, kept), vector_flops=4 * x.numel, transcendentals=kept.numel, reads=(x,))


@rule("aten.batch_norm_update_stats").takes("x running_mean? running_var?")
def batch_norm_update_stats(of: Operands) -> Estimate:
    """Mean and variance of each channel, mixed into the running ones: four operations per element."""
    (x, *running), kept = of, channels_of(of.x)
    return updated(Estimate((kept, kept), vector_flops=4 * x.numel, reads=(x,)), *running)


@rule("aten.batch_norm_gather_stats", "aten.batch_norm_gather_stats_with_counts").takes(
    "x mean invstd running_mean? running_var?"
)
def batch_norm_gather_stats(of: Operands) -> Estimate:
    """Merges the statistics of several batches one after another: eight operations per channel."""
    merged = of.mean.like(of.mean.shape[-1:])
    out, reads = (merged, merged), (of.mean, of.invstd)
    work = Estimate(out, vector_flops=8 * of.mean.numel, transcendentals=merged.numel, reads=reads)
    return updated(work, of.running_mean, of.running_var)


OPERANDS = ("x", "weight", "bias")
Wants = tuple[bool, ...]


class NormGradient(Record, frozen=True):
    """Operations per element of the gradients of one kind of normalisation."""

    shared: int  # the part that the gradients of input and weight share
    input: int
    weight: int
    weighted: int = 0  # more for the input if there is a weight
    sums: bool = False  # whether the input's gradient needs the sum that is the bias's gradient

    def gradients(
        self,
        grad: TensorType,
        x: TensorType,
        weight: TensorType | None,
        wants: Wants,
        kept: tuple[TensorType | Dim | None, ...],
        affine: TensorType | None = None,
    ) -> Estimate:
        """The gradients of input, weight and bias, None if unwanted; those of weight and bias have the type `affine`."""
        for_input, for_weight, for_bias = wants
        per_element = self.shared * (for_input or for_weight) + self.weight * for_weight
        per_element += (self.input + self.weighted * (weight is not None)) * for_input
        work = (per_element + (for_bias or (self.sums and for_input))) * x.numel
        touched = (grad, x, weight, *kept) if for_input or for_weight else (grad,)
        return Estimate(where_wanted((x, affine, affine), wants), vector_flops=work, reads=touched)


# For the input also the weight 1; the gradient of a bias is a sum, 1.
LAYER = NormGradient(shared=2, input=7, weight=2, weighted=1)  # the value again 2; row sums 3, combination 4
ROOT_MEAN_SQUARE = NormGradient(shared=1, input=5, weight=2, weighted=1)  # again 1; row sum 2, combination 3
GROUP = NormGradient(shared=2, input=4, weight=0, sums=True)  # gradient times input 2; combination 4
BATCH = NormGradient(shared=3, input=4, weight=0, sums=True)  # centre 1, times gradient 2; combination 4
BATCH_INFERENCE = NormGradient(shared=0, input=1, weight=3)  # for the weight centre 1, times gradient 2


@rule("aten.native_layer_norm_backward").takes("grad_out x * mean rstd weight? bias?")
def native_layer_norm_backward(of: Operands, *, output_mask: Wants) -> Estimate:
    """Up to 13 operations per element for input, weight and bias."""
    given = (True, of.weight is not None, of.bias is not None)
    wants = tuple(wanted and there for wanted, there in zip(output_mask, given, strict=True))
    affine = of.weight or of.bias or of.x
    return LAYER.gradients(of.grad_out, of.x, of.weight, wants, (of.mean, of.rstd), affine)


@rule("aten._fused_rms_norm_backward").takes("grad_out x * rstd weight?")
def fused_rms_norm_backward(of: Operands, *, normalized_shape: Shape, output_mask: Wants) -> Estimate:
    """Up to 9 operations per element for input and weight."""
    wants = (output_mask[0], output_mask[1] and of.weight is not None, False)
    affine = of.x.like(normalized_shape)
    estimate = ROOT_MEAN_SQUARE.gradients(of.grad_out, of.x, of.weight, wants, (of.rstd,), affine)
    return replace(estimate, out=estimate.out[:2])


@rule("aten.native_group_norm_backward").takes("grad_out x mean rstd weight?")
def native_group_norm_backward(of: Operands, *, C: Dim, output_mask: Wants) -> Estimate:
    """Up to 7 operations per element for input, weight and bias."""
    return GROUP.gradients(of.grad_out, of.x, of.weight, output_mask, (of.mean, of.rstd), of.x.like((C,)))


@rule(
    "aten.native_batch_norm_backward batch_norm_backward _batch_norm_impl_index_backward",
    "aten.cudnn_batch_norm_backward miopen_batch_norm_backward",
).takes(
    "* grad x weight? running_mean? running_var? saved_mean? saved_var?; training=True output_mask=(True,True,True)"
)
def batch_norm_backward(of: Operands) -> Estimate:
    """Up to 8 operations per element for input, weight and bias in training, 5 in inference."""
    kept = of.named("saved_mean saved_var" if of.training else "running_mean running_var")
    affine, norm = affine_of(of.x, of.weight), BATCH if of.training else BATCH_INFERENCE
    estimate = norm.gradients(of.grad, of.x, of.weight, of.output_mask, kept, affine)
    return replace(estimate, transcendentals=0 if of.training else affine.numel)


def affine_of(x: TensorType, weight: TensorType | None) -> TensorType:
    """The type of a gradient of weight or bias: one element for each channel."""
    return channels_of(x).like(dtype=weight.dtype if weight is not None else None)


@rule("aten.batch_norm_backward_reduce").takes("grad_out x mean invstd weight?")
def batch_norm_backward_reduce(of: Operands, *, input_g: bool, weight_g: bool, bias_g: bool) -> Estimate:
    """Both sums over each channel: centre, product and two sums, four operations per element."""
    sums, affine = channels_of(of.x).like(dtype=computed_in(of.x.dtype)), affine_of(of.x, of.weight)
    out = where_wanted((sums, sums, affine, affine), (input_g, input_g, weight_g, bias_g))
    return Estimate(out, vector_flops=4 * of.x.numel, reads=of.but("weight"))


def priced(norm: NormGradient, call: ForwardCall) -> Estimate:
    """The gradients of a forward call's wanted operands; its statistics, two per group, are read."""
    grad = call.out
    wants = tuple(name in call.wants for name in OPERANDS)
    kept = 2 * call.estimate.transcendentals * (computed_in(grad.dtype).bits // 8)
    found = norm.gradients(grad.like(), call["x"], call.get("weight"), wants, (kept,))
    return replace(found, out=call.gradients(*OPERANDS))


backward("aten.layer_norm", "aten.native_layer_norm")(partial(priced, LAYER))
backward("aten.rms_norm", "aten._fused_rms_norm")(partial(priced, ROOT_MEAN_SQUARE))
backward("aten.group_norm", "aten.native_group_norm")(partial(priced, GROUP))
backward("aten._batch_norm_with_update", "aten._batch_norm_with_update_functional")(partial(priced, BATCH))
backward("aten._native_batch_norm_legit_no_training _batch_norm_no_update")(partial(priced, BATCH_INFERENCE))


@backward(
    "aten.batch_norm instance_norm native_batch_norm _native_batch_norm_legit",
    "aten._native_batch_norm_legit_functional _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm",
)
def batch_norm_gradient(call: ForwardCall) -> Estimate:
    """The gradient with the batch's own statistics, or with running statistics, as the forward normalised."""
    return priced(BATCH if call.get("training", call.get("use_input_stats")) else BATCH_INFERENCE, call)
