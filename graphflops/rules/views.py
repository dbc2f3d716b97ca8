"""Views of whole tensors: reshaped, permuted or expanded, without work or traffic.

Strides are not known here, so `reshape` and `flatten` are assumed to be views; where a program has to copy, its decomposed
form has a `clone`.
"""

from collections.abc import Callable, Sequence

from graphflops.base.record import replace
from graphflops.cost import Estimate, free
from graphflops.dims import Dim, Expr, at_least, broadcast, differ, dim_min, floor_div, mod, prod, same, total
from graphflops.rules import shapes
from graphflops.rules.elementwise import complex_of, real_of
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import axes, axis_of, expanded, replaced, same_elements
from graphflops.tensor import DType, TensorType

KIND = "view"


def shape_of(size: Sequence[Dim] | TensorType) -> Sequence[Dim]:
    """The sizes as given, or those of a given tensor."""
    return size.shape if isinstance(size, TensorType) else size


@rule(
    "aten.view _unsafe_view reshape _reshape_alias _mkldnn_reshape view_as reshape_as", "prims.reshape resize"
)
def view(x: TensorType, size: Sequence[Dim] | TensorType) -> Estimate:
    """A view with another shape, which may be that of another tensor."""
    return free(same_elements(x, shapes.resolved(x, shape_of(size))))


@rule("aten.view.dtype", "prims.view_of_dtype")
def view_dtype(x: TensorType, dtype: DType) -> Estimate:
    """The same bytes read as another element type; the last axis takes up the difference in width."""
    old, new = x.dtype.bits, dtype.bits
    if old == new:
        return free(x.view(x.shape, dtype))
    require(x.rank > 0, f"a tensor without axes cannot be viewed as {dtype}, of another width than {x.dtype}")
    last = x.shape[-1] * old
    fits = mod(last, new) == 0 or isinstance(last, Expr)
    require(fits, f"{x.shape[-1]} elements of {x.dtype} are no whole {dtype}")
    out = x.like((*x.shape[:-1], floor_div(last, new)), dtype)
    return free(out if x.stored is None else replace(out, stored=floor_div(x.stored * old, new)))


@rule("aten.flatten ravel", "prims.collapse collapse_view")
def flatten(x: TensorType, start_dim: int = 0, end_dim: int = -1) -> Estimate:
    """A view with neighbouring axes merged."""
    first, last = axis_of(start_dim, x.rank), axis_of(end_dim, x.rank)
    require(first <= last, f"flatten from axis {start_dim} to axis {end_dim} goes backwards")
    return free(same_elements(x, (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :])))


@rule("aten.unflatten")
def unflatten(x: TensorType, dim: int, sizes: Sequence[Dim]) -> Estimate:
    """A view with one axis split."""
    place = axis_of(dim, x.rank)
    return free(x.view(replaced(x.shape, place, *shapes.resolved(x.like((x.shape[place],)), sizes))))


@rule("aten.squeeze", "aten.squeeze_", "prims.squeeze")
def squeeze(x: TensorType, dim: int | Sequence[int] | None = None) -> Estimate:
    """A view without the axes of length one."""
    chosen = axes(dim, x.rank)
    kept = (size for place, size in enumerate(x.shape) if place not in chosen or size != 1)
    return free(same_elements(x, kept))


@rule("aten.unsqueeze", "aten.unsqueeze_")
def unsqueeze(x: TensorType, dim: int) -> Estimate:
    """A new axis of length one."""
    place = axis_of(dim, x.rank + 1)
    return free(same_elements(x, (*x.shape[:place], 1, *x.shape[place:])))


@rule("aten.alias data lift lift_fresh _lazy_clone _fw_primal _make_dual")
def alias(x: TensorType, *unused: object) -> Estimate:
    """The tensor itself."""
    return free(x)


@rule("aten.requires_grad_")
def set_requires_grad(x: TensorType, requires_grad: bool = True) -> Estimate:
    """The tensor itself, with or without a gradient."""
    return free(replace(x, requires_grad=requires_grad))


rule("aten.detach").derived(set_requires_grad, order="x", requires_grad=False)


@rule("aten.view_as_real")
def view_as_real(x: TensorType) -> Estimate:
    """A view of complex numbers as pairs of real numbers."""
    out = x.like((*x.shape, 2), real_of(x.dtype))
    return free(out if x.stored is None else replace(out, stored=2 * x.stored))


@rule("aten.view_as_complex")
def view_as_complex(x: TensorType) -> Estimate:
    """A view of pairs of real numbers as complex numbers."""
    holds_pairs = x.rank > 0 and not differ(x.shape[-1], 2)
    require(holds_pairs, f"the last axis of {shapes.shown(x.shape)} holds no pairs")
    return free(x.view(x.shape[:-1], complex_of(x.dtype)))


@rule("aten.real imag", "prims.real imag")
def part(x: TensorType) -> Estimate:
    """The real or imaginary parts of every element."""
    return free(x.view(x.shape, real_of(x.dtype)))


@rule("aten.permute", "prims.transpose")
def permute(x: TensorType, dims: Sequence[int]) -> Estimate:
    """Axes in the order given."""
    return free(x.view(x.shape[place] for place in shapes.permutation(dims, x)))


@rule("aten.transpose swapaxes swapdims _mkldnn_transpose transpose_ swapaxes_ swapdims_ _mkldnn_transpose_")
def transpose(x: TensorType, dim0: int, dim1: int) -> Estimate:
    """Two axes swapped."""
    shape, a, b = list(x.shape), axis_of(dim0, x.rank), axis_of(dim1, x.rank)
    if shape:
        shape[a], shape[b] = shape[b], shape[a]
    return free(x.view(shape))


@rule("aten.t", "aten.t_", "aten.matrix_H")
def transpose_matrix(x: TensorType, *, refused: Sequence[int] = range(3, 256)) -> Estimate:
    """The last two axes swapped, if there are two."""
    require(x.rank not in refused, f"{shapes.shown(x.shape)} is no matrix")
    return free(x.view((*x.shape[:-2], *x.shape[:-3:-1])))


rule("aten.mT", "aten.mH", "aten.adjoint").derived(transpose_matrix, refused=(1,))


@rule("aten.numpy_T")
def reverse_axes(x: TensorType) -> Estimate:
    """All axes in reverse order."""
    return free(x.view(x.shape[::-1]))


@rule("aten.movedim", "aten.moveaxis")
def movedim(x: TensorType, source: int | Sequence[int], destination: int | Sequence[int]) -> Estimate:
    """Chosen axes moved to chosen places, the others in order around them."""
    moved = dict(zip(axes(destination, x.rank), axes(source, x.rank), strict=True))
    others = iter([place for place in range(x.rank) if place not in moved.values()])
    return free(x.view(x.shape[moved[at] if at in moved else next(others)] for at in range(x.rank)))


@rule("aten.expand", "aten.expand_as", "aten.broadcast_to", "aten._sparse_broadcast_to")
def expand(x: TensorType, size: Sequence[Dim] | TensorType) -> Estimate:
    """A view that repeats elements without storing them; reading the result reads the operand once."""
    return free(expanded(x, shape_of(size)))


@rule("aten.broadcast_tensors")
def broadcast_tensors(tensors: Sequence[TensorType]) -> Estimate:
    """Every tensor repeated to the shape they share."""
    shape = broadcast(*(x.shape for x in tensors))
    return free(*(expanded(x, shape) for x in tensors))


@rule("aten.meshgrid")
def meshgrid(tensors: Sequence[TensorType], *, indexing: str = "ij") -> Estimate:
    """Every vector repeated along the axes of the others."""
    places = list(range(len(tensors)))
    if indexing == "xy" and len(places) > 1:
        places[:2] = [1, 0]
    shape, ones = [tensors[place].numel for place in places], (1,) * len(places)
    pairs = zip(places, tensors, strict=True)
    return free(*(expanded(x.view(replaced(ones, place, x.numel)), shape) for place, x in pairs))


@rule("aten.as_strided", "aten.as_strided_", "prims.as_strided")
def as_strided(x: TensorType, size: Sequence[Dim], stride: Sequence[Dim]) -> Estimate:
    """A view of no more elements than lie from its first to its last, and than it has places along axes that step."""
    require(len(size) == len(stride), f"{len(size)} sizes with {len(stride)} strides")
    span = total((each - 1) * step for each, step in zip(size, stride, strict=True)) + 1
    places = prod(each for each, step in zip(size, stride, strict=True) if step != 0)
    return free(shapes.overlapping(replace(x, shape=(dim_min(span, places),), stored=None), size))


@rule("prims.broadcast_in_dim")
def broadcast_in_dim(a: TensorType, shape: Sequence[Dim]) -> Estimate:
    """A view that repeats elements without storing them."""
    out, stored = a.like(shape), a.numel if a.stored is None else a.stored
    return free(out if same(stored, out.numel) else replace(out, stored=stored))


@rule("prims.split_dim")
def split_dim(a: TensorType, dim: int, outer_length: Dim) -> Estimate:
    """A view with one axis split in two."""
    return free(a.view(replaced(a.shape, dim, outer_length, floor_div(a.shape[dim], outer_length))))


@rule("aten.unfold")
def unfold(x: TensorType, dim: int, size: Dim, step: Dim) -> Estimate:
    """Every window of an axis, the positions inside a window as a last axis."""
    if x.rank == 0:
        return free(shapes.overlapping(x, (size,)))
    place = axis_of(dim, x.rank)
    length = x.shape[place]
    require(not at_least(size, length + 1), f"a window of {size} does not fit {length} positions")
    windows = floor_div(x.shape[place] - size, step) + 1
    return free(shapes.overlapping(x, (*replaced(x.shape, place, windows), size)))


def at_least_1d(x: TensorType) -> TensorType:
    """A number becomes a vector of one."""
    return x if x.rank else same_elements(x, (1,))


def at_least_2d(x: TensorType) -> TensorType:
    """A number or vector becomes a matrix of one row."""
    return x if x.rank > 1 else x.view((1, *at_least_1d(x).shape))


def at_least_3d(x: TensorType) -> TensorType:
    """A matrix gets a last axis of one, a vector lies in the middle of three axes."""
    return x if x.rank > 2 else x.view((*at_least_2d(x).shape, 1))


def of_rank(
    tensors: TensorType | Sequence[TensorType], *, raised: Callable[[TensorType], TensorType]
) -> Estimate:
    """As many axes as the name says, or more."""
    return free(*map(raised, shapes.tensors_of((tensors,) if isinstance(tensors, TensorType) else tensors)))


for _rank, _raised in enumerate((at_least_1d, at_least_2d, at_least_3d), start=1):
    rule(f"aten.atleast_{_rank}d").derived(of_rank, raised=_raised)


@rule("aten.unflatten_dense_tensors")
def unflatten_dense_tensors(flat: TensorType, tensors: Sequence[TensorType]) -> Estimate:
    """Views of one vector as many tensors."""
    return free(*(flat.view(x.shape) for x in tensors))


@backward("aten.expand expand_copy expand_as broadcast_to unfold as_strided")
def repeat_backward(call: ForwardCall) -> Estimate:
    """Sums the gradients of the repeats of each element; no work if nothing is repeated."""
    x: TensorType = call["x"]
    if same(call.out.numel, x.numel):
        return free(x.like())
    return Estimate((x.like(),), vector_flops=call.out.numel, reads=(call.out.like(),))


@backward("aten.broadcast_tensors", "aten.meshgrid")
def repeats_backward(call: ForwardCall) -> Estimate:
    """Sums the gradients of the repeats of each element, for the tensors that want a gradient."""
    outs, tensors = shapes.tensors_of(call.estimate.out), shapes.tensors_of(call["tensors"])
    wanted = [(x.like(), out.like()) for out, x in zip(outs, tensors, strict=True) if x.requires_grad]
    summed = [(x, grad) for x, grad in wanted if not same(grad.numel, x.numel)]
    reads, writes = tuple(grad for _, grad in summed), tuple(x for x, _ in summed)
    work = total(grad.numel for grad in reads)
    return Estimate(tuple(x for x, _ in wanted), vector_flops=work, reads=reads, writes=writes)
