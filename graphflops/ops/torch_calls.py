"""What torch takes as the operands of a call, beside their shapes and element types: kinds of values, ranges of numbers.

`arguments.txt` has a letter for each argument, which `NEVER` explains. A line of `torch_numbers.txt` has a condition and its
arguments, then the operators of ATen for which both the device meta and the CPU refuse anything else: an interval, `[0,1)`,
in which each number lies; `#2`, so many numbers; `axis`, one of the first operand's; `distinct`, no axis twice; or texts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphflops.dims import Expr
from graphflops.errors import shown
from graphflops.ops.operator import marked, operator
from graphflops.tensor import DType, TensorType, flat

NUMBERS = Path(__file__).with_name("torch_numbers.txt")
# By letter of an argument: what it never is. A list of integers that one number may stand for is `J`, not `I`; a tensor that
# a number may stand for is `t`, not `T`. None is never refused: kernels get it for gradients that are not there.
NEVER: Mapping[str, tuple[type, ...]] = {
    "T": (int, float, complex, Expr, str, tuple, DType),
    "t": (str, tuple, DType),
    "i": (float, complex, str, tuple),
    "f": (complex, str, tuple),
    "n": (TensorType, str, tuple),
    "b": (str, tuple),
    "s": (TensorType, int, float, complex, Expr, tuple),
    "I": (int, float, complex, Expr, str),
    "J": (float, complex, str),
    "L": (TensorType, int, float, complex, Expr, str),
}
_MEMBERS = {"I": NEVER["i"], "J": NEVER["i"], "L": NEVER["T"]}


def misplaced(op: str, operands: Sequence[Any]) -> str:
    """What is wrong with the values of a call's operands, listed as the schema does; "" if a release takes them."""
    found = [next(_wrong(op, entries, operands), "") for entries in marked(op)]
    return "" if "" in found else next(iter(found), "")


def _wrong(op: str, entries: Sequence[str], operands: Sequence[Any]) -> Iterator[str]:
    for entry, operand in zip(entries, operands, strict=False):
        name, kind = re.split("[!?]", entry)
        members = operand if isinstance(operand, tuple) else ()
        held = ((x, _MEMBERS.get(kind, ())) for x in members)
        wrong = [x for x, never in ((operand, NEVER.get(kind, ())), *held) if isinstance(x, never)]
        if not (wrong or operand is ... or _is_within(op, name, operand, operands[0])):
            wrong = [operand]
        if wrong:
            yield f"{name} of {op} cannot be {shown(str(wrong[0]), 60)}"


@lru_cache(maxsize=1)
def _conditions() -> Mapping[tuple[str, str], list[str]]:
    """By operator and argument: a condition, or the texts that it may be."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in NUMBERS.read_text(encoding="utf-8").splitlines():
        told, _, operators = line.partition(": ")
        conditions, _, names = told.partition(" of ")
        for op in operators.split():
            found.update({(op, name): conditions.split() for name in names.split()})
    return found


def _is_within(op: str, name: str, operand: Any, first: Any) -> bool:
    """Whether an operand keeps its condition, or has none."""
    called = operator(op)
    base = (called.functional or called.base).removeprefix("aten.")
    allowed = _conditions().get((base, name), [])
    if len(allowed) != 1 or operand is None:
        return not (allowed and isinstance(operand, str)) or operand in allowed
    numbers = [x for x in flat((operand,)) if isinstance(x, (int, float)) and x == x]  # NaN: not known
    (condition,) = allowed
    if condition[0] == "#":
        return not isinstance(operand, tuple) or len(operand) == int(condition[1:])
    if condition in ("axis", "distinct"):
        rank = max(first.rank, 1) if isinstance(first, TensorType) else 2**31
        is_once = condition == "axis" or len({x % rank for x in numbers}) == len(numbers)
        return is_once and all(-rank <= x < rank for x in numbers)
    low, high = (float(x or "inf") for x in condition[1:-1].split(","))
    above = (low <= x if condition[0] == "[" else low < x for x in numbers)
    below = (x <= high if condition[-1] == "]" else x < high for x in numbers)
    return all(above) and all(below)
