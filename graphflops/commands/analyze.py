"""`graphflops analyze`: what a model costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from graphflops.commands import capture_options, files, options
from graphflops.commands.training_options import training
from graphflops.errors import shown
from graphflops.render import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphflops.graph import Graph
    from graphflops.report import Cut, Report


@click.command(cls=options.LimitedCommand)
@click.argument("models", type=click.Path(), nargs=-1, required=True, metavar="MODEL...")
@options.sizes
@options.assume
@options.masks
@options.sweeps
@click.option(
    "--by",
    type=click.Choice(("op", "module", "source", "attention")),
    help="One table only: by operator, module, source line, or attention.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Levels of the module tree. Default: about a screen.",
)
@click.option(
    "--verbose", "-v", is_flag=True, help="Every layer, with the shapes of its input, output and weight."
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Lines of a table, or under one module.")
@options.output_of("Report")
@training
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 if the cost of any node is unknown, or the file contradicts itself.",
)
@options.per
@options.price
@options.execution
@options.device
@options.network
@click.option("--mesh", metavar="AXIS=N,...", help="Sizes of open axes of a recorded step: dp=64,tp=4.")
@options.verify
@options.of_the_file
@click.pass_context
def analyze(
    ctx: click.Context,
    /,
    models: tuple[str, ...],
    sweeps: dict[str, tuple[int, ...]],
    by: Cut | None,
    depth: int | None,
    top: int | None,
    verbose: bool,
    form: str | None,
    output: str | None,
    strict: bool,
    per: str | None,
    price_per_hour: float | None,
    **given: Any,
) -> None:
    """FLOPs, bytes, memory and parameters of MODEL: a .pt2 of torch.export.save, an .onnx, or a saved JSON report.

    Nothing in the file is run and no weight is loaded. A size that the file leaves open is taken at the value
    it was exported with, else at an assumed one, unless --dim or --input gives another. hf:CONFIG.json, timm:NAME or
    torchvision:NAME in place of a file is a capture, which runs code of that library: graphflops capture --help.

    Several models are one line each; one that cannot be analyzed says why, and the exit code is 1 at the end.
    Exits with 1, after the report, where a call provably cannot run.

    \b
    graphflops analyze lm.pt2 --input ids=1,4096 --depth 3
    graphflops analyze lm.pt2 --strict --output report.json
    graphflops analyze lm.pt2 --output report.html
    graphflops analyze lm.pt2 --sweep ids[1]=128,512,2048 --output report.html
    graphflops analyze *.onnx lm.pt2 --output costs.csv
    graphflops analyze timm:resnet50@batch=8 --device h200
    """
    cut = {"by": by, "depth": depth, "top": top, "verbose": verbose or None}
    if per is not None:
        _per_item(ctx, models, per, form, output, given)
    elif len(models) > 1:
        _overview(ctx, models, form, output, strict, given)
    else:
        _one(ctx, models[0], cut, sweeps, form, output, strict, price_per_hour, given)


def _one(
    ctx: click.Context,
    model: str,
    cut: dict[str, Any],
    sweeps: dict[str, tuple[int, ...]],
    form: str | None,
    output: str | None,
    strict: bool,
    price_per_hour: float | None,
    given: dict[str, Any],
) -> None:
    form = formats.chosen("Report", form, output)
    formats.refuse("Sweep" if sweeps else "Report", form, cut)
    program = capture_options.model(model, training=bool(given["training"]), mesh=given.pop("mesh"))
    report = replace(files.report_of(program, **given), price_per_hour=price_per_hour)
    if price_per_hour is not None and report.totals.time is None:
        raise click.UsageError("--price-per-hour takes a predicted time: name a device with --device")
    content: object = report
    if sweeps:
        from graphflops.derived.sweep import Sweep
        from graphflops.fitting.cells import with_cells

        report_of = _at_sizes(program, given) if report.device else None
        with files.Progress("predicting times") as progress:
            content = sweep = with_cells(Sweep.of(report, sweeps, report_of, progress))
    files.write(formats.render(content, form, **cut, **files.screen(output)), output)
    for note in sweep.notes if sweeps else ():
        click.echo(f"graphflops: {note}", err=True)
    _exit(ctx, report, strict)


def _at_sizes(model: str | Graph, given: dict[str, Any]) -> Callable[[Mapping[str, int]], Report] | None:
    """The analysis of a model at other sizes by symbol; None for a saved report, which has no times at them."""
    from graphflops.loading import analyze as analyzed
    from graphflops.loading import is_report, opened

    if is_report(model):
        return None
    program = opened(model, model_name=given["model_name"])
    options = {name: value for name, value in given.items() if name not in files.OF_THE_FILE}
    return lambda dims: analyzed(program, **{**options, "dims": {**given["dims"], **dims}})


def _per_item(
    ctx: click.Context,
    models: tuple[str, ...],
    axis: str,
    form: str | None,
    output: str | None,
    given: dict[str, Any],
) -> None:
    """Writes the FLOPs of one model for each entry of an input axis."""
    if len(models) > 1:
        raise click.UsageError("--per takes one MODEL")
    from graphflops.render.per_item import listing

    form = formats.chosen("Listing", form, output)
    _refuse_others(ctx, "Listing", form, "strict")
    program = capture_options.model(models[0], training=bool(given["training"]), mesh=given.pop("mesh"))
    content = listing(files.report_of(program, **given).per(axis), exact=form in ("json", "csv"))
    files.write(formats.render(content, form, **files.screen(output)), output)


def _refuse_others(ctx: click.Context, kind: str, form: str, *more: str) -> None:
    """Raises OptionError for options of a whole report of one model, where something else is written."""
    others = {name: ctx.params[name] for name in ("by", "depth", "top", "verbose", "price_per_hour", *more)}
    formats.refuse(kind, form, {**others, "sweep": ctx.params["sweeps"] or None})


def _exit(ctx: click.Context, report: Report, strict: bool) -> None:
    """Exits with 1 where a call provably cannot run, with 3 where a cost is unknown and `strict` is given."""
    _refuse_impossible(ctx, report)
    if strict:
        _refuse_doubtful(ctx, report)


def _overview(
    ctx: click.Context,
    models: tuple[str, ...],
    form: str | None,
    output: str | None,
    strict: bool,
    given: dict[str, Any],
) -> None:
    form = formats.chosen("Overview", form, output)
    _refuse_others(ctx, "Overview", form)
    from graphflops.base.limits import next_analysis
    from graphflops.derived.overview import overview
    from graphflops.loading import import_rules
    from graphflops.report.contradictions import contradicted

    import_rules(given.pop("rule_files"))
    mesh = given.pop("mesh")
    doubtful: list[str] = []

    def report_of(model: str) -> Report:
        next_analysis()
        program = capture_options.model(model, training=bool(given["training"]), mesh=mesh)
        report = files.report_of(program, quiet=True, **given)
        doubtful.extend([f"{shown(model)}: {problem}"] if (problem := contradicted(report)) else ())
        return report

    found = overview(models, report_of)
    files.write(formats.render(found, form, **files.screen(output)), output)
    failed = sum(bool(line.error) for line in found.lines)
    if failed:
        click.echo(f"graphflops: error: {failed:,} of {len(models):,} models failed", err=True)
        ctx.exit(1)
    unknown = sum(line.cost.unknown for line in found.lines if line.cost is not None)
    problems = [*doubtful, *([f"the cost of {unknown:,} calls is unknown"] if unknown else [])]
    for problem in problems if strict else ():
        click.echo(f"graphflops: strict: {problem}", err=True)
    if strict and problems:
        ctx.exit(3)


def _refuse_impossible(ctx: click.Context, report: Report) -> None:
    """Names what provably cannot be loaded or run, and exits with 1 if there is anything."""
    from graphflops.report.contradictions import impossible

    problems = impossible(report)
    for problem in problems:
        click.echo(f"graphflops: error: {problem.message}", err=True)
    if problems:
        ctx.exit(1)


def _refuse_doubtful(ctx: click.Context, report: Report) -> None:
    """Says where the file contradicts itself and which operators have an unknown cost, and exits with 3 if there are any."""
    from graphflops.render.summary import unknown
    from graphflops.report.contradictions import contradicted

    problems = [contradicted(report), unknown(report) if report.coverage.unknown else ""]
    for problem in filter(None, problems):
        click.echo(f"graphflops: strict: {problem}", err=True)
    if any(problems):
        ctx.exit(3)
