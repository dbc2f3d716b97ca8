"""Tied weights in a file that does not say where weights are stored: seen from who uses what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from graphflops.graph import Input, Node


def with_aliases(
    inputs: Sequence[Input], nodes: Sequence[Node], types: Mapping[str, object]
) -> tuple[Input, ...]:
    """The inputs, each weight that shares memory with an earlier one marked so.

    torch redirects every use of tied weights to one of them. So where nothing uses `embedding.weight` and
    calls made in module `embedding` use `head.weight`, of the same type, the two are one. A weight of a
    module that makes no calls is one with the only weight of its type and name in a module within its own
    (`head.bias` with `head.decoder.bias`), or with the only table of its type that is looked up and found
    to be tied already (`shared.weight`).
    """
    weights = {entry.name: entry for entry in inputs if entry.role in ("parameter", "buffer")}
    users = _users(nodes, weights)
    unused: dict[str, list[Input]] = {}
    for entry in weights.values():
        if entry.name not in users and _owner(entry):
            unused.setdefault(_owner(entry), []).append(entry)
    if not unused:
        return tuple(inputs)
    used: dict[str, str] = {}  # by member of a tied group: the one that is used
    for name, modules in users.items():
        for module in modules & unused.keys():
            alike = [entry for entry in unused[module] if types.get(name) == types.get(entry.name)]
            if alike and module != _owner(weights[name]):
                used[name] = used[alike[0].name] = name
    tables = _users([node for node in nodes if node.operator.is_embedding], used)
    for owner, entries in unused.items():
        for entry in entries:
            same = [name for name in users if types.get(name) == types.get(entry.name)]
            attribute = entry.target.removeprefix(owner)
            within = [name for name in same if _is_child(weights[name].target, owner, attribute)]
            found = within or [name for name in same if name in tables]
            if entry.name not in used and len(found) == 1:
                used[found[0]] = used[entry.name] = found[0]
    first: dict[str, str] = {}  # by the one that is used: the first of the group
    marked = []
    for entry in inputs:
        earlier = first.setdefault(used[entry.name], entry.target) if entry.name in used else entry.target
        marked.append(entry if earlier == entry.target else replace(entry, alias_of=earlier))
    return tuple(marked)


def _users(nodes: Sequence[Node], weights: Container[str]) -> dict[str, set[str]]:
    """Modules whose calls use each weight."""
    users: dict[str, set[str]] = {}
    for node in nodes:
        for operands in (node.args, [value for _, value in node.kwargs]):
            for name in _names(operands):
                if name in weights:
                    users.setdefault(name, set()).add(node.module)
    return users


def _names(operands: Sequence[object]) -> Iterator[str]:
    for operand in operands:
        if type(operand) is Ref:
            yield operand.name
        elif type(operand) is tuple:
            yield from _names(operand)


def _is_child(target: str, owner: str, attribute: str) -> bool:
    """Whether a weight bears that name in a module directly within the owner."""
    return (
        target.startswith(f"{owner}.")
        and target.endswith(attribute)
        and target.count(".") == owner.count(".") + 2
    )


def _owner(entry: Input) -> str:
    return entry.target.rpartition(".")[0]
