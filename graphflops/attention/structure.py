"""What operators that lay out, select, join or make elements do to an index.

An unknown number is None. Computing with None raises an error that ends the step, which is then not followed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from graphflops.attention.elementwise import Function
from graphflops.attention.scopes import Evaluator, Indices
from graphflops.dims import Dim, Expr
from graphflops.graph import Ref
from graphflops.tensor import TensorType
from graphflops.view import Step


def _source(p: Evaluator[Any], step: Step, name: str = "x") -> Any:
    """The type of an operand that is a tensor."""
    return p.type_of(step.argument(name))


def _of(p: Evaluator[Any], step: Step, at: Any, name: str = "x") -> Any:
    """An operand at its own index."""
    return p.value(step.argument(name).name, tuple(at))


def _axis(p: Evaluator[Any], step: Step, rank: int) -> Any:
    """The axis that a step works along, counted from the front."""
    return p.number(step.argument("axis", 0)) % rank


def _axes(p: Evaluator[Any], step: Step, rank: int) -> Any:
    given = p.number(step.argument("axes"))
    return {axis % rank for axis in (given if isinstance(given, tuple) else (given,)) if rank}


# The same elements in another layout


def reshape(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Inserts and removes axes of size 1; other axes merge or split where the domain supports it."""
    source, result = _source(p, step), p.type_of(Ref(step.result))
    wide = [axis for axis, size in enumerate(result.shape) if size != 1]
    if [result.shape[axis] for axis in wide] != [size for size in source.shape if size != 1]:
        return _of(p, step, p.domain.reshaped(at, result.shape, source.shape))
    rest = iter([at[axis] for axis in wide])
    return _of(p, step, [p.domain.zero if size == 1 else next(rest) for size in source.shape])


def turn(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Reorders axes."""
    inner = dict(zip(step.operator.turned(step.arguments, len(at)) or (), at, strict=True))
    return _of(p, step, [inner[axis] for axis in range(len(at))])


def broadcast_in_dim(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Broadcasts; the operand's axes are named."""
    axes = p.number(step.argument("axes"))
    return _of(p, step, p.clipped(tuple(at[axis] for axis in axes), _source(p, step).shape))


def part(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """A range of some axes, possibly with a step."""
    shape, inner = _source(p, step).shape, list(at)
    starts, axes, steps = (p.number(step.argument(name)) for name in ("start", "axes", "step"))
    if not isinstance(starts, tuple):  # one axis
        starts, axes = (starts or 0,), (step.argument("axis", 0),)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = steps if isinstance(steps, tuple) else (steps or 1,) * len(starts)
    for start, axis, each in zip(starts, axes, steps, strict=True):
        if isinstance(start, int) and start < 0:
            start = p.from_end(start, shape[axis])
        if each <= 0:
            return None
        inner[axis] = inner[axis] * each + start
    return _of(p, step, inner)


def flip(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Reverses axes."""
    shape, axes = _source(p, step).shape, _axes(p, step, len(at))
    return _of(p, step, [i * -1 + (shape[axis] - 1) if axis in axes else i for axis, i in enumerate(at)])


def tiled(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Repeats a tensor along each axis; an axis that is not repeated keeps its index."""
    shape = _source(p, step).shape
    repeats, inner = p.number(step.argument("repeats")), at[len(at) - len(shape) :]
    times = repeats[len(repeats) - len(shape) :]

    def place(size: Dim, each: Any, index: Any) -> Any:
        if size == 1 or index is None or each == 1:
            return p.domain.zero if size == 1 else index
        return p.domain.repeated(index, size)

    return _of(p, step, [place(*each) for each in zip(shape, times, inner, strict=True)])


# Elements by indices


def _index(p: Evaluator[Any], argument: Any, at: Indices, size: Dim) -> Any:
    """An element of an index tensor as an index of an axis of that size."""
    return p.domain.wrapped(p.domain.as_index(p.operand(argument, at)), size)


def index(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """x[i, :, j, ...] by index tensors, which broadcast with one another."""
    source, given = _source(p, step), step.argument("index")
    axes = [axis for axis, item in enumerate(given) if item is not None]
    if any((typed := p.type_of(given[axis])) is not None and typed.dtype.kind == "bool" for axis in axes):
        return None
    wide = len(at) - (source.rank - len(axes))
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    found = {axis: _index(p, given[axis], at[first : first + wide], source.shape[axis]) for axis in axes}
    rest = iter((*at[:first], *at[first + wide :]))
    return _of(p, step, [found[axis] if axis in found else next(rest) for axis in range(source.rank)])


def index_put(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """A number in the place of the elements that a mask chooses along axes of its own."""
    *before, mask = step.argument("index")
    typed, number = p.type_of(mask), step.argument("value")
    is_mask = typed.dtype.kind == "bool" and not any(before)
    if not is_mask or p.type_of(number).rank or step.argument("accumulate", False):
        return None
    chosen = p.value(mask.name, p.clipped(at[len(before) : len(before) + typed.rank], typed.shape))
    return p.domain.choose(chosen, p.operand(number, ()), _of(p, step, at))


def index_select(p: Evaluator[Any], step: Step, at: Indices, name: str = "x") -> Any:
    """The axes of an index tensor replace one axis; a scalar index removes it."""
    source, chosen = _source(p, step, name), p.type_of(step.argument("index"))
    axis, rank = _axis(p, step, source.rank), 0 if chosen is None else chosen.rank
    place = _index(p, step.argument("index"), at[axis : axis + rank], source.shape[axis])
    return _of(p, step, (*at[:axis], place, *at[axis + rank :]), name)


def gather(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """One axis by an index tensor of the result's shape."""
    axis = _axis(p, step, len(at))
    place = _index(p, step.argument("index"), at, _source(p, step).shape[axis])
    return _of(p, step, (*at[:axis], place, *at[axis + 1 :]))


def gather_nd(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """x[i, j, ...] with the indices along the last axis of one tensor."""
    source, chosen = _source(p, step), _source(p, step, "index")
    number = chosen.shape[-1]
    if step.argument("batch_dims", 0):
        return None
    outer = p.clipped(at[: chosen.rank - 1], chosen.shape[:-1])
    columns = [p.domain.as_index(p.domain.literal(k)) for k in range(number)]
    values = [_of(p, step, (*outer, column), "index") for column in columns]
    indices = zip(map(p.domain.as_index, values), source.shape, strict=False)
    places = [p.domain.wrapped(index, size) for index, size in indices]
    return _of(p, step, (*places, *at[chosen.rank - 1 :]))


def flat_apply(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Indexing by numbers, as score and mask functions spell it."""
    if not str(step.argument("name")).endswith("ModIndex"):
        return None
    source = _source(p, step)
    given = step.argument("index", ())
    places = [_index(p, each, (), size) for each, size in zip(given, source.shape, strict=False)]
    return _of(p, step, (*places, *at))


# Several tensors


def join(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Several tensors one after another along an axis, or side by side along a new one."""
    return _joined(p, step.argument("xs"), _axis(p, step, len(at)), at, is_new=step.operator.name == "stack")


def _joined(p: Evaluator[Any], items: Any, axis: int, at: Indices, *, is_new: bool = False) -> Any:
    begin, found = 0, None
    for item in items:
        shape = p.type_of(item).shape
        along = () if is_new else (at[axis] + -begin,)
        inner = p.clipped((*at[:axis], *along, *at[axis + 1 :]), shape)
        inside, value = p.domain.between(at[axis], begin, None), p.value(item.name, inner)
        found = value if begin == 0 else p.domain.choose(inside, value, found)
        begin = begin + (1 if is_new else shape[axis])
    return found


def difference(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Each element less the one before it."""
    axis, dtype = step.argument("axis", -1) % len(at), p.result_type(step)
    parts = [x for x in map(step.argument, ("prepend", "x", "append")) if x is not None]
    if step.argument("n", 1) != 1 or dtype is None or dtype.kind == "bool":
        return None
    ends = ((*at[:axis], at[axis] + place, *at[axis + 1 :]) for place in (1, 0))
    values = [_joined(p, parts, axis, each) for each in ends]
    return p.domain.apply(Function("sub", (None, None), dtype), values)


def pad(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """One number around a tensor; PyTorch counts axes from the last."""
    pads, shape, inner, edges = p.number(step.argument("pads")), _source(p, step).shape, list(at), []
    if step.operator.is_onnx or step.argument("mode", "constant") != "constant":
        return None
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True), start=1):
        if (before, after) != (0, 0):
            inner[-axis] = at[-axis] + -before
            edges.append(p.domain.between(inner[-axis], 0, shape[-axis]))
    found = _of(p, step, p.clipped(tuple(inner), shape))
    around = p.cast(step, p.operand(step.argument("value") or 0, ()))
    for inside in edges:
        found = p.domain.choose(inside, found, around)
    return found


def scatter(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """One tensor, with another in place of a range of it or at one index of an axis."""
    if step.argument("step", 1) != 1:
        return None
    inner, inside = _ranged(p, step, at, _source(p, step), step.operator.name == "slice_scatter")
    return p.domain.choose(inside, p.operand(step.argument("source"), inner), _of(p, step, at))


def _ranged(
    p: Evaluator[Any], step: Step, at: Indices, source: TensorType, is_slice: bool
) -> tuple[Indices, Any]:
    """The index in the part (a slice of an axis, or one place of it) for an index of the whole; and where it is inside."""
    axis = _axis(p, step, source.rank)
    end = step.argument("end") if is_slice else None
    begin, end = p.span(step.argument("start" if is_slice else "index"), end, source.shape[axis])
    inside = p.domain.between(at[axis], begin, end if is_slice else begin + 1)
    return (*at[:axis], *((at[axis] + -begin,) if is_slice else ()), *at[axis + 1 :]), inside


# New tensors, and triangles


def arange(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """Numbers at equal distances."""
    start, each = p.number(step.argument("start", 0)), p.number(step.argument("step", 1))
    dtype = p.result_type(step)
    if isinstance(each, Expr) or dtype is None:
        return None
    start, each = (int(x) if isinstance(x, float) and x.is_integer() else x for x in (start, each))
    return p.domain.from_index(at[0] * each + start, dtype)


def eye(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """1 on the diagonal, 0 elsewhere."""
    on = p.domain.between(at[-1] + at[-2] * -1 + -p.number(step.argument("diagonal", 0)), 0, 1)
    return p.cast(step, p.domain.choose(on, p.domain.literal(1), p.domain.literal(0)))


def triangle(p: Evaluator[Any], step: Step, at: Indices) -> Any:
    """The operand on one side of a diagonal, zeros on the other."""
    is_upper = {"triu": True, "tril": False}.get(step.operator.name, bool(step.argument("upper", 1)))
    over = at[-1] + at[-2] * -1 + -p.number(step.argument("diagonal", 0))
    inside = p.domain.between(over if is_upper else over * -1, 0, None)
    return p.domain.choose(inside, p.operand(step.argument("x"), at), p.cast(step, p.domain.literal(0)))


def inside(p: Evaluator[Any], step: Step, at: Indices, conditions: list[Any]) -> Indices | None:
    """The index in a view for an index of its operand, with conditions that are appended; None if it is not followed."""
    typed, name = _source(p, step), step.operator.name
    if name in ("slice", "select"):
        if at[_axis(p, step, typed.rank)] is None or step.argument("step", 1) != 1:
            return None
        place, condition = _ranged(p, step, at, typed, name == "slice")
        conditions.append(condition)
        return place
    result = p.type_of(Ref(step.result))
    same = result is not None and result.shape == typed.shape
    return at if (step.operator.kind == "identity" or name == "reshape") and same else None


FUNCTIONS: dict[str, Callable[[Evaluator[Any], Step, Indices], Any]] = {
    "expand": lambda p, step, at: p.operand(step.argument("x"), at),
    **dict.fromkeys(("permute", "transpose", "t", "movedim"), turn),
    "copy": lambda p, step, at: p.cast(step, p.operand(step.argument("source"), at)),
    **dict.fromkeys(
        ("full", "full_like", "new_full", "scalar_tensor", "fill"),
        lambda p, step, at: p.cast(step, p.operand(step.argument("value"), ())),
    ),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda p, step, at: p.cast(step, p.domain.literal(0))),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda p, step, at: p.cast(step, p.domain.literal(1))),
    "broadcast_in_dim": broadcast_in_dim,
    **dict.fromkeys(("reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"), reshape),
    "slice": part, "narrow": part, "flip": flip, "repeat": tiled, "index": index, "index_put": index_put,
    "select": index_select, "index_select": index_select, "embedding": partial(index_select, name="weight"),
    "gather": gather, "gather_nd": gather_nd, "flat_apply": flat_apply, "cat": join, "stack": join, "pad": pad,
    "diff": difference, "slice_scatter": scatter, "select_scatter": scatter, "arange": arange, "eye": eye,
    **dict.fromkeys(("triu", "tril", "trilu"), triangle),
}  # fmt: skip
# Those that choose elements of their first operand by numbers that are computed.
CHOOSING = frozenset({"index", "index_select", "embedding", "gather", "gather_nd"})
