"""Calls that lay values out anew, pick some of them, or put them together: what they do to the indices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphflops.attention.roles import base_of
from graphflops.attention.walk import arguments
from graphflops.dims import Expr
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.attention.walk import Indices, Walk
    from graphflops.dims import Dim
    from graphflops.view import Call


def unsqueeze(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Axes of size one come."""
    axes = _axes(walk, call, len(at))
    if axes is None:
        return None
    return walk.operand(call.given[0], tuple([i for axis, i in enumerate(at) if axis not in axes]))


def squeeze(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Axes of size one go."""
    typed = walk.view.types[call.uses[0]]
    axes = _axes(walk, call, typed.rank)
    ones = {axis for axis, size in enumerate(typed.shape) if size == 1}
    axes = ones if axes is None else axes & ones
    rest = iter(at)
    return walk.of(
        call.uses[0], tuple([walk.zero if axis in axes else next(rest) for axis in range(typed.rank)])
    )


def _axes(walk: Walk[Any], call: Call, rank: int) -> set[int] | None:
    given = (
        walk.number(call.given[1]) if len(call.given) > 1 else call.attribute("dim", call.attribute("axes"))
    )
    given = (given,) if isinstance(given, int) else given
    if not isinstance(given, tuple) or not all(isinstance(axis, int) for axis in given):
        return None
    return {axis % rank for axis in given if rank}


def reshape(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Axes of size one come or go; what else there is, where indices are numbers."""
    source, result = walk.view.types[call.uses[0]], walk.view.types[call.result]
    wide = [axis for axis, size in enumerate(result.shape) if size != 1]
    if [result.shape[axis] for axis in wide] != [size for size in source.shape if size != 1]:
        place = walk.unflattened(at, result.shape, source.shape)
        return None if place is None else walk.of(call.uses[0], place)
    rest = iter([at[axis] for axis in wide])
    return walk.of(call.uses[0], tuple([walk.zero if size == 1 else next(rest) for size in source.shape]))


def permute(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Axes in another order."""
    rank = len(at)
    given = call.attribute("perm", call.attribute("dims", call.given[1] if len(call.given) > 1 else None))
    order = given if isinstance(given, tuple) else tuple(reversed(range(rank)))
    inner: list[Any] = [None] * rank
    for place, axis in enumerate(order):
        inner[axis % rank] = at[place]
    return walk.of(call.uses[0], tuple(inner))


def transpose(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Two axes change places."""
    args = arguments(call)
    inner = list(at)
    a, b = args.get("dim0"), args.get("dim1")
    if base_of(call) == "t":
        a, b = 0, len(at) - 1
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    inner[a], inner[b] = inner[b], inner[a]
    return walk.of(call.uses[0], tuple(inner))


def part(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Of some axes only what lies between two places, or every so many."""
    source = walk.view.types[call.uses[0]]
    if base_of(call) == "Slice":
        starts, axes, steps = (
            walk.number(a) for a in (*call.given[1:2], *(*call.given[3:5], None, None)[:2])
        )
        starts = call.attribute("starts", starts)
        axes = call.attribute("axes", axes) or tuple(range(len(starts or ())))
        steps = steps or (1,) * len(starts or ())
    else:
        args = arguments(call)
        starts, axes, steps = (args.get("start") or 0,), (args.get("dim", 0),), (args.get("step", 1),)
    if not isinstance(starts, tuple) or not isinstance(axes, tuple) or not isinstance(steps, tuple):
        return None
    inner = list(at)
    for start, axis, step in zip(starts, axes, steps, strict=False):
        start = walk.number(start)
        index = inner[axis]
        if isinstance(start, int) and start < 0:
            start = walk.from_end(start, source.shape[axis])
        if index is None or not isinstance(step, int) or step <= 0 or not isinstance(start, (int, Expr)):
            return None
        inner[axis] = index * step + start
    return walk.of(call.uses[0], tuple(inner))


def select(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """One place of an axis."""
    args = arguments(call)
    axis, index = args.get("dim"), walk.number(args.get("index"))
    if not isinstance(axis, int) or not isinstance(index, int):
        return None
    axis %= len(at) + 1
    if index < 0:
        index = index + walk.view.types[call.uses[0]].shape[axis]
    return walk.of(call.uses[0], (*at[:axis], walk.as_index(walk.literal(index)), *at[axis:]))


def index(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """x[i, :, j, ...] by index tensors, which broadcast with one another."""
    source = walk.view.types[call.uses[0]]
    given = call.given[1]
    if not isinstance(given, tuple) or any(item is not None and not isinstance(item, Ref) for item in given):
        return None
    axes = [axis for axis, item in enumerate(given) if item is not None]
    wide = len(at) - (source.rank - len(axes))
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    places = [walk.as_index(walk.operand(given[axis], at[first : first + wide])) for axis in axes]
    rest = iter((*at[:first], *at[first + wide :]))
    found = dict(zip(axes, places, strict=True))
    return walk.of(
        call.uses[0], tuple([found[axis] if axis in found else next(rest) for axis in range(source.rank)])
    )


def gather(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """ONNX's: an index tensor's axes in the place of one axis."""
    source, chosen = (walk.view.types.get(name) for name in call.uses[:2])
    if source is None or chosen is None:
        return None
    axis = call.attribute("axis", 0) % source.rank
    place = walk.of(call.uses[1], walk.clipped(at[axis : axis + chosen.rank], chosen))
    return walk.of(call.uses[0], (*at[:axis], walk.as_index(place), *at[axis + chosen.rank :]))


def embedding(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Rows of a table by an index tensor."""
    place = walk.operand(call.given[1], at[:-1])
    return walk.of(call.uses[0], (walk.as_index(place), at[-1]))


def index_select(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Places of one axis by a row of indices."""
    args = arguments(call)
    axis = args["dim"] % len(at)
    place = walk.operand(args["index"], (at[axis],))
    return walk.of(call.uses[0], (*at[:axis], walk.as_index(place), *at[axis + 1 :]))


def gather_along(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """One axis by an index tensor of the result's shape: ATen's gather, ONNX's GatherElements."""
    args = arguments(call)
    axis = args.get("dim", call.attribute("axis", 0)) % len(at)
    place = walk.of(call.uses[1], walk.clipped(at, walk.view.types[call.uses[1]]))
    return walk.of(call.uses[0], (*at[:axis], walk.as_index(place), *at[axis + 1 :]))


def gather_nd(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """x[i, j, ...] with the indices side by side in the last axis of one tensor."""
    chosen = walk.view.types.get(call.uses[1])
    if chosen is None or call.attribute("batch_dims", 0) or not isinstance(chosen.shape[-1], int):
        return None
    outer = walk.clipped(at[: chosen.rank - 1], replace(chosen, shape=chosen.shape[:-1]))
    numbers = [walk.as_index(walk.literal(k)) for k in range(chosen.shape[-1])]
    places = [walk.as_index(walk.of(call.uses[1], (*outer, number))) for number in numbers]
    return walk.of(call.uses[0], (*places, *at[chosen.rank - 1 :]))


def join(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Several tensors one after another along an axis."""
    axis = _along(call) % len(at)
    if at[axis] is None:
        return None
    begin: Dim = 0
    found: Any = None
    for name in call.uses:
        typed = walk.view.types[name]
        value = walk.of(name, walk.clipped((*at[:axis], at[axis] + -begin, *at[axis + 1 :]), typed))
        found = value if begin == 0 else walk.chosen(walk.between(at[axis], begin, None), value, found)
        begin = begin + typed.shape[axis]
    return found


def stack(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """Several tensors side by side along a new axis."""
    axis = _along(call) % len(at)
    if at[axis] is None:
        return None
    parts = [walk.of(name, (*at[:axis], *at[axis + 1 :])) for name in call.uses]
    found = parts[0]
    for place, value in enumerate(parts[1:], 1):
        found = walk.chosen(walk.between(at[axis], place, None), value, found)
    return found


def _along(call: Call) -> int:
    given = call.given[1] if len(call.given) > 1 and isinstance(call.given[1], int) else 0
    axis = call.attribute("axis", call.attribute("dim", given))
    return axis if isinstance(axis, int) else 0


def slice_scatter(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """One tensor with another in the place of a part of it."""
    args = arguments(call)
    if args.get("step", 1) != 1:
        return None
    axis = args.get("dim", 0) % len(at)
    begin, end = walk.span(args.get("start"), args.get("end"), walk.view.types[call.uses[0]].shape[axis])
    inner = (*at[:axis], at[axis] + -begin, *at[axis + 1 :])
    return _replaced(walk, call, at, inner, walk.between(at[axis], begin, end))


def select_scatter(walk: Walk[Any], call: Call, at: Indices) -> Any:
    """One tensor with another at one place of an axis."""
    args = arguments(call)
    axis = args["dim"] % len(at)
    begin, _ = walk.span(args["index"], None, walk.view.types[call.uses[0]].shape[axis])
    return _replaced(walk, call, at, (*at[:axis], *at[axis + 1 :]), walk.between(at[axis], begin, begin + 1))


def _replaced(walk: Walk[Any], call: Call, at: Indices, inner: Indices, inside: Any) -> Any:
    value = walk.of(call.uses[1], walk.clipped(inner, walk.view.types[call.uses[1]]))
    return walk.chosen(inside, value, walk.of(call.uses[0], at))


LAYOUTS: dict[Callable[[Walk[Any], Call, Indices], Any], str] = {
    unsqueeze: "unsqueeze unsqueeze_copy Unsqueeze",
    squeeze: "squeeze squeeze_copy Squeeze",
    reshape: "view reshape _unsafe_view view_copy Reshape flatten Flatten unflatten",
    permute: "permute permute_copy Transpose",
    transpose: "transpose transpose_copy swapaxes t",
    part: "slice slice_copy Slice",
    select: "select select_copy",
    index: "index",
    gather: "Gather",
    embedding: "embedding",
    index_select: "index_select",
    gather_along: "gather GatherElements take_along_dim",
    gather_nd: "GatherND",
    join: "cat Concat concat concatenate",
    stack: "stack",
    slice_scatter: "slice_scatter",
    select_scatter: "select_scatter",
}
