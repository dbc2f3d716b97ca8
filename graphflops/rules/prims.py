"""Primitive operators of decomposed programs: no type promotion, explicit shapes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, Expr, floor_div, prod, same
from graphflops.rules import creation, movement, rearrange, views
from graphflops.rules import pointwise as pointwise_rules
from graphflops.rules.elementwise import pointwise, result_type
from graphflops.rules.registry import rule
from graphflops.tensor import DType, TensorType

KIND = "view"

pointwise("conj_physical", "conj", dialect="prims")

# Rules of ATen operators with the same signature.
rule("prims.where")(pointwise_rules.select)
rule("prims.clone", "prims.copy_strided", "prims.device_put")(movement.clone)
rule("prims.copy_to")(movement.copy)
rule("prims.fill")(creation.fill)
rule("prims.cat")(movement.cat)
rule("prims.rev").derived(rearrange.flip, order="x dims")
rule("prims.reshape", "prims.resize")(views.view)
rule("prims.transpose")(views.permute)
rule("prims.squeeze")(views.squeeze)
rule("prims.as_strided")(views.as_strided)
rule("prims.as_strided_scatter")(rearrange.as_strided_scatter)
rule("prims.real", "prims.imag")(views.part)
rule("prims.view_of_dtype")(views.view_dtype)


@rule("prims.convert_element_type")
def convert_element_type(a: TensorType, dtype: DType) -> Estimate:
    """One conversion per element; a copy if the type stays."""
    return Estimate((a.like(dtype=dtype),), vector_flops=a.numel if dtype != a.dtype else 0, reads=(a,))


@rule("prims.broadcast_in_dim")
def broadcast_in_dim(a: TensorType, shape: Sequence[Dim]) -> Estimate:
    """A view that repeats elements without storing them."""
    out, stored = a.like(shape), a.numel if a.stored is None else a.stored
    return free(out if same(stored, out.numel) else replace(out, stored=stored))


@rule("prims.split_dim")
def split_dim(a: TensorType, dim: int, outer_length: Dim) -> Estimate:
    """A view with one axis split in two."""
    inner = floor_div(a.shape[dim], outer_length)
    return free(a.view((*a.shape[:dim], outer_length, inner, *a.shape[dim + 1 :])))


@rule("prims.collapse", "prims.collapse_view")
def collapse(a: TensorType, start: int, end: int) -> Estimate:
    """A view with the axes from `start` to `end`, both included, merged."""
    return free(a.view((*a.shape[:start], prod(a.shape[start : end + 1]), *a.shape[end + 1 :])))


@rule("prims.scalar_tensor")
def scalar_tensor(s: Value, *, dtype: DType | None = None) -> Estimate:
    """One element written."""
    return Estimate((TensorType((), dtype or result_type(s)),))


@rule("prims.item")
def item(a: TensorType) -> Estimate:
    """Reads the only element as a number."""
    return Estimate((a.value if isinstance(a.value, (int, Expr)) else data_dependent("item"),), reads=(a,))
