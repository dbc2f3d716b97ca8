"""`graphflops validate`: runs a model and compares its counts with what the machine does."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, options
from graphflops.render import formats


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
@options.output_of("Validation")
@options.model_name
@options.rule_files
@click.pass_context
def validate(
    ctx: click.Context,
    /,
    model: str,
    show_kernel: bool,
    top: int | None,
    form: str | None,
    output: str | None,
    rule_files: tuple[str, ...],
    **given: Any,
) -> None:
    """Run MODEL and prove its counts: shapes, FLOPs, tiles, time, memory.

    The graph that is analyzed is run call by call: a .pt2 by torch, an .onnx by onnxruntime. This runs the operators of
    the program, on this machine; nothing in the file is unpickled. Exits with 3 where anything differs without a reason.

    \b
    graphflops validate model.pt2
    graphflops validate model.pt2 --device cuda --dim s27=4096 --random-weights
    graphflops validate model.pt2 --inputs batch.safetensors --output validation.json
    """
    form = formats.chosen("Validation", form, output)
    shown = {"top": top, "show_kernel": show_kernel}
    formats.refuse("Validation", form, shown)
    from graphflops.loading import import_rules

    import_rules(rule_files)
    from graphflops.runtime.validate import validate as run

    found = run(model, **given)
    files.write(formats.render(found, form, **shown, **files.screen(output)), output)
    if not found.holds:
        from graphflops.render.validation import conclusion

        click.echo(f"graphflops: validate: {conclusion(found)}", err=True)
        ctx.exit(3)
