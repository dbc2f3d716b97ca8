"""The pictures of pages in the README: `python -m tests.render.screenshots`. Needs torch and a Chromium.

The comparison is of a decoder before and after its query heads came to share keys and values.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from graphflops import analyze
from graphflops.comparison.compare import compared
from graphflops.graph import Origin
from graphflops.render import render
from graphflops.report import Report
from tests.render.browser import Browser

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1100, 1110


def decoder(name: str, **sizes: int) -> Report:
    """The report of samples/make.py's decoder in other sizes, on an H200."""
    sys.path.insert(0, str(ROOT / "samples"))
    import make

    dynamic = ({0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("sequence", max=8192)},)
    program = torch.export.export(
        make.Transformer(**sizes), (torch.zeros(2, 4096, dtype=torch.int64),), dynamic_shapes=dynamic
    )
    report = analyze(program, device="h200")
    return replace(report, origin=Origin(name, "pt2", f"torch {torch.__version__.partition('+')[0]}"))


def in_few_colors(path: Path) -> None:
    """The same picture in a third of the bytes, where Pillow is installed."""
    with contextlib.suppress(ImportError):
        from PIL import Image

        Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Write docs/images/report.png and docs/images/comparison.png."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    before = decoder("decoder.pt2", width=512, heads=8, kv_heads=8, layers=8, vocabulary=16_000)
    after = decoder("decoder-gqa.pt2", width=512, heads=8, kv_heads=2, layers=8, vocabulary=16_000)
    pages = {"report": render(before, "html"), "comparison": render(compared(before, after), "html")}
    browser = Browser()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pages.items():
            path = Path(folder, "page.html")
            path.write_text(text, encoding="utf-8")
            browser.open(path, width=WIDTH)
            browser.screenshot(IMAGES / f"{name}.png", HEIGHT)
            in_few_colors(IMAGES / f"{name}.png")
    browser.close()


if __name__ == "__main__":
    main()
