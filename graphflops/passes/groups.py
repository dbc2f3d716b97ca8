"""How many devices take part in the collectives of a program, by the name of their process group.

Most collectives say it (`group_size`, one split per device). `all_reduce` and `broadcast` do not: another collective of the
group tells, else the number is a symbol of the program, `group_0` for group "0", that the user gives as any other size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from graphflops.dims import Dim, symbol
from graphflops.graph import Graph, Node, Ref, Symbol
from graphflops.ops import Op
from graphflops.passes.price import Fact, FindFact
from graphflops.tensor import TensorType

Types = Mapping[str, object]

FEWEST = 2  # devices of a group of unknown size
_PREFIX = "group_"
_SPLITS = ("input_split_sizes", "output_split_sizes")


def with_groups(graph: Graph) -> Graph:
    """The program with a symbol for each group of devices whose size no collective tells."""
    sizes = group_sizes(graph)
    unknown = [name for name, size in sizes.items() if not isinstance(size, int)]
    if not unknown:
        return graph
    added = {
        symbol_of(name): Symbol(symbol_of(name), 1, where=(f"devices of group {name}",), assumed=FEWEST)
        for name in unknown
    }
    return replace(graph, symbols={**graph.symbols, **added})


def facts_of(graph: Graph) -> FindFact:
    """What the rules of some collectives must know beyond their operands: the number of devices of the group."""
    devices = _Devices(graph)
    return lambda op: devices if _has_size(op) and "group_size" not in op.parameters else None


class _Devices:
    """The number of devices that take part in a collective of one program."""

    def __init__(self, graph: Graph) -> None:
        self.program = graph

    @cached_property
    def sizes(self) -> Mapping[str, Dim]:
        return group_sizes(self.program)

    def __call__(self, graph: Graph, node: Node, arguments: tuple[Any, ...]) -> Fact:
        return Fact("devices", self.sizes.get(_group(node)))


def group_sizes(graph: Graph) -> Mapping[str, Dim]:
    """The number of devices of each group: of the mesh, else a symbol where no collective tells."""
    mesh = graph.step.mesh if graph.step is not None else None
    sizes = {} if mesh is None else {name: len(group.ranks) for name, group in mesh.groups.items()}
    found: dict[str, Dim] = {**sizes}
    for node, types in _exchanges(graph):
        name, told = _group(node), _told(node, types)
        if name not in sizes and (told is not None or name not in found):
            found[name] = symbol(symbol_of(name)) if told is None else told
    return found


def _has_size(op: Op) -> bool:
    """Whether it matters to a call how many devices are in its group."""
    return op.is_exchange and "to_one" not in op.facts


def symbol_of(name: str) -> str:
    """The name of the symbol for the size of a group."""
    return _PREFIX + re.sub(r"\W", "_", name)


def _group(node: Node) -> str:
    return str(node.arguments().get("group_name", ""))


def _told(node: Node, types: Types) -> int | None:
    """The number of devices that a collective tells by an argument, by its splits or by its shapes; None where none do."""
    arguments = node.arguments()
    size = arguments.get("group_size")
    if isinstance(size, int):
        return size
    splits = [given for name in _SPLITS if isinstance(given := arguments.get(name), tuple) and given]
    return len(splits[0]) if splits else _by_shapes(node, types)


def _by_shapes(node: Node, types: Types) -> int | None:
    """How many times as long, or as short, an axis of the result is as that of the operand; the last axis is not asked.

    A product that is fused with a collective has a last axis of another length.
    """
    operand = node.arguments().get("x")
    before = types.get(operand.name) if isinstance(operand, Ref) else None
    for name in node.outputs[-1:]:
        after = types.get(name or "")
        if not (
            isinstance(before, TensorType) and isinstance(after, TensorType) and before.rank == after.rank
        ):
            continue
        for old, new in zip(before.shape[:-1] or before.shape, after.shape, strict=False):
            if isinstance(old, int) and isinstance(new, int) and min(old, new) > 0 and old != new:
                return None if max(old, new) % min(old, new) else max(old, new) // min(old, new)
    return None


def _exchanges(graph: Graph) -> Iterator[tuple[Node, Types]]:
    """The collectives of a graph and of those nested in it, but for waits, with the types of the values around them."""
    for node in graph.nodes:
        if _has_size(node.operator):
            yield node, graph.types
        for argument in (*node.args, *(value for _, value in node.kwargs)):
            if isinstance(argument, Graph):
                yield from _exchanges(argument)
