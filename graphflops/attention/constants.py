"""Stored tensors that mask scores: their entries, and simple forms of them.

Forms: numbers at equal distances; matrices that are true in a band, a rectangle or a prefix. A tensor is read, and numpy is
imported, only if the tensor masks an attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any, Union

from graphflops.attention import conditions
from graphflops.attention.conditions import Affine, Case, Truth
from graphflops.attention.elementwise import array_type
from graphflops.base.lazy import numpy as np
from graphflops.base.record import Record
from graphflops.errors import GraphflopsError, ModelError
from graphflops.graph import Graph, Stored
from graphflops.tensor import BFLOAT16, TensorType, extent

MOST_BYTES = 2**28  # of one stored tensor


class Constants:
    """The weights and constants of a program as arrays."""

    def __init__(self, graph: Graph, is_written: Callable[[str], bool]) -> None:
        self.graph = graph
        self.is_written = is_written
        self.used: set[str] = set()  # those that masks are made of, without single numbers
        self.arrays: dict[str, Any] = {}
        self.forms: dict[str, Any] = {}
        # What the file stores, by name, and which of it is changed when the program has run.
        self.entries = {entry.name: entry for entry in graph.inputs if entry.role != "user"}
        self.changed = {output.target for output in graph.outputs if output.role == "mutation"}

    def array(self, name: str, typed: TensorType) -> Any:
        """A stored tensor as a read-only array; None if it is not stored, too large, or not available.

        None also for one that is trained or that the program writes to: it may hold something else when it is used.
        """
        entry = self.entries.get(name)
        if entry is None or self.graph.contents is None:
            return None
        if name not in self.arrays:
            self.arrays[name] = None
            size = typed.nbytes
            changes = typed.requires_grad or entry.target in self.changed or self.is_written(name)
            if isinstance(size, int) and size <= MOST_BYTES and not changes:
                # A file that contradicts itself has no mask to follow.
                with suppress(GraphflopsError, OSError, LookupError, OverflowError, TypeError, ValueError):
                    stored = self.graph.contents(name)
                    if stored is not None and stored.shape == typed.shape and stored.dtype is typed.dtype:
                        self.arrays[name] = array_of(stored)
        return self.arrays[name]

    def use(self, name: str, typed: TensorType) -> None:
        if typed.rank:
            self.used.add(name)


def array_of(stored: Stored) -> Any:
    """What is stored, as an array; None if numpy has no such elements.

    Raises ValueError if it reaches out of its memory, or is larger than MOST_BYTES.
    """
    try:
        kind = np.dtype(np.uint16) if stored.dtype is BFLOAT16 else array_type(stored.dtype)
    except ModelError:
        return None
    if kind.kind not in "biuf" or kind.itemsize * 8 != stored.dtype.bits:
        return None
    least = min((*stored.shape, *stored.strides, stored.offset, 0))
    if len(stored.shape) != len(stored.strides) or least < 0:
        raise ValueError
    if 0 in stored.shape:
        return np.zeros(stored.shape, kind)
    size, end = math.prod(stored.shape), extent(stored.shape, stored.strides, stored.offset) * kind.itemsize
    if end > stored.memory.nbytes or size * kind.itemsize > MOST_BYTES:
        raise ValueError
    whole = np.frombuffer(stored.memory, np.uint8)[:end]
    if stored.dtype.kind == "bool":
        kind = np.dtype(np.uint8)
    flat = np.ascontiguousarray(whole).view(kind)[stored.offset :]
    strides = [stride * kind.itemsize for stride in stored.strides]
    array = np.lib.stride_tricks.as_strided(flat, stored.shape, strides, writeable=False)
    if stored.dtype.kind == "bool":
        return array != 0
    if stored.dtype is BFLOAT16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def known_element(typed: TensorType, at: tuple[Any, ...]) -> Any:
    """The element of a tensor if it is one number at this place and its contents are in its type; else None."""
    held: Any = typed.uniform
    if held is None:
        held = typed.value
        for index in at:
            place = index.constant if index is not None and index.is_number else None
            if isinstance(held, tuple) and len(set(held)) == 1:
                held = held[0]
            elif isinstance(held, tuple) and isinstance(place, int):
                held = held[place] if 0 <= place < len(held) else None
            else:
                held = None
    if held is None or isinstance(held, tuple):
        return None
    return bool(held) if typed.dtype.kind == "bool" else held


def stored_form(
    constants: Constants, name: str, typed: TensorType, at: tuple[Any, ...]
) -> tuple[Form, Affine, Affine] | None:
    """The simple form of a stored tensor, with the row and column at which an index is in it; None if it has none."""
    wide = [axis for axis, size in enumerate(typed.shape) if size != 1]
    if len(wide) > 2 or any(at[axis] is None for axis in wide):
        return None
    if name not in constants.forms:
        array = constants.array(name, typed)
        array = None if array is None else array.reshape([size for size in array.shape if size != 1])
        constants.forms[name] = None if array is None or not array.size else _form(array)
    form = constants.forms[name]
    if form is None:
        return None
    constants.use(name, typed)
    row, column = [conditions.ZERO, conditions.ZERO, *[at[axis] for axis in wide]][-2:]
    return form, row, column


class Even(Record, frozen=True):
    """Integers at even distances."""

    first: int
    step: int


class Matrix(Record, frozen=True):
    """Where a matrix is true: in one of the cases, or if `negated` in none; `numbers`: its values if it is not boolean."""

    cases: tuple[Case, ...]
    negated: bool
    numbers: tuple[float, float] | None

    def truth(self, row: Affine, column: Affine) -> Truth:
        at = [[row * term.row + column * term.column + term.constant for term in case] for case in self.cases]
        found = reduce(or_, (conditions.where_not_negative(*terms) for terms in at), conditions.FALSE)
        return ~found if self.negated else found


Form = Union[Even, Matrix]


def _form(array: Any) -> Form | None:
    """The simple form of a number, a row of numbers or a matrix; None if it has none."""
    if array.ndim < 2:
        row = array.reshape(-1)
        if row.dtype.kind in "iu":
            whole = row.astype("int64")
            steps = whole[1:] - whole[:-1]
            if (steps == steps[:1]).all():
                return Even(int(whole[0]), int(steps[0]) if steps.size else 0)
        array = row[None]
    numbers = None
    if array.dtype.kind == "f":
        hides = array <= conditions.HIDING
        low, rest = array[hides], array[~hides]
        if rest.size and not low.size and not (rest == rest[0]).all():
            return None
        alike = not rest.size or (rest == rest[0]).all()
        most, least = rest if rest.size else low, low if low.size else rest
        numbers = (float(most.max()) if alike else math.nan, float(least.max()))
        array = ~hides
    elif array.dtype.kind in "iu":
        numbers = (float(array.max()), float(array.min()))
        if not ((array == numbers[0]) | (array == numbers[1])).all():
            return None
        array = array == numbers[0]
    elif array.dtype.kind != "b":
        return None
    for negated in (False, True):
        cases = _cases(~array if negated else array)
        if cases is not None:
            return Matrix(cases, negated, numbers)
    return None


def _cases(matrix: Any) -> tuple[Case, ...] | None:
    """Conditions on row and column that hold exactly where a matrix is true: they hold there, and nowhere else by count."""
    rows, columns = np.flatnonzero(matrix.any(1)), np.flatnonzero(matrix.any(0))
    if not rows.size:
        return ()
    first = matrix.argmax(1)[rows]
    last = matrix.shape[1] - 1 - matrix[:, ::-1].argmax(1)[rows]
    right, left = Affine(1, -1, int((last - rows).max())), Affine(-1, 1, int((rows - first).max()))
    top, bottom = Affine(1, 0, -int(rows[0])), Affine(-1, 0, int(rows[-1]))
    sides = top, bottom, Affine(0, 1, -int(columns[0])), Affine(0, -1, int(columns[-1]))
    tried: list[tuple[Case, ...]] = [((),), ((right,),), ((left,),), ((left, right),)]
    tried += [*(((side,),) for side in sides), (sides,), ((left, right, *sides),)]
    # Leading columns that are entirely true.
    prefix = int(matrix.all(0).argmin()) if matrix[:, 0].all() else 0
    beyond = last >= prefix
    if prefix and beyond.any():
        tried.append(((Affine(1, -1, int((last - rows)[beyond].max())),), (Affine(0, -1, prefix - 1),)))
    pairs = 2 * int(np.count_nonzero(matrix))
    for cases in tried:
        met = [case for each in cases for case in conditions.where_not_negative(*each).upper]
        if conditions.doubled_visible(tuple(met), *matrix.shape)[0] == pairs:
            return cases
    return None
