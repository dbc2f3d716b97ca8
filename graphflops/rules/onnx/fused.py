"""Shared by fused operators: summed work, optional results, activations by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphflops.cost import WORK_QUANTITIES, Estimate, Value
from graphflops.dims import Dim, differ, total
from graphflops.rules.registry import require
from graphflops.rules.shapes import only_result
from graphflops.rules.work import activation as activation_named
from graphflops.rules.work_functions import Work
from graphflops.tensor import INT8, INT32, DType, TensorType

# Which results of the call are wanted; () if that is not known.
Outputs = tuple[bool, ...]
Touched = tuple[TensorType | Dim | None, ...]


def fused(
    out: tuple[Value, ...],
    *parts: Estimate,
    reads: Touched,
    writes: Touched | None = None,
    matrix_dtype: DType | None = None,
) -> Estimate:
    """The summed work of all parts; intermediate results cause no traffic."""
    work: dict[str, Any] = {name: total(getattr(part, name) for part in parts) for name in WORK_QUANTITIES}
    return Estimate(out, **work, reads=reads, writes=writes, matrix_dtype=matrix_dtype)


def work(vector: Dim, transcendentals: Dim = 0) -> Estimate:
    """An estimate of arithmetic alone, as one part of a fused operator."""
    return Estimate(vector_flops=vector, transcendentals=transcendentals)


def chosen(outputs: Outputs, *results: TensorType | None) -> tuple[TensorType | None, ...]:
    """The wanted results, with None for the others; all results if that is not known."""
    if not outputs:
        return results
    return tuple(
        result if place < len(outputs) and outputs[place] else None for place, result in enumerate(results)
    )


def is_wanted(outputs: Outputs, place: int) -> bool:
    """True if the result at that index is wanted."""
    return not outputs or (place < len(outputs) and outputs[place])


def activation(name: str, x: TensorType) -> Estimate:
    """The work on `x` of the activation that an attribute names; none for an empty name."""
    return applied(activation_named(name), x)


def applied(row: Work, x: TensorType) -> Estimate:
    """The work of a function on every element of `x`."""
    return work(row.flops * x.numel, row.transcendentals * x.numel)


def arithmetic(x: TensorType) -> DType:
    """The type under which a product with this operand is recorded: int8 for signed and unsigned 8-bit integers."""
    return INT8 if x.dtype.kind in ("int", "uint") and x.dtype.bits == 8 else x.dtype


def require_scales(sizes: Sequence[Dim], *scales: TensorType | None) -> None:
    """Raises ShapeError for a scale or zero point with another number of elements than one or those of an axis."""
    for scale in scales:
        fits = scale is None or scale.rank > 1 or not all(differ(scale.numel, size) for size in (1, *sizes))
        require(fits, f"a scale or zero point {scale} for axes of {', '.join(map(str, sizes))}")


def in_32_bits(product: Estimate, *factors: tuple[TensorType, TensorType | None]) -> Estimate:
    """A product of integers in 32 bits; each factor with its zero point, one subtraction per element if it has one."""
    return replace(
        product,
        out=(only_result(product).like(dtype=INT32),),
        vector_flops=total(x.numel for x, zero_point in factors if zero_point is not None),
        reads=(*(x for x, _ in factors), *(zero_point for _, zero_point in factors)),
        matrix_dtype=arithmetic(factors[0][0]),
    )
