"""Adds up the times of kernels: one after the other, or as the CPU can launch them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Clock:
    """When the CPU has launched everything so far, and when the GPU has done it.

    gap: seconds between two kernels of a graph. is_eager: whether kernels wait for the CPU to launch them.
    slowness: of the CPU, by the one that the costs of calls are of. is_cpu: whether the CPU runs the kernels itself.
    link: when the last collective has ended. ends: when those end that nothing has waited for, by ticket.
    """

    is_eager: bool
    gap: float
    slowness: float = 1.0
    is_cpu: bool = False
    host: float = 0.0
    gpu: float = 0.0
    link: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)

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

    def start(self, ticket: int, kernels: Sequence[float]) -> float:
        """Start a collective once all kernels before have run, and return 0: it runs beside what follows."""
        begin = max(self.gpu, self.link, self.host if self.is_eager else 0.0)
        self.link = self.ends[ticket] = begin + sum(kernels)
        return 0.0

    def wait(self, ticket: int) -> float:
        """Let the other kernels wait for a collective, and return by how much the program takes longer."""
        before = max(self.host, self.gpu)
        self.gpu = max(self.gpu, self.ends.pop(ticket, 0.0))
        return max(self.host, self.gpu) - before
