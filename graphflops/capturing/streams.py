"""Fakes `torch.cuda` on a machine without a GPU, with streams and events, which a step may create."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist

from graphflops.devices import HOPPER, device


class Stream:
    """A fake stream: it only identifies the calls in it. Waits do nothing, because calls run in program order."""

    running: list[Stream] = []  # noqa: RUF012 - of the process, as a GPU's are
    numbers = count()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(Stream.numbers)

    def record_event(self, event: Event | None = None) -> Event:
        return Event() if event is None else event

    def query(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        """Does nothing: there is nothing to wait for."""

    wait_stream = wait_event = wait = synchronize

    def __enter__(self) -> Stream:
        Stream.running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        Stream.running.pop()


class Event(Stream):
    """An event of a fake stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Takes no number: an event is not a stream."""

    record = Stream.synchronize

    def elapsed_time(self, _: Event) -> float:
        return 0.0


def _set(stream: Stream) -> None:
    Stream.running[-1] = stream


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Within this context, torch.cuda has an H200 for each rank, and streams; calls run in the default one at first."""
    Stream.numbers = count()
    default = Stream()
    Stream.running = [default]
    instead: dict[str, Any] = {"Stream": Stream, "Event": Event, "set_stream": _set}
    instead["stream"] = lambda stream: stream or contextlib.nullcontext()
    instead |= {"default_stream": lambda *_: default, "current_stream": lambda *_: Stream.running[-1]}
    doing_nothing = ("synchronize", "set_device", "reset_peak_memory_stats")
    instead |= dict.fromkeys(doing_nothing, default.synchronize)
    facts = {"total_memory": device("h200").memory_bytes, "multi_processor_count": HOPPER.multiprocessors}
    major, minor = HOPPER.capability
    gpu = SimpleNamespace(name="NVIDIA H200", major=major, minor=minor, **facts)
    instead["device_count"] = lambda: dist.get_world_size() if dist.is_initialized() else 1
    instead |= {"is_available": lambda: True, "current_device": lambda: 0}
    instead |= {"get_device_capability": lambda *_: HOPPER.capability, "get_device_name": lambda *_: gpu.name}
    instead |= {"get_device_properties": lambda *_: gpu, "mem_get_info": lambda *_: (gpu.total_memory,) * 2}
    instead |= {"device": lambda *_: contextlib.nullcontext(), "is_current_stream_capturing": lambda: False}
    with (
        mock.patch.multiple(torch.cuda, **instead),
        # torch would ask the driver, which may be missing, whether a stream is capturing a CUDA graph.
        mock.patch.object(torch.accelerator, "is_available", return_value=False),
        mock.patch.object(torch.Tensor, "record_stream", Stream.synchronize),
        mock.patch.object(torch.cuda.nvtx, "_nvtx", mock.Mock()),
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=True),
    ):
        yield
