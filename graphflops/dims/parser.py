"""Reading sizes from text without executing it; `graphflops.dims.parse_dim` is the way in.

The text goes through `ast.parse`, which only builds a tree, and the tree is walked here with limits on its
size, its depth and the size of every number. Two spellings are read: the infix one that people and `str`
write, and the call notation of `sympy.srepr` as PyTorch stores it.

Fractions occur on the way (``floor(s/2 - 1/2)``), so a value being read is a pair of numerator and
denominator; it becomes an integer at a floor, a ceiling or the top. A top level that is not provably an
integer is read as a division rounded down: the file claims a size, so the division comes out even.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from functools import partial, reduce

from graphflops.base.lazy import fractions
from graphflops.dims.atoms import FUNCTIONS, REAL_FUNCTIONS, RESERVED_WORDS
from graphflops.dims.expr import Dim, symbol
from graphflops.dims.ratios import MAX_BITS, Ratio, RatioArithmetic, nearest_double, simplest
from graphflops.dims.relations import call
from graphflops.errors import DimError

MAX_TEXT = 10_000  # characters
MAX_DEPTH = 100  # nested calls, parentheses and operators; a chain like a + b + c is one level
MAX_NODES = 10_000
_ONE: Ratio = (1, 1)
_NO_PAIRS = "Piecewise takes pairs of a value and a condition"

_ALIASES = {
    "LShift": "lshift",
    "RShift": "rshift",
    **{f"BitwiseFn_bitwise_{kind}": f"bitwise_{kind}" for kind in ("and", "or", "xor")},
    **{f"OpaqueUnaryFn_{name}": name for name in REAL_FUNCTIONS if name not in ("truediv", "double")},
}


def parse(text: str) -> Dim:
    """The dim that the text spells. Raises DimError, with one short message, for anything else."""
    shown = text if len(text) <= 60 else text[:57] + "..."
    try:
        if len(text) > MAX_TEXT:
            raise DimError(f"longer than {MAX_TEXT} characters")
        depth = 0
        for character in text:  # before ast.parse, whose own limits differ between Python versions
            depth += (character in "([{") - (character in ")]}")
            if depth > MAX_DEPTH:
                raise DimError(f"nested more than {MAX_DEPTH} deep")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about odd escapes and literals, not ours to show
                tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise DimError("not an expression") from None
        reader = _Reader()
        return reader.floor(reader.read(tree.body, 0))[0]
    except (DimError, ZeroDivisionError, RecursionError) as error:
        said = {ZeroDivisionError: "division by zero", RecursionError: "nested too deeply"}
        raise DimError(f"cannot read the size {shown!r}: {said.get(type(error), error)}") from None


class _Reader(RatioArithmetic):
    """Walks one tree; holds what that walk may still spend."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = 0

    def read(self, node: ast.expr, depth: int) -> Ratio:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise DimError(f"more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise DimError(f"nested more than {MAX_DEPTH} deep")
        depth += 1
        if isinstance(node, ast.Constant):
            if isinstance(node.value, int):  # True and False are 1 and 0 here as well
                if node.value.bit_length() > MAX_BITS:
                    raise DimError(f"a number of more than {MAX_BITS} bits")
                return int(node.value), 1
            if isinstance(node.value, float):
                return _decimal(repr(node.value))
            raise DimError(f"a {type(node.value).__name__} is not allowed in a size")
        if isinstance(node, ast.Name):
            return self.word(node.id)
        if isinstance(node, ast.BinOp):
            return self.chain(node, depth)
        if isinstance(node, ast.UnaryOp):
            return self.apply(_name(node.op), [self.read(node.operand, depth)])
        if isinstance(node, ast.BoolOp):
            return self.apply(_name(node.op), [self.read(part, depth) for part in node.values])
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = [self.read(side, depth) for side in (node.left, node.comparators[0])]
            return self.apply(_name(node.ops[0]), sides)
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        raise DimError(f"{type(node).__name__} is not allowed in a size")

    def word(self, name: str) -> Ratio:
        if name in ("true", "false"):
            return int(name == "true"), 1
        if name in RESERVED_WORDS:
            raise DimError(f"{name} is no size")
        return symbol(name), 1

    def chain(self, node: ast.BinOp, depth: int) -> Ratio:
        """A left-leaning run such as a + b - c, walked in a loop so that a long sum is not a deep one."""
        links: list[tuple[ast.operator, ast.expr]] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp):
            links.append((first.op, first.right))
            first = first.left
        summands = [self.read(first, depth)]
        for op, right in reversed(links):
            operand, name = self.read(right, depth), _name(op)
            if name in ("Add", "Sub"):
                summands.append(operand if name == "Add" else (-operand[0], operand[1]))
            else:
                summands = [self.apply(name, [self.sum(summands), operand])]
        return self.sum(summands)

    def call(self, node: ast.Call, depth: int) -> Ratio:
        inner = node.func
        if isinstance(inner, ast.Call) and not node.keywords and ast.unparse(inner.func) == "Function":
            name = _text_argument(inner, "Function")  # Function('f')(x): an opaque function by name
            args = [self.read(arg, depth) for arg in node.args]
            return self.apply(name, args) if name in FUNCTIONS else (call(name, *map(self.argument, args)), 1)
        if not isinstance(inner, ast.Name):
            raise DimError("only plain function names are allowed in a size")
        name = inner.id
        if name in ("Symbol", "Dummy"):
            return symbol(_text_argument(node, name)), 1
        if name == "Float":
            return _decimal(_text_argument(node, name))
        if any(keyword.arg != "evaluate" for keyword in node.keywords):
            raise DimError(f"{name} with a keyword argument")
        if name == "Piecewise":
            return self.piecewise(node, depth)
        return self.apply(name, [self.read(arg, depth) for arg in node.args])

    def piecewise(self, node: ast.Call, depth: int) -> Ratio:
        pairs: list[tuple[Ratio, Ratio]] = []
        for arg in node.args:
            parts: Sequence[ast.expr] = ()
            if isinstance(arg, ast.Tuple):
                parts = arg.elts
            elif isinstance(arg, ast.Call) and ast.unparse(arg.func) == "ExprCondPair":
                parts = arg.args
            if len(parts) != 2:
                raise DimError(_NO_PAIRS)
            pairs.append((self.read(parts[0], depth), self.read(parts[1], depth)))
        if not pairs:
            raise DimError(_NO_PAIRS)
        value = pairs[-1][0]  # where no condition holds the value is undefined, so the last is as good as any
        for other, condition in reversed(pairs[:-1]):
            value = self.choose(condition, other, value)
        return value

    def apply(self, name: str, args: list[Ratio]) -> Ratio:
        name = _ALIASES.get(name, name)
        if name in _SPELLED:
            count, action = _SPELLED[name]
            if count is not None and len(args) != count:
                raise DimError(f"{name} takes {count} argument{'s' * (count != 1)}, not {len(args)}")
            return action(self, *args)
        if name in FUNCTIONS:
            return call(name, *map(self.argument, args)), 1
        raise DimError(f"unknown function {name}")


def _name(operator: ast.AST) -> str:
    return type(operator).__name__


# By spelling of a function (for an operator, that of `ast`): its number of arguments, and how it is computed from them.
_ACTIONS: dict[str, tuple[int | None, Callable[..., Ratio]]] = {
    "Add": (None, lambda reader, *args: reader.sum(args)),
    "Mul Mult": (None, lambda reader, *args: reduce(reader.times, args, _ONE)),
    "Min min": (None, lambda reader, *args: reader.extreme("min", args)),
    "Max max": (None, lambda reader, *args: reader.extreme("max", args)),
    "And": (None, lambda reader, *args: reader.extreme("min", [*map(reader.truth, args)])),
    "Or": (None, lambda reader, *args: reader.extreme("max", [*map(reader.truth, args)])),
    "Not": (1, lambda reader, a: (1 - reader.truth(a)[0], 1)),
    "Integer Identity ToFloat float UAdd": (1, lambda _, a: a),
    "USub": (1, lambda _, a: (-a[0], a[1])),
    "Rational IntTrueDiv FloatTrueDiv truediv Div": (2, RatioArithmetic.divided),
    "double": (2, RatioArithmetic.double),
    "floor FloorToInt": (1, RatioArithmetic.floor),
    "ceiling ceil CeilToInt": (1, RatioArithmetic.ceiling),
    "FloorDiv CleanDiv": (2, RatioArithmetic.quotient),
    "CeilDiv": (2, lambda reader, a, b: reader.ceiling(reader.divided(a, b))),
    "Mod PythonMod": (2, RatioArithmetic.remainder),
    "ModularIndexing": (3, lambda reader, a, b, c: reader.remainder(reader.quotient(a, b), c)),
    "TruncToInt trunc": (1, RatioArithmetic.truncate),
    "RoundToInt round": (1, RatioArithmetic.round),
    "Pow PowByNatural FloatPow": (2, RatioArithmetic.power),
    "Abs abs": (1, lambda reader, a: reader.extreme("max", [a, (-a[0], a[1])])),
    "Where where": (3, RatioArithmetic.choose),
    "Eq Equality": (2, partial(RatioArithmetic.compare, op="==")),
    "Ne Unequality NotEq": (2, partial(RatioArithmetic.compare, op="!=")),
    "Lt StrictLessThan": (2, partial(RatioArithmetic.compare, op="<")),
    "Le LessThan LtE": (2, partial(RatioArithmetic.compare, op="<=")),
    "Gt StrictGreaterThan": (2, partial(RatioArithmetic.compare, op=">")),
    "Ge GreaterThan GtE": (2, partial(RatioArithmetic.compare, op=">=")),
}
_SPELLED = {name: action for names, action in _ACTIONS.items() for name in names.split()}


def _decimal(text: str) -> Ratio:
    """A decimal number: an integer as written, else the simplest fraction that is the same double."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = mantissa.lstrip("+-").replace(".", "", 1)
    small = len(exponent) <= 4 and (not exponent or exponent.lstrip("+-").isdecimal())
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 80 or not small:
        raise DimError("a decimal number that is not finite or too long")
    if exponent and abs(int(exponent)) > 80:
        raise DimError("a decimal number that is too large or too small")
    number = fractions.Fraction(text)
    if number.denominator > 1:
        number = simplest(float(text))
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
        raise DimError(f"a number of more than {MAX_BITS} bits")
    return nearest_double(number)


def _text_argument(node: ast.Call, name: str) -> str:
    """The one quoted argument of Symbol('s0', integer=True) and the like; constant keywords are remarks."""
    remarks = all(isinstance(keyword.value, ast.Constant) for keyword in node.keywords)
    if len(node.args) == 1 and remarks:
        value = node.args[0]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    raise DimError(f"{name} takes one quoted text")
