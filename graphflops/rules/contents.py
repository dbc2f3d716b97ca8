"""Following the contents of small integer tensors, such as shapes that a program computes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Dim, Expr, prod
from graphflops.errors import DimError
from graphflops.tensor import Contents, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.cost import Value

    Fold = Callable[..., Dim]

MAX_ELEMENTS = 1024  # a larger tensor is data, not a shape


def combine(fold: Fold, shape: Sequence[Dim], operands: Sequence[Value]) -> Contents | None:
    """Contents of an elementwise result of this shape, or None where an operand's contents are not known."""
    known = [(x.rank, x.value) if isinstance(x, TensorType) else (0, x) for x in operands]
    if not all(_is_whole(value) for _, value in known):
        return None
    elements = prod(shape)
    if not isinstance(elements, int) or elements > MAX_ELEMENTS:
        return None
    try:
        return aligned(fold, shape, known)  # type: ignore[arg-type]
    except (ArithmeticError, DimError):  # a division by zero that the program may never come to
        return None


def _is_whole(value: object) -> bool:
    """Whether contents are known and all integers."""
    return all(map(_is_whole, value)) if isinstance(value, tuple) else isinstance(value, (int, Expr))


def aligned(
    fold: Callable[..., Dim | float], shape: Sequence[Dim], operands: list[tuple[int, Contents]]
) -> Contents:
    """The function of every element of contents broadcast to a shape of numbers; each operand with its rank."""
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
