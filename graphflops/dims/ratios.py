"""Arithmetic on ratios of dims, with limits: what a size passes through while it is read from text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from graphflops.base.lazy import fractions
from graphflops.dims.atoms import is_real
from graphflops.dims.division import ceil_div, floor_div, mod
from graphflops.dims.evaluation import evaluate
from graphflops.dims.expr import Dim, Expr, at_least, total
from graphflops.dims.relations import call, compare, dim_max, dim_min, where
from graphflops.errors import DimError

MAX_EXPONENT = 16  # of a symbolic base; a number is bounded by its bits instead
MAX_BITS = 256  # of any integer
MAX_WORK = 200_000  # term pairs multiplied while reading one text
SIMPLE = 1000  # largest denominator of a fraction that replaces a floating constant

Ratio = tuple[Dim, Dim]  # numerator and nonzero denominator; an integer denominator is positive


def simplest(number: float) -> fractions.Fraction:
    """The number that a floating constant stands for: the simplest fraction that rounds to it, else its shortest decimals.

    A file with 0.69999999999999996 means 0.7.
    """
    simple = fractions.Fraction(number).limit_denominator(SIMPLE)
    return simple if float(simple) == number else fractions.Fraction(repr(number))


def nearest_double(number: fractions.Fraction) -> Ratio:
    """A constant whose products are rounded as computers round them: 0.7 * 10 is 7, 0.7 * 90 is a little less than 63.

    A fraction whose denominator is a power of two stays a fraction: its products with sizes are exact.
    """
    if number.denominator & (number.denominator - 1) == 0:
        return number.numerator, number.denominator
    constant = call("double", abs(number.numerator), number.denominator)
    return constant if number > 0 else -constant, 1


def floored_product(size: Dim, factor: float) -> Dim:
    """The product with a floating factor, rounded down."""
    arithmetic = RatioArithmetic()
    return arithmetic.floor(arithmetic.times((size, 1), nearest_double(simplest(factor))))[0]


class RatioArithmetic:
    """The operations; holds how much multiplying may still be done."""

    def __init__(self) -> None:
        self.work = 0

    def multiply(self, a: Dim, b: Dim) -> Dim:
        if isinstance(a, Expr) and isinstance(b, Expr):
            self.work += len(a.terms) * len(b.terms)
            if self.work > MAX_WORK:
                raise DimError("too large when multiplied out")
        result = a * b
        for number in result.terms.values() if isinstance(result, Expr) else (result,):
            if number.bit_length() > MAX_BITS:
                raise DimError(f"a number of more than {MAX_BITS} bits")
        return result

    def ratio(self, numerator: Dim, denominator: Dim) -> Ratio:
        """The ratio of the two, with the common integer factor taken out."""
        if isinstance(denominator, int):
            if denominator == 0:
                raise ZeroDivisionError
            if denominator == 1:
                return numerator, 1
            if denominator < 0:
                numerator, denominator = -numerator, -denominator
        common = math.gcd(*(n for dim in (numerator, denominator) for n in _coefficients(dim)))
        if common > 1:
            return floor_div(numerator, common), floor_div(denominator, common)  # exact
        return numerator, denominator

    def common(self, values: Sequence[Ratio]) -> tuple[list[Dim], Dim]:
        """The numerators over one common denominator, which is positive."""
        whole = math.lcm(*(below for _, below in values if isinstance(below, int)))
        symbolic = list(dict.fromkeys(below for _, below in values if isinstance(below, Expr)))
        if not all(at_least(below, 0) for below in symbolic):
            raise DimError("a denominator that may be negative")
        below: Dim = whole
        for factor in symbolic:
            below = self.multiply(below, factor)
        numerators: list[Dim] = []
        for above, own in values:
            rest: Dim = whole // own if isinstance(own, int) else whole
            for factor in symbolic:
                if factor is not own:
                    rest = self.multiply(rest, factor)
            numerators.append(self.multiply(above, rest))
        return numerators, below

    def floor(self, value: Ratio) -> Ratio:
        down = floor_div(*value)
        known = evaluate(down, {})
        return (down if known is None else known), 1

    def ceiling(self, value: Ratio) -> Ratio:
        return ceil_div(*value), 1

    def quotient(self, a: Ratio, b: Ratio) -> Ratio:
        return self.floor(self.divided(a, b))

    def double(self, a: Ratio, b: Ratio) -> Ratio:
        """The floating number nearest to a fraction of two integers."""
        above, below = self.divided(a, b)
        if isinstance(above, Expr) or isinstance(below, Expr):
            raise DimError("double takes two integers")
        return nearest_double(fractions.Fraction(above, below))

    def argument(self, value: Ratio) -> Dim:
        above, below = value
        if below == 1:
            return above
        return floor_div(above, below) if mod(above, below) == 0 else call("truediv", above, below)

    def add(self, a: Ratio, b: Ratio) -> Ratio:
        if a[1] is b[1] or a[1] == b[1]:
            return self.ratio(a[0] + b[0], a[1])
        above = self.multiply(a[0], b[1]) + self.multiply(b[0], a[1])
        return self.ratio(above, self.multiply(a[1], b[1]))

    def sum(self, values: Sequence[Ratio]) -> Ratio:
        """Whole ones are added up together: one by one, a long sum would take quadratic time."""
        whole: Ratio = total(above for above, below in values if below == 1), 1
        return reduce(self.add, [value for value in values if value[1] != 1], whole)

    def times(self, a: Ratio, b: Ratio) -> Ratio:
        return self.ratio(self.multiply(a[0], b[0]), self.multiply(a[1], b[1]))

    def divided(self, a: Ratio, b: Ratio) -> Ratio:
        if is_real(b[0]):
            return call("truediv", self.argument(a), self.argument(b)), 1
        return self.ratio(self.multiply(a[0], b[1]), self.multiply(a[1], b[0]))

    def remainder(self, a: Ratio, b: Ratio) -> Ratio:
        if a[1] == 1 and b[1] == 1:
            return mod(a[0], b[0]), 1
        above, below = self.common((a, b))
        return self.ratio(mod(*above), below)

    def power(self, base: Ratio, exponent: Ratio) -> Ratio:
        times, below = exponent
        if (times, below) == (1, 2):
            return call("sqrt", self.argument(base)), 1
        if below != 1 or (isinstance(times, Expr) and not times.symbols):
            raise DimError("a fractional exponent")
        if isinstance(times, Expr):
            return call("pow", self.argument(base), times), 1
        bits = max(n.bit_length() for dim in base for n in _coefficients(dim))
        if abs(times) > MAX_EXPONENT and (isinstance(base[0], Expr) or isinstance(base[1], Expr)):
            raise DimError(f"an exponent above {MAX_EXPONENT}")
        if abs(times) > MAX_BITS or bits * abs(times) > MAX_BITS + abs(times):
            raise DimError(f"a number of more than {MAX_BITS} bits")
        result: Ratio = (1, 1)
        for _ in range(abs(times)):
            result = self.times(result, base)
        return result if times >= 0 else self.ratio(result[1], result[0])

    def compare(self, a: Ratio, b: Ratio, op: str) -> Ratio:
        (left, right), _ = self.common((a, b))
        return compare(op, left, right), 1

    def extreme(self, name: str, values: Sequence[Ratio]) -> Ratio:
        if not values:
            raise DimError(f"{name} of nothing")
        above, below = self.common(values)
        return self.ratio((dim_min if name == "min" else dim_max)(*above), below)

    def truth(self, value: Ratio) -> Ratio:
        """0 or 1: the value itself where it can be nothing else, else whether it is nonzero."""
        above = value[0]
        if isinstance(above, Expr) and above.bounds() == (0, 1):
            return above, 1
        return compare("!=", above, 0), 1

    def choose(self, condition: Ratio, a: Ratio, b: Ratio) -> Ratio:
        above, below = self.common((a, b))
        return self.ratio(where(self.truth(condition)[0], *above), below)

    def truncate(self, value: Ratio) -> Ratio:
        if isinstance(value[0], int) and isinstance(value[1], int):
            return math.trunc(fractions.Fraction(value[0], value[1])), 1
        down = self.floor(value)
        if at_least(down[0], 0):
            return down
        return self.choose(self.compare(value, (0, 1), ">="), down, self.ceiling(value))

    def round(self, value: Ratio) -> Ratio:
        if isinstance(value[0], int) and isinstance(value[1], int):
            return round(fractions.Fraction(value[0], value[1])), 1
        argument = self.argument(value)
        return (call("round", argument) if is_real(argument) else argument), 1


def _coefficients(dim: Dim) -> Sequence[int]:
    return tuple(dim.terms.values()) if isinstance(dim, Expr) else (dim,)
