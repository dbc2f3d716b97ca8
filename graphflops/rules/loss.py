"""Losses that compare elements: their work per element, the reduction of the results, and their gradients.

`reduction` is 0 for a result per element, 1 for their mean, 2 for their sum: the sum of n is n operations,
the mean divides once. A weight is one product more per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphflops.cost import Estimate, data_dependent, free
from graphflops.dims import Dim, broadcast, dim_max, total
from graphflops.rules.distance import pairwise_distance
from graphflops.rules.elementwise import float_result, real_of, result_type, wanted
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import Backward, ForwardCall, backward, rule
from graphflops.rules.shapes import Shape, Tensors, reduced
from graphflops.tensor import DType, TensorType

KIND = "loss"


MEAN = 1


@dataclass(frozen=True, slots=True)
class Loss:
    """Operations and functions per element of a loss, and of its gradient for either operand."""

    flops: int
    functions: int = 0
    gradient: int = 0
    gradient_functions: int = 0


# The third parameter of these is the reduction.
COMPARED = {
    # subtract, square; subtract, double, scale
    "mse_loss": Loss(2, gradient=3),
    # subtract, magnitude; subtract, sign, scale
    "l1_loss": Loss(2, gradient=3),
    # subtract, magnitude, compare, square, scale, subtract, select;
    # subtract, magnitude, compare, product, divide, sign, product, select
    "smooth_l1_loss": Loss(7, gradient=8),
    # subtract, magnitude, compare, square, halve, subtract, scale, select;
    # subtract, compare twice, product, select twice
    "huber_loss": Loss(8, gradient=6),
    # product, negate, exp, log1p; product, negate, exp, product, add, divide, scale
    "soft_margin_loss": Loss(2, 2, gradient=6, gradient_functions=1),
}
# subtract, product, largest, negate, product, largest, subtract, two logarithms;
# subtract, subtract, product, largest, divide, scale
CROSS_ENTROPY = Loss(7, 2, gradient=6)
# 1 - target, product, subtract the log of the sigmoid: magnitude, negate, exp, log1p, smallest, subtract;
# sigmoid, subtract, scale
CROSS_ENTROPY_OF_LOGITS = Loss(7, 2, gradient=2, gradient_functions=1)
POSITIVE_WEIGHT = 3  # product, add, product
# product with its logarithm, product, subtract; product, scale
DIVERGENCE = Loss(3, 1, gradient=2)
# subtract, product, exp; exp, product, scale
DIVERGENCE_OF_LOGS = Loss(2, 1, gradient=2, gradient_functions=1)
# exp, product, subtract; exp, subtract, scale
POISSON_OF_LOGS = Loss(2, 1, gradient=2, gradient_functions=1)
# add, log, product, subtract; add, divide, subtract, scale
POISSON = Loss(3, 1, gradient=4)
STIRLING = Loss(8, 2)  # t*log(t) - t + log(2*pi*t)/2 where t > 1: compare, select, and the loss' addition


def total_of(
    full: TensorType, reduction: int, flops: Dim, functions: Dim, reads: tuple[TensorType | None, ...]
) -> Estimate:
    """A loss of that full shape with `flops` and `functions` of work, then the reduction."""
    if reduction == 0:
        return Estimate((full,), vector_flops=flops, transcendentals=functions, reads=reads)
    work = flops + full.numel + (reduction == MEAN)
    return Estimate((full.like(()),), vector_flops=work, transcendentals=functions, reads=reads)


def compared(
    loss: Loss, reduction: int, *operands: TensorType | None, dtype: DType | None = None
) -> Estimate:
    """A loss of operands broadcast to one shape; all but the first two are weights."""
    tensors = tuple(x for x in operands if x is not None)
    full = TensorType(broadcast(*(x.shape for x in tensors)), dtype or result_type(*tensors))
    weights = len(tensors) - 2
    flops, functions = (loss.flops + weights) * full.numel, loss.functions * full.numel
    return total_of(full, reduction, flops, functions, tensors)


def gradients_of(loss: Loss, grad: TensorType, into: Tensors, *operands: TensorType | None) -> Estimate:
    """The gradients of some operands, summed over repeats of one that was broadcast; all but the first two are weights.

    into: the operands, for none the first one broadcast.
    """
    tensors = tuple(x for x in operands if x is not None)
    full = TensorType(broadcast(*(x.shape for x in tensors)), result_type(*tensors))
    wanted = into or (full,)
    each = [loss.gradient + len(tensors) - 2 + (x.numel != full.numel) for x in wanted]
    return Estimate(
        tuple(x.like() for x in wanted),
        vector_flops=sum(each) * full.numel,
        transcendentals=loss.gradient_functions * full.numel * len(wanted),
        reads=(grad, *tensors),
    )


def gradients_by(loss: Callable[[Mapping[str, Any]], Loss], *weights: str) -> Backward:
    """The backward rule of the loss that the arguments of a call say."""

    def priced(call: ForwardCall) -> Estimate:
        given, into = call.arguments, tuple(x for _, x in wanted(call))
        operands = given["x"], given["target"], *map(given.get, weights)
        return gradients_of(loss(given), call.out.like(), into, *operands)

    return priced


def _compared(
    x: TensorType, target: TensorType, reduction: int = MEAN, *attributes: float, loss: Loss, **named: float
) -> Estimate:
    return compared(loss, reduction, x, target)


def _gradient(
    grad_output: TensorType, x: TensorType, target: TensorType, *attributes: float, loss: Loss, **named: float
) -> Estimate:
    return gradients_of(loss, grad_output, (), x, target)


for _name, _loss in COMPARED.items():
    rule(f"aten.{_name}").derived(_compared, loss=_loss)
    rule(f"aten.{_name}_backward").derived(_gradient, loss=_loss)
    backward(f"aten.{_name}")(gradients_by(lambda given, loss=_loss: loss))  # type: ignore[misc]


@rule("aten.binary_cross_entropy")
def binary_cross_entropy(
    x: TensorType, target: TensorType, weight: TensorType | None = None, reduction: int = MEAN
) -> Estimate:
    """Seven operations and two logarithms per element."""
    return compared(CROSS_ENTROPY, reduction, x, target, weight, dtype=x.dtype)


@rule("aten.binary_cross_entropy_backward")
@takes("grad x target weight?")
def binary_cross_entropy_backward(of: Operands) -> Estimate:
    """Six operations per element."""
    return gradients_of(CROSS_ENTROPY, of.grad, (), *of.but("grad"))


backward("aten.binary_cross_entropy")(gradients_by(lambda given: CROSS_ENTROPY, "weight"))


@rule("aten.binary_cross_entropy_with_logits")
@takes("x target weight? pos_weight?")
def binary_cross_entropy_with_logits(of: Operands, *, reduction: int = MEAN) -> Estimate:
    """Seven operations, an exponential and a logarithm per element; three more for weighted positives."""
    extra = (POSITIVE_WEIGHT - 1) if of.pos_weight is not None else 0
    loss = Loss(CROSS_ENTROPY_OF_LOGITS.flops + extra, CROSS_ENTROPY_OF_LOGITS.functions)
    return compared(loss, reduction, *of)


backward("aten.binary_cross_entropy_with_logits")(
    gradients_by(lambda given: CROSS_ENTROPY_OF_LOGITS, "weight", "pos_weight")
)


@rule("aten.kl_div")
def kl_div(x: TensorType, target: TensorType, reduction: int = MEAN, *, log_target: bool = False) -> Estimate:
    """Three operations and a logarithm per element; for a target in logarithms two and an exponential."""
    return compared(DIVERGENCE_OF_LOGS if log_target else DIVERGENCE, reduction, x, target)


backward("aten.kl_div")(
    gradients_by(lambda given: DIVERGENCE_OF_LOGS if given.get("log_target") else DIVERGENCE)
)


@rule("aten.poisson_nll_loss")
def poisson_nll_loss(
    x: TensorType, target: TensorType, log_input: bool, full: bool, *, reduction: int
) -> Estimate:
    """Two operations and an exponential per element, or three and a logarithm; Stirling's term is 8 and 2."""
    loss, stirling = POISSON_OF_LOGS if log_input else POISSON, STIRLING if full else Loss(0)
    both = Loss(loss.flops + stirling.flops, loss.functions + stirling.functions)
    return compared(both, reduction, x, target)


backward("aten.poisson_nll_loss")(
    gradients_by(lambda given: POISSON_OF_LOGS if given["log_input"] else POISSON)
)


@rule("aten.hinge_embedding_loss")
def hinge_embedding_loss(x: TensorType, target: TensorType, *, reduction: int = MEAN) -> Estimate:
    """Subtract, clamp, two comparisons and selections, add: seven operations per element."""
    return compared(Loss(7), reduction, x, target)


@rule("aten.margin_ranking_loss")
def margin_ranking_loss(
    input1: TensorType, input2: TensorType, target: TensorType, *, reduction: int = MEAN
) -> Estimate:
    """Negate, subtract, product, add, clamp: five operations per element."""
    dtype = float_result(input1, input2, target)
    return compared(
        Loss(4), reduction, input1, input2, target, dtype=dtype
    )  # the product is the third operand's


@rule("aten.cosine_embedding_loss")
def cosine_embedding_loss(
    input1: TensorType, input2: TensorType, target: TensorType, *, reduction: int = MEAN
) -> Estimate:
    """Three products and their sums per element, twelve operations and a root per row."""
    shape = broadcast(input1.shape, input2.shape)
    full = TensorType(broadcast(shape[:-1], target.shape), result_type(input1, input2, target))
    flops = 6 * full.like(shape).numel + 12 * full.numel
    return total_of(full, reduction, flops, full.numel, (input1, input2, target))


@rule("aten.triplet_margin_loss")
@takes("anchor positive negative")
def triplet_margin_loss(
    of: Operands, *, p: float = 2.0, swap: bool = False, reduction: int = MEAN
) -> Estimate:
    """Two distances, with `swap` a third; add, subtract and clamp per row, with `swap` the smaller of two."""
    anchor, positive, negative = of
    pairs = [(anchor, positive), (anchor, negative), *([(positive, negative)] if swap else [])]
    distances = [pairwise_distance(a, b, p) for a, b in pairs]
    shape = reduced(broadcast(anchor.shape, positive.shape, negative.shape), -1)
    full = TensorType(shape, real_of(float_result(anchor, positive, negative)))
    flops = sum(distance.vector_flops for distance in distances) + (3 + swap) * full.numel
    functions = sum(distance.transcendentals for distance in distances)
    return total_of(full, reduction, flops, functions, (anchor, positive, negative))


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


@rule("aten.ctc_loss")
@takes("log_probs targets input_lengths? target_lengths?")
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


@rule("aten._ctc_loss_backward")
@takes("grad log_probs targets input_lengths? target_lengths? neg_log_likelihood log_alpha")
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


@rule("aten._use_cudnn_ctc_loss", "aten._use_miopen_ctc_loss")
def use_cudnn_ctc_loss(log_probs: TensorType, targets: TensorType) -> Estimate:
    """Free: a query which implementation runs, whose answer is not known here."""
    return free(None, alias=False)


@backward("aten.ctc_loss", "aten._ctc_loss")
def ctc_loss_gradient(call: ForwardCall) -> Estimate:
    """The recursion backward in time over the kept states."""
    loss = call.out.like()
    lengths = call["input_lengths"], call["target_lengths"]
    kept = ctc_loss_forward(call["log_probs"], call["targets"], *lengths).out[1]
    assert isinstance(kept, TensorType)
    return ctc_loss_backward(loss, call["log_probs"], call["targets"], *lengths, loss, kept)
