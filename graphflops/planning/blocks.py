"""What a device runs of a part of a program: kernels and exchanges one after the other, and collectives beside them."""

from __future__ import annotations

from typing import NamedTuple

from graphflops.time.schedule import beside


class Work(NamedTuple):
    """Kernels, or what is sent along axes of the mesh. nbytes: of a device's operand. ring: what is sent while they run."""

    name: str
    seconds: float
    axes: tuple[str, ...] = ()
    nbytes: int = 0
    ring: Work | None = None

    @property
    def whole(self) -> float:
        """Seconds of all of it."""
        return self.seconds if self.ring is None else beside(self.seconds, self.ring.seconds)

    def again(self, share: float) -> Work:
        """So much of it once more."""
        ring = None if self.ring is None else self.ring.again(share)
        name = self.name if self.axes else "recomputation"
        return Work(name, self.seconds * share, self.axes, int(self.nbytes * share), ring)


class Block(NamedTuple):
    """A part of a program for one micro-batch, forward or backward. works: one after the other. sharded: gathers of weights
    and sums of their gradients, beside all of them.
    """

    works: tuple[Work, ...]
    sharded: tuple[Work, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all of it."""
        return beside(sum([one.whole for one in self.works]), sum([one.seconds for one in self.sharded]))
