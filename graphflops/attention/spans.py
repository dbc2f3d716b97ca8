"""Masks over whole rectangles of pairs: the range of what a value can be in each, where all sizes are numbers.

An index is a span of places. What is not told so is asked about pair by pair (`grids`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.attention.grids import POINTWISE, Grids, clamping, groups, stepped
from graphflops.attention.layouts import LAYOUTS
from graphflops.attention.masks import FILLED, SAME, above, filling
from graphflops.attention.ranges import Range, cast, chosen, extremes, fitted, ranged
from graphflops.attention.roles import base_of
from graphflops.attention.walk import Indices, Walk
from graphflops.dims import Expr
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.dims import Dim
    from graphflops.tensor import DType, TensorType
    from graphflops.view import Call

_MOST = 1000  # calls looked at for one set of rectangles
_OPEN = float("inf")


class Span(NamedTuple):
    """The first and the last place of an axis, as arrays: one of each for a rectangle."""

    low: Any
    high: Any

    def __add__(self, other: Any) -> Span:
        if isinstance(other, Span):
            return Span(self.low + other.low, self.high + other.high)
        return Span(self.low + other, self.high + other)

    def __mul__(self, factor: Any) -> Span:
        low, high = self.low * factor, self.high * factor
        return Span(low, high) if factor >= 0 else Span(high, low)


class Spans(Walk[Range]):
    """The values of a program throughout rectangles of pairs."""

    unknown = Range(-_OPEN, _OPEN)
    uncertain = Range(0.0, 1.0)

    def __init__(self, grids: Grids) -> None:
        import numpy as np

        super().__init__(grids.view, grids.writes, _HANDLERS)
        self.grids = grids
        self.zero = Span(np.int64(0), np.int64(0))

    def look(self, name: str, at: Indices, before: int) -> Range:
        """The value of that name, as a call finds it, at spans that its axes of size one broadcast to."""
        self.left, self.before = _MOST, before
        return self.operand(Ref(name), at)

    def literal(self, number: Any) -> Range:
        """A number; a size that is open is none."""
        return self.unknown if isinstance(number, Expr) else Range(float(number), float(number))

    def as_index(self, value: Range) -> Any:
        """Whole numbers between two that are known."""
        import numpy as np

        low, high = np.asarray(value.low), np.asarray(value.high)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        return Span(low.astype(np.int64), high.astype(np.int64))

    def between(self, index: Any, begin: Dim, end: Dim | None) -> Range:
        """Two comparisons."""
        if isinstance(begin, Expr) or isinstance(end, Expr):
            return self.uncertain
        always, ever = index.low >= begin, index.high >= begin
        if end is not None:
            always, ever = always & (index.high < end), ever & (index.low < end)
        return Range(always * 1.0, ever * 1.0)

    def unflattened(self, at: Indices, shape: Sequence[Dim], inner: Sequence[Dim]) -> Indices | None:
        """Axes that stay as they are; what merges or splits is not followed."""
        found: list[Any] = []
        for given, made in groups(shape, inner):
            if len(given) == len(made) == 1:
                found.append(at[given[0]])
            elif all(shape[axis] == 1 for axis in given):
                found += [self.zero] * len(made)
            else:
                return None
        return tuple(found)

    def chosen(self, condition: Range, yes: Range, no: Range) -> Range:
        """`yes` where the condition holds, else `no`."""
        return chosen(condition, yes, no)

    def held(self, name: str, typed: TensorType, at: Indices) -> Range | None:
        """Of a tensor whose contents are known, or are stored in the file."""
        if typed.uniform is not None:
            return fitted(self.literal(typed.uniform), typed.dtype)
        array = self.grids.array(name, typed)
        return None if array is None else self.picked(array, at)

    def handled(self, call: Call, at: Indices) -> Range | None:
        """The first result of a call; of one that there is no way here to follow, from all of the tensor it makes."""
        if base_of(call) in self.handlers:
            return super().handled(call, at)
        array = self.grids.whole_of(call.result, self.before)
        return None if array is None else self.picked(array, at)

    def picked(self, array: Any, at: Indices) -> Range:
        """The least and the greatest element in spans; anything where one lies outside."""
        import numpy as np

        if 0 in array.shape:
            return self.unknown
        outside: Any = np.False_
        left: list[Span] = []
        for index, size in zip(at, array.shape, strict=True):
            axis = len(left)
            span = Span(np.int64(0), np.int64(size - 1)) if index is None else index
            if np.ndim(span.low) == 0 and span.low == span.high and 0 <= span.low < size:
                array = np.take(array, int(span.low), axis)
                continue
            outside = outside | (span.low < 0) | (span.high >= size)
            left.append(Span(np.clip(span.low, 0, size - 1), np.clip(span.high, 0, size - 1)))
        if not left:
            found = Range(np.float64(array), np.float64(array))
        elif all(np.all(span.low == span.high) for span in left):
            value = array[tuple(span.low for span in left)].astype(np.float64)
            found = Range(value, value)
        elif len(left) == 1:
            found = extremes(array, *np.broadcast_arrays(*left[0]))
        else:
            found = Range(np.float64(array.min()), np.float64(array.max()))
        return Range(np.where(outside, -_OPEN, found.low), np.where(outside, _OPEN, found.high))

    def dtype(self, argument: Any) -> DType | None:
        """Element type of an operand; None for a number."""
        typed = self.view.types.get(argument.name) if isinstance(argument, Ref) else None
        return None if typed is None else typed.dtype


def _same(walk: Spans, call: Call, at: Indices) -> Range:
    result = walk.view.types[call.result].dtype
    return fitted(cast(walk.operand(call.given[0], at), walk.dtype(call.given[0]), result), result)


def _range(walk: Spans, call: Call, at: Indices) -> Range | None:
    start, step = stepped(walk, call)
    if at[0] is None or not isinstance(start, (int, float)) or not isinstance(step, (int, float)):
        return None
    return fitted(Range(*(at[0] * step + start)), walk.view.types[call.result].dtype)


def _filled(walk: Spans, call: Call, at: Indices) -> Range:
    return fitted(walk.operand(filling(call), ()), walk.view.types[call.result].dtype)


def _second(walk: Spans, call: Call, at: Indices) -> Range:
    return walk.operand(call.given[1], at)


def _choice(walk: Spans, call: Call, at: Indices) -> Range:
    first, second, third = walk.operands(call, at, 3)
    order = (second, third, first) if base_of(call) == "masked_fill" else (first, second, third)
    return fitted(chosen(*order), walk.view.types[call.result].dtype)


def _triangle(upper: bool | None) -> Callable[[Spans, Call, Indices], Range | None]:
    def handler(walk: Spans, call: Call, at: Indices) -> Range | None:
        over = above(walk, call, at, upper)
        if over is None:
            return None
        inside = Range((over.low >= 0) * 1.0, (over.high >= 0) * 1.0)
        return chosen(inside, walk.operand(call.given[0], at), walk.literal(0))

    return handler


def _pointwise(word: str) -> Callable[[Spans, Call, Indices], Range | None]:
    def handler(walk: Spans, call: Call, at: Indices) -> Range | None:
        if base_of(call) in ("Min", "Max") and len(call.given) != 2:
            return None
        if word == "remainder" and call.attribute("fmod", 0):
            return None
        arguments = clamping(call) if word == "clamp" else call.given[:2]
        values = [None if argument is None else walk.operand(argument, at) for argument in arguments]
        dtypes = [walk.dtype(argument) for argument in arguments]
        return ranged(call.node, word, values, dtypes, walk.view.types[call.result].dtype)

    return handler


_TABLE: dict[Callable[[Any, Call, Indices], Any], str] = {
    **LAYOUTS,
    **{_pointwise(word): names for word, names in POINTWISE.items()},
    _same: SAME,
    _range: "arange Range",
    _filled: FILLED,
    _second: "fill copy",
    _choice: "where Where masked_fill",
    _triangle(True): "triu",
    _triangle(False): "tril",
    _triangle(None): "Trilu",
}
_HANDLERS = {name: handler for handler, names in _TABLE.items() for name in names.split()}
