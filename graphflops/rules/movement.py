"""Copies, conversions and fills: read once, written once.

Converting an element to another type is one operation; moving it is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, broadcast, dim_min
from graphflops.rules.parts import copied_back
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import expanded, shown
from graphflops.tensor import BOOL, COMPLEX32, DTYPES, FLOAT32, DType, TensorType

KIND = "movement"

# Copies and conversions.


def converted(x: TensorType, dtype: DType | None = None) -> Estimate:
    """A copy in another element type: one operation per element whose type changes."""
    out = x.like(dtype=dtype)
    same_contents = out.dtype == x.dtype or not (
        out.dtype.is_floating or x.dtype.is_floating or out.dtype == BOOL
    )
    work = 0 if out.dtype == x.dtype else x.numel
    return Estimate((replace(out, value=x.value if same_contents else None),), vector_flops=work, reads=(x,))


def moved(x: TensorType, dtype: DType | None, copy: bool | None = False) -> Estimate:
    """A conversion or a copy; the tensor itself if neither is requested."""
    return converted(x, dtype) if copy or dtype not in (None, x.dtype) else free(x)


@rule("aten.clone", "aten.contiguous", "aten.lift_fresh_copy", "aten.pin_memory", "aten._pin_memory")
def clone(x: TensorType, *unused: Value) -> Estimate:
    """A copy; `contiguous` is taken to be one, since strides are not known."""
    return converted(x)


@rule("aten._to_copy")
def to_copy(x: TensorType, *, dtype: DType | None = None) -> Estimate:
    """A copy, in another element type where one is given."""
    return converted(x, dtype)


@rule("aten.to", "aten.type_as")
def to(
    x: TensorType, *, other: TensorType | None = None, dtype: DType | None = None, copy: bool | None = False
) -> Estimate:
    """A conversion to another element type, or that of another tensor; a move to another device costs nothing here."""
    return moved(x, dtype if other is None else other.dtype, copy)


_CASTS = {"Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64"}
for _name, _dtype in {**_CASTS, "Half": "float16", "Float": "float32", "Double": "float64"}.items():
    rule(f"aten._cast_{_name}").derived(
        moved, says="A conversion to the type in the operator's name.", order="x _", dtype=DTYPES[_dtype]
    )
rule("aten.chalf", kind="cast").derived(
    moved, says="A conversion to complex numbers of half precision.", order="x", dtype=COMPLEX32
)


@rule("aten._autocast_to_reduced_precision", kind="cast")
def to_reduced_precision(
    x: TensorType, cuda_enabled: bool, cpu_enabled: bool, cuda_dtype: DType, cpu_dtype: DType
) -> Estimate:
    """A conversion to the type of autocasting, if it is on."""
    lowers = x.dtype == FLOAT32 and (cuda_enabled or cpu_enabled)
    return moved(x, (cuda_dtype if cuda_enabled else cpu_dtype) if lowers else None, copy=False)


@rule("aten._autocast_to_full_precision", kind="cast")
def to_full_precision(x: TensorType, cuda_enabled: bool, cpu_enabled: bool) -> Estimate:
    """A conversion back to single precision, if autocasting is on."""
    raises = x.dtype.name in ("float16", "bfloat16") and (cuda_enabled or cpu_enabled)
    return moved(x, FLOAT32 if raises else None, copy=False)


@rule("aten._to_cpu")
def to_cpu(tensors: Sequence[TensorType]) -> Estimate:
    """A copy of each tensor."""
    return Estimate(tuple(x.like() for x in tensors), reads=tuple(tensors))


@rule("aten.copy")
def copy(x: TensorType, src: TensorType) -> Estimate:
    """Overwrites the tensor, which is not read; one operation per converted element."""
    source = expanded(src, x.shape)
    return Estimate((x.like(),), vector_flops=0 if x.dtype == src.dtype else x.numel, reads=(source,))


@rule("aten._copy_from", "aten._copy_from_and_resize")
def copy_from(src: TensorType, x: TensorType) -> Estimate:
    """As `copy`, with the source as the first operand."""
    return copy(x.like(src.shape), src)


# Memory that is allocated or exchanged.


@rule("aten.resize", kind="view")
def resize(x: TensorType, size: Sequence[Dim]) -> Estimate:
    """A copy of the elements that fit both sizes."""
    kept = x.like((dim_min(x.numel, x.like(size).numel),))
    return Estimate((x.like(size),), reads=(kept,), writes=(kept,))


@rule("aten.resize_as", kind="view")
def resize_as(x: TensorType, the_template: TensorType) -> Estimate:
    """As `resize`, to the sizes of another tensor."""
    return resize(x, the_template.shape)


@rule("aten.set", "aten.set_", "aten.set_data", kind="view")
def set_(
    x: TensorType, source: object = None, storage_offset: Dim = 0, size: Sequence[Dim] | None = None
) -> Estimate:
    """Shares another tensor's memory, or none."""
    if size is not None:
        return free(x.like(size))
    return free(source if isinstance(source, TensorType) else x.like((0,)))


@rule("aten.fill_diagonal_")
def fill_diagonal_(x: TensorType) -> Estimate:
    """Writes the diagonal; the rest is neither read nor written."""
    require(x.rank > 1, f"{shown(x.shape)} has no diagonal")
    return Estimate((x.like(),), writes=(x.like((dim_min(*x.shape),)),), alias=True)


# Elements under a mask.


@rule("aten.masked_select")
def masked_select(x: TensorType, mask: TensorType) -> Estimate:
    """The elements selected by a mask, a data-dependent number; both operands are read in full."""
    broadcast(x.shape, mask.shape)
    return Estimate((x.like((data_dependent("masked_select"),)),), reads=(x, mask))


backward("aten.masked_select")(
    lambda call: Estimate((call.arguments["x"].like(),), reads=(call.out, call.arguments["mask"]))
)


@rule("aten.masked_scatter")
def masked_scatter(x: TensorType, mask: TensorType, source: TensorType) -> Estimate:
    """Replaces masked elements by those of a source in order; each result is read from one of the two."""
    out = x.like(broadcast(x.shape, mask.shape))
    return Estimate((out,), reads=(out, mask))


@rule("aten.masked_scatter_")
def masked_scatter_(x: TensorType, mask: TensorType, source: TensorType) -> Estimate:
    """Reads the mask; reads and writes as many elements as it selects."""
    marked = x.like((data_dependent("masked_scatter"),))
    return Estimate((x.like(),), reads=(mask, marked), writes=(marked,), alias=True)


# Gradients.


@backward("aten.clone", "aten.contiguous", "aten.lift_fresh_copy", "aten.pin_memory", "aten._pin_memory")
def clone_backward(call: ForwardCall) -> Estimate:
    """The operand's gradient is the result's gradient."""
    return free(call.arguments["x"].like())


@backward("aten._to_copy chalf to type_as _autocast_to_reduced_precision _autocast_to_full_precision")
def conversion_backward(call: ForwardCall) -> Estimate:
    """The result's gradient converted back; the same tensor if nothing was converted."""
    return clone_backward(call) if call.out.dtype == call.arguments["x"].dtype else copied_back(call)
