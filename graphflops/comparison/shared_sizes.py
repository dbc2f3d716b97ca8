"""Translates sizes that the user gives once into the names that each of two programs has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import evaluate
from graphflops.errors import ModelError, shown
from graphflops.open_sizes import is_computed
from graphflops.passes.bind import open_sizes
from graphflops.report.size_names import matching
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.graph import Graph
    from graphflops.open_sizes import OpenSizes


def dims_for(graphs: Sequence[Graph], dims: Mapping[str, int]) -> list[dict[str, int]]:
    """What to bind in each program: a symbol that only one of them has is, in the other, the axis that tells it.

    A name that neither has goes to both, which then say what they have. Raises ModelError for a symbol that stands at
    another axis in each.
    """
    every = [open_sizes(graph) for graph in graphs]
    found = [{name: _given(own, every, name, value) for name, value in dims.items()} for own in every]
    return [dict(given for given in one.values() if given is not None) for one in found]


def inputs_for(
    graphs: Sequence[Graph], inputs: Mapping[str, Sequence[int]]
) -> list[dict[str, Sequence[int]]]:
    """The shapes for the inputs of each program; one for an unknown input goes to both, whose analysis then raises."""
    names = [_tensors(graph) for graph in graphs]
    anywhere = {name for known in names for name in known}
    return [
        {
            name: shape
            for name, shape in inputs.items()
            if name in known or matching(name, known) or not (name in anywhere or matching(name, anywhere))
        }
        for known in names
    ]


def names_for(graphs: Sequence[Graph], names: Mapping[str, str]) -> list[dict[str, str]]:
    """The names for sizes of each program; one for a size that neither has goes to both, whose analysis then raises."""
    every = [open_sizes(graph) for graph in graphs]
    found = [{label: _place(own, every, place) for label, place in names.items()} for own in every]
    return [{label: place for label, place in one.items() if place is not None} for one in found]


def _given(own: OpenSizes, every: Sequence[OpenSizes], name: str, value: int) -> tuple[str, int] | None:
    """A size by the name that a program has for it, with its value there; None for one that only another program has."""
    _refuse_two(every, name)
    if own.places(name) or not any(one.places(name) for one in every):
        return name, value
    told = [one.at_axis(name) for one in every if name in one.symbols]
    sizes = ((axis, evaluate(size, {name: value})) for axis, size in told if axis in own.axes)
    return next(((axis, size) for axis, size in sizes if size is not None), None)


def _place(own: OpenSizes, every: Sequence[OpenSizes], place: str) -> str | None:
    """What a program calls the size of a name; None for a size that it does not have."""
    _refuse_two(every, place)
    if own.places(place) or not any(one.places(place) for one in every):
        return place
    told = [one.at_axis(place) for one in every if place in one.symbols]
    return next((axis for axis, size in told if axis in own.axes and not is_computed(size)), None)


def _refuse_two(every: Sequence[OpenSizes], name: str) -> None:
    """Raise ModelError for a symbol of both programs that is the size of other axes in each."""
    places = {one.symbols[name].where for one in every if name in one.symbols and one.symbols[name].where}
    if len(places) > 1 and not set.intersection(*map(set, places)):
        where = " and ".join(shown(axes[0]) for axes in sorted(places))
        raise ModelError(
            f"--dim {shown(name)}: the size of {where}, one in each program: give the axis instead"
        )


def _tensors(graph: Graph) -> dict[str, int]:
    """The rank of each input that is a tensor."""
    types = ((entry.name, graph.types.get(entry.name)) for entry in graph.inputs if entry.role == "user")
    return {name: type_.rank for name, type_ in types if isinstance(type_, TensorType)}
