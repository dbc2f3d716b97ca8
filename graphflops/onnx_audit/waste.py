"""Work that a rewriting of the graph saves: calls that cancel, repeat or do nothing, and constants computed in every run."""

from collections.abc import Iterator
from typing import Any

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Edit, Freed, Model, Observation, check
from graphflops.tensor import DType, TensorType, flat
from graphflops.view import Call

_GROWTH = 4  # if the result is larger by more, the constant is stored small on purpose
# Mantissa, exponent bits.
_FLOATS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}


@check("GF242", "constant-computed", "note")
def constant_computed(model: Model) -> Iterator[Observation]:
    """Calls that use stored tensors only, computed whenever the model runs or is loaded. Not reported: quantized weights
    that are unpacked, and results several times as large as their operands, because these are stored small on purpose.

    Fix: fold constants when exporting: a runtime that folds them repeats that work at every load.
    """
    folded, sized = _constants(model)
    gone: set[int] = set()
    for call in dict.fromkeys(folded.values()):
        users = model.view.users.get(call.result, [])
        if users and all(user.result in folded for user in users):
            continue  # reported for the last call of the chain
        result = model.typed(call.result)
        types = [model.view.types[name] for name in call.operands if name in model.view.types]
        size = sum(model.at(typed.nbytes) for typed in types)
        if result is not None and model.at(result.nbytes) > _GROWTH * max(size, 1):
            continue
        before = set(gone)
        freed = model.freed(call, (), gone)
        if not model.at(freed.bytes):
            continue
        # Runtimes without half precision skip such a rounding and compute with the stored values.
        exact = not any(_narrows(model.view.calls[place], model) for place in gone - before)
        text = f"{shown(call.name)} computes the same {result} from constants in every run"
        results = [name for name in call.node.outputs if name]
        edits = (Edit("stored", name) for name in results if sized.isdisjoint(results))
        kept = sum(model.at(model.view.types[name].nbytes) for name in results)
        saved = freed._replace(stored=freed.stored - kept)
        yield model.saving(text, call, saved, *edits, exact=exact, graded=False)


@check("GF249", "sizes-computed", "note")
def sizes_computed(model: Model) -> Iterator[Observation]:
    """Calls that compute sizes which are the same for all inputs. They cost little, but pattern matchers of runtimes may not
    see through them, and memory planners do not know the sizes. Not reported where you gave sizes.

    Fix: fold constants when exporting, and leave only those axes open that vary.
    """
    gone: set[int] = set()
    found: list[Observation] = []
    for call in reversed(model.view.calls):  # a call that only later ones need goes with them
        if call.place in gone or not _computes_sizes(call, model):
            continue
        typed, freed = model.view.types[call.result], model.freed(call, (), gone)
        numbers = tuple(flat((typed.value,)))
        text = f"{shown(call.name)} computes sizes that are always {typed.value}"
        edit = Edit("vector" if typed.rank else "scalar", call.result, numbers=numbers)
        saved = freed._replace(stored=freed.stored - model.at(typed.nbytes))
        found.append(model.saving(text, call, saved, edit, graded=False)._replace(is_small=True))
    yield from reversed(found)


@check("GF243", "does-nothing", "warning")
def does_nothing(model: Model) -> Iterator[Observation]:
    """A call that copies its operand unchanged: a Cast to the same type, an Expand or Slice to the same shape, a Pad by
    nothing, a Transpose that keeps the order, an addition of zero, a multiplication by one.

    Fix: remove the call, and connect its users to its operand.
    """
    gone: set[int] = set()
    stays: set[str] = set()
    found: list[Observation] = []
    for call in reversed(model.view.calls):  # a call that only later ones need goes with them
        if call.row.state != "counted" or call.place in gone:
            continue
        added = _adds_nothing(call, model)
        kept = added or (call.operands[0] if _copies(call, model) else "")
        if kept:
            text = f"{shown(call.name)} ({shown(call.operator.word)}) returns its operand unchanged"
            stays.add(kept)
            # -0 + 0 is 0, so removing an addition may change the sign of a zero.
            exact = not (added and call.operator.name == "add" and model.view.types[kept].dtype.is_floating)
            freed, edit = model.freed(call, stays, gone), Edit("instead", call.result, kept)
            found.append(model.saving(text, call, freed, edit, exact=exact))
    yield from reversed(found)


@check("GF244", "repeated-computation", "warning")
def repeated(model: Model) -> Iterator[Observation]:
    """Two calls of one operator on the same operands with the same attributes: one of them is enough.

    Fix: let the users of the second take the result of the first.
    """
    first: dict[Any, Call] = {}
    gone: set[int] = set()
    for call in model.view.calls:
        if call.row.state != "counted" or call.row.regions or call.operator.is_random:
            continue
        wanted = tuple(name is not None for name in call.node.outputs)
        key = (call.node.op, tuple(call.operands), call.node.kwargs, wanted, call.name.rpartition("/")[0])
        known = first.setdefault(key, call)
        if known is not call and call.bytes != 0:
            text = f"{shown(call.name)} repeats the computation of {shown(known.name)}"
            pairs = zip(call.node.outputs, known.node.outputs, strict=True)
            edits = (Edit("instead", name, other) for name, other in pairs if name and other)
            yield model.saving(text, call, model.freed(call, (), gone), *edits)


@check("GF245", "transposes-cancel", "warning")
def transposes_cancel(model: Model) -> Iterator[Observation]:
    """A Transpose of a Transpose: together they are one Transpose, or nothing.

    Fix: remove both if they cancel, else replace them by one Transpose.
    """
    for first, second in model.pairs("permute", "permute"):
        order, then = order_of(first, model), order_of(second, model)
        if order is None or then is None or len(order) != len(then):
            continue
        both = [order[axis] for axis in then]
        cancel = both == sorted(both)
        what = "undoes" if cancel else "can be merged with"
        text = f"{shown(second.name)} {what} {shown(first.name)}"
        freed = model.freed(second if cancel else first, [first.value("x")])
        yield model.saving(text, second, freed, _past(first, second, cancel, tuple(both)))


@check("GF246", "casts-cancel", "warning")
def casts_cancel(model: Model) -> Iterator[Observation]:
    """A Cast of a Cast where the intermediate type represents every number of the first: one Cast, or none, gives the same
    result.

    Fix: remove the Cast in between; runtimes keep it because in general it rounds.
    """
    for first, second in model.pairs("cast", "cast"):
        source, between, result = map(model.typed, (first.value("x"), first.result, second.result))
        if source is None or between is None or result is None or not _holds(between.dtype, source.dtype):
            continue
        cancel = result.dtype is source.dtype
        freed = model.freed(second if cancel else first, [first.value("x")])
        moved = freed.bytes + (0 if cancel else between.nbytes - source.nbytes)
        chain = f"{source.dtype} to {between.dtype} to {result.dtype}"
        text = f"{shown(first.name)} and {shown(second.name)} convert {chain}"
        yield model.saving(text, second, Freed(freed.flops, moved, 0), _past(first, second, cancel))


@check("GF247", "reshapes-chain", "note")
def reshapes_chain(model: Model) -> Iterator[Observation]:
    """A Reshape of a Reshape. It moves no data, but pattern matchers of runtimes may not see through it.

    Fix: keep the last Reshape only.
    """
    gone: set[int] = set()
    for first, second in model.pairs("reshape", "reshape"):
        before, after = model.typed(first.value("x")), model.typed(second.result)
        same = before is not None and after is not None and before.shape == after.shape
        what = "undoes" if same else "replaces"
        sizes = model.typed(second.value("shape"))
        stated = None if sizes is None else sizes.value
        # a zero would take the size of the same axis of its operand
        is_whole = same or (isinstance(stated, tuple) and all(size != 0 for size in stated))
        edits = [_past(first, second, same)] if is_whole else []
        freed = model.freed(second if same else first, [first.value("x")], gone)
        text = f"{shown(second.name)} {what} {shown(first.name)}"
        yield model.saving(text, second, freed, *edits, graded=False)._replace(is_small=True)


@check("GF248", "materialized-broadcast", "note")
def materialized_broadcast(model: Model) -> Iterator[Observation]:
    """An Expand whose result is used only by calls that broadcast their operands: it writes a tensor that nobody needs.

    Fix: remove the Expand: its users broadcast their operands.
    """
    claimed: set[int] = set()
    gone: set[int] = set()
    for call in model.calls("expand"):
        users = model.view.users.get(call.result, [])
        source, result = model.typed(call.value("x")), model.typed(call.result)
        is_used = bool(users) and call.result not in model.view.returned
        if call.row.state != "counted" or not is_used or source is None or result is None:
            continue
        if all(_broadcasts(user, call.result, result, model) for user in users):
            text = f"{shown(call.name)} writes {source} out as {result}"
            # If a call has two expanded operands, only one of them can be left to broadcasting.
            alone = claimed.isdisjoint(user.place for user in users)
            edits = [Edit("instead", call.result, call.value("x"))] if alone else []
            claimed.update(user.place for user in users)
            freed = model.freed(call, [call.value("x")], gone)
            moved = freed.bytes + len(users) * (result.nbytes - source.nbytes)
            yield model.saving(text, call, freed._replace(bytes=moved), *edits, graded=False)


def _constants(model: Model) -> tuple[dict[str, Call], set[str]]:
    """By name, values that depend only on stored tensors, each with its call; and those that do once sizes are stored."""
    folded: dict[str, Call] = {}
    sized = set[str]()
    for call in model.view.calls:
        operands = [name for name in call.operands if name]
        if not operands or call.row.regions or call.row.state not in ("counted", "free"):
            continue
        if call.operator.is_random or call.operator.has("unpacks"):
            continue
        if _computes_sizes(call, model):
            sized.add(call.result)
        elif all(name in model.view.stored or name in folded or name in sized for name in operands):
            folded.update((name, call) for name in call.node.outputs if name)
            sized.update(() if sized.isdisjoint(operands) else filter(None, call.node.outputs))
    return folded, sized


def _narrows(call: Call, model: Model) -> bool:
    """True for a Cast to a type that does not represent every number of its operand."""
    before, after = model.typed(call.value("x")), model.typed(call.result)
    return call.operator.name == "cast" and not (before and after and _holds(after.dtype, before.dtype))


def _computes_sizes(call: Call, model: Model) -> bool:
    """True if a call computes known int64 sizes from values that are not stored, and the user gave no size."""
    typed = model.typed(call.result)
    operands = [name for name in call.operands if name]
    if any(info.given_by == "user" for info in model.report.symbols.values()):
        return False
    if typed is None or typed.dtype.name != "int64" or typed.rank > 1 or call.row.regions:
        return False
    depends = any(name not in model.view.stored for name in operands)
    return depends and typed.value is not None and all(isinstance(size, int) for size in flat((typed.value,)))


def _past(first: Call, second: Call, cancel: bool, order: tuple[int, ...] = ()) -> Edit:
    """The edit by which the second call takes the operand of the first; if they cancel, the second's users take it."""
    source, result = first.value("x"), second.result
    return Edit("instead", result, source) if cancel else Edit("operand", result, source, order)


def order_of(call: Call, model: Model) -> list[int] | None:
    """The order in which a Transpose puts the axes; None for another operator."""
    typed = model.typed(call.value("x")) if call.operator.name == "permute" else None
    return None if typed is None else list(call.argument("order") or reversed(range(typed.rank)))


def _adds_nothing(call: Call, model: Model) -> str:
    """The operand that a call returns unchanged because it adds zero, multiplies by one, or the like; "" for other calls."""
    op = call.operator
    if op.neutral is None or len(call.operands) < 2 or call.argument("rounding_mode"):
        return ""
    result = model.typed(call.result)
    for kept, other in [(0, 1), (1, 0)] if op.has("commutative") else [(0, 1)]:
        typed, number = (model.typed(call.operands[place]) for place in (kept, other))
        if typed is None or number is None or result is None or typed.shape != result.shape:
            continue
        entries = [*flat((number.value,))]
        is_neutral = entries and all(each == op.neutral and not isinstance(each, bool) for each in entries)
        if is_neutral if number.uniform is None else number.uniform == op.neutral:
            return call.operands[kept] if typed.dtype is result.dtype else ""
    return ""


def _copies(call: Call, model: Model) -> bool:
    """True if the result is the first operand, element by element."""
    operands = call.operands
    source, result = model.typed(operands[0] if operands else ""), model.typed(call.result)
    if source is None or result is None or source.shape != result.shape or source.dtype is not result.dtype:
        return False
    match call.operator.name:
        case "permute":
            order = order_of(call, model)
            return order is not None and order == sorted(order)
        case "slice":
            # true if every step of a Slice is positive, so that it does not reverse the order
            typed = model.typed(call.value("step"))
            steps: Any = (1,) if not call.value("step") else None if typed is None else typed.value
            return isinstance(steps, tuple) and all(isinstance(step, int) and step > 0 for step in steps)
        case "pad":
            amounts = model.typed(call.value("pads"))
            given = call.argument("pads") if amounts is None else amounts.value
            return isinstance(given, tuple) and all(amount == 0 for amount in given)
        case "cat":
            return len([name for name in operands if name]) == 1
        case _:
            return call.operator.has("keeps_values")


def _holds(wide: DType, narrow: DType) -> bool:
    """True if one type represents every number of the other."""
    if narrow is wide or narrow.kind == "bool":
        return True
    if wide.name in _FLOATS and narrow.name in _FLOATS:
        return all(a >= b for a, b in zip(_FLOATS[wide.name], _FLOATS[narrow.name], strict=True))
    if narrow.kind not in ("int", "uint"):
        return False
    if wide.name in _FLOATS:
        return narrow.bits <= _FLOATS[wide.name][0]
    if wide.kind == narrow.kind:
        return wide.bits >= narrow.bits
    return wide.kind == "int" and wide.bits > narrow.bits


def _broadcasts(user: Call, name: str, expanded: TensorType, model: Model) -> bool:
    """True if a call gives the same result when it takes the tensor before it was expanded."""
    if not user.operator.broadcasts or not expanded.rank:
        return False
    others = [model.typed(operand) for operand in user.operands if operand and operand != name]
    return any(other and other.shape[-expanded.rank :] == expanded.shape for other in others)
