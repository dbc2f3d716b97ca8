"""Runs a program from a file in a child process: a stranger may have written it, and it may crash torch or onnxruntime.

The child answers with JSON, which is checked here; nothing that it sends is unpickled. What it prints is escaped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import msgspec

from graphflops import errors
from graphflops.base.json_form import JsonForms, Session
from graphflops.errors import FileError, GraphflopsError, RunError, shown
from graphflops.runtime.validation import Validation

_KIND = JsonForms({}).kind(Validation)
_PRINTED = 2**16  # bytes of what the child prints that are shown
_LINES = 20
_ANSWER = 2**31  # bytes of a validation
_OF_PYTHON = {"MemoryError": MemoryError, "RecursionError": RecursionError}


@dataclass(frozen=True)
class ChildLimits:
    """Limits of the child. seconds: wall clock. memory: bytes beyond what Python and torch hold; None for what is free."""

    seconds: float
    memory: int | None


class Answer(msgspec.Struct):
    """What the child sends: a validation, or the name of an error's class and its message."""

    found: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    message: str = ""


def validate_file(
    path: str, repeats: int, options: Mapping[str, Any], limits: ChildLimits, rule_files: Sequence[str],
    process: Mapping[str, int] | None = None,
) -> Validation:  # fmt: skip
    """Validate the program of a file in a child process. options: as for `prepared`. process: of several, which it is.

    Raises the errors of the child, and RunError if it ends without an answer or after the limit of its time.
    """
    with tempfile.TemporaryDirectory(prefix="graphflops") as folder:
        request = {
            "model": path,
            "repeats": repeats,
            "options": {**options, "inputs": _stored(options["inputs"], folder)},
            "limits": asdict(limits),
            "rule_files": [*rule_files],
            "process": process,
        }
        found = answered(child_command("validate", request), limits.seconds, path)
    try:
        read: Validation = _KIND.read(Session(), msgspec.json.decode(found, type=_KIND.json))  # type: ignore[misc]
    except msgspec.DecodeError as error:
        raise RunError(f"{shown(path)}: the process that ran it sent no validation: {error}") from None
    return read


def child_command(task: str, request: Mapping[str, Any]) -> list[str]:
    """The command of a child that imports what this process imports; the current folder is not searched for modules."""
    paths = [path for path in sys.path if path]
    run = "from graphflops.runtime.child import main; main(*sys.argv[1:])"
    code = f"import sys; sys.path[:] = {paths!r}; {run}"
    return [sys.executable, "-c", code, task, json.dumps(request)]


def encoded(found: Validation) -> bytes:
    """The answer of a child that finished."""
    raw = msgspec.json.encode(_KIND.write(Session(), found) if _KIND.write else found)
    return msgspec.json.encode(Answer(found=msgspec.Raw(raw)))


def _stored(inputs: Mapping[str, Any] | str | None, folder: str) -> str | None:
    """The path of the inputs, which are stored for the child if they are in memory."""
    if inputs is None or isinstance(inputs, str):
        return inputs
    from safetensors.torch import save_file

    path = f"{folder}/inputs.safetensors"
    save_file({name: tensor.contiguous().clone() for name, tensor in inputs.items()}, path)
    return path


def answered(command: Sequence[str], seconds: float, path: str) -> msgspec.Raw:
    """What a child that `child_command` runs finds about the file at `path`. Raises as `validate_file` does."""
    answer = _ran(command, seconds, path)
    if answer.error:
        raise _error(answer)
    return answer.found


def _ran(command: Sequence[str], seconds: float, path: str) -> Answer:
    """The answer of the child; RunError if there is none."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    answer, printed = _Reader(process.stdout, _ANSWER), _Reader(process.stderr, _PRINTED)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        limit = f"{seconds:g} s and was ended: give a larger --time-limit"
        raise RunError(f"{shown(path)}: the run took longer than {limit}") from None
    finally:
        process.kill()
        process.wait()
        answer.thread.join()
        printed.thread.join()
        _show(printed.text)
    try:
        return msgspec.json.decode(answer.text, type=Answer)
    except msgspec.DecodeError:
        pass
    how = f"exit status {status}"
    if status < 0:
        how = f"signal {-status}: torch or onnxruntime crashed, or the system ran out of memory"
    raise RunError(f"{shown(path)}: the process that ran it ended without an answer ({how})")


class _Reader:
    """Reads a stream to its end in a thread and keeps the first bytes."""

    def __init__(self, stream: IO[bytes] | None, most: int) -> None:
        self.text = b""
        self.stream = stream
        self.most = most
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        if self.stream is None:
            return
        parts: list[bytes] = []
        held = 0
        while part := self.stream.read1(2**16):  # type: ignore[attr-defined]
            if held < self.most:
                parts.append(part[: self.most - held])
                held += len(parts[-1])
        self.text = b"".join(parts)
        self.stream.close()


def _show(printed: bytes) -> None:
    """Print what the child printed, escaped and marked: no line is taken for ours or for a job's command."""
    lines = printed.decode(errors="backslashreplace").splitlines()
    for line in lines[:_LINES]:
        print("  |", shown(line.replace("##[", "# #["), 300), file=sys.stderr)
    if len(lines) > _LINES:
        print(f"  | ({len(lines) - _LINES} more lines)", file=sys.stderr)


def _error(answer: Answer) -> Exception:
    if answer.error in _OF_PYTHON:
        return _OF_PYTHON[answer.error]()
    known = getattr(errors, answer.error, None)
    if isinstance(known, type) and issubclass(known, GraphflopsError):
        return known(answer.message) if known is not errors.NoRuleError else FileError(answer.message)
    return RuntimeError(answer.message)
