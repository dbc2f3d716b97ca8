"""Work that a rewriting of the graph saves: calls that cancel, repeat, do nothing, or could be done before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.cost import Cost
from graphflops.errors import shown
from graphflops.onnx_audit.registry import Found, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model
    from graphflops.tensor import DType, TensorType
    from graphflops.view import Call

_RANDOM = ("Random", "Multinomial", "Bernoulli", "Dropout")
_UNPACKING = frozenset(
    {"DequantizeLinear", "com.microsoft.DequantizeLinear", "com.microsoft.GatherBlockQuantized"}
)
_GROWTH = 4  # times: a constant computed from so much less is stored small on purpose
# Calls that give back what they are given where the type stays: Expand, Tile, Slice and Pad move data for nothing then.
_MOVING = frozenset(
    {"Expand", "Tile", "Slice", "Cast", "CastLike", "Resize", "Upsample", "ReduceSum", "CenterCropPad"}
)
# The number that, as the second operand (the first where order does not matter), changes nothing.
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}


@check(
    "GF242",
    "constant-computed",
    "note",
    fix="fold constants when exporting: runtimes that fold them do so anew at every load",
)
def constant_computed(model: Model) -> Iterator[Found]:
    """Calls on nothing but stored tensors, computed whenever the model runs or is loaded. Quantized weights that are
    unpacked, and constants that would be several times as large, are left out: they are stored small on purpose.
    """
    folded: dict[str, Cost] = {}
    roots = []
    for call in model.view.calls:
        operands = [name for name in call.operands if name]
        if not operands or call.row.regions or (call.row.state != "counted" and call.row.state != "free"):
            continue
        if call.kind.startswith(_RANDOM) or call.kind in _UNPACKING:
            continue
        if all(name in model.view.stored or name in folded for name in operands):
            cost = Cost.sum(
                [call.cost, *(folded[name] for name in dict.fromkeys(operands) if name in folded)]
            )
            folded.update((name, cost) for name in call.node.outputs if name)
            roots.append((call, cost))
    for call, cost in roots:
        users = model.view.users.get(call.result, [])
        if users and all(user.result in folded for user in users):
            continue  # said of what it leads to
        read = cost.read_bytes + cost.written_bytes
        result = model.view.types.get(call.result)
        size = sum(
            model.at(model.view.types[name].nbytes) for name in call.operands if name in model.view.types
        )
        if not model.at(read) or (result is not None and model.at(result.nbytes) > _GROWTH * max(size, 1)):
            continue
        flops = cost.matrix_flops + cost.vector_flops
        yield Found(
            f"{shown(call.name)} computes the same {result} from constants in every run", call, flops, read
        )


@check("GF243", "does-nothing", "warning", fix="remove the call, and let its users take its operand")
def does_nothing(model: Model) -> Iterator[Found]:
    """A call that gives back what it is given but copies it: a Cast to the same type, an Expand or Slice to the same shape,
    a Pad by nothing, a Transpose that keeps the order, an addition of zero or a product with one.
    """
    for call in model.view.calls:
        if call.row.state == "counted" and _is_idle(call, model):
            text = f"{shown(call.name)} ({shown(call.kind)}) gives back its operand"
            yield Found(text, call, call.flops, call.bytes, model.graded(call.flops, call.bytes))


@check(
    "GF244", "repeated-computation", "warning", fix="let the users of the second take the result of the first"
)
def repeated(model: Model) -> Iterator[Found]:
    """Two calls of one operator on the same operands with the same attributes: one of them is enough."""
    first: dict[Any, Call] = {}
    for call in model.view.calls:
        if call.row.state != "counted" or call.row.regions or call.kind.startswith(_RANDOM):
            continue
        wanted = tuple(name is not None for name in call.node.outputs)
        key = (call.node.op, tuple(call.operands), call.node.kwargs, wanted, call.name.rpartition("/")[0])
        known = first.setdefault(key, call)
        if known is not call and call.bytes != 0:
            text = f"{shown(call.name)} computes what {shown(known.name)} has computed"
            yield Found(text, call, call.flops, call.bytes, model.graded(call.flops, call.bytes))


@check(
    "GF245", "transposes-cancel", "warning", fix="remove both where they cancel, else make them one Transpose"
)
def transposes_cancel(model: Model) -> Iterator[Found]:
    """A Transpose of a Transpose: together they are one, or nothing."""
    for first, second in _pairs(model, "Transpose"):
        order, then = _order(first, model), _order(second, model)
        if order is None or then is None or len(order) != len(then):
            continue
        both = [order[axis] for axis in then]
        cancel = both == sorted(both)
        flops, moved = second.flops, second.bytes + (first.bytes if cancel else 0)
        what = "undoes" if cancel else "could be one with"
        yield Found(
            f"{shown(second.name)} {what} {shown(first.name)}",
            second,
            flops,
            moved,
            model.graded(flops, moved),
        )


@check(
    "GF246",
    "casts-cancel",
    "warning",
    fix="remove the Cast in between; runtimes may not, for fear of rounding",
)
def casts_cancel(model: Model) -> Iterator[Found]:
    """A Cast of a Cast where the type between holds every number of the one before: one Cast, or none, gives the same."""
    for first, second in _pairs(model, "Cast"):
        source, between, result = (
            model.view.types.get(name) for name in (first.operand(0), first.result, second.result)
        )
        if source is None or between is None or result is None or not _holds(between.dtype, source.dtype):
            continue
        cancel = result.dtype is source.dtype
        flops, moved = (
            second.flops + (first.flops if cancel else 0),
            second.bytes + (first.bytes if cancel else 0),
        )
        chain = f"{source.dtype} to {between.dtype} to {result.dtype}"
        yield Found(
            f"{shown(first.name)} and {shown(second.name)} go from {chain}",
            *(second, flops, moved, model.graded(flops, moved)),
        )


@check("GF247", "reshapes-chain", "note", fix="keep the last Reshape alone")
def reshapes_chain(model: Model) -> Iterator[Found]:
    """A Reshape of a Reshape. It moves no data, but hides from pattern matchers what they look for."""
    for first, second in _pairs(model, "Reshape"):
        before, after = model.view.types.get(first.operand(0)), model.view.types.get(second.result)
        same = before is not None and after is not None and before.shape == after.shape
        what = "undoes" if same else "makes needless"
        yield Found(f"{shown(second.name)} {what} {shown(first.name)}", second)


@check("GF248", "materialized-broadcast", "note", fix="remove the Expand: its users broadcast by themselves")
def materialized_broadcast(model: Model) -> Iterator[Found]:
    """An Expand whose result only calls use that broadcast by themselves: it writes out what need not exist."""
    for call in model.view.calls:
        if call.kind != "Expand" or call.row.state != "counted" or call.result in model.view.returned:
            continue
        users = model.view.users.get(call.result, [])
        source, result = model.view.types.get(call.operand(0)), model.view.types.get(call.result)
        if not users or source is None or result is None:
            continue
        if all(_broadcasts(user, call.result, result, model) for user in users):
            yield Found(f"{shown(call.name)} writes out {source} as {result}", call, call.flops, call.bytes)


def _pairs(model: Model, kind: str) -> Iterator[tuple[Call, Call]]:
    """Calls of a kind on the result of one of the same kind, which nothing else uses."""
    for second in model.view.calls:
        if second.kind == kind:
            first = model.view.makers.get(second.operand(0))
            if first is not None and first.kind == kind and model.view.only_user(first.result) is second:
                yield first, second


def _order(call: Call, model: Model) -> list[int] | None:
    """In which order a Transpose puts the axes."""
    typed = model.view.types.get(call.operand(0))
    if typed is None:
        return None
    order = call.attribute("perm")
    return list(order) if order else list(reversed(range(typed.rank)))


def _is_idle(call: Call, model: Model) -> bool:
    source, result = model.view.types.get(call.operand(0)), model.view.types.get(call.result)
    if source is None or result is None:
        return False
    if call.kind in _NEUTRAL:
        neutral = _NEUTRAL[call.kind]
        pairs = [(0, 1), (1, 0)] if call.kind in ("Add", "Mul") else [(0, 1)]
        for kept, other in pairs:
            typed, number = (
                model.view.types.get(call.operand(kept)),
                model.view.types.get(call.operand(other)),
            )
            if (
                typed is not None
                and number is not None
                and _is_all(number, neutral)
                and typed.shape == result.shape
            ):
                return typed.dtype is result.dtype
        return False
    if source.shape != result.shape or source.dtype is not result.dtype:
        return False
    if call.kind == "Transpose":
        order = _order(call, model)
        return order is not None and order == sorted(order)
    if call.kind == "Slice":
        return _is_forward(call, model)
    if call.kind == "Pad":
        amounts = model.view.types.get(call.operand(1))
        given = call.attribute("pads", None) if amounts is None else amounts.value
        return isinstance(given, tuple) and all(amount == 0 for amount in given)
    if call.kind == "ReduceSum":
        return False
    return call.kind in _MOVING or (call.kind == "Concat" and len([n for n in call.operands if n]) == 1)


def _is_forward(call: Call, model: Model) -> bool:
    """Whether a Slice of all there is takes it in its order."""
    steps = model.view.types.get(call.operand(4))
    if not call.operand(4):
        return True
    return (
        steps is not None
        and isinstance(steps.value, tuple)
        and all(isinstance(step, int) and step > 0 for step in steps.value)
    )


def _is_all(typed: TensorType, number: int) -> bool:
    """Whether every element is known to be the number."""
    if typed.uniform is not None:
        return typed.uniform == number
    waiting, seen = [typed.value], False
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting += part
        elif part is None or isinstance(part, bool) or part != number:
            return False
        else:
            seen = True
    return seen


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether a type has every number of another."""
    if narrow is wide or narrow.kind == "bool":
        return True
    floats = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
    if wide.name in floats and narrow.name in floats:
        return all(a >= b for a, b in zip(floats[wide.name], floats[narrow.name], strict=True))
    if wide.name in floats and narrow.kind in ("int", "uint"):
        return narrow.bits <= floats[wide.name][0]
    if narrow.kind == "uint" and wide.kind in ("int", "uint"):
        return wide.bits - (wide.kind == "int") >= narrow.bits
    return narrow.kind == "int" and wide.kind == "int" and wide.bits >= narrow.bits


_BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Where", "And", "Or", "Xor", "Equal", "Less", "Greater", "Min", "Max"}
    | {"LessOrEqual", "GreaterOrEqual", "Mod", "PRelu", "Sum", "Mean"}
)


def _broadcasts(user: Call, name: str, expanded: TensorType, model: Model) -> bool:
    """Whether a call would give the same result for the tensor before it was expanded."""
    if user.kind not in _BROADCASTING:
        return False
    others = [model.view.types.get(operand) for operand in user.operands if operand and operand != name]
    return any(
        other is not None and other.rank >= expanded.rank and other.shape[-expanded.rank :] == expanded.shape
        for other in others
        if expanded.rank
    )
