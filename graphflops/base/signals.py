"""Ends a command on SIGTERM as an error would, so that temporary folders and half-written files are removed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_EXIT = 128 + 15  # what a shell calls a process that SIGTERM ended


@contextmanager
def cleanly_terminated() -> Iterator[None]:
    """Turns SIGTERM into SystemExit while the body runs; nothing in a thread, or where the caller handles the signal."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(_EXIT)
