"""One budget for the whole analysis of a file of unknown origin: units of work, address space, and a deadline.

Commands run inside `limited(...)`; other callers may do the same. Readers and passes report their work with `spend`, which
costs a comparison where nothing is limited. On SIGTERM a command ends as by an error, and leaves no temporary files.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any, Literal, NamedTuple

from graphflops.errors import LimitError, OptionError

Work = Literal[
    "calls", "rows", "characters of names", "bytes decoded", "enumerated elements", "terms of sizes"
]

SECONDS = 3600.0  # that a command may take by default
# Units of work that one analysis may take. A decoder of 70 billion parameters takes 4,700 calls and rows, 10 MB of JSON. A
# program of a million calls, the most that is read, takes a million calls and rows, and twice that if sizes are merged.
MOST: Mapping[Work, int] = {
    "calls": 10_000_000,
    "rows": 4_000_000,
    "characters of names": 2**28,
    "bytes decoded": 2**35,
    "enumerated elements": 2**35,
    "terms of sizes": 3_000_000,
}
_BASE = os.path.dirname(__file__)
_PACKAGE = os.path.dirname(_BASE)
_TOOLS = (_BASE, os.path.join(_PACKAGE, "dims"))  # what every part works with: no place to name
_ADVICE: Mapping[str, str] = {
    "terms of sizes": ": its formulas are too large, export it with fewer sizes left open"
}
# Seconds of processor time beyond it after which a loop in C that never returns to Python is ended.
_GRACE = 10.0


class LimitPassed(BaseException):
    """Something was too much. No handler of other errors catches it; `limited` turns it into LimitError."""

    def __init__(self, what: str, where: str, advice: str = "") -> None:
        super().__init__(what)
        # what, advice: the sentence before and after the place. where: in the model if that is known, else in this package.
        self.what, self.where, self.advice, self.is_placed = what, where, advice, False

    def __str__(self) -> str:
        return f"{self.what} (at {self.where}){self.advice}"

    def at(self, where: str) -> None:
        """Say the place in the model; the innermost place of several counts."""
        if not self.is_placed:
            self.where, self.is_placed = where, True


class Limits(NamedTuple):
    """What may be spent: seconds, bytes of address space (None: all that there are), units of work by kind."""

    seconds: float | None = SECONDS
    memory: int | None = None
    work: Mapping[Work, int] = MOST


class _Meter:
    """What has been spent since the analysis began."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.deadline = None if limits.seconds is None else monotonic() + limits.seconds
        self.spent: dict[Work, int] = {}


_meter: _Meter | None = None
_entered = ExitStack()  # never left


def spend(kind: Work, amount: int) -> None:
    """Counts work that is about to be done; raises LimitPassed where an analysis takes too much of it."""
    if _meter is None:
        return
    spent = _meter.spent[kind] = _meter.spent.get(kind, 0) + amount
    most = _meter.limits.work[kind]
    if spent > most:
        what = f"the analysis takes more than {most:,} {kind}"
        raise LimitPassed(what, _place(sys._getframe()), _ADVICE.get(kind, ""))


def next_analysis() -> None:
    """Restarts the count of units of work for another model. The deadline is that of the whole command."""
    if _meter is not None:
        _meter.spent.clear()


def left() -> Limits | None:
    """What another process that helps may spend; None if nothing is limited."""
    if _meter is None:
        return None
    limits, deadline = _meter.limits, _meter.deadline
    seconds = None if deadline is None else max(deadline - monotonic(), 0.001)
    return Limits(seconds, limits.memory, limits.work)


def limit_process(limits: Limits) -> None:
    """Limits all that this process still does."""
    _entered.enter_context(limited(limits))


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Limits what the body does; raises LimitError, in one line that says what was too much."""
    global _meter
    outer, _meter = _meter, _Meter(limits)
    try:
        with _address_space(limits.memory), _deadline(_meter):
            yield
    except LimitPassed as passed:
        raise LimitError(str(passed)) from None
    except (MemoryError, OSError) as error:
        if limits.memory is None or getattr(error, "errno", errno.ENOMEM) != errno.ENOMEM:
            raise
        text = f"the analysis takes more than {limits.memory:,} bytes of address space, the --memory-limit"
        raise LimitError(text) from None
    finally:
        _meter = outer


@contextmanager
def _deadline(meter: _Meter) -> Iterator[None]:
    """Raises LimitPassed in the body when the time is over; ends the process if the body does not return to Python."""
    seconds = meter.limits.seconds
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not is_main or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_: int, frame: Any) -> None:
        spent = ", ".join(f"{amount:,} {kind}" for kind, amount in meter.spent.items())
        what = f"the analysis takes more than {seconds:g} s, the --time-limit"
        raise LimitPassed(what, _place(frame), f" after {spent}" if spent else "")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    # Its signal, which nobody handles, ends the process.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds + _GRACE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _place(frame: Any) -> str:
    """The line of this package that runs, whatever it calls and works with: `price.py:17`."""
    while frame is not None and (
        frame.f_code.co_filename.startswith(_TOOLS) or not frame.f_code.co_filename.startswith(_PACKAGE)
    ):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else "the start"


@contextmanager
def _address_space(most: int | None) -> Iterator[None]:
    """Makes allocations of the body fail if they would take the process past this many bytes."""
    if most is None:
        yield
        return
    try:
        import resource
    except ImportError:
        raise OptionError("--memory-limit: this system cannot limit a process's memory") from None
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    kept = [limit for limit in (most, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(kept), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_EXIT = 128 + 15  # what a shell calls a process that SIGTERM ended


@contextmanager
def cleanly_terminated() -> Iterator[None]:
    """Turns SIGTERM into SystemExit while the body runs; nothing in a thread, or where the caller handles the signal."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_EXIT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
