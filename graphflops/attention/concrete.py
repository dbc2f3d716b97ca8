"""The concrete domain: values as numpy arrays, at many pairs of a query and a key at once, where all sizes are numbers.

numpy is imported when a mask is evaluated so, and by nothing before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from graphflops.attention.conditions import HIDING
from graphflops.attention.elementwise import Function, computed, converted, is_known
from graphflops.attention.index_propagation import Propagation, along_axes
from graphflops.attention.scopes import Domain, Evaluator, Indices, Scope, Step
from graphflops.base.lazy import numpy as np
from graphflops.dims import Dim, Expr
from graphflops.graph import Ref
from graphflops.tensor import DType, TensorType

MOST_STEPS = 4000  # looked at for one block of pairs
_MOST_WHOLE = 2**22  # elements of a tensor that is computed whole
_DEEPEST = 8  # whole tensors computed one for another
MOST_CAPTURED = 2**26  # of one that a function captures


class Known(NamedTuple):
    """Numbers, of which an unknown one is assumed to be a finite score: it can never cancel a -inf or -1e4 mask value."""

    value: Any
    known: Any = True  # where they are: True for everywhere


class ConcreteDomain(Domain[Known]):
    """Values as arrays. overwhelming: an addend of this or less hides a score, whatever the other addend is."""

    def __init__(self, overwhelming: float = HIDING) -> None:
        self.overwhelming = overwhelming
        self.zero = np.int64(0)
        self.wholes: dict[tuple[Scope, str, int], Any] = {}
        self.computing = 0  # how many whole tensors are being computed, one for another

    def unknown(self, dtype: DType | None) -> Known:
        return Known(False if dtype is not None and dtype.kind == "bool" else 0.0, False)

    def is_unknown(self, value: Known) -> bool:
        return value.known is not True

    def literal(self, number: Any) -> Known:
        return self.unknown(None) if isinstance(number, Expr) else Known(number)

    def as_index(self, value: Known) -> Any:
        found = np.asarray(value.value)
        return found.astype(np.int64) if value.known is True and found.dtype.kind in "iu" else None

    def from_index(self, index: Any, dtype: DType) -> Known:
        return Known(0.0, False) if isinstance(index, Expr) else Known(converted(index, dtype))

    def wrapped(self, index: Any, size: Dim) -> Any:
        if index is None or not (index < 0).any():
            return index
        return None if isinstance(size, Expr) else np.where(index < 0, index + size, index)

    def repeated(self, index: Any, size: Dim) -> Any:
        return None if isinstance(size, Expr) else index % size

    def between(self, index: Any, begin: Dim, end: Dim | None) -> Known:
        if isinstance(begin, Expr) or isinstance(end, Expr):
            return Known(False, False)
        return Known((index >= begin) if end is None else (index >= begin) & (index < end))

    def reshaped(self, at: Indices, shape: Sequence[Dim], source: Sequence[Dim]) -> Indices | None:
        """Axes that merge or split, group by group, so that an index depends on no more axes than it must."""
        found: list[Any] = []
        for given, made in groups(shape, source):
            if len(given) == len(made) == 1:
                found.append(at[given[0]])
                continue
            flat: Any = np.int64(0)
            for axis in given:
                if shape[axis] != 1:
                    if at[axis] is None:
                        return None
                    flat = flat * shape[axis] + at[axis]
            sizes = [source[axis] for axis in made]
            found += [flat // math.prod(sizes[place + 1 :]) % size for place, size in enumerate(sizes)]
        return tuple(found)

    def choose(self, condition: Known, yes: Known, no: Known) -> Known:
        value = np.where(condition.value, yes.value, no.value)
        if condition.known is True and yes.known is True and no.known is True:
            return Known(value)
        same = np.asarray(yes.known) & no.known & (np.asarray(yes.value) == no.value)
        return Known(value, (condition.known & np.where(condition.value, yes.known, no.known)) | same)

    def stored(self, scope: Scope, name: str, typed: TensorType, at: Indices) -> Known | None:
        if typed.uniform is not None:
            return Known(converted(np.asarray(typed.uniform), typed.dtype))
        array = array_of_value(scope, name, typed)
        return None if array is None else picked(array, at)

    def whole(self, evaluator: Evaluator[Known], step: Step, at: Indices) -> Known | None:
        array = along_axes(evaluator, step, lambda name: self.array(evaluator.scope, name, evaluator.before))
        return None if array is None else picked(array, at)

    def captured(self, evaluator: Evaluator[Known], name: str, at: Indices) -> Known | None:
        array = self.array(evaluator.scope, name, evaluator.before, MOST_CAPTURED)
        return None if array is None else picked(array, at)

    def apply(self, function: Function, values: Sequence[Known | None]) -> Known | None:
        if not is_known(function.name):
            return None
        given = [value for value in values if value is not None]
        if function.name == "where":
            found = self.choose(*values)  # type: ignore[arg-type]
            kind = function.result
            return Known(found.value if kind is None else converted(found.value, kind), found.known)
        numbers = [
            value if value is None or dtype is None else converted(value.value, dtype)
            for value, dtype in zip(values, function.operands, strict=True)
        ]
        numbers = [_number(x.value) if isinstance(x, Known) else x for x in numbers]
        value = computed(function, numbers)
        if all(x.known is True for x in given):
            return Known(value)
        known = np.logical_and.reduce(np.broadcast_arrays(*(x.known for x in given)))
        return self.decided(function, Known(value, known), given)

    def decided(self, function: Function, found: Known, given: Sequence[Known]) -> Known:
        """The result where one operand decides it whatever the other is."""
        name, (value, known) = function.name, found
        is_truth = function.result is not None and function.result.kind == "bool"
        for operand in given if len(given) == 2 else ():
            other = np.asarray(operand.value)
            if is_truth and name in ("logical_and", "bitwise_and", "mul", "logical_or", "bitwise_or"):
                wins = other.astype(bool) == (name in ("logical_or", "bitwise_or"))
            elif name in ("add", "sub") and function.result is not None and function.result.kind == "float":
                other = -other if name == "sub" and operand is given[1] else other
                wins = other <= self.overwhelming
            else:
                continue
            wins = np.asarray(operand.known) & wins & ~np.asarray(known)
            value, known = np.where(wins, other, value), known | wins
        return Known(value, known)

    def array(self, scope: Scope, name: str, before: int, most: int = _MOST_WHOLE) -> Any:
        """All of a tensor as the step at `before` finds it; None where not all of it is known."""
        typed, around = scope.type_of(name), scope.bound.get(name)
        size = None if typed is None else typed.numel
        if typed is None:
            return None
        found = None if scope.writes else array_of_value(scope, name, typed)
        if found is not None:
            return found
        if around is not None and isinstance(around[1], Ref):
            return self.array(around[0], around[1].name, around[2], most)
        if not isinstance(size, int) or size > most:
            return None
        key = scope, name, before if scope.writes else 0
        if key not in self.wholes and self.computing < _DEEPEST:
            self.wholes[key] = None
            sizes: tuple[Any, ...] = typed.shape
            places = np.ix_(*map(np.arange, sizes))
            self.computing += 1
            whole = Propagation(self, MOST_STEPS).evaluate(scope, Ref(name), places, before)
            self.computing -= 1
            if np.all(whole.known):
                self.wholes[key] = np.broadcast_to(whole.value, sizes)
        return self.wholes.get(key)


def array_of_value(scope: Scope, name: str, typed: TensorType) -> Any:
    """All of a tensor whose contents are in its type, or stored in the file; None of any other."""
    if typed.value is not None:
        array = np.asarray(typed.value)
        if array.dtype.kind in "biuf" and array.shape == typed.shape:
            return converted(array, typed.dtype)
    array = scope.constants.array(name, typed)
    if array is not None:
        scope.constants.use(name, typed)
    return array


def groups(shape: Sequence[Dim], source: Sequence[Dim]) -> Iterator[tuple[range, range]]:
    """The smallest groups of axes of both shapes that hold equally many elements. ValueError where sizes are not known."""
    a = b = 0
    while a < len(shape) or b < len(source):
        first, start = a, b
        left, a = (shape[a], a + 1) if a < len(shape) else (1, a)
        right, b = (source[b], b + 1) if b < len(source) else (1, b)
        while left != right:
            if isinstance(left, Expr) or isinstance(right, Expr):
                raise ValueError
            if left < right:
                left, a = left * shape[a], a + 1
            else:
                right, b = right * source[b], b + 1
        yield range(first, a), range(start, b)


def picked(array: Any, at: Indices) -> Known | None:
    """Elements of an array at indices; those outside are not known."""
    if any(index is None for index in at) or 0 in array.shape:
        return None
    known: Any = True
    places = []
    for index, size in zip(at, array.shape, strict=True):
        clipped = np.clip(index, 0, size - 1)
        if clipped is not index and not np.array_equal(clipped, index):
            known = known & (clipped == index)
        places.append(clipped)
    return Known(array[tuple(places)], known)


def _number(value: Any) -> Any:
    """A number of the program, as it was written."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
