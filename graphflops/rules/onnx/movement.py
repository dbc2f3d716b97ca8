"""Reshaping, which is free, conversions, copies in another arrangement, and new tensors: constants, fills, ranges.

A copy reads each kept element once and writes each result once.
"""

from collections.abc import Sequence
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, copied, data_dependent, free
from graphflops.dims import Dim, Expr, broadcast, ceil_div, floor_div, meet, mod, prod
from graphflops.errors import DimError
from graphflops.rules import rearrange, shapes
from graphflops.rules.creation import progression
from graphflops.rules.onnx import entries, values
from graphflops.rules.onnx.conv import window_counts
from graphflops.rules.onnx.values import Number, Place, filled, known_contents, moved
from graphflops.rules.rearrange import columns_to_image, repeated
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.shapes import axis_of, larger, replaced, same_elements, shown, tensors_of
from graphflops.tensor import DTYPES, FLOAT32, INT64, STRING, DType, TensorType, UnknownType

KIND = "movement"


_SPELLINGS = {"float": "float32", "double": "float64"}  # version 1 names the type, later versions number it


def converted(x: TensorType | UnknownType, dtype: DType) -> Estimate:
    """One operation per element if the type changes, else a copy."""
    if isinstance(x, UnknownType):
        return Estimate((UnknownType(dtype),), unknown="how many elements it converts is not known")
    out = values.folded(lambda number: number, x.like(dtype=dtype), x)
    return Estimate((out,), vector_flops=0 if dtype == x.dtype else x.numel, reads=(x,))


@rule("onnx.Cast", rankless=("x",))
def cast(x: TensorType | UnknownType, *, to: int | str) -> Estimate:
    """One operation per element where the type changes."""
    if isinstance(to, int):
        return converted(x, entries.onnx_dtype(to))
    name = _SPELLINGS.get(to.lower(), to.lower())
    if name not in DTYPES:
        raise DimError(f"unknown element type {to!r}")
    return converted(x, DTYPES[name])


@rule("onnx.CastLike", rankless=("x",))
def cast_like(x: TensorType | UnknownType, target_type: TensorType) -> Estimate:
    """Like `Cast` to the type of the second operand, whose data is not read."""
    return converted(x, target_type.dtype)


@rule("onnx.Shape", rankless=("x",))
def shape(x: TensorType | UnknownType, *, start: int = 0, end: int | None = None) -> Estimate:
    """The sizes of a range of axes; no data is read."""
    if isinstance(x, UnknownType):
        return free(TensorType((data_dependent("rank"),), INT64), alias=False)
    part = x.shape[start:end]
    return free(TensorType((len(part),), INT64, value=part), alias=False)


@rule("onnx.Size", rankless=("x",))
def element_count(x: TensorType | UnknownType) -> Estimate:
    """The number of elements; no data is read."""
    return free(TensorType((), INT64, value=None if isinstance(x, UnknownType) else x.numel), alias=False)


@rule("onnx.Reshape", rankless=("x",))
def reshape(x: TensorType | UnknownType, shape: entries.Numbers = None, *, allowzero: int = 0) -> Estimate:
    """A view with another shape: 0 keeps the operand's size at that place, -1 is inferred."""
    wanted = entries.sizes(shape)
    if isinstance(x, UnknownType):
        wanted = wanted or (-1,) * entries.rank_of(shape, "Reshape")
        kept = () if allowzero else (0,)
        return free(_of_unknown(x, [None if length in (-1, *kept) else length for length in wanted]))
    if wanted is None:
        open_sizes = entries.asked(shape, "reshape", "Reshape")
        return free(x.view((x.numel,) if len(open_sizes) == 1 else open_sizes))
    if not allowzero:
        beyond = [place for place, length in enumerate(wanted) if length == 0 and place >= x.rank]
        require(not beyond, f"{shown(wanted)} keeps an axis that {shown(x.shape)} does not have")
        wanted = tuple(x.shape[place] if length == 0 else length for place, length in enumerate(wanted))
    return free(same_elements(x, shapes.resolved(x, wanted)))


def _of_unknown(x: UnknownType, wanted: Sequence[Dim | None]) -> TensorType | UnknownType:
    """The type after reshaping a tensor of unknown shape; None stands for an unknown size."""
    if x.dtype is None:
        return x
    shape = (entries.unknown("reshape", at) if length is None else length for at, length in enumerate(wanted))
    return TensorType(tuple(shape), x.dtype)


@rule("onnx.Squeeze", rankless=("x",))
def squeeze(x: TensorType | UnknownType, axes: entries.Numbers = None) -> Estimate:
    """A view without the named axes of length one, or without all known ones."""
    if isinstance(x, UnknownType):
        return free(x)
    ones = tuple(place for place, length in enumerate(x.shape) if length == 1)
    gone = ones if axes is None else entries.chosen_axes(axes, x.rank)
    if gone is None and entries.many(axes) == len(ones):
        gone = ones
    if gone is None:
        left = x.rank - entries.rank_of(axes, "Squeeze")
        return free(x.view(entries.unknown("squeeze", place) for place in range(left)))
    is_told = gone != () or not ones
    require_known(is_told, "of an empty list of axes ONNX removes none, onnxruntime all of length one")
    for place in gone:
        meet(x.shape[place], 1, f"axis {place} of {shown(x.shape)} is not of length one")
    return free(same_elements(x, (length for place, length in enumerate(x.shape) if place not in gone)))


@rule("onnx.Unsqueeze", "com.microsoft.ExpandDims", rankless=("x",))
def unsqueeze(x: TensorType | UnknownType, axes: entries.Numbers) -> Estimate:
    """New axes of length one, at places counted in the result."""
    if isinstance(x, UnknownType):
        return free(x)
    rank = x.rank + entries.rank_of(axes, "Unsqueeze")
    named = entries.chosen_axes(axes, rank)
    new = tuple(range(rank)) if named is None and x.rank == 0 else named
    if new is None:
        return free(x.view(entries.unknown("unsqueeze", place) for place in range(rank)))
    kept = iter(x.shape)
    return free(same_elements(x, [1 if place in new else next(kept) for place in range(rank)]))


@rule("onnx.Flatten", rankless=("x",))
def flatten(x: TensorType | UnknownType, *, axis: int = 1) -> Estimate:
    """A view with two axes: those before `axis` merged, and those from `axis` on merged."""
    if isinstance(x, UnknownType):
        return free(_of_unknown(x, (None, None)))
    require(-x.rank <= axis <= x.rank, f"axis {axis} does not exist in a tensor of {x.rank} axes")
    place = axis + x.rank if axis < 0 else axis
    return free(same_elements(x, (prod(x.shape[:place]), prod(x.shape[place:]))))


@rule("onnx.Identity", rankless=("x",))
def identity(x: Value) -> Estimate:
    """The value itself."""
    return free(x)


@rule("onnx.BitCast")
def bit_cast(x: TensorType, *, to: int) -> Estimate:
    """The same bits as another element type of the same width."""
    dtype = entries.onnx_dtype(to)
    require(dtype.bits == x.dtype.bits, f"{x.dtype} and {dtype} differ in width")
    return free(x.view(x.shape, dtype))


@rule("onnx.Transpose")
def transpose(x: TensorType, *, perm: Sequence[int] | None = None) -> Estimate:
    """Axes in the given order, by default reversed."""
    order = shapes.permutation(range(x.rank)[::-1] if perm is None else perm, x)
    out = x.like(x.shape[place] for place in order)
    back = [order.index(place) for place in range(x.rank)]
    return Estimate((moved(x, out, lambda at: [at[place] for place in back]),), reads=(x,))


@rule("onnx.Concat")
def concat(*tensors: TensorType, axis: int) -> Estimate:
    """Tensors joined along an axis they have."""
    return Estimate((joined(tensors, axis),), reads=tensors)


rule("onnx.Concat.1").derived(concat, usually={"axis": 1})


def joined(tensors: Sequence[TensorType], axis: int) -> TensorType:
    """The tensors joined along an axis, with their known contents."""
    shape = shapes.end_to_end(tensors, axis)
    out, place = tensors[0].like(shape), axis_of(axis, len(shape))
    known = [contents for x in tensors if (contents := known_contents(x)) is not None]
    if len(known) < len(tensors):
        return out
    sources = [(part, index) for part in known for index in sorted({at[place] for at in part})]

    def entry(at: Place) -> Number:
        part, index = sources[at[place]]
        return part[at[:place] + (index,) + at[place + 1 :]]

    return filled(out, entry)


@rule("onnx.Expand")
def expand(x: TensorType, shape: entries.Numbers) -> Estimate:
    """Repeats the operand to the shape that it and the given shape broadcast to."""
    wanted = entries.sizes(shape)
    if wanted is None:
        rank = max(x.rank, entries.rank_of(shape, "Expand"))
        wanted = tuple(
            1 if isinstance(own, int) and own > 1 else entries.unknown("expand", place)
            for place, own in enumerate((*(1,) * (rank - x.rank), *x.shape))
        )
    out = x.like(broadcast(x.shape, wanted))
    ahead = out.rank - x.rank
    repeats = [length == 1 for length in x.shape]
    source = moved(x, out, lambda at: [0 if one else i for one, i in zip(repeats, at[ahead:], strict=True)])
    return replace(copied(x), out=(source,))


@rule("onnx.Tile")
def tile(x: TensorType, repeats: entries.Numbers) -> Estimate:
    """Repeats every axis end to end."""
    times = entries.sizes(repeats) or tuple(entries.unknown("tile", place) for place in range(x.rank))
    require(len(times) == x.rank, f"{shown(times)} must give one repeat for each axis of {shown(x.shape)}")
    return _repeated(x, times)


@rule("onnx.Tile.1")
def tile_axis(x: TensorType, tiles: entries.Numbers, axis: entries.Numbers) -> Estimate:
    """Repeats one axis end to end."""
    times, along = entries.size(tiles), entries.size(axis)
    require_known(isinstance(along, int), "which axis is repeated depends on data")
    place = axis_of(along, x.rank) if isinstance(along, int) else 0
    more = entries.unknown("tile", place) if times is None else times
    return _repeated(x, replaced((1,) * x.rank, place, more))


def _repeated(x: TensorType, times: Sequence[Dim]) -> Estimate:
    copy = repeated(x, times)
    (out,) = tensors_of(copy.out)
    lengths = [length if isinstance(length, int) else 1 for length in x.shape]
    source = moved(x, out, lambda at: [i % length for i, length in zip(at, lengths, strict=True)])
    return replace(copy, out=(source,))


@rule("onnx.DepthToSpace")
def depth_to_space(x: TensorType, *, blocksize: int) -> Estimate:
    """Channels spread out over a finer grid of positions; the order of channels costs nothing."""
    require(blocksize > 0, f"there are no blocks of {blocksize}")
    return rearrange.depth_to_space(x, blocksize)


@rule("onnx.SpaceToDepth")
def space_to_depth(x: TensorType, *, blocksize: int) -> Estimate:
    """Blocks of positions gathered as channels of a coarser grid."""
    require(blocksize > 0, f"there are no blocks of {blocksize}")
    for length in x.shape[2:]:
        meet(mod(length, blocksize), 0, f"{shown(x.shape[2:])} is not made of blocks of {blocksize}")
    return rearrange.space_to_depth(x, blocksize)


@rule("onnx.Col2Im")
def col2im(
    x: TensorType, image_shape: entries.Numbers, block_shape: entries.Numbers, **geometry: Any
) -> Estimate:
    """Columns put back as blocks of an image, an addition each where they may overlap."""
    batch, rows, columns = x.shape
    block, image = entries.sizes(block_shape), entries.sizes(image_shape)
    if block is not None:
        meet(mod(rows, prod(block)), 0, f"{rows} rows do not make blocks of {shown(block)}")
    if block is not None and image is not None:
        blocks = prod(window_counts(image, block, **geometry))
        meet(blocks, columns, f"{columns} columns where {blocks} blocks lie in {shown(image)}")
    if image is None:
        rank = entries.rank_of(image_shape, "Col2Im")
        image = tuple(entries.unknown("col2im", 2 + place) for place in range(rank))
    channels = entries.unknown("col2im", 1) if block is None else floor_div(rows, prod(block))
    return columns_to_image(x, (batch,), channels, image)


@rule("onnx.Trilu", "com.microsoft.Trilu")
def trilu(x: TensorType, k: entries.Numbers = None, *, upper: int = 1) -> Estimate:
    """A copy, zero on one side of a diagonal."""
    copy, shift, known = copied(x), 0 if k is None else entries.size(k), known_contents(x)
    if known is None or not isinstance(shift, int):
        return copy

    def entry(at: Place) -> Number:
        beyond = at[-1] - at[-2] - shift
        return known[at] if (beyond >= 0 if upper else beyond <= 0) else 0

    return replace(copy, out=(filled(x.like(), entry),))


@rule("onnx.ReverseSequence")
def reverse_sequence(x: TensorType, sequence_lens: TensorType, *, batch_axis: int = 1) -> Estimate:
    """Reverses the first steps of each sequence, up to its length."""
    batch, steps = x.shape[axis_of(batch_axis, x.rank)], sequence_lens.numel
    meet(batch, steps, f"{steps} lengths are given for {batch} sequences")
    return Estimate((x.like(),), reads=(x, sequence_lens))


KIND = "creation"


@rule("onnx.Constant")
def constant(*, value: Value = None, sparse_value: Value = None, **literals: Any) -> Estimate:
    """Free: the data is in the file."""
    given = [x for x in (value, sparse_value) if x is not None]
    count = len(given) + len(literals)
    require(count == 1, f"a constant has one value, not {count}")
    if given:
        return free(*given, alias=False)
    ((name, held),) = literals.items()  # a number or a string, or a list: `value_float`, `value_ints`, ...
    kinds = {"float": FLOAT32, "int": INT64, "string": STRING}
    shape = (len(held),) if name.endswith("s") else ()
    out = TensorType(shape, kinds[name.removeprefix("value_").removesuffix("s")])
    known = out if out.dtype == STRING else filled(out, lambda at: held[at[0]] if at else held)
    return free(known, alias=False)


@rule("onnx.ConstantOfShape")
def constant_of_shape(shape: entries.Numbers, *, value: TensorType | None = None) -> Estimate:
    """One value written everywhere."""
    dtype = FLOAT32 if value is None else value.dtype
    if entries.sizes(shape) is None and entries.many(shape) is None:
        return Estimate((UnknownType(dtype),), unknown=entries.rank_depends_on_data("ConstantOfShape"))
    lengths = entries.asked(shape, "fill", "ConstantOfShape")
    held = (0.0,) if value is None else entries.numbers(value) or (None,)
    out = filled(TensorType(lengths, dtype), lambda _: held[0])
    if out.value is None and not isinstance(held[0], Expr):
        out = replace(out, uniform=held[0])
    return Estimate((out,))


@rule("onnx.Range")
def range_(start: TensorType, limit: TensorType, delta: TensorType) -> Estimate:
    """Evenly spaced numbers; whole ones count up without arithmetic."""
    found = [entries.numbers(x) for x in (start, limit, delta)]
    ends = [x[0] for x in found if x]
    if len(ends) < len(found):
        return progression(data_dependent("range"), start.dtype)
    first, last, step = ends
    require(step != 0, "a range needs a step that is not zero")
    try:
        span = values.subtract(last, first)
        is_whole = not isinstance(span, float) and not isinstance(step, float)
        fitting: Number = ceil_div(span, step) if is_whole else values.ceil(values.divide(span, step))  # type: ignore[arg-type]
        count = larger(int(fitting) if isinstance(fitting, float) else fitting, 0)
    except (ArithmeticError, DimError, ValueError):  # an unknown fraction of symbolic sizes
        are_open = any(isinstance(number, Expr) for number in ends)
        require(are_open, f"a range from {first} to {last} by {step} has no end")
        count = data_dependent("range")
    estimate = progression(count, start.dtype)
    (out,) = tensors_of(estimate.out)
    known = filled(
        out, lambda at: values.converted(values.add(first, values.multiply(at[0], step)), out.dtype)
    )
    return Estimate((known,), vector_flops=estimate.vector_flops)


@rule("onnx.OneHot")
def one_hot(indices: TensorType, depth: entries.Numbers, choices: TensorType, *, axis: int = -1) -> Estimate:
    """One of two values written per index and class."""
    place, classes = axis_of(axis, indices.rank + 1), entries.size(depth)
    known, pair = known_contents(indices), entries.numbers(choices)
    estimate = rearrange.one_hot_along(indices, place, classes, choices.dtype)
    (out,) = tensors_of(estimate.out)

    def entry(at: Place) -> Number | None:
        index = None if known is None else known[at[:place] + at[place + 1 :]]
        if not isinstance(index, int) or not isinstance(classes, int) or pair is None:
            return None
        return pair[at[place] - index in (0, classes)]

    return replace(estimate, out=(filled(out, entry),))


@rule("onnx.EyeLike")
def eye_like(x: TensorType, *, dtype: int | None = None, k: int = 0) -> Estimate:
    """Ones on a diagonal, zeros elsewhere; of the operand only the shape matters."""
    out = x.like(dtype=None if dtype is None else entries.onnx_dtype(dtype))
    if not out.dtype.is_floating:
        out = filled(out, lambda at: int(at[1] - at[0] == k))
    return Estimate((out,))
