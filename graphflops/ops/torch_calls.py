"""What torch takes as the operands of a call, beside their shapes and element types: kinds of values, ranges of numbers.

`arguments.txt` has a letter for each argument, which `NEVER` explains. A line of `torch_values.txt` has a condition and its
arguments, then the operators of ATen for which both the device meta and the CPU refuse anything else: an interval, `[0,1)`,
in which each number lies; `#2`, so many numbers; `axis`, one of the first operand's; `distinct`, no axis twice; or the texts
or element types that there are. Element types are omitted that only some releases or devices refuse.
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

VALUES = Path(__file__).with_name("torch_values.txt")
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
    return min((next(_wrong(op, entries, operands), "") for entries in marked(op)), default="", key=bool)


def _wrong(op: str, entries: Sequence[str], operands: Sequence[Any]) -> Iterator[str]:
    for entry, operand in zip(entries, operands, strict=False):
        name, kind = re.split("[!?]", entry)
        members = operand if isinstance(operand, tuple) else ()
        held = ((x, _MEMBERS.get(kind, ())) for x in members)
        wrong = [x for x, never in ((operand, NEVER.get(kind, ())), *held) if isinstance(x, never)]
        wrong += _refused(op, name, operand, operands[0])
        if wrong:
            yield f"{name} of {op} cannot be {shown(str(wrong[0]), 60)}"


@lru_cache(maxsize=1)
def _conditions() -> Mapping[tuple[str, str], list[str]]:
    """By operator and argument: a condition, or the texts that it may be."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        told, _, operators = line.partition(": ")
        conditions, _, names = told.partition(" of ")
        for op in operators.split():
            found.update({(op, name): conditions.split() for name in names.split()})
    return found


def _refused(op: str, name: str, operand: Any, first: Any) -> list[Any]:
    """What of an operand does not keep its condition."""
    called = operator(op)
    base = (called.functional or called.base).removeprefix("aten.")
    allowed = _conditions().get((base, name), [])
    if not allowed or operand is ...:
        return []
    condition, given = allowed[0], [*flat((operand,))]
    numbers = [x for x in given if isinstance(x, (int, float)) and x == x]  # NaN: not known
    if condition[0] == "#":
        return [operand] * (isinstance(operand, tuple) and len(operand) != int(condition[1:]))
    if condition in ("axis", "distinct"):
        rank = max(first.rank, 1) if isinstance(first, TensorType) else 2**31
        is_once = condition == "axis" or len({x % rank for x in numbers}) == len(numbers)
        return [x for x in numbers if not -rank <= x < rank] or [operand] * (not is_once)
    if condition[0] in "[(":
        low, high = (float(x or "inf") for x in condition[1:-1].split(","))
        ends = [low] * (condition[0] == "(") + [high] * (condition[-1] == ")")
        return [x for x in numbers if not low <= x <= high or x in ends]
    texts = [x.dtype if isinstance(x, TensorType) else x for x in given if isinstance(x, (TensorType, str))]
    return [x for x in texts if str(x) not in allowed]
