"""Runs the checks on an ONNX file and returns their findings: what is wrong, unsafe or wasteful in it.

Nothing in the file is executed and no weight is loaded; external data are never opened.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphflops.base.record import Record, replace
from graphflops.base.rendered import Rendered
from graphflops.errors import FileError, raised
from graphflops.graph import Graph
from graphflops.onnx_audit.registry import CHECKS, NEGLIGIBLE_SHARE, Check, Edit, Model, Observation
from graphflops.report import Report
from graphflops.report.findings import SEVERITIES, Finding, Findings, ModelFindings, Neighbours
from graphflops.report.size_names import in_prose
from graphflops.view import Call

_PER_CODE = 5  # findings of one code that a table shows
# A fact about a call is reported once: the code on the left is dropped if one on the right reports that call.
_REPORTED_BY = {
    "GF101": ("GF118", "GF206", "GF207"),
    "GF204": ("GF118", "GF207"),
    "GF242": ("GF217",),
    "GF246": ("GF243",),
}


class Fix(NamedTuple):
    """A finding, and the changes of the file that fix it; () if only a person can."""

    finding: Finding
    edits: tuple[Edit, ...] = ()


class Audit(Rendered, Record, frozen=True):
    """Findings, the most severe first; `report` is None if the file is no valid program, whose cost is unknown then."""

    path: str
    fixes: tuple[Fix, ...]
    report: Report | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, unsafe or wasteful."""
        return tuple([fix.finding for fix in self.fixes])

    def of_model(self) -> ModelFindings:
        """The findings with the sizes and the costs of the model."""
        if self.report is None:
            return ModelFindings(self.path, self.findings)
        return ModelFindings.of(self.path, self.findings, self.report)

    def _content(self) -> Findings:
        return audit_findings([self.of_model()])


def audit(
    path: str | Path,
    *,
    codes: Collection[str] | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    names: Mapping[str, str] | None = None,
    assume: bool = True,
    progress: Callable[[int, int], None] | None = None,
    beside: str | None = None,
) -> Audit:
    """Audit an ONNX file.

    codes: codes of the checks to run; all by default. beside: the file whose folder has its data, if not itself.
    dims, inputs, names, assume, progress: as for `graphflops.analyze`.
    Raises FileError if the file is not ONNX, ModelError if the given sizes contradict the program.
    """
    from graphflops.exporters import onnx

    proto, origin = onnx.opened(path)
    graph, problem = Graph((), {}, (), ()), ""
    options: Any = {"dims": dims, "inputs": inputs, "names": names, "assume": assume}
    try:
        graph = onnx.graph_of(proto, origin)
    except FileError as error:
        problem, options = str(error).partition(": ")[2] or str(error), {}
    from graphflops.analysis import analyze

    report = analyze(graph, fused=False, progress=progress, **options)
    folder = None if beside is None else Path(beside)
    model = Model(Path(path), proto, folder, graph=graph, report=report, problem=problem)
    fixes = _fixes(model, codes)
    fixes.sort(key=lambda fix: (SEVERITIES.index(fix.finding.severity), fix.finding.code))
    return Audit(str(path), tuple(fixes), None if problem else report)


def _fixes(model: Model, codes: Collection[str] | None) -> list[Fix]:
    """The findings of all checks, or of those with these codes, with neighbours, and sizes by the names that people read."""
    seen: dict[Check, list[Observation]] = {}
    found: list[Fix] = []
    for check in checks().values():
        if (codes is not None and check.code not in codes) or (check.reads != "file" and model.problem):
            continue
        try:
            seen[check] = [each for each in check.run(model) if not _negligible(each, model)]
        except Exception as error:  # noqa: BLE001 - a file of unknown origin may raise anything
            text = f"the check itself failed, so that its findings are missing: {raised(error)}"
            advice = "look at what the check is for, and report it"
            found.append(Fix(Finding(check.code, check.name, "error", text, advice)))
    reported: dict[str, set[str]] = {}  # by code, the results of the calls that its findings are about
    for check, observed in seen.items():
        reported[check.code] = {name for each in observed for name in _results(each.at)}
    for check, observed in seen.items():
        others = [reported.get(code, set()) for code in _REPORTED_BY.get(check.code, ())]
        own = [each for each in observed if set().union(*others).isdisjoint(_results(each.at))]
        found += [Fix(_finding(check, each), each.edits) for each in own]
    names, beside = model.report.names, Neighbours(model.report.rows)
    for place, (finding, edits) in enumerate(found):
        message, between = in_prose(finding.message, names), beside.between(finding.node)
        found[place] = Fix(replace(finding, message=message, between=between), edits)
    return found


def _results(at: object) -> tuple[str, ...]:
    """The names of the results of a call, which identify it."""
    if at is None:
        return ()
    outputs = at.node.outputs if isinstance(at, Call) else at.output  # type: ignore[attr-defined]
    return tuple(name for name in outputs if name)


def checks() -> dict[str, Check]:
    """Every check, in the order of the codes."""
    from graphflops.onnx_audit import precision, safety, structure, types, waste  # noqa: F401

    return dict(sorted(CHECKS.items()))


def audit_findings(models: Iterable[ModelFindings]) -> Findings:
    """The findings of several files, as formats render them."""
    rules = {code: check.info for code, check in checks().items()}
    return Findings(tuple(models), "audit", rules, per_code=_PER_CODE)


def _negligible(observation: Observation, model: Model) -> bool:
    """True if it costs something, but only a negligible share of the whole."""
    flops, held = observation.flops, (observation.bytes or 0) + observation.stored
    if observation.is_small or not (flops or held):
        return False
    return model.share(flops, held) < NEGLIGIBLE_SHARE


def _finding(check: Check, observation: Observation) -> Finding:
    finding = Finding(
        *(check.code, check.name, observation.severity or check.severity, observation.message, check.fix),
        flops=observation.flops,
        bytes=observation.bytes,
        applicability=("safe" if observation.exact else "unsafe") if observation.edits else "",
        stored=observation.stored,
    )
    at = observation.at
    if at is None:
        return finding
    if isinstance(at, Call):
        row = at.row
        return replace(finding, node=row.node, op=row.op, module=row.module, source=row.source)
    from graphflops.exporters.sources import OnnxPlaces

    (module, _, source), _ = OnnxPlaces().of(at)
    domain = f"{at.domain}." if at.domain else ""
    return replace(finding, node=at.name, op=f"{domain}{at.op_type}", module=module, source=source)
