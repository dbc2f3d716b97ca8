"""Gradients and steps of optimizers, as ONNX's preview of training spells them: (rate, step, tensors, gradients, states)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, total
from graphflops.errors import shown
from graphflops.rules.registry import require, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.tensor import TensorType

REGULARISED = 2  # norm_coefficient * x + gradient


@dataclass(frozen=True, slots=True)
class Step:
    """Operations and roots per element of a tensor, beside those of regularisation."""

    operations: int
    roots: int = 0


# h += g * g; x -= rate * g / (sqrt(h) + eps)
ADAGRAD = Step(6, 1)
# v = a * v + (1 - a) * g; h = b * h + (1 - b) * g * g; x -= rate * v / (sqrt(h) + eps)
ADAM = Step(11, 1)
# v = a * v + b * g; x -= rate * v, or rate * (g + a * v)
MOMENTUM, NESTEROV = Step(5), Step(7)


def optimized(
    step: Step,
    states: int,
    rate: TensorType,
    count: TensorType,
    tensors: tuple[TensorType, ...],
    regular: int,
) -> Estimate:
    """New tensors and new states of all, for which `states` old ones each are given behind their gradients."""
    groups = 2 + states
    require(len(tensors) % groups == 0, f"{len(tensors)} operands do not make {groups} for each tensor")
    many = len(tensors) // groups
    elements: Dim = total(x.numel for x in tensors[:many])
    kept = (*tensors[:many], *tensors[2 * many :])
    return Estimate(
        tuple(x.like() for x in kept),
        vector_flops=(step.operations + regular) * elements,
        transcendentals=step.roots * elements,
        reads=(rate, count, *tensors),
    )


@rule("ai.onnx.preview.training.Adagrad")
def adagrad(
    rate: TensorType,
    count: TensorType,
    *tensors: TensorType,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> Estimate:
    """Six operations and a root per element, two more for a norm's gradient."""
    return optimized(ADAGRAD, 1, rate, count, tensors, REGULARISED * (norm_coefficient != 0))


@rule("ai.onnx.preview.training.Adam")
def adam(
    rate: TensorType,
    count: TensorType,
    *tensors: TensorType,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Estimate:
    """Eleven operations and a root per element, two more for a norm's gradient, one for shrinking afterwards."""
    regular = REGULARISED * (norm_coefficient != 0) + (norm_coefficient_post != 0)
    return optimized(ADAM, 2, rate, count, tensors, regular)


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
    """One gradient of the type of each of `xs`; no operand tells the work, that of the calls between these and `y`."""
    require(
        len(operands) == len(xs) + len(zs), f"{len(operands)} values are given for {len(xs) + len(zs)} names"
    )
    work = f"it runs the calls that lead to {shown(y)} backwards: how much work that is no operand tells"
    return Estimate(tuple(x.like() for x in operands[: len(xs)]), unknown=work)
