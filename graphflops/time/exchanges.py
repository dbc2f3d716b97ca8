"""Collectives that run beside other kernels: started where they are called, waited for where their results are first read.

NCCL has a stream of its own. PyTorch's functional collectives return at once, and the stream of the other kernels waits when
a result is first read, other than by a view. An export writes the wait down right after the call; one that stands further
down was written by the user, and waits there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from graphflops.kernels.kernel import Kernel
    from graphflops.passes.program import PricedCall

Part = Literal["all", "start", "wait"]


class Launches(NamedTuple):
    """What one call launches in one phase.

    row: index of its row. kernels: None where they cannot be told: the operator has no rule, or a size is open.
    host_seconds: CPU time of the call in eager execution. times: how often it runs. waits: whether the CPU then waits
    for the GPU. part: of a collective its start, or the wait for its end; ticket: which of them.
    """

    row: int
    kernels: tuple[Kernel, ...] | None
    host_seconds: float
    times: int = 1
    waits: bool = False
    part: Part = "all"
    ticket: int = 0


@dataclass(slots=True)
class Exchanges:
    """The collectives that have started and are not waited for yet.

    pending: by value that a collective writes, or a view of it, its start. fresh: values whose wait is written right after.
    """

    pending: dict[str, Launches] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    tickets: int = 0

    def started(self, launch: Launches, outputs: Iterable[str | None]) -> Iterator[Launches]:
        """What a collective launches: copies as any kernel, then its start; nobody waits yet."""
        kernels = launch.kernels or ()
        self.tickets += 1
        start = launch._replace(kernels=kernels[-1:], host_seconds=0.0, part="start", ticket=self.tickets)
        yield launch._replace(kernels=kernels[:-1])
        yield start
        names = [name for name in outputs if name is not None]
        self.pending.update(dict.fromkeys(names, start))
        self.fresh = set(names)

    def waited(self, call: PricedCall, *, is_view: bool) -> Iterator[Launches]:
        """The waits before a call. is_view: whether it computes nothing, so that its results are pending too."""
        read = [name for name in call.uses if name in self.pending]
        is_wait = call.node.operator.name == "wait_tensor"
        if not is_wait:
            self.fresh = set()
        if read and (self.fresh.issuperset(read) if is_wait else is_view):
            start = self.pending[read[0]]
            self.pending.update((name, start) for name in call.node.outputs if name is not None)
            return
        yield from self.ends(self.pending if call.estimate.regions else read)

    def ends(self, names: Iterable[str]) -> Iterator[Launches]:
        """The waits for the collectives that write these values."""
        found = {start.ticket: start for name in names if (start := self.pending.get(name)) is not None}
        for start in found.values():
            yield start._replace(part="wait")
        self.pending = {name: start for name, start in self.pending.items() if start.ticket not in found}

    def all_ends(self) -> Iterator[Launches]:
        """The waits for all that is still running, at the end of a graph."""
        yield from self.ends([*self.pending])


def awaited_later(calls: Sequence[PricedCall]) -> frozenset[str]:
    """Names of the collectives whose wait does not stand right after them."""
    maker: dict[str | None, str] = {}
    fresh: set[str | None] = set()
    late: set[str] = set()
    for call in calls:
        operator = call.node.operator
        if operator.is_exchange:
            fresh = set(call.node.outputs)
            maker.update(dict.fromkeys(fresh, call.node.name))
        elif operator.name != "wait_tensor":
            fresh = set()
        elif not fresh.issuperset(call.uses):
            late.update(maker[name] for name in call.uses if name in maker)
    return frozenset(late)
