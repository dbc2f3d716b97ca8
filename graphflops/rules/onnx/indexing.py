"""Reads and writes by index, slices and borders: only the returned elements and the indices are read."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from graphflops.base.record import replace
from graphflops.cost import Estimate, picked
from graphflops.dims import Dim, at_least, ceil_div, differ, dim_min, floor_div, meet, mod, total
from graphflops.rules.indexing import combined, functional
from graphflops.rules.onnx import values
from graphflops.rules.onnx.entries import Numbers, Outputs, chosen_axes, many, size, sizes, unknown
from graphflops.rules.operands import Operands
from graphflops.rules.parts import in_steps, require_few
from graphflops.rules.rearrange import bordered
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.shapes import Shape, axis_of, clamped, have_shape, kept_by_onnx_slice, replaced, shown
from graphflops.tensor import TensorType

KIND = "scatter"


_COMBINED: dict[str, Callable[[values.Number, values.Number], values.Number]] = {
    "none": lambda old, new: new,
    "add": values.add,
    "mul": values.multiply,
    "max": values.largest,
    "min": values.smallest,
}

# Maps an index of the returned or written part to an index of the whole.
Address = Callable[[values.Place], Sequence[int]]


def along(x: TensorType, known: values.Known, place: int) -> Address:
    """The addresses of elements whose positions along one axis are known indices, one for each element."""
    return lambda at: (*at[:place], values.wrapped(known[at], x.shape[place]), *at[place + 1 :])


def named_by(x: TensorType, known: values.Known, lead: int, deep: int, batch: int = 0) -> Address:
    """The addresses of slices that index vectors name: `deep` positions along the axes after those of the batch.

    lead: the number of the indices' axes before those of a vector.
    """

    def address(at: values.Place) -> values.Place:
        named = (values.wrapped(known[at[:lead] + (i,)], x.shape[batch + i]) for i in range(deep))
        return (*at[:batch], *named, *at[lead:])

    return address


def _gathered(
    x: TensorType, indices: TensorType, shape: Sequence[Dim], address: Callable[[values.Known], Address]
) -> Estimate:
    """Reads as many elements as are returned; contents follow if those of the indices are known."""
    known, out = values.known_contents(indices), x.like(shape)
    return picked(out if known is None else values.moved(x, out, address(known)), indices)


@rule("onnx.Gather")
def gather(x: TensorType, indices: TensorType, *, axis: int = 0) -> Estimate:
    """Slices of an axis, one per index."""
    place, last = axis_of(axis, x.rank), axis_of(axis, x.rank) + indices.rank

    def address(known: values.Known) -> Address:
        return lambda at: (*at[:place], values.wrapped(known[at[place:last]], x.shape[place]), *at[last:])

    return _gathered(x, indices, replaced(x.shape, place, *indices.shape), address)


@rule("onnx.GatherElements")
def gather_elements(x: TensorType, indices: TensorType, *, axis: int = 0) -> Estimate:
    """One element per index along an axis."""
    place = _indexed(x, indices, axis)
    return _gathered(x, indices, indices.shape, lambda known: along(x, known, place))


def _indexed(x: TensorType, indices: TensorType, axis: int) -> int:
    """The axis that the indices address. Raises ShapeError if there are more indices than elements along another axis."""
    place = axis_of(axis, x.rank)
    fits = x.rank == indices.rank and not any(
        at_least(count, length + 1)
        for at, (count, length) in enumerate(zip(indices.shape, x.shape, strict=True))
        if at != place
    )
    require(fits, f"{shown(indices.shape)} does not index {shown(x.shape)}")
    return place


@rule("onnx.GatherND", "com.microsoft.GatherND")
def gather_nd(x: TensorType, indices: TensorType, *, batch_dims: int = 0) -> Estimate:
    """One slice per index vector; a vector holds positions along the leading axes after the batch."""
    deep = _depth(x, indices, batch_dims)
    shape = (*indices.shape[:-1], *x.shape[batch_dims + deep :])
    return _gathered(x, indices, shape, lambda known: named_by(x, known, indices.rank - 1, deep, batch_dims))


def _depth(x: TensorType, indices: TensorType, batch_dims: int = 0) -> int:
    require(indices.rank > 0, "an index needs at least one axis")
    deep, given = indices.shape[-1], shown(indices.shape)
    require(0 <= batch_dims < indices.rank, f"{batch_dims} axes of {given} are not batch axes")
    require_known(isinstance(deep, int), f"how many axes the indices {given} name depends on data")
    fits = isinstance(deep, int) and batch_dims + deep <= x.rank
    require(fits, f"{given} names more axes than {shown(x.shape)} has")
    return deep if isinstance(deep, int) else 0


@rule("onnx.ScatterElements", "onnx.Scatter").takes("x indices updates")
def scatter_elements(of: Operands, *, axis: int = 0, reduction: str = "none") -> Estimate:
    """One element written per index along an axis, combined with its old value if a reduction is named."""
    place = _indexed(of.x, of.indices, axis)
    return _scattered(of.x, of.indices, of.updates, reduction, lambda known: along(of.x, known, place))


@rule("onnx.ScatterND")
def scatter_nd(
    x: TensorType, indices: TensorType, updates: TensorType, *, reduction: str = "none"
) -> Estimate:
    """Writes one slice per index vector; a reduction combines it with the old values, one operation each."""
    deep = _depth(x, indices)
    slices = (*indices.shape[:-1], *x.shape[deep:])
    require(have_shape(slices, updates), f"updates {shown(updates.shape)} for slices {shown(slices)}")
    lead = indices.rank - 1
    return _scattered(x, indices, updates, reduction, lambda known: named_by(x, known, lead, deep))


def _scattered(
    x: TensorType,
    indices: TensorType,
    updates: TensorType,
    reduction: str,
    address: Callable[[values.Known], Address],
) -> Estimate:
    require_known(reduction in _COMBINED, f"unknown reduction {reduction}")
    update = combined(x, updates, (indices, updates), None if reduction == "none" else reduction)
    estimate, combine = functional(update), _COMBINED[reduction]
    known, new, old = map(values.known_contents, (indices, updates, x))
    if known is None or new is None or old is None:
        return estimate
    written = address(known)
    try:
        for at, number in new.items():
            place = tuple(written(at))
            old[place] = combine(old[place], number)
    except (LookupError, ValueError):  # an unknown index, or numbers of unknown order
        return estimate
    return replace(estimate, out=(values.filled(x.like(), lambda at: old[at]),))


@rule("onnx.TensorScatter")
def tensor_scatter(
    x: TensorType, update: TensorType, write_indices: TensorType | None = None, *, axis: int = -2
) -> Estimate:
    """A copy with a run of positions of an axis replaced."""
    place = axis_of(axis, x.rank)
    pairs = zip(replaced(x.shape, place), replaced(update.shape, place), strict=True)
    fits = x.rank == update.rank and not any(differ(a, b) for a, b in pairs)
    fits = fits and not at_least(update.shape[place], x.shape[place] + 1)
    require(fits, f"{shown(update.shape)} does not fit into {shown(x.shape)}")
    return Estimate((x.like(),), reads=(x, update, write_indices))


@rule("onnx.Split").takes("x split?; axis=0 num_outputs=None outputs=()")
def split_by(of: Operands) -> Estimate:
    """Pieces of the given sizes, or equal pieces of which the last may be shorter."""
    (x, split), outputs, place = of, of.outputs, axis_of(of.axis, of.x.rank)
    count = len(outputs) if of.num_outputs is None else of.num_outputs
    require(len(outputs) in (0, count), f"{count} pieces are asked for, but {len(outputs)} named")
    parts = pieces(x, place, split_lengths(x.shape[place], split, count))
    # only the wanted ones are read and written
    wanted = tuple(part for part, asked in zip(parts, outputs or (True,) * len(parts), strict=False) if asked)
    return Estimate(parts, reads=wanted, writes=wanted)


@rule("onnx.Split.1", "onnx.Split.2", "onnx.Split.11", "onnx.Split.13")
def split_evenly(x: TensorType, split: Numbers = None, *, axis: int = 0, outputs: Outputs = ()) -> Estimate:
    """Pieces of the given sizes, else equal ones."""
    length, count = x.shape[axis_of(axis, x.rank)], len(outputs)
    if split is None and count:
        meet(mod(length, count), 0, f"{length} do not make {count} equal pieces")
        split = (floor_div(length, count),) * count
    return split_by(x, split, axis=axis, outputs=outputs)


def split_lengths(length: Dim, given: Numbers, count: int) -> tuple[Dim, ...]:
    """The lengths of the pieces: as given, else `count` equal ones."""
    if given is not None:
        said = many(given)
        said = count if said is None else said
        require(count in (0, said), f"{said} lengths are given for {count} pieces")
        require_few(said)
        lengths = sizes(given) or tuple(unknown("split", place) for place in range(said))
        meet(total(lengths), length, f"{shown(lengths)} do not add up to {length}")
        return lengths
    require(count > 0, f"{count} is not a valid number of pieces")
    step = ceil_div(length, count)
    if isinstance(length, int) and isinstance(step, int):
        require(length == 0 or step * (count - 1) <= length, f"{length} do not make {count} pieces of {step}")
        return tuple(max(0, min(step, length - step * place)) for place in range(count))
    return in_steps(length, step, count)


def pieces(x: TensorType, place: int, lengths: Sequence[Dim]) -> tuple[TensorType, ...]:
    """The parts of those lengths along an axis, one after another, contents included."""
    starts = accumulate(lengths, initial=0)
    shapes = [replaced(x.shape, place, length) for length in lengths]
    return tuple(_window(x, shape, {place: (start, 1)}) for shape, start in zip(shapes, starts, strict=False))


def _window(x: TensorType, shape: Shape, where: dict[int, tuple[Dim, int]]) -> TensorType:
    """A part of that shape; `where` gives start and step per axis."""
    out = x.like(shape)
    named = (where.get(place, (0, 1)) for place in range(x.rank))
    steps = [(start, step) for start, step in named if isinstance(start, int)]
    if len(steps) < x.rank:
        return out
    return values.moved(
        x, out, lambda at: [start + i * step for i, (start, step) in zip(at, steps, strict=True)]
    )


@rule("onnx.Slice")
def slice_(
    x: TensorType, starts: Numbers, ends: Numbers, axes: Numbers = None, steps: Numbers = None
) -> Estimate:
    """A range of each named axis; a bound past either end means that end."""
    places = chosen_axes(axes, x.rank, many(starts))
    if places is None:
        return picked(x.like(unknown("slice", place) for place in range(x.rank)))
    every = [sizes(given) for given in (starts, ends)]
    strides = (1,) * len(places) if steps is None else sizes(steps)
    shape, where = x.shape, {}
    for at, place in enumerate(places):
        start, end, step = (None if known is None else known[at] for known in (*every, strides))
        if start is None or end is None or not isinstance(step, int):
            shape = replaced(shape, place, unknown("slice", place))
            where[place] = (unknown("slice", place), 1)
        else:
            require(step != 0, "a slice cannot have a step of 0")
            length = x.shape[place]
            where[place] = (clamped(start, length, 0, length if step > 0 else length - 1), step)
            shape = replaced(shape, place, kept_by_onnx_slice(length, start, end, step))
    return picked(_window(x, shape, where))


@rule("onnx.Pad", "com.microsoft.Pad").takes("x pads? constant_value? axes?; mode='constant' paddings=None")
def pad(of: Operands) -> Estimate:
    """A copy with a border: widths before every axis, then after; a negative width crops."""
    x, pads, constant_value, axes = of
    places = chosen_axes(axes, x.rank)
    widths = sizes(pads if of.paddings is None else of.paddings)
    if places is None or widths is None:
        touched = range(x.rank) if places is None else places
        opened = (unknown("pad", at) if at in touched else length for at, length in enumerate(x.shape))
        return Estimate((x.like(opened),), reads=(x,))
    require(len(widths) == 2 * len(places), f"{shown(widths)} are not pairs of widths for {len(places)} axes")
    pairs = dict(zip(places, zip(widths[: len(places)], widths[len(places) :], strict=True), strict=True))
    ahead = {at: before for at, (before, _) in pairs.items()}
    fill = 0 if constant_value is None else size(constant_value)
    out = x.like(bordered(x.shape, pairs))
    return Estimate((_with_border(x, out, ahead, of.mode, fill),), reads=(x,))


def _with_border(
    x: TensorType, out: TensorType, ahead: dict[int, Dim], mode: str, fill: Dim | None
) -> TensorType:
    """`out` with the contents of `x` and of its border."""
    known, own, shape = values.known_contents(x), values.fixed(x.shape), values.fixed(out.shape)
    widths = [width for at in range(x.rank) if isinstance(width := ahead.get(at, 0), int)]
    if known is None or own is None or shape is None or len(widths) < x.rank:
        return out
    # A negative width crops first; the border is drawn from what remains.
    first = [max(0, -width) for width in widths]
    last = [min(n, length - width) for n, length, width in zip(own, shape, widths, strict=True)]
    border = [max(0, width) for width in widths]

    def entry(at: values.Place) -> values.Number | None:
        source = [
            _drawn(i - n, end - start, mode) for i, n, start, end in zip(at, border, first, last, strict=True)
        ]
        inside = [start + i for start, i in zip(first, source, strict=True) if i is not None]
        return known[tuple(inside)] if len(inside) == len(source) else fill

    return values.filled(out, entry)


def _drawn(index: int, length: int, mode: str) -> int | None:
    """The source index of an element of the border; None if it is the fill value."""
    if 0 <= index < length:
        return index
    if mode == "edge":
        return min(max(index, 0), length - 1)
    if mode == "wrap":
        return index % length
    if mode == "reflect" and length > 1:
        back = index % (2 * length - 2)
        return min(back, 2 * length - 2 - back)
    return 0 if mode == "reflect" else None


@rule("onnx.CenterCropPad")
def center_crop_pad(x: TensorType, shape: Numbers, *, axes: Sequence[int] | None = None) -> Estimate:
    """Crops axes to a size about their centre, or pads them with zeros."""
    places, wanted = chosen_axes(axes, x.rank, None if axes is None else many(shape)), sizes(shape)
    require(many(shape) in (None, len(places or ())), f"{many(shape)} sizes for {len(places or ())} axes")
    if places is None or wanted is None:
        wanted, places = tuple(unknown("crop", at) for at in places or ()), places or ()
    named = dict(zip(places, wanted, strict=True))
    out = x.like(named.get(at, length) for at, length in enumerate(x.shape))
    seen = x.like(dim_min(*pair) for pair in zip(x.shape, out.shape, strict=True))
    return Estimate((out,), reads=(seen,))
