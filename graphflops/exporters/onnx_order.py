"""Program order: calls come after what they use. Nearly all files are written so; others are sorted here."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from graphflops.errors import FileError, shown
from graphflops.exporters.onnx_values import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_MAY_HOLD_GRAPHS = (0, 5, 10)  # AttributeProto.type: not stated, GRAPH, GRAPHS


def ordered(nodes: Sequence[Any], visible: Callable[[str], bool]) -> Iterator[Any]:
    """The calls, each after the calls whose results it uses, otherwise as in the file.

    visible: whether a name has a meaning by now: the results of every call given out so far must have one.
    Raises FileError where calls use one another in a circle.
    """
    for index, node in enumerate(nodes):
        if not all(map(visible, _used(node))):
            yield from _sorted(nodes[index:], visible)
            return
        yield node


def _used(node: Any) -> list[str]:
    """Names that a call uses, those that the graphs in its attributes take from outside among them.

    Protobuf's own lists are copied (`[:]`) here and elsewhere: iterating them takes twice as long.
    """
    used = [name for name in node.input[:] if name]
    for attribute in node.attribute[:]:
        if attribute.type not in _MAY_HOLD_GRAPHS:
            continue
        if attribute.HasField("g"):
            used.extend(_free(attribute.g))
        for graph in attribute.graphs[:]:
            used.extend(_free(graph))
    return used


def _free(graph: Any) -> Iterator[str]:
    own = {value.name for value in graph.input}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(tensor.values.name for tensor in graph.sparse_initializer)
    own.update(name for node in graph.node for name in node.output)
    for node in graph.node:
        for name in _used(node):
            if name not in own:
                yield name


def _sorted(nodes: Sequence[Any], visible: Callable[[str], bool]) -> list[Any]:
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output[:]:
            makers.setdefault(name, index)
    waits = [{makers[name] for name in _used(node) if name in makers and not visible(name)} for node in nodes]
    followers: dict[int, list[int]] = {}
    for index, awaited in enumerate(waits):
        for maker in awaited:
            followers.setdefault(maker, []).append(index)
    missing = [len(awaited) for awaited in waits]
    ready = [index for index, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        index = heappop(ready)
        order.append(nodes[index])
        for follower in followers.get(index, ()):
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, follower)
    if len(order) < len(nodes):
        stuck = next(index for index, count in enumerate(missing) if count)
        name = checked(nodes[stuck].name or nodes[stuck].op_type)
        raise FileError(f"{shown(name)} uses what is made of its own results: the graph has a circle")
    return order
