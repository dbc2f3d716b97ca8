"""The names that the user gives to open sizes, `batch` for the size of `input_ids[0]`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.errors import ModelError, shown
from graphflops.open_sizes import is_computed
from graphflops.passes.bind import open_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.graph import Graph
    from graphflops.report import Report


def labels_of(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """The label of each named size, by its symbol and each axis of that size, or by the axis where it is computed from one.

    names: the symbol or input axis by label. An axis of a fixed size has nothing to name. Raises ModelError for an axis that
    the program lacks, for one that is an expression of several sizes, and for a label that another size has.
    """
    labels: dict[str, str] = {}
    computed = open_sizes(graph).computed
    for label, place in names.items():
        name = _named(graph, label, place)
        if name is None:
            continue
        if label != name and label in graph.symbols:
            raise ModelError(f"--name {shown(label)}: the program has another size of that name")
        where = graph.symbols[name].where if name in graph.symbols else ()
        labels.update(dict.fromkeys((name, *(axis for axis in where if axis not in computed)), label))
    return labels


def without_labels(dims: Mapping[str, int], labels: Mapping[str, str]) -> dict[str, int]:
    """The sizes that the user gives, by symbol or axis instead of by label."""
    places = {label: place for place, label in reversed([*labels.items()])}  # its symbol, which comes first
    return {places.get(name, name): value for name, value in dims.items()}


def labelled(report: Report, labels: Mapping[str, str]) -> Report:
    """The report with the labels of its sizes."""
    symbols = dict(report.symbols)
    for name, info in report.symbols.items():
        place = next((place for place in (name, *info.where) if place in labels), "")
        if place:
            symbols[name] = replace(
                info, label=labels[place], label_axis=place if place in info.computed else ""
            )
    return replace(report, symbols=symbols) if labels else report


def _named(graph: Graph, label: str, place: str) -> str | None:
    """The symbol to name, or the axis that is computed from one; None where the axis has a fixed size."""
    sizes = open_sizes(graph)
    try:
        ((found, size), *others) = sizes.sizes_of(place).items()
    except ModelError as error:
        raise ModelError(f"--name {shown(label)}={error}") from None
    if isinstance(size, int):
        return None
    (name, *more) = sorted(size.symbols)
    if others or more:
        told = f"{len(others) + 1} sizes" if others else f"{size}; name {' or '.join((name, *more))} instead"
        raise ModelError(f"--name {shown(label)}={shown(place)}: this is {told}")
    return found if is_computed(size) else name
