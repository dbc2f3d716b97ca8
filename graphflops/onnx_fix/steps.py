"""The steps of a fix that read weights or run calls: each in a child process, which a hostile file may crash or hang."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
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

    def applied(self, source: str, target: str, fixes: Sequence[Sequence[Edit]]) -> list[int]:
        """Write the file at `source` with the fixes to `target`; the places of those that could be applied."""
        return self._asked("apply", (source, target, self.folder, fixes), list[int], _LARGEST)  # type: ignore[no-any-return]

    def planned(self, dims: dict[str, int]) -> list[Run]:
        """Three runs that the file can do. Raises RunError where it can do none."""
        return self._asked("plan", (self.path, self.folder, dims), list[Run])  # type: ignore[no-any-return]

    def compared(self, new: str, runs: Sequence[Run], exact: bool) -> Verdict:
        """Whether the file and the new one give the same results."""
        return self._asked("compare", (self.path, new, self.folder, runs, exact), Verdict)  # type: ignore[no-any-return]

    def _asked(self, step: str, arguments: tuple[Any, ...], kind: Any, writes: int = 0) -> Any:
        with tempfile.NamedTemporaryFile(prefix="graphflops") as file:
            file.write(msgspec.json.encode(arguments))
            file.flush()
            request = {"arguments": file.name, "seconds": self.seconds, "writes": writes}
            found = answered(child_command(step, request), self.seconds, self.path)
        return msgspec.json.decode(found, type=kind)


# What the child process runs: each function with the types of its arguments.
STEPS: dict[str, tuple[str, Any]] = {
    "apply": ("graphflops.onnx_fix.apply:apply", tuple[str, str, str, list[list[Edit]]]),
    "plan": ("graphflops.onnx_fix.sessions:planned", tuple[str, str, dict[str, int]]),
    "compare": ("graphflops.onnx_fix.sessions:compared", tuple[str, str, str, list[Run], bool]),
}


def done(step: str, arguments: bytes) -> bytes:
    """Do a step, in the process that was asked to; its arguments and what it finds are JSON."""
    function, kind = STEPS[step]
    return msgspec.json.encode(imported(function)(*msgspec.json.decode(arguments, type=kind)))
