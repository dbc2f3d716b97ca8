"""Which calls of a report depend on which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphflops.derived.timeline import Span
from graphflops.ops import operator
from graphflops.report import Report, Row

_Extent = tuple[str | int, int, int]  # memory, and the bytes there from the begin to the end
_Use = tuple[int, int, bool, bool]  # bytes there; whether it writes them, whether it is a collective


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
        if span.time is not None and span.time.collective and not span.is_exchange:
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
            uses[begin, end, writes, span.is_exchange] = place

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
