"""What devices do with a model: `graphflops fits`, `serve`, `plan`, and `statement` of a training run."""

from typing import Any

import click
from click.exceptions import Exit

from graphflops.commands import files, model_options, options


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.valued("--device", "NAME", "The device: h200, or the path of a profile.")
@options.valued("--memory", "SIZE", "Memory of the device: 24GB.")
@options.flag("--all-devices", "A line for each known device.")
@options.valued("--vary", "AXIS", "Look for the largest value of this size that fits: ids[0].")
@options.sizes
@options.masks
@model_options.training
@options.execution
@options.output_of("Fits")
@options.flag("--strict", "Exit with 3 also if a cost is unknown or the file contradicts itself.")
@options.of_the_program
def fits(model: str, output: files.Output, strict: bool, **given: Any) -> None:
    """Whether MODEL fits on a device: a .pt2, an .onnx, or a JSON report saved with --device;
    or a library's model by name (hf:config.json), which is captured: graphflops capture --help.

    Says how much memory is left, or missing, and what would make a training step fit. Exits with 3 if it does not fit.
    Calls of unknown cost may need more than is counted: with --strict they, and a contradictory file, also exit with 3.

    \b
    graphflops fits lm.pt2 --device h200
    graphflops fits lm.pt2 --device h100 --training --optimizer adamw:fused
    graphflops fits lm.pt2 --memory 24GB --vary ids[0]
    graphflops fits lm.pt2 --all-devices
    """
    from graphflops.fitting.fits import fits as computed

    output = output.of("Fits")
    found = computed(model_options.model(model, training=bool(given["training"])), **given)
    output.write(found)
    if not found.fits or (strict and (found.is_lower_bound or found.doubt)):
        raise Exit(3)


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.valued("--device", "NAME", "The device: h200, or the path of a profile.", required=True)
@options.valued("--batch", "N,N", "Requests at once: 1,8,64.", type=options.SIZES)
@options.requests
@options.whole("--devices", "Devices for each layer (tensor parallel). Default: 1.", most=1024, metavar=None)
@options.valued("--kv-dtype", "TYPE", "Element type of an engine's caches: fp8.")
@options.valued("--shared-prefix", "PART", "Part of a context that requests share: 0.5.", type=float)
@options.whole("--prefill-tokens", "Tokens of an engine's largest step. Default: the engine's.", most=2**30)
@options.flag(
    "--together", "Requests begin together, as those of a benchmark; for engines that prefill first (sglang).",
    default=None,
)  # fmt: skip
@options.network
@options.price
@options.sizes
@options.masks
@options.execution
@options.output_of("Serving")
@options.of_the_program
def serve(model: str, output: files.Output, **given: Any) -> None:
    """How MODEL, the step of a decoder that takes its caches as inputs, serves on a device. An archive with programs called
    decode and prefill, or a library's model by name, has both phases: graphflops capture --help.

    Says how long a step takes at each batch and context, what limits it, how many requests fit, and with --ttft or --tpot
    for how many these limits hold. Without --execution the step is a CUDA graph.

    \b
    graphflops serve lm.pt2 --device h200
    graphflops serve step.pt2 --device h200 --prefill prompt.pt2 --ttft 500ms --tpot 30ms
    graphflops serve step.pt2 --device h100 --engine vllm --price-per-hour 2.5 --output steps.csv
    """
    from graphflops.serving.plan import serve as computed

    output = output.of("Serving")
    step, prompt = model_options.decoder(model)
    chosen = {"prefill": prompt, **{name: value for name, value in given.items() if value is not None}}
    output.write(computed(step, **chosen))


_WAYS = ("none", "cut", "full")
_TRAINING = ("batch_tokens", "precision", "loss", "recompute", "sharding", "mesh", "rank")


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.valued("--devices", "N", "Number of devices.", type=int, required=True)
@options.valued("--device", "NAME", "The device: h100, or the path of a profile.", required=True)
@options.valued("--batch-tokens", "N", "Tokens of a step: 4M. Default: a sample (or fixed batch) a device.")
@options.valued("--network", "LINKS", "Links of a node to others: 8x400Gbit.")
@options.choice("--precision", ("bf16", "fp32"), "Element type of products.", default="bf16")
@options.choice(
    "--loss", ("cross-entropy", "sum", "mean"),
    "What is differentiated. Default: the first result if that is one number, else its cross-entropy.",
)  # fmt: skip
@options.choice("--recompute", _WAYS, "Try only this: nothing, a minimal cut, whole layers.", multiple=True)
@options.choice("--sharding", ("none", "optimizer", "full"), "Only this, over the data axis.", multiple=True)
@options.valued("--mesh", "AXIS=N,...", "Only meshes with these sizes of axes: tp=4,pp=2.")
@options.whole("--rank", "Rank of the mesh that --format chakra traces. Default: 0.", least=0, metavar=None)
@options.flag("--serve", "Serve a decoder: copies of it, each on 1 or more devices.")
@options.requests
@options.price
@options.dims
@options.execution
@options.output_of("Plan")
@options.of_the_program
def plan(model: str, output: files.Output, serve: bool, **given: Any) -> None:
    """Which layout trains MODEL, one device's program or hf:config.json, fastest on many devices.

    Tries meshes of data, tensor, pipeline, context and expert parallelism, micro-batches, schedules, ways to shard weights
    and to recompute activations. Prices each, and says why the others are slower or impossible. With --serve MODEL is a
    decoder, as for `graphflops serve`, and the answer is how many devices should share a copy for most tokens a second.

    \b
    graphflops plan lm.pt2 --devices 64 --device h100 --batch-tokens 4M
    graphflops plan hf:config.json@length=4096,dynamic=batch --devices 512 --device h200 --network 8x400Gbit
    graphflops plan hf:config.json --serve --devices 8 --device h100 --engine vllm --tpot 30ms
    """
    from graphflops.planning.plan import plan as computed

    defaults = {one.name: one.default for one in click.get_current_context().command.params}
    others = _TRAINING if serve else options.REQUESTS
    refused = [name for name in others if given.pop(name) not in (None, (), defaults[name])]
    if refused:
        where = "of a training step: leave --serve out" if serve else "of requests: give --serve"
        raise click.UsageError(f"--{refused[0].replace('_', '-')} is {where}")
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    if serve:
        from graphflops.serving.plan import replicas

        output = output.of("Replication")
        step, prompt = model_options.decoder(model)
        output.write(replicas(step, **{"prefill": prompt, **chosen}))
        return
    rank = chosen.pop("rank", None)
    output = output.of("Plan", rank=rank)
    if "mesh" in chosen:
        chosen["mesh"] = model_options.mesh_axes(chosen["mesh"])
    output.write(computed(model_options.model(model, training=True), **chosen), rank=rank)


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option("--tokens", metavar="N", help="Tokens of pre-training, or of adapters with --lora: 15T, 800B.")
@click.option(
    "--stage", "stages", multiple=True, metavar="KIND[/LABEL]:TOKENS[:LENGTH[:MODEL]]",
    help="A further stage: pre-training, fine-tuning, adapters, teacher, generation (of data) or evaluation.",
)  # fmt: skip
@click.option("--batch-tokens", metavar="N", help="Tokens of one update of the optimizer: 4M.")
@click.option("--length", type=click.IntRange(min=1), help="Tokens of a sequence. Default: as exported.")
@click.option("--inference-tokens", metavar="N", help="Tokens that the model served, beside its training.")
@click.option("--hours", type=float, help="Hours of the run. Default: predicted, if a device is named.")
@click.option("--devices", type=click.IntRange(min=1), default=1, help="How many devices shared the run.")
@click.option("--kwh", type=float, help="Energy that was measured. Default: predicted from the power limit.")
@options.valued("--carbon", "GRAMS", "CO2 equivalent per kWh at the place of the run.", type=float)
@click.option("--original", type=float, help="Training FLOPs of the model that this run modifies.")
@click.option("--date", metavar="DATE", help="Date of the document: 2026-11-23. It is not read from a clock.")
@click.option("--supplier", metavar="NAME", help="Who states this.")
@options.device
@options.per
@options.dims
@options.inputs
@options.masks
@model_options.training
@options.execution
@options.output_of("Statement")
@options.of_the_program
def statement(model: str, output: files.Output, training: Any, **given: Any) -> None:
    """What a training run of MODEL cost: FLOPs by named conventions, hours, energy, and how it stands to thresholds of laws.

    \b
    graphflops statement lm.pt2 --tokens 15T --length 8192
    graphflops statement lm.pt2 --tokens 15T --hours 900 --device h100 --devices 2048
    graphflops statement lm.pt2 --stage adapters:2B --lora 16 --original 6.7e24 --format cyclonedx
    """
    from graphflops.statements.statement import statement as computed

    output = output.of("Statement")
    output.write(computed(model, training=training or True, **given))
