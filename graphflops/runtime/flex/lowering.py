"""Pointwise operators of score and mask functions in Triton's language.

Operands are text, cast as the comment above an operator's table says; `{0}` is the first. Operators have the canonical names
of `graphflops.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from graphflops.base.record import Record
from graphflops.errors import ModelError, shown
from graphflops.graph import Argument, Node, Opaque
from graphflops.ops import Op
from graphflops.tensor import DType

# Operands are cast to the result's type.
_ARITHMETIC = {
    "mul": "{0} * {1}", "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})",
    "fmod": "{0} - {1} * trunc({0} / {1})", "abs": "tl.abs({0})", "relu": "tl.maximum({0}, 0)",
    "square": "{0} * {0}", "clamp_min": "tl.maximum({0}, {1})", "clamp_max": "tl.minimum({0}, {1})",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "bitwise_left_shift": "{0} << {1}", "bitwise_right_shift": "{0} >> {1}",
}  # fmt: skip

# The same, for results that may be negative although no operand is.
_SIGNED = {
    "neg": "-{0}", "sign": "sign({0})", "sgn": "sign({0})",
    "reciprocal": "1 / {0}", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "expm1": "expm1({0})",
    "log": "tl.log({0})", "log2": "tl.log2({0})", "log10": "tl.log({0}) * 0.4342944819032518",
    "log1p": "log1p({0})", "sqrt": "tl.sqrt({0})", "rsqrt": "tl.rsqrt({0})", "sin": "tl.sin({0})",
    "cos": "tl.cos({0})", "tan": "tl.sin({0}) / tl.cos({0})", "sinh": "(tl.exp({0}) - tl.exp(-{0})) / 2",
    "cosh": "(tl.exp({0}) + tl.exp(-{0})) / 2", "tanh": "tanh({0})", "sigmoid": "tl.sigmoid({0})",
    "erf": "tl.erf({0})",
}  # fmt: skip

# Without effect on integers.
_ROUNDING = {
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "trunc": "trunc({0})", "round": "round_half_even({0})",
}  # fmt: skip

# Operands are cast to their common type; the result is a truth value.
_COMPARISON = {
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "isnan": "{0} != {0}", "isinf": 'tl.abs({0}) == float("inf")',
}  # fmt: skip

# Operands are converted to truth values.
_LOGICAL = {
    "logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}", "logical_not": "{0} == 0",
}  # fmt: skip


class Value(Record, frozen=True):
    """The text of a value, its Triton type ("" for a literal), and whether it is known to be zero or more."""

    text: str
    type: str
    natural: bool = False

    def cast(self, kind: str) -> str:
        """The text in a type; a literal takes the type of the value it meets."""
        if self.type in ("", kind):
            return self.text
        return f"({self.text} != 0)" if kind == "tl.int1" else f"{self.text}.to({kind})"

    def tensor(self, kind: str) -> Value:
        """The value as a Triton tensor, which a literal is not."""
        return self if self.type else full(self.text, kind, self.natural)


def full(text: str, kind: str, natural: bool) -> Value:
    """A Triton tensor filled with a literal."""
    return Value(f"tl.full([], {text}, {kind})", kind, natural)


def passes(op: Op) -> bool:
    """True if the result has the elements of the operand, up to their type."""
    return op.kind in ("identity", "cast") or op.name in ("expand", "reshape", "squeeze")


def lowered(node: Node, kind: str, operand: Callable[[Argument], Value]) -> Value | None:
    """The result of a call, in a Triton type; None for an operator without a translation. operand: reads an argument."""
    op, arguments = node.operator, node.arguments()
    # the number with which a call fills a tensor
    number = arguments.get("value") if op.kind == "creation" else None
    if op.name in ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"):
        number = int("ones" in op.name)
    if isinstance(number, (bool, int, float)):
        return full(literal(number), kind, number >= 0)
    if passes(op) or op.name == "copy":
        value = operand(arguments["source" if op.name == "copy" else "x"])
        return Value(value.tensor(kind).cast(kind), kind, value.natural)
    if op.name == "clamp":
        value = operand(arguments["x"])
        text, natural = value.tensor(kind).cast(kind), value.natural
        for end, function in (("low", "maximum"), ("high", "minimum")):
            if arguments.get(end) is not None:
                bound = operand(arguments[end])
                text = f"tl.{function}({text}, {bound.cast(kind)})"
                natural = (natural or bound.natural) if end == "low" else (natural and bound.natural)
        return Value(text, kind, natural)
    if op.name == "pow":
        return _power(operand(arguments["a"]), arguments["b"], operand, kind)
    values = [operand(value) for value in node.args if not isinstance(value, (DType, Opaque, tuple))]
    if op.name in ("add", "sub", "rsub"):
        (a, b), alpha = _texts(values, kind), arguments.get("alpha", 1)
        b = b if alpha == 1 else f"{b} * {literal(alpha)}"
        texts = {"add": f"{a} + {b}", "sub": f"{a} - {b}", "rsub": f"{b} - {a}"}
        return Value(texts[op.name], kind, op.name == "add" and _natural(values) and alpha == 1)
    if op.name in ("div", "floor_divide", "remainder"):
        return _divide(values, op.name, arguments.get("rounding_mode"), kind)
    if op.name == "where":
        condition, *choices = values
        chosen = ", ".join(choice.tensor(kind).cast(kind) for choice in choices)
        return Value(f"tl.where({condition.cast('tl.int1')}, {chosen})", kind, _natural(choices))
    return _by_table(op.name, values, kind)


def _by_table(name: str, values: Sequence[Value], kind: str) -> Value | None:
    natural = _natural(values)
    if name == "bitwise_not":
        text = values[0].cast(kind)
        return Value(f"{text} == 0" if kind == "tl.int1" else f"~{text}", kind)
    if name in _ROUNDING and "float" not in kind:
        return Value(_texts(values, kind)[0], kind, natural)
    for table, operands, result, is_natural in (
        ({**_ARITHMETIC, **_ROUNDING}, kind, kind, natural),
        (_SIGNED, kind, kind, False),
        (_COMPARISON, _common(values), "tl.int1", True),
        (_LOGICAL, "tl.int1", "tl.int1", True),
    ):
        if name in table:
            return Value(table[name].format(*_texts(values, operands)), result, is_natural)
    return None


def _divide(values: Sequence[Value], name: str, mode: Argument, kind: str) -> Value:
    a, b = _texts(values, kind)
    whole, natural = "int" in kind, _natural(values)
    if name == "remainder":
        function = "remainder" if whole else "float_remainder"
        return Value(f"{a} % {b}" if whole and natural else f"{function}({a}, {b})", kind, natural)
    floor = mode == "floor" or name == "floor_divide"
    if whole and (floor or mode == "trunc"):
        plain = natural or mode == "trunc"
        return Value(f"{a} // {b}" if plain else f"floor_divide({a}, {b})", kind, natural)
    rounding = "tl.floor({})" if floor else "trunc({})" if mode == "trunc" else "{}"
    return Value(rounding.format(f"{a} / {b}"), kind, natural)


def _power(base: Value, exponent: Argument, operand: Callable[[Argument], Value], kind: str) -> Value | None:
    text = base.tensor(kind).cast(kind)
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and 1 <= exponent <= 8:
        return Value(" * ".join([text] * int(exponent)), kind, base.natural)
    if exponent in (0.5, -0.5):
        return Value(f"tl.sqrt({text})" if exponent == 0.5 else f"tl.rsqrt({text})", kind)
    if "float" not in kind:
        return None
    return Value(f"power({text}, {operand(exponent).tensor(kind).cast(kind)})", kind)


def _texts(values: Sequence[Value], kind: str) -> list[str]:
    """Operands in one type; the first as a tensor, which Triton's functions require."""
    first, *rest = values
    return [first.tensor(kind).cast(kind), *(value.cast(kind) for value in rest)]


def _natural(values: Iterable[Value]) -> bool:
    return all(value.natural for value in values)


def _common(values: Sequence[Value]) -> str:
    types = {value.type for value in values if value.type}
    literals = [value.text for value in values if not value.type]
    for kind in ("tl.float64", "tl.float32"):
        if kind in types:
            return kind
    if any(not text.lstrip("-").isdigit() and text not in ("True", "False") for text in literals):
        return "tl.float32"
    ordered = ("tl.int64", "tl.int32", "tl.int16", "tl.int8", "tl.uint8")
    return next((kind for kind in ordered if kind in types), "tl.int1" if types else "tl.int32")


def literal(value: object) -> str:
    """A number as Triton source."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (bool, int, float)):
        return f"({value!r})" if value < 0 else repr(value)
    raise ModelError(f"{shown(str(value))} is no number")
