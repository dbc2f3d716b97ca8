"""Operators that a line describes: copies, gradients put back, so many operations for each element, bookkeeping.

A line of `plain.txt` names the kind of some operators and the operators; their operands as `takes` does, `x~` for one that
is not read; behind `->` the results, behind `;` the work; at last what is counted, in a sentence. A result is like an
operand, of another shape in `grad(sizes)` or `x(m,k)`, of another element type in `x:bool` or `x:grad`, in `x:dtype|int8`
of the one that is given, else int8; without an operand `new(n,):dtype`; `=x` is the operand's own memory, `+x` memory that
is not written, `-` nothing. Work is so many operations per element of an operand, or of the first result, `out`, or those
of a function of `work.txt`.
"""

from __future__ import annotations

from pathlib import Path

from graphflops.cost import Estimate, free
from graphflops.rules.elementwise import DEFAULT_FLOAT
from graphflops.rules.operands import Operands, Taking
from graphflops.rules.registry import rule
from graphflops.rules.shapes import tensors_of
from graphflops.rules.work import WORK, Work
from graphflops.tensor import DTYPES, TensorType


def plain(of: Operands, *, results: str, work: str, reads: str) -> Estimate:
    """As a line of the table says."""
    out, flops, transcendentals = tuple(_result(of, result) for result in results.split()), 0, 0
    for part in filter(None, work.split(" + ")):
        count, name = part.split()
        elements = (out[0] if name == "out" else getattr(of, name)).numel
        each = WORK[count] if count in WORK else Work("", int(count))
        flops, transcendentals = (
            flops + each.flops * elements,
            transcendentals + each.transcendentals * elements,
        )
    if results[:1] in ("", "=", "+", "-"):
        return free(*out, alias="+" not in results)
    return Estimate(out, 0, flops, transcendentals, reads=tensors_of(of.named(reads)))


def _result(of: Operands, text: str) -> TensorType | None:
    if text == "-":
        return None
    text, _, dtype = text.partition(":")
    name, _, size = text.lstrip("=+").rstrip(")").partition("(")
    x: TensorType = TensorType((), DEFAULT_FLOAT) if name == "new" else getattr(of, name)
    if "=" in text and not size:
        return x
    dtype, _, otherwise = dtype.partition("|")
    wanted = getattr(of, dtype, None) or DTYPES.get(otherwise or dtype)
    if "," in size:
        sizes = [
            int(each) if each.isdecimal() else getattr(of, each) for each in filter(None, size.split(","))
        ]
    else:
        sizes = getattr(of, size) if size else None
    return x.like(getattr(sizes, "shape", sizes), getattr(wanted, "dtype", wanted))


def _register(line: str) -> None:
    """Register the rule that a line says."""
    head, _, says = line.partition(" | ")
    operators, _, described = head.partition(": ")
    kind, _, keys = operators.partition(" ")
    operands, _, made = described.partition("->")
    results, _, work = made.partition(";")
    reads = " ".join(name.rstrip("?=") for name in operands.split() if name != "*" and not name.endswith("~"))
    given = {"results": results.strip(), "work": work.strip(), "reads": reads}
    taking = Taking(operands.replace("~", ""), plain)
    rule(keys, kind=kind).derived(taking, says=says, **given)  # type: ignore[arg-type]


_TEXT = Path(__file__).with_name("plain.txt").read_text(encoding="utf-8")
for _line in _TEXT.replace("\n  ", " ").splitlines():
    if not _line.startswith("#"):
        _register(_line)
