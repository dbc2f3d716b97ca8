"""Lists of tensors at once: `_foreach_` operators apply the rule of the single operator to each item; fused optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from graphflops.cost import Estimate, Value
from graphflops.dims import total
from graphflops.errors import RuleError
from graphflops.rules.registry import find, require, rule
from graphflops.tensor import TensorType

Item = Union[Value, Sequence[Value]]  # a list with an entry for each item, or what all items share
Tensors = Sequence[TensorType]

ELEMENTWISE = (
    *("abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg".split()),
    *("reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc".split()),
    *("add sub mul div pow maximum minimum clamp_max clamp_min lerp".split()),
)


def together(estimates: Sequence[Estimate]) -> Estimate:
    """Several calls as one: results side by side, work and traffic added up."""
    return Estimate(
        tuple(x for part in estimates for x in part.out),
        matrix_flops=total(part.matrix_flops for part in estimates),
        vector_flops=total(part.vector_flops for part in estimates),
        transcendentals=total(part.transcendentals for part in estimates),
        reads=tuple(x for part in estimates for x in part.reads),
        writes=tuple(x for part in estimates for x in _written(part)),
    )


def _written(estimate: Estimate) -> tuple[TensorType | Value, ...]:
    if estimate.writes is not None:
        return estimate.writes
    return tuple(x for x in estimate.out if isinstance(x, TensorType))


def for_each(single: str, *operands: Item, **named: Item) -> Estimate:
    """The single operator's rule applied to each item of the operands that are lists."""
    found = find(single)
    if found is None:
        raise RuleError(f"operator {single} has no rule to apply to each item")
    lengths = {len(x) for x in (*operands, *named.values()) if isinstance(x, (tuple, list))}
    require(len(lengths) == 1, f"lists of different lengths: {sorted(lengths)}")

    def item(operand: Item, place: int) -> Item:
        return operand[place] if isinstance(operand, (tuple, list)) else operand

    return together(
        [
            found.function(
                *(item(x, place) for x in operands), **{name: item(x, place) for name, x in named.items()}
            )
            for place in range(*lengths)
        ]
    )


def foreach(name: str, single: str) -> None:
    """Register `_foreach_<name>` as the single operator's rule applied to each item."""

    @rule(f"aten._foreach_{name}")
    def priced(*operands: Item, **named: Item) -> Estimate:
        return for_each(single, *operands, **named)


for name in (*ELEMENTWISE, "max", "clone", "zero", "mm"):
    foreach(name, f"aten.{name}")


@rule("aten._foreach_copy")
def foreach_copy(targets: Tensors, sources: Tensors, non_blocking: bool = False) -> Estimate:
    """Each source read, each target written."""
    return for_each("aten.copy", targets, sources)


@rule("aten._foreach_addcmul")
def foreach_addcmul(a: Tensors, b: Tensors, c: Tensors, value: Item = 1) -> Estimate:
    """addcmul for each item; the scale is shared, one per item, or a tensor of all."""
    return for_each("aten.addcmul", a, b, c, value=value)


@rule("aten._foreach_addcdiv")
def foreach_addcdiv(a: Tensors, b: Tensors, c: Tensors, value: Item = 1) -> Estimate:
    """addcdiv for each item; the scale is shared, one per item, or a tensor of all."""
    return for_each("aten.addcdiv", a, b, c, value=value)


@rule("aten._foreach_norm")
def foreach_norm(a: Tensors, ord: Value = 2, dtype: Value = None) -> Estimate:
    """The vector norm of each item."""
    return for_each("aten.linalg_vector_norm", a, ord, dtype=dtype)


@rule("aten._foreach_powsum")
def foreach_powsum(a: Tensors, ord: Value = 2, dtype: Value = None) -> Estimate:
    """The sum of powers of each item."""
    return for_each("aten.linalg__powsum", a, ord, dtype=dtype)


# Mixed-precision scaling.


@rule("aten._amp_foreach_non_finite_check_and_unscale")
def unscale(grads: Tensors, found_inf: TensorType, inv_scale: TensorType) -> Estimate:
    """A check and a product per element."""
    out = (*(x.like() for x in grads), found_inf.like())
    return Estimate(out, vector_flops=2 * _elements(grads), reads=(*grads, found_inf, inv_scale), writes=out)


@rule("aten._amp_update_scale")
def update_scale(
    scale: TensorType,
    growth_tracker: TensorType,
    found_inf: TensorType,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Estimate:
    """One product and the count of steps without overflow."""
    operands = (scale, growth_tracker)
    out = tuple(x.like() for x in operands)
    return Estimate(out, vector_flops=2, reads=(*operands, found_inf), writes=out)


# Optimizers that update all parameters in one call.


def update(
    states: Sequence[Tensors], grads: Tensors, scalars: Sequence[Item], flops: int, roots: int, *, rescaled: bool = False
) -> Estimate:
    """An update of parameters (the first states) and what the optimizer keeps: each read and written once, gradients read.

    Gradients are written too where they are rescaled; they are the second list of the functional form's results.
    """
    ...
