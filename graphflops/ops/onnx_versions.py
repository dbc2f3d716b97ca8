"""Opset versions at which each ONNX operator changed, so that `onnx.defs` need not be imported.

`onnx_attributes.txt` names the operators of onnx with their versions, and below an empty line those that onnxruntime adds.
"""

from __future__ import annotations

from pathlib import Path

TABLE = Path(__file__).with_name("onnx_attributes.txt")
NEWEST_IR = 14
NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "com.microsoft": 1}


def _versions(table: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for line in table.splitlines():
        for spelling in line.partition(":")[0].split():
            name, _, version = spelling.rpartition(".")
            if version.isdecimal():  # onnxruntime's own have none
                found.setdefault(name.removeprefix("onnx."), []).append(int(version))
    return {name: tuple(sorted(versions)) for name, versions in found.items()}


VERSIONS = _versions(TABLE.read_text(encoding="utf-8").partition("\n\n")[0])
