"""Copies of one tensor in another arrangement: repeated, rolled, rotated, shuffled, padded, placed on a diagonal.

Patches of images (im2col, col2im) are copies, too. ATen, prims and ONNX share the first functions.
"""

from collections.abc import Mapping, Sequence

from graphflops.base.record import replace
from graphflops.cost import Estimate, copied, data_dependent, free
from graphflops.dims import Dim, Expr, at_least, differ, floor_div, meet, mod, prod, total
from graphflops.rules import parts, shapes
from graphflops.rules.operands import Operands
from graphflops.rules.parts import copied_back
from graphflops.rules.reduce import operand_gradient
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, axes, axis_of, replaced, shown, tensors_of
from graphflops.tensor import INT64, DType, TensorType

KIND = "movement"


def bordered(shape: Shape, widths: Mapping[int, Sequence[Dim]]) -> Shape:
    """The shape with a border of these widths before and after each axis; a negative width crops."""
    out = tuple(size + total(widths.get(at, ())) for at, size in enumerate(shape))
    crops = any(at_least(-1, size) for size in out)
    require(not crops, f"a border of {dict(widths)} crops more than {shown(shape)} has")
    return out


@rule("aten.repeat")
def repeated(x: TensorType, repeats: Sequence[Dim]) -> Estimate:
    """Every axis repeated end to end, every repeat written; axes may be added in front."""
    require(len(repeats) >= x.rank, f"{shown(repeats)} has fewer entries than {shown(x.shape)} has axes")
    own = (*(1,) * (len(repeats) - x.rank), *x.shape)
    return Estimate((x.like(size * more for size, more in zip(own, repeats, strict=True)),), reads=(x,))


@rule("aten.pixel_shuffle")
def depth_to_space(x: TensorType, factor: int) -> Estimate:
    """Channels spread out over a grid of positions that is finer by a factor."""
    *batch, channels, height, width = x.shape
    area = factor * factor
    meet(mod(channels, area), 0, f"{channels} channels do not fill squares of {area}")
    out = x.like((*batch, floor_div(channels, area), height * factor, width * factor))
    return Estimate((out,), reads=(x,))


@rule("aten.pixel_unshuffle")
def space_to_depth(x: TensorType, factor: int) -> Estimate:
    """Squares of positions gathered as channels of a coarser grid."""
    *batch, channels, height, width = x.shape
    rows, columns = (floor_div(size, factor) for size in (height, width))
    return Estimate((x.like((*batch, channels * factor * factor, rows, columns)),), reads=(x,))


def columns_to_image(x: TensorType, leading: Sequence[Dim], channels: Dim, image: Sequence[Dim]) -> Estimate:
    """Columns put back as patches of an image, an addition each where they may overlap."""
    return Estimate((x.like((*leading, channels, *image)),), vector_flops=x.numel, reads=(x,))


def one_hot_along(x: TensorType, place: int, classes: Dim | None, dtype: DType) -> Estimate:
    """One of two values for each index and class, classes along a new axis; None if their number depends on data."""
    size = data_dependent("one_hot") if classes is None else classes
    return Estimate((x.like((*x.shape[:place], size, *x.shape[place:]), dtype),), reads=(x,))


def padded(shape: Shape, pad: Sequence[Dim]) -> Shape:
    """The shape with a border: pairs of widths, the last axis first."""
    fits = len(pad) % 2 == 0 and len(pad) <= 2 * len(shape)
    require(fits, f"{shown(pad)} are not pairs of widths for the axes of {shown(shape)}")
    last = len(shape) - 1
    return bordered(shape, {last - i: pad[2 * i : 2 * i + 2] for i in range(len(pad) // 2)})


@rule("aten.constant_pad_nd pad _pad_enum _pad_circular")
def pad(x: TensorType, pad: Sequence[Dim], mode: str | int = "constant") -> Estimate:
    """A copy with a border, whatever its mode; the gradient depends on it."""
    return Estimate((x.like(padded(x.shape, pad)),), reads=(x,))


rule(*(f"aten.{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))).derived(pad)


@backward(
    "aten.reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d",
    "aten.replication_pad3d _pad_circular",
    "aten.repeat tile repeat_interleave.self_int repeat_interleave.self_Tensor im2col",
)
def copies_gradient(call: ForwardCall) -> Estimate:
    """Sums the gradients of an element and of its copies: in a border, as repeats, or in patches."""
    return Estimate((call["x"].like(),), vector_flops=call.out.numel, reads=(call.out.like(),))


@backward("aten.pad", "aten._pad_enum")
def pad_gradient(call: ForwardCall) -> Estimate:
    """The inner part of the result's gradient; modes other than `constant` add the border's gradient."""
    is_constant = call.get("mode", "constant") in ("constant", 0)
    return constant_pad_gradient(call) if is_constant else copies_gradient(call)


@backward("aten.constant_pad_nd")
def constant_pad_gradient(call: ForwardCall) -> Estimate:
    """The inner part of the result's gradient, copied."""
    x: TensorType = call["x"]
    is_cut = at_least(x.numel, call.out.numel)
    return Estimate((x.like(),), reads=(call.out.like() if is_cut else replace(call.out, stored=x.numel),))


def pair(values: Sequence[Dim]) -> tuple[Dim, Dim]:
    """The value for each of two axes, from one or two values."""
    return (values[0], values[-1])


@rule("aten.im2col").takes("x kernel_size= dilation= padding= stride=")
def im2col(of: Operands) -> Estimate:
    """Writes every patch of an image as a column; the image is read once."""
    x, kernel = of.x, pair(of.kernel_size)
    *batch, channels, height, width = x.shape
    axes = zip((height, width), kernel, *map(pair, of.named("dilation padding stride")), strict=True)
    columns = prod(floor_div(size + 2 * pad - d * (k - 1) - 1, step) + 1 for size, k, d, pad, step in axes)
    return Estimate((x.like((*batch, channels * prod(kernel), columns)),), reads=(x,))


@rule("aten.col2im")
def col2im(x: TensorType, output_size: Sequence[Dim], kernel_size: Sequence[Dim]) -> Estimate:
    """Columns put back as patches of an image, an addition each where they may overlap."""
    *batch, rows, _ = x.shape
    return columns_to_image(x, batch, floor_div(rows, prod(pair(kernel_size))), pair(output_size))


backward("aten.col2im")(operand_gradient)  # copied into every patch


@rule("aten.tile")
def tile(x: TensorType, dims: Sequence[Dim]) -> Estimate:
    """Writes every repeat; axes without an entry are not repeated."""
    return repeated(x, (*(1,) * (x.rank - len(dims)), *dims))


@rule("aten.repeat_interleave.self_int repeat_interleave.self_Tensor")
def repeat_interleave(
    x: TensorType, repeats: Dim | TensorType, dim: int | None = None, *, output_size: Dim | None = None
) -> Estimate:
    """Every element of an axis, or of the flattened tensor, repeated a number of times, which may depend on data."""
    flat = x.like((x.numel,)) if dim is None else x
    place = axis_of(dim or 0, flat.rank)
    if isinstance(repeats, TensorType):
        is_one, size = repeats.numel == 1, flat.shape[place]
        require(is_one or not differ(repeats.numel, size), f"{repeats.numel} repeats of {size} elements")
        length = _repeated(repeats, output_size, size if is_one else 1)
    else:
        length = flat.shape[place] * repeats
    out = flat.like(replaced(flat.shape, place, length))
    return Estimate((out,), reads=(x, *tensors_of((repeats,))))


@rule("aten.repeat_interleave.Tensor")
def repeat_interleave_positions(repeats: TensorType, *, output_size: Dim | None = None) -> Estimate:
    """Every position repeated a data-dependent number of times."""
    return Estimate((repeats.like((_repeated(repeats, output_size, 1),)),), reads=(repeats,))


def _repeated(repeats: TensorType, output_size: Dim | None, each: Dim) -> Dim:
    """The total number of elements: as given, from known contents, or data-dependent."""
    if output_size is not None:
        return output_size
    value = repeats.value
    counts = value if isinstance(value, tuple) else () if value is None else (value,)
    if counts:
        return total(count for count in counts if isinstance(count, (int, Expr))) * each
    return data_dependent("repeat_interleave")


@rule("aten.roll", "aten.flip")
def flip(x: TensorType, *, dims: int | Sequence[int] | None = ()) -> Estimate:
    """A copy whose elements move along axes: rolled, along one any number of times, or in reverse order."""
    for each in (dims,) if isinstance(dims, int) else dims or ():
        axis_of(each, x.rank)
    return copied(x)


rule("prims.rev").derived(flip, order="x dims")
rule("aten.fft_fftshift", "aten.fft_ifftshift", kind="fourier").derived(flip, order="x dims")


@rule("aten.rot90")
def rot90(x: TensorType, k: int = 1, dims: Sequence[int] = (0, 1)) -> Estimate:
    """A copy rotated by quarter turns; an odd number of them swaps the two axes."""
    a, b = axes(dims, x.rank)
    shape = list(x.shape)
    if k % 2:
        shape[a], shape[b] = shape[b], shape[a]
    return Estimate((x.like(shape),), reads=(x,))


@rule("aten.channel_shuffle", "aten.native_channel_shuffle")
def channel_shuffle(x: TensorType, groups: Dim) -> Estimate:
    """A copy with the channels of all groups interleaved."""
    meet(mod(x.shape[1], groups), 0, f"{x.shape[1]} channels do not split into {groups} equal groups")
    return copied(x)


@rule("aten.diag_embed")
def diag_embed(x: TensorType, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Estimate:
    """The last axis on the diagonal of two new axes, zeros elsewhere."""
    *batch, length = x.shape
    side = length + abs(offset)
    shape: list[Dim] = list(batch)
    for place in sorted((axis_of(dim1, x.rank + 1), axis_of(dim2, x.rank + 1))):
        shape.insert(place, side)
    return Estimate((x.like(shape),), reads=(x,))


# The diagonal of the result's gradient: a view.
backward("aten.diag_embed")(lambda call: free(call["x"].like()))


@rule("aten.diagflat")
def diagflat(x: TensorType, offset: int = 0) -> Estimate:
    """A matrix with all elements on its diagonal."""
    return diag_embed(x.view((x.numel,)), offset)


@rule("aten.diag", kind="view")
def diag(x: TensorType, diagonal: int = 0) -> Estimate:
    """A matrix with a vector on its diagonal, or a copy of the diagonal of a matrix."""
    return diag_embed(x, diagonal) if x.rank == 1 else copied(*tensors_of(parts.diagonal(x, diagonal).out))


def overwritten(x: TensorType, src: TensorType, part: TensorType) -> Estimate:
    """A copy of the tensor with a part replaced by a source of the part's shape."""
    fits = shapes.have_shape(part.shape, src)
    require(fits, f"{shown(src.shape)} does not fit a part of shape {shown(part.shape)}")
    return Estimate((x.like(),), reads=(x, src))


@rule("aten.slice_scatter").takes("x src dim? start? end? step?")
def slice_scatter(of: Operands) -> Estimate:
    """A copy with a range of an axis replaced."""
    x, src, dim, start, end, step = of
    place = axis_of(0 if dim is None else dim, x.rank)
    kept = shapes.kept_by_slice(x.shape[place], start, end, 1 if step is None else step)
    return overwritten(x, src, x.view(replaced(x.shape, place, kept)))


@rule("aten.select_scatter")
def select_scatter(x: TensorType, src: TensorType, dim: int, index: Dim) -> Estimate:
    """A copy with one position of an axis replaced."""
    return overwritten(x, src, *tensors_of(parts.select(x, dim, index).out))


@rule("aten.diagonal_scatter")
def diagonal_scatter(
    x: TensorType, src: TensorType, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Estimate:
    """A copy with a diagonal replaced."""
    return overwritten(x, src, *tensors_of(parts.diagonal(x, offset, dim1, dim2).out))


@rule("prims.as_strided_scatter", kind="view")
@rule("aten.as_strided_scatter")
def as_strided_scatter(x: TensorType, src: TensorType, size: Sequence[Dim]) -> Estimate:
    """A copy with a strided pattern of its memory replaced."""
    return overwritten(x, src, x.view(size))


@backward("aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter", "aten.as_strided_scatter")
def overwritten_backward(call: ForwardCall) -> Estimate:
    """For the source a view of the result's gradient; for the tensor a copy of it, zero at replaced elements."""
    x: TensorType = call["x"]
    results = call.gradients("x", "src")
    copy = (x.like(),) if "x" in call.wants else ()
    return Estimate(results, reads=copy, writes=copy)


_MOVES = ("roll", "flip", "flipud", "fliplr", "rot90", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
_CUTS = ("native_channel_shuffle", "tril", "triu", "diagflat", "diag")
backward(*(f"aten.{name}" for name in (*_MOVES, *_CUTS)))(copied_back)


@rule("aten.one_hot", kind="scatter")
def one_hot(x: TensorType, num_classes: Dim = -1) -> Estimate:
    """Zeros with a one for each index; the number of classes is data-dependent unless given."""
    known = not (isinstance(num_classes, int) and num_classes < 0)
    return one_hot_along(x, x.rank, num_classes if known else None, INT64)
