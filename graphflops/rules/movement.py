"""Copies, conversions, fills and joining of several tensors: each is read once, the result is written once.

Converting an element to another type is one operation; moving it is none.
"""

from collections.abc import Callable, Sequence
from math import comb, factorial

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, at_least, broadcast, ceil_div, dim_max, dim_min, floor_div, prod, total
from graphflops.rules.elementwise import result_type
from graphflops.rules.operands import Operands
from graphflops.rules.parts import copied_back
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, axis_of, end_to_end, expanded, tensors_of
from graphflops.rules.views import at_least_1d, at_least_2d, at_least_3d, shape_of, unsqueeze
from graphflops.tensor import BOOL, COMPLEX32, DTYPES, FLOAT32, DType, PartType, TensorType

KIND = "movement"


def converted(x: TensorType, dtype: DType | None = None) -> Estimate:
    """A copy in another element type: one operation per element whose type changes."""
    out = x.like(dtype=dtype)
    changes = out.dtype != x.dtype
    if changes and (out.dtype.is_floating or x.dtype.is_floating or out.dtype == BOOL):
        x = replace(x, value=None)
    return Estimate((replace(out, value=x.value),), vector_flops=x.numel * changes, reads=(x,))


def moved(x: TensorType, dtype: DType | None, copy: bool | None = False) -> Estimate:
    """A conversion or a copy; the tensor itself if neither is requested."""
    return converted(x, dtype) if copy or dtype not in (None, x.dtype) else free(x)


@rule("aten.clone contiguous lift_fresh_copy pin_memory _pin_memory", "prims.clone copy_strided device_put")
def clone(x: TensorType, *unused: Value) -> Estimate:
    """A copy; `contiguous` is assumed to copy, since strides are not known."""
    return converted(x)


rule("quantized_decomposed.convert_element_type", kind="quantisation")(converted)
rule("prims.convert_element_type")(converted)
rule("aten._to_copy").derived(converted, order="x")


@rule("aten.to", "aten.type_as")
def to(
    x: TensorType, *, other: TensorType | None = None, dtype: DType | None = None, copy: bool | None = False
) -> Estimate:
    """A conversion to an element type, or to that of another tensor; a move to another device costs nothing here."""
    return moved(x, dtype if other is None else other.dtype, copy)


_CASTS = {"Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64"}
for _name, _dtype in {**_CASTS, "Half": "float16", "Float": "float32", "Double": "float64"}.items():
    rule(f"aten._cast_{_name}").derived(moved, order="x _", dtype=DTYPES[_dtype])
rule("aten.chalf", kind="cast").derived(moved, order="x", dtype=COMPLEX32)


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


@rule("aten.copy", "prims.copy_to")
def copy(x: TensorType, src: TensorType) -> Estimate:
    """Overwrites the tensor, which is not read; one operation per converted element."""
    source = expanded(src, x.shape)
    return Estimate((x.like(),), vector_flops=0 if x.dtype == src.dtype else x.numel, reads=(source,))


@rule("aten._copy_from", "aten._copy_from_and_resize")
def copy_from(src: TensorType, x: TensorType) -> Estimate:
    """As `copy`, with the source as the first operand."""
    return copy(x.like(src.shape), src)


@rule("aten.resize", "aten.resize_as", kind="view")
def resize(x: TensorType, size: Sequence[Dim] | TensorType) -> Estimate:
    """A copy of the elements that fit both sizes, which may be those of another tensor."""
    out = x.like(shape_of(size))
    kept = x.like((dim_min(x.numel, out.numel),))
    return Estimate((out,), reads=(kept,), writes=(kept,))


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
    return Estimate((x.like(),), writes=(x.like((dim_min(*x.shape),)),), alias=True)


@rule("aten.masked_select")
def masked_select(x: TensorType, mask: TensorType) -> Estimate:
    """The elements selected by a mask, a data-dependent number; both operands are read in full."""
    broadcast(x.shape, mask.shape)
    return Estimate((x.like((data_dependent("masked_select"),)),), reads=(x, mask))


backward("aten.masked_select")(lambda call: Estimate((call["x"].like(),), reads=(call.out, call["mask"])))


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


@backward("aten.clone", "aten.contiguous", "aten.lift_fresh_copy", "aten.pin_memory", "aten._pin_memory")
def clone_backward(call: ForwardCall) -> Estimate:
    """The operand's gradient is the result's gradient."""
    return free(call["x"].like())


# The result's gradient converted back; the same tensor if nothing was converted.
backward("aten._to_copy chalf to type_as _autocast_to_reduced_precision _autocast_to_full_precision")(
    lambda call: (clone_backward if call.out.dtype == call["x"].dtype else copied_back)(call)
)


def joined(tensors: Sequence[TensorType], shape: Shape) -> Estimate:
    """A result of that shape in the promoted type: one operation per converted element."""
    dtype = result_type(*tensors)
    work = total(x.numel for x in tensors if x.dtype != dtype)
    return Estimate((TensorType(shape, dtype),), vector_flops=work, reads=tuple(tensors))


@rule("aten.cat concat concatenate _cat", "prims.cat")
def cat(tensors: Sequence[TensorType], dim: int = 0) -> Estimate:
    """Tensors joined along an axis they have."""
    present = [x for x in tensors if x.shape != (0,)] or list(tensors)  # empty vectors fit any shape
    estimate, parts = joined(tensors, end_to_end(present, dim)), [x.value for x in present]
    (out,) = tensors_of(estimate.out)
    if out.rank != 1 or out.dtype.is_floating or not all(isinstance(part, tuple) for part in parts):
        return estimate
    return replace(estimate, out=(replace(out, value=tuple(size for part in parts for size in part)),))  # type: ignore[union-attr]


@rule("aten.stack", "aten._stack")
def stack(tensors: Sequence[TensorType], dim: int = 0) -> Estimate:
    """Tensors of one shape joined along a new axis."""
    rows = [unsqueeze(x, dim).out[0] for x in tensors]
    return replace(cat(tensors_of(rows), axis_of(dim, tensors[0].rank + 1)), reads=tuple(tensors))


def _stacked(
    tensors: Sequence[TensorType], *, raised: Callable[[TensorType], TensorType], dim: int
) -> Estimate:
    """Tensors joined along an axis, or along the first if they have only one, after they are raised to enough axes."""
    rows = [raised(x) for x in tensors]
    return cat(rows, min(dim, rows[0].rank - 1))


rule("aten.hstack").derived(_stacked, raised=at_least_1d, dim=1)
rule("aten.vstack row_stack").derived(_stacked, raised=at_least_2d, dim=0)
rule("aten.dstack").derived(_stacked, raised=at_least_3d, dim=2)
rule("aten.column_stack").derived(_stacked, raised=lambda x: x if x.rank > 1 else x.view((x.numel, 1)), dim=1)


@rule("aten.block_diag")
def block_diag(tensors: Sequence[TensorType]) -> Estimate:
    """Matrices along the diagonal of a larger one that is zero elsewhere."""
    blocks = [at_least_2d(x) for x in tensors]
    require(all(x.rank == 2 for x in blocks), "a block on a diagonal has at most two axes")
    return joined(tensors, (total(x.shape[0] for x in blocks), total(x.shape[1] for x in blocks)))


@rule("aten._chunk_cat")
def chunk_cat(tensors: Sequence[TensorType], dim: int, num_chunks: int) -> Estimate:
    """Cuts each tensor into equal, zero-padded chunks along an axis and joins chunks of the same index."""
    place = axis_of(dim, tensors[0].rank)
    rows = (ceil_div(x.shape[place], num_chunks) * prod(x.shape[place + 1 :]) for x in tensors)
    return joined(tensors, (*tensors[0].shape[:place], num_chunks, total(rows)))


@rule("aten.pad_sequence")
def pad_sequence(sequences: Sequence[TensorType], batch_first: bool = False) -> Estimate:
    """Sequences side by side, padded to the longest."""
    longest = dim_max(*(x.shape[0] for x in sequences))
    lead = (len(sequences), longest) if batch_first else (longest, len(sequences))
    return joined(sequences, (*lead, *sequences[0].shape[1:]))


@rule("aten._pad_packed_sequence").takes("data batch_sizes batch_first=")
def pad_packed_sequence(of: Operands, *, total_length: Dim) -> Estimate:
    """Pads packed rows and returns the length of each sequence; the number of sequences is data-dependent."""
    data, batch_sizes, batch_first = of
    steps = total_length if at_least(total_length, 1) else batch_sizes.shape[0]
    batch = data_dependent("batch")
    lead = (batch, steps) if batch_first else (steps, batch)
    out = data.like((*lead, *data.shape[1:]))
    return Estimate((out, batch_sizes.like((batch,))), reads=(data, batch_sizes))


@rule("aten.flatten_dense_tensors")
def flatten_dense_tensors(tensors: Sequence[TensorType]) -> Estimate:
    """All elements end to end."""
    return joined(tensors, (total(x.numel for x in tensors),))


@rule("aten.cartesian_prod")
def cartesian_prod(tensors: Sequence[TensorType]) -> Estimate:
    """Every combination of one element from each vector, as rows."""
    if len(tensors) == 1:
        return free(*tensors)
    return joined(tensors, (prod(x.numel for x in tensors), len(tensors)))


_MOST_CHOSEN = 64  # elements of a combination


@rule("aten.combinations")
def combinations(x: TensorType, r: int = 2, with_replacement: bool = False) -> Estimate:
    """Every combination of `r` elements of a vector, as rows."""
    require(r <= _MOST_CHOSEN, f"combinations of {r} elements")
    n = x.numel + (r - 1 if with_replacement else 0)
    if r == 0:
        return Estimate((x.like((0,)),))
    orders = prod(n - taken for taken in range(r))
    count = comb(n, r) if isinstance(n, int) else floor_div(orders, factorial(r))
    return Estimate((x.like((count, r)),), reads=(x,))


@backward(
    "aten.cat concat concatenate _cat stack _stack hstack vstack row_stack dstack column_stack block_diag",
    "aten.flatten_dense_tensors",
)
def join_backward(call: ForwardCall) -> Estimate:
    """Views of the result's gradient, converted where the result was of another type."""
    tensors = tensors_of(call["tensors"])
    converted = [x.like() for x in tensors if x.dtype != call.out.dtype]
    return Estimate(
        tuple(x.like() for x in tensors if x.requires_grad),
        vector_flops=total(x.numel for x in converted),
        reads=tuple(PartType(x.shape, call.out.dtype) for x in converted),
        writes=tuple(converted),
        alias=not converted,
    )


@backward("aten.cartesian_prod", "aten.combinations")
def choices_backward(call: ForwardCall) -> Estimate:
    """Sums the gradients of every row in which an element appears."""
    tensors = tensors_of(call.get("tensors") or (call["x"],))
    gradients = tuple(x.like() for x in tensors if x.requires_grad)
    return Estimate(gradients, vector_flops=call.out.numel, reads=(call.out.like(),))
