"""Adds up the times of kernels: one after the other, or as the CPU can launch them; collectives run beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphflops.time.link import Link

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Clock:
    """When the CPU has launched everything so far, and when the GPU has done it.

    gap: seconds between two kernels of a graph. is_eager: whether kernels wait for the CPU to launch them.
    slowness: of the CPU, by the one that the costs of calls are of. is_cpu: whether the CPU runs the kernels itself.
    link: the collectives that are not awaited yet.
    """

    is_eager: bool
    gap: float
    slowness: float = 1.0
    is_cpu: bool = False
    host: float = 0.0
    gpu: float = 0.0
    link: Link = field(default_factory=Link)

    @property
    def now(self) -> float:
        """When all that was launched has run, and in eager execution the CPU has launched it."""
        return max(self.host, self.gpu) if self.is_eager else self.gpu

    def run(self, host_seconds: float, kernels: Sequence[float], *, waits: bool = False) -> float:
        """Run one call and return by how much it takes longer.

        kernels: seconds of each. waits: whether the CPU goes on when the GPU has done it.
        """
        if self.is_cpu:  # measured kernels hold what the CPU does to start them
            return max(sum(kernels), host_seconds * self.is_eager) * self.slowness
        if not self.is_eager:
            before = self.gpu
            self.gpu += sum([seconds + self.gap for seconds in kernels])
            return self.gpu - before
        host, gpu = self.host, self.gpu
        before = max(host, gpu)
        host_seconds *= self.slowness
        if kernels:
            share = host_seconds / len(kernels)
            for seconds in kernels:
                host += share
                gpu = (gpu if gpu > host else host) + seconds
        else:
            host += host_seconds
        if waits and gpu > host:
            host = gpu
        self.host, self.gpu = host, gpu
        return max(host, gpu) - before

    def run_beside(self, host_seconds: float, kernels: Sequence[float], *, fills: bool, waits: bool) -> float:
        """The same while collectives run. fills: whether a kernel holds all multiprocessors, as a product does."""
        before = self.now
        host_seconds *= self.slowness * self.is_eager
        for seconds in kernels:
            self.host += host_seconds / len(kernels)
            self.gpu = self.link.beside(self.now, seconds, fills=fills) + (0 if self.is_eager else self.gap)
        if not kernels:
            self.host += host_seconds
        if waits:
            self.host = max(self.host, self.gpu)
        return self.now - before

    def start(self, ticket: int, seconds: float) -> float:
        """Start a collective once all kernels before have run, and return 0: it runs beside what follows."""
        self.link.start(ticket, self.now, seconds)
        return 0.0

    def wait(self, ticket: int) -> float:
        """Let the other kernels wait for a collective, and return by how much the program takes longer."""
        before = self.now
        self.gpu = max(self.gpu, self.link.end(ticket))
        return max(before, self.gpu) - before
