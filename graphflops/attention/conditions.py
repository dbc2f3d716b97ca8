"""Score and mask functions as conditions that are affine in the query's place and the key's."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from graphflops.attention import pointwise
from graphflops.attention.functions import Evaluator, Held
from graphflops.attention.predicates import (
    COLUMN,
    HIDING,
    ROW,
    TRUE,
    UNKNOWN,
    Affine,
    Choice,
    Known,
    Truth,
    number_of,
    truth,
    visible_where,
    where_not_negative,
)
from graphflops.dims import Expr
from graphflops.errors import DimError, ModelError
from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.graph import Graph, Node
    from graphflops.tensor import DType


class Conditions(Evaluator[Known]):
    """Values are what is known of them for every pair; None, or a truth that may be either, where nothing is."""

    def __init__(self, graph: Graph, captured: Mapping[str, Value], places: int) -> None:
        """places: how many inputs come before those that are captured; the last two are the query and the key."""
        super().__init__(graph)
        names = [entry.name for entry in graph.inputs]
        self.known: dict[str, Known | Held] = dict.fromkeys(names)
        self.known.update({name: number(value) for name, value in captured.items()})
        self.known[names[places - 2]], self.known[names[places - 1]] = ROW, COLUMN
        for node in self.nodes:
            name = next(name for name in node.outputs if name is not None)
            self.known[name] = self.value(node, self.known)

    def where(self) -> Truth:
        """Where the function, a mask's, is true."""
        return as_truth(self.operand(self.graph.outputs[0].value, self.known))

    def kept(self) -> Truth:
        """Where the function, of scores, lets a score through: what replaces it, or is added to it, does not hide it."""
        return self.kept_of(self.graph.outputs[0].value)

    def kept_of(self, argument: Any) -> Truth:
        if isinstance(argument, (bool, int, float)):
            return truth(argument > HIDING)
        if not isinstance(argument, Ref):
            return TRUE
        value = self.known.get(argument.name)
        if isinstance(value, (Choice, Affine)):
            return visible_where(value)
        node = next((node for node in self.nodes if argument.name in node.outputs), None)
        word = "" if node is None else pointwise.word_of(node.op)
        if node is None:
            return TRUE
        if word in pointwise.SAME:
            return self.kept_of(node.args[0])
        if word == "add":
            return self.kept_of(node.args[0]) & self.kept_of(node.args[1])
        if word == "where" and len(node.args) == 3:
            condition, yes, no = node.args
        elif word == "masked_fill":
            no, condition, yes = node.args
        else:
            return TRUE
        holds = as_truth(self.operand(condition, self.known))
        return (holds & self.kept_of(yes)) | (~holds & self.kept_of(no))

    # How values are made

    def literal(self, number: Any) -> Known:
        return as_known(number)

    def gathered(self, held: Held) -> Known:
        return None

    def value(self, node: Node, known: Mapping[str, Known | Held]) -> Known | Held:
        try:
            found = super().value(node, known)
        except (ArithmeticError, DimError, ModelError, TypeError, ValueError):
            found = None
        typed = self.graph.types.get(next(name for name in node.outputs if name is not None))
        is_truth = isinstance(typed, TensorType) and typed.dtype.kind == "bool"
        return UNKNOWN if found is None and is_truth else found

    def operand(self, argument: Any, known: Mapping[str, Known | Held]) -> Known | Held:
        return as_known(argument) if isinstance(argument, Expr) else super().operand(argument, known)

    def call(
        self,
        node: Node,
        word: str,
        values: Sequence[Known],
        dtypes: Sequence[DType | None],
        result: DType | None,
    ) -> Known:
        if word in pointwise.SAME:
            return _cast(values[0], result)
        function = _FUNCTIONS.get(word)
        return None if function is None or node.kwargs else function(*values)


def number(value: Value) -> Known:
    """What is known of a captured value: of a size or of a tensor without axes the number."""
    return as_known(value.value if isinstance(value, TensorType) and not value.shape else value)


def as_known(number: object) -> Known:
    """A number of the program."""
    if isinstance(number, bool):
        return truth(number)
    if isinstance(number, float) and number != int(number if abs(number) < 2**53 else 0):
        return Choice(TRUE, number, number)
    if isinstance(number, (int, float)):
        return Affine(0, 0, int(number))
    return Affine(0, 0, number) if isinstance(number, Expr) else None


def as_truth(value: object) -> Truth:
    """Where a value is true, or not zero."""
    if isinstance(value, Truth):
        return value
    if isinstance(value, Choice):
        yes, no = bool(value.yes), bool(value.no)
        return truth(yes) if yes == no else value.truth if yes else ~value.truth
    found = number_of(value) if isinstance(value, Affine) else None
    return UNKNOWN if found is None else truth(bool(found))


def _cast(value: Known, result: DType | None) -> Known:
    if isinstance(value, Truth) and result is not None and result.kind != "bool":
        return Choice(value, 1, 0)
    return as_truth(value) if result is not None and result.kind == "bool" else value


def _sum(sign: int) -> Callable[[Known, Known], Known]:
    def handler(a: Known, b: Known) -> Known:
        if isinstance(a, Affine) and isinstance(b, Affine):
            return a + b * sign
        return _changed(a, b, lambda x, y: x + sign * y)

    return handler


def _changed(a: Known, b: Known, change: Callable[[float, float], float]) -> Known:
    """A truth or a choice of numbers, and one number."""
    a, b = (Choice(x, 1, 0) if isinstance(x, Truth) else x for x in (a, b))
    x, y = number_of(a), number_of(b)
    if isinstance(a, Choice) and y is not None:
        return Choice(a.truth, change(a.yes, y), change(a.no, y))
    if isinstance(b, Choice) and x is not None:
        return Choice(b.truth, change(x, b.yes), change(x, b.no))
    return None


def _product(a: Known, b: Known) -> Known:
    if isinstance(a, Truth) and isinstance(b, Truth):
        return a & b
    for one, other in ((a, b), (b, a)):
        factor = number_of(other)
        if isinstance(one, Affine) and factor is not None and math.isfinite(factor) and factor == int(factor):
            return one * int(factor)
    return _changed(a, b, operator.mul)


def _not_below(a: Known, b: Known, more: int = 0) -> Truth:
    """`a >= b + more`."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        return where_not_negative(a + b * -1 + -more)
    return UNKNOWN


def _equal(a: Known, b: Known) -> Truth:
    if isinstance(a, Affine) and isinstance(b, Affine):
        return _not_below(a, b) & _not_below(b, a)
    if isinstance(a, Truth) and isinstance(b, Truth):
        return (a & b) | (~a & ~b)
    return UNKNOWN


def _chosen(condition: Known, yes: Known, no: Known) -> Known:
    holds = as_truth(condition)
    if isinstance(yes, Truth) and isinstance(no, Truth):
        return (holds & yes) | (~holds & no)
    numbers = number_of(yes), number_of(no)
    if numbers[0] is not None and numbers[1] is not None:
        return Choice(holds, numbers[0], numbers[1])
    return None


_FUNCTIONS: dict[str, Callable[..., Known]] = {
    "add": _sum(1),
    "sub": _sum(-1),
    "rsub": lambda a, b: _sum(-1)(b, a),
    "mul": _product,
    "neg": lambda a: _product(a, Affine(0, 0, -1)),
    "ge": _not_below,
    "gt": lambda a, b: _not_below(a, b, 1),
    "le": lambda a, b: _not_below(b, a),
    "lt": lambda a, b: _not_below(b, a, 1),
    "eq": _equal,
    "ne": lambda a, b: ~_equal(a, b),
    "where": _chosen,
    "masked_fill": lambda value, condition, put: _chosen(condition, put, value),
    **{name: lambda a, b: as_truth(a) & as_truth(b) for name in ("bitwise_and", "logical_and")},
    **{name: lambda a, b: as_truth(a) | as_truth(b) for name in ("bitwise_or", "logical_or")},
    **{name: lambda a: ~as_truth(a) for name in ("bitwise_not", "logical_not")},
}
