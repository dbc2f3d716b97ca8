"""Losses that compare elements, whose work per element is in work.txt; their reductions and gradients.

`reduction` is 0 for a result per element, 1 for their mean, 2 for their sum: the sum of n is n operations,
the mean divides once. A weight is one product more per element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast, dim_max, total
from graphflops.rules.distance import pairwise_distance
from graphflops.rules.elementwise import float_result, real_of, result_type, wanted
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.rules.shapes import Shape, Tensors, reduced
from graphflops.rules.work import WORK, Work
from graphflops.tensor import TensorType

KIND = "loss"

MEAN = 1


def total_of(
    full: TensorType, reduction: int, flops: Dim, functions: Dim, reads: tuple[TensorType | None, ...]
) -> Estimate:
    """A loss whose elements, of the shape of `full`, take `flops` and `functions` together; then the reduction."""
    each = Estimate((full,), vector_flops=flops, transcendentals=functions, reads=reads)
    summed = full.numel + (reduction == MEAN)
    return each.plus(out=(full.like(()),), vector_flops=summed) if reduction else each


def work_of(name: str, given: Mapping[str, Any], gradient: str = "") -> Work:
    """The work of a loss per element, given its arguments. gradient: `_backward` for the work of the gradient."""
    if (name == "kl_div" and given.get("log_target")) or (name == "poisson_nll_loss" and given["log_input"]):
        name += "_of_logs"
    work = WORK[name + gradient]
    if given.get("full") and not gradient:
        work = work.more(WORK["stirling"].flops, WORK["stirling"].transcendentals)
    # `pos_weight` takes two operations beside its product: 1 is subtracted from it, and 1 is added.
    return work if given.get("pos_weight") is None or gradient else work.more(2)


@takes("x target * weight? pos_weight? log_target? log_input? full?")
def compared(of: Operands, *, reduction: int = MEAN, name: str) -> Estimate:
    """The work of the loss per element of the operands broadcast, a product for each weight, then the reduction."""
    tensors = tuple(x for x in of.named("x target weight pos_weight") if x is not None)
    dtype = of.x.dtype if name == "binary_cross_entropy" else result_type(*tensors)
    full, work = TensorType(broadcast(*(x.shape for x in tensors)), dtype), work_of(name, of.given)
    flops = (work.flops + len(tensors) - 2) * full.numel
    return total_of(full, reduction, flops, work.transcendentals * full.numel, tensors)


def gradients_of(work: Work, grad: TensorType, into: Tensors, *operands: TensorType | None) -> Estimate:
    """The gradients of some operands, summed over the repeats of a broadcast one; operands after the first two are weights.

    into: the operands that want a gradient; if none are named, the first, with the shape of the loss.
    """
    tensors = tuple(x for x in operands if x is not None)
    full = TensorType(broadcast(*(x.shape for x in tensors)), result_type(*tensors))
    wanted = into or (full,)
    each = [work.flops + len(tensors) - 2 + (x.numel != full.numel) for x in wanted]
    return Estimate(
        tuple(x.like() for x in wanted),
        vector_flops=sum(each) * full.numel,
        transcendentals=work.transcendentals * full.numel * len(wanted),
        reads=(grad, *tensors),
    )


@takes("grad x target * weight?")
def gradient(of: Operands, *, name: str) -> Estimate:
    """The work of the gradient per element, and a product for a weight."""
    return gradients_of(WORK[name], of.grad, (), *of.but("grad"))


def gradient_of_call(call: ForwardCall, name: str) -> Estimate:
    """The gradients of the wanted operands of a forward call."""
    work, into = work_of(name, call.arguments, "_backward"), tuple(x for _, x in wanted(call))
    return gradients_of(work, call.out.like(), into, *map(call.get, ("x", "target", "weight", "pos_weight")))


for _name in (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "hinge_embedding_loss"),
):
    rule(f"aten.{_name}").derived(compared, name=_name)
    if f"{_name}_backward" in WORK:
        backward(f"aten.{_name}")(lambda call, name=_name: gradient_of_call(call, name))  # type: ignore[misc]
for _name in ("mse", "l1", "smooth_l1", "huber", "soft_margin"):
    rule(f"aten.{_name}_loss_backward").derived(
        gradient, order="grad x target _", name=f"{_name}_loss_backward"
    )
rule("aten.binary_cross_entropy_backward").derived(gradient, name="binary_cross_entropy_backward")


@rule("aten.margin_ranking_loss")
def margin_ranking_loss(
    input1: TensorType, input2: TensorType, target: TensorType, *, reduction: int = MEAN
) -> Estimate:
    """Negate, subtract, product, add, clamp: five operations per element."""
    tensors = (input1, input2, target)
    full = TensorType(broadcast(*(x.shape for x in tensors)), float_result(*tensors))
    return total_of(full, reduction, 5 * full.numel, 0, tensors)


@rule("aten.cosine_embedding_loss")
def cosine_embedding_loss(
    input1: TensorType, input2: TensorType, target: TensorType, *, reduction: int = MEAN
) -> Estimate:
    """Three products and their sums per element, twelve operations and a root per row."""
    shape = broadcast(input1.shape, input2.shape)
    full = TensorType(broadcast(shape[:-1], target.shape), result_type(input1, input2, target))
    flops = 6 * full.like(shape).numel + 12 * full.numel
    return total_of(full, reduction, flops, full.numel, (input1, input2, target))


@rule("aten.triplet_margin_loss").takes(f"anchor positive negative; p=2.0 swap=False reduction={MEAN}")
def triplet_margin_loss(of: Operands) -> Estimate:
    """Two distances, with `swap` a third; add, subtract and clamp per row, with `swap` the smaller of two."""
    anchor, positive, negative = of
    pairs = [(anchor, positive), (anchor, negative), *([(positive, negative)] if of.swap else [])]
    shape = reduced(broadcast(anchor.shape, positive.shape, negative.shape), -1)
    full = TensorType(shape, real_of(float_result(anchor, positive, negative)))
    loss = total_of(full, of.reduction, (3 + of.swap) * full.numel, 0, (anchor, positive, negative))
    return loss.plus(*(pairwise_distance(a, b, of.p) for a, b in pairs))


# Connectionist temporal classification: a recursion over time and the label sequence with blanks in between.
# A state is one place of one extended label (twice its length and one) at one time step. It takes the log of a
# sum of three: largest 2, subtract 3, three exponentials, add 2, a logarithm, add back 1, and the step's own
# log probability 1.

STATE = 9
STATE_FUNCTIONS = 4
Lengths = TensorType | Shape


def states(log_probs: TensorType, targets: TensorType, inputs: Lengths, labels: Lengths) -> Dim:
    """States of the whole batch; unknown lengths are bounded by the padded sizes."""
    steps, batch = log_probs.shape[0], samples(log_probs)
    if isinstance(inputs, tuple) and isinstance(labels, tuple):
        return total(step * (2 * label + 1) for step, label in zip(inputs, labels, strict=True))
    if targets.rank == 1:
        return steps * (2 * targets.numel + batch)
    return steps * batch * (2 * targets.shape[1] + 1)


def samples(log_probs: TensorType) -> Dim:
    """Sequences in the batch."""
    return log_probs.shape[1] if log_probs.rank == 3 else 1


@rule("aten.ctc_loss").takes("log_probs targets input_lengths? target_lengths?")
def ctc_loss(of: Operands, *, reduction: int = MEAN) -> Estimate:
    """Nine operations and four functions per state; a mean divides by each label's length."""
    full, visited = of.log_probs.like(of.log_probs.shape[1:-1]), states(*of)
    flops = STATE * visited + full.numel * (reduction == MEAN)
    return total_of(full, reduction, flops, STATE_FUNCTIONS * visited, (of.log_probs, of.targets))


@rule("aten._ctc_loss")
def ctc_loss_forward(
    log_probs: TensorType, targets: TensorType, input_lengths: Lengths, target_lengths: Lengths
) -> Estimate:
    """Nine operations and four functions per state; all states are kept."""
    visited, batch = states(log_probs, targets, input_lengths, target_lengths), samples(log_probs)
    lengths = target_lengths
    longest = dim_max(*lengths) if isinstance(lengths, tuple) else data_dependent("longest_label")
    kept = log_probs.like((batch, log_probs.shape[0], 2 * longest + 1))
    return Estimate(
        (log_probs.like((batch,)), kept),
        vector_flops=STATE * visited,
        transcendentals=STATE_FUNCTIONS * visited,
        reads=(log_probs, targets),
    )


@rule("aten._ctc_loss_backward").takes(
    "grad log_probs targets input_lengths? target_lengths? neg_log_likelihood log_alpha"
)
def ctc_loss_backward(of: Operands) -> Estimate:
    """The recursion backward in time, each state added to its class; all classes at every step."""
    visited = states(*of.named("log_probs targets input_lengths target_lengths"))
    return Estimate(
        (of.log_probs.like(),),
        vector_flops=(STATE + 5) * visited + 5 * of.log_probs.numel,
        transcendentals=(STATE_FUNCTIONS + 3) * visited + 2 * of.log_probs.numel,
        reads=of.but("input_lengths target_lengths"),
    )


@rule("aten._cudnn_ctc_loss", "aten.miopen_ctc_loss")
def cudnn_ctc_loss(
    log_probs: TensorType, targets: TensorType, input_lengths: Lengths, target_lengths: Lengths
) -> Estimate:
    """Both recursions: the loss and its gradient."""
    forward = ctc_loss_forward(log_probs, targets, input_lengths, target_lengths)
    loss = log_probs.like((samples(log_probs),))
    gradient = ctc_loss_backward(loss, log_probs, targets, input_lengths, target_lengths, loss, log_probs)
    return Estimate((loss, log_probs.like()), reads=(log_probs, targets)).plus(forward, gradient)


@backward("aten.ctc_loss", "aten._ctc_loss")
def ctc_loss_gradient(call: ForwardCall) -> Estimate:
    """The recursion backward in time over the kept states."""
    loss = call.out.like()
    lengths = call["input_lengths"], call["target_lengths"]
    kept = ctc_loss_forward(call["log_probs"], call["targets"], *lengths).out[1]
    assert isinstance(kept, TensorType)
    return ctc_loss_backward(loss, call["log_probs"], call["targets"], *lengths, loss, kept)
