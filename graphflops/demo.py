"""Small models for a first try of the commands: the project's samples under short names, and a page."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from graphflops.errors import FileError, shown

_SAMPLES = {
    "decoder.pt2": "gqa_transformer.pt2",
    "changed.pt2": "all_heads.pt2",
    "decoder.onnx": "gqa_transformer.onnx",
}
_PAGE = "decoder.html"


def write_demo(folder: str) -> list[str]:
    """Writes the models and the page into a folder, which is made if there is none; returns what to try, line by line.

    Raises FileError where a file of these names is there already.
    """
    from graphflops.analysis import analyze
    from graphflops.base.files import whole

    package = Path(__file__).parent
    inside = package / "samples"  # of a checkout they lie at its top
    samples = inside if inside.is_dir() else package.parent / "samples"
    place = Path(folder)
    for name in (*_SAMPLES, _PAGE):
        if (place / name).exists():
            raise FileError(f"{shown(str(place / name))}: this file exists already: name another folder")
    place.mkdir(parents=True, exist_ok=True)
    for name, sample in _SAMPLES.items():
        with whole(str(place / name)) as path:
            shutil.copyfile(samples / sample, path)
    analyze(str(place / "decoder.pt2")).save(str(place / _PAGE))
    pt2, onnx, changed = (
        shlex.quote(str(place / name)) for name in ("decoder.pt2", "decoder.onnx", "changed.pt2")
    )
    tries = {
        f"graphflops analyze {pt2}": "what the model costs, by module",
        f"graphflops analyze {pt2} --sweep 'ids[1]=128,512,2048'": "at other lengths",
        f"graphflops diff {pt2} {changed}": "what a change costs",
        f"graphflops diff {pt2} {onnx}": "whether an export keeps the work",
        f"graphflops audit {onnx}": "what is wrong or wasteful in it",
    }
    lines = [line for command, what in tries.items() for line in (f"  {command}", f"      {what}")]
    return [f"wrote {', '.join((*_SAMPLES, _PAGE))} into {shown(str(place))}, without weights", "", "Try:", *lines, "",
            f"and open {shown(str(place / _PAGE))} in a browser."]  # fmt: skip
