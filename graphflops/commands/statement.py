"""`graphflops statement`: what a training run cost, as laws and documents of models ask for it."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, model_options, options


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option("--tokens", metavar="N", help="Tokens of pre-training, or of adapters with --lora: 15T, 800B.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    metavar="KIND[/LABEL]:TOKENS[:LENGTH[:MODEL]]",
    help="A further stage: pre-training, fine-tuning, adapters, teacher, generation (of data) or evaluation.",
)
@click.option("--batch-tokens", metavar="N", help="Tokens of one update of the optimizer: 4M.")
@click.option("--length", type=click.IntRange(min=1), help="Of a sequence. Default: as exported.")
@click.option("--inference-tokens", metavar="N", help="Tokens that the model served, beside its training.")
@click.option("--hours", type=float, help="That the run took. Default: predicted, where a device is named.")
@click.option("--devices", type=click.IntRange(min=1), default=1, help="How many devices shared the run.")
@click.option("--kwh", type=float, help="Energy that was measured. Default: predicted from the power limit.")
@click.option(
    "--carbon", type=float, metavar="GRAMS", help="CO2 equivalent of a kWh at the place of the run."
)
@click.option("--original", type=float, help="Training FLOPs of the model that this run modifies.")
@click.option("--date", metavar="DATE", help="Of the document: 2026-11-23. It is not read from a clock.")
@click.option("--supplier", metavar="NAME", help="Who states this.")
@options.device
@options.per
@options.dims
@options.inputs
@options.masks
@model_options.training
@options.execution
@options.output_of("Statement")
@options.of_the_file
def statement(
    model: str, rule_files: tuple[str, ...], output: files.Output, training: Any, **given: Any
) -> None:
    """What a training run of MODEL cost: FLOPs under named conventions, hours, energy, and where thresholds of laws stand.

    \b
    graphflops statement lm.pt2 --tokens 15T --length 8192
    graphflops statement lm.pt2 --tokens 15T --hours 900 --device h100 --devices 2048
    graphflops statement lm.pt2 --stage adapters:2B --lora 16 --original 6.7e24 --format cyclonedx
    """
    from graphflops.loading import import_rules
    from graphflops.statements.statement import statement as computed

    output = output.of("Statement")
    import_rules(rule_files)
    found = computed(model, training=training or True, **given)
    output.write(found)
