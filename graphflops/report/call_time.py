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
    """Seconds of one call, with the interval that holds the measured time in nine of ten cases."""

    seconds: float
    low: float
    high: float
    bound: TimeBound  # what limits it
    kernel: str = ""  # the kernels that run, by family
    collective: float = 0.0  # seconds that a collective of it runs, hidden behind other kernels or not
    exposed: float = 0.0  # those in which no other kernel runs
    waited: float = 0.0  # the part of `seconds` in which the program waits for it
    elapsed: float = 0.0  # seconds from when it could run to its end, beside other kernels
    # Row of the call that waits for it: its own where what follows does, -1: the end of the phase does, None: nothing does.
    awaited_at: int | None = None
    ahead: float = 0.0  # seconds by which it could run before the kernels that were launched before it had


class PhaseTime(Record, frozen=True):
    """Seconds of a phase, with the interval that holds the measured time in nine of ten cases."""

    seconds: float
    low: float
    high: float
    bound: TimeBound  # what limits most of it
    shares: Mapping[str, float] = field(default_factory=dict)  # the part of the time that each bound limits
    matrix_utilization: float | None = None  # reached of the published peak; None, as the next, if unknown
    bandwidth_utilization: float | None = None
    energy_joules: float | None = None  # at most, at the board's power limit
    is_lower_bound: bool = False  # calls of unknown cost are not in it
    communication: float = 0.0  # seconds that collectives run
    exposed: float = 0.0  # those in which nothing else does
