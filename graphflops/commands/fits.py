"""`graphflops fits`: whether a model fits on a device."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import capture_options, files, options
from graphflops.commands.training_options import training
from graphflops.render import formats


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option("--device", metavar="NAME", help="The device: h200, or the path of a profile.")
@click.option("--memory", metavar="SIZE", help="Memory of the device: 24GB.")
@click.option("--all-devices", is_flag=True, help="A line for each device that is known.")
@click.option("--vary", metavar="AXIS", help="Look for the largest value of this size that fits: ids[0].")
@options.sizes
@options.masks
@training
@options.execution
@options.output_of("Fits")
@click.option(
    "--strict", is_flag=True, help="Exit with 3 also where the cost of a node is unknown: it may need more."
)
@options.of_the_file
@click.pass_context
def fits(
    ctx: click.Context,
    /,
    model: str,
    rule_files: tuple[str, ...],
    form: str | None,
    output: str | None,
    strict: bool,
    **given: Any,
) -> None:
    """Whether MODEL fits on a device: a .pt2, an .onnx, or a JSON report saved with --device;
    or a library's model by name (hf:config.json), which is captured: graphflops capture --help.

    Says how much memory is left, or missing, and what would make a training step fit. Exits with 3 where it does not fit;
    calls of unknown cost may need more than is counted, and --strict takes no yes with them.

    \b
    graphflops fits lm.pt2 --device h200
    graphflops fits lm.pt2 --device h100 --training --optimizer adamw:fused
    graphflops fits lm.pt2 --memory 24GB --vary ids[0]
    graphflops fits lm.pt2 --all-devices
    """
    from graphflops.fitting.fits import fits as computed
    from graphflops.loading import import_rules

    form = formats.chosen("Fits", form, output)
    import_rules(rule_files)
    found = computed(capture_options.model(model, training=bool(given["training"])), **given)
    files.write(formats.render(found, form, **files.screen(output)), output)
    if not found.fits or (strict and found.is_lower_bound):
        ctx.exit(3)
