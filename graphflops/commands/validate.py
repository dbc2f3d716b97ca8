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
@options.size_names
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
    "--nproc",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run a recorded step in N processes, one for each device of its mesh: on N GPUs, or a CPU.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Device, or path of a profile, whose predicted times are compared. Default: the GPU that runs it.",
)
@click.option(
    "--counters",
    type=click.Choice(("none", "hardware")),
    default="none",
    show_default=True,
    help="hardware: run it once more under Nsight Compute, and compare what the GPU counted.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True, max=10_000_000),
    default=3600.0,
    metavar="SECONDS",
    help="End the run with an error after so long. Default: an hour.",
)
@click.option(
    "--memory-limit",
    type=options.BytesOption(),
    help="Memory that the run may use, such as 2GiB. Default: what is free.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of random inputs and weights.")
@click.option("--show-kernel", is_flag=True, help="Show the functions generated for our attention kernel.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Calls that a table shows.")
@options.output_of("Validation")
@options.of_the_file
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

    The graph that is analyzed is run call by call: a .pt2 by torch, an .onnx by onnxruntime. This runs the program of the
    file on this machine, also if a stranger wrote it: in a child process with limits on memory, time and files, where
    operators that can write outside of their tensors are refused. Nothing in the file is unpickled. Run a file that you do
    not trust in a container all the same. Exits with 3 where anything differs without a reason.

    \b
    graphflops validate model.pt2
    graphflops validate model.pt2 --device cuda --dim s27=4096 --random-weights
    graphflops validate model.pt2 --device cuda --profile mine.json
    graphflops validate step.recorded --nproc 2 --device cuda
    graphflops validate model.pt2 --inputs batch.safetensors --output validation.json
    """
    form = formats.chosen("Validation", form, output)
    shown = {"top": top, "show_kernel": show_kernel}
    formats.refuse("Validation", form, shown)
    from graphflops.loading import import_rules
    from graphflops.runtime.validate import validate as run

    if given["counters"] != "none":
        import_rules(rule_files)  # the counters are put beside an analysis in this process too
    found = run(model, rule_files=rule_files, **given)
    files.write(formats.render(found, form, **shown, **files.screen(output)), output)
    if not found.holds:
        from graphflops.render.validation import conclusion

        click.echo(f"graphflops: validate: {conclusion(found)}", err=True)
        ctx.exit(3)
