"""Gradients of calls: what they cost, what they read, and which of them a training step computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.cost import MATRIX_QUANTITIES, Cost, Estimate, Value
from graphflops.passes.program import Backward, PricedCall, owners
from graphflops.rules.registry import ForwardCall, Rule, find_backward
from graphflops.tensor import PartType, TensorType, flat


def gradient(rule: Rule, arguments: Mapping[str, Any], estimate: Estimate) -> Estimate | None:
    """The estimate of the backward of one call; None if no operand wants a gradient.

    Without a rule of its own: for a product the forward's matrix work once per wanted factor, otherwise the forward's vector
    work once per wanted operand; a view's gradient is a view.
    """
    wanted = frozenset(name for name, value in arguments.items() if _wanting(value))
    results = [value for value in estimate.out if isinstance(value, TensorType)]
    if not wanted or (results and not any(value.dtype.is_floating for value in results)):
        return None
    call, own = ForwardCall(estimate, dict(arguments), wanted), find_backward(rule.key)
    return _by_default(rule, call) if own is None else own(call)


def backward_of(
    rule: Rule, arguments: Mapping[str, Any], estimate: Estimate, operands: Sequence[TensorType]
) -> Backward | None:
    """The backward of one call with what it keeps in memory; None if no operand wants a gradient.

    operands: the call's tensors in order, each a separate object, so that the operands a rule reads can be identified.
    """
    back = gradient(rule, arguments, estimate)
    if back is None:
        return None
    places = {id(operand): place for place, operand in enumerate(operands)}
    wanted = [places[id(tensor)] for value in arguments.values() for tensor in _wanting(value)]
    operands_read, results_read, beside = _told_apart(back, estimate, places)
    kept = beside if find_backward(rule.key) else ()  # by default what is read is what the forward read
    return Backward(back, tuple(zip(wanted, _fresh(back), strict=False)), operands_read, results_read, kept)


def _by_default(rule: Rule, call: ForwardCall) -> Estimate:
    estimate, given = call.estimate, call.arguments
    wanted = {name: _wanting(given[name]) for name in given if name in call.wants}
    gradients = tuple(tensor.like() for tensors in wanted.values() for tensor in tensors)
    if estimate.writes == ():  # a view, or a call whose nested graphs have gradients of their own
        return Estimate(gradients, writes=(), alias=True)
    if estimate.regions:  # one of several ran: what another's gradients may exceed its own by is the call's
        runs = [run.backward for run, times in estimate.regions if times != 0]
        more = Cost.sum(runs).exceeded_by(run.backward for run, times in estimate.regions if times == 0)
        return more.estimate(gradients, alias=True)
    incoming = tuple(
        value.like() for value in estimate.out if isinstance(value, TensorType) and value.dtype.is_floating
    )
    factors = wanted.keys() & set(rule.product)
    passed: tuple[TensorType, ...] = ()  # gradients that are the result's own
    if rule.product:
        matrix = len(factors)
        added = [(name, x) for x, name in zip(gradients, wanted, strict=False) if name not in factors]
        is_whole = given.get("beta", 1) == 1  # a bias is added to rows, also to a single one
        passed = tuple(
            x for name, x in added if is_whole and name != "bias" and _like(x, incoming) is not None
        )
        vector = int(len(added) > len(passed))  # what is added to a product: its gradient is a sum
        needed = {name for name in rule.product if factors - {name}}
        needless = _floating(value for name, value in given.items() if name not in needed)
    else:
        matrix = vector = len(gradients)
        moved = estimate.matrix_flops == estimate.vector_flops == estimate.transcendentals == 0
        # Values only moved: where to is read, not what.
        needless = _floating(given.values()) if moved else set()
    work = {
        name: amount * (matrix if name in MATRIX_QUANTITIES else vector)
        for name, amount in estimate.work.items()
    }
    reads = (*incoming, *(value for value in estimate.reads if id(value) not in needless))
    written = None if not passed else tuple(x for x in gradients if all(x is not each for each in passed))
    return Estimate(gradients, reads=reads, writes=written, **work)  # type: ignore[arg-type]


def _floating(values: Iterable[Any]) -> set[int]:
    """Identities of the floating tensors among values and in lists of them."""
    return {id(value) for value in flat(values) if isinstance(value, TensorType) and value.dtype.is_floating}


def _told_apart(
    back: Estimate, estimate: Estimate, places: Mapping[int, int]
) -> tuple[frozenset[int], frozenset[int], tuple[int, ...]]:
    """Positions of what a backward reads: operands, results, and others; gradients of the results are in none of them.

    Operands and results are identified by object, a gradient by its type. If no gradient is found so, the first read of
    a result counts as a read of its gradient. What is read of the gradients that are made is part of a result's gradient.
    """
    results = {id(value): place for place, value in enumerate(estimate.out) if isinstance(value, TensorType)}
    incoming = [v for v in estimate.out if isinstance(v, TensorType) and v.dtype.is_floating]
    operands_read, results_read, beside = set(), [], []
    made = {id(value) for value in back.out}
    for index, value in enumerate(back.reads):
        if id(value) in made or isinstance(value, PartType):
            continue
        if id(value) in places:
            operands_read.add(places[id(value)])
        elif id(value) in results:
            results_read.append(results[id(value)])
        elif isinstance(value, TensorType) and (match := _like(value, incoming)) is not None:
            incoming.pop(match)
        elif value is not None:
            beside.append(index)
    for result in incoming:
        if results[id(result)] in results_read:
            results_read.remove(results[id(result)])
    return frozenset(operands_read), frozenset(results_read), tuple(beside)


def _fresh(back: Estimate) -> list[bool]:
    """For each gradient, whether the backward writes it; one that it does not write is the result's own gradient."""
    if back.writes is None:
        return [True] * len(back.out)
    own = {id(value) for value in back.out}
    unclaimed = [value for value in back.writes if isinstance(value, TensorType) and id(value) not in own]
    written = {id(value) for value in back.writes}
    fresh = []
    for value in back.out:
        if id(value) in written:
            fresh.append(True)
            continue
        match = _like(value, unclaimed) if isinstance(value, TensorType) else None
        fresh.append(match is not None)
        if match is not None:
            unclaimed.pop(match)
    return fresh


def _like(value: TensorType, others: Sequence[TensorType]) -> int | None:
    """Position of the first tensor of the same shape and element type."""
    alike = (x.shape == value.shape and x.dtype is value.dtype for x in others)
    return next((place for place, is_alike in enumerate(alike) if is_alike), None)


def reached(calls: Sequence[PricedCall], values: Mapping[str, Value], seeds: Iterable[str]) -> set[int]:
    """Positions of calls whose gradients a step computes: those that lead to `seeds` through calls with gradients."""
    owner = owners(calls, values) if any(call.in_place for call in calls) else {}
    live = set(seeds)  # values with a gradient
    written: set[str] = set()  # owners of memory that some of these are views of
    places = set()
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        operands = call.tensors(values)
        later = call.in_place and operands and owner.get(operands[0], operands[0]) in written
        if not later and live.isdisjoint(call.node.outputs):
            continue
        if call.gradient is not None:
            places.add(index)
            wanted = [operands[place] for place, _ in call.gradient.gradients]
        else:  # an operator without a rule may have a gradient
            wanted = operands if call.estimate.unknown else []
        live.update(wanted)
        if owner:
            written.update(owner.get(name, name) for name in wanted)
    return places


def pass_on(calls: Sequence[PricedCall], values: dict[str, Value]) -> None:
    """Mark further values that want a gradient because of the last call.

    An operand written in place wants one if its result does, and so do views of it; results of an operator without a rule
    want one if an operand does.
    """
    call = calls[-1]
    if not (call.estimate.unknown or call.in_place):
        return
    operands = call.tensors(values)
    wanting = [name for name in operands if wants(values[name])]
    written = [name for name in call.node.outputs if name and isinstance(values[name], TensorType)]
    marked: Iterable[str] = ()
    if wanting and call.estimate.unknown:
        marked = written
    elif call.in_place and operands and operands[0] not in wanting and any(wants(values[x]) for x in written):
        owner = owners(calls, values)
        shared = owner.get(operands[0], operands[0])
        marked = [name for name in values if owner.get(name, name) == shared]
    for name in marked:
        value = values[name]
        if isinstance(value, TensorType) and value.dtype.is_floating:
            values[name] = replace(value, requires_grad=True)


def wants(value: object) -> bool:
    """Whether a gradient of the value is wanted."""
    return isinstance(value, TensorType) and value.requires_grad


def _wanting(value: Any) -> list[TensorType]:
    return [tensor for tensor in flat((value,)) if wants(tensor)]
