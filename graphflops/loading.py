"""Turns what the user names into a report: a model file, a program in memory, or a saved report."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Union

from graphflops.base import files
from graphflops.errors import FileError, GraphflopsError, ModelError, OptionError, RuleError, raised, shown
from graphflops.graph import Graph
from graphflops.report import Execution, Report
from graphflops.training import Training

_LARGEST_REPORT = 2**30  # bytes of a saved report; a 70B model's has 4 million

# Options of another name than the keyword.
_FLAGS = {"model_name": "model", "masks": "mask", "names": "name", "assume": "open"}


class Exported(Protocol):
    """What is read of a `torch.export.ExportedProgram`; torch need not be installed."""

    graph_module: Any
    graph_signature: Any


class Module(Protocol):
    """What is read of a `torch.nn.Module`."""

    def named_parameters(self) -> Any:
        """Its parameters by name."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What it computes."""


Model = Union[str, "os.PathLike[str]", "Graph", "Report", Exported, Module]


def analyze(
    model: Model, args: Any = None, kwargs: Mapping[str, Any] | None = None, *, dynamic_shapes: Any = None,
    model_name: str | None = None, dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None, masks: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None, training: bool | Training = False, assume: bool = True,
    execution: Execution | None = None, device: str | None = None, network: str | None = None,
    torch: str | None = None, mesh: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:  # fmt: skip
    """Computes what a model costs: FLOPs, bytes, memory, parameters.

    model: path of a `.pt2`, an `.onnx` or a saved JSON report, a `Graph`, a `Report`, an `ExportedProgram` of torch, or a
        `torch.nn.Module`, which is exported first. A report takes no options but `dims` and `inputs`.
    args, kwargs, dynamic_shapes: of a module, as for `torch.export.export`. model_name: one program of an archive.
    dims: sizes by symbol (`s27`) or input axis (`ids[1]`). inputs: shapes by name. mesh: axes of a step: `{"dp": 64}`.
    masks: by input, what a mask lets through: `causal`, `window:1024`, ... names: of open sizes: `{"batch": "ids[0]"}`.
    training: a step too: True, or a `graphflops.Training`. assume: a value for sizes without example. progress: (done, all).
    execution: `graph`, `eager` (a `.pt2` on a device), `compiled`. device: `h200`. network: `8x400Gbit`. torch: `2.11`.
    Raises FileError (file), ModelError (sizes that contradict the program) or OptionError (wrong options).
    """
    model = on_mesh(_captured(model, args, kwargs, dynamic_shapes), mesh)
    given: Any = {"model_name": model_name, "masks": masks, "names": names, "training": training}
    given |= {"assume": assume, "execution": execution, "device": device, "network": network, "torch": torch}
    if (report := saved_report(model)) is not None:
        return _resized(report, dims or {}, inputs or {}, given)
    from graphflops.analysis import analyze as computed

    return computed(model, dims=dims, inputs=inputs, progress=progress, **given)


def on_mesh(model: Model, mesh: Mapping[str, int] | None) -> Model:
    """A recorded step on other sizes of its mesh; any model as it is where none are given."""
    if not mesh:
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise OptionError("the mesh of a recorded step is chosen as its file is read: give its path")
    from graphflops.exporters import load

    return load(os.fspath(model), None, mesh)


def _captured(model: Model, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Model:
    """The exported program of a module; any other model as it is. OptionError for inputs that are missing or too many."""
    has_inputs = args is not None or bool(kwargs)
    if not (hasattr(model, "named_parameters") and hasattr(model, "forward")):
        if has_inputs or dynamic_shapes is not None:
            text = "example inputs are those of a torch.nn.Module: leave them out for any other model"
            raise OptionError(text)
        return model
    if not has_inputs:
        name = type(model).__name__
        text = f"{name} is a module: give example inputs to export it with, as in analyze(module, (x,))"
        raise OptionError(text)
    from graphflops.exporters.live import capture

    given = args if isinstance(args, (tuple, list)) else () if args is None else (args,)
    exported: Exported = capture(model, tuple(given), kwargs, dynamic_shapes)
    return exported


def _resized(
    report: Report, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]], others: Mapping[str, object]
) -> Report:
    """A saved report evaluated at these sizes; OptionError for the other options, which a report does not take."""
    # `assume` alone is true by default.
    wrong = [name for name, option in others.items() if bool(option) is not (name == "assume")]
    given = [f"--{_FLAGS.get(name, name)}" for name in wrong]
    if given:
        text = f"MODEL is a saved report, which takes no {', no '.join(given)}: give the model itself"
        raise OptionError(text)
    if not dims and not inputs:
        return report
    from graphflops.derived.resize import resized

    return resized(report, dims, inputs)


def opened(
    model: Model, args: Any = None, kwargs: Mapping[str, Any] | None = None, *, dynamic_shapes: Any = None,
    model_name: str | None = None,
) -> Graph | Report:  # fmt: skip
    """What `analyze` reads of a model, or the saved report that it is: read once for several analyses. Options: as there."""
    model = _captured(model, args, kwargs, dynamic_shapes)
    if (report := saved_report(model)) is not None:
        return report
    from graphflops.analysis import as_graph

    return as_graph(model, model_name)


def program_of(model: Model, model_name: str | None = None) -> Graph:
    """The program of one device that a model is, to be split or priced at other sizes. Raises ModelError for a saved
    report, and for a recorded step, which is laid out over its devices already.
    """
    graph = opened(model, model_name=model_name)
    if isinstance(graph, Report):
        raise ModelError("a saved report cannot be split or priced at other sizes: give the model itself")
    if graph.step is not None:
        raise ModelError("a recorded step is laid out already: give the program of one device (.pt2)")
    return graph


def phases(
    model: Model, prefill: Model | None = None, model_name: str | None = None
) -> tuple[Graph, Graph | None]:
    """The program of a decoder's step, and of its prefill if that is known. Raises as `program_of` does.

    model_name: the step's in an archive; without it, an archive with `decode` and `prefill` gives both.
    """
    first = None if prefill is None else program_of(prefill, None)
    if model_name is None and not isinstance(model, Graph):
        try:
            step = program_of(model, "decode")
            return step, first or (program_of(model, "prefill") if step.origin.format == "pt2" else None)
        except FileError:  # an archive without these names, or a file that is refused below
            pass
    return program_of(model, model_name), first


def is_report(model: object) -> bool:
    """True for a report, and for the path of a saved one: a JSON file that no reader recognises as a model."""
    if not isinstance(model, (str, os.PathLike)):
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
    if isinstance(model, Report):
        return model
    assert isinstance(model, (str, os.PathLike))
    data = files.content(model, "report", _LARGEST_REPORT)
    try:
        report = Report.from_json(data)
    except GraphflopsError as error:
        raise FileError(f"{shown(os.fspath(model))}: {error}") from error
    from graphflops.exporters import SUFFIXES
    from graphflops.report.contradictions import named_as_model

    return named_as_model(report) if os.path.splitext(model)[1] in SUFFIXES else report


def import_rules(paths: Sequence[str]) -> None:
    """Runs the user's own rule files; RuleError names the line at which one fails."""
    import importlib.util
    import sys

    for index, path in enumerate(paths):
        name = f"graphflops_user_rules_{index}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise RuleError(f"{shown(path)}: not a Python file; --rules takes one that ends in .py")
        files.opened(path).close()
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise RuleError(f"{shown(path)}: {raised(error)}") from error
