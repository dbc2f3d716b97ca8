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
from typing import Any

from graphflops.cost import Estimate, free
from graphflops.dims import Dim
from graphflops.rules.elementwise import DEFAULT_FLOAT
from graphflops.rules.operands import Operands, Taking
from graphflops.rules.registry import rule
from graphflops.rules.shapes import tensors_of
from graphflops.rules.work import WORK, Work
from graphflops.tensor import DTYPES, TensorType


def plain(of: Operands, *, results: str, work: str, reads: str) -> Estimate:
    """As a line of the table says."""
    out = tuple(_result(of, result) for result in results.split())
    if results[:1] in ("", "=", "+", "-"):
        return free(*out, alias="+" not in results)
    flops: Dim = 0
    functions: Dim = 0
    for part in filter(None, work.split(" + ")):
        count, name = part.split()
        counted: Any = out[0] if name == "out" else getattr(of, name)
        each = WORK[count] if count in WORK else Work("", int(count))
        flops = flops + each.flops * counted.numel
        functions = functions + each.transcendentals * counted.numel
    return Estimate(out, 0, flops, functions, reads=tensors_of(of.named(reads)))


def _result(of: Operands, text: str) -> TensorType | None:
    if text == "-":
        return None
    like, _, dtype = text.partition(":")
    name, _, size = like.lstrip("=+").rstrip(")").partition("(")
    x: TensorType = TensorType((), DEFAULT_FLOAT) if name == "new" else getattr(of, name)
    if like.startswith("=") and not size:
        return x
    given, _, otherwise = dtype.partition("|")
    wanted: Any = getattr(of, given, None) or DTYPES.get(otherwise or given)
    sizes: Any = getattr(of, size, None)
    if "," in size:
        sizes = [int(each) if each.isdecimal() else getattr(of, each) for each in size.split(",") if each]
    return x.like(getattr(sizes, "shape", sizes), getattr(wanted, "dtype", wanted))


_TEXT = Path(__file__).with_name("plain.txt").read_text(encoding="utf-8")
for _line in filter(lambda line: not line.startswith("#"), _TEXT.replace("\n  ", " ").splitlines()):
    _head, _, _says = _line.partition(" | ")
    _operators, _, _described = _head.partition(": ")
    _kind, _, _keys = _operators.partition(" ")
    _operands, _, _made = _described.partition("->")
    _results, _, _work = _made.partition(";")
    _reads = (name.rstrip("?=") for name in _operands.split() if name != "*" and not name.endswith("~"))
    rule(_keys, kind=_kind).derived(  # type: ignore[arg-type]
        Taking(_operands.replace("~", ""), plain),
        says=_says,
        results=_results.strip(),
        work=_work.strip(),
        reads=" ".join(_reads),
    )
