"""The kernels that one call launches, with their times and all else that equal calls have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.kernels.kernel import Recurrence
from graphflops.report.call_time import CallTime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.devices import Host
    from graphflops.kernels.kernel import Kernel
    from graphflops.report.call_time import TimeBound
    from graphflops.time.predict import Time

_PARTS = 8  # of a recurrent layer: the GPU runs its first steps while the CPU launches the next


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The kernels of one call.

    kernel_seconds: of each, or of parts of one that stands for many. seconds: of all. low, high: ends of their interval, as
    factors. bound: of the longest. families: their names. work: bytes under "", FLOPs by element type.
    """

    kernels: tuple[Kernel, ...]
    kernel_seconds: tuple[float, ...]
    seconds: float
    low: float
    high: float
    bound: TimeBound
    families: str
    work: tuple[tuple[str, int], ...]

    @staticmethod
    def of(kernels: tuple[Kernel, ...], times: tuple[Time, ...]) -> Batch:
        """The batch of these kernels. times: of each."""
        kernel_seconds = tuple(_launched(kernels, times))
        seconds = sum([time.seconds for time in times])
        longest = max(times, key=lambda time: time.seconds, default=None)
        work: dict[str, int] = {}
        for kernel in kernels:
            work[""] = work.get("", 0) + kernel.read_bytes + kernel.written_bytes
            if kernel.flops:
                work[kernel.dtype] = work.get(kernel.dtype, 0) + kernel.flops
        return Batch(
            kernels,
            kernel_seconds,
            seconds,
            low=sum(time.low for time in times) / seconds if seconds else 1.0,
            high=sum(time.high for time in times) / seconds if seconds else 1.0,
            bound="launch" if longest is None else longest.bound,
            families=", ".join(dict.fromkeys(kernel.family for kernel in kernels)),
            work=tuple(work.items()),
        )

    def call_time(self, took: float, is_eager: bool, host: Host) -> CallTime:
        """The time of a call with its interval: that of its kernels, or of the CPU where the call waits for it.

        took: by how much the call makes the program longer. host: how much slower and faster other CPUs are.
        """
        is_launch = is_eager and took > 0 and (took > 1.5 * self.seconds or not self.kernels)
        if is_launch or not self.seconds:
            return CallTime(took, took / host.faster, took * host.slower, "launch", self.families)
        return CallTime(took, took * self.low, took * self.high, self.bound, self.families)


def _launched(kernels: Sequence[Kernel], times: Sequence[Time]) -> Iterator[float]:
    """Seconds of what the CPU launches one after the other."""
    for kernel, time in zip(kernels, times, strict=True):
        parts = _PARTS if isinstance(kernel.sizes, Recurrence) else 1
        yield from [time.seconds / parts] * parts
