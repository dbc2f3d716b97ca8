"""Higher-order operators, run as their definitions say: the graphs that they are given are functions here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from graphflops.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _cond(predicate: Any, true: Any, false: Any, operands: Sequence[Any] = ()) -> Any:
    return (true if bool(predicate) else false)(*operands)


def _switch(index: Any, branches: Sequence[Any], operands: Sequence[Any] = ()) -> Any:
    return branches[min(max(int(index), 0), len(branches) - 1)](*operands)


def _while_loop(condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    state = tuple(carried)
    while bool(condition(*state, *additional)[0]):
        state = body(*state, *additional)
    return state


def _while_loop_stack_output(
    condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    state, turns = tuple(carried), []
    while bool(condition(*state, *additional)[0]):
        state = body(*state, *additional)
        turns.append(state)
    return tuple([torch.stack(values) for values in zip(*turns, strict=True)])


def _scan(
    combine: Any, init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()
) -> Any:
    carried, turns = tuple(init), []
    for index in range(xs[0].shape[0]):
        found = combine(*carried, *[x[index] for x in xs], *additional)
        carried = found[: len(init)]
        turns.append(found[len(init) :])
    return (*carried, *_stacked(turns))


def _associative_scan(combine: Any, xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()) -> Any:
    turns = [tuple([x[0] for x in xs])]
    for index in range(1, xs[0].shape[0]):
        turns.append(combine(*turns[-1], *[x[index] for x in xs], *additional))
    return _stacked(turns)


def _map(body: Any, xs: Sequence[torch.Tensor], operands: Sequence[Any] = ()) -> Any:
    return _stacked([body(*[x[index] for x in xs], *operands) for index in range(xs[0].shape[0])])


def _stacked(turns: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    if not turns:
        raise RunError("a loop over nothing has no results whose type is known")
    return tuple([torch.stack(values) for values in zip(*turns, strict=True)])


def _set_grad_enabled(enabled: bool, region: Any, *operands: Any) -> Any:
    return region(*operands)


def _autocast(device_type: str, dtype: Any, enabled: bool, cache: Any, region: Any, *operands: Any) -> Any:
    device = next((x.device.type for x in operands if isinstance(x, torch.Tensor)), device_type)
    with torch.autocast(device, dtype=dtype, enabled=bool(enabled), cache_enabled=cache):
        return region(*operands)


def _wrapped(region: Any, *operands: Any, **keywords: Any) -> Any:
    return region(*operands)


def _invoked(region: Any, identifier: Any, *operands: Any, **keywords: Any) -> Any:
    return region(*operands)


def _listed(region: Any, operands: Sequence[Any], *rest: Any, **keywords: Any) -> Any:
    return region(*operands)


def _with_effects(token: Any, operator: Any, *operands: Any, **keywords: Any) -> Any:
    found = operator(*operands, **keywords)
    return (token, *(found if isinstance(found, (tuple, list)) else (found,)))


def _auto_functionalized(operator: Any, **keywords: Any) -> Any:
    return torch.ops.higher_order.auto_functionalized_v2(operator, **keywords)


def _out_dtype(operator: Any, dtype: torch.dtype, *operands: Any) -> Any:
    return torch.ops.higher_order.out_dtype(operator, dtype, *operands)


def _nothing(*operands: Any, **keywords: Any) -> Any:
    return operands


RUN: dict[str, Callable[..., Any]] = {
    "higher_order.cond": _cond,
    "higher_order.switch": _switch,
    "higher_order.while_loop": _while_loop,
    "higher_order.while_loop_stack_output": _while_loop_stack_output,
    "higher_order.scan": _scan,
    "higher_order.associative_scan": _associative_scan,
    "higher_order.map_impl": _map,
    "higher_order.map": _map,
    "higher_order.wrap_with_set_grad_enabled": _set_grad_enabled,
    "higher_order.wrap_with_autocast": _autocast,
    "higher_order.invoke_subgraph": _invoked,
    "higher_order.wrap": _wrapped,
    "higher_order.wrap_activation_checkpoint": _wrapped,
    "higher_order.tag_activation_checkpoint": _wrapped,
    "higher_order.local_map_hop": _wrapped,
    "higher_order.hints_wrapper": _listed,
    "higher_order.strict_mode": _listed,
    "higher_order.foreach_map": _listed,
    "higher_order.with_effects": _with_effects,
    "higher_order.auto_functionalized_v2": _auto_functionalized,
    "higher_order.out_dtype": _out_dtype,
    "higher_order.print": _nothing,
    "higher_order._export_tracepoint": _nothing,
}
