"""Turns what the user names into a report: a model file, a program in memory, or a saved report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, Union

from graphflops.errors import FileError, GraphflopsError, OptionError, RuleError, innermost, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.graph import Graph
    from graphflops.report import Report

_LARGEST_REPORT = 2**30  # bytes of a saved report; that of a 70B model has 4 million


class Exported(Protocol):
    """A `torch.export.ExportedProgram`, named by what is read of it: torch need not be installed."""

    graph_module: Any
    graph_signature: Any


Model = Union[str, "os.PathLike[str]", "Graph", "Report", Exported]


def analyze(
    model: Model,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    masks: Mapping[str, str] | None = None,
    training: bool = False,
    assume: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Computes what a model costs: FLOPs, bytes, memory, parameters.

    model: path of a `.pt2` or `.onnx` file or of a saved JSON report, a `Graph`, a `Report`, or a
        `torch.export.ExportedProgram`. A report is returned as it was saved, and takes none of the options.
    model_name: which program of an archive that holds several.
    dims: sizes by symbol (`s27`) or by input axis (`ids[1]`).
    inputs: whole shapes by input name; a program without symbols is propagated again from them.
    masks: by input name, the kind of a mask that the caller passes in: `causal`, `window:1024`, `prefix:128` or
        `density:0.3`. The last query stands at the position of the last key.
    training: count the backward pass and an AdamW step too.
    assume: take a size without an example at an assumed value (docs/report.md); False leaves it open.
    progress: called now and then with (calls done, calls in all).

    Raises FileError for a file that cannot be read, ModelError where given sizes contradict the program, OptionError for
    an option with a saved report.
    """
    report = saved_report(model)
    if report is not None:
        if model_name is not None or dims or inputs or masks or training or not assume:
            raise OptionError("MODEL is a saved report, which is as it was analysed: give the model itself")
        return report
    from graphflops import analysis

    sizes: Any = {"dims": dims, "inputs": inputs, "masks": masks, "assume": assume}
    return analysis.analyze(model, model_name=model_name, training=training, progress=progress, **sizes)


def is_report(model: object) -> bool:
    """True for a report, and for the path of a saved one: a JSON file that no reader recognises as a model."""
    if not isinstance(model, (str, os.PathLike)):
        from graphflops.report import Report

        return isinstance(model, Report)
    if not os.path.isfile(model):
        return False
    with open(model, "rb") as file:
        head = file.read(512)
    if not head.lstrip().startswith(b"{"):
        return False
    from graphflops.exporters import recognised

    return recognised(head) is None


def saved_report(model: object) -> Report | None:
    """The report that `model` is, or that its file holds; None for anything else."""
    if not is_report(model):
        return None
    from graphflops.report import Report

    if isinstance(model, Report):
        return model
    assert isinstance(model, (str, os.PathLike))
    place = shown(os.fspath(model))
    with open(model, "rb") as file:
        data = file.read(_LARGEST_REPORT + 1)
    if len(data) > _LARGEST_REPORT:
        raise FileError(f"{place}: too large for a report: at most {_LARGEST_REPORT:,} bytes")
    try:
        return Report.from_json(data)
    except GraphflopsError as error:
        raise FileError(f"{place}: {error}") from error


def import_rules(files: Sequence[str]) -> None:
    """Runs the user's own rule files; RuleError names the line at which one fails."""
    if not files:
        return
    import importlib.util
    import sys

    for index, path in enumerate(files):
        name = f"graphflops_user_rules_{index}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise RuleError(f"{shown(path)}: not a Python file; --rules takes one that ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            said = str(error) if isinstance(error, GraphflopsError) else f"{type(error).__name__}: {error}"
            raise RuleError(f"{shown(path)}: {said} ({innermost(error.__traceback__)})") from error
