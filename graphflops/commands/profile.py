"""`graphflops profile`: measures the device of this machine, for predictions of time on it."""

from __future__ import annotations

import click

from graphflops.commands import files, options


@click.command(cls=options.Command)
@options.choice(
    "--device", ("cuda", "cpu"), "The GPU or the CPU of this machine.", default="cuda", show_default=True
)
@options.choice(
    "--runtime",
    ("torch", "onnxruntime"),
    "The library whose kernels are measured; onnxruntime on the CPU only.",
    default="torch",
    show_default=True,
)
@options.flag(
    "--host-only",
    "Measure only how fast the CPU launches kernels, in a few seconds, and complete the profile --base by it.",
)
@options.valued(
    "--base",
    "NAME",
    "With --host-only: the device, or profile, to complete; by default that of this machine's GPU.",
)
@options.valued(
    "-o", "FILE.json", "Where the profile is written.", "--output", type=click.Path(), required=True
)
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
    from graphflops.errors import OptionError

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
