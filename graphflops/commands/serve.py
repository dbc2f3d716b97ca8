"""`graphflops serve`: how a decoder serves on a device."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import capture_options, files, options
from graphflops.render import formats


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option("--device", required=True, metavar="NAME", help="The device: h200, or the path of a profile.")
@click.option(
    "--prefill", type=click.Path(), metavar="MODEL", help="The program of the tokens before the step."
)
@click.option("--batch", type=options.SizesOption(), metavar="N,N", help="Requests at once: 1,8,64.")
@click.option("--context", type=options.SizesOption(), metavar="N,N", help="Tokens of each: 1024,8192.")
@click.option(
    "--output-tokens",
    type=click.IntRange(min=1, max=2**30),
    metavar="N",
    help="That a request asks for: then prefills of new requests delay the steps of others.",
)
@click.option("--ttft", metavar="TIME", help="Find the most requests whose first token comes within 500ms.")
@click.option("--tpot", metavar="TIME", help="Find the most requests whose next token comes within 30ms.")
@click.option("--engine", metavar="NAME", default="none", help="Whose memory and caches are assumed: vllm.")
@click.option(
    "--devices", type=click.IntRange(1, 1024), help="That share each layer (tensor parallel). Default: 1."
)
@options.network
@options.price
@options.dims
@options.inputs
@options.size_names
@options.masks
@options.execution
@options.output_of("Serving")
@options.model_name
@options.rule_files
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
