"""Checks that a graph is well formed: what every reader promises and every analysis relies on."""

from collections.abc import Iterator
from typing import get_args

from graphflops.dims import Expr
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, InputRole, Opaque, OutputRole
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType, sizes_in
from graphflops.view import nested_graphs

_TYPES = (TensorType, SequenceType, OptionalType, UnknownType, Opaque, Expr, int, float, complex, str)
_MOST_SHOWN = 20
_TARGETED = ("gradient", "mutation")


def verify(graph: Graph) -> None:
    """Raise ModelError, one line for each defect, unless the graph is well formed."""
    found = defects(graph)
    if found:
        more = [f"and {len(found) - _MOST_SHOWN} more defects"] if len(found) > _MOST_SHOWN else []
        raise ModelError("\n".join([*found[:_MOST_SHOWN], *more]))


def defects(graph: Graph) -> list[str]:
    """What is wrong with a graph and the graphs nested in it, one line each; empty for a well-formed one."""
    ranges = [
        f"size {shown(name)} has the empty range {entry.minimum}..{entry.maximum}"
        for name, entry in graph.symbols.items()
        if entry.minimum is not None and entry.maximum is not None and entry.minimum > entry.maximum
    ]
    return [*_in_graph(graph, "", graph), *ranges]


def _in_graph(graph: Graph, place: str, program: Graph) -> Iterator[str]:
    """The defects of the program or of a graph nested in it. place: what comes before names in messages."""
    defined = set(graph.captures)

    def defining(name: str) -> Iterator[str]:
        if name in defined:
            yield f"{place}{shown(name)} is defined twice"
        defined.add(name)

    for entry in graph.inputs:
        if entry.role not in get_args(InputRole):
            yield f"{place}input {shown(entry.name)} has the unknown role {shown(entry.role)}"
        yield from defining(entry.name)
    targets = {entry.target for entry in graph.inputs}
    for entry in graph.inputs:
        if entry.alias_of and entry.alias_of not in targets:
            memory = f"shares memory with {shown(entry.alias_of)}, which is no input"
            yield f"{place}input {shown(entry.name)} {memory}"
    nodes: set[str] = set()
    for node in graph.nodes:
        here = f"{place}{shown(node.name)}"
        if node.name in nodes:
            yield f"{place}two calls have the name {shown(node.name)}"
        nodes.add(node.name)
        for slot, name in node.uses():  # values that a nested graph captures included
            if name not in defined:
                yield f"{here}: operand {slot} is {shown(name)}, which is not defined before"
        for nested in nested_graphs(node):
            yield from _in_graph(nested, f"{here}/{shown(nested.name)}: ", program)
        for result in node.outputs:
            if result is not None:
                yield from defining(result)
    for index, output in enumerate(graph.outputs):
        undefined = [name for _, name in output.uses() if name not in defined]
        yield from (f"{place}output {index} is {shown(name)}, which is not defined" for name in undefined)
        if output.role not in get_args(OutputRole):
            yield f"{place}output {index} has the unknown role {shown(output.role)}"
        if output.role in _TARGETED and not output.target:
            yield f"{place}output {index} is a {output.role} of nothing"
    yield from _in_types(graph, place, program)


def _in_types(graph: Graph, place: str, program: Graph) -> Iterator[str]:
    is_recorded = program.declared is None  # whether the file records the type of every value
    named = [entry.name for entry in graph.inputs] if is_recorded or graph is program else []
    if is_recorded:
        named += [name for node in graph.nodes for name in node.outputs if name is not None]
    for name in named:
        if name not in graph.types:
            yield f"{place}{shown(name)} has no type"
            continue
        typed: object = graph.types[name]
        if typed is not None and not isinstance(typed, _TYPES):
            yield f"{place}{shown(name)} has the type {type(typed).__name__}, which is none"
        sizes = {symbol for size in sizes_in(typed) if isinstance(size, Expr) for symbol in size.symbols}
        if unknown := sizes - program.symbols.keys():
            yield f"{place}the type of {shown(name)} has the unknown size {shown(min(unknown))}"
