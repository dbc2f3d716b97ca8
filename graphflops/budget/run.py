"""Checks models against their budget, in several processes where that is faster."""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from graphflops.base.limits import Limits, left, limit_process, next_analysis
from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.budget import baseline, limits
from graphflops.budget.baseline import Baseline, Before
from graphflops.budget.check import RULES, assumptions, compared, finding
from graphflops.budget.limits import Budget, BudgetFile, Sizes
from graphflops.budget.measure import Measures
from graphflops.errors import FileError, GraphflopsError, OptionError, shown
from graphflops.loading import Model, analyze, import_rules, saved_report
from graphflops.report.findings import Finding, Findings, LimitResult, ModelFindings
from graphflops.tensor import grouped
from graphflops.versions.git import tracked
from graphflops.versions.revisions import changed, file_at, resolved

EXPORTED = Sizes()  # the sizes that the file gives
_WORTH_PROCESSES = 2**20  # bytes of models; fewer are read in the time that it takes to start processes

BudgetSource = Union[str, "os.PathLike[str]", "Mapping[str, Any]", "BudgetFile"]


class Past(Record, frozen=True):
    """A model at a commit: its path there, None if it is newer; `same` if the file has not changed since."""

    commit: str
    path: str | None
    same: bool = False


class Job(Record, frozen=True):
    """One analysis: a model at the sizes that some limits are for."""

    model: Model  # as `graphflops.analyze` accepts it
    label: str  # its path, or the type of a program in memory
    name: str  # its key in the baseline
    sizes: Sizes
    budgets: tuple[Budget, ...]
    before: Before | None = None  # what was measured at the same sizes, None if nothing was
    past: Past | None = None  # the commit to measure instead
    update: bool = False  # measure for a new baseline, and check absolute limits only
    assume: bool = True  # sizes without an example are assumed


class Outcome(Record, frozen=True):
    """The result of a job: findings, what was measured (None if the model could not be analyzed), known sizes."""

    findings: tuple[Finding, ...]
    measured: Before | None = None
    values: Mapping[str, int] = {}
    limits: tuple[LimitResult, ...] = ()


class Checked(Rendered, Record, frozen=True):
    """The result of a check: findings by model, and what was measured."""

    found: tuple[ModelFindings, ...]
    measured: Baseline

    @property
    def findings(self) -> Findings:
        return Findings(self.found, "check", RULES)

    def _content(self) -> Findings:
        return self.findings

    @property
    def broken(self) -> bool:
        """True if a limit is broken or cannot be checked."""
        return any(finding.severity == "error" for model in self.found for finding in model.findings)

    @property
    def failed(self) -> bool:
        return any(finding.code == "GF310" for model in self.found for finding in model.findings)


def check(
    models: Model | Sequence[Model] = (),
    budget: BudgetSource = "graphflops.toml",
    *,
    baseline: str | None = None,
    assume: bool = True,
    processes: int | None = None,
) -> Checked:
    """Checks models against the limits of a budget.

    models: one or several, each whatever `graphflops.analyze` accepts; none means those that the budget names.
    budget: path of a TOML file, or the keys of one `[[budget]]`: `{"matrix_flops": "2 GFLOP"}`.
    baseline: what relative limits compare with: a baseline, a saved report, or a git revision; by default the baseline
        that the budget names.
    assume: take sizes without an example at assumed values; False leaves them open.
    processes: how many; None takes one for each processor where that is faster.

    Raises FileError if the budget or the baseline cannot be read. A model that cannot be analyzed is a finding.
    """
    if isinstance(budget, BudgetFile):
        chosen = budget
    else:
        is_path = isinstance(budget, (str, os.PathLike))
        chosen = limits.read(os.fspath(budget)) if is_path else limits.given(budget)  # type: ignore[arg-type]
    several = isinstance(models, (list, tuple))
    listed: list[Model] = [*models] if several else [models]  # type: ignore[list-item, misc]
    listed = listed or [*chosen.files()]
    return checked(chosen, listed, before_of(chosen, listed, baseline), assume=assume, processes=processes)


def before_of(budget: BudgetFile, models: Sequence[Model], given: str | None) -> Baseline | str | None:
    """What relative limits compare with: a baseline, or a revision to measure. given: either, or a saved report."""
    if given is not None and not os.path.isfile(given):
        return given or None
    if given is not None and not baseline.is_baseline(given):
        report = saved_report(given)
        if len(models) != 1 or report is None:
            raise OptionError(f"{shown(given)} is the report of one model: name one MODEL")
        before = baseline.measured(Measures(report), budget.budgets)
        _, name = _names(budget, models[0])
        return {name: {str(entry.sizes): before for entry in budget.budgets if entry.applies(name)}}
    if given is None and not budget.relative:
        return None
    path = given or budget.baseline_path
    if path is None:
        what = 'relative limits need `baseline = "FILE"` in it, or --baseline FILE or REVISION'
        raise FileError(f"{shown(budget.path)}: {what}")
    return baseline.read(path)


def _names(budget: BudgetFile, model: Model) -> tuple[str, str]:
    """How findings and how the baseline call a model."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model), budget.name_of(os.fspath(model))
    return (type(model).__name__,) * 2


def checked(
    budget: BudgetFile, models: Sequence[Model], then: Baseline | str | None = None, *, update: bool = False,
    assume: bool = True, processes: int | None = None, rule_files: tuple[str, ...] = (),
) -> Checked:  # fmt: skip
    """Every model against the limits that are for it.

    then: what relative limits compare with: a baseline, or a revision, measured here; FileError if there is no such
        revision. Models that are newer than the revision have no relative limits.
    update: check absolute limits only, since a new baseline is being measured. assume: see `check`.
    """
    names = [_names(budget, model)[0] for model in models]
    before = then if isinstance(then, dict) else {}
    past = _past(then, names) if isinstance(then, str) else {}
    every = [job for model in models for job in jobs_of(budget, model, before)]
    jobs = [replace(job, past=past.get(job.label), update=update, assume=assume) for job in every]
    done = [*zip(jobs, _run(jobs, processes, rule_files), strict=True)]
    measured: Baseline = {}
    for job, outcome in done:
        if outcome.measured is not None:
            measured.setdefault(job.name, {})[str(job.sizes)] = outcome.measured
    outcomes, each = grouped((job.label, outcome) for job, outcome in done), list[ModelFindings]()
    for name in dict.fromkeys(names):
        own = outcomes.get(name, [])
        found = [one for outcome in own for one in outcome.findings]
        if not own:
            found = [finding("GF311", f"no limit of {shown(budget.path)} is for this model")]
        limits = tuple(result for outcome in own for result in outcome.limits)
        values = own[0].values if own else {}
        each.append(ModelFindings(name, tuple(dict.fromkeys(found)), values, limits=limits))
    return Checked(tuple(each), measured)


def jobs_of(budget: BudgetFile, model: Model, before: Baseline) -> Iterator[Job]:
    """One job for each choice of sizes; none for a model that no limit is for."""
    label, name = _names(budget, model)
    by_sizes = grouped((entry.sizes, entry) for entry in budget.budgets if entry.applies(name))
    for sizes, entries in by_sizes.items():
        yield Job(model, label, name, sizes, tuple(entries), before.get(name, {}).get(str(sizes)))


def _run(jobs: Sequence[Job], processes: int | None, rule_files: tuple[str, ...]) -> Iterable[Outcome]:
    if processes is None:
        paths = filter(os.path.isfile, {job.label for job in jobs})
        processes = 1 if sum(map(os.path.getsize, paths)) < _WORTH_PROCESSES else processors()
    # A program in memory stays in its process.
    files = all(isinstance(job.model, (str, os.PathLike)) for job in jobs)
    processes = min(processes, len(jobs)) if files else 1
    if processes <= 1:
        import_rules(rule_files)
        return [_outcome(job) for job in jobs]
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(processes, initializer=_start, initargs=(rule_files, left())) as pool:
        return list(pool.map(_outcome, jobs))


def _start(rule_files: tuple[str, ...], limits: Limits | None) -> None:
    if limits is not None:
        limit_process(limits)
    import_rules(rule_files)


def _outcome(job: Job) -> Outcome:
    next_analysis()
    try:
        measures = measures_at(job.model, job.sizes, assume=job.assume)
        measured = baseline.measured(measures, job.budgets)
        budgets, before = job.budgets, job.before
        findings = assumptions(measures) if job.update else []
        if job.past is not None:
            try:
                if job.past.same or job.past.path is None:
                    before = measured if job.past.same else None
                else:
                    then = measures_before(job.past.commit, job.past.path, job.sizes, assume=job.assume)
                    before = baseline.measured(then, job.budgets)
            except (GraphflopsError, RecursionError) as error:
                findings += [finding("GF306", f"it cannot be measured as it was: {shown(str(error), 500)}")]
        if job.update or (job.past is not None and before is None):
            budgets = tuple(budget.absolute() for budget in budgets)
        results: list[LimitResult] = []
        for budget in budgets:
            broken, every = compared(measures, budget, before)
            findings += broken
            results += every
        return Outcome(tuple(findings), measured, measures.report.values, tuple(results))
    except (GraphflopsError, OSError, RecursionError, MemoryError) as error:
        return Outcome((finding("GF310", shown(str(error) or "it does not fit in memory", 500)),))
    finally:
        gc.collect()  # off while a command runs, and the next model may be large


def _past(revision: str, models: Sequence[str]) -> dict[str, Past]:
    """Each model as it was at a revision; one that git does not know is new."""
    commit, known = resolved(revision), tracked()
    paths = {model: os.path.relpath(model).replace(os.sep, "/") for model in models}
    old = {new: before for before, new in changed(commit, None, [*paths.values()]) if new is not None}
    found = {}
    for model, path in paths.items():
        is_outside = path.startswith("../")  # of this folder: neither list has it
        before = old.get(path, path if is_outside or path in known else None)
        found[model] = Past(commit, before, same=path in known and path not in old and not is_outside)
    return found


def measures_at(model: Model, sizes: Sizes, *, assume: bool = True) -> Measures:
    """The figures of a model at the sizes that limits are for; raises what `analyze` and `serve` raise."""
    given: Any = {"dims": dict(sizes.dims), "inputs": dict(sizes.inputs), "training": sizes.training}
    given |= {"names": dict(sizes.names), "device": sizes.device or None}
    given["execution"] = sizes.execution or None
    if not sizes.serving:
        return Measures(analyze(model, assume=assume, **given))
    from graphflops.serving.plan import serve

    of_serving: dict[str, Any] = dict(sizes.serving)
    for name in ("batch", "context"):
        of_serving[name] = [of_serving[name]]
    del given["training"]
    plan = serve(model, **given, **of_serving)
    return Measures(plan.report, plan.cells[0])


def measures_before(commit: str, path: str, sizes: Sizes = EXPORTED, *, assume: bool = True) -> Measures:
    """The figures of a model at a commit; FileError if it is not there, or no model."""
    with file_at(commit, path) as file:
        try:
            return measures_at(file, sizes, assume=assume)
        except (GraphflopsError, RecursionError) as error:
            raise FileError(str(error).replace(file, f"{shown(path)} at {commit[:12]}")) from error


def processors() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1
