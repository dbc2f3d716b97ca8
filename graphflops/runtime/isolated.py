"""Runs a program from a file in a child process: a stranger may have written it, and it may crash torch or onnxruntime.

The child answers with JSON, which is checked here; nothing that it sends is unpickled. What it prints is escaped.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
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
_TURN, _GRACE = 0.2, 10.0  # seconds between looks at children, and that the others have once one ended
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
    path: str, repeats: int, options: Mapping[str, Any], limits: ChildLimits, rule_files: Sequence[str]
) -> Validation:
    """Validate the program of a file in a child process. options: as for `prepared`.

    Raises the errors of the child, and RunError if it ends without an answer or after the limit of its time.
    """
    with tempfile.TemporaryDirectory(prefix="graphflops") as folder:
        request = {
            "model": path,
            "repeats": repeats,
            "options": {**options, "inputs": _stored(options["inputs"], folder)},
            "limits": asdict(limits),
            "rule_files": [*rule_files],
        }
        return read(answered(child_command("validate", request), limits.seconds, path), path)


def read(found: msgspec.Raw, path: str) -> Validation:
    """The validation that a child sent."""
    try:
        validation: Validation = _KIND.read(Session(), msgspec.json.decode(found, type=_KIND.json))  # type: ignore[misc]
    except msgspec.DecodeError as error:
        raise RunError(f"{shown(path)}: the process that ran it sent no validation: {error}") from None
    return validation


def child_command(task: str, request: Mapping[str, Any]) -> list[str]:
    """The command of a child that imports what this process imports; the current folder is not searched for modules."""
    paths = [path for path in sys.path if path]
    code = (
        f"import sys; sys.path[:] = {paths!r}; from graphflops.runtime.child import main; main(*sys.argv[1:])"
    )
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
    return answers([command], seconds, path)[0]


def answers(commands: Sequence[Sequence[str]], seconds: float, path: str) -> list[msgspec.Raw]:
    """What children that run at the same time find: the first that fails ends the others, which may wait for it."""
    children: list[_Child] = []
    try:
        children += [_Child(command) for command in commands]
        _wait(children, seconds, path)
    finally:
        for child in children:
            child.end()
    found = [child.answer(path) for child in sorted(children, key=lambda child: child.is_ended_by_us)]
    for answer in found:
        if answer.error:
            raise _error(answer)
    return [answer.found for answer in found]


def _wait(children: Sequence[_Child], seconds: float, path: str) -> None:
    """Until all ended, or some have for longer than the others take to notice."""
    end, grace = time.monotonic() + seconds, _GRACE
    while running := [child for child in children if child.process.poll() is None]:
        grace -= _TURN * (len(running) < len(children))
        if time.monotonic() > end:
            raise RunError(
                f"{shown(path)}: the run took longer than {seconds:g} s and was ended: give a larger --time-limit"
            )
        if grace < 0:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].process.wait(min(_TURN, seconds))


class _Child:
    """A child process and what it says."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.is_ended_by_us = False
        self.said = _Reader(self.process.stdout, _ANSWER)
        self.printed = _Reader(self.process.stderr, _PRINTED)

    def end(self) -> None:
        self.is_ended_by_us = self.process.poll() is None
        self.process.kill()
        self.process.wait()
        self.said.thread.join()
        self.printed.thread.join()
        _show(self.printed.text)

    def answer(self, path: str) -> Answer:
        """RunError if there is none."""
        try:
            return msgspec.json.decode(self.said.text, type=Answer)
        except msgspec.DecodeError:
            pass
        status = self.process.returncode
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
