"""Gradients of normalisations: backward operators, and the backward cost of forward calls.

Per element; the shared part is counted once if input or weight have a gradient:

* layer: the normalised value again 2; input: weight 1, two row sums 3, combination 4; weight 2; bias 1
* root mean square: the normalised value again 1; input: weight 1, row sum 2, combination 3; weight 2
* group: gradient times input 2; input: gradient sum 1, combination 4; weight nothing more; bias 1
* batch, instance: centre 1, times gradient 2; input: gradient sum 1, combination 4; weight nothing more; bias
1
* by running statistics: input 1; weight: centre 1, times gradient 2; bias 1
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.cost import Estimate
from graphflops.dims import Dim
from graphflops.rules.norm import channels_of, computed_in
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.tensor import TensorType

KIND = "normalisation"

OPERANDS = ("x", "weight", "bias")
Wants = tuple[bool, ...]


class NormGradient(Record, frozen=True):
    """Operations per element of the gradients of one kind of normalisation."""

    shared: int  # what the gradients of input and weight have in common
    input: int
    weight: int
    weighted: int = 0  # more for the input where there is a weight
    sums: bool = False  # whether the input's gradient needs the sum that is the bias' gradient

    def work(self, x: TensorType, weight: TensorType | None, wants: Wants) -> Dim:
        """Operations for the wanted gradients of input, weight and bias."""
        for_input, for_weight, for_bias = wants
        per_element = self.shared * (for_input or for_weight) + self.weight * for_weight
        per_element += (self.input + self.weighted * (weight is not None)) * for_input
        return (per_element + (for_bias or (self.sums and for_input))) * x.numel

    def gradients(
        self,
        grad: TensorType,
        x: TensorType,
        weight: TensorType | None,
        wants: Wants,
        kept: tuple[TensorType | None, ...],
        affine: TensorType,
    ) -> Estimate:
        """The three gradients, None for unwanted ones; those of weight and bias have the type `affine`."""
        out = tuple(
            like.like() if wanted else None for like, wanted in zip((x, affine, affine), wants, strict=True)
        )
        touched = (grad, x, weight, *kept) if wants[0] or wants[1] else (grad,)
        return Estimate(out, vector_flops=self.work(x, weight, wants), reads=touched)


LAYER = NormGradient(shared=2, input=7, weight=2, weighted=1)
ROOT_MEAN_SQUARE = NormGradient(shared=1, input=5, weight=2, weighted=1)
GROUP = NormGradient(shared=2, input=4, weight=0, sums=True)
BATCH = NormGradient(shared=3, input=4, weight=0, sums=True)
BATCH_INFERENCE = NormGradient(shared=0, input=1, weight=3)


@rule("aten.native_layer_norm_backward")
@takes("grad_out x * mean rstd weight? bias?")
def native_layer_norm_backward(of: Operands, *, output_mask: Wants) -> Estimate:
    """Up to 13 operations per element for input, weight and bias."""
    given = (True, of.weight is not None, of.bias is not None)
    wants = tuple(wanted and there for wanted, there in zip(output_mask, given, strict=True))
    affine = of.weight or of.bias or of.x
    return LAYER.gradients(of.grad_out, of.x, of.weight, wants, (of.mean, of.rstd), affine)


@rule("aten._fused_rms_norm_backward")
@takes("grad_out x * rstd weight?")
def fused_rms_norm_backward(
    of: Operands, *, normalized_shape: tuple[Dim, ...], output_mask: Wants
) -> Estimate:
    """Up to 9 operations per element for input and weight."""
    wants, affine = (
        (output_mask[0], output_mask[1] and of.weight is not None, False),
        of.x.like(normalized_shape),
    )
    estimate = ROOT_MEAN_SQUARE.gradients(of.grad_out, of.x, of.weight, wants, (of.rstd,), affine)
    return replace(estimate, out=estimate.out[:2])


@rule("aten.native_group_norm_backward")
@takes("grad_out x mean rstd weight?")
def native_group_norm_backward(of: Operands, *, C: Dim, output_mask: Wants) -> Estimate:
    """Up to 7 operations per element for input, weight and bias."""
    kept = (of.mean, of.rstd)
    return GROUP.gradients(of.grad_out, of.x, of.weight, output_mask, kept, of.x.like((C,)))


@rule(
    "aten.native_batch_norm_backward batch_norm_backward _batch_norm_impl_index_backward",
    "aten.cudnn_batch_norm_backward miopen_batch_norm_backward",
)
@takes("* grad x weight? running_mean? running_var? saved_mean? saved_var?")
def batch_norm_backward(
    of: Operands, *, training: bool = True, output_mask: Wants = (True, True, True)
) -> Estimate:
    """Up to 8 operations per element for input, weight and bias in training, 5 in inference."""
    kept = of.named("saved_mean saved_var" if training else "running_mean running_var")
    affine = affine_of(of.x, of.weight)
    norm = BATCH if training else BATCH_INFERENCE
    estimate = norm.gradients(of.grad, of.x, of.weight, output_mask, kept, affine)
    return replace(estimate, transcendentals=0 if training else affine.numel)


def affine_of(x: TensorType, weight: TensorType | None) -> TensorType:
    """The type of a gradient of weight or bias: one element for each channel."""
    return channels_of(x).like(dtype=weight.dtype if weight is not None else None)


@rule("aten.batch_norm_backward_reduce")
@takes("grad_out x mean invstd weight?")
def batch_norm_backward_reduce(of: Operands, *, input_g: bool, weight_g: bool, bias_g: bool) -> Estimate:
    """Both sums over each channel: centre, product and two sums, four operations per element."""
    sums, affine = channels_of(of.x).like(dtype=computed_in(of.x.dtype)), affine_of(of.x, of.weight)
    wanted = ((sums, input_g), (sums, input_g), (affine, weight_g), (affine, bias_g))
    out = tuple(result.like() if want else None for result, want in wanted)
    return Estimate(out, vector_flops=4 * of.x.numel, reads=of.but("weight"))


def priced(norm: NormGradient, call: ForwardCall) -> Estimate:
    """The gradients of a forward call's wanted operands; its statistics, two per group, are read."""
    given, grad = call.arguments, call.out
    wants = tuple(name in call.wants for name in OPERANDS)
    out = tuple(given[name].like() for name, wanted in zip(OPERANDS, wants, strict=True) if wanted)
    kept = 2 * call.estimate.transcendentals * (computed_in(grad.dtype).bits // 8)
    touched = (grad.like(), given["x"], given.get("weight"), kept) if wants[0] or wants[1] else (grad.like(),)
    return Estimate(out, vector_flops=norm.work(given["x"], given.get("weight"), wants), reads=touched)


backward("aten.layer_norm", "aten.native_layer_norm")(partial(priced, LAYER))
backward("aten.rms_norm", "aten._fused_rms_norm")(partial(priced, ROOT_MEAN_SQUARE))
backward("aten.group_norm", "aten.native_group_norm")(partial(priced, GROUP))
backward("aten._batch_norm_with_update", "aten._batch_norm_with_update_functional")(partial(priced, BATCH))
backward("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update")(
    partial(priced, BATCH_INFERENCE)
)


@backward(
    "aten.batch_norm instance_norm native_batch_norm _native_batch_norm_legit",
    "aten._native_batch_norm_legit_functional _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm",
)
def batch_norm_gradient(call: ForwardCall) -> Estimate:
    """As in training for the batch's own statistics, as in inference for running ones."""
    own = call.arguments.get("training", call.arguments.get("use_input_stats"))
    return priced(BATCH if own else BATCH_INFERENCE, call)
