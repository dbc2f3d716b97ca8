"""Interval arithmetic: bounds that hold for every value of the sizes, always true but not always tightest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from graphflops.dims.functions import COMPARISONS, NEVER_NEGATIVE
from graphflops.dims.terms import is_real
from graphflops.errors import DimError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.dims.atoms import Atom
    from graphflops.dims.expr import Dim, Expr

Range: TypeAlias = "tuple[int | None, int | None]"  # None is unbounded
Interval: TypeAlias = "tuple[int | float, int | float]"  # floats are only the two infinities


def expr_interval(dim: Expr, ranges: Mapping[str, Range]) -> Interval:
    """The interval of an expression whose sizes lie in the ranges; a size that has none is at least 0."""
    return _Intervals(ranges).of_expr(dim)


class _Intervals:
    """One set of ranges, with the intervals found under it so far."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self.ranges = ranges
        self.known: dict[Atom, Interval] = {}

    def of_dim(self, dim: Dim) -> Interval:
        if isinstance(dim, int):
            return dim, dim
        return self.of_expr(dim) if self.ranges else dim.interval()

    def of_expr(self, dim: Expr) -> Interval:
        low, high = self.of_sum(dim)
        scale = 1
        for monomial in dim.terms:
            for atom in set(monomial):
                if atom.divisor:
                    scale = math.lcm(scale, atom.divisor ** monomial.count(atom))
        if scale == 1 or is_real(dim):
            return low, high
        # -t is kept as t - (s*s + s) for an even division t; multiplied out it has its tight bounds back.
        try:
            scaled = dim * scale
        except DimError:  # too large multiplied out
            return low, high
        first, last = (scaled, scaled) if isinstance(scaled, int) else self.of_sum(scaled)
        low = max(low, first if first == -math.inf else -(-first // scale))
        high = min(high, last if last == math.inf else last // scale)
        return low, high

    def of_sum(self, dim: Expr) -> Interval:
        low: int | float = 0
        high: int | float = 0
        for monomial, coefficient in dim.terms.items():
            span: Interval = (coefficient, coefficient)
            for atom in dict.fromkeys(monomial):
                span = _times(span, _power(self.of_atom(atom), monomial.count(atom)))
            low, high = _plus(low, span[0]), _plus(high, span[1])
        return low, high

    def of_atom(self, atom: Atom) -> Interval:
        found = self.known.get(atom)
        if found is None:
            found = self.known[atom] = self._of_atom(atom)
        return found

    def _of_atom(self, atom: Atom) -> Interval:
        kind = atom.kind
        if kind == "symbol":
            low, high = self.ranges.get(atom.name, (0, None))
            return -math.inf if low is None else low, math.inf if high is None else high
        if kind in COMPARISONS:
            return 0, 1
        spans = [self.of_dim(arg) for arg in atom.args]
        if kind == "//":
            return _floor_div(spans[0], spans[1], real=is_real(atom.args[1]))
        if kind == "%":
            return _mod(spans[0], spans[1], real=atom.real)
        if kind == "min":
            return min(low for low, _ in spans), min(high for _, high in spans)
        if kind == "max":
            return max(low for low, _ in spans), max(high for _, high in spans)
        if kind == "where":
            return min(spans[1][0], spans[2][0]), max(spans[1][1], spans[2][1])
        if atom.name == "sqrt" or (atom.name in NEVER_NEGATIVE and all(low >= 0 for low, _ in spans)):
            return 0, math.inf
        return -math.inf, math.inf


def _plus(x: int | float, y: int | float) -> int | float:
    if x in (math.inf, -math.inf):
        return x  # Python would turn y into a float, which a large integer does not fit
    return y if y in (math.inf, -math.inf) else x + y


def _scale(x: int | float, y: int | float) -> int | float:
    if x == 0 or y == 0:
        return 0  # an endpoint at infinity is only approached, so 0 times it is 0
    if x in (math.inf, -math.inf) or y in (math.inf, -math.inf):
        return math.inf if (x > 0) == (y > 0) else -math.inf
    return x * y


def _times(a: Interval, b: Interval) -> Interval:
    corners = [_scale(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _power(span: Interval, exponent: int) -> Interval:
    result = span
    for _ in range(exponent - 1):
        result = _times(result, span)
    if exponent % 2 == 0:
        return max(result[0], 0), result[1]
    return result


def _floor_div(a: Interval, b: Interval, *, real: bool) -> Interval:
    if real:
        return -math.inf, math.inf
    if b[1] <= 0:
        a, b = (-a[1], -a[0]), (-b[1], -b[0])
    if b[0] < 0:  # either sign: |a // b| never exceeds |a|
        reach = max(abs(a[0]), abs(a[1]))
        return -reach, reach
    smallest, largest = max(b[0], 1), max(b[1], 1)  # a divisor is nonzero
    if a[0] == -math.inf:
        low = -math.inf
    elif a[0] < 0:
        low = a[0] // smallest
    else:
        low = 0 if largest == math.inf or a[0] == math.inf else a[0] // largest
    if a[1] == math.inf:
        return low, math.inf
    if a[1] >= 0:
        return low, 0 if smallest == math.inf else a[1] // smallest
    return low, -1 if largest == math.inf else a[1] // largest


def _mod(a: Interval, b: Interval, *, real: bool) -> Interval:
    if b[0] < 0:
        return (-math.inf, math.inf) if b[1] > 0 else (b[0] + (0 if real else 1), 0)
    high = b[1] if real else max(b[1] - 1, 0)
    return 0, min(high, a[1]) if a[0] >= 0 else high
