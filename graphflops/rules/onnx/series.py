"""Formulas of a loop index: their sum over all iterations, and the number of iterations for which a comparison holds."""

from __future__ import annotations

from itertools import pairwise

from graphflops.dims import Dim, Expr, arguments, at_least, ceil_div, floor_div, prod, same, total

_DEGREE = 4  # largest degree of a polynomial that is summed
_FAR = 10**6  # a turn at which a polynomial found from the first turns is tried once more


def at_turn(formula: Dim, turn: str, index: Dim) -> Dim:
    """A formula at one iteration."""
    return formula.substitute({turn: index}) if isinstance(formula, Expr) else formula


def growth(formula: Dim, turn: str, count: Dim) -> Dim | None:
    """By how much the sum of a formula over turns 0, 1, ... `count` - 1 exceeds `count` times its value at turn 0.

    None where the formula is no polynomial of the turn, or one that may fall.
    """
    differences = _differences(formula, turn)
    if differences is None or not all(at_least(each, 0) for each in differences[1:]):
        return None
    return total(_choose(count, order + 1) * each for order, each in enumerate(differences) if order > 0)


def _differences(formula: Dim, turn: str) -> list[Dim] | None:
    """The differences of all orders at turn 0, as far as they are not zero: Newton's form of a polynomial."""
    row = [at_turn(formula, turn, index) for index in range(_DEGREE + 3)]
    first: list[Dim] = []
    while not all(same(value, 0) for value in row):
        if len(first) > _DEGREE:
            return None
        first.append(row[0])
        row = [after - before for before, after in pairwise(row)]
    far = total(_choose(_FAR, place) * value for place, value in enumerate(first))
    return first if same(far, at_turn(formula, turn, _FAR)) else None


def _choose(count: Dim, taken: int) -> Dim:
    """In how many ways so many of `count` things can be taken."""
    factorial = prod(range(1, taken + 1))
    return floor_div(prod(count - gone for gone in range(taken)), factorial)


def turns_while(condition: Dim, turn: str) -> Dim | None:
    """How many turns are made when another follows as long as a comparison, made at the end of each, holds.

    None where the condition is no comparison whose sides draw nearer by the same amount in each turn.
    """
    sides = _compared(condition)
    if sides is None:
        return None
    relation, smaller, larger = sides
    gap = [at_turn(larger - smaller, turn, index) for index in range(3)]
    nearer = gap[0] - gap[1]
    if not isinstance(nearer, int) or not same(gap[1] - gap[2], nearer):
        return None
    if relation == "!=" and nearer < 0:
        nearer, gap[0] = -nearer, -gap[0]
    if nearer <= 0 or at_least(-1, gap[0]):
        return 1 if nearer > 0 and relation != "!=" else None
    return (floor_div(gap[0], nearer) + 1 if relation == "<=" else ceil_div(gap[0], nearer)) + 1


def _compared(condition: Dim) -> tuple[str, Dim, Dim] | None:
    """Relation and sides of a formula that is nothing but a comparison."""
    if not isinstance(condition, Expr) or len(condition.terms) != 1:
        return None
    ((atoms, coefficient),) = condition.terms.items()
    if coefficient != 1 or len(atoms) != 1 or atoms[0].kind not in ("<", "<=", "!="):
        return None
    smaller, larger = arguments(atoms[0])
    return atoms[0].kind, smaller, larger
