"""What calls launch, and where a program waits for the collectives that it has started.

The stream of other kernels waits when a result is first read, unless a view reads it. An export records the wait right after
the call; if a wait is further down, the user wrote it, and the program waits there. PyTorch's `fully_shard` gathers a
module's parameters while the GPU still computes the module before it, and sums gradients while the backward continues.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from graphflops.base.record import replace
from graphflops.kernels.kernel import Kernel
from graphflops.passes.program import PricedCall

Part = Literal["all", "start", "wait"]
# The share of a collective's CPU time that comes after its kernel is launched, when it may already run. From the exposed
# communication of 270 steps of two GPUs on nine days (benchmarks/results/two_gpus.txt).
_AFTER = 0.5


class Launches(Struct, frozen=True):
    """What one call launches in one phase."""

    row: int  # index of its row
    kernels: tuple[Kernel, ...] | None  # None if they are not known: no rule, or an open size
    host_seconds: float  # CPU time of the call in eager execution; for a start, what follows the launch
    times: int = 1  # how often it runs
    waits: bool = False  # whether the CPU then waits for the GPU
    part: Part = "all"  # of a collective: its start, or the wait for its end
    ticket: int = 0  # the number of the collective
    is_ahead: bool = False  # whether it starts without waiting for earlier kernels
    stream: str = ""  # its stream; each group of devices has one


class Exchanges(Struct):
    """The collectives that have started but have not been waited for."""

    pending: dict[str, Launches] = {}  # by value that a collective writes, or its view: the start
    fresh: set[str] = set()  # values whose wait follows at once
    tickets: int = 0
    copied_for: str = ""  # the collective of `fully_shard` whose operand was just copied
    sums: int = 0  # the ticket of one that sums gradients, while later calls run in its stream

    def started(self, launch: Launches, made: Iterable[str | None], stream: str = "") -> Iterator[Launches]:
        """The launches of a collective: its copies, like any kernels, then its start; nothing waits for it yet."""
        kernels = launch.kernels or ()
        self.tickets += 1
        is_own = bool(kernels) and kernels[-1].variant == self.copied_for
        is_ahead = is_own and self.copied_for == "all_gather"
        self.sums, self.copied_for = self.tickets * (is_own and not is_ahead), ""
        row, times, waits = launch.row, launch.times, launch.waits
        after = _AFTER * launch.host_seconds * (bool(kernels) and kernels[-1].family == "collective")
        start = Launches(row, kernels[-1:], after, times, waits, "start", self.tickets, is_ahead, stream)
        yield replace(launch, kernels=kernels[:-1], host_seconds=launch.host_seconds - after)
        yield start
        names = [name for name in made if name is not None]
        self.pending.update(dict.fromkeys(names, start))
        self.fresh = set(names)

    def waited(self, call: PricedCall, *, is_view: bool, is_gradient: bool = False) -> Iterator[Launches]:
        """The waits before a call. is_view: whether the call computes nothing, so that its results are pending too.

        is_gradient: whether it is in a recorded backward, where `fully_shard` sums gradients in a stream of its own.
        """
        operator = call.node.operator
        if operator.copies_for:
            self.copied_for = operator.copies_for
            if operator.copies_for == "reduce_scatter":  # only one at a time: each keeps gradients alive
                started = [(name, start.kernels) for name, start in self.pending.items() if start.kernels]
                yield from self.ends(x for x, made in started if made[-1].variant == operator.copies_for)
        read = [name for name in call.uses if name in self.pending]
        if is_gradient and (not read or {self.pending[name].ticket for name in read} != {self.sums}):
            self.sums = 0
        elif is_gradient:  # calls that add up or cast summed gradients run in the stream of the sum
            if operator.is_exchange:
                self.copied_for = operator.name
            is_added = operator.kind == "elementwise" and operator.has("arithmetic") and operator.mutates
            is_view = is_view or operator.is_exchange or operator.kind == "cast" or is_added
        is_wait = operator.name == "wait_tensor"
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
            yield replace(start, part="wait", host_seconds=0.0)
        self.pending = {name: start for name, start in self.pending.items() if start.ticket not in found}


def awaited_later(calls: Sequence[PricedCall]) -> frozenset[str]:
    """Names of the collectives that are not waited for immediately."""
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
