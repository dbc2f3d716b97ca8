"""Readers, one file per accepted way of exporting a model; `load` chooses by the file's first bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import FileError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from graphflops.graph import Graph


def load(path: Path | str, model: str | None = None) -> Graph:
    """The program in a file.

    model: which program of an archive that holds several.
    Raises FileError, in one line, for anything that no reader reads.
    """
    from graphflops.exporters import archive

    path = archive.regular_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise FileError(f"{shown(str(path))}: {archive.reason(error)}") from None
    if archive.kind_of(head) != "zip":
        from graphflops.exporters import onnx

        if onnx.kind_of(head) or path.suffix == ".onnx":
            return onnx.read(path)
    from graphflops.exporters import pt2

    return pt2.read(path, model)
