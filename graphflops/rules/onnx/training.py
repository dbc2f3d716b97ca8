"""Losses of class scores; gradients and steps of optimizers.

The optimizers' operands are spelled as in ONNX's preview of training: (rate, step, tensors, gradients, states).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, total
from graphflops.errors import shown
from graphflops.rules.loss_class import cross_entropy_loss, likelihood
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.shapes import only_result
from graphflops.rules.work import WORK, Work
from graphflops.tensor import TensorType

KIND = "optimizer"


REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def code_of(reduction: str) -> int:
    """The reduction's number in the shared formulas."""
    require_known(reduction in REDUCTIONS, f"unknown reduction {reduction!r}")
    return REDUCTIONS[reduction]


@rule("onnx.NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: TensorType, target: TensorType, weight: TensorType | None = None, *, reduction: str = "mean"
) -> Estimate:
    """Negate, compare and weight per picked score."""
    return likelihood(x, target, weight, code_of(reduction))


@rule("onnx.SoftmaxCrossEntropyLoss")
@takes("x target weight?")
def softmax_cross_entropy_loss(of: Operands, *, reduction: str = "mean") -> Estimate:
    """The logarithm of the softmax, which may be a result of its own, then a pick."""
    loss = cross_entropy_loss(*of, reduction=code_of(reduction))
    return replace(loss, out=(only_result(loss), of.x.like()))


REGULARISED = WORK["l2_penalty"].flops
# v = a * v + b * g; x -= rate * v, or rate * (g + a * v)
MOMENTUM = WORK["sgd"].more(WORK["momentum"].flops + 1)
NESTEROV = MOMENTUM.more(WORK["momentum"].flops)


def optimized(
    rate: TensorType,
    count: TensorType,
    *tensors: TensorType,
    step: Work,
    states: int = 1,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Estimate:
    """New tensors and states; `tensors` holds all tensors, then all gradients, then `states` states of each.

    Two operations more for a norm's gradient, one for shrinking afterwards.
    """
    groups = 2 + states
    require(len(tensors) % groups == 0, f"{len(tensors)} operands do not make {groups} for each tensor")
    many = len(tensors) // groups
    elements: Dim = total(x.numel for x in tensors[:many])
    kept = (*tensors[:many], *tensors[2 * many :])
    regular = REGULARISED * (norm_coefficient != 0) + (norm_coefficient_post != 0)
    return Estimate(
        tuple(x.like() for x in kept),
        vector_flops=(step.flops + regular) * elements,
        transcendentals=step.transcendentals * elements,
        reads=(rate, count, *tensors),
    )


rule("ai.onnx.preview.training.Adagrad").derived(
    optimized,
    says="Six operations and a root per element, two more for a norm's gradient.",
    step=WORK["adagrad"],
)
rule("ai.onnx.preview.training.Adam").derived(
    optimized,
    says="Eleven operations and a root per element, two more for a norm's gradient, one for shrinking afterwards.",
    step=WORK["adam_uncorrected"],
    states=2,
)


@rule("ai.onnx.preview.training.Momentum")
def momentum(*operands: TensorType, mode: str, norm_coefficient: float) -> Estimate:
    """Five operations per element, seven where the step looks ahead, two more for a norm's gradient."""
    step = NESTEROV if mode == "nesterov" else MOMENTUM
    return optimized(*operands, step=step, norm_coefficient=norm_coefficient)


@rule("ai.onnx.preview.training.Gradient")
def gradient(*operands: TensorType, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> Estimate:
    """A gradient for each of `xs`; the work is unknown: it is that of the calls between these and `y`."""
    given, named = len(operands), len(xs) + len(zs)
    require(given == named, f"{given} values are given for {named} names")
    work = f"its work is that of the calls that lead to {shown(y)}, run backwards; the operands do not determine it"
    return Estimate(tuple(x.like() for x in operands[: len(xs)]), unknown=work)
