"""Many models checked against their budget, in several processes where that pays."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from graphflops.budget import baseline
from graphflops.budget.check import check, finding
from graphflops.budget.limits import Sizes
from graphflops.budget.measure import Measures
from graphflops.checkout import tracked
from graphflops.commands import files
from graphflops.errors import FileError, GraphflopsError, shown
from graphflops.findings import ModelFindings
from graphflops.revisions import changed, file_at, resolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.budget.baseline import Baseline, Before
    from graphflops.budget.limits import Budget, BudgetFile
    from graphflops.findings import Finding
    from graphflops.report import Report

EXPORTED = Sizes()  # the sizes that the file gives
_WORTH_PROCESSES = 2**20  # bytes of models; less is read in the time that it takes to start processes


@dataclass(frozen=True, slots=True)
class Past:
    """A model at a commit: the path that it had, None where it is new since; `same` where nothing of it has changed."""

    commit: str
    path: str | None
    same: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One analysis: a model at the sizes that some limits are for.

    model: path of the file; name: as the baseline has it.
    before: what was measured at the same sizes, None where nothing was.
    past: where to measure what was before instead.
    update: measure for a new baseline, and check only what needs none.
    """

    model: str
    name: str
    sizes: Sizes
    budgets: tuple[Budget, ...]
    before: Before | None = None
    past: Past | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job: findings, what was measured (None where the model could not be analyzed), known sizes."""

    findings: tuple[Finding, ...]
    measured: Before | None = None
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of all: findings by model, and what was measured."""

    found: tuple[ModelFindings, ...]
    measured: Baseline

    @property
    def broken(self) -> bool:
        """Whether a limit is broken or cannot be told."""
        return any(finding.severity == "error" for model in self.found for finding in model.findings)

    @property
    def failed(self) -> bool:
        """Whether a model could not be analyzed."""
        return any(finding.code == "GF310" for model in self.found for finding in model.findings)


def checked(
    budget: BudgetFile,
    models: Sequence[str],
    before: Baseline | None = None,
    *,
    revision: str = "",
    update: bool = False,
    processes: int | None = None,
    rule_files: tuple[str, ...] = (),
) -> Checked:
    """Every model against the limits that are for it.

    before: what relative limits compare with, or else the `revision` of git; FileError where there is none. Models that are
        new since the revision have no relative limits.
    processes: how many; None takes all processors, if the models are large enough for that to pay.
    """
    past = _past(revision, models) if revision else {}
    jobs = [
        replace(job, past=past.get(model), update=update)
        for model in models
        for job in planned(budget, model, before or {})
    ]
    found: dict[str, list[Finding]] = {model: [] for model in models}
    values: dict[str, Mapping[str, int]] = {}
    measured: Baseline = {}
    for job, outcome in zip(jobs, _run(jobs, processes, rule_files), strict=True):
        found[job.model] += outcome.findings
        values.setdefault(job.model, outcome.values)
        if outcome.measured is not None:
            measured.setdefault(job.name, {})[str(job.sizes)] = outcome.measured
    limited = {job.model for job in jobs}
    for model in models:
        if model not in limited:
            found[model].append(finding("GF311", f"no limit of {shown(budget.path)} is for this model"))
    each = (
        ModelFindings(model, tuple(dict.fromkeys(findings)), values.get(model, {}))
        for model, findings in found.items()
    )
    return Checked(tuple(each), measured)


def planned(budget: BudgetFile, model: str, before: Baseline) -> Iterator[Job]:
    """One job for each choice of sizes; none for a model that no limit is for."""
    name = budget.name_of(model)
    by_sizes: dict[Sizes, list[Budget]] = {}
    for entry in budget.budgets:
        if entry.applies(name):
            by_sizes.setdefault(entry.sizes, []).append(entry)
    for sizes, entries in by_sizes.items():
        yield Job(model, name, sizes, tuple(entries), before.get(name, {}).get(str(sizes)))


def _run(jobs: Sequence[Job], processes: int | None, rule_files: tuple[str, ...]) -> Iterable[Outcome]:
    if processes is None:
        small = sum(map(_bytes, {job.model for job in jobs})) < _WORTH_PROCESSES
        processes = 1 if small else _processors()
    processes = min(processes, len(jobs))
    if processes <= 1:
        files.import_rules(rule_files)
        return [_outcome(job) for job in jobs]
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(processes, initializer=files.import_rules, initargs=(rule_files,)) as pool:
        return list(pool.map(_outcome, jobs))


def _outcome(job: Job) -> Outcome:
    try:
        return _analyzed(job)
    except click.ClickException as error:
        return Outcome((finding("GF310", shown(error.message, 500)),))
    except (GraphflopsError, OSError, RecursionError) as error:
        return Outcome((finding("GF310", shown(str(error), 500)),))
    finally:
        gc.collect()  # it is off while a command runs, and the next model may be large


def _analyzed(job: Job) -> Outcome:
    report = report_at(job.model, job.sizes)
    measured = baseline.measured(Measures(report), job.budgets)
    budgets, before, findings = job.budgets, job.before, []
    if job.past is not None:
        try:
            before = measured if job.past.same else _measured_at(job.past, job)
        except (GraphflopsError, RecursionError) as error:
            findings.append(finding("GF306", f"it cannot be measured as it was: {shown(str(error), 500)}"))
    if job.update or (job.past is not None and before is None):
        budgets = tuple(budget.absolute() for budget in budgets)
    findings += [found for budget in budgets for found in check(report, budget, before)]
    return Outcome(tuple(findings), measured, report.values)


def _measured_at(past: Past, job: Job) -> Before | None:
    if past.path is None:
        return None
    return baseline.measured(Measures(report_before(past.commit, past.path, job.sizes)), job.budgets)


def _past(revision: str, models: Sequence[str]) -> dict[str, Past]:
    """Each model as it was in a revision; one that git does not know is new."""
    commit = resolved(revision)
    known = tracked()
    paths = {model: os.path.relpath(model).replace(os.sep, "/") for model in models}
    old = {new: before for before, new in changed(commit, None, [*paths.values()]) if new is not None}

    def past(path: str) -> Past:
        if path in old:
            return Past(commit, old[path])
        if path.startswith("../"):  # neither list has what is outside this folder
            return Past(commit, path)
        return Past(commit, path, same=True) if path in known else Past(commit, None)

    return {model: past(path) for model, path in paths.items()}


def report_at(model: str, sizes: Sizes) -> Report:
    """The report of a model at the sizes that limits are for; raises what reading and analyzing raise."""
    dims, inputs = dict(sizes.dims), dict(sizes.inputs)
    return files.report_of(model, dims=dims, inputs=inputs, training=sizes.training, quiet=True)


def report_before(commit: str, path: str, sizes: Sizes = EXPORTED) -> Report:
    """The report of a model at a commit; FileError where it is not there, or no model."""
    with file_at(commit, path) as file:
        try:
            return report_at(file, sizes)
        except (GraphflopsError, RecursionError) as error:
            raise FileError(str(error).replace(file, f"{shown(path)} at {commit[:12]}")) from error


def _bytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1
