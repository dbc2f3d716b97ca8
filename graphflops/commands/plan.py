"""`graphflops plan`: layouts of a training step over many devices."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, model_options, options

_WAYS = ("none", "cut", "full")
_SHARDINGS = ("none", "optimizer", "full")
_TRAINING = ("batch_tokens", "precision", "loss", "recompute", "sharding", "mesh", "rank")


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.valued("--devices", "N", "How many there are.", type=int, required=True)
@options.valued("--device", "NAME", "The device: h100, or the path of a profile.", required=True)
@options.valued("--batch-tokens", "N", "Tokens of a step: 4M. Default: one sample a device.")
@options.valued("--network", "LINKS", "Links of a node to others: 8x400Gbit.")
@options.choice("--precision", ("bf16", "fp32"), "Of products.", default="bf16")
@options.choice("--loss", ("cross-entropy", "sum", "mean"), None, default="cross-entropy")
@options.choice("--recompute", _WAYS, "Only so: nothing, by a minimal cut, whole layers.", multiple=True)
@options.choice("--sharding", _SHARDINGS, "Of weights over the data axis: only so.", multiple=True)
@options.valued("--mesh", "AXIS=N,...", "Only meshes with these sizes of axes: tp=4,pp=2.")
@options.whole(
    "--rank", "Of the mesh, of which --format chakra is a trace. Default: 0.", least=0, metavar=None
)
@options.flag("--serve", "Serve a decoder: copies of it, each on 1 or more devices.")
@options.requests
@options.price
@options.dims
@options.execution
@options.output_of("Plan")
@options.of_the_file
def plan(model: str, rule_files: tuple[str, ...], output: files.Output, serve: bool, **given: Any) -> None:
    """Which layout trains MODEL, one device's program or hf:config.json, fastest on many devices.

    Tries meshes of data, tensor, pipeline, context and expert parallelism, micro-batches, schedules, ways to shard weights
    and to compute activations again; prices each, and says why the others are slower or impossible. With --serve MODEL is a
    decoder, as for `graphflops serve`: which number of devices should share a copy, so that all make most tokens a second.

    \b
    graphflops plan lm.pt2 --devices 64 --device h100 --batch-tokens 4M
    graphflops plan hf:config.json@length=4096,dynamic=batch --devices 512 --device h200 --network 8x400Gbit
    graphflops plan hf:config.json --serve --devices 8 --device h100 --engine vllm --tpot 30ms
    """
    from graphflops.loading import import_rules
    from graphflops.planning.plan import plan as computed

    import_rules(rule_files)
    defaults = {one.name: one.default for one in click.get_current_context().command.params}
    others = _TRAINING if serve else options.REQUESTS
    refused = [name for name in others if given.pop(name) not in (None, (), defaults[name])]
    if refused:
        where = "of a training step: leave --serve out" if serve else "of requests: give --serve"
        raise click.UsageError(f"--{refused[0].replace('_', '-')} is {where}")
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    if serve:
        _serve(model, chosen, output.of("Listing"))
        return
    rank = chosen.pop("rank", None)
    output = output.of("Plan", rank=rank)
    if "mesh" in chosen:
        chosen["mesh"] = model_options.mesh_axes(chosen["mesh"])
    output.write(computed(model_options.model(model, training=True), **chosen), rank=rank)


def _serve(model: str, chosen: dict[str, Any], output: files.Output) -> None:
    """Writes how many devices should share a copy of a decoder."""
    from graphflops.render.serving import layouts
    from graphflops.serving.plan import replicas

    step, prompt = model_options.decoder(model)
    found = replicas(step, **{"prefill": prompt, **chosen})
    output.write(layouts(found, exact=output.is_exact))
