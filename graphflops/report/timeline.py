"""Which memory a program holds when, and how long its calls and phases take on a device: what a report says of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from graphflops.base.record import Record, field, replace
from graphflops.dims import Dim

HeldKind = Literal[
    "input", "value", "saved", "workspace", "nested", "gradient",
    "weight", "buffer", "optimizer", "temporary", "library",
]  # fmt: skip
ENTRIES: Mapping[HeldKind, str] = {
    "weight": "weights",
    "buffer": "buffers",
    "input": "inputs",
    "value": "activations",
    "saved": "activations",
    "nested": "activations",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "workspace": "temporaries",
    "temporary": "temporaries",
    "library": "workspaces",
}
LASTING = ("weight", "buffer", "optimizer", "library")  # kinds that are alive in the whole phase
PEAKS = ("requested_peak", "allocated_peak", "reserved_peak", "device_total")


class Held(NamedTuple):
    """Memory held from one moment to another, both included; views of it are not listed."""

    name: str  # the value it holds; for a workspace, what is saved and a nested graph the call
    # input: of the program; value: a result of a call; saved: what a call keeps for its gradient beside its operands and
    # results; workspace: only during the call; nested: the peak of a graph inside the call; gradient. In the memory of a
    # device also weight, buffer, optimizer: its state, temporary: during its step, library: a workspace of cuBLAS.
    kind: HeldKind
    first: int
    last: int
    bytes: Dim


class Timeline(Record, frozen=True):
    """Which memory is held when. A moment is a call that runs, a graph nested in it at its peak, or one of its gradients."""

    # By moment, the row of the call; in training the calls come again for their gradients, the last one first. In the memory
    # of a device the optimizer's step comes last, with -1.
    rows: tuple[int, ...] = ()
    held: tuple[Held, ...] = ()  # in the order of release
    gradients_from: int | None = None  # the first moment of the gradients, None outside of training

    @property
    def own(self) -> Timeline:
        """The timeline without memory that lasts the whole phase, such as weights."""
        return replace(self, held=tuple([held for held in self.held if held.kind not in LASTING]))

    def sizes(self, value: Callable[[Dim], int | None]) -> list[int] | None:
        """Bytes of each entry of `held`; None where one has no value."""
        sizes = [value(held.bytes) for held in self.held]
        known = [size for size in sizes if size is not None]
        return known if len(known) == len(sizes) else None

    def live_bytes(self, sizes: Sequence[int]) -> list[int]:
        """Bytes alive at each moment. sizes: bytes by entry of `held`. A library's workspace stays from run to run."""
        changes = [0] * (len(self.rows) + 1)
        for held, size in zip(self.held, sizes, strict=True):
            changes[0 if held.kind == "library" else held.first] += size
            changes[held.last + 1] -= size
        return [*accumulate(changes)][:-1]


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
    # Row of the call that waits for it: its own if the next call does, -1 for the end of the phase, None if nothing does.
    awaited_at: int | None = None
    ahead: float = 0.0  # seconds by which it could run before the kernels that were launched before it had
    group: str = ""  # of a collective: the name of the group of devices that exchange


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
