"""Propagates the known contents of small integer tensors, such as shapes that a program computes with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Dim, Expr, at_least
from graphflops.errors import DimError
from graphflops.tensor import Contents, DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.cost import Value

    Fold = Callable[..., Dim]

MAX_ELEMENTS = 1024  # a larger tensor is data, not a shape
_WIDE = 32  # bits of a signed type that every size fits into


def few(shape: Sequence[Dim], most: int = MAX_ELEMENTS) -> tuple[int, ...] | None:
    """The sizes where all are numbers and the contents are few, rows without elements included; else None."""
    sizes = tuple([size for size in shape if isinstance(size, int)])
    return sizes if len(sizes) == len(shape) and math.prod(max(size, 1) for size in sizes) <= most else None


def in_type(number: Dim, dtype: DType) -> Dim | None:
    """The number as an integer type holds it: without the upper bits that it has no room for.

    A formula is taken to fit into a signed type of 32 bits or more; None where it may not fit into a narrower one.
    """
    lowest = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    numbers = 1 << dtype.bits
    if isinstance(number, int):
        return (number - lowest) % numbers + lowest
    if lowest < 0 and dtype.bits >= _WIDE:
        return number if max(map(abs, number.terms.values())) < -lowest else None
    return number if at_least(number, lowest) and at_least(lowest + numbers - 1, number) else None


def held(x: TensorType) -> TensorType:
    """The tensor with its contents as its integer type holds them; without contents where these are many, or not known."""
    if x.value is None or x.dtype.kind not in ("int", "uint"):
        return x
    contents = None if few(x.shape) is None else _held(x.value, x.dtype)
    return x if contents == x.value else replace(x, value=contents)


def _held(contents: Contents, dtype: DType) -> Contents | None:
    if isinstance(contents, tuple):
        parts = [_held(part, dtype) for part in contents]
        known = tuple([part for part in parts if part is not None])
        return known if len(known) == len(parts) else None
    return in_type(contents, dtype) if isinstance(contents, (int, Expr)) else contents


def combine(fold: Fold, shape: Sequence[Dim], operands: Sequence[Value]) -> Contents | None:
    """Contents of an elementwise result of this shape, or None where an operand's contents are not known."""
    known = [(x.rank, x.value) if isinstance(x, TensorType) else (0, x) for x in operands]
    if not all(_is_whole(value) for _, value in known):
        return None
    if few(shape) is None:
        return None
    try:
        return aligned(fold, shape, known)  # type: ignore[arg-type]
    except (ArithmeticError, DimError):  # a division by zero that the program may never execute
        return None


def _is_whole(value: object) -> bool:
    """True if the contents are known and all integers."""
    return all(map(_is_whole, value)) if isinstance(value, tuple) else isinstance(value, (int, Expr))


def aligned(
    fold: Callable[..., Dim | float], shape: Sequence[Dim], operands: list[tuple[int, Contents]]
) -> Contents:
    """Applies a function elementwise to known contents, broadcast to a concrete shape; operands are (rank, contents)."""
    if not shape:
        return fold(*(value for _, value in operands))
    rows = []
    for place in range(shape[0]):  # type: ignore[arg-type]
        row: list[tuple[int, Contents]] = []
        for rank, value in operands:
            if rank < len(shape):
                row.append((rank, value))
            else:
                assert isinstance(value, tuple)
                row.append((rank - 1, value[place if len(value) > 1 else 0]))
        rows.append(aligned(fold, shape[1:], row))
    return tuple(rows)
