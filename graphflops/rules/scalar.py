"""Arithmetic on sizes and other Python numbers: free, and exact if the numbers are known."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value, free
from graphflops.dims import Dim, Expr, at_least, call, compare, dim_max, dim_min, floor_div, mod, total, where
from graphflops.dims.functions import FUNCTIONS, MAX_POWER_BITS
from graphflops.rules.registry import rule
from graphflops.rules.signs import if_negative, remainder_of_dividend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Function = Callable[..., Value]


def number(*values: Value) -> Estimate:
    """An estimate whose results are numbers."""
    return free(*values, alias=False)


def applied(exact: Function, symbolic: Function, *operands: Value) -> Estimate:
    """A function of numbers: `exact` of plain ones, `symbolic` of sizes; no value where it has none, or one too long."""
    dims = _sizes(operands) if any(isinstance(operand, Expr) for operand in operands) else None
    function, arguments = (exact, operands) if dims is None else (symbolic, dims)
    if not all(
        isinstance(argument, (int, float, Expr)) for argument in arguments
    ):  # a file may give texts and lists
        return number(None)
    try:
        result = function(*arguments)
    except (ArithmeticError, TypeError, ValueError):  # the program may never execute it
        return number(None)
    too_long = isinstance(result, int) and result.bit_length() > MAX_POWER_BITS
    return number(None if too_long or isinstance(result, complex) else result)


def _sizes(operands: Sequence[Value]) -> list[Dim] | None:
    """The operands as sizes; None if one of them is not an integer."""
    whole = [int(x) if isinstance(x, float) and x.is_integer() else x for x in operands]
    return (
        [x for x in whole if isinstance(x, (int, Expr))]
        if all(isinstance(x, (int, Expr)) for x in whole)
        else None
    )


def unary(keys: str, exact: Function, symbolic: Function) -> None:
    """Register a function of one number."""

    @rule(*keys.split())
    def apply(a: Value) -> Estimate:
        """The function's value."""
        return applied(exact, symbolic, a)


def binary(keys: str, exact: Function, symbolic: Function) -> None:
    """Register a function of two numbers."""

    @rule(*keys.split())
    def apply(a: Value, b: Value) -> Estimate:
        """The function's value."""
        return applied(exact, symbolic, a, b)


def _floor(a: Dim) -> Dim:
    return floor_div(a, 1)


def _ceil(a: Dim) -> Dim:
    return -floor_div(-a, 1)


def _absolute(a: Dim) -> Dim:
    return a if at_least(a, 0) else dim_max(a, -a)


def _truncated(a: Dim) -> Dim:
    return if_negative(a, _ceil(a), _floor(a))


def _power(a: float, b: float) -> float:
    """A power; an integer one of at most as many digits as formulas may have."""
    power: float = float(a) ** b if b < 0 else FUNCTIONS["pow"](a, b)
    return power


unary("math.trunc torch.sym_int builtins.int", int, _truncated)
unary("math.floor", math.floor, _floor)
unary("math.ceil", math.ceil, _ceil)
unary("torch.sym_float builtins.float", float, lambda a: a)
unary("builtins.round", round, lambda a: call("round", a))
unary("_operator.neg", operator.neg, operator.neg)
unary("_operator.pos", operator.pos, operator.pos)
unary("_operator.abs builtins.abs math.fabs", abs, _absolute)
unary("torch.sym_not _operator.not_", operator.not_, lambda a: compare("==", a, 0))
unary("_operator.truth builtins.bool", bool, lambda a: compare("!=", a, 0))
_CIRCULAR = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")
for _name in ("sqrt", "log", "log2", "exp", *_CIRCULAR):
    unary(
        f"math.{_name} torch.sym_{_name} torch._sym_{_name}",
        getattr(math, _name),
        lambda a, name=_name: call(name, a),
    )

binary("_operator.add", operator.add, operator.add)
binary("_operator.sub", operator.sub, operator.sub)
binary("_operator.mul", operator.mul, operator.mul)
binary("_operator.floordiv", operator.floordiv, floor_div)
binary("_operator.mod", operator.mod, mod)
binary("math.fmod", math.fmod, remainder_of_dividend)
binary("_operator.truediv", operator.truediv, lambda a, b: call("truediv", a, b))
binary("_operator.pow", _power, operator.pow)
binary("math.pow", math.pow, operator.pow)
binary("_operator.and_", operator.and_, lambda a, b: call("bitwise_and", a, b))
binary("_operator.or_", operator.or_, lambda a, b: call("bitwise_or", a, b))
binary("_operator.xor", operator.xor, lambda a, b: call("bitwise_xor", a, b))
binary("_operator.lshift", FUNCTIONS["lshift"], lambda a, b: call("lshift", a, b))
binary("_operator.rshift", operator.rshift, lambda a, b: call("rshift", a, b))
binary("torch.sym_max builtins.max", max, dim_max)
binary("torch.sym_min builtins.min", min, dim_min)
for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    binary(f"_operator.{_name}", getattr(operator, _name), lambda a, b, sign=_sign: compare(sign, a, b))


@rule("torch.sym_ite")
def choose(b: Value, t: Value, f: Value) -> Estimate:
    """One of two numbers."""
    return applied(lambda b, t, f: t if b else f, where, b, t, f)


@rule("torch.sym_sum")
def sym_sum(args: Sequence[Value]) -> Estimate:
    """A sum of any number of sizes."""
    return applied(lambda *terms: sum(terms), lambda *terms: total(terms), *args)


@rule("_operator.getitem")
def getitem(a: Sequence[Value], b: int) -> Estimate:
    """One result of several."""
    return free(a[b])
