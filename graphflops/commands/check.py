"""`graphflops check`: checks models against their budget."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.files import CONFIGURATION, locked, nearest
from graphflops.commands import files, options
from graphflops.errors import FileError, shown

if TYPE_CHECKING:
    from graphflops.budget.limits import BudgetFile
    from graphflops.report.findings import Findings


@click.command(cls=options.LimitedCommand)
@click.argument("models", type=click.Path(), nargs=-1, metavar="[MODEL]...")
@options.valued(
    "--budget",
    "FILE",
    "The limits. Default: graphflops.toml in this folder, or in the nearest one above.",
    "budget_file",
    type=click.Path(),
)
@options.valued(
    "--baseline",
    "FILE|REVISION",
    "What relative limits compare with: a baseline, a saved report, or a revision of git. Default: as the budget says.",
)
@options.flag("--update", "Measure, and write the baseline; only absolute limits are checked.")
@options.flag("--init", "Write a first budget for each MODEL: what it costs now and 10 % more.")
@options.whole("--jobs", "Processes. Default: one for each processor where that pays.", keyword="processes")
@options.assume
@options.output_of("Findings")
@options.rule_files
@click.pass_context
def check(
    ctx: click.Context, /, models: tuple[str, ...], budget_file: str | None, baseline: str | None,
    update: bool, init: bool, output: files.Output, **given: Any,
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
        table = models[0]
        from graphflops.scan.views import checked

        findings, rows = checked(table, budget)
        click.echo(f"{shown(table)}: {len(findings.models):,} of {rows:,} rows break the policy", err=True)
        if findings.models or output.form or output.path:
            _write(findings, output)
        if findings.models:
            ctx.exit(3)
        return
    _check(ctx, budget, models, baseline, output, update=update, **given)


def _check(
    ctx: click.Context, budget: BudgetFile, models: tuple[str, ...], baseline: str | None,
    output: files.Output, *, update: bool, **given: Any,
) -> None:  # fmt: skip
    from graphflops.budget import baseline as baselines
    from graphflops.budget.run import before_of, checked

    paths = list(dict.fromkeys(models)) or budget.files()
    if not paths:
        raise click.UsageError(f"name a MODEL, or list `models` in {shown(budget.path)}")
    if update and budget.baseline_path is None:
        raise FileError(f'{shown(budget.path)}: --update needs `baseline = "FILE"` in it')
    before, revision = (None, "") if update else before_of(budget, paths, baseline)
    result = checked(budget, paths, before, revision=revision, update=update, **given)
    _write(result.findings, output)
    if update and not result.failed and (path := budget.baseline_path) is not None:
        with locked(path):  # two updates at a time would each write what it read before the other wrote
            old = baselines.read(path) if models and os.path.exists(path) else {}
            files.write(baselines.to_json({**old, **result.measured}), path)
    if result.failed or result.broken:
        ctx.exit(1 if result.failed else 3)


def _write(findings: Findings, output: files.Output) -> None:
    from graphflops.versions.git import located

    output.of("Findings").write(findings, locate=located)


def _write_starter(path: str, models: tuple[str, ...]) -> None:
    """Writes a budget for the models; an existing file is never replaced."""
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
