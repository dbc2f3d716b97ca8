"""`graphflops analyze`: what a model costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphflops.commands import files, options
from graphflops.render import FORMATS, REPORT_FORMATS

if TYPE_CHECKING:
    from graphflops.render import ReportFormat
    from graphflops.report import Cut

_WHOLE = {"json": "JSON", "html": "HTML", "speedscope": "speedscope"}


@click.command(cls=options.Command)
@click.argument("model", type=click.Path())
@options.dims
@options.inputs
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
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Lines of a table, or under one module.")
@options.output_in(REPORT_FORMATS)
@click.option("--training", is_flag=True, help="Price the backward pass and an AdamW step too.")
@click.option("--strict", is_flag=True, help="Exit with 3 if the cost of any node is unknown.")
@options.model_name
@options.rule_files
@click.pass_context
def analyze(
    ctx: click.Context,
    model: str,
    dims: dict[str, int],
    inputs: dict[str, tuple[int, ...]],
    masks: dict[str, str],
    sweeps: dict[str, tuple[int, ...]],
    by: Cut | None,
    depth: int | None,
    top: int | None,
    form: ReportFormat | None,
    output: str | None,
    training: bool,
    strict: bool,
    model_name: str | None,
    rule_files: tuple[str, ...],
) -> None:
    """FLOPs, bytes, memory and parameters of MODEL: a .pt2 of torch.export.save, or a saved JSON report.

    Nothing in the file is run and no weight is loaded. A size that the file leaves open is taken at the value
    it was exported with, unless --dim or --input gives another.

    \b
    graphflops analyze lm.pt2 --input ids=1,4096 --depth 3
    graphflops analyze lm.pt2 --by op --top 10
    graphflops analyze lm.pt2 --strict --output report.json
    graphflops analyze lm.pt2 --sweep ids[1]=128,512,2048
    graphflops analyze lm.pt2 --output report.html
    graphflops analyze lm.pt2 --sweep ids[1]=128,512,2048 --output report.html
    """
    form = files.form_of(form, output, REPORT_FORMATS)
    if form in _WHOLE and (by or depth is not None or top):
        raise click.UsageError(
            f"--by, --depth and --top are not for {_WHOLE[form]}, which is always the whole report"
        )
    if form == "dot" and (by or top):
        raise click.UsageError("--by and --top are not for dot, which draws modules; --depth is")
    if depth is not None and (by in ("op", "source", "attention") or (form == "csv" and by is None)):
        raise click.UsageError("--depth is for the module tree: leave it out or say --by module")
    report = files.report_of(
        model,
        dims=dims,
        inputs=inputs,
        masks=masks,
        training=training,
        model_name=model_name,
        rule_files=rule_files,
    )
    if sweeps:
        if (form != "html" and form not in FORMATS) or by or depth is not None or top:
            raise click.UsageError(
                "--sweep is a table of its own, or a part of an HTML page: --by, --depth, --top, speedscope and dot"
                " are not for it"
            )
        from graphflops.sweep import beyond, sweep

        points, notes = sweep(report, sweeps), beyond(report, sweeps)
        if form == "html":
            from graphflops.render.html import html

            files.write(html(report, points, notes), output)
        else:
            from graphflops.render.sweep import sweep as drawn

            files.write(drawn(points, form, **files.screen(output)), output)
        for note in notes:
            click.echo(f"graphflops: {note}", err=True)
    else:
        from graphflops.render import render

        text = render(report, form, by=by, depth=depth, top=top, **files.screen(output))
        files.write(text, output)
    if strict and report.coverage.unknown:
        from graphflops.render.summary import unknown

        click.echo(f"graphflops: strict: {unknown(report)}", err=True)
        ctx.exit(3)
