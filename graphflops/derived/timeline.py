"""When each call of a report runs, in predicted seconds, and which calls depend on which by the memory that they touch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from graphflops.derived.items import outside_of_calls
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.report.timeline import CallTime

_NOTHING = 1e-12  # seconds


class Span(NamedTuple):
    """A call's run, with start and end in seconds from the start."""

    phase: str  # forward, backward or optimizer
    row: int  # of the call, -1 outside of calls
    time: CallTime | None  # of the call; None if unknown, or outside of calls
    start: float
    end: float
    is_gradient: bool = False  # whether it is the call's gradients that run
    stream: str | None = None  # the group of a collective; None for calls
    waits: tuple[int, ...] = ()  # indices of the spans of collectives that must end first


def timeline(report: Report, micro_steps: int = 1) -> list[Span]:
    """The spans in launch order; calls that take no time are left out unless they count work.

    The gradients follow the forward, last call first. The optimizer follows after `micro_steps` of both. A call whose time
    is unknown, or whose work runs in another call's kernel, is a span of length 0 without a time.
    """
    found, rows, others = _Timeline(report), report.rows, outside_of_calls(report)
    backward = [at for at in reversed(range(len(rows))) if rows[at].backward_time or rows[at].backward]
    for _ in range(micro_steps):
        found.phase("forward", range(len(rows)), others.get("forward", 0.0))
        found.phase("backward", backward, others.get("backward", 0.0))
    if report.optimizer is not None and report.optimizer.time is not None:
        found.add("optimizer", -1, None, report.optimizer.time.seconds)
    return found.spans


class _Timeline:
    """The stream of calls, and one stream for each group of devices."""

    def __init__(self, report: Report) -> None:
        self.rows = report.rows
        self.spans: list[Span] = []
        self.clock = 0.0  # when the calls so far end
        self.sent: dict[str, float] = {}  # by group, when its collectives so far end
        self.awaited: dict[int, list[int]] = {}  # by row, the collectives that its call waits for
        self.due: list[int] = []  # the collectives that the next call waits for

    def phase(self, phase: str, rows: Sequence[int], outside: float) -> None:
        """Adds the calls of a phase in order. outside: seconds before them that belong to no call."""
        if outside:
            self.add(phase, -1, None, outside)
        for row in rows:
            self.call(phase, row)
        self.due += [place for waiting in self.awaited.values() for place in waiting]
        self.awaited.clear()

    def call(self, phase: str, at: int) -> None:
        """Adds a call or its gradients, and the collective that it starts."""
        row, is_gradient = self.rows[at], phase == "backward"
        time, cost = (row.backward_time, row.backward) if is_gradient else (row.time, row.cost)
        phase = phase if is_gradient else row.phase
        self.due += self.awaited.pop(at, ())
        if time is None:
            if row.state == "unknown" or cost:
                self.add(phase, at, None, 0.0, is_gradient)
            return
        own = time.seconds - time.waited
        after = min(time.ahead, max(own, 0.0))  # seconds of the CPU after the collective has started
        if own - after > _NOTHING or (cost and not time.collective):
            self.add(phase, at, time, max(own - after, 0.0), is_gradient)
        if time.collective:
            start = max(self.sent.get(time.group, 0.0), self.ready() + after - time.ahead)
            end = self.sent[time.group] = start + time.elapsed
            place, waits = len(self.spans), tuple(self.due)
            self.spans.append(Span(phase, at, time, start, end, is_gradient, time.group, waits))
            if time.awaited_at == at:
                self.due.append(place)
            elif time.awaited_at is not None:
                self.awaited.setdefault(time.awaited_at, []).append(place)
            if after > _NOTHING:
                self.add(phase, -1, None, after)

    def ready(self) -> float:
        """When the calls so far end, and the collectives that the next call waits for."""
        return max([self.clock, *(self.spans[place].end for place in self.due)])

    def add(
        self, phase: str, row: int, time: CallTime | None, seconds: float, is_gradient: bool = False
    ) -> None:
        start = self.ready()
        self.clock = start + seconds
        self.spans.append(Span(phase, row, time, start, self.clock, is_gradient, None, tuple(self.due)))
        self.due.clear()


_Extent = tuple[str | int, int, int]  # a memory, and the start and end of a range of its bytes
_Use = tuple[int, int, bool, str | None]  # start and end of a range, whether it is written, and the stream


class Memory:
    """For each memory, the span that wrote it last and the spans that have read it since.

    Values of a recorded step lie in its storages. In other programs each value has memory of its own, except that views and
    other results of calls without a kernel share their operands' memory, as do results of in-place calls. Gradients share
    no memory with values.
    """

    def __init__(self, report: Report) -> None:
        step = None if report.program is None else report.program.step
        self.extents: dict[str, tuple[_Extent, ...]] = {}
        self.uses: dict[str | int, dict[_Use, int]] = {}
        if step is not None:
            self.extents = {name: (extent,) for name, extent in step.places.items()}
            return
        for row in report.rows:
            if row.time is not None and not row.time.kernel:
                self._share(_names(row.outputs), _names(row.inputs))
            elif operator(row.op).mutates:
                self._share(_names(row.outputs), _names(row.inputs)[:1])
        for row in reversed(report.rows):
            if row.backward_time is not None and not row.backward_time.kernel:
                self._share(_gradients(_names(row.inputs)), _gradients(_names(row.outputs)))

    def touched(self, span: Span, row: Row, place: int) -> set[int]:
        """The indices of the spans that a span depends on: it reads their results, or overwrites memory that they used.

        The launch or copy before a collective in the same call only reads.
        """
        reads, writes = _names(row.inputs), _names(row.outputs)
        if span.is_gradient:
            reads, writes = [*reads, *_gradients(writes)], _gradients(reads)
        if span.time is not None and not span.time.kernel:
            return set()
        if span.time is not None and span.time.collective and span.stream is None:
            writes = []
        uses = [*((name, False) for name in reads), *((name, True) for name in writes)]
        return {user for name, is_write in uses for user in self._use(name, span, place, is_write)} - {place}

    def _use(self, name: str, span: Span, place: int, writes: bool) -> Iterator[int]:
        for memory, begin, end in self._extents(name):
            uses = self.uses.setdefault(memory, {})
            for (first, last, wrote, _), user in [*uses.items()]:
                if (wrote or writes) and first < end and begin < last:
                    yield user
            if writes:
                over = [use for use in uses if begin <= use[0] and use[1] <= end]
                for use in over:
                    del uses[use]
            uses[begin, end, writes, span.stream] = place

    def _extents(self, name: str) -> tuple[_Extent, ...]:
        return self.extents.get(name, ((name, 0, 1),))

    def _share(self, names: Iterable[str], others: Iterable[str]) -> None:
        shared = [extent for other in others for extent in self._extents(other)]
        for name in names:
            self.extents[name] = tuple(dict.fromkeys([*self._extents(name), *shared]))


def _names(values: Iterable[tuple[str, object]]) -> list[str]:
    return [name for name, _ in values]


def _gradients(names: Iterable[str]) -> list[str]:
    return [f"gradient of {name}" for name in names]
