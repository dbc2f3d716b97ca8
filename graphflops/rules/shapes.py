"""Shape arithmetic: -1 sizes, replaced axes, slice lengths, expanded tensors, contents of reshaped tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import (
    Dim,
    Expr,
    at_least,
    ceil_div,
    compare,
    differ,
    dim_min,
    floor_div,
    mod,
    prod,
    same,
    where,
)
from graphflops.rules.contents import few
from graphflops.rules.registry import require
from graphflops.tensor import Contents, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from graphflops.cost import Estimate

Shape = tuple[Dim, ...]
END = 2**31  # a slice bound past any size means "to the end"; exporters write 2**63 - 1


def shown(shape: Iterable[Dim]) -> str:
    """A shape as messages print it."""
    return f"[{', '.join(map(str, shape))}]"


def resolved(x: TensorType, size: Sequence[Dim]) -> Shape:
    """The requested shape with a -1 resolved; raises ShapeError if the number of elements provably differs."""
    holes = [place for place, wanted in enumerate(size) if isinstance(wanted, int) and wanted == -1]
    require(len(holes) <= 1, f"only one size can be -1 in {shown(size)}")
    known = prod(wanted for place, wanted in enumerate(size) if place not in holes)
    mismatch = f"{shown(x.shape)} holds {x.numel} elements, which do not fit {shown(size)}"
    if not holes:
        require(not differ(known, x.numel), mismatch)
        return tuple(size)
    require(known != 0, mismatch)
    rest = mod(x.numel, known)
    require(isinstance(rest, Expr) or rest == 0, mismatch)
    return (*size[: holes[0]], floor_div(x.numel, known), *size[holes[0] + 1 :])


def replaced(shape: Shape, place: int, *sizes: Dim) -> Shape:
    """The shape with the axis at `place` replaced by any number of sizes."""
    return (*shape[:place], *sizes, *shape[place + 1 :])


def kept_by_slice(size: Dim, start: Dim | None, end: Dim | None, step: Dim = 1) -> Dim:
    """How many positions a slice keeps.

    A bound is taken to lie within a size that is not known, but a literal end past 1 may lie behind it.
    """
    first = 0 if start is None else _bound(size, start)
    last = size if end is None else _bound(size, end)
    if isinstance(last, int) and last > 1 and isinstance(size, Expr):
        last = dim_min(last, size)
    length = last - first
    return 0 if at_least(0, length) else ceil_div(length, step)


def _bound(size: Dim, at: Dim) -> Dim:
    """A slice's bound counted from the front and brought inside the size where that is decided."""
    if isinstance(at, int) and at >= END:
        return size
    counted = size + at if at_least(-1, at) or (isinstance(at, Expr) and at_least(0, at)) else at
    if isinstance(at, Expr) and _may_fall_below(at):
        counted = dim_min(where(compare("<", at, 0), size + at, at), size)
    if at_least(counted, size):
        return size
    return 0 if at_least(0, counted) else counted


def _may_fall_below(at: Expr) -> bool:
    """Whether a bound is a number less sizes, so that nothing but their values tells its sign: `8 - min(16, s)`."""
    falls = all(factor < 0 for atoms, factor in at.terms.items() if atoms)
    return falls and not at_least(at, 0) and not at_least(0, at)


def expanded(x: TensorType, shape: Sequence[Dim]) -> TensorType:
    """The tensor repeated to a larger shape without storing the repeats."""
    missing = len(shape) - x.rank
    require(missing >= 0, f"{shown(x.shape)} has more axes than {shown(shape)}")
    own = (*(1,) * missing, *x.shape)
    sizes = tuple(
        mine if isinstance(size, int) and size == -1 else size for mine, size in zip(own, shape, strict=True)
    )
    fits = all(not (differ(mine, 1) and differ(mine, size)) for mine, size in zip(own, sizes, strict=True))
    require(fits, f"{shown(x.shape)} does not expand to {shown(shape)}")
    out = x.like(sizes)
    stored = x.numel if x.stored is None else x.stored
    return out if same(stored, out.numel) else replace(out, stored=stored)


def same_elements(x: TensorType, shape: Iterable[Dim]) -> TensorType:
    """The tensor with another shape in the same row-major order, with its known contents."""
    out = x.view(shape)
    if x.value is None or few(out.shape) is None:
        return out
    return replace(out, value=nested(flat(x.value), out.shape))


def flat(contents: Contents) -> Iterator[Dim | float]:
    """Nested contents flattened in row-major order."""
    if isinstance(contents, tuple):
        for part in contents:
            yield from flat(part)
    else:
        yield contents


def nested(elements: Iterator[Dim | float], shape: Shape) -> Contents:
    """The next elements as nested contents of a concrete shape."""
    if not shape:
        return next(elements)
    return tuple(nested(elements, shape[1:]) for _ in range(shape[0]))  # type: ignore[arg-type]


def overlapping(x: TensorType, shape: Sequence[Dim]) -> TensorType:
    """A view that may show elements more than once; it never counts more memory than its base."""
    whole = replace(x, stored=x.numel) if x.stored is None else x
    seen = whole.view(shape)
    return seen if seen.stored is None or not same(seen.stored, seen.numel) else replace(seen, stored=None)


def tensors_of(values: Iterable[object]) -> tuple[TensorType, ...]:
    """The tensors among the values."""
    return tuple(value for value in values if isinstance(value, TensorType))


def only_result(estimate: Estimate) -> TensorType:
    """The single tensor that an estimate returns."""
    (out,) = estimate.out
    assert isinstance(out, TensorType)
    return out
