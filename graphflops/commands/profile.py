"""`graphflops profile`: measures the device of this machine, for predictions of time on it."""

from __future__ import annotations

import click

from graphflops.commands import files, options


@click.command(cls=options.Command)
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    default="cuda",
    show_default=True,
    help="The GPU or the CPU of this machine.",
)
@click.option(
    "--runtime",
    type=click.Choice(("torch", "onnxruntime")),
    default="torch",
    show_default=True,
    help="The library whose kernels are measured; onnxruntime on the CPU only.",
)
@click.option(
    "--output", type=click.Path(), required=True, metavar="FILE.json", help="Where the profile is written."
)
def profile(device: str, runtime: str, output: str) -> None:
    """Measure the kernels that models run on the device of this machine.

    The profile is a JSON file of less than 100 kB that every --device option takes. Measuring takes up to two minutes, on
    an idle machine: whatever else runs is in the measurements.

    \b
    graphflops profile --device cuda --output mine.json
    graphflops profile --device cpu --runtime onnxruntime --output cpu.json
    graphflops analyze model.pt2 --device mine.json
    """
    from graphflops.errors import OptionError

    if runtime == "onnxruntime" and device != "cpu":
        raise OptionError("--runtime onnxruntime: measures the CPU; add --device cpu")
    if not output.endswith(".json"):
        raise OptionError(f"--output {output}: a profile is a .json file")
    from graphflops.runtime.profile.make import encoded
    from graphflops.runtime.profile.make import profile as measured

    with files.Progress("measuring") as progress:
        found = measured(device, runtime, progress)
    files.write(encoded(found).decode() + "\n", output)
    from graphflops.render.device import summary

    click.echo(summary(found), err=True)
