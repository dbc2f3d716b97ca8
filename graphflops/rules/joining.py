"""Joining of several tensors: each is read once, the result is written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, factorial

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent, free
from graphflops.dims import Dim, at_least, ceil_div, dim_max, floor_div, prod, total
from graphflops.rules.elementwise import result_type
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, axis, end_to_end, tensors_of
from graphflops.rules.views import at_least_1d, at_least_2d, at_least_3d, unsqueeze
from graphflops.tensor import INT64, PartType, TensorType

KIND = "movement"


def joined(tensors: Sequence[TensorType], shape: Shape) -> Estimate:
    """A result of that shape in the promoted type: one operation per converted element."""
    dtype = result_type(*tensors)
    work = total(x.numel for x in tensors if x.dtype != dtype)
    return Estimate((TensorType(shape, dtype),), vector_flops=work, reads=tuple(tensors))


@rule("aten.cat", "aten.concat", "aten.concatenate", "aten._cat")
def cat(tensors: Sequence[TensorType], dim: int = 0) -> Estimate:
    """Tensors joined along an axis they have."""
    present = [x for x in tensors if x.shape != (0,)] or list(tensors)  # of any shape, but for empty vectors
    return _with_contents(joined(tensors, end_to_end(present, dim)), [x.value for x in present])


def _with_contents(estimate: Estimate, parts: Sequence[object]) -> Estimate:
    """Known contents of small integer vectors joined end to end."""
    (out,) = tensors_of(estimate.out)
    if out.rank != 1 or out.dtype.is_floating or not all(isinstance(part, tuple) for part in parts):
        return estimate
    return replace(estimate, out=(replace(out, value=tuple(size for part in parts for size in part)),))  # type: ignore[attr-defined]


@rule("aten.stack", "aten._stack")
def stack(tensors: Sequence[TensorType], dim: int = 0) -> Estimate:
    """Tensors of one shape joined along a new axis."""
    rows = [unsqueeze(x, dim).out[0] for x in tensors]
    return replace(cat(tensors_of(rows), axis(dim, tensors[0].rank + 1)), reads=tuple(tensors))


def _stacked(
    tensors: Sequence[TensorType], *, raised: Callable[[TensorType], TensorType], dim: int
) -> Estimate:
    """Tensors joined along an axis, the first one where they have only that, once they have so many."""
    rows = [raised(x) for x in tensors]
    return cat(rows, min(dim, rows[0].rank - 1))


def _as_column(x: TensorType) -> TensorType:
    return x if x.rank > 1 else x.view((x.numel, 1))


for _names, _says, _raised, _dim in (
    ("hstack", "Vectors joined end to end, others along the second axis.", at_least_1d, 1),
    ("vstack row_stack", "Rows, or matrices, joined along the first axis.", at_least_2d, 0),
    ("dstack", "Matrices joined along a third axis.", at_least_3d, 2),
    ("column_stack", "Vectors joined as columns of a matrix, matrices along the second axis.", _as_column, 1),
):
    rule(f"aten.{_names}").derived(_stacked, says=_says, raised=_raised, dim=_dim)


@rule("aten.block_diag")
def block_diag(tensors: Sequence[TensorType]) -> Estimate:
    """Matrices along the diagonal of a larger one that is zero elsewhere."""
    blocks = [at_least_2d(x) for x in tensors]
    require(all(x.rank == 2 for x in blocks), "a block on a diagonal has at most two axes")
    return joined(tensors, (total(x.shape[0] for x in blocks), total(x.shape[1] for x in blocks)))


@rule("aten._chunk_cat")
def chunk_cat(tensors: Sequence[TensorType], dim: int, num_chunks: int) -> Estimate:
    """Cuts each tensor into equal, zero-padded chunks along an axis and joins chunks of the same index."""
    place = axis(dim, tensors[0].rank)
    rows = (ceil_div(x.shape[place], num_chunks) * prod(x.shape[place + 1 :]) for x in tensors)
    return joined(tensors, (*tensors[0].shape[:place], num_chunks, total(rows)))


@rule("aten.pad_sequence")
def pad_sequence(sequences: Sequence[TensorType], batch_first: bool = False) -> Estimate:
    """Sequences side by side, padded to the longest."""
    longest = dim_max(*(x.shape[0] for x in sequences))
    lead = (len(sequences), longest) if batch_first else (longest, len(sequences))
    return joined(sequences, (*lead, *sequences[0].shape[1:]))


@rule("aten._pack_padded_sequence")
def pack_padded_sequence(x: TensorType, lengths: TensorType) -> Estimate:
    """Packs padded sequences step by step without the padding; the number of rows is data-dependent."""
    packed = x.like((data_dependent("packed"), *x.shape[2:]))
    steps = lengths.like((data_dependent("longest"),), INT64)
    return Estimate((packed, steps), reads=(packed, lengths))


@rule("aten._pad_packed_sequence")
def pad_packed_sequence(
    data: TensorType, batch_sizes: TensorType, batch_first: bool, *, total_length: Dim
) -> Estimate:
    """Pads packed rows and returns the length of each sequence; the number of sequences is data-dependent."""
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
    count = (
        comb(n, r) if isinstance(n, int) else floor_div(prod(n - taken for taken in range(r)), factorial(r))
    )
    return Estimate((x.like((count, r)),), reads=(x,))


# Gradients: views of the result's gradient, unless an element was used more than once.


@backward(
    "aten.cat concat concatenate _cat stack _stack hstack vstack row_stack dstack column_stack block_diag",
    "aten.flatten_dense_tensors",
)
def join_backward(call: ForwardCall) -> Estimate:
    """Views of the result's gradient, converted where the result was of another type."""
    tensors = tensors_of(call.arguments["tensors"])
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
    tensors = tensors_of(call.arguments.get("tensors") or (call.arguments["x"],))
    return Estimate(
        tuple(x.like() for x in tensors if x.requires_grad),
        vector_flops=call.out.numel,
        reads=(call.out.like(),),
    )
