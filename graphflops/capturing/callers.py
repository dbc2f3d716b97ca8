"""Who calls, of a call that is recorded: a mode of the program, or a line of its code."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STEP = "_recorded"  # the function that runs the step
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def is_of_a_mode(caller: FrameType | None) -> bool:
    """Whether a mode of the program dispatched a call, which it does in Python."""
    while caller is not None:
        if caller.f_code.co_name == "__torch_dispatch__":
            return isinstance(caller.f_locals.get("self"), TorchDispatchMode)
        if not caller.f_code.co_filename.startswith(_TORCH):
            return False
        caller = caller.f_back
    return False


def line() -> str:
    """The innermost line of code that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OURS, "<")):
            return f"{_short(name)}:{frame.f_lineno}"
        if frame.f_code.co_name == _STEP and name.startswith(_OURS):
            return ""
        frame = frame.f_back
    return ""


def _short(path: str) -> str:
    """A path from the installed packages or the working folder on."""
    _, found, rest = path.rpartition(f"site-packages{os.sep}")
    return rest if found else os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
