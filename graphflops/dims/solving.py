"""Sizes computed from one other size, `2*h`, `h + 1`, `h//2`: which they can be, and what the other then is. Exact."""

import math
from collections.abc import Callable

from graphflops.dims.evaluation import evaluate
from graphflops.dims.expr import Dim, Expr, arguments

LARGEST_SIZE = 2**48  # elements along one axis; past this a typing error is likelier than a tensor


def affine(size: Dim) -> tuple[str, int, int] | None:
    """(symbol, slope, offset) of a size that is `slope * symbol + offset`; None for any other."""
    if isinstance(size, int):
        return None
    ((monomial, slope), *_) = ((m, c) for m, c in size.terms.items() if m)
    if len(size.terms) > 1 + (() in size.terms) or len(monomial) > 1 or monomial[0].kind != "symbol":
        return None
    return monomial[0].name, slope, size.terms.get((), 0)


def symbol_of(size: Dim) -> str:
    """The symbol that a size is, "" where it is none."""
    line = affine(size)
    return line[0] if line is not None and line[1:] == (1, 0) else ""


def sizes_taken(size: Expr, low: int | None, high: int | None) -> range | None:
    """A range of the values of a size while its one symbol goes from low to high; None if it is not monotone."""
    ends = _values(size, 0 if low is None else low, LARGEST_SIZE if high is None else high)
    if ends is None:
        return None
    step = math.gcd(*(factor for monomial, factor in size.terms.items() if monomial))
    least, most = min(ends), min(max(ends), LARGEST_SIZE)
    least += max(-(least // step), 0) * step  # no size is negative
    return range(least, most + 1, step)


def solution(
    size: Expr, value: int, low: int | None = None, high: int | None = None, like: int | None = None
) -> int | None:
    """The value of the one symbol of a size at which the size has a value; None if no value from low to high gives it.

    like: among several solutions (`h//2`), take the one with the same remainder as this; by default the least.
    """
    lowest, highest = 0 if low is None else low, LARGEST_SIZE if high is None else high
    linear = affine(size)
    if linear is not None:
        found, rest = divmod(value - linear[2], linear[1])
        return found if rest == 0 and lowest <= found <= highest else None
    ends = _values(size, lowest, highest)
    if ends is None:
        return None
    (name,) = size.symbols
    grows = 1 if ends[0] <= ends[1] else -1

    def reaches(least: int) -> Callable[[int], bool]:
        return lambda point: grows * (evaluate(size, {name: point}) or 0) >= grows * value + least

    first, after = (first_from(lowest, highest + 1, reaches(least)) for least in (0, 1))
    if first == after:
        return None
    return first if like is None else first + (like - first) % (after - first)


def common(one: range, other: range) -> range:
    """The numbers in both of two ranges."""
    divisor = math.gcd(one.step, other.step)
    turns, rest = divmod(other.start - one.start, divisor)
    if rest:
        return range(0)
    cycle, step = other.step // divisor, one.step * other.step // divisor
    met = one.start + one.step * (turns * pow(one.step // divisor, -1, cycle) % cycle)
    return range(met + max(-((met - other.start) // step), 0) * step, min(one.stop, other.stop), step)


def _values(size: Expr, low: int, high: int) -> tuple[int, int] | None:
    """The values of a monotone size at both ends of its symbol's range; None for one that is not provably monotone."""
    if len(size.symbols) != 1 or not (_grows(size) or _grows(-size)):
        return None
    (name,) = size.symbols
    ends = [evaluate(size, {name: point}) for point in (low, high)]
    return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


def _grows(size: Dim) -> bool:
    """Whether a size provably never falls while its symbols grow: sums of products and of floor divisions of such sizes."""
    if isinstance(size, int):
        return True
    for atom in size.atoms():
        above, below = arguments(atom) if atom.kind == "//" else (0, 1)
        if atom.kind not in ("symbol", "//") or not isinstance(below, int) or below <= 0 or not _grows(above):
            return False
    return all(factor > 0 for monomial, factor in size.terms.items() if monomial)


def first_from(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first integer from `low` on at which a condition holds that then holds forever; `high` if none below it does."""
    while low < high:  # `bisect` takes no range of more than 2**63 integers
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
