"""Reading sizes from text without executing it; `graphflops.dims.parse_dim` is the way in.

The text goes through `ast.parse`, which only builds a tree, and the tree is walked here with limits on its depth and the
size of every number. Two spellings are read: the infix one that people and `str` write, and the call notation of
`sympy.srepr` as PyTorch stores it.

Fractions occur on the way (``floor(s/2 - 1/2)``), so a value being read is a pair of numerator and denominator; it becomes
an integer at a floor, a ceiling or the top. A top level that is not provably an integer is read as a division rounded down:
the file claims a size, so the division comes out even.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate

from graphflops.base.lazy import fractions
from graphflops.dims.atoms import FUNCTIONS, REAL_FUNCTIONS, RESERVED_WORDS, is_real
from graphflops.dims.division import ceil_div, floor_div, mod
from graphflops.dims.evaluation import evaluate
from graphflops.dims.expr import Dim, Expr, at_least, symbol, total
from graphflops.dims.relations import call, compare, dim_max, dim_min, where
from graphflops.errors import DimError

MAX_TEXT = 10_000  # characters, and so parts of an expression
MAX_DEPTH = 100  # nested calls, parentheses and operators; a chain like a + b + c is one level
MAX_EXPONENT = 16  # of a symbolic base; a number is bounded by its bits instead
MAX_BITS = 256  # of any integer
MAX_WORK = 200_000  # term pairs multiplied while reading one text
SIMPLE = 1000  # largest denominator of a fraction that replaces a floating constant

Ratio = tuple[Dim, Dim]  # numerator and nonzero denominator; an integer denominator is positive

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
        # Before ast.parse, whose own limits differ between Python versions.
        if max(accumulate((x in "([{") - (x in ")]}") for x in text), default=0) > MAX_DEPTH:
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


def simplest(number: float) -> fractions.Fraction:
    """What a floating constant stands for, 0.7 for 0.69999999999999996: the simplest fraction that rounds to it."""
    simple = fractions.Fraction(number).limit_denominator(SIMPLE)
    return simple if float(simple) == number else fractions.Fraction(repr(number))


def nearest_double(number: fractions.Fraction) -> Ratio:
    """A constant whose products are rounded as computers round them: 0.7 * 90 is less than 63. Exact over a power of two."""
    if number.denominator & (number.denominator - 1) == 0:
        return number.numerator, number.denominator
    constant = call("double", abs(number.numerator), number.denominator)
    return constant if number > 0 else -constant, 1


def floored_product(size: Dim, factor: float) -> Dim:
    """The product with a floating factor, rounded down."""
    arithmetic = RatioArithmetic()
    return arithmetic.floor(arithmetic.times((size, 1), nearest_double(simplest(factor))))[0]


class RatioArithmetic:
    """The operations."""

    work = 0  # term pairs that were multiplied

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
        if not (isinstance(above, int) and isinstance(below, int)):
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
        down = self.floor(value)
        if at_least(down[0], 0):
            return down
        return self.choose(self.compare(value, (0, 1), ">="), down, self.ceiling(value))

    def round(self, value: Ratio) -> Ratio:
        if isinstance(value[0], int) and isinstance(value[1], int):
            return round(fractions.Fraction(value[0], value[1])), 1
        argument = self.argument(value)
        return (call("round", argument) if is_real(argument) else argument), 1


class _Reader(RatioArithmetic):
    def read(self, node: ast.expr, depth: int) -> Ratio:
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
            if node.id in ("true", "false"):
                return int(node.id == "true"), 1
            if node.id in RESERVED_WORDS:
                raise DimError(f"{node.id} is no size")
            return symbol(node.id), 1
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
        found: list[Sequence[ast.expr]] = []
        for arg in node.args:
            if isinstance(arg, ast.Tuple):
                found.append(arg.elts)
            elif isinstance(arg, ast.Call) and ast.unparse(arg.func) == "ExprCondPair":
                found.append(arg.args)
        if not found or len(found) < len(node.args) or any(len(parts) != 2 for parts in found):
            raise DimError("Piecewise takes pairs of a value and a condition")
        pairs = [(self.read(value, depth), self.read(condition, depth)) for value, condition in found]
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
    "Mul Mult": (None, lambda reader, *args: reduce(reader.times, args, (1, 1))),
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


def _coefficients(dim: Dim) -> Sequence[int]:
    return tuple(dim.terms.values()) if isinstance(dim, Expr) else (dim,)
