"""Parts of tensors: slices, single positions, splits and diagonals, which are views; and copies of such views."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from graphflops.base.record import replace
from graphflops.cost import Estimate, copied, data_dependent, free
from graphflops.dims import Dim, Expr, at_least, ceil_div, differ, dim_max, dim_min, floor_div, meet, total
from graphflops.rules import views
from graphflops.rules.registry import ForwardCall, backward, find, require, rule
from graphflops.rules.shapes import Shape, axes, axis_of, kept_by_slice, replaced, shown, tensors_of
from graphflops.tensor import PartType, TensorType

KIND = "view"


@rule("aten.select")
def select(x: TensorType, dim: int, index: Dim) -> Estimate:
    """One position of an axis."""
    place = axis_of(dim, x.rank)
    size = x.shape[place]
    inside = not (at_least(index, size) or at_least(-1 - size, index))
    require(inside, f"index {index} is outside axis {place} of length {size}")
    out = x.view(replaced(x.shape, place))
    if place == 0 and isinstance(index, int) and isinstance(x.value, tuple):
        out = replace(out, value=x.value[index])
    return free(out)


@rule("aten.slice")
def slice_(
    x: TensorType, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Dim = 1
) -> Estimate:
    """A range of an axis."""
    place = axis_of(dim, x.rank)
    out = x.view(replaced(x.shape, place, kept_by_slice(x.shape[place], start, end, step)))
    literal = not any(isinstance(bound, Expr) for bound in (start, end, step))
    if place == 0 and literal and isinstance(x.value, tuple):
        out = replace(out, value=x.value[slice(start, end, step)])  # type: ignore[arg-type]
    return free(out)


@rule("aten.narrow")
def narrow(x: TensorType, dim: int, start: Dim | TensorType, length: Dim) -> Estimate:
    """A range of an axis, given by its length."""
    place = axis_of(dim, x.rank)
    size = x.shape[place]
    require(not at_least(length, size + 1), f"{length} positions do not fit axis {place} of length {size}")
    return free(x.view(replaced(x.shape, place, length)))


_MOST_PIECES = 100_000  # no real call has more results; a damaged file may hold any size


def require_few(number: Dim, what: str = "pieces") -> None:
    """Raises ShapeError for an absurd number of results."""
    require(not isinstance(number, int) or number <= _MOST_PIECES, f"{number} {what} are too many")


def pieces(x: TensorType, sizes: Iterable[Dim], dim: int) -> Estimate:
    """One view per size, along an axis."""
    place = axis_of(dim, x.rank)
    return free(*(x.view(replaced(x.shape, place, size)) for size in sizes))


def in_steps(size: Dim, step: Dim, count: Dim) -> Shape:
    """The lengths of `count` pieces of `step`, the last one shorter; () if the count is unknown."""
    if isinstance(count, Expr):
        return ()
    require_few(count)
    return (*(step,) * (count - 1), size - step * (count - 1))


@rule("aten.split", "aten.unsafe_split")
def split(
    x: TensorType, split_size: Dim | Sequence[Dim], dim: int = 0, *, outputs: Sequence[bool] = ()
) -> Estimate:
    """Pieces of one size, or of the given sizes."""
    if not isinstance(split_size, (int, Expr)):
        return split_with_sizes(x, split_size, dim)
    size = x.shape[axis_of(dim, x.rank)]
    count = 1 if size == 0 else ceil_div(size, split_size)
    if isinstance(count, Expr) and outputs:
        meet(count, len(outputs))
        count = len(outputs)
    return pieces(x, in_steps(size, split_size, count), dim)


@rule("aten.split_with_sizes", "aten.unsafe_split_with_sizes")
def split_with_sizes(x: TensorType, split_sizes: Sequence[Dim], dim: int = 0) -> Estimate:
    """Pieces of the given sizes."""
    size = x.shape[axis_of(dim, x.rank)]
    meet(total(split_sizes), size, f"{shown(split_sizes)} do not add up to {size}")
    return pieces(x, split_sizes, dim)


@rule("aten.chunk", "aten.unsafe_chunk")
def chunk(x: TensorType, chunks: int, dim: int = 0) -> Estimate:
    """At most `chunks` equal pieces; exactly that many if the size is unknown."""
    size = x.shape[axis_of(dim, x.rank)]
    step = ceil_div(size, chunks)
    count = ceil_div(size, step) if isinstance(step, int) and step and isinstance(size, int) else chunks
    return pieces(x, in_steps(size, step, count), dim)


@rule("aten.tensor_split")
def tensor_split(x: TensorType, cuts: Dim | Sequence[Dim] | TensorType, dim: int = 0) -> Estimate:
    """That many pieces of nearly equal size, or pieces between the given positions."""
    size = x.shape[axis_of(dim, x.rank)]
    where = cuts.value if isinstance(cuts, TensorType) else cuts
    if where is None and isinstance(cuts, TensorType) and cuts.rank and isinstance(cuts.shape[0], int):
        require_few(cuts.shape[0])
        return pieces(x, (data_dependent(f"piece_{place}") for place in range(cuts.shape[0] + 1)), dim)
    if where is None or isinstance(where, (Expr, float)):  # the number of pieces is not known
        return free()
    if isinstance(where, int):
        require_few(where)
        return pieces(x, (floor_div(size + where - 1 - place, where) for place in range(where)), dim)
    return pieces(x, (kept_by_slice(size, start, end) for start, end in pairwise((0, *where, None))), dim)


@rule("aten.hsplit")
def hsplit(x: TensorType, cuts: int | Sequence[int]) -> Estimate:
    """`tensor_split` along the second axis, or the only one."""
    return tensor_split(x, cuts, 1 if x.rank > 1 else 0)


rule("aten.vsplit").derived(tensor_split, says="`tensor_split` along the first axis.", order="x cuts", dim=0)
rule("aten.dsplit").derived(tensor_split, says="`tensor_split` along the third axis.", order="x cuts", dim=2)


@rule("aten.unbind")
def unbind(x: TensorType, dim: int = 0) -> Estimate:
    """One view for each position of an axis."""
    place = axis_of(dim, x.rank)
    count = x.shape[place]
    require_few(count)
    return free(*(x.view(replaced(x.shape, place)),) * (count if isinstance(count, int) else 0))


@rule("aten.diagonal")
def diagonal(x: TensorType, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Estimate:
    """The diagonal of two axes, as a last axis."""
    a, b = axes((dim1, dim2), x.rank)
    others = (size for place, size in enumerate(x.shape) if place not in (a, b))
    rows, columns = x.shape[a], x.shape[b]
    length = dim_min(rows + min(offset, 0), columns - max(offset, 0))
    if not (rows is columns and isinstance(rows, Expr)):
        length = dim_max(0, length)
    return free(x.view((*others, length)))


rule("aten.linalg_diagonal").derived(diagonal, order="x", usually={"dim1": -2, "dim2": -1})


@backward(
    "aten.select narrow diagonal linalg_diagonal split split_with_sizes chunk unsafe_split",
    "aten.unsafe_split_with_sizes unsafe_chunk tensor_split hsplit vsplit dsplit unbind unbind_copy",
    "aten.split_copy select_copy slice_copy narrow_copy split_with_sizes_copy",
)
def part_backward(call: ForwardCall) -> Estimate:
    """Writes the gradients of the parts into a gradient of the whole, zero elsewhere."""
    return Estimate((call["x"].like(),), reads=tuple(x.like() for x in tensors_of(call.estimate.out)))


@backward("aten.slice")
def slice_backward(call: ForwardCall) -> Estimate:
    """The gradient of a part, or the result's gradient itself if the slice keeps everything, as in `x[:, 0]`."""
    x: TensorType = call["x"]
    return free(x.like()) if call.out.shape == x.shape else part_backward(call)


def copied_out(seen: Estimate) -> Estimate:
    """The estimate of a copy of a view's result."""
    return copied(*tensors_of(seen.out))


_COPIES = """view_copy view_copy.dtype _reshape_alias_copy alias_copy detach_copy _fw_primal_copy _make_dual_copy
as_strided_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy
squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_as_complex_copy view_as_real_copy"""
rule("aten._reshape_copy").derived(views.view, copied_out)
for _name in _COPIES.split():
    _view = find(f"aten.{_name.replace('_copy', '')}")
    assert _view is not None
    rule(f"aten.{_name}").derived(_view.function, copied_out)


def copied_back(call: ForwardCall) -> Estimate:
    """The gradient of a copy that holds each element at most once, written back to the places of the elements."""
    x = next(value for value in call.arguments.values() if isinstance(value, TensorType))
    out = call.out
    gradient, is_cast = x.like(), out.dtype != x.dtype
    part = PartType(x.shape, out.dtype) if is_cast else gradient
    read = part if differ(out.numel, x.numel) else out.like()
    return Estimate((gradient,), vector_flops=x.numel if is_cast else 0, reads=(read,))


_WHOLE = ("view", "_reshape", "_reshape_alias", "alias", "permute", "squeeze", "t", "transpose", "unsqueeze")
backward(*(f"aten.{name}_copy" for name in (*_WHOLE, "view_as_complex", "view_as_real")))(copied_back)
