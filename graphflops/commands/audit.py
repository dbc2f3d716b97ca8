"""Findings: `graphflops audit` says what is wrong in a model and mends it, `check` whether it keeps to its budget."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
from click.exceptions import Exit

from graphflops.base.files import CONFIGURATION, copied, locked, nearest
from graphflops.commands import files, options
from graphflops.errors import FileError, GraphflopsError, shown

if TYPE_CHECKING:
    from graphflops.budget.limits import BudgetFile
    from graphflops.onnx_fix.fix import Fixed
    from graphflops.report.findings import Findings


def _codes(name: str, text: str) -> options.Option[Any]:
    """An option for codes of checks; each time that it is given for one or more, with commas."""

    def split(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:
        return [code.strip() for value in values for code in value.split(",")]

    return options.valued(name, "CODES", text, multiple=True, callback=split)


_FailOn = Literal["error", "warning", "note", "never"]
_EXTRA = ("onnx_ir", "onnxruntime", "onnxscript")


@click.command(cls=options.LimitedCommand)
@click.argument("models", type=click.Path(), nargs=-1, metavar="MODEL...")
@_codes("--select", "Run only these checks: GF202,GF24 (all codes that begin so).")
@_codes("--ignore", "Leave these checks out.")
@options.choice(
    "--fail-on", get_args(_FailOn), "Exit with 3 if a finding is at least this severe.", default="error",
    show_default=True,
)  # fmt: skip
@options.sizes
@options.assume
@options.whole("--top", "Findings of one code in a table. Default: 5.")
@options.flag("--statistics", "One line for each code: how often, in how many models, what it costs.")
@options.execution
@options.device
@options.output_of("Findings")
@options.flag("--fix", "Fix what has a safe fix; --output names the new file, else MODEL.fixed.onnx.")
@options.flag("--unsafe-fixes", "With --fix: also fixes after which results differ, within a tolerance.")
@options.flag("--in-place", "With --fix: replace MODEL by the fixed file.")
@options.flag("--unproven", "With --fix: also write what onnxruntime cannot run here, and so cannot prove.")
@options.flag("--dry-run", "Fix and prove, but write nothing.")
@options.flag("--diff", "Write nothing, and print everything that would change.")
@options.flag("--exit-code", "Exit with 3 if anything was fixed, or would be.")
@options.valued("--explain", "CODE", "Say what a check looks for; `all` lists them.")
def audit(
    models: tuple[str, ...], fail_on: _FailOn, top: int | None, statistics: bool, output: files.Output,
    explain: str | None, **given: Any,
) -> None:  # fmt: skip
    """Findings about models that a reviewer can act on: correctness, safety and cost of an .onnx, time of any on a device.

    Nothing in a file is run, no weight is loaded, data kept outside a file are never opened. Each finding has a stable
    code, a place and a fix; findings about cost say how many FLOPs and bytes.

    \b
    graphflops audit model.onnx
    graphflops audit model.onnx --fix --output fixed.onnx
    graphflops audit *.onnx --ignore GF228 --fail-on warning
    graphflops audit model.onnx --format sarif --output audit.sarif
    graphflops audit model.pt2 --device h200
    graphflops audit --explain GF240
    """
    if explain is not None:
        files.write(_explanation(explain), output.path)
        return
    if not models:
        raise click.UsageError("name a MODEL, or say --explain CODE")
    from graphflops.versions.git import located

    codes, sizes = _what(given)
    is_fix = given["fix"] or given["dry_run"] or given["diff"]
    if odd := [name for name, is_given in given.items() if is_given and not is_fix]:
        raise click.UsageError(f"--{odd[0].replace('_', '-')} goes with --fix")
    is_fixed = False
    if is_fix:
        if output.form or top or statistics:
            raise click.UsageError("--format, --top and --statistics are of findings: audit the fixed file")
        found, errors, is_fixed = _fix(models, codes, sizes, output.path, given)
    else:
        output = output.of("Findings", top=top, statistics=statistics or None)
        found, errors = _audited(models, codes, **sizes)
        if found.models:
            output.write(found, top=top, statistics=statistics or None, locate=located)
    _exit(found, errors, fail_on, is_told=is_fixed and given["exit_code"])


def _what(given: dict[str, Any]) -> tuple[Sequence[str], dict[str, Any]]:
    from graphflops.time_audit import chosen

    sizes = {name: given.pop(name) for name in ("dims", "inputs", "names", "assume")}
    device, execution = given.pop("device"), given.pop("execution")
    sizes["on"] = None if device is None else (device, execution)
    return chosen(given.pop("select"), given.pop("ignore")), sizes


def _exit(found: Findings, errors: Sequence[str], fail_on: _FailOn, *, is_told: bool) -> None:
    """Exits with 1 where a model cannot be audited, with 3 where a finding is severe enough, or a fix is to be told."""
    from graphflops.report.findings import SEVERITIES

    files.end(errors, 1)
    severe = [] if fail_on == "never" else SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    if is_told or any(finding.severity in severe for entry in found.models for finding in entry.findings):
        raise Exit(3)


def _audited(models: Sequence[str], codes: Sequence[str], **sizes: Any) -> tuple[Findings, list[str]]:
    """The findings of the files that can be read, without those that graphflops.toml ignores; an error for each other."""
    from graphflops.base.limits import next_analysis
    from graphflops.budget.limits import read_ignores
    from graphflops.onnx_audit.audit import audit_findings
    from graphflops.time_audit import audited, rules

    kept = read_ignores(nearest())
    found, errors = [], []
    for model in models:
        next_analysis()
        try:
            with files.Progress() as progress:
                result = audited(model, codes=codes, progress=progress, **sizes)
        except FileError as error:
            errors.append(str(error))
            continue
        found.append(replace(result, findings=tuple(kept(result.findings, model))))
    findings = audit_findings(found)
    return replace(findings, rules={**findings.rules, **rules()}), errors


def _explanation(code: str) -> str:
    from graphflops.onnx_audit.audit import checks
    from graphflops.report.contradictions import DIAGNOSTICS
    from graphflops.time_audit import SLOW_CHECKS

    known: dict[str, Any] = {**checks(), **{check.code: check for check in SLOW_CHECKS}}
    if code == "all":
        return "".join(f"{c.code}  {c.severity:7}  {c.name}: {c.summary}\n" for c in known.values())
    check = known.get(code.upper())
    if check is None and code.upper() in DIAGNOSTICS:
        what = f"{code} is a note of `graphflops analyze`, no check"
        raise click.UsageError(f"{what}: docs/report.md says what it means")
    if check is None:
        advice = "--explain all lists them; docs/budgets.md has those of graphflops check"
        raise click.UsageError(f"no check has the code {code!r}: {advice}")
    head = f"{check.code} {check.name} ({check.kind}, {check.severity})"
    return f"{head}\n\n{check.explanation}\n\nFix: {check.fix}.\n"


def _fix(
    models: Sequence[str], codes: Collection[str], sizes: Any, output: str | None, given: dict[str, bool]
) -> tuple[Findings, list[str], bool]:
    """Fix models and say what was fixed: what remains, the errors of those that cannot be fixed, and whether any was."""
    from importlib.util import find_spec

    from graphflops.onnx_audit.audit import audit_findings

    if output is not None and (len(models) > 1 or given["in_place"]):
        raise click.UsageError("--output names the one file that is written: give one MODEL, no --in-place")
    if not all(map(find_spec, _EXTRA)):
        raise click.UsageError(f"fixes need more packages: {sys.executable} -m pip install 'graphflops[fix]'")
    done: list[Fixed] = []
    errors: list[str] = []
    for model in models:
        try:
            done.append(_one(model, codes, sizes, output, given))
        except GraphflopsError as error:
            said = str(error)
            errors.append(said if said.startswith(shown(model)) else f"{shown(model)}: {said}")
    return audit_findings([each.after.of_model() for each in done]), errors, any(each.fixed for each in done)


def _one(model: str, codes: Collection[str], sizes: Any, output: str | None, given: dict[str, bool]) -> Fixed:
    from graphflops.base.limits import next_analysis
    from graphflops.budget.limits import read_ignores
    from graphflops.onnx_fix.fix import fixed
    from graphflops.render.findings import fixes

    next_analysis()
    if model.endswith(".pt2"):
        raise FileError("is no ONNX file: fix its source, whose lines `graphflops audit --device` names")
    kept = read_ignores(nearest())
    target = "" if given["dry_run"] or given["diff"] else _target(model, output, given["in_place"])
    with tempfile.TemporaryDirectory(prefix="graphflops") as folder:
        how = {"unsafe": given["unsafe_fixes"], "unproven": given["unproven"], **sizes}
        found = fixed(model, folder, codes=codes, kept=lambda found: kept(found, model), **how)
        if found.fixed and target:
            copied(found.file, target)
    written = target if found.fixed else ""
    files.write(fixes(found, written, verbose=given["diff"], **files.screen(None)), None)
    return found


def _target(model: str, output: str | None, in_place: bool) -> str:
    """Where the fixed file goes; FileError where that would harm a file, or part the model from its data."""
    from graphflops.exporters import onnx
    from graphflops.onnx_audit.registry import File
    from graphflops.onnx_audit.safety import external

    target = model if in_place else output or f"{os.path.splitext(model)[0]}.fixed.onnx"
    if not in_place and os.path.exists(target) and (output is None or os.path.samefile(target, model)):
        advice = "name another with --output" if output is None else "--in-place replaces the model"
        raise FileError(f"{shown(target)}: exists: {advice}")
    beside = os.path.realpath(os.path.dirname(target)) == os.path.realpath(os.path.dirname(model))
    if not beside and any(external(File(Path(model), onnx.opened(model)[0]))):
        raise FileError(f"{shown(target)}: must lie beside the model, whose weights are in other files there")
    return target


@click.command(cls=options.LimitedCommand)
@click.argument("models", type=click.Path(), nargs=-1, metavar="[MODEL]...")
@options.valued(
    "--budget", "FILE", "The limits. Default: graphflops.toml in this folder, or in the nearest one above.",
    "budget_file", type=click.Path(),
)  # fmt: skip
@options.valued(
    "--baseline", "FILE|REVISION",
    "What relative limits compare with: a baseline, a saved report, or a revision of git. Default: as the budget says.",
)  # fmt: skip
@options.flag("--update", "Measure, and write the baseline; only absolute limits are checked.")
@options.flag("--init", "Write a first budget for each MODEL: what it costs now and 10 % more.")
@options.whole("--jobs", "Processes. Default: one for each processor if that pays.", keyword="processes")
@options.assume
@options.output_of("Findings")
@options.rule_files
def check(
    models: tuple[str, ...], budget_file: str | None, baseline: str | None, update: bool, init: bool,
    output: files.Output, **given: Any,
) -> None:  # fmt: skip
    """Check models against the limits in a budget: exit 3, and which limits are broken, where, and by how much.

    Without MODEL, all models that the budget names under `models`. A limit that cannot be checked, because a
    cost is unknown or a size has no value, counts as broken. docs/budgets.md says how a budget is written.
    --update warns of sizes that are assumed.

    \b
    graphflops check --init decoder.onnx encoder.pt2
    graphflops check
    graphflops check decoder.onnx --budget limits/edge.toml
    graphflops check --baseline origin/main
    graphflops check --update
    graphflops check results.parquet --budget policy.toml       a table of graphflops scan
    """
    from graphflops.budget import limits

    if init:
        _write_starter(budget_file or CONFIGURATION, models)
        return
    path = budget_file or nearest()
    if path is None:
        raise FileError(f"no {CONFIGURATION} here or above: write one with graphflops check --init MODEL")
    budget = limits.read(path)
    if len(models) == 1 and models[0].rstrip("/").endswith(".parquet"):
        from graphflops.scan.views import checked

        findings, rows = checked(models[0], budget)
        click.echo(
            f"{shown(models[0])}: {len(findings.models):,} of {rows:,} rows break the policy", err=True
        )
        if findings.models or output.form or output.path:
            _write(findings, output)
        if findings.models:
            raise Exit(3)
        return
    _check(budget, models, baseline, output, update=update, **given)


def _check(
    budget: BudgetFile, models: tuple[str, ...], baseline: str | None, output: files.Output, *, update: bool,
    **given: Any,
) -> None:  # fmt: skip
    from graphflops.budget import baseline as baselines
    from graphflops.budget.run import before_of, checked

    paths = list(dict.fromkeys(models)) or budget.files()
    if not paths:
        raise click.UsageError(f"name a MODEL, or list `models` at the top of {shown(budget.path)}")
    if update and budget.baseline_path is None:
        raise FileError(f'{shown(budget.path)}: --update needs `baseline = "FILE"` in it')
    then = None if update else before_of(budget, paths, baseline)
    result = checked(budget, paths, then, update=update, **given)
    _write(result.findings, output)
    if update and not result.failed and (path := budget.baseline_path) is not None:
        with locked(path):  # two updates at a time would each write what it read before the other wrote
            old = baselines.read(path) if models and os.path.exists(path) else {}
            files.write(baselines.to_json({**old, **result.measured}), path)
    if result.failed or result.broken:
        raise Exit(1 if result.failed else 3)


def _write(findings: Findings, output: files.Output) -> None:
    from graphflops.versions.git import located

    output.of("Findings").write(findings, locate=located)


def _write_starter(path: str, models: tuple[str, ...]) -> None:
    from graphflops.budget.baseline import starter
    from graphflops.budget.limits import BudgetFile

    if not models:
        raise click.UsageError("--init needs at least one MODEL")
    if os.path.exists(path):
        raise FileError(f"{shown(path)}: exists: --init writes new files only; name another by --budget")
    folder = BudgetFile(path, os.path.dirname(path) or ".", ())
    reports = {folder.name_of(model): files.report_of(model) for model in dict.fromkeys(models)}
    files.write(starter(reports), path)
    click.echo(f"wrote {shown(path)}: graphflops check compares with it", err=True)
