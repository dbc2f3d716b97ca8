"""The steps of a fix that read weights or run calls: each in a child process, which a hostile file may crash or hang."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import msgspec

from graphflops.base.lazy import imported
from graphflops.onnx_audit.registry import Edit
from graphflops.onnx_fix.sessions import Run, Verdict
from graphflops.runtime.isolated import answered, child_command

_LARGEST = 2**31 - 1  # bytes of a protobuf message


@dataclass(frozen=True, slots=True)
class Steps:
    """Asks child processes for steps. path: of the file that is fixed; seconds: that each step may take."""

    path: str
    seconds: float

    @property
    def folder(self) -> str:
        """Where the data lie that the file keeps outside of itself."""
        return os.path.dirname(os.path.realpath(self.path))

    def asked(self, step: str, *arguments: Any) -> Any:
        """What a step of `STEPS` finds. Raises RunError where it fails, and FileError where its process does."""
        *_, kind = STEPS[step]
        with tempfile.NamedTemporaryFile(prefix="graphflops") as file:
            file.write(msgspec.json.encode(arguments))
            file.flush()
            writes = _LARGEST if step == "apply" else 0
            request = {"arguments": file.name, "seconds": self.seconds, "writes": writes}
            found = answered(child_command(step, request), self.seconds, self.path)
        return msgspec.json.decode(found, type=kind)


# What the child process runs: each function with the types of its arguments and of its result.
STEPS: dict[str, tuple[str, Any, Any]] = {
    "apply": ("graphflops.onnx_fix.apply:apply", tuple[str, str, str, list[list[Edit]]], list[int]),
    "plan": ("graphflops.onnx_fix.sessions:planned", tuple[str, str, dict[str, int]], list[Run]),
    "compare": ("graphflops.onnx_fix.sessions:compared", tuple[str, str, str, list[Run], bool], Verdict),
}


def done(step: str, arguments: bytes) -> bytes:
    """Do a step, in the process that was asked to; its arguments and what it finds are JSON."""
    function, kind, _ = STEPS[step]
    return msgspec.json.encode(imported(function)(*msgspec.json.decode(arguments, type=kind)))
