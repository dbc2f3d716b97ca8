"""`graphflops serve`: how a decoder serves on a device."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import capture_options, files, options
from graphflops.render import formats


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option("--device", required=True, metavar="NAME", help="The device: h200, or the path of a profile.")
@click.option("--batch", type=options.SizesOption(), metavar="N,N", help="Requests at once: 1,8,64.")
@options.requests
@click.option(
    "--devices", type=click.IntRange(1, 1024), help="That share each layer (tensor parallel). Default: 1."
)
@click.option("--kv-dtype", metavar="TYPE", help="Element type of an engine's caches: fp8.")
@click.option(
    "--shared-prefix", type=float, metavar="PART", help="Of each context, that requests have in common: 0.5."
)
@click.option(
    "--prefill-tokens",
    type=click.IntRange(min=1, max=2**30),
    metavar="N",
    help="Of an engine's largest step. Default: its own.",
)
@click.option(
    "--together",
    is_flag=True,
    default=None,
    help="Requests begin together, as a benchmark's do: of engines that prefill first (sglang).",
)
@options.network
@options.price
@options.sizes
@options.masks
@options.execution
@options.output_of("Serving")
@options.of_the_file
def serve(
    model: str, rule_files: tuple[str, ...], form: str | None, output: str | None, **given: Any
) -> None:
    """How MODEL, the step of a decoder that takes its caches as inputs, serves on a device. An archive with programs called
    decode and prefill, and a library's model by name, are both phases: graphflops capture --help.

    Says how long a step takes at each batch and context, what limits it, how many requests fit, and with --ttft or --tpot
    how many keep these limits. Without --execution the step is a CUDA graph.

    \b
    graphflops serve lm.pt2 --device h200
    graphflops serve step.pt2 --device h200 --prefill prompt.pt2 --ttft 500ms --tpot 30ms
    graphflops serve step.pt2 --device h100 --engine vllm --price-per-hour 2.5 --output steps.csv
    """
    from graphflops.loading import import_rules
    from graphflops.serving.plan import serve as computed

    form = formats.chosen("Serving", form, output)
    import_rules(rule_files)
    step, prompt = capture_options.decoder(model)
    chosen = {"prefill": prompt, **{name: value for name, value in given.items() if value is not None}}
    files.write(formats.render(computed(step, **chosen), form, **files.screen(output)), output)
