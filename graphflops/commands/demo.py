"""`graphflops demo`: small models in a folder, to try the commands on."""

from __future__ import annotations

import click

from graphflops.commands import options


@click.command(cls=options.Command)
@click.argument("folder", type=click.Path(file_okay=False))
def demo(folder: str) -> None:
    """Write a decoder into FOLDER, as .pt2 and as .onnx, with a changed version of it and its page, and say what to try.

    FOLDER is made if there is none. A file that is there already is not written over.

    \b
    graphflops demo first
    graphflops analyze first/decoder.pt2
    """
    from graphflops.demo import write_demo

    for line in write_demo(folder):
        click.echo(line)
