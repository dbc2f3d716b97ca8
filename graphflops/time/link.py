"""Collectives of one device in the order of their starts, beside its other kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

# How fast a collective and another kernel run while both do, of their speed alone: they share multiprocessors and memory.
# Fitted to 24 pairs of a collective and products or copies on two H200.
_EXCHANGE_SPEED, _KERNEL_SPEED = 0.6, 0.8
_HANDOVER = 6e-6  # seconds until a stream goes on after an event of another
_TAIL = 50e-6  # seconds before the end of a product in which its last tiles leave multiprocessors
_SHORT = 0.2  # of a product's time is the longest tail
_NOTHING = 1e-12  # seconds


@dataclass(slots=True)
class _Exchange:
    """A collective: from when it may run, and seconds of it that are left."""

    ticket: int
    ready: float
    left: float


@dataclass(slots=True)
class Link:
    """The stream of collectives: one runs after the other.

    now: until when it is known what ran. has_begun: whether the first of the queue runs. ends: by ticket, of what is done.
    """

    queue: list[_Exchange] = field(default_factory=list)
    now: float = 0.0
    has_begun: bool = False
    ends: dict[int, float] = field(default_factory=dict)

    def start(self, ticket: int, at: float, seconds: float) -> None:
        """Queue a collective that may run once the kernels before it have."""
        self.queue.append(_Exchange(ticket, at, seconds))

    def beside(self, at: float, seconds: float, *, fills: bool) -> float:
        """When another kernel ends that starts at a moment. fills: whether it holds all multiprocessors, as products do."""
        if not self.queue:
            return at + seconds
        self._run_alone(at)
        if fills and not self._is_before(at):
            return self._blocked(at, seconds)
        left = seconds
        while left > 0 and self.queue:
            first = self.queue[0]
            if self.has_begun:
                lasts = min(left / _KERNEL_SPEED, first.left / _EXCHANGE_SPEED)
                at, left = at + lasts, left - lasts * _KERNEL_SPEED
                if self._advance(lasts * _EXCHANGE_SPEED, at) and fills:
                    return self._blocked(at, left)
            else:
                lasts = min(left, max(first.ready - at, 0.0))
                at, left = at + lasts, left - lasts
                self.has_begun = at >= first.ready
        self.now = at + max(left, 0.0)
        return self.now

    def end(self, ticket: int) -> float:
        """When a collective ends for which other kernels wait."""
        while ticket not in self.ends:
            first = self.queue[0]
            begin = self.now if self.has_begun else max(self.now, first.ready)
            self.now = begin + first.left
            self._advance(first.left, self.now)
        return self.ends.pop(ticket)

    def _is_before(self, at: float) -> bool:
        """Whether a collective runs at a moment, or gets multiprocessors before a product that starts then."""
        self.has_begun = bool(self.queue) and (self.has_begun or self.queue[0].ready + _HANDOVER <= at)
        return self.has_begun

    def _blocked(self, at: float, seconds: float) -> float:
        """When a kernel ends that holds all multiprocessors: a collective begins only beside its last tiles."""
        self.now = at + seconds - min(_TAIL, _SHORT * seconds)
        self._run_alone(at + seconds)
        return at + seconds

    def _run_alone(self, until: float) -> None:
        """Run the queue while no other kernel runs."""
        while self.queue and self.now < until:
            first = self.queue[0]
            if not self.has_begun and first.ready + _HANDOVER > until:
                break
            self.now = self.now if self.has_begun else max(self.now, first.ready)
            self.has_begun = True
            lasts = min(first.left, until - self.now)
            self.now += lasts
            self._advance(lasts, self.now)
        self.now = max(self.now, until)

    def _advance(self, seconds: float, at: float) -> bool:
        """Take so many seconds off the first collective. True if it ends then, and the next one is ready."""
        first = self.queue[0]
        first.left -= seconds
        if first.left >= _NOTHING:
            return False
        self.ends[first.ticket] = at
        self.queue.pop(0)
        self.has_begun = False
        if self.queue:
            self.queue[0].ready = max(self.queue[0].ready, at)
        return True
