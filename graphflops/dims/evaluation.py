"""The value of a size if every symbol has one, and its bounds if symbols have ranges."""

import math
from collections.abc import Callable, Iterable, Mapping
from operator import floordiv, mod
from typing import Any, TypeAlias

from graphflops.dims.atoms import COMPARISONS, FUNCTIONS, NEVER_NEGATIVE, Atom, Operand, is_real, terms_of
from graphflops.dims.terms import is_of_symbols, spend_terms

Range: TypeAlias = "tuple[int | None, int | None]"  # None is unbounded
Interval: TypeAlias = "tuple[int | float, int | float]"  # floats are only the two infinities

_LONGEST = 14_000  # bits; Python prints no number of more than 4300 digits
# A TypeError is of bits of a fraction, or of a factor without a value.
_NO_VALUE = (KeyError, ArithmeticError, ValueError, TypeError)
_OPERATIONS: dict[str, Callable[..., Any]] = {"//": floordiv, "%": mod, "min": min, "max": max, **COMPARISONS}


def evaluate(dim: Operand, values: Mapping[str, int]) -> int | None:
    """The integer value of the dim, rounded down, when every size has the given value. None when a size is missing, a
    divisor is zero, a function has no value there, or the value is too long to be printed.
    """
    if isinstance(dim, int):
        return dim
    try:
        value: int = math.floor(_value(dim, values, {}))
        return value if value.bit_length() <= _LONGEST else None
    except _NO_VALUE:
        return None


def evaluate_all(dims: Iterable[Operand], values: Mapping[str, int]) -> list[int | None]:
    """`evaluate` for many dims at the same values: what they have in common is evaluated once."""
    return Sums(dims).at(values)


class Sums:
    """Many dims to be evaluated at the same values: each a row of coefficients of what all of them are sums of."""

    def __init__(self, dims: Iterable[Operand]) -> None:
        places: dict[tuple[Atom, ...], int] = {(): 0}
        self.rows = [
            [(places.setdefault(monomial, len(places)), factor) for monomial, factor in terms_of(dim).items()]
            for dim in dims
        ]
        self.monomials = list(places)

    def at(self, values: Mapping[str, int]) -> list[int | None]:
        """The value of each dim; None as in `evaluate`."""
        factors: list[Any] = []
        for monomial in self.monomials:
            try:
                factors.append(_product(1, monomial, values, {}))
            except _NO_VALUE:
                factors.append(None)
        found: list[int | None] = []
        for row in self.rows:
            try:
                value: Any = 0
                for place, coefficient in row:
                    value += coefficient * factors[place]
                value = value if type(value) is int else math.floor(value)
                found.append(value if value.bit_length() <= _LONGEST else None)
            except _NO_VALUE:
                found.append(None)
        return found


def _value(dim: Operand, values: Mapping[str, int], known: dict[Atom, Any]) -> Any:
    if isinstance(dim, int):
        return dim
    result: Any = 0
    for monomial, coefficient in dim.terms.items():
        result += _product(coefficient, monomial, values, known)
    return result


def _product(
    product: Any, monomial: tuple[Atom, ...], values: Mapping[str, int], known: dict[Atom, Any]
) -> Any:
    """A number times a monomial, its floating factors last: integers are exact. known: values of atoms."""
    floating = []
    for atom in monomial:
        factor: Any
        if atom.kind == "symbol":
            factor = values[atom.name]
        else:
            if atom not in known:
                known[atom] = _atom_value(atom, values, known)
            factor = known[atom]
        if type(factor) is float:
            floating.append(factor)
        else:
            product *= factor
    return math.prod(floating, start=product)


def _atom_value(atom: Atom, values: Mapping[str, int], known: dict[Atom, Any]) -> Any:
    if atom.kind == "where":
        return _value(atom.args[1 if _value(atom.args[0], values, known) else 2], values, known)
    function = _OPERATIONS.get(atom.kind) or FUNCTIONS[atom.name]  # KeyError for a function that is not known
    return function(*[_value(arg, values, known) for arg in atom.args])


# Interval arithmetic: bounds that hold for every value of the sizes, always true but not always tightest.


def interval(dim: Operand) -> Interval:
    """The lowest and highest value of a size whose symbols are at least 0; found once for each polynomial."""
    if isinstance(dim, int):
        return dim, dim
    if dim._interval is None:
        dim._interval = Intervals({}).of_polynomial(dim)
    return dim._interval


class Intervals:
    """Intervals of sizes, given ranges by name; a size without a range is at least 0."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self.ranges = ranges
        self.known: dict[Atom, Interval] = {}

    def of_polynomial(self, dim: Operand) -> Interval:
        terms = terms_of(dim)
        spend_terms(terms)
        low: int | float = 0
        high: int | float = 0
        for monomial, coefficient in terms.items():
            if monomial and not self.ranges and is_of_symbols(monomial):
                low, high = (low, math.inf) if coefficient > 0 else (-math.inf, high)
                continue
            span: Interval = (coefficient, coefficient)
            for atom in dict.fromkeys(monomial):
                found = self.known.get(atom)
                if found is None:
                    found = self.known[atom] = self._of_atom(atom)
                span = _at_corners(_scale, span, _power(found, monomial.count(atom)))
            low, high = _plus(low, span[0]), _plus(high, span[1])
        return low, high

    def _of_atom(self, atom: Atom) -> Interval:
        kind = atom.kind
        if kind == "symbol":
            low, high = self.ranges.get(atom.name, (0, None))
            return -math.inf if low is None else low, math.inf if high is None else high
        if kind in COMPARISONS:
            return 0, 1
        spans = [self.of_polynomial(arg) if self.ranges else interval(arg) for arg in atom.args]
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
        if atom.name == "double" and spans[1][0] > 0:
            return spans[0][0] // spans[1][0], -(-spans[0][1] // spans[1][0])
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


def _at_corners(operation: Callable[[Any, Any], int | float], a: Interval, b: Interval) -> Interval:
    """The interval of an operation that goes one way with each operand."""
    corners = [operation(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _power(span: Interval, exponent: int) -> Interval:
    result = span
    for _ in range(exponent - 1):
        result = _at_corners(_scale, result, span)
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
    return _at_corners(_quotient, a, (max(b[0], 1), max(b[1], 1)))  # a divisor is nonzero


def _quotient(x: int | float, y: int | float) -> int | float:
    if y == math.inf:  # only approached
        return 0 if x >= 0 else -1
    return x if x in (math.inf, -math.inf) else x // y


def _mod(a: Interval, b: Interval, *, real: bool) -> Interval:
    if b[0] < 0:
        return (-math.inf, math.inf) if b[1] > 0 else (b[0] + (0 if real else 1), 0)
    high = b[1] if real else max(b[1] - 1, 0)
    return 0, min(high, a[1]) if a[0] >= 0 else high
