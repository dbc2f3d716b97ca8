"""Formulas of elementwise gradients: `g * cos(a)` is the gradient of a sine.

A formula is text in Python's syntax. `g` is the gradient of the result, `a`, `b` and `c` are the operands in order, `out` is
the result; every other name is a number. FLOPs, function evaluations and reads are counted from it, and so are the kernels
that PyTorch launches for it: one for each operator or function, in order. Nothing is evaluated: `ast` parses the text.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from graphflops.base.record import Record

Numbers = tuple[tuple[str, object], ...]

UNKNOWN = object()  # a number that neither the formula nor the program gives
_TENSORS = ("g", "a", "b", "c", "out")
_BINARY: Mapping[type, str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_COMPARED = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
# Functions that are computed if all operands are numbers.
_COMPUTED: Mapping[str, Callable[..., object]] = {
    **{name: getattr(operator, name) for name in ("neg", "add", "sub", "mul", *_COMPARED.values())},
    "div": operator.truediv,
}
# Functions of booleans are part of a choice and have no work of their own.
_LOGICAL = ("logical_and", "logical_or", "logical_not")
_MASKS = (*_LOGICAL, "isnan", "isfinite", "eq", "ne", "lt", "le", "gt", "ge")
_CHOICES = ("where", "masked_fill")
REDUCING = ("sum", "mean", "any")
SCANNING = ("cumsum",)


class Launch(Record, frozen=True):
    """One kernel of a formula."""

    function: str
    operands: tuple[str | int, ...] = ()  # tensors it reads by name, results of earlier launches by place
    numbers: tuple[object, ...] = ()  # its other operands
    # The tensors that its result is computed from, and whose shape it therefore has. Empty if the result is one number; only
    # the result's gradient if it is a sum or mean of a reduction's gradient.
    leaves: frozenset[str] = frozenset()
    is_mask: bool = False  # the result holds truth values
    is_in_place: bool = False  # it overwrites the result of the launch before it


class _Number(Record, frozen=True):
    value: object


_Value = str | int | _Number  # a tensor by its name, the result of a launch by its place, or a number


def numbers_of(operands: Iterable[tuple[str, object]]) -> Numbers:
    """The operands that are not tensors, by their letters in formulas; None is an operand that is not given."""
    known = (bool, int, float, type(None))
    return tuple((letter, value if isinstance(value, known) else UNKNOWN) for letter, value in operands)


@lru_cache(maxsize=1024)
def launches(text: str, numbers: Numbers = ()) -> tuple[Launch, ...]:
    """The kernels of a formula. numbers: the operands that are not tensors, as `numbers_of` returns them."""
    reader = _Reader(numbers)
    *assigned, last = ast.parse(text).body
    for statement in assigned:
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.targets[0], ast.Name)
        reader.values[statement.targets[0].id] = reader.read(statement.value)
    assert isinstance(last, ast.Expr)
    if isinstance(reader.read(last.value), _Number):
        reader.launched(Launch("fill", leaves=frozenset("g")))
    return tuple(reader.launches)


class _Reader:
    """Turns a formula into launches, one after the other; functions of numbers alone are computed."""

    def __init__(self, numbers: Numbers) -> None:
        self.values: dict[str, _Value] = {name: name for name in _TENSORS}
        self.values |= {name: _Number(value) for name, value in numbers}
        self.launches: list[Launch] = []

    def read(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=value):
                return _Number(value)
            case ast.Name(id=name):
                return self.values.get(name, _Number(UNKNOWN))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self.applied("neg", self.read(inner))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(_BINARY[type(op)], self.read(left), self.read(right))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                return self.compared(self.read(left), [_COMPARED[type(op)] for op in ops], rights)
            case ast.Tuple(elts=parts):
                return [self.read(part) for part in parts][-1]
            case ast.Call(func=ast.Name(id="where"), args=[condition, chosen, other]):
                known = self.read(condition)
                if isinstance(known, _Number):  # an unknown one guards against a value assumed not to occur
                    return self.read(chosen if known.value is True else other)
                return self.called("where", [known, self.read(chosen), self.read(other)])
            case ast.Call(func=ast.Name(id=name), args=arguments):
                first = self.read(arguments[0])
                if name == "logical_and" and first == _Number(False):
                    return first
                return self.called(name, [first, *(self.read(argument) for argument in arguments[1:])])
        raise AssertionError(ast.dump(node))

    def binary(self, name: str, left: _Value, right: _Value) -> _Value:
        """A sum, difference, product or quotient. A number minus or over a tensor fills one and changes it in place."""
        if not isinstance(left, _Number) or isinstance(right, _Number) or name in ("add", "mul"):
            return self.applied(name, left, right)
        filled = self.launched(Launch("fill", leaves=self.leaves(right)))
        return self.launched(Launch(name, (filled, right), (), self.leaves(right), is_in_place=True))

    def compared(self, left: _Value, names: list[str], rights: list[ast.expr]) -> _Value:
        """One comparison, or a chain of them that must all hold. One with an operand that is not given always holds."""
        found: _Value = _Number(True)
        for name, node in zip(names, rights, strict=True):
            right = self.read(node)
            is_given = _Number(None) not in (left, right)
            holds = self.applied(name, left, right) if is_given else _Number(True)
            found, left = self.called("logical_and", [found, holds]), right
        return found

    def called(self, name: str, operands: list[_Value]) -> _Value:
        """The launches of a function. `where` first fills a tensor with a number that it chooses."""
        match name.rstrip("_"), operands:
            case "logical_and" | "logical_or", [_Number(True), other] | [other, _Number(True)]:
                return other
            case "where", [_, _, _Number()] | [_, _Number(), _]:
                self.launched(Launch("fill"))
        return self.applied(name, *operands)

    def applied(self, name: str, *operands: _Value) -> _Value:
        """The launch of a function if an operand is a tensor, else its value for the numbers."""
        numbers = tuple(each.value for each in operands if isinstance(each, _Number))
        tensors = tuple(each for each in operands if not isinstance(each, _Number))
        if not tensors:
            is_known = name in _COMPUTED and UNKNOWN not in numbers and None not in numbers
            return _Number(_COMPUTED[name](*numbers) if is_known else UNKNOWN)
        function = name.rstrip("_")
        is_reduced = function in REDUCING
        is_mask = function in _MASKS or (not is_reduced and all(map(self.is_mask, tensors)))
        leaves = self.leaves(*tensors)
        if is_reduced:  # `any` is of all elements, and gives one number
            leaves = frozenset() if function == "any" else frozenset("g")
        return self.launched(Launch(function, tensors, numbers, leaves, is_mask, name.endswith("_")))

    def is_mask(self, operand: str | int) -> bool:
        return isinstance(operand, int) and self.launches[operand].is_mask

    def leaves(self, *operands: _Value) -> frozenset[str]:
        """The tensors that values are computed from."""
        found = [self.launches[each].leaves if isinstance(each, int) else {each} for each in operands]
        return frozenset().union(*found)  # type: ignore[arg-type]

    def launched(self, launch: Launch) -> int:
        """Append a launch and return its place."""
        self.launches.append(launch)
        return len(self.launches) - 1


def is_part_of_choice(launch: Launch, before: tuple[Launch, ...]) -> bool:
    """Whether a launch combines booleans, or chooses by a comparison of the formula; its work is that of the choice."""
    if launch.function not in _CHOICES:
        return launch.function in _LOGICAL
    condition = launch.operands[0 if launch.function == "where" else -1]
    return isinstance(condition, int) and before[condition].is_mask
