"""`graphflops fits`: whether a model fits on a device."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, model_options, options


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.valued("--device", "NAME", "The device: h200, or the path of a profile.")
@options.valued("--memory", "SIZE", "Memory of the device: 24GB.")
@options.flag("--all-devices", "A line for each device that is known.")
@options.valued("--vary", "AXIS", "Look for the largest value of this size that fits: ids[0].")
@options.sizes
@options.masks
@model_options.training
@options.execution
@options.output_of("Fits")
@options.flag(
    "--strict", "Exit with 3 also where a cost is unknown, or the file contradicts itself: it may need more."
)
@options.of_the_file
@click.pass_context
def fits(
    ctx: click.Context,
    /,
    model: str,
    rule_files: tuple[str, ...],
    output: files.Output,
    strict: bool,
    **given: Any,
) -> None:
    """Whether MODEL fits on a device: a .pt2, an .onnx, or a JSON report saved with --device;
    or a library's model by name (hf:config.json), which is captured: graphflops capture --help.

    Says how much memory is left, or missing, and what would make a training step fit. Exits with 3 where it does not fit;
    calls of unknown cost may need more than is counted, and --strict takes no yes with them, or of a contradictory file.

    \b
    graphflops fits lm.pt2 --device h200
    graphflops fits lm.pt2 --device h100 --training --optimizer adamw:fused
    graphflops fits lm.pt2 --memory 24GB --vary ids[0]
    graphflops fits lm.pt2 --all-devices
    """
    from graphflops.fitting.fits import fits as computed
    from graphflops.loading import import_rules

    output = output.of("Fits")
    import_rules(rule_files)
    found = computed(model_options.model(model, training=bool(given["training"])), **given)
    output.write(found)
    if not found.fits or (strict and (found.is_lower_bound or found.doubt)):
        ctx.exit(3)
