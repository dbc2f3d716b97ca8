"""Which module a call in a nested graph belongs to, where an export does not say: branches and bodies of loops.

Parameters reach such a graph as operands; a call belongs to the module of the parameter that it uses, otherwise to that of
its latest operand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.graph import Argument, Graph, Node, Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.graph import Input


def with_nested_modules(nodes: Sequence[Node], inputs: Iterable[Input]) -> tuple[Node, ...]:
    """The calls, those in the graphs among their arguments each with its module."""
    owners = {
        entry.name: entry.target.rpartition(".")[0]
        for entry in inputs
        if entry.role in ("parameter", "buffer") and entry.target
    }
    return _with_owners(nodes, owners)


def _with_owners(nodes: Sequence[Node], owners: Mapping[str, str]) -> tuple[Node, ...]:
    return tuple([_entered(node, owners) if any(map(_is_graph, node.args)) else node for node in nodes])


def _entered(node: Node, owners: Mapping[str, str]) -> Node:
    last = max(index for index, argument in enumerate(node.args) if _is_graph(argument))
    operands = list(_flat(node.args[last + 1 :]))
    args = tuple(
        _placed(argument, operands, owners) if isinstance(argument, Graph) else argument
        for argument in node.args
    )
    return replace(node, args=args)


def _placed(graph: Graph, operands: Sequence[Argument], owners: Mapping[str, str]) -> Graph:
    if len(operands) != len(graph.inputs):
        return graph
    inner = {
        entry.name: owners[operand.name]
        for entry, operand in zip(graph.inputs, operands, strict=True)
        if isinstance(operand, Ref) and operand.name in owners
    }
    if not inner:
        return graph
    produced: dict[str, str] = {}
    nodes = []
    for node in _with_owners(graph.nodes, inner):
        uses = [name for _, name in node.uses()]
        owned = [inner[name] for name in uses if name in inner]
        inherited = [produced[name] for name in uses if name in produced]
        module = node.module or (owned or inherited[-1:] or [""])[0]
        produced.update((name, module) for name in node.outputs if name is not None)
        nodes.append(node if node.module else replace(node, module=module))
    return replace(graph, nodes=tuple(nodes))


def _flat(arguments: Iterable[Argument]) -> Iterator[Argument]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        else:
            yield argument


def _is_graph(argument: Argument) -> bool:
    return isinstance(argument, Graph)
