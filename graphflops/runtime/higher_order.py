"""Runs higher-order operators by their definitions; the graphs among their operands are Python functions here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from graphflops.errors import RunError
from graphflops.graph import Graph
from graphflops.tensor import dtype_named


def _turns(condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any]) -> Iterator[Any]:
    """What is carried after each turn of a `while_loop`."""
    state: Sequence[Any] = carried
    while bool(condition(*state, *additional)[0]):
        state = body(*state, *additional)
        yield state


def _while_loop(condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    last = deque(_turns(condition, body, carried, additional), maxlen=1)
    return last[0] if last else tuple(carried)


def _while_loop_stack_output(
    condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    turns = zip(*_turns(condition, body, carried, additional), strict=True)
    return tuple([torch.stack(values) for values in turns])


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
        raise RunError("a loop without iterations has no results, and their types are unknown")
    return tuple([torch.stack(values) for values in zip(*turns, strict=True)])


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


def _with_effects(token: Any, operator: Any, *operands: Any, **keywords: Any) -> Any:
    found = operator(*operands, **keywords)
    return (token, *(found if isinstance(found, (tuple, list)) else (found,)))


# By the operator's own word.
RUN: dict[str, Callable[..., Any]] = {
    "cond": lambda predicate, true, false, operands=(): (true if bool(predicate) else false)(*operands),
    "switch": lambda index, branches, operands=(): branches[min(max(int(index), 0), len(branches) - 1)](
        *operands
    ),
    "while_loop": _while_loop,
    "while_loop_stack_output": _while_loop_stack_output,
    "scan": _scan,
    "associative_scan": _associative_scan,
    **dict.fromkeys(("map_impl", "map"), _map),
    "wrap_with_autocast": _autocast,
    "wrap_with_set_grad_enabled": lambda enabled, region, *operands: region(*operands),
    **dict.fromkeys(
        ("wrap", "wrap_activation_checkpoint", "tag_activation_checkpoint", "local_map_hop"),
        lambda region, *operands, **keywords: region(*operands),
    ),
    "invoke_subgraph": lambda region, identifier, *operands, **keywords: region(*operands),
    **dict.fromkeys(
        ("hints_wrapper", "strict_mode", "foreach_map"),
        lambda region, operands, *rest, **keywords: region(*operands),
    ),
    "with_effects": _with_effects,
    "auto_functionalized_v2": lambda *given, **named: torch.ops.higher_order.auto_functionalized_v2(
        *given, **named
    ),
    "out_dtype": lambda *operands: torch.ops.higher_order.out_dtype(*operands),
    **dict.fromkeys(("print", "_export_tracepoint"), lambda *operands, **keywords: operands),
}
