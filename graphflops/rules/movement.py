"""Copies, conversions, fills, repeats and rearrangements of one tensor: what is read once and written once.

Converting an element to another type is one operation; moving it is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, Expr, broadcast, differ, floor_div, mod, prod, same, total
from graphflops.rules.axes import axes, axis
from graphflops.rules.parts import diagonal, diagonal_length
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import replaced, resolved, same_elements, shown, tensors_of
from graphflops.rules.view_copies import copied
from graphflops.tensor import COMPLEX32, DTYPES, FLOAT32, DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.dims import Dim as Size

# Copies and conversions.


def converted(x: TensorType, dtype: DType | None) -> Estimate:
    """A copy in another element type: one operation per element that changes its type."""
    out = x.like(dtype=dtype)
    kept = x.value if not out.dtype.is_floating and not x.dtype.is_floating and out.dtype.kind != "bool" else None
    work = 0 if out.dtype == x.dtype else x.numel
    return Estimate((replace(out, value=kept),), vector_flops=work, reads=(x,))


def moved(x: TensorType, dtype: DType | None, copy: bool) -> Estimate:
    """The tensor itself where the type is the same and no copy is asked for."""
    return converted(x, dtype) if copy or dtype not in (None, x.dtype) else free(x)


@rule("aten.clone", "aten.contiguous", "aten.lift_fresh_copy", "aten.pin_memory", "aten._pin_memory")
def clone(x: TensorType, *unused: Value) -> Estimate:
    """A copy; `contiguous` is taken to be one, since strides are not known."""
    return converted(x, None)


@rule("aten.to.dtype_layout", "aten._to_copy")
def to_options(x: TensorType, *, dtype: DType | None = None, copy: bool | None = None) -> Estimate:
    """A conversion to another type or device."""
    return moved(x, dtype, bool(copy))
