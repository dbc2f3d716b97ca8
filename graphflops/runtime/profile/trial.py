"""A kernel to measure, and the clocks that measure it."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from graphflops.base.record import Record
from graphflops.kernels.kernel import Kernel

Calls = Sequence[Callable[[], object]]
_MEASURED = 1.5e-3  # seconds of one measurement; short kernels are repeated to fill it
_MOST_CALLS = 40
_MOST_SETS = 24
_ROUNDS = 3
_CPU_ROUNDS = 5
_LONGEST = 0.5  # seconds; a CPU begins no further round of a kernel after that
_MOST_RESERVED = 0.3  # of a GPU's memory; above it, memory of graphs that are measured is freed
_CACHE = 32 * 2**20  # bytes, if the system does not show the size of the CPU's last-level cache


class Trial(Record, frozen=True):
    """A kernel, and a function that prepares calls of it: one call for each set of operands."""

    kernel: Kernel
    prepare: Callable[[], Calls]
    turns: int = 1  # how often a call runs the kernel


class _Clock:
    """l2_bytes: size of the last-level cache."""

    l2_bytes: int

    def sets(self, cold_bytes: int) -> int:
        """How many sets of `cold_bytes` bytes to use in turn, so that none is in the cache when it is needed."""
        return 1 if not cold_bytes else max(1, min(_MOST_SETS, -(-3 * self.l2_bytes // cold_bytes)))


class CudaClock(_Clock):
    """Times kernels on a GPU in a CUDA graph, without the CPU's launches."""

    device, runtime = "cuda", "torch"

    def __init__(self) -> None:
        about = torch.cuda.get_device_properties(0)
        self.stream = torch.cuda.Stream()
        self.l2_bytes, self.memory_bytes = about.L2_cache_size, about.total_memory

    def seconds(self, calls: Calls) -> float:
        """Median seconds of one call. Raises RuntimeError if the device or a CUDA graph cannot run it."""
        self._give_back()
        self.stream.wait_stream(torch.cuda.current_stream())  # where the operands were made
        with torch.cuda.stream(self.stream):
            calls[0]()
            once = self._once(calls[0])
            count = max(len(calls), min(_MOST_CALLS, int(_MEASURED / max(once, 1e-6)), 4 * len(calls) + 8))
            if once > _MEASURED * 4:
                return once  # long enough to hide launches: no graph is needed
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for index in range(count):
                    calls[index % len(calls)]()
            finally:
                graph.capture_end()
            graph.replay()
            return statistics.median(self._once(graph.replay) for _ in range(_ROUNDS)) / count

    def _give_back(self) -> None:
        """Free memory of graphs that are already measured: each has its own pool, which no later graph can use."""
        if torch.cuda.memory_reserved() > _MOST_RESERVED * self.memory_bytes:
            torch.cuda.empty_cache()

    def _once(self, call: Callable[[], object]) -> float:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record(self.stream)
        call()
        ended.record(self.stream)
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1000


class CpuClock(_Clock):
    """Times calls on the CPU."""

    device, runtime = "cpu", "torch"

    def __init__(self) -> None:
        found = list[int]()
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
            text = path.read_text().strip()
            if text[:-1].isdigit():
                found.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}.get(text[-1:], 1))
        self.l2_bytes = max(found, default=_CACHE)

    def seconds(self, calls: Calls) -> float:
        """Shortest mean seconds of one call: whatever else runs on the machine only makes calls longer."""
        calls[0]()
        once = self._once(calls, 1)
        count = max(len(calls), min(_MOST_CALLS, int(_MEASURED / max(once, 1e-7))))
        times: list[float] = []
        while len(times) < _CPU_ROUNDS and sum(times) * count < _LONGEST:
            times.append(self._once(calls, count))
        return min(times)

    def _once(self, calls: Calls, count: int) -> float:
        begun = time.perf_counter()
        for index in range(count):
            calls[index % len(calls)]()
        return (time.perf_counter() - begun) / count


Clock = Any  # CudaClock, CpuClock or onnxruntime's clock: `device`, `sets`, `seconds`


def spread(count: int, *ranges: tuple[float, float]) -> list[tuple[int, ...]]:
    """Points that fill a box evenly on logarithmic axes: the R sequence, the same on every machine."""
    golden = 1.5
    for _ in range(60):  # the positive root of x^(d + 1) = x + 1
        golden = (1 + golden) ** (1 / (len(ranges) + 1))
    found = []
    for index in range(1, count + 1):
        shares = [(0.5 + index * golden ** -(axis + 1)) % 1 for axis in range(len(ranges))]
        steps = zip(shares, ranges, strict=True)
        found.append(tuple(round(low * (high / low) ** share) for share, (low, high) in steps))
    return found


@cache
def _generator(device: str) -> torch.Generator:
    """A generator of our own: torch's stays unusable after the capture of a graph fails."""
    return torch.Generator(device).manual_seed(0)


def random(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Normally distributed numbers, because a GPU multiplies zeros faster; small integers for integer types."""
    given = {"device": device, "generator": _generator(device)}
    if not dtype.is_floating_point:
        return torch.randint(-8, 8, tuple(shape), dtype=dtype, **given)
    made = dtype if dtype.itemsize > 1 else torch.bfloat16
    return torch.randn(*shape, dtype=made, **given).to(dtype)
