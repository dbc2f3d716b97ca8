"""`graphflops serve`: how a decoder serves on a device."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, model_options, options


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.valued("--device", "NAME", "The device: h200, or the path of a profile.", required=True)
@options.valued("--batch", "N,N", "Requests at once: 1,8,64.", type=options.SIZES)
@options.requests
@options.whole("--devices", "That share each layer (tensor parallel). Default: 1.", most=1024, metavar=None)
@options.valued("--kv-dtype", "TYPE", "Element type of an engine's caches: fp8.")
@options.valued("--shared-prefix", "PART", "Of each context, that requests have in common: 0.5.", type=float)
@options.whole("--prefill-tokens", "Of an engine's largest step. Default: its own.", most=2**30)
@options.flag(
    "--together",
    "Requests begin together, as a benchmark's do: of engines that prefill first (sglang).",
    default=None,
)
@options.network
@options.price
@options.sizes
@options.masks
@options.execution
@options.output_of("Serving")
@options.of_the_file
def serve(model: str, rule_files: tuple[str, ...], output: files.Output, **given: Any) -> None:
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

    output = output.of("Serving")
    import_rules(rule_files)
    step, prompt = model_options.decoder(model)
    chosen = {"prefill": prompt, **{name: value for name, value in given.items() if value is not None}}
    output.write(computed(step, **chosen))
