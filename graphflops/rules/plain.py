"""Operators that one line describes: copies, gradients put back, a number of operations for each element, bookkeeping.

A line of `plain.txt` names the kind of some operators and the operators, after a comma those of another namespace; then
operands and attributes as for `takes`, `x~` for an operand that is not read, `x^` for one of which as many elements are
read as are returned; after `->` the results, after `;` the work; where operands are not read whole, after `<` what is read,
and where results are not written whole, after `>` what is; last what is counted, in a sentence. A result is like an
operand, of another element type in `x:bool` or `x:grad`; in `x:dtype|int8` of the given one, else int8. Without an operand
it is `new(n):dtype`; `=x` is the operand's own memory, `+x` memory that is not written, `n?` a number that depends on data,
`-` nothing.

Sizes are in parentheses. Those of an operand get names, `x(m,k)`, where `*rows` is all that are left; those of a result
are computed from them, and from numbers of the call or the size that an operand holds: `x(m,2*k)`. In a result `*sizes` is
a list, or the shape of an operand, and `kept?` depends on data.

Work is a number of operations per element of an operand, of the first result, `out`, or for the whole `call`; in a formula
`rows` is the product of `*rows`. It may be that of a function of `work.txt`. `functions 2 x` are evaluated; `matrix m x` are
multiply-adds of a matrix product, `a@b m x` those of a product of a and b, with `int8` before it of integers of 8 bits.
`1 x if bias` depends on another operand or an attribute, `1 x if not bias` on the opposite, `1 x if p=2` on a value.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphflops.cost import Estimate, data_dependent, free
from graphflops.dims import Dim, Expr, meet, parse_dim, prod
from graphflops.rules.elementwise import DEFAULT_FLOAT, WORK, Work
from graphflops.rules.matmul import flops_of
from graphflops.rules.operands import Operands, Taking
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import Shape, shown, tensors_of
from graphflops.tensor import DTYPES, INT8, TensorType

_BETWEEN = re.compile(r",(?![^(]*\))")  # sizes, not the arguments of a function
_SHAPE = re.compile(r"\b(\w+)\(([^)]*)\)")
Sizes = dict[str, Shape]  # by name; a number is one size


def plain(of: Operands, *, shapes: Mapping[str, str], results: str, work: str, touched: str) -> Estimate:
    """The estimate that a line of the table describes."""
    sizes = _named(of, shapes)
    out = tuple(_result(of, sizes, result) for result in results.split())
    if not work and results[:1] in ("", "=", "+", "-"):
        return free(*out, alias="+" not in results)
    read, written = (
        tensors_of(out[0] if name == "out" else _result(of, sizes, f"={name}") for name in names.split())
        for names in touched.partition(">")[::2]
    )
    found = Estimate(out, reads=read, writes=written or None)
    for part in filter(None, work.split(" + ")):
        does, _, condition = part.partition(" if ")
        *kinds, count, name = does.split()
        if condition and not _holds(of, condition):
            continue
        counted: Any = out[0] if name == "out" else getattr(of, name, None)
        each = WORK.get(count) or Work("", _size(of, count, sizes))  # type: ignore[arg-type]
        done = each.on(1 if name == "call" else counted.numel)
        if "functions" in kinds:
            done = Estimate(transcendentals=done.vector_flops)
        elif kinds:
            done = Estimate(matrix_flops=flops_of(done.vector_flops, read[0].dtype))
        found = found.plus(done, matrix_dtype=INT8 if "int8" in kinds else found.matrix_dtype)
    return found


def _holds(of: Operands, condition: str) -> bool:
    name, _, wanted = condition.removeprefix("not ").partition("=")
    given = getattr(of, name)
    stated: object = int(wanted) if wanted.isdecimal() else wanted
    holds = given == stated if wanted else given not in (None, False)
    return bool(holds) != condition.startswith("not ")


def _named(of: Operands, shapes: Mapping[str, str]) -> Sizes:
    """The sizes of operands that the line names, and the call's numbers and lists. Raises ShapeError if sizes contradict."""
    given = {**of.attributes, **of.given}
    sizes = {name: x for name, x in given.items() if isinstance(x, tuple)}
    sizes |= {name: (x,) for name, x in given.items() if isinstance(x, (int, Expr))}
    for operand, text in shapes.items():
        own: Shape = getattr(of, operand).shape
        names, mismatch = text.split(","), f"{operand} is {shown(own)}, not ({text})"
        spare = len(own) - len(names) + 1 if "*" in text else 1
        require(spare >= 0 and ("*" in text or len(own) == len(names)), mismatch)
        for name in names:
            width = spare if name[0] == "*" else 1
            part, own = own[:width], own[width:]
            if name != "_":
                for here, there in zip(part, sizes.setdefault(name.lstrip("*"), part), strict=True):
                    meet(here, there, f"{mismatch} with {name} = {there}")
    return sizes


def _size(of: Operands, text: str, sizes: Sizes) -> Dim:
    if text.isdecimal():
        return int(text)
    formula = parse_dim(text)
    if not isinstance(formula, Expr):
        return formula
    held = {name: prod(sizes[name]) if name in sizes else _held(of, name) for name in formula.symbols}
    return formula.substitute(held)


def _held(of: Operands, name: str) -> Dim:
    from graphflops.rules.onnx.entries import said  # only in ONNX do operands hold sizes

    return said(getattr(of, name), name)


def _result(of: Operands, sizes: Sizes, text: str) -> TensorType | Dim | None:
    if text == "-":
        return None
    if text[-1] == "?":
        return data_dependent(text[:-1])
    like, _, dtype = text.partition(":")
    name, bracket, shape = like.lstrip("=+").removesuffix(")").partition("(")
    x: TensorType = TensorType((), DEFAULT_FLOAT) if name == "new" else getattr(of, name)
    if like.startswith("=") and not bracket:
        return x
    given, _, otherwise = dtype.partition("|")
    wanted: Any = getattr(of, given, None)
    if wanted is None:
        wanted = getattr(of, otherwise, None) or DTYPES.get(otherwise or given)
    elif isinstance(wanted, int):
        from graphflops.rules.onnx.entries import onnx_dtype  # only ONNX numbers element types

        wanted = onnx_dtype(wanted)
    return x.like(_sizes(of, sizes, shape) if bracket else None, getattr(wanted, "dtype", wanted))


def _sizes(of: Operands, sizes: Sizes, text: str) -> Iterator[Dim]:
    for each in filter(None, _BETWEEN.split(text)):
        if each[0] == "*":
            yield from sizes[each[1:]] if each[1:] in sizes else getattr(of, each[1:]).shape
        else:
            yield data_dependent(each[:-1]) if each[-1] == "?" else _size(of, each, sizes)


_TEXT = Path(__file__).with_name("plain.txt").read_text(encoding="utf-8")
for _line in filter(lambda line: not line.startswith("#"), _TEXT.replace("\n  ", " ").splitlines()):
    _head, _, _says = _line.partition(" | ")
    _operators, _, _described = _head.partition(": ")
    _kind, _, _keys = _operators.partition(" ")
    _operands, _, _made = _described.partition("->")
    _made, _, _touched = _made.partition(" < ")
    _results, _, _work = _made.partition(";")
    _names = _SHAPE.sub(r"\1", _operands)
    _read = (
        "out" if name[-1] == "^" else name.rstrip("?=")
        for name in _names.partition(";")[0].split()
        if name[-1] not in "*~"
    )
    _factors = tuple(name for word in _work.split() if "@" in word for name in word.split("@"))
    rule(*_keys.split(", "), kind=_kind, product=_factors).derived(  # type: ignore[arg-type]
        Taking(_names.replace("~", "").replace("^", ""), plain),
        says=_says,
        shapes=dict(_SHAPE.findall(_operands)),
        results=_results.strip(),
        work=_work.strip(),
        touched=_touched or " ".join(_read),
    )
