"""What is provable about two sizes, and operations that need it: comparisons, min, max, choices, broadcasting."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import ge
from typing import NamedTuple

from graphflops.dims.atoms import COMPARISONS, FUNCTIONS, Atom, Terms, function_arity, is_real, terms_of
from graphflops.dims.division import fixed_residue, floor_div
from graphflops.dims.evaluation import interval
from graphflops.dims.expr import MAX_NAME, OPERATIONS, Dim, Expr, arguments, at_least, build, opaque, total
from graphflops.dims.terms import leading_coefficient
from graphflops.errors import DimError, ShapeError

MAX_CHOICES = 64  # different arguments of one min or max
_FEW_CHOICES = 8  # this many may be compared whatever their size
_CHOICE_WORK = 100_000  # terms compared while choosing among more


class Meeting(NamedTuple):
    """Two sizes that must be equal, and are not provably so. is_broadcast: either may also be 1."""

    a: Dim
    b: Dim
    is_broadcast: bool = False


_met: list[Meeting] | None = None


def same(a: Dim, b: Dim) -> bool:
    """Whether a and b are provably equal whatever the sizes are."""
    if a is b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    spelled_out = _proof_form(difference)
    return isinstance(spelled_out, int) and spelled_out == 0


def _proof_form(dim: Expr) -> Dim:
    """The same value with its outer divisions in one of several possible spellings, so that more cancels."""
    if all(atom.kind not in ("//", "%") for atom in dim.atoms()):
        return dim
    return total(_proof_term(*term) for term in dim.terms.items())


def _proof_term(monomial: tuple[Atom, ...], coefficient: int) -> Dim:
    product: Dim = 1
    for atom in monomial:
        numerator, divisor = arguments(atom) if atom.kind == "//" else (0, 0)
        if isinstance(numerator, Expr) and isinstance(divisor, int) and not is_real(numerator):
            residue = None if coefficient % divisor else fixed_residue(numerator, divisor)
            if residue is not None:  # y*(x//y) = x - r, where r is what always remains
                product = product * (numerator - residue)
                coefficient //= divisor
                continue
        product = product * _proof_spelling(atom)
    return product * coefficient


def _proof_spelling(atom: Atom) -> Dim:
    if atom.kind == "%":  # x - y*(x//y)
        dividend, divisor = arguments(atom)
        quotient = floor_div(dividend, divisor)
        return dividend - divisor * (_proof_form(quotient) if isinstance(quotient, Expr) else quotient)
    itself = build({(atom,): 1})
    if atom.kind != "//":
        return itself
    numerator, divisor = arguments(atom)
    if isinstance(numerator, int) or not isinstance(divisor, int) or is_real(numerator):
        return itself
    # s//2 = s - (s + 1)//2: both are kept as they come, and here one is chosen.
    mirrored = divisor - 1 - numerator
    assert isinstance(mirrored, Expr)
    split = {monomial: divmod(coefficient, divisor) for monomial, coefficient in mirrored.terms.items()}
    rest = build({monomial: part for monomial, (_, part) in split.items()})
    if str(rest) >= str(numerator):
        return itself
    return -(build({monomial: whole for monomial, (whole, _) in split.items()}) + opaque("//", rest, divisor))


def differ(a: Dim, b: Dim) -> bool:
    """Whether a and b are provably different for every value of the sizes."""
    difference = a - b
    if isinstance(difference, int):
        return difference != 0
    low, high = interval(difference)
    if low > 0 or high < 0:
        return True
    # 2*x + 1 is never 0: the constant is no multiple of what divides every other term.
    constant = difference.terms.get((), 0)
    content = math.gcd(*(coefficient for monomial, coefficient in difference.terms.items() if monomial))
    return constant % content != 0 and not is_real(difference)


def dim_min(*dims: Dim) -> Dim:
    """The smallest of the dims, without those provably never the smallest. Raises DimError for none."""
    return _extreme("min", dims)


def dim_max(*dims: Dim) -> Dim:
    """The largest of the dims, without those provably never the largest. Raises DimError for none."""
    return _extreme("max", dims)


def not_exceeded(dims: Sequence[Dim]) -> Sequence[Dim]:
    """The dims, in order, without those that another exceeds term by term; all of them if a term may be negative."""
    monomials = {monomial for dim in dims for monomial in terms_of(dim) if monomial}
    is_small = len(monomials) * len(dims) <= _CHOICE_WORK
    if not is_small or not all(at_least(build({monomial: 1}), 0) for monomial in monomials):
        return dims
    kept: set[Dim] = set()
    most: list[list[int]] = []  # factors of the dims so far, which have constants at least as large
    sums = {dim: (terms_of(dim).get((), 0), sum(terms_of(dim).values())) for dim in dims}
    for dim in sorted(dims, key=sums.__getitem__, reverse=True):
        own = [terms_of(dim).get(monomial, 0) for monomial in monomials]
        if not any(all(map(ge, other, own)) for other in most):
            kept.add(dim)
            most = [*(other for other in most if not all(map(ge, own, other))), own]
    return [dim for dim in dims if dim in kept]


def _extreme(kind: str, dims: Iterable[Dim]) -> Dim:
    flat: set[Dim] = set()
    for dim in dims:
        atom = dim.as_atom() if isinstance(dim, Expr) else None
        if atom is not None and atom.kind == kind:
            flat.update(arguments(atom))
        else:
            flat.add(dim)
    if not flat:
        raise DimError(f"{kind} of no sizes")
    if len(flat) > _FEW_CHOICES and (
        len(flat) > MAX_CHOICES or len(flat) * sum(len(terms_of(dim)) for dim in flat) > _CHOICE_WORK
    ):
        raise DimError(f"symbolic size grew past a {kind} of {MAX_CHOICES} sizes")

    def covers(kept: Dim, other: Dim) -> bool:
        return at_least(other, kept) if kind == "min" else at_least(kept, other)

    chosen: list[Dim] = []
    for dim in sorted(flat, key=lambda dim: (0, dim, "") if isinstance(dim, int) else (1, 0, str(dim))):
        if not any(covers(kept, dim) for kept in chosen):
            chosen = [kept for kept in chosen if not covers(dim, kept)]
            chosen.append(dim)
    return chosen[0] if len(chosen) == 1 else opaque(kind, *chosen)


def compare(op: str, a: Dim, b: Dim) -> Dim:
    """1 where ``a op b`` holds and 0 where it does not: an int where provable, else an atom. op: == != < <= > or >=."""
    if op not in COMPARISONS:
        raise DimError(f"unknown comparison {op!r}")
    if isinstance(a, int) and isinstance(b, int):
        return int(COMPARISONS[op](a, b))
    if op in (">", ">="):
        return compare("<" if op == ">" else "<=", b, a)
    strict = op in ("<", "!=")
    if same(a, b):
        return int(not strict)
    if op in ("==", "!="):
        if differ(a, b):
            return int(strict)
    else:
        low, high = interval(b - a)
        if low > 0 or (low == 0 and not strict):
            return 1
        if high < 0 or (high == 0 and strict):
            return 0
    # Both sides without their common part, so that s + 1 <= t + 1 and s <= t are one comparison.
    difference = b - a
    assert isinstance(difference, Expr)
    content = math.gcd(*difference.terms.values())
    if op in ("==", "!=") and leading_coefficient(difference) > 0:
        content = -content  # either order says the same: take the one with the leading term on the left
    left: Terms = {}
    right: Terms = {}
    for monomial, coefficient in difference.terms.items():
        side = right if coefficient // content > 0 else left
        side[monomial] = abs(coefficient // content)
    return opaque(op, build(left), build(right))


def where(condition: Dim, a: Dim, b: Dim) -> Dim:
    """The choice of a where the condition is nonzero, else b."""
    if isinstance(condition, int):
        return a if condition else b
    if a is b or same(a, b):
        return a
    return opaque("where", condition, a, b)


def call(name: str, *args: Dim) -> Dim:
    """The named function of the arguments, as an opaque atom; a plain int where the value is one and known. A function that
    is unknown counts as integer-valued. Raises DimError for a name that is no identifier.
    """
    if not (name.isascii() and name.isidentifier()) or len(name) > MAX_NAME:
        raise DimError("a function's name must be an identifier")
    if name in FUNCTIONS and len(args) != function_arity(name):
        raise DimError(f"{name} takes {function_arity(name)} arguments, not {len(args)}")
    if name in ("lshift", "rshift") and isinstance(args[1], int) and 0 <= args[1] <= 256:
        return args[0] * (1 << args[1]) if name == "lshift" else floor_div(args[0], 1 << args[1])
    if name == "pow" and isinstance(args[0], Expr) and isinstance(args[1], int) and args[1] >= 0:
        return args[0] ** args[1]
    numbers = [arg for arg in args if isinstance(arg, int)]
    if name in FUNCTIONS and len(numbers) == len(args):
        with suppress(ArithmeticError, ValueError):  # no value there, or one too large
            value = FUNCTIONS[name](*numbers)
            # Transcendental functions have integer values only at 0 and 1: elsewhere a float that looks like an integer was
            # rounded, such as tanh(50) to 1.0.
            if value == int(value) and (not isinstance(value, float) or numbers[0] in (0, 1)):
                return int(value)
    return opaque("call", *args, name=name)


# Sizes that must be equal, and broadcasting.


@contextmanager
def meetings() -> Iterator[list[Meeting]]:
    """Collects the pairs of sizes that meet, while it is open."""
    global _met
    around, _met = _met, []
    try:
        yield _met
    finally:
        _met = around


def meet(a: Dim, b: Dim, problem: str = "") -> Dim:
    """The simpler of two sizes that must be equal. Raises ShapeError (problem: its text) if they provably differ."""
    if same(a, b):
        return a
    if differ(a, b):
        raise ShapeError(problem or f"sizes {a} and {b} differ")
    if _met is not None:
        _met.append(Meeting(a, b))
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    return min(a, b, key=_unsuitability)


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that numpy broadcasting of the shapes gives, aligned at the last dimension.

    1 gives way to anything, and a symbolic size to an integer other than 1, which it must then be, or 1. Of two symbolic
    sizes that may be equal, one provably at least 2 wins, then the simpler (fewer terms, lower degree, fewer nested
    operations), then the first. Raises ShapeError for sizes that provably differ.
    """
    result: list[Dim] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for place, b in enumerate(shape, len(result) - len(shape)):
            a = result[place]
            if a is b or b == 1 or a == 1:
                result[place] = b if a == 1 else a
                continue
            numbers = [dim for dim in (a, b) if isinstance(dim, int)]
            if len(numbers) == 1 or not same(a, b):
                # A size beside a number may also be 1.
                if differ(a, b) and (len(numbers) != 1 or (differ(a, 1) and differ(b, 1))):
                    raise ShapeError(f"sizes {a} and {b} do not broadcast")
                if _met is not None:
                    _met.append(Meeting(a, b, is_broadcast=True))
                # At run time they are equal or one is 1: a number, or a size that cannot be 1, is the result.
                result[place] = numbers[0] if numbers else min(a, b, key=_unsuitability)  # type: ignore[arg-type]
    return tuple(result)


def _unsuitability(dim: Expr) -> tuple[bool, int, int, int]:
    depth = max(atom.depth for atom in dim.atoms())
    return not at_least(dim, 2), len(dim.terms), max(map(len, dim.terms)), depth


OPERATIONS["call"] = lambda name, args: call(name, *args)
OPERATIONS["min"] = lambda _, args: dim_min(*args)
OPERATIONS["max"] = lambda _, args: dim_max(*args)
OPERATIONS["where"] = lambda _, args: where(*args)
for _comparison in COMPARISONS:
    OPERATIONS[_comparison] = lambda _, args, op=_comparison: compare(op, *args)  # type: ignore[misc]
