"""Streams, events and memory of the host that a step names itself, on a machine that has no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest import mock

import torch

from graphflops.capturing.gpu_functions import Around, OnCpu
from graphflops.capturing.recorder import Recorder

_MOVING = (torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to)


class Stream:
    """A stream of a GPU that does not exist: only which calls are in it is known. Waits cost nothing: calls run in order."""

    running: list[Stream] = []  # noqa: RUF012 - of the process, as a GPU's are
    numbers = count()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(Stream.numbers)

    def record_event(self, event: Event | None = None) -> Event:
        """An event of this moment."""
        return Event() if event is None else event

    def query(self) -> bool:
        """All is done."""
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
        """Nothing is measured."""
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
    instead["synchronize"] = default.synchronize
    used = mock.patch.object(torch.Tensor, "record_stream", Stream.synchronize)
    with mock.patch.multiple(torch.cuda, **instead), used:
        yield


class HostMemory(Around):
    """Tells a recorder what a step itself copies to the host: `.cpu()`, `.to("cpu")`, and into memory that is pinned.

    Devices are the CPU here too: `.to("cpu")` means the host where something names a GPU, `.to(x.device)` never does.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder, self.is_busy = recorder, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _MOVING and not self.is_busy:  # it may be entered twice
            self.is_busy = True
            try:
                return self.moved(func, args, given)
            finally:
                self.is_busy = False
        made = func(*args, **given)
        if given.get("pin_memory") and "empty" in getattr(func, "__name__", ""):
            self.recorder.on_host(made, is_pinned=True)
        return made

    def moved(self, func: Any, args: Any, given: Any) -> Any:
        """What a function gives that may copy to the host, or back."""
        places = [one for one in (*args[1:], *given.values()) if isinstance(one, (str, torch.device))]
        is_away, is_async = self.recorder.is_on_host(args[0]), bool(given.get("non_blocking"))
        is_named = OnCpu.names_gpu and "cpu" in places[:1] and isinstance(places[0], str)
        if func is torch.Tensor.cpu or is_named:
            return args[0] if is_away else self.kept(func(*args, **given), args[0], is_pinned=is_async)
        if is_away and (places or func is torch.Tensor.cuda):
            return args[0].to("cpu", copy=True, non_blocking=is_async)
        return func(*args, **given)

    def kept(self, made: Any, given: Any, *, is_pinned: bool) -> Any:
        """What is copied to the host, which torch does not for a CPU."""
        copied = given.to("cpu", made.dtype, copy=True, non_blocking=is_pinned)
        self.recorder.on_host(copied, is_pinned=is_pinned)
        return copied
