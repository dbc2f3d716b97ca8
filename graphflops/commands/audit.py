"""`graphflops audit`: what is wrong, unsafe or wasteful in an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from graphflops.commands import files, options
from graphflops.commands.audit_fix import fix, fix_options, is_fix
from graphflops.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from graphflops.report.findings import Findings, Severity


def _codes(name: str, text: str) -> options.Option[Any]:
    """An option for codes of checks; each time that it is given for one or more, with commas."""

    def split(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:
        return [code.strip() for value in values for code in value.split(",")]

    return options.valued(name, "CODES", text, multiple=True, callback=split)


@click.command(cls=options.LimitedCommand)
@click.argument("models", type=click.Path(), nargs=-1, metavar="MODEL...")
@_codes("--select", "Run these checks only: GF202,GF24 (all that begin so).")
@_codes("--ignore", "Leave these checks out.")
@options.choice(
    "--fail-on",
    ("error", "warning", "note", "never"),
    "Exit with 3 if a finding is at least this severe.",
    default="error",
    show_default=True,
)
@options.sizes
@options.assume
@options.whole("--top", "Findings of one code in a table. Default: 5.")
@options.flag("--statistics", "One line for each code: how often, in how many models, what it costs.")
@options.execution
@options.device
@options.output_of("Findings")
@fix_options
@options.valued("--explain", "CODE", "Say what a check looks for; `all` lists them.")
@click.pass_context
def audit(
    ctx: click.Context, /, models: tuple[str, ...], fail_on: Literal["error", "warning", "note", "never"],
    top: int | None, statistics: bool, output: files.Output, explain: str | None, **given: Any,
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
    codes, sizes = _what(given)
    if is_fix(given):
        if output.form or top or statistics:
            raise click.UsageError("--format, --top and --statistics are of findings: audit the fixed file")
        _fixed(ctx, models, codes, sizes, output.path, given, fail_on)
        return
    output = output.of("Findings", top=top, statistics=statistics or None)
    found, errors = _audited(models, codes, **sizes)
    if found.models:
        output.write(found, top=top, statistics=statistics or None, locate=_located)
    _exit(ctx, found, errors, fail_on)


def _located(names: Iterable[str]) -> dict[str, str]:
    """The paths of source files in their repository."""
    from graphflops.versions.git import located

    return located(names)


def _what(given: dict[str, Any]) -> tuple[Sequence[str], dict[str, Any]]:
    """The codes and the sizes of an audit, taken out of the options of the command."""
    from graphflops.time_audit import chosen

    sizes = {name: given.pop(name) for name in ("dims", "inputs", "names", "assume")}
    device, execution = given.pop("device"), given.pop("execution")
    sizes["on"] = None if device is None else (device, execution)
    return chosen(given.pop("select"), given.pop("ignore")), sizes


def _fixed(
    ctx: click.Context, models: Sequence[str], codes: Sequence[str], sizes: dict[str, Any],
    output: str | None, fixing: dict[str, bool], fail_on: Literal["error", "warning", "note", "never"],
) -> None:  # fmt: skip
    """Fixes models; exits as without --fix by what remains, and with 3 where --exit-code is to tell of a fix."""
    from graphflops.onnx_audit.audit import audit_findings

    done, errors = fix(models, codes, sizes, output, fixing)
    _exit(ctx, audit_findings([each.after.of_model() for each in done]), errors, fail_on)
    if fixing["exit_code"] and any(each.fixed for each in done):
        ctx.exit(3)


def _exit(
    ctx: click.Context,
    found: Findings,
    errors: Sequence[str],
    fail_on: Literal["error", "warning", "note", "never"],
) -> None:
    """Exits with 1 where a model cannot be audited, with 3 where a finding is severe enough."""
    for error in errors:
        click.echo(f"graphflops: error: {error}", err=True)
    if errors:
        ctx.exit(1)
    if fail_on != "never" and _has(found, fail_on):
        ctx.exit(3)


def _has(found: Findings, least: Severity) -> bool:
    """True if a finding is at least as severe as `least`."""
    from graphflops.report.findings import SEVERITIES

    severe = SEVERITIES[: SEVERITIES.index(least) + 1]
    return any(finding.severity in severe for entry in found.models for finding in entry.findings)


def _audited(models: Sequence[str], codes: Sequence[str], **sizes: Any) -> tuple[Findings, list[str]]:
    """The findings of the files that can be read, without those that graphflops.toml ignores; an error for each other."""
    from graphflops.base.files import nearest
    from graphflops.base.limits import next_analysis
    from graphflops.budget.ignores import read_ignores
    from graphflops.onnx_audit.audit import audit_findings
    from graphflops.time_audit import audited, rules

    ignores = read_ignores(nearest())
    found, errors = [], []
    for model in models:
        next_analysis()
        try:
            with files.Progress() as progress:
                result = audited(model, codes=codes, progress=progress, **sizes)
        except FileError as error:
            errors.append(str(error))
            continue
        found.append(replace(result, findings=tuple(ignores.kept(result.findings, model))))
    findings = audit_findings(found)
    return replace(findings, rules={**findings.rules, **rules()}), errors


def _explanation(code: str) -> str:
    """What a check looks for, or a line for each check."""
    from graphflops.onnx_audit.catalogue import checks
    from graphflops.report.diagnostics import DIAGNOSTICS
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
