"""Shape arithmetic, and the known contents of small integer tensors, such as shapes that a program computes with.

Axis numbers are as in ATen: negative ones count from the end, and a 0-d tensor has the axis 0. Where the sign of a size is
unknown, a formula is a choice between both cases. Sizes of inputs are assumed to be at least 1: the last row of `N` rows is
one row, not `min(1, N)` rows. A size that depends on data may be 0.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from graphflops import dims
from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, is_data_dependent
from graphflops.dims import Dim, Expr
from graphflops.errors import DimError
from graphflops.rules.registry import require
from graphflops.tensor import Contents, DType, TensorType, flat

Fold = Callable[..., Dim]
Shape = tuple[Dim, ...]
Tensors = tuple[TensorType, ...]
Axes = int | tuple[int, ...] | None

_LARGEST = (2**31 - 1, 2**63 - 1)
_BEYOND = 2**31 - 1  # past any length; exporters write the limits of int32 and int64


@lru_cache(maxsize=16_384)
def is_at_least(a: Dim, b: Dim) -> bool:
    """Whether `a >= b` is provable where the sizes of inputs are at least 1."""
    difference = a - b
    if isinstance(difference, int):
        return difference >= 0
    named = [name for name in difference.symbols if not is_data_dependent(name)]
    low, _ = difference.bounds(dict.fromkeys(named, (1, None)))
    return low is not None and low >= 0


def if_negative(number: Dim, then: Dim, otherwise: Dim) -> Dim:
    """The first choice where the number is below 0, else the second; a formula with both if its sign is unknown."""
    if is_at_least(number, 0):
        return otherwise
    return then if is_at_least(-1, number) else dims.where(dims.compare("<", number, 0), then, otherwise)


def larger(a: Dim, b: Dim) -> Dim:
    """The larger of two sizes."""
    if is_at_least(a, b):
        return a
    return b if is_at_least(b, a) else dims.dim_max(a, b)


def smaller(a: Dim, b: Dim) -> Dim:
    """The smaller of two sizes."""
    if is_at_least(a, b):
        return b
    return a if is_at_least(b, a) else dims.dim_min(a, b)


def divided(a: Dim, b: Dim) -> Dim:
    """The integer quotient, rounded towards zero."""
    if is_at_least(b, 0):  # a divisor is not 0, so it is positive here
        return if_negative(a, -dims.floor_div(-a, b), dims.floor_div(a, b))
    if is_at_least(0, b):
        return divided(-a, -b)
    return if_negative(a * b, -dims.floor_div(-a, b), dims.floor_div(a, b))


def remainder_of_dividend(a: Dim, b: Dim) -> Dim:
    """The remainder of a division rounded towards zero: it has the dividend's sign, whatever the divisor's sign."""
    divisor = if_negative(b, -b, b)
    return if_negative(a, -dims.mod(-a, divisor), dims.mod(a, divisor))


def kept_by_onnx_slice(length: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """How many positions of an axis a slice keeps: negative bounds count from its end, and both are clamped to it.

    A computed end lies within an axis of fixed length, which is a table of positions made long enough. A slice that steps
    backwards to the largest int32 or int64 goes to the front, as onnxruntime runs it.
    """
    is_table = isinstance(length, int) and isinstance(end, Expr) and step > 0
    if is_table and is_at_least(start, 0) and is_at_least(end, start):
        dims.meet(dims.compare(">", end, length), 0)
        return -dims.floor_div(start - end, step)
    if step > 0:
        last = clamped(end, length, 0, length)
        # how many positions lie at or behind the start of a slice
        if isinstance(start, int) and abs(start) >= _BEYOND:
            behind = length if start < 0 else 0
        else:
            counted = if_negative(start, -start, length - start)
            behind = larger(smaller(counted, length), 0)
        span = behind if last is length or last == length else last - (length - behind)
    else:
        last = -1 if end in _LARGEST else clamped(end, length, -1, length - 1)
        span = clamped(start, length, 0, length - 1) - last
    kept = larger(-dims.floor_div(-span, abs(step)), 0)
    is_filled = 1 if step > 0 or is_at_least(length, 1) else dims.compare(">", length, 0)
    return dims.where(is_filled, kept, 0)


def clamped(bound: Dim, length: Dim, lowest: Dim, highest: Dim) -> Dim:
    """A slice's bound counted from the front and brought into a range."""
    if isinstance(bound, int) and abs(bound) >= _BEYOND:
        return highest if bound > 0 else lowest
    return larger(smaller(if_negative(bound, bound + length, bound), highest), lowest)


MAX_ELEMENTS = 1024  # a larger tensor is data, not a shape
_WIDE = 32  # bits of a signed type that every size fits into


def few(shape: Sequence[Dim], most: int = MAX_ELEMENTS) -> tuple[int, ...] | None:
    """The sizes if all are numbers and they have few elements, where an axis of 0 counts as 1; else None."""
    sizes = tuple([size for size in shape if isinstance(size, int)])
    return sizes if len(sizes) == len(shape) and math.prod(max(size, 1) for size in sizes) <= most else None


def in_type(number: Dim, dtype: DType) -> Dim | None:
    """The number as an integer type holds it: without the upper bits that it has no room for.

    A formula is taken to fit into a signed type of 32 bits or more; None if it may not fit into a narrower one.
    """
    lowest = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    numbers = 1 << dtype.bits
    if isinstance(number, int):
        return (number - lowest) % numbers + lowest
    if lowest < 0 and dtype.bits >= _WIDE:
        return number if max(map(abs, number.terms.values())) < -lowest else None
    return number if dims.at_least(number, lowest) and dims.at_least(lowest + numbers - 1, number) else None


def held(x: TensorType) -> TensorType:
    """The tensor with its contents as its integer type holds them; without contents if these are many, or not known."""
    if x.value is None or x.dtype.kind not in ("int", "uint"):
        return x
    contents = None if few(x.shape) is None else _held(x.value, x.dtype)
    return x if contents == x.value else replace(x, value=contents)


def _held(contents: Contents, dtype: DType) -> Contents | None:
    if isinstance(contents, tuple):
        parts = [_held(part, dtype) for part in contents]
        known = tuple([part for part in parts if part is not None])
        return known if len(known) == len(parts) else None
    return in_type(contents, dtype) if isinstance(contents, (int, Expr)) else contents


def combine(fold: Fold, shape: Sequence[Dim], operands: Sequence[Value]) -> Contents | None:
    """Contents of an elementwise result of this shape, or None if an operand's contents are not known."""
    known = [(x.rank, x.value) if isinstance(x, TensorType) else (0, x) for x in operands]
    if few(shape) is None or not all(_is_whole(value) for _, value in known):
        return None
    try:
        return aligned(fold, shape, known)  # type: ignore[arg-type]
    except (ArithmeticError, DimError):  # a division by zero that the program may never execute
        return None


def _is_whole(value: object) -> bool:
    return all(map(_is_whole, value)) if isinstance(value, tuple) else isinstance(value, (int, Expr))


def aligned(
    fold: Callable[..., Dim | float], shape: Sequence[Dim], operands: list[tuple[int, Contents]]
) -> Contents:
    """Applies a function elementwise to known contents, broadcast to a concrete shape; operands are (rank, contents)."""
    if not shape:
        return fold(*(value for _, value in operands))
    rows = []
    for place in range(shape[0]):  # type: ignore[arg-type]
        row: list[tuple[int, Contents]] = []
        for rank, value in operands:
            if rank < len(shape):
                row.append((rank, value))
            else:
                assert isinstance(value, tuple)
                row.append((rank - 1, value[place if len(value) > 1 else 0]))
        rows.append(aligned(fold, shape[1:], row))
    return tuple(rows)


def axis_of(dim: int, rank: int) -> int:
    """The axis counted from the front; raises ShapeError if a tensor of that rank has no such axis."""
    span = max(rank, 1)
    require(isinstance(dim, int), f"{dim!r} is not an axis")
    require(-span <= dim < span, f"axis {dim} does not exist in a tensor of {rank} axes")
    return dim % span


def axes(named: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Each axis counted from the front, in the given order; None means all axes. None may be named twice."""
    if named is None:
        return tuple(range(rank))
    found = tuple(axis_of(dim, rank) for dim in ((named,) if isinstance(named, int) else named))
    require(len({*found}) == len(found), f"{shown(found)} names an axis twice")
    return found


def permutation(named: Sequence[int], x: TensorType) -> tuple[int, ...]:
    """All axes of a tensor in the given order, each counted from the front."""
    found = axes(named, x.rank)
    require(len(found) == x.rank, f"{shown(named)} is not a permutation of the axes of {shown(x.shape)}")
    return found


def reduced(shape: Sequence[Dim], named: int | Sequence[int] | None, keepdim: bool = False) -> Shape:
    """The shape after reducing axes; with `keepdim` a reduced axis has size 1; no named axes means all axes."""
    gone = frozenset(axes(None if named == () else named, len(shape)))
    if keepdim:
        return tuple(1 if place in gone else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in gone)


END = 2**31  # a slice bound past any size means "to the end"; exporters write 2**63 - 1


def shown(shape: Iterable[Dim]) -> str:
    """A shape as messages print it."""
    return f"[{', '.join(map(str, shape))}]"


def resolved(x: TensorType, size: Sequence[Dim]) -> Shape:
    """The requested shape with a -1 resolved; raises ShapeError if the number of elements provably differs."""
    holes = [place for place, wanted in enumerate(size) if isinstance(wanted, int) and wanted < 0]
    fits = [size[place] for place in holes] in ([], [-1])
    require(fits, f"only one size can be -1, and none less, in {shown(size)}")
    known = dims.prod(wanted for place, wanted in enumerate(size) if place not in holes)
    mismatch = f"{shown(x.shape)} holds {x.numel} elements, which do not fit {shown(size)}"
    if not holes:
        dims.meet(known, x.numel, mismatch)
        return tuple(size)
    require(known != 0, mismatch)
    dims.meet(dims.mod(x.numel, known), 0, mismatch)
    return (*size[: holes[0]], dims.floor_div(x.numel, known), *size[holes[0] + 1 :])


def replaced(shape: Shape, place: int, *sizes: Dim) -> Shape:
    """The shape with the axis at `place` replaced by any number of sizes."""
    return (*shape[:place], *sizes, *shape[place + 1 :])


def kept_by_slice(size: Dim, start: Dim | None, end: Dim | None, step: Dim = 1) -> Dim:
    """How many positions a slice keeps.

    An end above 1 may exceed an unknown size, so it is clamped. A start is assumed to be within the size, unless it is a
    literal below -1: the last 4,096 keys of a shorter cache are all of its keys.
    """
    first = 0 if start is None else _bound(size, start)
    last = size if end is None else _bound(size, end)
    if isinstance(last, Expr) or (last > 1 and isinstance(size, Expr)):
        last = dims.dim_min(last, size)
    length = last - first
    if isinstance(start, int) and start < -1 and isinstance(first, Expr):
        length = dims.dim_min(length, last)
    return 0 if dims.at_least(0, length) else dims.ceil_div(length, step)


def _bound(size: Dim, at: Dim) -> Dim:
    """A slice's bound counted from the front and brought inside the size where that is decided."""
    if isinstance(at, int) and at >= END:
        return size
    counted = size + at if dims.at_least(-1, at) or (isinstance(at, Expr) and dims.at_least(0, at)) else at
    # The sign of a number minus sizes, as in `8 - min(16, s)`, depends on their values.
    falls = isinstance(at, Expr) and all(factor < 0 for atoms, factor in at.terms.items() if atoms)
    if falls and not dims.at_least(at, 0) and not dims.at_least(0, at):
        counted = dims.dim_min(dims.where(dims.compare("<", at, 0), size + at, at), size)
    if dims.at_least(counted, size):
        return size
    return 0 if dims.at_least(0, counted) else counted


def expanded(x: TensorType, shape: Sequence[Dim]) -> TensorType:
    """The tensor repeated to a larger shape without storing the repeats."""
    missing = len(shape) - x.rank
    require(missing >= 0, f"{shown(x.shape)} has more axes than {shown(shape)}")
    own = (*(1,) * missing, *x.shape)
    pairs = zip(own, shape, strict=True)
    sizes = tuple(mine if isinstance(size, int) and size == -1 else size for mine, size in pairs)
    pairs = zip(own, sizes, strict=True)
    fits = not any(dims.differ(mine, 1) and dims.differ(mine, size) for mine, size in pairs)
    require(fits, f"{shown(x.shape)} does not expand to {shown(shape)}")
    dims.broadcast(own, sizes)  # notes which sizes must be equal
    out = x.like(sizes)
    stored = x.numel if x.stored is None else x.stored
    return out if dims.same(stored, out.numel) else replace(out, stored=stored)


def same_elements(x: TensorType, shape: Iterable[Dim]) -> TensorType:
    """The tensor with another shape in the same row-major order, with its known contents."""
    out = x.view(shape)
    if x.value is None or few(out.shape) is None:
        return out
    return replace(out, value=nested(flat((x.value,)), out.shape))


def nested(elements: Iterator[Dim | float], shape: Shape) -> Contents:
    """The next elements as nested contents of a concrete shape."""
    if not shape:
        return next(elements)
    return tuple(nested(elements, shape[1:]) for _ in range(shape[0]))  # type: ignore[arg-type]


def overlapping(x: TensorType, shape: Sequence[Dim]) -> TensorType:
    """A view that may show elements more than once; it never counts more memory than its base."""
    whole = replace(x, stored=x.numel) if x.stored is None else x
    seen = whole.view(shape)
    is_all = seen.stored is not None and dims.same(seen.stored, seen.numel)
    return replace(seen, stored=None) if is_all else seen


def tensors_of(values: Iterable[object]) -> tuple[TensorType, ...]:
    """The tensors among the values."""
    return tuple(value for value in values if isinstance(value, TensorType))


def have_shape(shape: Shape, *tensors: TensorType | None) -> bool:
    """Whether those of the tensors that are given may have the shape."""
    given = [x.shape for x in tensors if x is not None]
    return all(len(sizes) == len(shape) and not any(map(dims.differ, sizes, shape)) for sizes in given)


def where_wanted(
    tensors: Iterable[TensorType | None], wants: Iterable[bool]
) -> tuple[TensorType | None, ...]:
    """A new tensor like each that is wanted, None for the others."""
    return tuple(x.like() if x is not None and want else None for x, want in zip(tensors, wants, strict=True))


def only_result(estimate: Estimate) -> TensorType:
    """The single tensor that an estimate returns."""
    (out,) = estimate.out
    assert isinstance(out, TensorType)
    return out


def results(*places: int) -> Callable[[Estimate], Estimate]:
    """The estimate with only some of its results."""
    return lambda estimate: replace(estimate, out=tuple(estimate.out[place] for place in places))


def doubled_pairs(
    rows: Dim, keys: Dim, *, left: Dim | None = None, right: Dim | None = None, offset: Dim = 0
) -> Dim:
    """Twice the number of pairs with -left <= key - row - offset <= right; doubled, so formulas need no halves."""
    upper = 2 * rows * keys if right is None else _doubled_below(rows, keys, offset + right)
    return upper if left is None else upper - _doubled_below(rows, keys, offset - left - 1)


def _doubled_below(rows: Dim, keys: Dim, diagonal: Dim) -> Dim:
    """Twice the pairs with key - row <= diagonal: a staircase, less the parts that stick out on both sides."""
    inside = _doubled_triangle(rows + diagonal) - _doubled_triangle(diagonal)
    return inside - _doubled_triangle(rows + diagonal - keys) + _doubled_triangle(diagonal - keys)


def _doubled_triangle(side: Dim) -> Dim:
    side = dims.dim_max(side, 0)
    return side * (side + 1)


def end_to_end(tensors: Sequence[TensorType], dim: int) -> Shape:
    """The shape of tensors joined along an axis they have."""
    require(bool(tensors), "there is nothing to join")
    shape = tensors[0].shape
    require(bool(shape), "numbers have no axis to be joined along")
    place = axis_of(dim, len(shape))
    for x in tensors[1:]:
        require(x.rank == len(shape), f"{shown(shape)} and {shown(x.shape)} do not have equally many axes")
        pairs = enumerate(zip(shape, x.shape, strict=True))
        shape = tuple(a if at == place else dims.meet(a, b) for at, (a, b) in pairs)
    return replaced(shape, place, dims.total(x.shape[place] for x in tensors))
