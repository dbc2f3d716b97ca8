"""What a device runs of a part of a program: kernels and exchanges one after the other, and collectives beside them."""

from __future__ import annotations

from typing import NamedTuple

from graphflops.time.schedule import beside


class Tally(NamedTuple):
    """FLOPs of kernels, of products and others, and bytes that they read and write; NaN where these are not known."""

    flops: float = 0.0
    nbytes: float = 0.0

    def plus(self, other: Tally, times: float = 1.0) -> Tally:
        """Both, the other so many times."""
        return Tally(self.flops + times * other.flops, self.nbytes + times * other.nbytes)

    def scaled(self, part: Tally, whole: Tally) -> Tally:
        """As much of it as a part is of a whole."""
        return Tally(
            *(one * some / all_ if all_ else 0.0 for one, some, all_ in zip(self, part, whole, strict=True))
        )


NOTHING = Tally()


class Work(NamedTuple):
    """Kernels, or what is sent along axes of the mesh."""

    name: str
    seconds: float
    axes: tuple[str, ...] = ()
    nbytes: int = 0  # of a device's operand
    ring: Work | None = None  # what is sent while they run
    tally: Tally = NOTHING  # of kernels

    @property
    def whole(self) -> float:
        """Seconds of all of it."""
        return self.seconds if self.ring is None else beside(self.seconds, self.ring.seconds)

    def again(self, share: float, part: Tally = NOTHING, whole: Tally = NOTHING) -> Work:
        """So much of it once more; of its tally as much as a part is of a whole."""
        ring = None if self.ring is None else self.ring.again(share)
        name = self.name if self.axes else "recomputation"
        return Work(
            name,
            self.seconds * share,
            self.axes,
            int(self.nbytes * share),
            ring,
            self.tally.scaled(part, whole),
        )

    def without(self, others: Work) -> Work:
        """What is left where some of its kernels run at another time."""
        return self._replace(seconds=self.seconds - others.seconds, tally=self.tally.plus(others.tally, -1))


class Block(NamedTuple):
    """A part of a program for one micro-batch, forward or backward."""

    works: tuple[Work, ...]  # one after the other
    sharded: tuple[Work, ...]  # gathers of weights and sums of their gradients, beside all of them

    @property
    def seconds(self) -> float:
        """Seconds of all of it."""
        return beside(sum([one.whole for one in self.works]), sum([one.seconds for one in self.sharded]))
