"""Known contents of small tensors by index, and through ONNX arithmetic: integers exactly, floats as their type rounds them.

Programs also compute sizes in floating point: `floor(height * 0.5)`. Contents of a floating tensor are floats, or
quotients of symbolic sizes, in which a constant stands for the simplest fraction that rounds to it.
"""

import math
import operator
import struct
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Union

from graphflops import dims
from graphflops.base.record import replace
from graphflops.dims import Dim, Expr
from graphflops.dims.atoms import COMPARISONS
from graphflops.dims.parser import SIMPLE, RatioArithmetic
from graphflops.errors import DimError
from graphflops.rules import shapes
from graphflops.rules.shapes import aligned, few, in_type, nested
from graphflops.tensor import FLOAT32, Contents, DType, TensorType, flat

Number = Union[Dim, float]
Place = tuple[int, ...]
FOLLOWED = 64  # elements; tensors that programs compute sizes with hold one or two entries per axis
_PACKED = {"float16": "e", "float32": "f", "float64": "d"}


def folded(function: Callable[..., Number], out: TensorType, *operands: TensorType) -> TensorType:
    """`out` with the function of the operands' contents, broadcast, if these are known."""
    known = [(x.rank, x.value) for x in operands if x.value is not None]
    if few(out.shape, FOLLOWED) is None or len(known) < len(operands):
        return out

    def stored(*numbers: Number) -> Number:
        return converted(function(*numbers), out.dtype)

    return _holding(out, lambda: aligned(stored, out.shape, known))


def _holding(out: TensorType, contents: Callable[[], Contents | None]) -> TensorType:
    """`out` with contents; unchanged if one of them is unknown, or is a value that the program may never compute."""
    try:
        return replace(out, value=contents())
    except (ArithmeticError, DimError, LookupError, ValueError):
        return out


def reduced(
    function: Callable[[Sequence[Number]], Number], out: TensorType, x: TensorType, gone: Collection[int]
) -> TensorType:
    """`out` with the contents of `x` reduced by the function over the axes `gone`."""
    sizes = few(x.shape, FOLLOWED)
    if x.value is None or sizes is None:
        return out
    groups: dict[tuple[int, ...], list[Number]] = {}
    for place, number in zip(product(*map(range, sizes)), flat((x.value,)), strict=True):
        kept = tuple(index for axis, index in enumerate(place) if axis not in gone)
        groups.setdefault(kept, []).append(number)
    places = product(*(range(size) for axis, size in enumerate(sizes) if axis not in gone))

    def contents() -> Contents | None:
        exact = [function(groups.get(place, [])) for place in places]
        results = [converted(number, out.dtype) for number in exact]
        # Kernels differ in the result of an overflow.
        overflows = out.dtype.kind in ("int", "uint") and results != exact
        return out.value if overflows else nested(iter(results), out.shape)

    return _holding(out, contents)


def converted(number: Number, dtype: DType) -> Number:
    """The number converted to an element type; raises ValueError if the result is unknown."""
    if dtype.kind == "bool":
        truth = isinstance(number, Expr) and dims.at_least(number, 0) and dims.at_least(1, number)
        return number if truth else compared("!=", number, 0)
    if dtype.kind == "float":
        return number if isinstance(number, Expr) else _rounded(number, dtype)
    if dtype.kind not in ("int", "uint"):
        raise ValueError(f"contents of {dtype} are not followed")
    if isinstance(number, float):
        number = int(number)
        if in_type(number, dtype) != number:  # the result of an overflow depends on the machine
            raise ValueError(f"{number} is no {dtype}")
    # towards zero
    whole = in_type(shapes.divided(*fraction(number)) if isinstance(number, Expr) else int(number), dtype)
    if whole is None:
        raise ValueError(f"{number} may be no {dtype}")
    return whole


def _rounded(number: float, dtype: DType) -> float:
    if dtype.name not in _PACKED:
        raise ValueError(f"contents of {dtype} are not followed")
    code = _PACKED[dtype.name]
    return float(struct.unpack(code, struct.pack(code, number))[0])


def fraction(number: Number) -> tuple[Dim, Dim]:
    """Numerator and denominator; a floating constant is the simplest fraction that its float type rounds to it."""
    if isinstance(number, float):
        if number.is_integer():
            return int(number), 1
        simple, exact = Fraction(number).limit_denominator(SIMPLE), Fraction(number)
        taken = simple if number in (float(simple), _rounded(float(simple), FLOAT32)) else exact
        return taken.numerator, taken.denominator
    if isinstance(number, Expr) and len(number.terms) == 1:
        ((atoms, coefficient),) = number.terms.items()
        if coefficient == 1 and len(atoms) == 1 and (atoms[0].kind, atoms[0].name) == ("call", "truediv"):
            numerator, denominator = dims.arguments(atoms[0])
            return numerator, denominator
    return number, 1


def quotient(numerator: Dim, denominator: Dim) -> Number:
    """A quotient in lowest terms; an integer if it provably is one."""
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator if denominator == 1 else numerator / denominator
    arithmetic = RatioArithmetic()
    return arithmetic.argument(arithmetic.ratio(numerator, denominator))


def _sizes(*numbers: Number) -> list[Dim]:
    """The numbers as sizes; raises ValueError if one is not an integer."""
    fractions = [fraction(x) for x in numbers]
    if any(denominator != 1 for _, denominator in fractions):
        raise ValueError("of fractions of sizes this is not followed")
    return [numerator for numerator, _ in fractions]


def _of(exact: Callable[..., Number], symbolic: Callable[..., Number]) -> Callable[..., Number]:
    """A function of numbers: `exact` if all are plain, `symbolic` if one is a formula."""

    def function(*numbers: Number) -> Number:
        plain = [x for x in numbers if not isinstance(x, Expr)]
        return exact(*plain) if plain and len(plain) == len(numbers) else symbolic(*numbers)

    return function


def _of_sizes(exact: Callable[..., Number], symbolic: Callable[..., Dim]) -> Callable[..., Number]:
    return _of(exact, lambda *numbers: symbolic(*_sizes(*numbers)))


def _of_fractions(exact: Callable[..., Number], symbolic: Callable[..., Number]) -> Callable[..., Number]:
    """symbolic: takes numerator and denominator of the first number, then of the second."""
    return _of(exact, lambda a, b: symbolic(*fraction(a), *fraction(b)))


add = _of_fractions(operator.add, lambda p, q, r, s: quotient(p * s + r * q, q * s))
multiply = _of_fractions(operator.mul, lambda p, q, r, s: quotient(p * r, q * s))
divide = _of_fractions(operator.truediv, lambda p, q, r, s: quotient(p * s, q * r))
remainder = _of_sizes(operator.mod, dims.mod)  # with the divisor's sign
# It has the dividend's sign; onnxruntime also computes it for integers in double precision.
remainder_of_dividend = _of_sizes(math.fmod, shapes.remainder_of_dividend)
power = _of_sizes(math.pow, lambda a, b: dims.call("pow", a, b))
square_root = _of_sizes(math.sqrt, lambda a: dims.call("sqrt", a))  # of a size need not be whole
negate = _of(operator.neg, lambda a: multiply(a, -1))
subtract = _of_fractions(operator.sub, lambda p, q, r, s: quotient(p * s - r * q, q * s))
divide_whole = _of_sizes(shapes.divided, shapes.divided)  # towards zero
floor = _of(math.floor, lambda a: dims.floor_div(*fraction(a)))
ceil = _of(math.ceil, lambda a: negate(floor(negate(a))))
nearest = _of(round, lambda a: a if fraction(a)[1] == 1 else dims.call("round", a))  # halves to the even
smallest = _of_sizes(lambda *numbers: min(numbers), dims.dim_min)
largest = _of_sizes(lambda *numbers: max(numbers), dims.dim_max)
magnitude = _of(abs, lambda a: a if dims.at_least(a, 0) else largest(a, negate(a)))


def compared(relation: str, a: Number, b: Number) -> Number:
    """1 where the relation holds, else 0."""
    exact = COMPARISONS[relation]
    function = _of_fractions(
        lambda x, y: int(exact(x, y)), lambda p, q, r, s: dims.compare(relation, p * s, r * q)
    )
    return function(a, b)


def total(numbers: Sequence[Number]) -> Number:
    """A sum of any number of terms."""
    return reduce(add, (0, *numbers))


def product_of(numbers: Sequence[Number]) -> Number:
    """A product of any number of factors."""
    return reduce(multiply, (1, *numbers))


def sign(a: Number) -> Number:
    """-1, 0 or 1."""
    return subtract(compared(">", a, 0), compared("<", a, 0))


def chosen(condition: Number, a: Number, b: Number) -> Number:
    """The first of two numbers if the condition is not zero, else the second."""
    if isinstance(condition, Expr):
        return dims.where(condition, *_sizes(a, b))
    return a if condition else b


Known = dict[Place, Number]  # contents by index, in row-major order


def known_contents(x: TensorType) -> Known | None:
    """The contents of a small tensor; None if unknown."""
    shape = fixed(x.shape)
    if x.value is None or shape is None:
        return None
    return dict(zip(product(*map(range, shape)), flat((x.value,)), strict=True))


def fixed(shape: Sequence[Dim]) -> Place | None:
    """The shape in plain integers; None if a size is unknown or the tensor has too many elements to follow."""
    return few(shape, FOLLOWED)


def filled(out: TensorType, entry: Callable[[Place], Number | None]) -> TensorType:
    """`out` with contents computed by index; unchanged if one of them is unknown."""
    if (shape := fixed(out.shape)) is None:
        return out

    def contents() -> Contents | None:
        found = [entry(place) for place in product(*map(range, shape))]
        known = [x for x in found if x is not None]
        return nested(iter(known), shape) if len(known) == len(found) else out.value

    return _holding(out, contents)


def moved(x: TensorType, out: TensorType, source: Callable[[Place], Sequence[int]]) -> TensorType:
    """`out` with the contents of `x`, if known; `source` maps each index of `out` to an index of `x`."""
    known = known_contents(x)
    return out if known is None else filled(out, lambda place: known[tuple(source(place))])


def wrapped(index: Number | None, length: Dim) -> int:
    """A literal index counted from the front; IndexError if it is unknown or out of range."""
    if not isinstance(index, int) or not isinstance(length, int) or not -length <= index < length:
        raise IndexError(f"index {index} of {length}")
    return index % length
