"""Translates sizes that the user gives once into the names that each of two programs has for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from graphflops.errors import ModelError, shown
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.graph import Graph

_AXIS = re.compile(r"(.+)\[(\d{1,4})\]")


def dims_for(graphs: Sequence[Graph], dims: Mapping[str, int]) -> list[dict[str, int]]:
    """What to bind in each program: a symbol that only one of them has is, in the other, the axis it stands at.

    A name that neither has goes to both, which then say what they have. Raises ModelError for a symbol that stands at
    another axis in each.
    """
    return [
        {_name(graph, graphs, name): value for name, value in dims.items() if _applies(graph, graphs, name)}
        for graph in graphs
    ]


def inputs_for(
    graphs: Sequence[Graph], inputs: Mapping[str, Sequence[int]]
) -> list[dict[str, Sequence[int]]]:
    """The shapes for the inputs of each program; one for an unknown input goes to both, whose analysis then raises."""
    names = [_tensors(graph) for graph in graphs]
    anywhere = {name for known in names for name in known}
    return [
        {name: shape for name, shape in inputs.items() if name in known or name not in anywhere}
        for known in names
    ]


def names_for(graphs: Sequence[Graph], names: Mapping[str, str]) -> list[dict[str, str]]:
    """The names for sizes of each program; one for a size that neither has goes to both, whose analysis then raises."""
    return [
        {
            label: _name(graph, graphs, place)
            for label, place in names.items()
            if _applies(graph, graphs, place)
        }
        for graph in graphs
    ]


def _applies(graph: Graph, graphs: Sequence[Graph], name: str) -> bool:
    return _known(graph, _name(graph, graphs, name)) or not any(_known(one, name) for one in graphs)


def _name(graph: Graph, graphs: Sequence[Graph], name: str) -> str:
    """The name in this program of the size that has the given name in any of them."""
    places = {one.symbols[name].where for one in graphs if name in one.symbols and one.symbols[name].where}
    if len(places) > 1 and not set.intersection(*map(set, places)):
        where = " and ".join(shown(axes[0]) for axes in sorted(places))
        raise ModelError(
            f"--dim {shown(name)}: the size of {where}, one in each program: give the axis instead"
        )
    if name in graph.symbols:
        return name
    axes = (axis for place in places for axis in place)
    return next((axis for axis in axes if _known(graph, axis)), name)


def _known(graph: Graph, name: str) -> bool:
    if name in graph.symbols:
        return True
    axis = _AXIS.fullmatch(name)
    rank = _tensors(graph).get(axis[1]) if axis else None
    return (rank is not None and int(axis[2]) < rank) if axis else _is_scalar(graph, name)


def _is_scalar(graph: Graph, name: str) -> bool:
    return any(
        entry.name == name and entry.role == "user" for entry in graph.inputs
    ) and name not in _tensors(graph)


def _tensors(graph: Graph) -> dict[str, int]:
    """The rank of each input that is a tensor."""
    types = ((entry.name, graph.types.get(entry.name)) for entry in graph.inputs if entry.role == "user")
    return {name: type_.rank for name, type_ in types if isinstance(type_, TensorType)}
