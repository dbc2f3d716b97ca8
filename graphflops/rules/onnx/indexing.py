"""Reading and writing by index: a read touches only the returned elements and the indices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import differ
from graphflops.rules.arrangement import combined, functional, picked
from graphflops.rules.axes import axis as place_of
from graphflops.rules.onnx.entries import KnownContents, Place, filled, known_contents, moved, wrapped
from graphflops.rules.onnx.values import Number, add, largest, multiply, smallest
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.shapes import replaced, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from graphflops.tensor import TensorType

_COMBINED: dict[str, Callable[[Number, Number], Number]] = {
    "none": lambda old, new: new,
    "add": add,
    "mul": multiply,
    "max": largest,
    "min": smallest,
}

# Reading.


@rule("onnx.Gather")
def gather(x: TensorType, indices: TensorType, *, axis: int = 0) -> Estimate:
    """Slices of an axis, one per index."""
    require(x.rank > 0, "a tensor without axes has nothing to gather along")
    place = place_of(axis, x.rank)
    out = x.like(replaced(x.shape, place, *indices.shape))
    known = known_contents(indices)
    if known is None:
        return picked(out, indices)
    last = place + indices.rank

    def source(at: Place) -> Place:
        return (*at[:place], wrapped(known.at(at[place:last]), x.shape[place]), *at[last:])

    return picked(moved(x, out, source), indices)


@rule("onnx.GatherElements")
def gather_elements(x: TensorType, indices: TensorType, *, axis: int = 0) -> Estimate:
    """One element per index along an axis."""
    require(x.rank == indices.rank, f"{shown(indices.shape)} does not index {shown(x.shape)}")
    place, known, out = place_of(axis, x.rank), known_contents(indices), x.like(indices.shape)
    if known is None:
        return picked(out, indices)

    def source(at: Place) -> Place:
        return (*at[:place], wrapped(known.at(at), x.shape[place]), *at[place + 1 :])

    return picked(moved(x, out, source), indices)


@rule("onnx.GatherND")
def gather_nd(x: TensorType, indices: TensorType, *, batch_dims: int = 0) -> Estimate:
    """One slice per index vector; a vector holds positions along the leading axes behind the batch."""
    lead, known = indices.shape[:-1], known_contents(indices)
    deep = _depth(x, indices, batch_dims)
    out = x.like((*lead, *x.shape[batch_dims + deep :]))
    if known is None:
        return picked(out, indices)

    def source(at: Place) -> Place:
        where = at[: len(lead)]
        named = (wrapped(known.at((*where, i)), x.shape[batch_dims + i]) for i in range(deep))
        return (*where[:batch_dims], *named, *at[len(lead) :])

    return picked(moved(x, out, source), indices)


def _depth(x: TensorType, indices: TensorType, batch_dims: int = 0) -> int:
    """The number of axes that an index vector addresses."""
    require(indices.rank > 0, "an index needs at least one axis")
    require(0 <= batch_dims < indices.rank, f"{batch_dims} axes of {shown(indices.shape)} are not batch axes")
    deep = indices.shape[-1]
    require_known(
        isinstance(deep, int), f"how many axes the indices {shown(indices.shape)} name depends on data"
    )
    fits = isinstance(deep, int) and batch_dims + deep <= x.rank
    require(fits, f"{shown(indices.shape)} names more axes than {shown(x.shape)} has")
    return deep if isinstance(deep, int) else 0


# Writing into a copy.


@rule("onnx.ScatterElements", "onnx.Scatter")
def scatter_elements(
    x: TensorType, indices: TensorType, updates: TensorType, *, axis: int = 0, reduction: str = "none"
) -> Estimate:
    """One element written per index along an axis, combined with what is there where a reduction is named."""
    require(x.rank == indices.rank, f"{shown(indices.shape)} does not index {shown(x.shape)}")
    place = place_of(axis, x.rank)
    known, new = known_contents(indices), known_contents(updates)

    def writes(known: KnownContents, new: KnownContents) -> Iterable[tuple[Place, Number]]:
        for at in known.places:
            yield (*at[:place], wrapped(known.at(at), x.shape[place]), *at[place + 1 :]), new.at(at)

    contents = None if known is None or new is None else writes(known, new)
    return _scattered(x, indices, updates, reduction, contents)


@rule("onnx.ScatterND")
def scatter_nd(
    x: TensorType, indices: TensorType, updates: TensorType, *, reduction: str = "none"
) -> Estimate:
    """Writes one slice per index vector; a reduction combines it with the old values, one operation each."""
    deep, lead = _depth(x, indices), len(indices.shape) - 1
    known, new = known_contents(indices), known_contents(updates)

    def writes(known: KnownContents, new: KnownContents) -> Iterable[tuple[Place, Number]]:
        for at in new.places:
            named = [wrapped(known.at((*at[:lead], i)), x.shape[i]) for i in range(deep)]
            yield (*named, *at[lead:]), new.at(at)

    contents = None if known is None or new is None else writes(known, new)
    return _scattered(x, indices, updates, reduction, contents)


def _scattered(
    x: TensorType,
    indices: TensorType,
    updates: TensorType,
    reduction: str,
    writes: Iterable[tuple[Place, Number]] | None,
) -> Estimate:
    require_known(reduction in _COMBINED, f"unknown reduction {reduction}")
    update = combined(x, updates, (indices, updates), None if reduction == "none" else reduction)
    estimate, old = functional(update), known_contents(x)
    if writes is None or old is None:
        return estimate
    return replace(estimate, out=(_written(x.like(), old, writes, _COMBINED[reduction]),))


def _written(
    out: TensorType,
    old: KnownContents,
    writes: Iterable[tuple[Place, Number]],
    combine: Callable[[Number, Number], Number],
) -> TensorType:
    entries = dict(zip(old.places, old.entries, strict=True))
    try:
        for place, number in writes:
            entries[place] = combine(entries[place], number)
    except (IndexError, ValueError):  # an unknown index, or numbers of unknown order
        return out
    return filled(out, lambda at: entries[at])


@rule("onnx.TensorScatter")
def tensor_scatter(
    x: TensorType,
    update: TensorType,
    write_indices: TensorType | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Estimate:
    """A copy with a run of positions of an axis replaced."""
    place = place_of(axis, x.rank)
    pairs = zip(replaced(x.shape, place), replaced(update.shape, place), strict=True)
    fits = x.rank == update.rank and not any(differ(a, b) for a, b in pairs)
    require(fits, f"{shown(update.shape)} does not fit into {shown(x.shape)}")
    return Estimate((x.like(),), reads=(x, update, write_indices))
