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
from fractions import Fraction
from functools import reduce

from graphflops.dims.atoms import FUNCTIONS, REAL_FUNCTIONS, RESERVED_WORDS, function_arity
from graphflops.dims.expr import Dim, Expr, symbol, total
from graphflops.dims.ratios import MAX_BITS, Ratio, RatioArithmetic, nearest_double, simplest
from graphflops.dims.relations import call
from graphflops.errors import DimError

MAX_TEXT = 10_000  # characters
MAX_DEPTH = 100  # nested calls, parentheses and operators; a chain like a + b + c is one level
MAX_NODES = 10_000
_NONE: Ratio = (0, 1)
_ONE: Ratio = (1, 1)
_NO_PAIRS = "Piecewise takes pairs of a value and a condition"

_COMPARE_NODES: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_COMPARE_NAMES = {
    **dict.fromkeys(("Eq", "Equality"), "=="),
    **dict.fromkeys(("Ne", "Unequality"), "!="),
    **dict.fromkeys(("Lt", "StrictLessThan"), "<"),
    **dict.fromkeys(("Le", "LessThan"), "<="),
    **dict.fromkeys(("Gt", "StrictGreaterThan"), ">"),
    **dict.fromkeys(("Ge", "GreaterThan"), ">="),
}
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
        return reader.floor(reader.read(tree.body, 0))
    except DimError as error:
        raise DimError(f"cannot read the size {shown!r}: {error}") from None
    except ZeroDivisionError:
        raise DimError(f"cannot read the size {shown!r}: division by zero") from None
    except RecursionError:
        raise DimError(f"cannot read the size {shown!r}: nested too deeply") from None


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
            value = self.read(node.operand, depth)
            if isinstance(node.op, ast.USub):
                return -value[0], value[1]
            if isinstance(node.op, ast.UAdd):
                return value
            if isinstance(node.op, ast.Not):
                return 1 - self.truth(value), 1
        if isinstance(node, ast.BoolOp):
            name = "min" if isinstance(node.op, ast.And) else "max"
            return self.extreme(name, [(self.truth(self.read(part, depth)), 1) for part in node.values])
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE_NODES:
            left, right = self.read(node.left, depth), self.read(node.comparators[0], depth)
            return self.compare(_COMPARE_NODES[type(node.ops[0])], left, right)
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
        value = self.read(first, depth)
        summands: list[Dim] = []  # added up together: one by one, a long sum would take quadratic time
        for op, right in reversed(links):
            operand = self.read(right, depth)
            if isinstance(op, (ast.Add, ast.Sub)):
                if isinstance(op, ast.Sub):
                    operand = -operand[0], operand[1]
                if operand[1] == 1 and value[1] == 1:
                    summands.append(operand[0])
                    continue
            if summands:
                value = total([value[0], *summands]), 1
                summands = []
            if type(op) not in _BINARY:
                raise DimError(f"{type(op).__name__} is not allowed in a size")
            value = _BINARY[type(op)](self, value, operand)
        return (total([value[0], *summands]), 1) if summands else value

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
        if name == "Add":
            is_whole = all(below == 1 for _, below in args)
            return (total(above for above, _ in args), 1) if is_whole else reduce(self.add, args, _NONE)
        if name == "Mul":
            return reduce(self.times, args, _ONE)
        if name in ("min", "Min", "max", "Max"):
            return self.extreme(name.lower(), args)
        if name in ("And", "Or"):
            return self.extreme("min" if name == "And" else "max", [(self.truth(arg), 1) for arg in args])
        name = _ALIASES.get(name, name)
        if name in _COMPARE_NAMES:
            self.expect(name, args, 2)
            return self.compare(_COMPARE_NAMES[name], args[0], args[1])
        if name in _FIXED:
            count, action = _FIXED[name]
            self.expect(name, args, count)
            return action(self, *args)
        if name in FUNCTIONS:
            self.expect(name, args, function_arity(name))
            return call(name, *(self.argument(arg) for arg in args)), 1
        raise DimError(f"unknown function {name}")

    def double(self, a: Ratio, b: Ratio) -> Ratio:
        """The floating number nearest to a fraction of two integers."""
        above, below = self.divided(a, b)
        if isinstance(above, Expr) or isinstance(below, Expr):
            raise DimError("double takes two integers")
        return nearest_double(Fraction(above, below))

    def expect(self, name: str, args: Sequence[Ratio], count: int) -> None:
        if len(args) != count:
            raise DimError(f"{name} takes {count} argument{'s' * (count != 1)}, not {len(args)}")


# By the spellings of a function: how many arguments it takes, and what it is of them.
_SPELLED: tuple[tuple[str, int, Callable[..., Ratio]], ...] = (
    ("Integer Identity ToFloat float", 1, lambda reader, a: a),
    ("Rational IntTrueDiv FloatTrueDiv truediv", 2, lambda reader, a, b: reader.divided(a, b)),
    ("double", 2, lambda reader, a, b: reader.double(a, b)),
    ("floor FloorToInt", 1, lambda reader, a: (reader.floor(a), 1)),
    ("ceiling ceil CeilToInt", 1, lambda reader, a: (reader.ceiling(a), 1)),
    ("FloorDiv CleanDiv", 2, lambda reader, a, b: (reader.floor(reader.divided(a, b)), 1)),
    ("CeilDiv", 2, lambda reader, a, b: (reader.ceiling(reader.divided(a, b)), 1)),
    ("Mod PythonMod", 2, lambda reader, a, b: reader.remainder(a, b)),
    (
        "ModularIndexing",
        3,
        lambda reader, a, b, c: reader.remainder((reader.floor(reader.divided(a, b)), 1), c),
    ),
    ("TruncToInt trunc", 1, lambda reader, a: (reader.truncate(a), 1)),
    ("RoundToInt round", 1, lambda reader, a: (reader.round(a), 1)),
    ("Pow PowByNatural FloatPow", 2, lambda reader, a, b: reader.power(a, b)),
    ("Abs abs", 1, lambda reader, a: reader.extreme("max", [a, (-a[0], a[1])])),
    ("Not", 1, lambda reader, a: (1 - reader.truth(a), 1)),
    ("Where where", 3, lambda reader, a, b, c: reader.choose(a, b, c)),
)
# A subtrahend comes negated.
_BINARY: dict[type[ast.operator], Callable[..., Ratio]] = {
    ast.Add: RatioArithmetic.add,
    ast.Sub: RatioArithmetic.add,
    ast.Mult: RatioArithmetic.times,
    ast.Div: RatioArithmetic.divided,
    ast.FloorDiv: lambda reader, a, b: (reader.floor(reader.divided(a, b)), 1),
    ast.Mod: RatioArithmetic.remainder,
    ast.Pow: RatioArithmetic.power,
    ast.LShift: lambda reader, a, b: (call("lshift", reader.argument(a), reader.argument(b)), 1),
    ast.RShift: lambda reader, a, b: (call("rshift", reader.argument(a), reader.argument(b)), 1),
}
_FIXED = {name: (count, action) for names, count, action in _SPELLED for name in names.split()}


def _decimal(text: str) -> Ratio:
    """A decimal number: an integer as written, else the simplest fraction that is the same double."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = mantissa.lstrip("+-").replace(".", "", 1)
    small = len(exponent) <= 4 and (not exponent or exponent.lstrip("+-").isdecimal())
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 80 or not small:
        raise DimError("a decimal number that is not finite or too long")
    if exponent and abs(int(exponent)) > 80:
        raise DimError("a decimal number that is too large or too small")
    number = Fraction(text)
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
