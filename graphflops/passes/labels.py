"""The names that the user gives to open sizes, `batch` for the size of `input_ids[0]`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Expr, symbol
from graphflops.errors import ModelError, shown
from graphflops.size_names import AXIS
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.graph import Graph
    from graphflops.report import Report


def labels_of(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """The label of each named size, by its symbol and by each input axis where it stands.

    names: the symbol or input axis by label. An axis of a fixed size has nothing to name. Raises ModelError for an axis that
    the program lacks, for one that is an expression, and for a label that another size has.
    """
    labels: dict[str, str] = {}
    for label, place in names.items():
        name = _symbol(graph, label, place)
        if name is None:
            continue
        if label != name and label in graph.symbols:
            raise ModelError(f"--name {shown(label)}: the program has another size of that name")
        labels.update(dict.fromkeys((name, *graph.symbols[name].where), label))
    return labels


def without_labels(dims: Mapping[str, int], labels: Mapping[str, str], graph: Graph) -> dict[str, int]:
    """The sizes that the user gives, by symbol instead of by label."""
    symbols = {label: name for name, label in labels.items() if name in graph.symbols}
    return {symbols.get(name, name): value for name, value in dims.items()}


def labelled(report: Report, labels: Mapping[str, str]) -> Report:
    """The report with the labels of its sizes."""
    symbols = dict(report.symbols)
    for name, info in report.symbols.items():
        label = next((labels[place] for place in (name, *info.where) if place in labels), "")
        symbols[name] = replace(info, label=label)
    return replace(report, symbols=symbols) if labels else report


def _symbol(graph: Graph, label: str, place: str) -> str | None:
    """The symbol to name; None where the axis has a fixed size."""
    if place in graph.symbols:
        return place
    axis = AXIS.fullmatch(place)
    inputs = {entry.name for entry in graph.inputs if entry.role == "user"}
    tensor = graph.types.get(axis[1]) if axis and axis[1] in inputs else None
    where = f"--name {shown(label)}={shown(place)}"
    if axis is None or not isinstance(tensor, TensorType) or int(axis[2]) >= tensor.rank:
        sizes = ", ".join(
            shown(info.where[0] if info.where else name) for name, info in graph.symbols.items()
        )
        raise ModelError(f"{where}: no such size; the program's open sizes are {sizes or 'none'}")
    size = tensor.shape[int(axis[2])]
    if not isinstance(size, Expr):
        return None
    found = next((name for name in graph.symbols if size is symbol(name)), None)
    if found is None:
        raise ModelError(f"{where}: this axis is {size}; name {' or '.join(sorted(size.symbols))} instead")
    return found
