"""The kernels of elementwise gradients, by their formulas in `rules/work.py`, with the tensors of a call."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import Dim, broadcast, prod
from graphflops.graph import Ref, tensor_type
from graphflops.rules.formula import launches, numbers_of
from graphflops.rules.work import WORK
from graphflops.rules.work_row import Formula

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall
    from graphflops.rules.formula import Launch
    from graphflops.tensor import TensorType


class GradientKernels(NamedTuple):
    """What computes the gradient of one operand. named: the values that its formula calls `a`, `b`, `c` and `out`."""

    formula: Formula
    launches: Sequence[Launch]
    named: Mapping[str, str]


def gradient_kernels(call: PricedCall, place: int, values: Mapping[str, Value]) -> GradientKernels | None:
    """What computes the gradient of the operand at a place among the call's tensors; None where no formula is known."""
    operator = call.node.operator
    work = WORK.get(operator.name)
    if work is None or not work.formulas:
        return None
    arguments = call.node.arguments()
    given = [
        (letter, arguments.get(name))
        for letter, name in zip("abc", operator.parameters[: work.operands], strict=False)
    ]
    named = {
        letter: value.name
        for letter, value in given
        if isinstance(value, Ref) and tensor_type(value, values) is not None
    }
    letter = next(islice(named, place, None), None)
    if letter is None:
        return None
    formula = work.formulas["abc".index(letter)]
    if formula is None:  # the gradient of the result is the operand's too
        return GradientKernels(Formula(""), (), {})
    numbers = numbers_of(each for each in given if each[0] not in named)
    found = launches(formula.launched or formula.text, numbers)
    return GradientKernels(formula, found, {**named, "out": call.node.outputs[0] or ""})


def temporary_bytes(found: GradientKernels, out: TensorType, values: Mapping[str, Value]) -> list[Dim]:
    """Bytes of each tensor that a formula makes on its way. All live until the gradient is there."""
    if found.formula.is_fused or not found.launches:
        return []
    result = len(found.launches) - 1
    while found.launches[result].is_in_place:
        result = next(each for each in found.launches[result].operands if isinstance(each, int))
    sizes = []
    for place, launch in enumerate(found.launches):
        if place != result and not launch.is_in_place:
            leaves = [tensor_type(found.named.get(leaf), values) or out for leaf in launch.leaves]
            shapes = [leaf.shape for leaf in leaves]
            sizes.append(prod(broadcast(*shapes)) * (1 if launch.is_mask else out.dtype.bits // 8))
    return sizes
