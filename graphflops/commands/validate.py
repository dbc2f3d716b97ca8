"""`graphflops validate`: run a model and confront its counts with what happens."""

from __future__ import annotations

import os
from typing import Literal

import click

from graphflops.commands import files, options
from graphflops.errors import ModelError

_FORMATS = ("table", "json", "markdown")
_SUFFIXES = {".json": "json", ".md": "markdown", ".markdown": "markdown"}


@click.command(cls=options.Command)
@click.argument("model", type=click.Path())
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1.")
@click.option(
    "--inputs",
    "inputs",
    type=click.Path(),
    metavar="FILE",
    help="Run on these tensors, by input name: .npz or .safetensors. Default: random ones.",
)
@options.dims
@click.option(
    "--random-weights",
    is_flag=True,
    help="Make weights up call by call: for a program saved without any, or too large for the device.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Runs that are timed; 0: none.",
)
@click.option(
    "--counters",
    type=click.Choice(("none", "hardware")),
    default="none",
    show_default=True,
    help="hardware: run it once more under Nsight Compute, and compare what the GPU counted.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of random inputs and weights.")
@click.option("--show-kernel", is_flag=True, help="Show the functions generated for our attention kernel.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Calls that a table shows.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="Default: by the suffix of --output, else table."
)
@options.target
@options.model_name
@options.rule_files
@click.pass_context
def validate(
    ctx: click.Context,
    model: str,
    device: str,
    inputs: str | None,
    dims: dict[str, int],
    random_weights: bool,
    repeats: int,
    counters: Literal["none", "hardware"],
    seed: int,
    show_kernel: bool,
    top: int | None,
    form: str | None,
    output: str | None,
    model_name: str | None,
    rule_files: tuple[str, ...],
) -> None:
    """Run MODEL and prove its counts: shapes, FLOPs, tiles, time, memory.

    The graph that is analyzed is run call by call: a .pt2 by torch, an .onnx by onnxruntime. This runs the operators of
    the program, on this machine; nothing in the file is unpickled. Exits with 3 where anything differs without a reason.

    \b
    graphflops validate model.pt2
    graphflops validate model.pt2 --device cuda --dim s27=4096 --random-weights
    graphflops validate model.pt2 --inputs batch.safetensors --output validation.json
    """
    form = form or _SUFFIXES.get(os.path.splitext(output or "")[1].lower(), "table")
    from graphflops.loading import import_rules

    import_rules(rule_files)
    try:
        from graphflops.runtime import validate as run
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("graphflops"):
            raise
        raise ModelError(f"running a model needs {missing.name}: pip install 'graphflops[runtime]'") from None
    found = run.validate(
        model,
        model_name=model_name,
        dims=dims,
        inputs=inputs,
        device=device,
        random_weights=random_weights,
        repeats=repeats,
        seed=seed,
        counters=counters,
    )
    from graphflops.render import validation as render

    if form == "json":
        text = render.json(found)
    elif form == "markdown":
        text = render.markdown(found, top=top)
    else:
        text = render.table(found, top=top, kernels=show_kernel, **files.screen(output))
    files.write(text, output)
    if not found.holds:
        click.echo(f"graphflops: validate: {render.conclusion(found)}", err=True)
        ctx.exit(3)
