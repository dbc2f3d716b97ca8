"""`graphflops demo`: small models in a folder, to try the commands on: the project's samples under short names."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import click

from graphflops.commands import options
from graphflops.errors import FileError, shown

_SAMPLES = {
    "decoder.pt2": "gqa_transformer.pt2",
    "changed.pt2": "all_heads.pt2",
    "decoder.onnx": "gqa_transformer.onnx",
}
_PAGE = "decoder.html"


@click.command(cls=options.Command)
@click.argument("folder", type=click.Path(file_okay=False))
def demo(folder: str) -> None:
    """Write a decoder into FOLDER, as .pt2 and as .onnx, with a changed version of it and its page, and say what to try.

    FOLDER is made if there is none. A file that is there already is not written over.

    \b
    graphflops demo first
    graphflops analyze first/decoder.pt2
    """
    from graphflops.analysis import analyze
    from graphflops.base.files import whole

    package, place = Path(__file__).parents[1], Path(folder)
    inside = package / "samples"  # of a checkout they lie at its top
    samples = inside if inside.is_dir() else package.parent / "samples"
    for name in (*_SAMPLES, _PAGE):
        if (place / name).exists():
            raise FileError(f"{shown(str(place / name))}: this file exists already: name another folder")
    place.mkdir(parents=True, exist_ok=True)
    for name, sample in _SAMPLES.items():
        with whole(str(place / name)) as path:
            shutil.copyfile(samples / sample, path)
    analyze(str(place / "decoder.pt2")).save(str(place / _PAGE))
    pt2, changed, onnx = (shlex.quote(str(place / name)) for name in _SAMPLES)
    tries = {
        f"graphflops analyze {pt2}": "what the model costs, by module",
        f"graphflops analyze {pt2} --sweep 'ids[1]=128,512,2048'": "at other lengths",
        f"graphflops diff {pt2} {changed}": "what a change costs",
        f"graphflops diff {pt2} {onnx}": "whether an export keeps the work",
        f"graphflops audit {onnx}": "what is wrong or wasteful in it",
    }
    click.echo(f"wrote {', '.join((*_SAMPLES, _PAGE))} into {shown(str(place))}, without weights\n\nTry:")
    for command, what in tries.items():
        click.echo(f"  {command}\n      {what}")
    click.echo(f"\nand open {shown(str(place / _PAGE))} in a browser.")
