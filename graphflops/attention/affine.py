"""The affine domain: values as formulas of i and j, the places of a query and a key; lengths may be symbolic.

A boolean is made of affine conditions (`conditions`); a number is given by cases (`piecewise`).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from graphflops.attention import conditions, piecewise
from graphflops.attention.conditions import TRUE, UNKNOWN, ZERO, Affine, Truth, truth, where_not_negative
from graphflops.attention.constants import Even, known_element, stored_form
from graphflops.attention.elementwise import Function, computed
from graphflops.attention.piecewise import Known, Number, Piece, as_number, combined, constant_of, tested
from graphflops.attention.scopes import Domain, Evaluator, Indices, Scope
from graphflops.dims import Dim, Expr, at_least, floor_div, mod
from graphflops.tensor import DType, TensorType
from graphflops.view import Step

_LARGEST_DIVISOR = 2**12  # the largest divisor whose remainders are told apart


class AffineDomain(Domain[Known]):
    """Values as formulas. overwhelming: an addend of this or less hides a score, whatever the score is."""

    zero = ZERO

    def __init__(self, overwhelming: float = conditions.HIDING) -> None:
        self.overwhelming = overwhelming

    def unknown(self, dtype: DType | None) -> Known:
        return UNKNOWN if dtype is not None and dtype.kind == "bool" else piecewise.UNKNOWN_NUMBER

    def is_unknown(self, value: Known) -> bool:
        if isinstance(value, Truth):
            return not value.exact
        return any(piece is None for _, piece in value.pieces)

    def literal(self, value: Any) -> Known:
        return truth(value) if isinstance(value, bool) else piecewise.number(value)

    def as_index(self, value: Known) -> Affine | None:
        piece = value.pieces[0][1] if isinstance(value, Number) and len(value.pieces) == 1 else None
        return piece if isinstance(piece, Affine) else None

    def from_index(self, index: Any, dtype: DType) -> Known:
        if not all(isinstance(part, (int, Expr)) for part in (index.row, index.column, index.constant)):
            return piecewise.UNKNOWN_NUMBER
        return self.rounded(Number(((TRUE, index),)), dtype)

    def wrapped(self, index: Affine | None, size: Dim) -> Affine | None:
        if index is None or index.is_never_negative:
            return index
        return index + size if index.is_number and at_least(-1, index.constant) else None

    def between(self, index: Affine, begin: Dim, end: Dim | None) -> Truth:
        inside = where_not_negative(index + -begin)
        return inside if end is None else inside & where_not_negative(index * -1 + (end - 1))

    def choose(self, condition: Known, yes: Known, no: Known) -> Known:
        holds = piecewise.as_truth(condition)
        if holds in (TRUE, conditions.FALSE):
            return yes if holds == TRUE else no
        if isinstance(yes, Truth) and isinstance(no, Truth):
            return (holds & yes) | (~holds & no)
        pieces = [(holds & each, piece) for each, piece in as_number(yes).pieces]
        rest = [(~holds & each, piece) for each, piece in as_number(no).pieces]
        return piecewise.by_cases(pieces + rest)

    def stored(self, scope: Scope, name: str, typed: TensorType, at: Indices) -> Known | None:
        known = known_element(typed, at)
        if known is not None:
            return self.literal(known)
        found = stored_form(scope.constants, name, typed, at)
        if found is None:
            return None
        form, row, column = found
        if isinstance(form, Even):
            return Number(((TRUE, column * form.step + form.first),))
        where = form.truth(row, column)
        return where if form.numbers is None else self.choose(where, *map(self.literal, form.numbers))

    def whole(self, evaluator: Evaluator[Known], step: Step, at: Indices) -> Known | None:
        """A cumulative sum of one number is the index times that number; other operators along axes are not followed."""
        if step.operator.name != "cumsum" or step.argument("exclusive", 0) or step.argument("reverse", 0):
            return None
        each = piecewise.number_of(as_number(evaluator.operand(step.argument("x"), at)))
        place: Affine | None = at[step.argument("axis") % len(at)]
        if each is None or place is None or each != int(each):
            return None
        return Number(((TRUE, (place + 1) * int(each)),))

    def apply(self, function: Function, values: Sequence[Known | None]) -> Known | None:
        given = [value for value in values if value is not None]
        if len(given) < len(values) and function.name != "clamp":
            return None
        is_truth = function.result is not None and function.result.kind == "bool"
        if is_truth and function.name in _OF_TRUTHS:
            found: Known = _OF_TRUTHS[function.name](*map(piecewise.as_truth, given))
        else:
            found = _FUNCTIONS.get(function.name, _of_constants)(self, function, *values)
        if function.result is None:
            return found
        return piecewise.as_truth(found) if is_truth else self.rounded(as_number(found), function.result)

    def rounded(self, value: Number, dtype: DType) -> Number:
        """A number in an element type; one that varies and that half precision would round is not followed."""
        if dtype.kind != "float" or dtype.bits >= 32:
            return value
        return combined(lambda piece: piece if constant_of(piece) is not None else None, value)

    def plus(self, a: Piece, b: Piece) -> Piece:
        """A sum; an addend that hides a score hides it whatever the other addend is."""
        x, y = constant_of(a), constant_of(b)
        if x is not None and y is not None:
            return piecewise.piece_of(x + y)
        if isinstance(a, Affine) and isinstance(b, Affine):
            return a + b
        for one, more in ((a, b), (b, a)):
            if isinstance(one, piecewise.Quotient) and isinstance(more, Affine) and more.is_number:
                return one + more.constant
        return next((z for z in (x, y) if z is not None and z <= self.overwhelming), None)


def _of_constants(domain: AffineDomain, function: Function, *values: Known) -> Number:
    """Any other function, if each piece is one number for every pair."""

    def of_pieces(*pieces: Piece) -> Piece:
        numbers = [constant_of(piece) for piece in pieces]
        if any(x is None for x in numbers):
            return None
        return piecewise.piece_of(computed(function, numbers).item())

    return combined(of_pieces, *values)


def _sum(domain: AffineDomain, function: Function, a: Known, b: Known) -> Known:
    factor = function.options.get("alpha", 1) * (1 if function.name == "add" else -1)
    if factor != 1:
        b = combined(lambda piece: piecewise.times(piece, piecewise.piece_of(factor)), b)
    return combined(domain.plus, a, b)


def _clamp(domain: AffineDomain, function: Function, x: Known, low: Any = None, high: Any = None) -> Known:
    x = x if low is None else domain.choose(tested(piecewise.where_at_least, x, low), x, low)
    return x if high is None else domain.choose(tested(piecewise.where_at_least, high, x), x, high)


def _divided(domain: AffineDomain, function: Function, a: Known, b: Known) -> Known:
    """Integer division, rounded down; rounded to zero if that gives the same."""
    rounding = "floor" if function.name == "floor_divide" else function.options.get("rounding_mode")
    if function.result is not None and function.result.kind in ("int", "uint") and rounding is None:
        rounding = "trunc"
    size = piecewise.number_of(as_number(b))

    if rounding not in ("floor", "trunc") or not size or size < 0 or size != int(size):
        return _of_constants(domain, function, a, b)
    divisor = int(size)

    def quotient(piece: Piece) -> Piece:
        if not isinstance(piece, Affine) or (rounding == "trunc" and not piece.is_never_negative):
            return None
        if constant_of(piece) is not None:
            return Affine(0, 0, floor_div(piece.constant, divisor))
        return piece if divisor == 1 else piecewise.Quotient(piece, divisor)

    return combined(quotient, a)


def _remainder(domain: AffineDomain, function: Function, a: Known, b: Known) -> Known:
    """Remainder of integers, rounded down; rounded to zero if that gives the same."""
    size = piecewise.number_of(as_number(b))
    is_whole = function.result is not None and function.result.kind in ("int", "uint")
    if not is_whole or not size or not 0 < size <= _LARGEST_DIVISOR:
        return _of_constants(domain, function, a, b)
    divisor, is_rounded_down = int(size), function.name == "remainder" and not function.options.get("fmod")

    def remainder(piece: Piece) -> Piece:
        if not isinstance(piece, Affine) or not (is_rounded_down or piece.is_never_negative):
            return None
        if piece.is_number:
            return Affine(0, 0, mod(piece.constant, divisor))
        return piecewise.Remainder(piece, divisor)

    return combined(remainder, a)


def _cast(domain: AffineDomain, function: Function, x: Known) -> Known:
    if function.result is None or function.result.kind not in ("int", "uint") or isinstance(x, Truth):
        return x

    def truncated(piece: Piece) -> Piece:
        if isinstance(piece, float):
            return None if math.isinf(piece) else Affine(0, 0, int(piece))
        return piece

    return combined(truncated, x)


def _whole(domain: AffineDomain, function: Function, x: Known) -> Known:
    """Rounding: an integer stays as it is."""
    whole = Affine, piecewise.Quotient, piecewise.Remainder
    is_whole = all(isinstance(piece, whole) for _, piece in as_number(x).pieces)
    return x if is_whole else _of_constants(domain, function, x)


def _equality(domain: AffineDomain, function: Function, a: Known, b: Known) -> Known:
    both = isinstance(a, Truth) and isinstance(b, Truth)
    found = (a & b) | (~a & ~b) if both else tested(piecewise.where_equal, a, b)  # type: ignore[operator]
    return found if function.name == "eq" else ~found


_FUNCTIONS: dict[str, Callable[..., Known]] = {
    **dict.fromkeys(("add", "sub"), _sum),
    "mul": lambda domain, function, a, b: combined(piecewise.times, a, b),
    "neg": lambda domain, function, x: piecewise.negative(x),
    "abs": lambda domain, _, x: domain.choose(
        tested(piecewise.where_at_least, x, piecewise.number(0)), x, piecewise.negative(x)
    ),
    "minimum": lambda domain, function, a, b: _clamp(domain, function, a, high=b),
    **dict.fromkeys(("maximum", "clamp"), _clamp),
    "relu": lambda domain, function, x: _clamp(domain, function, x, piecewise.number(0)),
    **dict.fromkeys(("div", "floor_divide"), _divided),
    **dict.fromkeys(("remainder", "fmod"), _remainder),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), _whole),
    "cast": _cast,
    "where": lambda domain, function, condition, yes, no: domain.choose(condition, yes, no),
    "ge": lambda domain, function, a, b: tested(piecewise.where_at_least, a, b),
    "gt": lambda domain, function, a, b: tested(partial(piecewise.where_at_least, more=1), a, b),
    **dict.fromkeys(("eq", "ne"), _equality),
}
_OF_TRUTHS: dict[str, Callable[..., Truth]] = {
    **dict.fromkeys(("mul", "logical_and", "bitwise_and"), lambda a, b: a & b),
    **dict.fromkeys(("add", "logical_or", "bitwise_or"), lambda a, b: a | b),
    **dict.fromkeys(("logical_xor", "bitwise_xor"), lambda a, b: (a & ~b) | (~a & b)),
    **dict.fromkeys(("logical_not", "bitwise_not"), lambda a: ~a),
}
