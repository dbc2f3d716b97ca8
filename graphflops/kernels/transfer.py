"""Copies between the memory of the host and that of the device: what offloading keeps away, and brings back.

Memory of the host is pinned, and the bus reads and writes it as fast as it can, or pageable: then the CPU copies too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from graphflops.graph import HOST_KINDS, Step, StorageKind
from graphflops.kernels.kernel import Kernel
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

TO_HOST = "to_host"
PINNED = ".pinned"  # after the direction


class Transfer(NamedTuple):
    """Which way a call copies, and through which memory of the host: `to_host`, `to_device.pinned`."""

    variant: str

    @property
    def waits(self) -> bool:
        """Whether the CPU waits for it: `save_on_cpu` of PyTorch does for all but what comes back from pinned memory."""
        return self.variant.startswith(TO_HOST) or not self.variant.endswith(PINNED)

    def kernel(self, value: TensorType) -> Kernel:
        """The copy of a tensor."""
        size = cast("int", value.like().nbytes)  # a recorded step has no open sizes
        return Kernel("transfer", value.dtype.name, 0, 0, size, size, variant=self.variant)


def hosted(step: Step) -> dict[str, StorageKind]:
    """Values in the host's memory, counters of optimizers apart, with the kind of that memory."""
    kinds = [memory.kind for memory in step.storages]
    return {name: kinds[at] for name, (at, _, _) in step.places.items() if kinds[at] in HOST_KINDS}


def transfer(call: PricedCall, kinds: Mapping[str, StorageKind]) -> Transfer | None:
    """What a call of a recorded step copies between the two memories; None for others. kinds: of the host's, by value."""
    given, made = call.uses[:1], call.node.outputs[:1]
    if not given or not made or (given[0] in kinds) == (made[0] in kinds):
        return None
    direction, name = (TO_HOST, made[0]) if made[0] in kinds else ("to_device", given[0])
    return Transfer(direction + (PINNED if kinds[name or ""] == "pinned" else ""))
