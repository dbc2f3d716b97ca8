"""What runs on this machine: `graphflops validate` compares a model's counts with it, `profile` measures it."""

from typing import Any

import click
from click.exceptions import Exit

from graphflops.commands import files, options
from graphflops.errors import OptionError


@click.command()
@click.argument("model", type=click.Path())
@options.valued("--device", "DEVICE", "cpu, cuda, cuda:1.", default="cpu", show_default=True)
@options.valued(
    "--inputs", "FILE", "Run on these tensors, by input name: .npz or .safetensors. Default: random ones.",
    type=click.Path(),
)  # fmt: skip
@options.dims
@options.size_names
@options.flag(
    "--random-weights", "Make weights up call by call: for a program saved without any, or too large for the device.",
)  # fmt: skip
@options.whole(
    "--repeats", "Number of timed runs, or 0.", least=0, metavar=None, default=5, show_default=True
)
@options.whole(
    "--nproc", "Run a recorded step in N processes, one for each device of its mesh: on N GPUs, or a CPU."
)
@options.valued(
    "--profile", "NAME",
    "Device, or path of a profile, whose predicted times are compared. Default: the GPU that runs it.",
)  # fmt: skip
@options.choice(
    "--counters", ("none", "hardware"),
    "hardware: run it once more under Nsight Compute, and compare what the GPU counted.", default="none",
    show_default=True,
)  # fmt: skip
@options.seconds("--time-limit", "End the run with an error after so long. Default: an hour.", default=3600.0)
@click.option(
    "--memory-limit", type=options.BYTES, help="Memory that the run may use, such as 2GiB. Default: what is free.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs and weights.")
@options.flag("--show-kernel", "Show the functions generated for our attention kernel.")
@options.whole("--top", "Calls that a table shows.")
@options.output_of("Validation")
@options.of_the_file
def validate(
    model: str, show_kernel: bool, top: int | None, output: files.Output, rule_files: tuple[str, ...],
    **given: Any,
) -> None:  # fmt: skip
    """Run MODEL and prove its counts: shapes, FLOPs, tiles, time, memory.

    The analyzed graph is run call by call: a .pt2 by torch, an .onnx by onnxruntime. This runs the program of the file on
    this machine, even if a stranger wrote it. It runs in a child process with limits on memory, time and files, and
    operators that can write outside of their tensors are refused. Nothing in the file is unpickled. Still, run a file that
    you do not trust in a container. Exits with 3 if anything differs without a reason.

    \b
    graphflops validate model.pt2
    graphflops validate model.pt2 --device cuda --dim s27=4096 --random-weights
    graphflops validate model.pt2 --device cuda --profile mine.json
    graphflops validate step.recorded --nproc 2 --device cuda
    graphflops validate model.pt2 --inputs batch.safetensors --output validation.json
    """
    shown = {"top": top, "show_kernel": show_kernel}
    output = output.of("Validation", **shown)
    from graphflops.loading import import_rules
    from graphflops.runtime.validate import validate as run

    if given["counters"] != "none":
        import_rules(rule_files)  # the counters are put beside an analysis in this process too
    found = run(model, rule_files=rule_files, **given)
    output.write(found, **shown)
    if not found.holds:
        from graphflops.render.validation import conclusion

        click.echo(f"graphflops: validate: {conclusion(found)}", err=True)
        raise Exit(3)


@click.command()
@options.choice(
    "--device", ("cuda", "cpu"), "The GPU or the CPU of this machine.", default="cuda", show_default=True
)
@options.choice(
    "--runtime", ("torch", "onnxruntime"), "The library whose kernels are measured; onnxruntime on the CPU only.",
    default="torch", show_default=True,
)  # fmt: skip
@options.flag(
    "--host-only",
    "Measure only how fast the CPU launches kernels, in a few seconds, and complete the profile --base by it.",
)
@options.valued(
    "--base", "NAME", "With --host-only: the device, or profile, to complete; by default that of this machine's GPU.",
)  # fmt: skip
@options.to_file("FILE.json", "Where the profile is written.", required=True)
def profile(device: str, runtime: str, host_only: bool, base: str | None, output: str) -> None:
    """Measure the kernels that models run on the device of this machine, and how fast its CPU launches them.

    The profile is a JSON file of less than 100 kB that every --device option takes. Measuring takes up to two minutes, on
    an idle machine: whatever else runs is in the measurements, and the profile says how much that was.

    \b
    graphflops profile --device cuda --output mine.json
    graphflops profile --device cuda --host-only --base h200 --output mine.json
    graphflops profile --device cpu --runtime onnxruntime --output cpu.json
    graphflops analyze model.pt2 --device mine.json
    """
    if runtime == "onnxruntime" and (device != "cpu" or host_only):
        raise OptionError("--runtime onnxruntime: measures the CPU; add --device cpu, and no --host-only")
    if base and not host_only:
        raise OptionError("--base: only with --host-only")
    if not output.endswith(".json"):
        raise OptionError(f"--output {output}: a profile is a .json file")
    from graphflops.runtime.profile import make

    if host_only:
        found = make.profile_of_host(device, base)
    else:
        with files.Progress("measuring") as progress:
            found = make.profile(device, runtime, progress)
    files.write(make.encoded(found).decode() + "\n", output)
    from graphflops.render.time import host_summary, summary

    click.echo(host_summary(found) if host_only else summary(found), err=True)
