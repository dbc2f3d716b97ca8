"""How long calls and phases take on a device: what a report holds of predicted times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import field

from graphflops.base.record import Record

# matrix: its products; vector: other arithmetic; memory: bytes moved; link: bytes sent to other devices; latency: the
# shortest time of any kernel; launch: the CPU, which starts kernels later than the GPU could run them.
TimeBound = Literal["matrix", "vector", "memory", "link", "latency", "launch"]


class CallTime(NamedTuple):
    """Seconds of one call, with the interval that holds the measured time in nine of ten cases.

    bound: what limits it. kernel: the kernels that run, by family. collective: seconds that a collective of it runs, hidden
    behind other kernels or not; exposed: those in which no other kernel runs; waited: the part of `seconds` in which the
    program waits for it; elapsed: seconds from when it could run to its end, beside other kernels. awaited_at: the row of
    the call that waits for it, its own where what follows does, -1 where the end of the phase does, None where nothing does.
    ahead: seconds by which it could run before the kernels that were launched before it had.
    """

    seconds: float
    low: float
    high: float
    bound: TimeBound
    kernel: str = ""
    collective: float = 0.0
    exposed: float = 0.0
    waited: float = 0.0
    elapsed: float = 0.0
    awaited_at: int | None = None
    ahead: float = 0.0


class PhaseTime(Record, frozen=True):
    """Seconds of a phase, with the interval that holds the measured time in nine of ten cases.

    bound: what limits most of it. shares: the part of the time that each bound limits.
    matrix_utilization, bandwidth_utilization: achieved part of the published peaks; None if these are not known.
    communication: seconds that collectives run; exposed: those in which nothing else does.
    energy_joules: at most, at the board's power limit. is_lower_bound: calls of unknown cost are not in it.
    """

    seconds: float
    low: float
    high: float
    bound: TimeBound
    shares: Mapping[str, float] = field(default_factory=dict)
    matrix_utilization: float | None = None
    bandwidth_utilization: float | None = None
    energy_joules: float | None = None
    is_lower_bound: bool = False
    communication: float = 0.0
    exposed: float = 0.0
