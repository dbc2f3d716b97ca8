"""What a model costs: `graphflops analyze`; its structure: `graph`; and by which rules its operators are priced: `rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.record import replace
from graphflops.commands import files, model_options, options
from graphflops.errors import shown

if TYPE_CHECKING:
    from graphflops.report import Report


@click.command(cls=options.LimitedCommand)
@click.argument("models", type=click.Path(), nargs=-1, required=True, metavar="MODEL...")
@options.sizes
@options.assume
@options.masks
@options.sweeps
@options.cut(
    ("op", "module", "source", "attention"), by="One table only: by operator, module, source line, or attention.",
    depth="Levels of the module tree. Default: about a screen.",
    verbose="Every layer, with the shapes of its input, output and weight.",
    top="Lines of a table, or under one module.",
)  # fmt: skip
@options.output_of("Report")
@model_options.training
@options.flag("--strict", "Exit with 3 if the cost of any node is unknown, or the file contradicts itself.")
@options.per
@options.price
@options.execution
@options.device
@options.network
@options.torch
@options.valued("--mesh", "AXIS=N,...", "Sizes of open axes of a recorded step: dp=64,tp=4.")
@options.verify
@options.of_the_file
def analyze(
    models: tuple[str, ...], sweeps: dict[str, tuple[int, ...]], cut: dict[str, Any], output: files.Output,
    strict: bool, per: str | None, price_per_hour: float | None, **given: Any,
) -> None:  # fmt: skip
    """FLOPs, bytes, memory and parameters of MODEL: a .pt2 of torch.export.save, an .onnx, or a saved JSON report.

    Nothing in the file is run and no weight is loaded. A size that the file leaves open is taken at the value
    it was exported with, else at an assumed one, unless --dim or --input gives another. hf:CONFIG.json, timm:NAME or
    torchvision:NAME in place of a file is a capture, which runs code of that library: graphflops capture --help.

    Several models get one line each. If one cannot be analyzed, its line says why, and the exit code is 1.
    If a call provably cannot run, the exit code is 1 too, after the report.

    \b
    graphflops analyze lm.pt2 --input ids=1,4096 --depth 3
    graphflops analyze lm.pt2 --strict --output report.json
    graphflops analyze lm.pt2 --output report.html
    graphflops analyze lm.pt2 --sweep ids[1]=128,512,2048 --output report.html
    graphflops analyze *.onnx lm.pt2 --output costs.csv
    graphflops analyze timm:resnet50@batch=8 --device h200
    """
    # Options of a whole report of one model, which are refused where something else is written.
    others = {**cut, "price_per_hour": price_per_hour, "sweep": sweeps or None}
    if per is not None:
        _per_item(models, per, output.of("Listing", **others, strict=strict), given)
    elif len(models) > 1:
        _overview(models, output.of("Overview", **others), strict, given)
    else:
        report = _one(models[0], cut, sweeps, output, price_per_hour, given)
        from graphflops.render.summary import unknown
        from graphflops.report.contradictions import contradicted, impossible

        files.end([problem.message for problem in impossible(report)], 1)
        if strict:
            files.end([contradicted(report), unknown(report) if report.coverage.unknown else ""], 3, "strict")


def _one(
    model: str, cut: dict[str, Any], sweeps: dict[str, tuple[int, ...]], output: files.Output,
    price_per_hour: float | None, given: dict[str, Any],
) -> Report:  # fmt: skip
    output = output.of("Sweep" if sweeps else "Report", **cut)
    program = model_options.model(model, training=bool(given["training"]), mesh=given.pop("mesh"))
    report = replace(files.report_of(program, **given), price_per_hour=price_per_hour)
    if price_per_hour is not None and report.totals.time is None:
        raise click.UsageError("--price-per-hour takes a predicted time: name a device with --device")
    if not sweeps:
        output.write(report, **cut)
        return report
    from graphflops.derived.resize import Sweep
    from graphflops.fitting.cells import with_cells
    from graphflops.loading import analyze as analyzed, is_report, opened

    report_of = None  # the analysis at other sizes by symbol; a saved report has no times at them
    if report.device and not is_report(program):
        found = opened(program, model_name=given["model_name"])
        own = {name: value for name, value in given.items() if name not in files.OF_THE_FILE}

        def report_of(dims: Mapping[str, int]) -> Report:
            return analyzed(found, **{**own, "dims": {**given["dims"], **dims}})

    with files.Progress("predicting times") as progress:
        sweep = with_cells(Sweep.of(report, sweeps, report_of, progress))
    output.write(sweep)
    for note in sweep.notes:
        click.echo(f"graphflops: {note}", err=True)
    return report


def _per_item(models: tuple[str, ...], axis: str, output: files.Output, given: dict[str, Any]) -> None:
    if len(models) > 1:
        raise click.UsageError("--per takes one MODEL")
    from graphflops.render.derived import per_item

    program = model_options.model(models[0], training=bool(given["training"]), mesh=given.pop("mesh"))
    output.write(per_item(files.report_of(program, **given).per(axis), exact=output.is_exact))


def _overview(models: tuple[str, ...], output: files.Output, strict: bool, given: dict[str, Any]) -> None:
    from graphflops.base.limits import next_analysis
    from graphflops.derived.overview import overview
    from graphflops.loading import import_rules
    from graphflops.report.contradictions import contradicted

    import_rules(given.pop("rule_files"))
    mesh = given.pop("mesh")
    doubtful: list[str] = []

    def report_of(model: str) -> Report:
        next_analysis()
        program = model_options.model(model, training=bool(given["training"]), mesh=mesh)
        report = files.report_of(program, quiet=True, **given)
        doubtful.extend([f"{shown(model)}: {problem}"] if (problem := contradicted(report)) else ())
        return report

    found = overview(models, report_of)
    output.write(found)
    failed = sum(bool(line.error) for line in found.lines)
    files.end([f"{failed:,} of {len(models):,} models failed"] if failed else [], 1)
    unknown = sum(line.cost.unknown for line in found.lines if line.cost is not None)
    if strict:
        files.end([*doubtful, f"the cost of {unknown:,} calls is unknown" if unknown else ""], 3, "strict")


_ASKED = (
    *("level", "depth", "by", "tolerance", "only", "first", "last", "uses", "needs"),
    *("path", "narrow", "stages", "unused"),
)


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.choice("--level", ("module", "call"), "A node for each module, or call.", default="module")
@options.whole("--depth", "Levels of modules. Default: as deep as a page holds.")
@options.valued("--only", "PATTERN", "These modules only: 'layers.3', 'encoder.*.attention'.")
@options.choice("--by", ("flops", "bytes", "time", "memory"), "Cost of colours and stages.", default="flops")
@options.valued("--from", "NAME", "With --to: what lies between, and what it costs.", "first")
@options.valued("--to", "NAME", "A module, a call, a weight or an input.", "last")
@options.valued("--uses", "WEIGHT", "What depends on this weight, input or call.")
@options.valued("--needs", "MODULE", "What this module depends on.")
@options.choice("--critical-path", ("flops", "time", "bytes"), "The longest chain of calls, by cost.", "path")
@options.flag("--bottlenecks", "What everything passes through, the fewest bytes first.", "narrow")
@options.whole("--cuts", "Equal stages, the fewest bytes between.", most=4096, keyword="stages", metavar="K")
@options.valued(
    "--tolerance", "PERCENT", "How much a stage may exceed an equal share. Default: 5.",
    type=click.FloatRange(min=0, max=1000), default=5.0,
)  # fmt: skip
@options.flag("--unused", "Weights and inputs that nothing reads, calls that no result depends on.")
@options.whole("--top", "Lines of the table.")
@options.output_of("Answer")
@options.sizes
@options.assume
@options.masks
@options.execution
@options.device
@options.of_the_file
def graph(model: str, output: files.Output, top: int | None, **given: Any) -> None:
    """The structure of MODEL with its costs: as a table, a drawing, or a file for other programs; and questions to it.

    \b
    graphflops graph lm.pt2 --output lm.dot
    graphflops graph lm.pt2 --format mermaid --depth 1
    graphflops graph lm.pt2 --from embedding --to head
    graphflops graph lm.pt2 --critical-path flops
    graphflops graph lm.pt2 --cuts 4
    """
    output = output.of("Answer", top=top)
    from graphflops.structure.answer import ask

    asked = {name: given.pop(name) for name in _ASKED}
    output.write(ask(files.report_of(model, **given), **asked), top=top)


@click.command()
@click.argument("model", type=click.Path(), required=False)
@options.output_of("Listing")
@options.of_the_file
def rules(
    model: str | None, output: files.Output, model_name: str | None, rule_files: tuple[str, ...]
) -> None:
    """All operators that have a rule; with MODEL, each operator of the model and the rule that prices it.

    \b
    graphflops rules model.pt2
    graphflops rules --format csv
    """
    from graphflops.loading import import_rules
    from graphflops.render import derived

    if model is None:
        import_rules(rule_files)
        listing = derived.registered()
    else:
        listing = derived.used(files.report_of(model, model_name=model_name, rule_files=rule_files))
    output.of("Listing").write(listing)
