"""Sequences and optional values: bookkeeping is free, splitting and concatenating copies."""

from collections.abc import Sequence

from graphflops.cost import Estimate, Value, free
from graphflops.dims import ceil_div, mod, symbol
from graphflops.rules.onnx.entries import Numbers, onnx_dtype, size, unknown
from graphflops.rules.onnx.indexing import pieces, split_lengths
from graphflops.rules.onnx.movement import joined
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis_of, only_result, replaced, same_elements, tensors_of
from graphflops.rules.views import unsqueeze
from graphflops.tensor import BOOL, INT64, ElementType, OptionalType, SequenceType, TensorType, UnknownType

KIND = "sequence"

_LISTED = 64  # elements that are followed one by one
VARIES = symbol("size that varies")  # stands for a size that differs between elements


def sequence_of(items: Sequence[ElementType | None]) -> SequenceType:
    """The sequence of these elements."""
    known = tuple(item for item in items if item is not None)
    each = known if len(known) == len(items) <= _LISTED else None
    return SequenceType(common(items), len(items), each)


def element_of(value: Value) -> ElementType | None:
    """A value as a sequence element; None if nothing is known about it."""
    return value if isinstance(value, (TensorType, SequenceType, OptionalType)) else None


def common(items: Sequence[ElementType | None]) -> ElementType | None:
    """The common type of all elements."""
    first, *rest = items or (None,)
    for item in rest:
        first = alike(first, item)
    return first


def alike(a: ElementType | None, b: ElementType | None) -> ElementType | None:
    """The common type of two elements."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return None
    if a.rank != b.rank or a.dtype != b.dtype:
        return None
    return a.like(mine if mine == other else VARIES for mine, other in zip(a.shape, b.shape, strict=True))


def one_of(element: ElementType | None) -> ElementType | UnknownType:
    """The type of an unknown element: a size that varies is data-dependent."""
    if isinstance(element, TensorType):
        sizes = enumerate(element.shape)
        return element.like(unknown("element", at) if size is VARIES else size for at, size in sizes)
    return UnknownType() if element is None else element


def listed(x: SequenceType) -> tuple[ElementType, ...] | None:
    """The elements one by one, if they are known or known to be equal."""
    if x.items is not None or not isinstance(x.length, int) or x.element is None or x.length > _LISTED:
        return x.items
    varies = isinstance(x.element, TensorType) and VARIES in x.element.shape
    return None if varies else (x.element,) * x.length


@rule("onnx.SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> Estimate:
    """An empty sequence."""
    onnx_dtype(dtype)
    return free(SequenceType(None, 0, ()), alias=False)


@rule("onnx.SequenceConstruct", rankless=("*",))
def sequence_construct(*tensors: TensorType | UnknownType) -> Estimate:
    """A sequence of the given tensors."""
    require(all(isinstance(x, (TensorType, UnknownType)) for x in tensors), "a list is one of tensors")
    return free(sequence_of([element_of(x) for x in tensors]), alias=False)


@rule("onnx.SequenceInsert", rankless=("tensor", "position"))
def sequence_insert(x: SequenceType, tensor: TensorType | UnknownType, position: Numbers = None) -> Estimate:
    """The sequence with one more element, by default at the end."""
    require(isinstance(tensor, (TensorType, UnknownType)), "a list is one of tensors")
    items, place, new = listed(x), None if position is None else size(position), element_of(tensor)
    if items is not None and (position is None or isinstance(place, int)):
        at = place if isinstance(place, int) else len(items)
        return free(sequence_of((*items[:at], new, *items[at:])), alias=False)
    element = new if x.length == 0 else alike(x.element, new)
    return free(SequenceType(element, None if x.length is None else x.length + 1), alias=False)


@rule("onnx.SequenceErase", rankless=("position",))
def sequence_erase(x: SequenceType, position: Numbers = None) -> Estimate:
    """The sequence without one element, by default the last one."""
    items, place = listed(x), -1 if position is None else size(position)
    if items and isinstance(place, int):
        at = place % len(items)
        return free(sequence_of((*items[:at], *items[at + 1 :])), alias=False)
    return free(SequenceType(x.element, None if x.length is None else x.length - 1), alias=False)


@rule("onnx.SequenceAt", rankless=("position",))
def sequence_at(x: SequenceType, position: Numbers) -> Estimate:
    """One element; free."""
    items, place = listed(x), size(position)
    if items and isinstance(place, int):
        require(-len(items) <= place < len(items), f"position {place} is outside a sequence of {len(items)}")
        return free(items[place], alias=False)
    return free(one_of(common(items) if items else x.element), alias=False)


@rule("onnx.SequenceLength")
def sequence_length(x: SequenceType) -> Estimate:
    """How many elements there are."""
    return free(TensorType((), INT64, value=x.length), alias=False)


@rule("onnx.SplitToSequence")
def split_to_sequence(x: TensorType, split: Numbers = None, *, axis: int = 0, keepdims: int = 1) -> Estimate:
    """Copies pieces of the given lengths, or of one length, or every single slice."""
    place = axis_of(axis, x.rank)
    length = x.shape[place]
    each = isinstance(split, TensorType) and split.rank > 0
    step = 1 if split is None else size(split)
    if each:
        parts = pieces(x, place, split_lengths(length, split, 0))
    elif isinstance(length, int) and isinstance(step, int) and length <= _LISTED * step:
        parts = pieces(x, place, [min(step, length - start) for start in range(0, length, step)])
    else:
        # many pieces, or an unknown number of them: all of one type if they are equally long
        dropped = split is None and not keepdims
        even = step is not None and mod(length, step) == 0
        width = step if even and step is not None else VARIES
        element = x.like(replaced(x.shape, place) if dropped else replaced(x.shape, place, width))
        count = None if step is None else ceil_div(length, step)
        return Estimate((SequenceType(element, count),), reads=(x,), writes=(x,))
    if split is None and not keepdims:
        parts = tuple(same_elements(part, replaced(part.shape, place)) for part in parts)
    return Estimate((sequence_of(parts),), reads=(x,), writes=parts)


@rule("onnx.ConcatFromSequence")
def concat_from_sequence(x: SequenceType, *, axis: int, new_axis: int = 0) -> Estimate:
    """Concatenates all elements along an axis, or stacks them along a new one."""
    items = tensors_of(listed(x) or ())
    if items:
        rows = [only_result(unsqueeze(item, axis)) for item in items] if new_axis else items
        return Estimate((joined(rows, axis),), reads=items)
    if not isinstance(x.element, TensorType):
        return Estimate((UnknownType(),), unknown="nothing is known of the tensors that are joined")
    whole = only_result(unsqueeze(x.element, axis)) if new_axis else x.element
    place = axis_of(axis, whole.rank)
    each = whole.shape[place]
    length = VARIES if x.length is None or each is VARIES else each * x.length
    out = one_of(whole.like(replaced(whole.shape, place, length)))
    return Estimate((out,), reads=(out,) if isinstance(out, TensorType) else ())


@rule("onnx.Optional", rankless=("x",))
def optional(x: ElementType | UnknownType | None = None) -> Estimate:
    """The value, or none."""
    return free(OptionalType(element_of(x), x is not None))


@rule("onnx.OptionalGetElement", rankless=("x",))
def optional_get_element(x: ElementType | UnknownType) -> Estimate:
    """The value of an optional."""
    if not isinstance(x, OptionalType):
        return free(x)
    require(x.present is not False, "there is no value to get")
    return free(UnknownType() if x.element is None else x.element)


@rule("onnx.OptionalHasElement", rankless=("x",))
def optional_has_element(x: ElementType | UnknownType | None = None) -> Estimate:
    """True if there is a value; a tensor or sequence always counts as one."""
    if isinstance(x, UnknownType):
        return free(TensorType((), BOOL), alias=False)
    present = x.present if isinstance(x, OptionalType) else x is not None
    return free(TensorType((), BOOL, value=None if present is None else int(present)), alias=False)
