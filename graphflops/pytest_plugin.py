"""The pytest plugin: budgets of modules and model files as tests.

    def test_cost(graphflops_budget):
        graphflops_budget(Decoder(), (torch.zeros(1, 128),), matrix_flops="2 GFLOP", coverage="100 %")

    @pytest.mark.graphflops_budget("models/decoder.onnx")  # the limits of graphflops.toml
    def test_file(): ...

It is loaded by every run of pytest where graphflops is installed, so it imports pytest and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from graphflops.report import Report
    from graphflops.report.findings import Finding

_MARKER = "graphflops_budget"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The ini option that names the budget."""
    what = "budget whose limits are for model files, relative to rootdir"
    parser.addini(_MARKER, what, default="graphflops.toml")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    what = f"{_MARKER}(*models, **limits): fail where a model file breaks its limits, or those of the budget"
    config.addinivalue_line("markers", what)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the files that a test's markers name."""
    for marker in item.iter_markers(_MARKER):
        for model in marker.args:
            _check(item.config, model, marker.kwargs)


@pytest.fixture
def graphflops_budget(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Fail the test where a model breaks its limits; its report otherwise.

    The model is a module with its arguments (torch exports it), an ExportedProgram, or the path of a file. Limits are
    written as in a `[[budget]]`, on top of those of a marker without models; a file without any has those of the budget.
    """
    markers = [marker for marker in request.node.iter_markers(_MARKER) if not marker.args]
    marked = {name: limit for marker in markers for name, limit in marker.kwargs.items()}
    return checker(request.config, marked)


def checker(config: pytest.Config, marked: Mapping[str, Any]) -> Callable[..., Report]:
    """The function that the fixture gives; `marked` are limits that hold unless a call says otherwise."""

    def check(
        model: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
        dynamic_shapes: Any = None, **limits: Any,
    ) -> Report:  # fmt: skip
        is_module = hasattr(model, "forward") and hasattr(model, "state_dict")
        if is_module and not hasattr(model, "graph_signature"):
            from graphflops import capture

            program = capture(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
            return _check(config, program, {**marked, **limits}, type(model).__name__)
        return _check(config, model, {**marked, **limits})

    return check


def _check(config: pytest.Config, model: Any, limits: Mapping[str, Any], name: str = "") -> Report:
    """The report of a model; a broken limit, and whatever is wrong with model or budget, fails the test in plain words."""
    from os import PathLike, fspath

    from graphflops.errors import GraphflopsError

    try:
        if isinstance(model, (str, PathLike)):
            name = fspath(model)
            model = str(config.rootpath / name)
        report, findings = _measured(config, model, limits)
    except (GraphflopsError, OSError) as error:
        pytest.fail(f"graphflops: {error}", pytrace=False)
    if any(finding.severity == "error" for finding in findings):
        from graphflops.render.findings import table
        from graphflops.report.findings import Findings, ModelFindings

        found = Findings((ModelFindings(name or type(model).__name__, tuple(findings), report.values),))
        pytest.fail(table(found).rstrip(), pytrace=False)
    return report


def _measured(config: pytest.Config, model: Any, limits: Mapping[str, Any]) -> tuple[Report, list[Finding]]:
    from graphflops.budget import baseline, limits as reader
    from graphflops.budget.check import compared
    from graphflops.budget.run import jobs_of, measures_at
    from graphflops.errors import FileError

    file = str(config.rootpath / config.getini(_MARKER))
    is_read = isinstance(model, str) and not limits
    budget = reader.read(file) if is_read else reader.given(limits, str(config.rootpath))
    kept = budget.baseline_path
    jobs = list(jobs_of(budget, model, baseline.read(kept) if kept and budget.relative else {}))
    if not jobs:
        raise FileError(f"{file}: no limit is for {model}")
    measured = [measures_at(model, job.sizes) for job in jobs]
    findings = [
        found
        for job, measures in zip(jobs, measured, strict=True)
        for entry in job.budgets
        for found in compared(measures, entry, job.before)[0]
    ]
    return measured[0].report, findings
