"""Programs of one flexible attention, put together by hand: quicker than exporting, and what no export gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphflops.dims import symbol
from graphflops.exporters.live import from_graph_module
from graphflops.graph import Graph, Input, Node, Output, Ref, Stored, Symbol
from graphflops.tensor import FLOAT32, INT32, TensorType, dtype_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WIDTH = 8
PAIR = 2 * (WIDTH + WIDTH)  # FLOPs of a visible pair


def at(tensor: torch.Tensor, *indices: Any) -> torch.Tensor:
    """A captured tensor at indices that are tensors."""
    found: torch.Tensor = torch.ops.aten.index.Tensor(tensor, list(indices))
    return found


def traced(function: Callable[..., Any], scored: bool, tensors: Sequence[torch.Tensor]) -> Graph:
    """A mask function of batch entry, head, query and key, with `scored` one of a score too; then of tensors."""
    places = [torch.zeros((), dtype=torch.int32) for _ in range(4)]
    scores = [torch.zeros(())] if scored else []
    return from_graph_module(make_fx(function)(*scores, *places, *tensors), "function")


def flexible(
    *sizes: int | str,
    mask: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    passed: Sequence[str] = (),
    block: int = 16,
    lists: Sequence[torch.Tensor] | None = None,
) -> Graph:
    """A program of one attention.

    sizes: batch, heads, queries and keys; text is a symbol. tensors: what both functions capture, stored except for those
    that are `passed` by the caller. lists: numbers and places of partial blocks, and of full ones.
    """
    tensors = tensors or {}
    held = {**tensors, **{f"list_{place}": tensor for place, tensor in enumerate(lists or ())}}
    batch, heads, queries, keys = (symbol(x) if isinstance(x, str) else x for x in sizes)
    types: dict[str, Any] = {
        name: TensorType((batch, heads, length, WIDTH), FLOAT32)
        for name, length in (("query", queries), ("key", keys), ("value", keys), ("out", queries))
    }
    types |= {
        name: TensorType(tuple(x.shape), dtype_named(str(x.dtype).removeprefix("torch.")))
        for name, x in held.items()
    }
    inputs = [Input(name, "user") for name in ("query", "key", "value", *passed)]
    inputs += [Input(name, "constant", name) for name in held if name not in passed]
    captured = tuple(map(Ref, tensors))
    functions = [
        traced(score or (lambda s, b, h, q, k, *rest: s + 0), True, list(tensors.values())),
        traced(mask or (lambda b, h, q, k, *rest: q == q), False, list(tensors.values())),
    ]
    listed = tuple(Ref(f"list_{place}") for place in range(4)) if lists else (None,) * 4
    blocks = (queries, keys, *listed, *(None,) * 6, block, block, functions[1])
    arguments = (*map(Ref, ("query", "key", "value")), functions[0], blocks, 0.5, (), captured, captured)
    node = Node("flex", "higher_order.flex_attention", arguments, outputs=("out", None, None))
    symbols = {x: Symbol(x, 2, None) for x in sizes if isinstance(x, str)}
    return Graph(
        (node,),
        types,
        tuple(inputs),
        (Output(Ref("out")),),
        symbols,
        contents=lambda name: stored(held[name]),
    )


def stored(tensor: torch.Tensor) -> Stored:
    """A tensor as it lies in memory."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    dtype = dtype_named(str(tensor.dtype).removeprefix("torch."))
    memory = memoryview(storage.numpy())
    return Stored(dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), memory)


__all__ = ["INT32", "PAIR", "at", "flexible", "stored", "traced"]
