"""Runs higher-order operators by their definitions; the graphs among their operands are Python functions here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphflops.errors import RunError
from graphflops.graph import Graph
from graphflops.tensor import dtype_named

Function = Callable[..., Any]

RUN: dict[str, Function] = {}  # by the operator's own word


def _runs(*words: str) -> Callable[[Function], Function]:
    """Register the decorated function as what runs the higher-order operators of these names."""

    def register(function: Function) -> Function:
        RUN.update(dict.fromkeys(words, function))
        return function

    return register


@_runs("cond")
def _cond(predicate: Any, true: Any, false: Any, operands: Sequence[Any] = ()) -> Any:
    return (true if bool(predicate) else false)(*operands)


@_runs("switch")
def _switch(index: Any, branches: Sequence[Any], operands: Sequence[Any] = ()) -> Any:
    return branches[min(max(int(index), 0), len(branches) - 1)](*operands)


@_runs("while_loop")
def _while_loop(condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    state = tuple(carried)
    while bool(condition(*state, *additional)[0]):
        state = body(*state, *additional)
    return state


@_runs("while_loop_stack_output")
def _while_loop_stack_output(
    condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    state, turns = tuple(carried), []
    while bool(condition(*state, *additional)[0]):
        state = body(*state, *additional)
        turns.append(state)
    return tuple([torch.stack(values) for values in zip(*turns, strict=True)])


@_runs("scan")
def _scan(
    combine: Any, init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()
) -> Any:
    carried, turns = tuple(init), []
    for index in range(xs[0].shape[0]):
        found = combine(*carried, *[x[index] for x in xs], *additional)
        carried = found[: len(init)]
        turns.append(found[len(init) :])
    return (*carried, *_stacked(turns))


@_runs("associative_scan")
def _associative_scan(combine: Any, xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()) -> Any:
    turns = [tuple([x[0] for x in xs])]
    for index in range(1, xs[0].shape[0]):
        turns.append(combine(*turns[-1], *[x[index] for x in xs], *additional))
    return _stacked(turns)


@_runs("map_impl", "map")
def _map(body: Any, xs: Sequence[torch.Tensor], operands: Sequence[Any] = ()) -> Any:
    return _stacked([body(*[x[index] for x in xs], *operands) for index in range(xs[0].shape[0])])


def _stacked(turns: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    if not turns:
        raise RunError("a loop without iterations has no results, and their types are unknown")
    return tuple([torch.stack(values) for values in zip(*turns, strict=True)])


@_runs("wrap_with_set_grad_enabled")
def _set_grad_enabled(enabled: bool, region: Any, *operands: Any) -> Any:
    return region(*operands)


@_runs("wrap_with_autocast")
def _autocast(device_type: str, dtype: Any, enabled: bool, cache: Any, region: Any, *operands: Any) -> Any:
    device = next((x.device.type for x in operands if isinstance(x, torch.Tensor)), device_type)
    active = bool(enabled) and _makes(region.graph, dtype)
    with torch.autocast(device, dtype=dtype, enabled=active, cache_enabled=cache):
        return region(*operands)


def _makes(graph: Graph, dtype: torch.dtype) -> bool:
    """True if a call recorded a result of the type: autocast for another device type changed none in the export."""
    recorded = [graph.types.get(name) for node in graph.nodes for name in node.outputs if name]
    nested = (value for node in graph.nodes for value in (*node.args, *(item for _, item in node.kwargs)))
    return any(getattr(typed, "dtype", None) == dtype_named(str(dtype)[6:]) for typed in recorded) or any(
        _makes(value, dtype) for value in nested if isinstance(value, Graph)
    )


@_runs("wrap", "wrap_activation_checkpoint", "tag_activation_checkpoint", "local_map_hop")
def _wrapped(region: Any, *operands: Any, **keywords: Any) -> Any:
    return region(*operands)


@_runs("invoke_subgraph")
def _invoked(region: Any, identifier: Any, *operands: Any, **keywords: Any) -> Any:
    return region(*operands)


@_runs("hints_wrapper", "strict_mode", "foreach_map")
def _listed(region: Any, operands: Sequence[Any], *rest: Any, **keywords: Any) -> Any:
    return region(*operands)


@_runs("with_effects")
def _with_effects(token: Any, operator: Any, *operands: Any, **keywords: Any) -> Any:
    found = operator(*operands, **keywords)
    return (token, *(found if isinstance(found, (tuple, list)) else (found,)))


@_runs("auto_functionalized_v2")
def _auto_functionalized(operator: Any, **keywords: Any) -> Any:
    return torch.ops.higher_order.auto_functionalized_v2(operator, **keywords)


@_runs("out_dtype")
def _out_dtype(operator: Any, dtype: torch.dtype, *operands: Any) -> Any:
    return torch.ops.higher_order.out_dtype(operator, dtype, *operands)


@_runs("print", "_export_tracepoint")
def _nothing(*operands: Any, **keywords: Any) -> Any:
    return operands
