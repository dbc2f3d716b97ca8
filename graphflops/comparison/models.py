"""Compares two models: each is analyzed, or loaded where it is a saved report."""

from __future__ import annotations

import math
import os
import struct
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphflops.comparison.compare import compared
from graphflops.errors import DimError, shown
from graphflops.loading import analyze, is_report
from graphflops.versions.revisions import ModelFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.comparison.result import Comparison
    from graphflops.graph import Stored
    from graphflops.loading import Model
    from graphflops.report import Execution, Report
    from graphflops.training import Training


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
    from graphflops.comparison.shared_sizes import dims_for, inputs_for, names_for

    graphs = [as_graph(model, model_name) for model in models]
    dims = {names.get(name, name): value for name, value in dims.items()}
    sizes = zip(dims_for(graphs, dims), inputs_for(graphs, inputs), names_for(graphs, names), strict=True)
    return [*graphs], [{"dims": bound, "inputs": shapes, "names": called} for bound, shapes, called in sizes]


def _titled(report: Report, side: object) -> Report:
    """The report under the name that the user gave its file."""
    if isinstance(side, ModelFile):
        return replace(report, origin=replace(report.origin, path=side.title))
    return report
