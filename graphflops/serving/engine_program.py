"""A decoder's program as engines run it: caches in place, each key read once for the heads that share it, no mask made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphflops.dims import Dim
from graphflops.graph import Graph, Node, Ref, tensor_type
from graphflops.tensor import TensorType

_LAYS_OUT = ("view", "movement", "identity")  # kinds of what repeats heads, and lays out the result


def as_engines_run(program: Graph) -> Graph:
    """A step or a prefill without the calls that its engine has no use for.

    A join of a cache with new entries is the cache, which has room for them, and the program returns the entries. Heads of
    keys and values are not repeated. Masks are gone: an engine knows how long each request is, and that a prompt is causal.
    """
    caches = {entry.name for entry in program.inputs if entry.role == "user"}
    makers = {name: node for node in program.nodes for name in node.outputs if name is not None}
    kept: dict[str, str] = {}  # by join: its cache
    added: dict[str, str] = {}  # by join: the new entries
    nodes = []
    for node in program.nodes:
        tensors = node.arguments().get("xs")
        if node.operator.name == "cat" and isinstance(tensors, tuple) and len(tensors) == 2:
            cache, new = (part.name if isinstance(part, Ref) else "" for part in tensors)
            if cache in caches and _rank(program, cache) == 4:
                kept[node.outputs[0] or ""], added[node.outputs[0] or ""] = cache, new
                continue
        renamed = node.renamed(kept)
        is_attention = node.operator.kind == "attention"
        nodes.append(_grouped(renamed, program, makers, kept) if is_attention else renamed)
    outputs = tuple([output.renamed(added) for output in program.outputs])
    changed = replace(program, nodes=tuple(nodes), outputs=outputs, eager=None)
    return replace(changed, nodes=_needed(changed))


def _grouped(node: Node, program: Graph, makers: Mapping[str, Node], kept: Mapping[str, str]) -> Node:
    """An attention of keys and values as they are kept, without a mask; as it is where its operands are of another form."""
    given: dict[str, Any] = node.arguments()
    names = [given[name].name for name in ("query", "key", "value") if isinstance(given.get(name), Ref)]
    if node.operator.name != "scaled_dot_product_attention" or len(names) < 3:
        return node
    types = [tensor_type(name, program.types) for name in names]
    query, key, _ = types
    if query is None or key is None or any(found is None or found.rank != 4 for found in types):
        return node
    own = [_before_repeat(name, program, makers) for name in names[1:]]
    given.update(key=Ref(kept.get(own[0], own[0])), value=Ref(kept.get(own[1], own[1])), enable_gqa=True)
    if given.get("mask") is not None:
        given.update(mask=None, is_causal=query.shape[2] == key.shape[2])
    return replace(node, args=(), kwargs=tuple(given.items()))


def _before_repeat(name: str, program: Graph, makers: Mapping[str, Node]) -> str:
    """The keys or values before their heads were repeated: the first tensor on the way that differs in heads alone."""
    own, whole = name, tensor_type(name, program.types)
    assert whole is not None
    while (maker := makers.get(name)) is not None and maker.operator.kind in _LAYS_OUT:
        operands = [read for read in maker.reads() if tensor_type(read, program.types) is not None]
        if len(operands) != 1:
            break
        (name,) = operands
        found = tensor_type(name, program.types)
        if found is not None and found.rank == 4 and _but_heads(found) == _but_heads(whole):
            own = name
    return own


def _but_heads(operand: TensorType) -> tuple[Dim, ...]:
    return (operand.shape[0], *operand.shape[2:])


def _needed(program: Graph) -> tuple[Node, ...]:
    """The calls that the results need."""
    wanted = {name for output in program.outputs for _, name in output.uses()}
    found = []
    for node in reversed(program.nodes):
        if not wanted.isdisjoint(node.outputs) or node.operator.mutates:
            found.append(node)
            wanted.update(node.reads())
    return tuple(reversed(found))


def _rank(program: Graph, name: str) -> int:
    found = tensor_type(name, program.types)
    return 0 if found is None else found.rank
