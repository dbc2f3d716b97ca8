"""Which memory a program holds when: what a report says of it, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.dims import Dim

HeldKind = Literal[
    "input", "value", "saved", "workspace", "nested", "gradient",
    "weight", "buffer", "optimizer", "temporary", "library",
]  # fmt: skip
# The entry of a ledger that memory of a kind is part of.
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
    held: tuple[Held, ...] = ()  # in the order in which it is let go
    gradients_from: int | None = None  # the first moment of the gradients, None outside of training

    @property
    def own(self) -> Timeline:
        """What is held beside weights and the like."""
        return replace(self, held=tuple([held for held in self.held if held.kind not in LASTING]))

    def live_bytes(self, sizes: Sequence[int]) -> list[int]:
        """Bytes alive at each moment. sizes: bytes by entry of `held`. A library's workspace stays from run to run."""
        changes = [0] * (len(self.rows) + 1)
        for held, size in zip(self.held, sizes, strict=True):
            changes[0 if held.kind == "library" else held.first] += size
            changes[held.last + 1] -= size
        return [*accumulate(changes)][:-1]
