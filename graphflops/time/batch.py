"""The kernels that one call launches, with their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from graphflops.devices import Host
from graphflops.kernels.kernel import Kernel, Recurrence
from graphflops.report.call_time import CallTime, TimeBound
from graphflops.time.predict import Time

_PARTS = 8  # of a recurrent layer: the GPU runs its first steps while the CPU launches the next


class Batch(Struct, frozen=True, eq=False):
    """The kernels of one call.

    kernel_seconds: of each, or of parts of one that stands for many. seconds: of all. low, high: ends of their interval, as
    factors. bound: of the longest. families: their names. work: bytes under "", FLOPs by element type. collective:
    seconds of exchanges with other devices.
    """

    kernels: tuple[Kernel, ...]
    kernel_seconds: tuple[float, ...]
    seconds: float
    low: float
    high: float
    bound: TimeBound
    families: str
    work: tuple[tuple[str, int], ...]
    collective: float = 0.0

    @staticmethod
    def of(kernels: tuple[Kernel, ...], known: Mapping[Kernel, Time]) -> Batch:
        """The batch of these kernels. known: the time of each."""
        times = [known[kernel] for kernel in kernels]
        each = [time.seconds for time in times]
        seconds = sum(each)
        longest = max(known.values(), key=lambda time: time.seconds, default=None)
        if any(isinstance(kernel.sizes, Recurrence) for kernel in known):
            counts = [_PARTS if isinstance(kernel.sizes, Recurrence) else 1 for kernel in kernels]
            pairs = zip(times, counts, strict=True)
            each = [time.seconds / count for time, count in pairs for _ in range(count)]
        work: dict[str, int] = {}
        for kernel, count in Counter(kernels).items():
            work[""] = work.get("", 0) + (kernel.read_bytes + kernel.written_bytes) * count
            if kernel.flops:
                work[kernel.dtype] = work.get(kernel.dtype, 0) + kernel.flops * count
        return Batch(
            kernels,
            tuple(each),
            seconds,
            low=sum([time.low for time in times]) / seconds if seconds else 1.0,
            high=sum([time.high for time in times]) / seconds if seconds else 1.0,
            bound="launch" if longest is None else longest.bound,
            families=", ".join(dict.fromkeys(kernel.family for kernel in known)),
            work=tuple(work.items()),
            collective=sum(known[kernel].seconds for kernel in kernels if kernel.family == "collective"),
        )

    def call_time(self, took: float, is_eager: bool, host: Host, times: int = 1) -> CallTime:
        """The time of a call with its interval: that of its kernels, or of the CPU where the call waits for it.

        took: by how much the call, which runs so often, makes the program longer. host: how much other CPUs differ from it.
        """
        is_launch = is_eager and took > 0 and (took > 1.5 * times * self.seconds or not self.kernels)
        if is_launch or not self.seconds:
            return CallTime(took, took / host.faster, took * host.slower, "launch", self.families)
        return CallTime(took, took * self.low, took * self.high, self.bound, self.families)
