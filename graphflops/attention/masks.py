"""Masks as formulas: what a value is at the query's place i and the key's place j, for sizes that are open too.

A range gives back its index as a number; comparing numbers gives conditions.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.attention.layouts import LAYOUTS
from graphflops.attention.predicates import (
    COLUMN,
    FALSE,
    HIDING,
    ROW,
    TRUE,
    UNKNOWN,
    UNTOLD,
    ZERO,
    Affine,
    Choice,
    Distance,
    Known,
    Quotient,
    SameBlock,
    Truth,
    negative,
    number_of,
    truth,
    where_not_negative,
)
from graphflops.attention.roles import base_of
from graphflops.attention.walk import Indices, Walk
from graphflops.dims import Dim, Expr, at_least, mod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.attention.stored import Contents
    from graphflops.attention.writes import Writes
    from graphflops.tensor import TensorType
    from graphflops.view import Call, View

_MOST = 400  # calls looked at for one mask


class Found(NamedTuple):
    """What is known of a mask.

    lost: whether there is more to it than formulas tell. open: whether part of it is a value that nothing tells.
    """

    value: Known
    lost: bool
    open: bool


class Masks(Walk[Known]):
    """The masks of a program, each at the pair (i, j) of its last two axes."""

    zero = ZERO
    unknown = None
    uncertain = UNKNOWN

    def __init__(self, view: View, writes: Writes, contents: Contents) -> None:
        super().__init__(view, writes, _HANDLERS)
        self.contents = contents
        self.pairs: dict[tuple[str, Call], Found] = {}
        self.lost = self.open = self.missing = False

    def at_pair(self, name: str, user: Call) -> Found:
        """What is known of the value of that name, which may broadcast, at a query and a key, as a call finds it."""
        typed = self.view.types.get(name)
        if typed is None:
            return Found(None, False, True)
        if (name, user) not in self.pairs:
            self.left, self.before = _MOST, user.place
            self.lost = self.open = False
            places: Indices = (*[None] * (typed.rank - 2), ROW, COLUMN)[-typed.rank :] if typed.rank else ()
            value = self.of(name, self.clipped(places, typed))
            self.pairs[name, user] = Found(value, self.lost, self.open)
        return self.pairs[name, user]

    def of(self, name: str, at: Indices) -> Known:
        """The value of that name at a place; where there is no formula for it, what that is due to is kept."""
        around, self.missing = self.missing, False
        found = super().of(name, at)
        is_unknown = found is None or found == UNKNOWN
        if is_unknown and not self.missing:
            is_open = self.is_open(name)
            self.open, self.lost = self.open or is_open, self.lost or not is_open
        self.missing = around or is_unknown
        return found

    def is_open(self, name: str) -> bool:
        """Whether numbers would not tell either what a value is: a caller gives it, or its operator is not followed."""
        from graphflops.attention.grids import HANDLED

        maker = self.view.makers.get(name)
        if maker is None:
            typed = self.view.types.get(name)
            return typed is None or self.contents.array(name, typed) is None
        return base_of(maker) not in HANDLED or maker.row.state == "unknown" or maker.result != name

    def literal(self, number: Any) -> Known:
        """A size is affine, a truth value holds everywhere or nowhere."""
        if isinstance(number, bool):
            return truth(number)
        return Affine(0, 0, number) if isinstance(number, (int, Expr)) else Choice(TRUE, number, number)

    def as_index(self, value: Known) -> Affine | None:
        """An affine number."""
        return value if isinstance(value, Affine) else None

    def between(self, index: Affine, begin: Dim, end: Dim | None) -> Truth:
        """Two conditions."""
        inside = where_not_negative(index + -begin)
        return inside if end is None else inside & where_not_negative(index * -1 + (end - 1))

    def unflattened(self, at: Indices, shape: Sequence[Dim], inner: Sequence[Dim]) -> None:
        """Indices of axes that merge or split are not followed."""

    def held(self, name: str, typed: TensorType, at: Indices) -> Known:
        """Of a tensor that is one number here, or of one stored in the file whose contents have a simple form."""
        known = _constant(typed, at)
        return self.contents.simple(name, typed, at) if known is None else known

    def chosen(self, condition: Truth, yes: Known, no: Known) -> Known:
        """`yes` where the condition holds, else `no`."""
        if condition in (TRUE, FALSE):
            return yes if condition == TRUE else no
        if isinstance(yes, Truth) and isinstance(no, Truth):
            return (condition & yes) | (~condition & no)
        numbers = _untold(yes), _untold(no)
        return None if numbers[0] != numbers[0] and numbers[1] != numbers[1] else Choice(condition, *numbers)


def _untold(value: Known) -> float:
    number = number_of(value)
    return UNTOLD if number is None else number


def _constant(typed: TensorType, at: Indices) -> Known:
    """The value of a tensor whose contents are known and, at this place, one number."""
    held: Any = typed.uniform
    if held is None:
        held = typed.value
        for index in at:
            if isinstance(held, tuple) and len(set(held)) == 1:
                held = held[0]
            elif (
                isinstance(held, tuple)
                and index is not None
                and index.is_number
                and isinstance(index.constant, int)
            ):
                held = held[index.constant] if 0 <= index.constant < len(held) else None
            else:
                held = None
    if held is None or isinstance(held, tuple):
        return None
    if typed.dtype.kind == "bool":
        return truth(bool(held))
    if isinstance(held, float) or typed.dtype.is_floating:
        return Choice(TRUE, held, held) if not isinstance(held, Expr) else None
    return Affine(0, 0, held)


def _same(mask: Masks, call: Call, at: Indices) -> Known:
    value = mask.operand(call.given[0], at)
    result = mask.view.types[call.result]
    if isinstance(value, Truth) and result.dtype.kind != "bool":
        return Choice(value, 1, 0)
    if isinstance(value, Choice) and result.dtype.kind == "bool":
        return _truth(value)
    if isinstance(value, Affine) and result.dtype.kind == "bool":
        return ~where_not_negative(value, value * -1)
    return value


# Numbers


def _range(mask: Masks, call: Call, at: Indices) -> Known:
    named = {key: mask.number(value) for key, value in call.node.kwargs}
    args = [mask.number(argument) for argument in call.node.args]
    start, step = (args[0], args[2] if len(args) > 2 else 1) if len(args) > 1 else (0, 1)
    start, step = named.get("start", start), named.get("step", step)
    if at[0] is None or not isinstance(start, (int, Expr)) or not isinstance(step, int):
        return None
    index: Affine = at[0]
    return index * step + start


def filling(call: Call) -> Any:
    """The number that a new tensor is filled with."""
    base = base_of(call)
    if base == "scalar_tensor":
        return call.given[0]
    if "full" not in base:
        return 0 if "zero" in base else 1
    place = 1 if base in ("full", "full_like") else 2
    return call.attribute("fill_value", call.given[min(place, len(call.given) - 1)])


def _filled(mask: Masks, call: Call, at: Indices) -> Known:
    number = filling(call)
    kind = mask.view.types[call.result].dtype.kind
    if kind == "bool":
        return truth(bool(number))
    if kind == "float":
        return Choice(TRUE, number, number) if isinstance(number, (int, float)) else None
    return mask.operand(number, ())


def _second(mask: Masks, call: Call, at: Indices) -> Known:
    return mask.operand(call.given[1], at)


def _cumsum(mask: Masks, call: Call, at: Indices) -> Known:
    """Of the same number everywhere: the index times that number."""
    source = mask.view.types[call.uses[0]]
    axis = mask.number(call.given[1]) if len(call.given) > 1 else call.attribute("dim")
    if not isinstance(axis, int):
        return None
    each = number_of(mask.of(call.uses[0], at))
    place: Affine | None = at[axis % source.rank]
    return None if each is None or place is None or each != int(each) else (place + 1) * int(each)


def _sum(sign: int) -> Callable[[Masks, Call, Indices], Known]:
    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        a, b = mask.operands(call, at)
        if base_of(call) == "rsub":
            a, b = b, a
        if call.attribute("alpha", 1) != 1:
            return None
        if isinstance(a, Affine) and isinstance(b, Affine):
            return a + b * sign
        if isinstance(b, Choice) and sign < 0:
            b = negative(b)
        elif number_of(b) is not None:
            b = Choice(TRUE, *[sign * (number_of(b) or 0)] * 2)
        added = _changed(a, b, plus, untold=mask.view.types[call.result].dtype.is_floating)
        return _hiding_both(a, b) if added is None else added

    return handler


def _hiding_both(a: Known, b: Known) -> Known:
    """The sum of two numbers each of which hides what a truth does not let through."""
    if not isinstance(a, Choice) or not isinstance(b, Choice):
        return None
    a, b = (Choice(~x.truth, x.no, x.yes) if x.yes <= HIDING else x for x in (a, b))
    most = max(plus(a.no, b.yes), plus(a.yes, b.no), plus(a.no, b.no))
    return Choice(a.truth & b.truth, plus(a.yes, b.yes), most) if most <= HIDING else None


def plus(x: float, y: float) -> float:
    """The sum; with a number that nobody tells, one that hides a score still does."""
    if x + y != x + y:
        return x if x <= HIDING else y
    return x + y


def _product(mask: Masks, call: Call, at: Indices) -> Known:
    a, b = mask.operands(call, at)
    if isinstance(a, Truth) and isinstance(b, Truth):
        return a & b
    if isinstance(a, Choice) and isinstance(b, Choice) and a.no == b.no == 0:
        return Choice(a.truth & b.truth, a.yes * b.yes, 0)
    for one, other in ((a, b), (b, a)):
        factor = number_of(other)
        if isinstance(one, Affine) and factor is not None and factor == int(factor):
            return one * int(factor)
    return _changed(a, b, operator.mul)


def _negative(mask: Masks, call: Call, at: Indices) -> Known:
    return negative(mask.operand(call.given[0], at))


def _changed(a: Known, b: Known, change: Callable[[float, float], float], *, untold: bool = False) -> Known:
    """A choice of numbers and one number together, or with `untold` one that nobody tells."""
    for one, other, turned in ((a, b, False), (b, a, True)):
        number = number_of(other)
        if number is None and untold and not isinstance(other, Choice):
            number = UNTOLD
        if isinstance(one, Choice) and number is not None:
            yes, no = (change(number, x) if turned else change(x, number) for x in (one.yes, one.no))
            return Choice(one.truth, yes, no)
    return None


# Truths


def _comparison(row: int, shift: int) -> Callable[[Masks, Call, Indices], Known]:
    """`row * (a - b) + shift >= 0`."""

    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        a, b = mask.operands(call, at)
        if isinstance(a, Affine) and isinstance(b, Affine):
            return where_not_negative((a + b * -1) * row + shift)
        for one, other, sign in ((a, b, row), (b, a, -row)):
            if isinstance(one, Distance) and isinstance(other, Affine):
                rest = other * -sign + shift
                near, far = (where_not_negative(one.term * side + rest) for side in (1, -1))
                return near | far if sign > 0 else near & far
            number = _whole(other)
            if isinstance(one, Quotient) and number is not None:
                size = one.divisor
                if sign > 0:
                    return where_not_negative(one.term + (shift - number) * size)
                return where_not_negative(one.term * -1 + ((number + shift) * size + size - 1))
        return None

    return handler


def _whole(value: Known) -> int | None:
    """The whole number that a value is for every pair; None where it is none."""
    number = number_of(value)
    return int(number) if number is not None and number == number // 1 else None


def _quotient(mask: Masks, call: Call, at: Indices) -> Known:
    """Of whole numbers, rounded down; rounded to zero where that is the same."""
    a, b = mask.operands(call, at)
    size = _whole(b)
    rounding = call.attribute("rounding_mode", "" if base_of(call) == "div" else "floor")
    if (
        not isinstance(a, Affine)
        or not isinstance(size, int)
        or size <= 0
        or rounding not in ("floor", "trunc")
    ):
        return None
    if mask.view.types[call.result].dtype.kind not in ("int", "uint"):
        return None
    towards_zero = rounding == "trunc" or base_of(call) == "Div"
    if towards_zero and not (a.row >= 0 and a.column >= 0 and at_least(a.constant, 0)):
        return None
    return Quotient(a, size)


def _distance(mask: Masks, call: Call, at: Indices) -> Known:
    value = mask.operand(call.given[0], at)
    return Distance(value) if isinstance(value, Affine) else None


def _equal(wanted: bool) -> Callable[[Masks, Call, Indices], Known]:
    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        a, b = mask.operands(call, at)
        found = _same_number(a, b) or _same_number(b, a)
        return None if found is None else found if wanted else ~found

    return handler


def _same_number(a: Known, b: Known) -> Truth | None:
    """Where two values are equal."""
    number = number_of(b)
    if isinstance(a, Affine) and isinstance(b, Affine):
        difference = a + b * -1
        return where_not_negative(difference, difference * -1)
    if isinstance(a, Quotient) and isinstance(b, Quotient) and a.divisor == b.divisor:
        return _same_block(a.term, b.term, a.divisor)
    if isinstance(a, Quotient) and (whole := _whole(b)) is not None:
        above = a.term + -whole * a.divisor
        return where_not_negative(above, above * -1 + (a.divisor - 1))
    if isinstance(a, Choice) and number is not None:
        if a.yes != a.yes or a.no != a.no:
            return None
        return _truth(Choice(a.truth, a.yes == number, a.no == number))
    if isinstance(a, Truth):
        if isinstance(b, Truth):
            return (a & b) | (~a & ~b)
        if number in (0, 1):
            return a if number else ~a
    return None


def _same_block(a: Affine, b: Affine, size: int) -> Truth | None:
    """Where two places are in the same of the blocks from the first place."""
    places = {(a.row, a.column), (b.row, b.column)}
    if places != {(1, 0), (0, 1)} or a.constant != b.constant or mod(a.constant, size) != 0:
        return None
    return where_not_negative(SameBlock(0, 0, size))


def _truth(choice: Choice) -> Truth:
    yes, no = (UNKNOWN if number != number else truth(bool(number)) for number in (choice.yes, choice.no))
    if yes == no:
        return yes
    return (choice.truth & yes) | (~choice.truth & no)


def _logic(combine: Callable[..., Truth], operands: int = 2) -> Callable[[Masks, Call, Indices], Known]:
    """Truths together; of whole numbers the bits are not followed."""

    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        if mask.view.types[call.result].dtype.kind != "bool":
            return None
        return combine(*_truths(mask, call.given[:operands], at))

    return handler


def _truths(mask: Masks, arguments: Sequence[Any], at: Indices) -> list[Truth]:
    values = [mask.operand(argument, at) for argument in arguments]
    return [
        value if isinstance(value, Truth) else _truth(value) if isinstance(value, Choice) else UNKNOWN
        for value in values
    ]


def _where(mask: Masks, call: Call, at: Indices) -> Known:
    (condition,) = _truths(mask, call.given[:1], at)
    return mask.chosen(condition, *(mask.operand(argument, at) for argument in call.given[1:3]))


def _masked_fill(mask: Masks, call: Call, at: Indices) -> Known:
    value = mask.operand(call.given[0], at)
    (condition,) = _truths(mask, call.given[1:2], at)
    return mask.chosen(condition, mask.operand(call.given[2], at), value)


def _triangle(upper: bool | None) -> Callable[[Masks, Call, Indices], Known]:
    """The value on one side of a diagonal, zero on the other."""

    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        over = above(mask, call, at, upper)
        if over is None:
            return None
        inside = where_not_negative(over)
        value = mask.operand(call.given[0], at)
        return inside & value if isinstance(value, Truth) else mask.chosen(inside, value, Affine(0, 0, 0))

    return handler


def above(walk: Walk[Any], call: Call, at: Indices, upper: bool | None) -> Any:
    """How far a place is inside the triangle that a call keeps; negative outside, None where it cannot be followed."""
    is_upper = bool(call.attribute("upper", 1)) if upper is None else upper
    given = call.given[1] if len(call.given) > 1 else call.attribute("diagonal", 0)
    diagonal = walk.number(given)
    if len(at) < 2 or at[-1] is None or at[-2] is None or not isinstance(diagonal, (int, Expr)):
        return None
    over = at[-1] + at[-2] * -1 + -diagonal  # column - row - diagonal
    return over if is_upper else over * -1


SAME = (
    "clone contiguous alias detach to _to_copy type_as convert_element_type lift_fresh_copy lift_fresh Cast CastLike"
    " Identity expand expand_as Expand expand_copy float bool half bfloat16 double int long type _to"
)
FILLED = "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor zero"
_TABLE: dict[Callable[[Any, Call, Indices], Any], str] = {
    **LAYOUTS,
    _same: SAME,
    _range: "arange Range",
    _filled: FILLED,
    _second: "fill copy",
    _cumsum: "cumsum CumSum",
    _sum(1): "add Add",
    _sum(-1): "sub Sub rsub",
    _product: "mul Mul",
    _negative: "neg Neg",
    _distance: "abs Abs",
    _quotient: "floor_divide div Div",
    _comparison(1, 0): "ge greater_equal GreaterOrEqual",
    _comparison(1, -1): "gt greater Greater",
    _comparison(-1, 0): "le less_equal LessOrEqual",
    _comparison(-1, -1): "lt less Less",
    _equal(True): "eq Equal",
    _equal(False): "ne not_equal",
    _logic(lambda a, b: a & b): "logical_and bitwise_and __and__ And BitwiseAnd",
    _logic(lambda a, b: a | b): "logical_or bitwise_or __or__ Or BitwiseOr",
    _logic(lambda a, b: (a & ~b) | (~a & b)): "logical_xor bitwise_xor __xor__ Xor BitwiseXor",
    _logic(lambda a: ~a, 1): "logical_not bitwise_not Not BitwiseNot",
    _where: "where Where",
    _masked_fill: "masked_fill",
    _triangle(True): "triu",
    _triangle(False): "tril",
    _triangle(None): "Trilu",
}
_HANDLERS = {name: handler for handler, names in _TABLE.items() for name in names.split()}
