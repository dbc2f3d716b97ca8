"""Tied weights in a file that does not record where weights are stored, inferred from the modules that use them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from graphflops.graph import Input, Node, Ref


def with_aliases(
    inputs: Sequence[Input], nodes: Sequence[Node], types: Mapping[str, object]
) -> tuple[Input, ...]:
    """The inputs, each weight that shares memory with an earlier one marked so.

    torch redirects every use of tied weights to one of them. So two weights of one type are tied where no call uses
    `embedding.weight` and calls of module `embedding` use `head.weight`. A weight of a module without calls is tied to
    the only weight of its type and name in a child of its module (`head.bias` to `head.decoder.bias`), otherwise to the
    only embedding table of its type that is tied already (`shared.weight`).
    """
    weights = {entry.name: entry for entry in inputs if entry.role in ("parameter", "buffer")}
    users = _users(nodes, weights)
    unused = [entry for entry in weights.values() if entry.name not in users and _owner(entry)]
    if not unused:
        return tuple(inputs)
    used = _used_for(unused, users, weights, types)
    tables = _users([node for node in nodes if node.operator.is_embedding], used)
    children: dict[tuple[str, str, object], list[str]] = {}
    typed: dict[object, list[str]] = {}
    for name in users:
        child, _, attribute = weights[name].target.rpartition(".")
        children.setdefault((child.rpartition(".")[0], attribute, types.get(name)), []).append(name)
        if name in tables:
            typed.setdefault(types.get(name), []).append(name)
    for entry in unused:
        owner, _, attribute = entry.target.rpartition(".")
        kind = types.get(entry.name)
        found = children.get((owner, attribute, kind)) or typed.get(kind, [])
        if entry.name not in used and len(found) == 1:
            used[found[0]] = used[entry.name] = found[0]
    first: dict[str, str] = {}  # by the one that is used: the first of the group
    marked = []
    for entry in inputs:
        earlier = first.setdefault(used[entry.name], entry.target) if entry.name in used else entry.target
        marked.append(entry if earlier == entry.target else replace(entry, alias_of=earlier))
    return tuple(marked)


def _used_for(
    unused: Iterable[Input],
    users: Mapping[str, set[str]],
    weights: Mapping[str, Input],
    types: Mapping[str, object],
) -> dict[str, str]:
    """By member of a tied group, the weight that is used, for groups that a module's calls show."""
    by_module: dict[tuple[str, object], str] = {}
    for entry in unused:
        by_module.setdefault((_owner(entry), types.get(entry.name)), entry.name)
    used: dict[str, str] = {}
    for name, modules in users.items():
        for module in modules:
            alike = by_module.get((module, types.get(name)))
            if alike is not None and module != _owner(weights[name]):
                used[name] = used[alike] = name
    return used


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


def _owner(entry: Input) -> str:
    return entry.target.rpartition(".")[0]
