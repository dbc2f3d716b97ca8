"""What of a report runs when, in the predicted seconds, and which of its calls depend on which, by the memory they touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from graphflops.derived.items import outside_of_calls
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.report.timeline import CallTime

_NOTHING = 1e-12  # seconds


class Span(NamedTuple):
    """What runs from one moment to another, in seconds from the start."""

    phase: str  # forward, backward or optimizer
    row: int  # of the call, -1 outside of calls
    time: CallTime | None  # of the call, None where it is not known, or outside of calls
    start: float
    end: float
    is_gradient: bool = False  # of the call's gradients
    stream: str | None = None  # of a collective, the name of the group that has it; None of calls
    waits: tuple[int, ...] = ()  # places of the collectives among the spans that have to end before


def timeline(report: Report, micro_steps: int = 1) -> list[Span]:
    """The spans in the order in which they are launched; calls that take no time only where they count work.

    The gradients follow the forward, last call first, and the optimizer follows them, after so many micro-steps. A call
    whose time is not known, or that the kernel of another one runs, is a span of no length without a time.
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
    """The stream of calls, and one for each group of devices."""

    def __init__(self, report: Report) -> None:
        self.rows = report.rows
        self.spans: list[Span] = []
        self.clock = 0.0  # when the calls so far have run
        self.sent: dict[str, float] = {}  # and the collectives of each group
        self.awaited: dict[int, list[int]] = {}  # by row, the collectives that its call waits for
        self.due: list[int] = []  # those that the next call waits for

    def phase(self, phase: str, rows: Sequence[int], outside: float) -> None:
        """The calls of a phase in their order. outside: seconds that belong to none, before them."""
        if outside:
            self.add(phase, -1, None, outside)
        for row in rows:
            self.call(phase, row)
        self.due += [place for waiting in self.awaited.values() for place in waiting]
        self.awaited.clear()

    def call(self, phase: str, at: int) -> None:
        """A call or its gradients, and the collective that it starts."""
        row, is_gradient = self.rows[at], phase == "backward"
        time, cost = (row.backward_time, row.backward) if is_gradient else (row.time, row.cost)
        phase = phase if is_gradient else row.phase
        self.due += self.awaited.pop(at, ())
        if time is None:
            if row.state == "unknown" or cost:
                self.add(phase, at, None, 0.0, is_gradient)
            return
        own = time.seconds - time.waited
        after = min(time.ahead, max(own, 0.0))  # what the CPU takes once a collective has started
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
        """When the calls so far have run, and the collectives that the next one waits for."""
        return max([self.clock, *(self.spans[place].end for place in self.due)])

    def add(
        self, phase: str, row: int, time: CallTime | None, seconds: float, is_gradient: bool = False
    ) -> None:
        """What takes so long in the stream of calls."""
        start = self.ready()
        self.clock = start + seconds
        self.spans.append(Span(phase, row, time, start, self.clock, is_gradient, None, tuple(self.due)))
        self.due.clear()


_Extent = tuple[str | int, int, int]  # memory, and the bytes there from the begin to the end
_Use = tuple[int, int, bool, str | None]  # bytes there; whether it writes them, and its stream


class Memory:
    """Who wrote memory last, and who has read it since.

    Values of a recorded step lie in its storages. Elsewhere each value has memory of its own, which the results of calls
    that run no kernel share, as views do, and those of calls that write in place. A gradient has that of no value.
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
        """The spans on which one depends, all by their places: whose results it reads, or whose memory it writes over.

        What precedes a collective in its call, a launch or a copy, only reads.
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
