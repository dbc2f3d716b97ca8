"""Compares two models: each is analyzed, or loaded where it is a saved report.

Sizes that the user gives once are translated into the names that each program has for them.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from graphflops.comparison.compare import compared
from graphflops.comparison.result import Comparison
from graphflops.dims import evaluate
from graphflops.errors import DimError, ModelError, shown
from graphflops.graph import Graph, Stored
from graphflops.loading import Model, analyze, is_report
from graphflops.open_sizes import OpenSizes, is_computed
from graphflops.passes.bind import open_sizes
from graphflops.report import Execution, Report
from graphflops.report.size_names import matching
from graphflops.tensor import TensorType
from graphflops.training import Training
from graphflops.versions.revisions import ModelFile


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
        what = f"the size of {where}, one in each program"
        raise ModelError(f"--dim {shown(name)}: {what}: give the axis instead")


def _tensors(graph: Graph) -> dict[str, int]:
    """The rank of each input that is a tensor."""
    types = ((entry.name, graph.types.get(entry.name)) for entry in graph.inputs if entry.role == "user")
    return {name: type_.rank for name, type_ in types if isinstance(type_, TensorType)}


def compare(
    old: Model | ModelFile,
    new: Model | ModelFile,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    names: Mapping[str, str] | None = None,
    training: bool | Training = False,
    assume: bool = True,
    device: str | None = None,
    execution: Execution | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Computes what differs between two models: totals, modules, operators, sizes.

    old, new: whatever `graphflops.analyze` accepts, or `"REVISION:PATH"` for a file at a git revision.
    The options are those of `graphflops.analyze`; a size has one value and one name in both models, and both run by one
    execution: on a device, a file of PyTorch beside an ONNX file as a graph.

    Raises FileError for a file that cannot be read, ModelError where given sizes contradict a model, OptionError for an
    option with a saved report, DimError where a formula grows too large.
    """
    sides = [_file_or_program(side) for side in (old, new)]
    with ExitStack() as stack:
        models: list[Any] = [
            stack.enter_context(side.opened()) if isinstance(side, ModelFile) else side for side in sides
        ]
        sizes: list[dict[str, Any]] = [{"dims": dims, "inputs": inputs, "names": names}] * 2
        if (dims or inputs or names) and not any(map(is_report, models)):
            models, sizes = _each(models, model_name, dims or {}, inputs or {}, names or {})
        given: dict[str, Any] = {"model_name": model_name, "training": training, "assume": assume}
        given |= {"device": device, "execution": execution, "progress": progress}
        reports = [analyze(model, **given, **size) for model, size in zip(models, sizes, strict=True)]
        if execution is None and not any(map(is_report, models)):
            reports = _as_graphs(reports, models, sizes, given)
        old_report, new_report = map(_titled, reports, sides)
        return _compared(old_report, new_report, _Uniform(models[0], model_name).number)


def _compared(old: Report, new: Report, uniform: Callable[[str], float | None]) -> Comparison:
    try:
        return compared(old, new, uniform)
    except DimError as error:
        paths = " and ".join(shown(report.origin.path) for report in (old, new))
        raise DimError(f"{paths}: {error}: give sizes") from None


def _as_graphs(
    reports: list[Report], models: Sequence[Any], sizes: Sequence[dict[str, Any]], given: dict[str, Any]
) -> list[Report]:
    """The reports, of graphs where by default a file of PyTorch runs eagerly and an ONNX file beside it as a graph."""
    if len({report.execution for report in reports}) == 1:
        return reports
    return [
        report if report.execution == "graph" else analyze(model, **{**given, "execution": "graph"}, **size)
        for report, model, size in zip(reports, models, sizes, strict=True)
    ]


_LETTERS = {"float16": "<e", "float32": "<f", "float64": "<d"}
_LONGEST = 1_000_000  # elements of a parameter that is looked at


@dataclass
class _Uniform:
    """Vectors of one number in a model, which is read again when the first of them is asked for."""

    model: Any
    model_name: str | None

    @cached_property
    def contents(self) -> Callable[[str], Stored | None] | None:
        """The contents of stored tensors by name; None for a saved report, which holds none."""
        from graphflops.analysis import as_graph

        return None if is_report(self.model) else as_graph(self.model, self.model_name).contents

    def number(self, name: str) -> float | None:
        """The number where what is stored by that name is a vector of nothing else; axes of one do not count."""
        stored = None if self.contents is None else self.contents(name)
        if stored is None:
            return None
        axes = [(size, step) for size, step in zip(stored.shape, stored.strides, strict=True) if size != 1]
        length = math.prod(stored.shape)
        if len(axes) > 1 or not 0 < length <= _LONGEST or any(step != 1 for _, step in axes):
            return None
        width = stored.dtype.bits // 8
        held = bytes(stored.memory[stored.offset * width : (stored.offset + length) * width])
        first = held[:width]
        if held != first * length:
            return None
        if stored.dtype.name == "bfloat16":
            return float(struct.unpack("<f", b"\0\0" + first)[0])
        letter = _LETTERS.get(stored.dtype.name)
        return None if letter is None else float(struct.unpack(letter, first)[0])


def _file_or_program(model: Model | ModelFile) -> Model | ModelFile:
    if isinstance(model, os.PathLike):
        return ModelFile(os.fspath(model))
    return ModelFile.named(model) or model if isinstance(model, str) else model


def _each(
    models: Sequence[Any],
    model_name: str | None,
    dims: Mapping[str, int],
    inputs: Mapping[str, Sequence[int]],
    names: Mapping[str, str],
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The graphs of both models, and the given sizes by the names that each of them has for these."""
    from graphflops.analysis import as_graph

    graphs = [as_graph(model, model_name) for model in models]
    dims = {names.get(name, name): value for name, value in dims.items()}
    sizes = zip(dims_for(graphs, dims), inputs_for(graphs, inputs), names_for(graphs, names), strict=True)
    return [*graphs], [{"dims": bound, "inputs": shapes, "names": called} for bound, shapes, called in sizes]


def _titled(report: Report, side: object) -> Report:
    """The report under the name that the user gave its file."""
    if isinstance(side, ModelFile):
        return replace(report, origin=replace(report.origin, path=side.title))
    return report
