"""Compares two models, each analyzed or a saved report, at sizes given once by any name that either program has for them."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

from graphflops.base.lazy import imported
from graphflops.base.record import replace
from graphflops.comparison.compare import compared
from graphflops.comparison.result import Comparison
from graphflops.dims import Dim, evaluate
from graphflops.errors import DimError, ModelError, shown
from graphflops.graph import Graph, Stored
from graphflops.loading import Model, analyze, is_report, opened
from graphflops.open_sizes import OpenSizes, is_computed
from graphflops.passes.bind import open_sizes
from graphflops.report import Execution, Report
from graphflops.report.size_names import matching
from graphflops.tensor import TensorType
from graphflops.training import Training
from graphflops.versions.revisions import ModelFile


def _told(own: OpenSizes, every: Sequence[OpenSizes], name: str) -> list[tuple[str, Dim | None]]:
    """The axes of a program that determine a size, each as a formula of it; None for the size itself.

    A symbol that only another program has is looked up by the axis that it has there. A name that no program has goes to
    all of them, which then say what they have.
    """
    if own.places(name) or not any(one.places(name) for one in every):
        return [(name, None)]
    told = (one.at_axis(name) for one in every if name in one.symbols)
    return [(axis, size) for axis, size in told if axis in own.axes]


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

    Raises FileError for a file that cannot be read, ModelError if given sizes contradict a model, OptionError for an
    option with a saved report, DimError if a formula grows too large.
    """
    sides = [_file_or_program(side) for side in (old, new)]
    with ExitStack() as stack:
        models: list[Any] = [
            stack.enter_context(side.opened()) if isinstance(side, ModelFile) else side for side in sides
        ]
        sizes: list[dict[str, Any]] = [{"dims": dims, "inputs": inputs, "names": names}] * 2
        if (dims or inputs or names) and not any(map(is_report, models)):
            models = [opened(model, model_name=model_name) for model in models]
            sizes = _each(models, dims or {}, inputs or {}, names or {})
        given: dict[str, Any] = {"model_name": model_name, "training": training, "assume": assume}
        given |= {"device": device, "execution": execution, "progress": progress}
        reports = [analyze(model, **given, **size) for model, size in zip(models, sizes, strict=True)]
        is_mixed = execution is None and len({report.execution for report in reports}) > 1
        for place, model in enumerate(models if is_mixed and not any(map(is_report, models)) else ()):
            if reports[place].execution != "graph":
                reports[place] = analyze(model, **{**given, "execution": "graph"}, **sizes[place])
        return _compared(reports, sides, _uniform(models[0], model_name))


def _compared(
    reports: list[Report], sides: Sequence[object], uniform: Callable[[str], float | None]
) -> Comparison:
    """The comparison of two reports, each under the name that the user gave its file."""
    for place, side in enumerate(sides):
        if isinstance(side, ModelFile):
            reports[place] = replace(reports[place], origin=replace(reports[place].origin, path=side.title))
    try:
        return compared(reports[0], reports[1], uniform)
    except DimError as error:
        paths = " and ".join(shown(report.origin.path) for report in reports)
        raise DimError(f"{paths}: {error}: give sizes") from None


_LONGEST = 1_000_000  # elements of a parameter that is looked at


def _uniform(model: Any, model_name: str | None) -> Callable[[str], float | None]:
    """A function that finds vectors of one number in a model, which is read again at the first call."""

    @cache
    def contents() -> Callable[[str], Stored | None]:
        found = opened(model, model_name=model_name)
        return (found.contents if isinstance(found, Graph) else None) or (lambda name: None)

    def number(name: str) -> float | None:
        """The number that fills the stored vector of this name, None for other tensors; axes of length one do not count."""
        stored = contents()(name)
        if stored is None or not stored.dtype.is_floating or not 0 < math.prod(stored.shape) <= _LONGEST:
            return None
        array = None
        if sum(size != 1 for size in stored.shape) <= 1:
            with suppress(ValueError):  # of a tensor that reaches out of its memory
                array = imported("graphflops.attention.constants:array_of")(stored)
        return float(array.flat[0]) if array is not None and (array == array.flat[0]).all() else None

    return number


def _file_or_program(model: Model | ModelFile) -> Model | ModelFile:
    if isinstance(model, os.PathLike):
        return ModelFile(os.fspath(model))
    return ModelFile.named(model) or model if isinstance(model, str) else model


def _each(
    graphs: Sequence[Graph], dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]], names: Mapping[str, str]
) -> list[dict[str, Any]]:  # fmt: skip
    """The given sizes by each program's names. ModelError for a symbol at another axis in each."""
    every, ranks = [open_sizes(graph) for graph in graphs], [_tensors(graph) for graph in graphs]
    anywhere = {name for known in ranks for name in known}
    dims = {names.get(name, name): value for name, value in dims.items()}
    for name in (*dims, *names.values()):
        _refuse_two(every, name)
    sizes = []
    for own, known in zip(every, ranks, strict=True):
        bound: dict[str, int] = {}
        called: dict[str, str] = {}
        for name, value in dims.items():
            told = _told(own, every, name)
            at = ((axis, value if size is None else evaluate(size, {name: value})) for axis, size in told)
            bound.update([(axis, each) for axis, each in at if each is not None][:1])
        for label, name in names.items():
            axes = [axis for axis, size in _told(own, every, name) if size is None or not is_computed(size)]
            if axes:
                called[label] = axes[0]
        shapes = {
            name: shape
            for name, shape in inputs.items()
            if name in known or matching(name, known) or not (name in anywhere or matching(name, anywhere))
        }
        sizes.append({"dims": bound, "inputs": shapes, "names": called})
    return sizes
