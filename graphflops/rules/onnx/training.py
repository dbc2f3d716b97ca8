"""Gradients and steps of optimizers, as ONNX's preview of training spells them: (rate, step, tensors, gradients, states)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, total
from graphflops.errors import shown
from graphflops.rules.registry import require, rule
from graphflops.rules.work import WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.rules.work_row import Work
    from graphflops.tensor import TensorType

KIND = "optimizer"

REGULARISED = WORK["l2_penalty"].flops
# v = a * v + b * g; x -= rate * v, or rate * (g + a * v)
MOMENTUM = WORK["sgd"].more(WORK["momentum"].flops + 1)
NESTEROV = MOMENTUM.more(WORK["momentum"].flops)


def optimized(
    step: Work,
    states: int,
    rate: TensorType,
    count: TensorType,
    tensors: tuple[TensorType, ...],
    regular: int,
) -> Estimate:
    """New tensors and states; `tensors` holds all tensors, then all gradients, then `states` states of each."""
    groups = 2 + states
    require(len(tensors) % groups == 0, f"{len(tensors)} operands do not make {groups} for each tensor")
    many = len(tensors) // groups
    elements: Dim = total(x.numel for x in tensors[:many])
    kept = (*tensors[:many], *tensors[2 * many :])
    return Estimate(
        tuple(x.like() for x in kept),
        vector_flops=(step.flops + regular) * elements,
        transcendentals=step.transcendentals * elements,
        reads=(rate, count, *tensors),
    )


@rule("ai.onnx.preview.training.Adagrad")
def adagrad(
    rate: TensorType, count: TensorType, *tensors: TensorType, norm_coefficient: float = 0.0
) -> Estimate:
    """Six operations and a root per element, two more for a norm's gradient."""
    return optimized(WORK["adagrad"], 1, rate, count, tensors, REGULARISED * (norm_coefficient != 0))


@rule("ai.onnx.preview.training.Adam")
def adam(
    rate: TensorType,
    count: TensorType,
    *tensors: TensorType,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Estimate:
    """Eleven operations and a root per element, two more for a norm's gradient, one for shrinking afterwards."""
    regular = REGULARISED * (norm_coefficient != 0) + (norm_coefficient_post != 0)
    return optimized(WORK["adam_uncorrected"], 2, rate, count, tensors, regular)


@rule("ai.onnx.preview.training.Momentum")
def momentum(
    rate: TensorType,
    count: TensorType,
    *tensors: TensorType,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> Estimate:
    """Five operations per element, seven where the step looks ahead, two more for a norm's gradient."""
    step = NESTEROV if mode == "nesterov" else MOMENTUM
    return optimized(step, 1, rate, count, tensors, REGULARISED * (norm_coefficient != 0))


@rule("ai.onnx.preview.training.Gradient")
def gradient(*operands: TensorType, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> Estimate:
    """A gradient for each of `xs`; the work is unknown: it is that of the calls between these and `y`."""
    require(
        len(operands) == len(xs) + len(zs), f"{len(operands)} values are given for {len(xs) + len(zs)} names"
    )
    work = f"its work is that of the calls that lead to {shown(y)}, run backwards; the operands do not determine it"
    return Estimate(tuple(x.like() for x in operands[: len(xs)]), unknown=work)
