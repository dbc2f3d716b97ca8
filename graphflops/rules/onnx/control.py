"""Control flow of ONNX, and its lists and optional values: bookkeeping is free, splitting and concatenating copies."""

from collections.abc import Sequence
from functools import reduce

from graphflops.base.record import replace
from graphflops.cost import Estimate, Region, Value, data_dependent, free
from graphflops.dims import Dim, Expr, at_least, ceil_div, differ, evaluate, meet, mod, where
from graphflops.rules.control import either, once
from graphflops.rules.onnx import entries
from graphflops.rules.onnx.entries import Numbers, alike, element_of, listed, sequence_of, size, unknown
from graphflops.rules.onnx.indexing import pieces, split_lengths
from graphflops.rules.onnx.loops import State, Turn, counted, looped
from graphflops.rules.onnx.movement import joined
from graphflops.rules.onnx.values import chosen, filled, known_contents
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis_of, only_result, replaced, same_elements, tensors_of
from graphflops.rules.views import unsqueeze
from graphflops.tensor import BOOL, INT64, ElementType, OptionalType, SequenceType, TensorType, UnknownType

_ENDLESS = (2**31 - 1, 2**63 - 1)  # a loop with one of these trip counts is ended by its condition
_TRIED = (2, 3, 64, 256, 1009)  # sizes at which to try a condition whose branches differ in rank


@rule("onnx.If", rankless=("cond",))
def if_(cond: Numbers, *, then_branch: Region, else_branch: Region) -> Estimate:
    """The branch that a known condition selects, else the only one that can run, else the more expensive one."""
    holds = size(cond)
    if isinstance(holds, int):
        return once(then_branch() if holds else else_branch())
    first, second = then_branch(), else_branch()
    if bool(first.stuck) != bool(second.stuck):
        taken, other = (second, first) if first.stuck else (first, second)
        text = f"takes {taken.name}, and its costs are a lower bound: {other.name} cannot run ({other.stuck})"
        return replace(once(taken), regions=((taken, 1), (other, 0)), hint=("GF137", text))
    pairs = enumerate(zip(first.out, second.out, strict=True))
    return replace(either(first, second), out=tuple(_picked(holds, a, b, place) for place, (a, b) in pairs))


def _picked(condition: Expr | None, a: Value, b: Value, place: int) -> Value:
    """A type that holds for both results; where sizes differ, a condition on sizes chooses between them."""
    if a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.rank == b.rank:
            shape: list[Dim] = []
            for axis, (one, other) in enumerate(zip(a.shape, b.shape, strict=True)):
                open_ = unknown(f"branch{place}", axis) if condition is None else where(condition, one, other)
                shape.append(one if one == other else open_)
            out, first, second = a.like(shape), known_contents(a), known_contents(b)
            if condition is None or first is None or second is None or a.shape != b.shape:
                return out
            return filled(out, lambda at: chosen(condition, first[at], second[at]))
        taken = set[bool]()
        # The condition's value at sizes other than 0 and 1, if it is the same at all of them.
        if condition is not None:
            names = sorted(condition.symbols)
            tried = [dict.fromkeys(names, size) for size in _TRIED]
            tried += [{name: size + 7 * at for at, name in enumerate(names)} for size in _TRIED]
            taken = {bool(evaluate(condition, sizes)) for sizes in tried}
        return UnknownType(a.dtype) if len(taken) != 1 else a if taken.pop() else b
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(alike(a.element, b.element), a.length if a.length == b.length else None)
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(alike(a.element, b.element))
    return UnknownType()


@rule("onnx.Loop", rankless=("trips", "cond", "*"))
def loop(trips: Numbers = None, cond: Numbers = None, *carried: Value, body: Region) -> Estimate:
    """The body, once per iteration; an iteration count that depends on data gets a name."""
    most, entered = size(trips), 1 if cond is None else size(cond)
    limit = data_dependent("loop_trips") if most is None and trips is not None else most
    if limit in _ENDLESS:
        limit = None
    elif limit is not None and at_least(0, limit):
        limit = 0
    holds = filled(TensorType(cond.shape if isinstance(cond, TensorType) else (), BOOL), lambda _: 1)
    given = next(iter(body.declared), None)
    counter = (1,) if isinstance(given, TensorType) and given.rank == 1 else ()  # as the body takes it

    def turn(index: Dim, state: State) -> Turn:
        run = body(filled(TensorType(counter, INT64), lambda _: index), holds, *state)
        goes_on = run.out[0]
        settled = size(goes_on) if isinstance(goes_on, TensorType) and entered is not None else None
        return Turn(run, run.out[1 : len(state) + 1], run.out[len(state) + 1 :], settled)

    return looped(turn, carried, 0 if entered == 0 else limit)


@rule("onnx.Scan")
def scan(
    *operands: TensorType,
    body: Region,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> Estimate:
    """The body once per slice of the scanned tensors."""
    states, scanned = _parted(operands, num_scan_inputs)
    pairs = zip(scan_input_axes or (0,) * len(scanned), scanned, strict=True)
    places = [axis_of(axis, x.rank) for axis, x in pairs]
    found = _scanned(body, states, scanned, places, scan_output_axes)
    made = len(found.out) - len(states)
    told = (scan_input_directions, len(scanned)), (scan_output_axes, made), (scan_output_directions, made)
    for given, count in told:
        require(given is None or len(given) == count, f"{given} must have {count} entries")
    return found


@rule("onnx.Scan.8")
def scan_batch(
    sequence_lens: TensorType | None = None, *operands: TensorType, body: Region, num_scan_inputs: int
) -> Estimate:
    """The body once per step of every sequence of a batch, padding included."""
    batch = operands[0].shape[0]
    states, scanned = _parted([x.view(x.shape[1:]) for x in operands], num_scan_inputs)
    one = _scanned(body, states, scanned, [0] * len(scanned), None)
    cost = one.cost * batch
    out = tuple(x.like((batch, *x.shape)) if isinstance(x, TensorType) else x for x in one.out)
    return cost.estimate(out, regions=tuple((run, times * batch) for run, times in one.regions))


def _parted(
    operands: Sequence[TensorType], count: int
) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
    require(0 < count <= len(operands), f"{count} of {len(operands)} operands cannot be scanned")
    return tuple(operands[:-count]), tuple(operands[-count:])


def _scanned(
    body: Region,
    states: State,
    scanned: Sequence[TensorType],
    places: Sequence[int],
    output_places: Sequence[int] | None,
) -> Estimate:
    length = reduce(meet, [x.shape[place] for x, place in zip(scanned, places, strict=True)])
    slices = tuple(x.view(replaced(x.shape, place)) for x, place in zip(scanned, places, strict=True))
    for given, x in zip(body.declared[len(states) :], slices, strict=False):
        if isinstance(given, TensorType):
            fits = given.rank == x.rank and not any(map(differ, given.shape, x.shape))
            require(fits, f"the body takes {given}, but gets {x}")

    def turn(index: Dim, state: State) -> Turn:
        run = body(*state, *slices)
        return Turn(run, run.out[: len(state)], run.out[len(state) :])

    return looped(turn, states, length, output_places or ())


@rule("onnx.SequenceMap", rankless=("*",))
def sequence_map(x: SequenceType, *others: Value, body: Region) -> Estimate:
    """The body once per element of the first list; further lists are read in step with it."""
    operands = (x, *others)
    pairs = [(value, listed(value) if isinstance(value, SequenceType) else None) for value in operands]
    if x.length == 0 or any(isinstance(value, SequenceType) and not each for value, each in pairs):
        run = body(*(value.element if isinstance(value, SequenceType) else value for value in operands))
        elements = (value if isinstance(value, TensorType) else None for value in run.out)
        out = tuple(SequenceType(element, x.length) for element in elements)
        return Estimate(out, writes=(), regions=((run, 0 if x.length is None else x.length),))
    turns = range(len(pairs[0][1] or ()))
    runs = [body(*(each[at] if each else value for value, each in pairs)) for at in turns]
    out = tuple(sequence_of(values) for values in zip(*(run.out for run in runs), strict=True))
    return Estimate(out, writes=(), regions=counted(runs))


KIND = "sequence"


@rule("onnx.SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> Estimate:
    """An empty sequence."""
    entries.onnx_dtype(dtype)
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
    return free(entries.one_of(entries.common(items) if items else x.element), alias=False)


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
    elif isinstance(length, int) and isinstance(step, int) and length <= entries.LISTED * step:
        parts = pieces(x, place, [min(step, length - start) for start in range(0, length, step)])
    else:
        # many pieces, or an unknown number of them: all of one type if they are equally long
        dropped = split is None and not keepdims
        width = step if step is not None and mod(length, step) == 0 else entries.VARIES
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
    length = entries.VARIES if x.length is None or each is entries.VARIES else each * x.length
    out = entries.one_of(whole.like(replaced(whole.shape, place, length)))
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
