"""The kernels of elementwise gradients: the formulas of `rules/work.txt`, applied to the tensors of a call."""

from collections.abc import Mapping, Sequence
from itertools import islice

from graphflops.base.record import Record
from graphflops.cost import Value
from graphflops.dims import Dim, broadcast, prod
from graphflops.graph import Ref, tensor_type
from graphflops.ops import Op
from graphflops.passes.program import PricedCall
from graphflops.rules.formula import Launch, launches, numbers_of
from graphflops.rules.work import REDUCTIONS, WORK, Formula
from graphflops.tensor import TensorType


class GradientKernels(Record, frozen=True):
    """The kernels that compute the gradient of one operand."""

    formula: Formula
    launches: Sequence[Launch]
    named: Mapping[str, str]  # by the formula's names `a`, `b`, `c` and `out`, the names of the values
    is_reduced: bool = False  # the call is a reduction: its operand has more elements than `g` and `out`

    def shaped(self, launch: Launch) -> frozenset[str]:
        """The tensors that together determine the shape of a launch's result."""
        return launch.leaves & {"a"} if self.is_reduced and "a" in launch.leaves else launch.leaves


def gradient_kernels(call: PricedCall, place: int, values: Mapping[str, Value]) -> GradientKernels | None:
    """The kernels of the gradient for the operand at this place among the call's tensors; None without a known formula."""
    operator, arguments, outputs = call.node.operator, call.node.arguments(), call.node.outputs
    if operator.kind in ("reduction", "scan"):
        order = arguments.get("order")
        formula = REDUCTIONS.get(operator.name.removeprefix("aten."))
        if order not in (2, None):
            formula = REDUCTIONS.get(f"{operator.name}:{order}", REDUCTIONS["vector_norm:p"])
        if formula is None or (outputs[1:] and operator.name in ("max", "min")):
            return None  # along one axis, the gradient of an extreme is scattered to its place
        found, named = launches(formula.text, numbers_of((("p", order),))), {"a": call.uses[0]}
        named["out"] = outputs[0] or ""
        return GradientKernels(formula, found, named, operator.kind == "reduction")
    is_rounded = arguments.get("rounding_mode") is not None  # a division whose gradient is zero
    work = WORK.get("floor_divide" if is_rounded else operator.name)
    if work is None or not work.formulas:
        return None
    names = operator.parameters[: work.operands]
    given = [(letter, arguments.get(name)) for letter, name in zip("abc", names, strict=False)]
    tensors = [(letter, value) for letter, value in given if tensor_type(value, values) is not None]
    named = {letter: value.name for letter, value in tensors if isinstance(value, Ref)}
    letter = next(islice(named, place, None), None)
    if letter is None:
        return None
    formula = work.formulas["abc".index(letter)]
    if formula is None:  # the operand's gradient is that of the result
        return GradientKernels(Formula(""), (), {})
    given += [(name, value) for name, value in arguments.items() if name not in names]
    numbers = numbers_of(each for each in given if each[0] not in named)
    found = launches(formula.launched or formula.text, numbers)
    return GradientKernels(formula, found, {**named, "out": outputs[0] or ""})


def axes_of(operator: Op, operand: Sequence[Dim], rank: int) -> range:
    """The axes of a result of this rank that an operand has: the last ones; for the weight of a PReLU, the channels."""
    is_of_channels = operator.name == "prelu" and len(operand) == 1 < rank
    return range(1, 2) if is_of_channels else range(rank - len(operand), rank)


def temporary_bytes(found: GradientKernels, out: TensorType, values: Mapping[str, Value]) -> list[Dim]:
    """Bytes of each temporary that a formula makes. All live until the gradient is computed."""
    if found.formula.is_fused or not found.launches:
        return []
    result = len(found.launches) - 1
    while found.launches[result].is_in_place:
        result = next(each for each in found.launches[result].operands if isinstance(each, int))
    sizes = []
    for place, launch in enumerate(found.launches):
        if place != result and not launch.is_in_place:
            leaves = [tensor_type(found.named.get(leaf), values) or out for leaf in found.shaped(launch)]
            shapes = [leaf.shape for leaf in leaves]
            sizes.append(prod(broadcast(*shapes)) * (1 if launch.is_mask else out.dtype.bits // 8))
    return sizes
