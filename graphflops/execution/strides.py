"""Strides of tensors: order of axes, strides after axes are merged and split, and numbers for equal types and layouts.

A model repeats its layers, so each distinct case is computed once. The form of a call with known layouts is its operator,
its attributes, and the types and strides of its operands and results.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import accumulate
from operator import mul
from typing import Any, TypeVar, cast

from graphflops.base.record import Record
from graphflops.cost import Value
from graphflops.dims import Dim, evaluate, prod
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

Values = Mapping[str, Value]  # types of tensors, and other values, by name
Shape = Sequence[Dim]
Strides = tuple["Dim", ...]  # by axis, the number of elements from one position to the next
_FALLBACK = 97  # the value of an open size where strides are compared


def row_major(shape: Sequence[Dim], order: Sequence[int] | None = None) -> Strides:
    """Strides of a tensor without gaps. order: its axes from outermost to innermost; by default 0, 1, 2, ..."""
    if order is not None:
        strides = dict(zip(order, row_major([shape[axis] for axis in order]), strict=True))
        return tuple([strides[axis] for axis in range(len(shape))])
    return (*accumulate(shape[:0:-1], mul, initial=1),)[::-1] if shape else ()


def is_contiguous(shape: Sequence[Dim], strides: Strides) -> bool:
    """Whether elements lie in row-major order without gaps; the stride of an axis of size 1 does not matter."""
    if len(shape) != len(strides):
        return False
    axes = zip(shape, strides, row_major(shape), strict=True)
    return all(size == 1 or own == wanted for size, own, wanted in axes)


def channels_last(rank: int) -> tuple[int, ...]:
    """The axes of channels-last images, from outermost to innermost."""
    return (0, *range(2, rank), 1)


def has_channels_last(shape: Sequence[Dim], strides: Strides) -> bool:
    """Whether PyTorch regards images as channels last (MemoryFormat.h of c10).

    Strides of axes of size 1 count: a batch of one image that is a view of rows of channels has no batch stride of its own.
    """
    if len(shape) <= 2 or strides[1] != 1 or shape[1] == 1:
        return False
    least = 0
    for axis in reversed(channels_last(len(shape))):
        stride = size_hint(strides[axis])
        if stride < least:
            return False
        least = stride * size_hint(shape[axis])
    return True


def order_of(strides: Strides) -> list[int]:
    """The axes from outermost to innermost; strides with open sizes are compared by their hints."""
    numbers = [size_hint(stride) for stride in strides]
    return sorted(range(len(strides)), key=lambda axis: -numbers[axis])


@lru_cache(maxsize=4096)
def dense_as(strides: Strides, shape: tuple[Dim, ...]) -> Strides:
    """Strides without gaps, with the order of axes that other strides have."""
    return row_major(shape, order_of(strides))


def size_hint(size: Dim, fallback: int = _FALLBACK) -> int:
    """A number for a size; a formula is evaluated with every open size set to `fallback`."""
    if isinstance(size, int):
        return size
    return evaluate(size, dict.fromkeys(size.symbols, fallback)) or fallback


def repeated(shape: Sequence[Dim], strides: Strides, wide: Sequence[Dim]) -> Strides:
    """Strides of a tensor that is broadcast to a shape: 0 along the axes that repeat it."""
    new = len(wide) - len(shape)
    axes = zip(shape, wide[new:], strides, strict=True)
    return (*[0] * new, *[0 if size == 1 and whole != 1 else step for size, whole, step in axes])


def regrouped(old: Sequence[Dim], strides: Strides, new: Sequence[Dim]) -> Strides | None:
    """Strides after axes are merged and split (`computeStride` in TensorUtils.cpp of ATen); None if that needs a copy.

    Runs of axes that lie one inside the other are regrouped, the innermost first; what is left is the outermost run.
    """
    if 0 in (*old, *new):  # without elements there is nothing to copy
        return row_major(new)
    found, left = list[Dim](), [*new]
    inner: Dim = strides[-1] if strides else 1  # the stride of a run's innermost axis
    size: Dim = 1  # elements of a run, and of the new axes that take its place
    made: Dim = 1
    for axis in reversed(range(len(old) or 1)):
        size = size * prod(old[axis : axis + 1])
        if axis and (old[axis - 1] == 1 or strides[axis - 1] == size * inner):
            continue
        while left and (axis == 0 or left[-1] == 1 or _is_less(made, size)):
            found.append(made * inner)
            made = made * left.pop()
        if axis and made != size:
            return None
        if axis:
            inner, size, made = strides[axis - 1], 1, 1
    return tuple(found[::-1])


def _is_less(part: Dim, whole: Dim) -> bool:
    """Whether a size is less than another; with open sizes, whether it divides that."""
    if isinstance(part, int) and isinstance(whole, int):
        return part < whole
    return part != whole and whole // part * part == whole


Method = TypeVar("Method", bound=Callable[..., Any])


def by_form(compute: Method) -> Method:
    """A method that runs once for each form of a call. Its object has `forms`, and `found`, which keeps results by form."""

    @wraps(compute)
    def found(self: Any, call: PricedCall, *rest: Any) -> Any:
        form = self.forms.of(call)
        if form is None:
            return compute(self, call, *rest)
        key = (compute, form, rest)
        try:
            return self.found[key]
        except KeyError:
            return self.found.setdefault(key, compute(self, call, *rest))

    return cast("Method", found)


class Laid(Record, frozen=True):
    """A result's layout. kind: the number of its type and strides. is_copy: whether a layout operator copies."""

    strides: Strides
    kind: int
    is_copy: bool | None


class Forms:
    """The forms of the calls of a graph."""

    def __init__(self, values: Values) -> None:
        self.types: dict[str, int] = {}  # by value that is a tensor, the number of its type
        self.kinds: dict[str, int] = {}  # of type and strides; that of the type where row-major
        self.numbers: dict[str, int] = {}  # by name of each call that has a form, the number of its form
        self._types, self._kinds = dict[TensorType, int](), dict[tuple[int, Strides], int]()
        self._laid: dict[tuple[Any, ...], tuple[int, Sequence[Laid | None]]] = {}
        self.add(values)

    def add(self, values: Values) -> None:
        """Number the types of further values: equal types have the same number, and each object is compared once."""
        objects = {id(value): value for value in values.values() if isinstance(value, TensorType)}
        seen = {key: self._types.setdefault(value, len(self._types)) for key, value in objects.items()}
        types = {name: seen[id(value)] for name, value in values.items() if id(value) in seen}
        self.types.update(types)
        self.kinds.update(types)

    def results(
        self, call: PricedCall, results: Callable[[PricedCall], Sequence[Laid | None]], further: object = None
    ) -> Sequence[Laid | None]:
        """The layouts of a call's results; `results` computes them once per form. further: an addition to the form."""
        if call.form is None:
            return results(call)
        laid = map(self.kinds.get, (*call.uses, *call.node.outputs))  # type: ignore[arg-type]
        key = (call.form, call.gradient is None, further, *laid)
        known = self._laid.get(key)
        if known is None:
            known = self._laid[key] = len(self._laid), results(call)
        self.numbers[call.node.name], found = known
        return found

    def of(self, call: PricedCall) -> int | None:
        """The number of a call's form; None if it has none."""
        return None if call.form is None else self.numbers.get(call.node.name)

    def kind(self, name: str, strides: Strides) -> int:
        """The number of a tensor's type with these strides."""
        return self._kinds.setdefault((self.types[name], strides), -1 - len(self._kinds))
