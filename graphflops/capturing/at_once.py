"""Runs functions at the same time, in forked processes."""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING

from graphflops.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection


def at_once(functions: Sequence[Callable[[], None]]) -> None:
    """Run functions that say by files what they found: the first here, each other in a process, or one after the other
    where none can be forked. Raises the error of the first that fails; ModelError where a process is killed.
    """
    first, *others = functions
    # On macOS libraries of the system start threads that a forked process lacks.
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        for function in functions:
            function()
        return
    context = multiprocessing.get_context("fork")
    started = []
    try:
        for function in others:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(function, sender))
            process.start()
            sender.close()  # so that the end of the process is the end of what it sends
            started.append((process, receiver))
        first()
        for _, receiver in started:
            if (error := _received(receiver)) is not None:
                raise error
    finally:
        for process, _ in started:
            process.terminate()
            process.join()


def _run(function: Callable[[], None], sender: Connection) -> None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 raised by the process that waits
        sender.send(error)
    else:
        sender.send(None)


def _received(receiver: Connection) -> Exception | None:
    try:
        found: Exception | None = receiver.recv()
    except EOFError:
        found = ModelError("a process that exports was killed: capture one --phase, which takes less memory")
    return found
