"""Scatters: elements written or added to the places that indices name, each thread one after the other."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import Kernel, Rows, Strided
from graphflops.kernels.moved import axis_of, copy, elementwise, of_rows

if TYPE_CHECKING:
    from graphflops.kernels.call import ConcreteCall, Tensor

_BY_ELEMENT = frozenset({"scatter", "scatter_add", "scatter_reduce"})
_BY_ROW = frozenset({"index_add", "index_copy", "index_reduce"})
_ROW_VARIANT = "index_add"
_THREADS, _IN_TURN = limits("aten_2_11", "scatter", "threads", "in_turn")
_INDEX_BYTES = 8


def scatter(call: ConcreteCall) -> list[Kernel]:
    """A copy of the operand unless it is changed in place, and what is written into it."""
    name, source = call.operator.name, call.operand("source")
    index = call.operand("index")
    if source is None:
        source = index
    if name not in _BY_ELEMENT | _BY_ROW or source is None or index is None or not call.operands:
        return _at_places(call)
    x = call.operands[0]
    is_along_rows = name in _BY_ELEMENT and axis_of(call, x.rank) == x.rank - 1
    elements = index.numel if name in _BY_ELEMENT else source.numel
    kernel = scattered(x, elements, name) if is_along_rows else added_rows(x, elements)
    return [kernel] if call.operator.mutates else [copy(x), kernel]


def _at_places(call: ConcreteCall) -> list[Kernel]:
    """Rows of what is written, after a copy of the operand unless it is changed in place."""
    kernels = of_rows("scatter")(call)
    if not call.operator.mutates:
        return [*kernels, *(elementwise(x, 0, 0) for x in call.operands[:1])]
    return [replace(kernel, sizes=_written_rows(kernel, call.operands[0])) for kernel in kernels]


def _written_rows(kernel: Kernel, x: Tensor) -> Rows:
    columns = max(prod(x.shape[-1:]), 1)
    return Rows(max(kernel.written_bytes * 8 // x.bits // columns, 1), columns)


def scattered(x: Tensor, elements: int, name: str) -> Kernel:
    """Writes or adds elements of a tensor's type, each to a place of its own index."""
    size = elements * x.bits // 8
    in_turn = Rows(elements, min(_IN_TURN, -(-elements // _THREADS)))
    variant = name if name == "scatter" else "scatter_add"
    moved = size + _INDEX_BYTES * elements, size
    return Kernel("scatter", x.dtype, 0, 0, *moved, in_turn, variant=variant)


def added_rows(x: Tensor, elements: int) -> Kernel:
    """Adds rows of a tensor's type, of so many elements together, by atomic additions."""
    size = elements * x.bits // 8
    return Kernel("scatter", x.dtype, 0, 0, 2 * size, size, Strided(elements, 1, 2), variant=_ROW_VARIANT)
