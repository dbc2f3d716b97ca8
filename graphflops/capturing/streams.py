"""Streams and events that a step names itself: they are pretended, for the machine has no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest import mock

import torch

from graphflops.devices import HOPPER


class Stream:
    """A stream of a GPU that does not exist: only which calls are in it is known. Waits cost nothing: calls run in order."""

    running: list[Stream] = []  # noqa: RUF012 - of the process, as a GPU's are
    numbers = count()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(Stream.numbers)

    def record_event(self, event: Event | None = None) -> Event:
        return Event() if event is None else event

    def query(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        """Nothing to wait for."""

    wait_stream = wait_event = wait = synchronize

    def __enter__(self) -> Stream:
        Stream.running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        Stream.running.pop()


class Event(Stream):
    """An event of such a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """It has no number."""

    record = Stream.synchronize

    def elapsed_time(self, _: Event) -> float:
        return 0.0


def _set(stream: Stream) -> None:
    Stream.running[-1] = stream


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Within it torch.cuda has streams, the first of which calls are in."""
    Stream.numbers = count()
    default = Stream()
    Stream.running = [default]
    instead: dict[str, Any] = {"Stream": Stream, "Event": Event, "set_stream": _set}
    instead["stream"] = lambda stream: stream or contextlib.nullcontext()
    instead |= {"default_stream": lambda *_: default, "current_stream": lambda *_: Stream.running[-1]}
    doing_nothing = ("synchronize", "set_device", "reset_peak_memory_stats")
    instead |= dict.fromkeys(doing_nothing, default.synchronize)
    instead |= {"current_device": lambda: 0, "get_device_capability": lambda *_: HOPPER.capability}
    used = mock.patch.object(torch.Tensor, "record_stream", Stream.synchronize)
    with mock.patch.multiple(torch.cuda, **instead), used:
        yield
