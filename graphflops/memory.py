"""Peak of live activation memory, by liveness over the calls in program order.

A value lives from the call that makes it to its last use; views share the memory of what they look at; inputs the caller
holds and results of the program live throughout; parameters and buffers are not in it. In training, what a gradient reads
lives until that gradient is computed, in reverse order; so does what it reads beside the call's operands and results, as
the mask of a dropout. A gradient lives from the call that computes it to the one that it belongs to, those of parameters
to the end; a second gradient of one value is added to the first in place, unless others hold that memory too.

Moments are numbered: each is one at which memory is measured, that is a call running, a graph nested in it at its peak, or
one of its gradients. What is held from which moment to which is kept, and the curve of live bytes follows from it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.dims import Dim, Expr, at_least, dim_max, evaluate, symbol
from graphflops.report import Held, Timeline
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.backward import Backward
    from graphflops.cost import Estimate, Value
    from graphflops.graph import Node
    from graphflops.report import HeldKind

# Polynomials that a symbolic peak is the maximum of; past that the smallest at the hints are dropped.
_MOST_CANDIDATES = 16
# Marks that are compared in pairs; of more, only those that are the largest at some of these sizes.
_MOST_COMPARED = 64
_SAMPLED = tuple(4**power for power in range(11))
# Terms of all marks together: how many are evaluated to find the largest, and how many they may
# have over symbols counted from their least values; past that they are compared as they are.
_MOST_EVALUATED, _MOST_SHIFTED = 300_000, 5_000


@dataclass(frozen=True, slots=True)
class Event:
    """One call as memory sees it; `uses` are the names of the values it reads, `peaks` those of the graphs nested in it."""

    node: Node
    uses: tuple[str, ...]
    estimate: Estimate
    gradient: Backward | None = None
    peaks: tuple[Peak, ...] = ()

    @property
    def in_place(self) -> bool:
        """Whether the call writes its first operand."""
        return self.node.operator.mutates

    def tensors(self, values: Mapping[str, Value]) -> list[str]:
        """Names of the operands that are tensors, as often as they are used."""
        return [name for name in self.uses if isinstance(values.get(name), TensorType)]


@dataclass(frozen=True, slots=True)
class SizesKnown:
    """What helps to compare symbolic sizes: example values, and the least value each symbol takes."""

    hints: Mapping[str, int]
    minimums: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes alive at once, and the call at which they are at the hinted sizes."""

    bytes: Dim = 0
    node: str = ""


def memory_of(
    events: Sequence[Event],
    rows: Sequence[int],
    values: Mapping[str, Value],
    resident: Iterable[str],
    returned: Iterable[str],
    sizes_known: SizesKnown,
    seeds: Sequence[str] | None = None,
) -> tuple[Peak, Timeline]:
    """The peak of a program's own values, and what is held when.

    rows: by call, the number of its row in the report.
    resident: inputs counted as live throughout (a nested graph's operands are counted by the graph around it).
    returned: values that must live to the end.
    seeds: in training, those whose gradients come from outside; None outside of training.
    """
    training = seeds is not None
    root = owners(events, values)
    sizes = _sizes(root, values)
    returned = list(returned)
    kept = {root[name] for name in returned if name in root}
    held = list(dict.fromkeys(resident))
    meter = _Meter(sizes_known)
    for name in held:
        value = values.get(name)
        if isinstance(value, TensorType):
            meter.take(name, value.nbytes, "input")
    saved = _saved(events, root, values) if training else {}
    released: dict[int, list[str | int]] = {}
    for name, index in saved.items():
        if name not in kept and name in sizes:
            released.setdefault(index, []).append(name)
    lasts = _last_uses(events, root)
    for index, event in enumerate(events):
        meter.row = rows[index]
        for output in event.node.outputs:
            if output is not None and root.get(output) == output:
                meter.take(output, sizes.get(output, 0), "value")
        beside = event.gradient.beside_bytes if training and event.gradient is not None else 0
        if beside != 0:  # what is kept beside the results was made on the way to them
            meter.take(event.node.name, beside, "saved", index)
            released.setdefault(index, []).append(index)
        meter.mark(event.node.name, event.peaks, 0 if beside != 0 else event.estimate.workspace)
        for name in lasts.get(index, ()):
            if name not in kept and name not in saved:
                meter.drop(name)
    turn = None
    if seeds is not None:
        turn = len(meter.rows)
        _backward(events, rows, values, seeds, released, meter)
    return meter.peak(), meter.timeline(turn)


class _Meter:
    """A running sum of sizes and its distinct maxima. Sums are memoised: the layers of a model repeat one another.

    Memory is taken and dropped by a key: the name of a value, or a number for what has none of its own.
    """

    def __init__(self, known: SizesKnown) -> None:
        self.known = known
        self.live: Dim = 0
        self.sums: dict[tuple[Dim, Dim], Dim] = {}
        self.differences: dict[tuple[Dim, Dim], Dim] = {}
        self.marks: dict[Dim, str] = {}
        self.row = 0
        self.rows: list[int] = []  # by moment
        self.open: dict[str | int, tuple[str, HeldKind, int, Dim]] = {}
        self.held: list[Held] = []

    def take(self, name: str, size: Dim, kind: HeldKind, key: str | int | None = None) -> None:
        """Hold memory from the next moment on."""
        if size != 0:
            self.grow(size)
            self.open[name if key is None else key] = (name, kind, len(self.rows), size)

    def drop(self, key: str | int) -> None:
        """Let it go after the last moment."""
        if key in self.open:
            name, kind, first, size = self.open.pop(key)
            self.shrink(size)
            if first < len(self.rows):
                self.held.append(Held(name, kind, first, len(self.rows) - 1, size))

    def timeline(self, gradients_from: int | None) -> Timeline:
        """Everything held so far; what was never dropped is held to the end."""
        last = len(self.rows) - 1
        rest = [Held(name, kind, first, last, size) for name, kind, first, size in self.open.values()]
        held = (*self.held, *(entry for entry in rest if entry.first <= last))
        return Timeline(tuple(self.rows), gradients_from, held)

    def grow(self, size: Dim) -> None:
        if size == 0:
            return
        key = (self.live, size)
        if key not in self.sums:
            self.sums[key] = self.live + size
        self.live = self.sums[key]

    def shrink(self, size: Dim) -> None:
        if size == 0:
            return
        key = (self.live, size)
        if key not in self.differences:
            self.differences[key] = self.live - size
        self.live = self.differences[key]

    def mark(self, node: str, peaks: Sequence[Peak] = (), workspace: Dim = 0) -> None:
        """A moment: the call with its workspace; then one for each graph nested in it."""
        self._moment(node, node, workspace, "workspace")
        for peak in peaks:
            if peak.bytes != 0:
                self._moment(f"{node}/{peak.node}", node, peak.bytes, "nested")

    def _moment(self, node: str, name: str, extra: Dim, kind: HeldKind) -> None:
        self.grow(extra)
        self.marks.setdefault(self.live, node)
        self.shrink(extra)
        if extra != 0:
            self.held.append(Held(name, kind, len(self.rows), len(self.rows), extra))
        self.rows.append(self.row)

    def peak(self) -> Peak:
        """The largest mark; a `max` of those that no other provably covers where sizes are symbolic."""
        if not self.marks:
            return Peak(self.live)
        ranked = sorted(self.marks, key=self._at_hints, reverse=True)
        if len(ranked) > _MOST_COMPARED:
            largest = {max(ranked, key=lambda mark: evaluate(mark, sizes) or 0) for sizes in self._spread()}
            ranked = [ranked[0], *(mark for mark in ranked[1:] if mark in largest)]
        best: dict[Dim, Dim] = {}
        shifts = sum(map(_terms_shifted, ranked)) <= _MOST_SHIFTED
        for mark in ranked:
            if len(best) == _MOST_CANDIDATES:
                break
            shifted = self._from_minimums(mark) if shifts else mark
            if not any(at_least(other, shifted) for other in best.values()):
                best = {m: other for m, other in best.items() if not at_least(shifted, other)}
                best[mark] = shifted
        return Peak(dim_max(*best), self.marks[ranked[0]])

    def _spread(self) -> list[dict[str, int]]:
        """Sizes small to large: all symbols alike, and each alone with the others at their hints."""
        uses = Counter(name for mark in self.marks if isinstance(mark, Expr) for name in sorted(mark.symbols))
        names = sorted(uses)
        most = _MOST_EVALUATED // (len(_SAMPLED) * max(_terms(self.marks), 1))
        alone = sorted(name for name, _ in uses.most_common(most))
        least = {name: self.known.minimums.get(name, 1) for name in names}
        hinted = {name: self.known.hints.get(name, least[name]) for name in names}
        return [
            {name: max(size, least[name]) if name in varied else hinted[name] for name in names}
            for varied in (names, *([name] for name in alone))
            for size in _SAMPLED
        ]

    def _from_minimums(self, mark: Dim) -> Dim:
        """The mark over symbols counted from their least value: so `64*s*t` covers `64*s`, where t is at least 1."""
        if isinstance(mark, int):
            return mark
        return mark.substitute(
            {name: symbol(name) + self.known.minimums.get(name, 1) for name in mark.symbols}
        )

    def _at_hints(self, mark: Dim) -> int:
        value = evaluate(mark, self.known.hints)
        if value is None and isinstance(mark, Expr):
            # Without an example size, rank at a size large enough for the leading term to decide.
            value = evaluate(mark, {name: self.known.hints.get(name, 4096) for name in mark.symbols})
        return value or 0


def _terms(marks: Iterable[Dim]) -> int:
    return sum(len(mark.terms) for mark in marks if isinstance(mark, Expr))


def _terms_shifted(mark: Dim) -> int:
    """How many terms the mark has, at most, when one is added to each symbol."""
    return sum(2 ** len(monomial) for monomial in mark.terms) if isinstance(mark, Expr) else 0


def owners(events: Sequence[Event], values: Mapping[str, Value]) -> dict[str, str]:
    """The value whose memory each tensor shares: itself, unless it is a view."""
    root: dict[str, str] = {}
    for event in events:
        owner = None
        if event.estimate.alias:
            first = next((name for name in event.uses if isinstance(values.get(name), TensorType)), None)
            owner = None if first is None else root.get(first, first)
        for output in event.node.outputs:
            if output is not None and isinstance(values.get(output), TensorType):
                root[output] = owner or output
    return root


def _sizes(root: Mapping[str, str], values: Mapping[str, Value]) -> dict[str, Dim]:
    """Bytes of each value that owns memory; equal types are measured once, the layers of a model share theirs."""
    measured: dict[int, Dim] = {}
    sizes: dict[str, Dim] = {}
    for name, owner in root.items():
        value = values[name]
        if name == owner and isinstance(value, TensorType):
            if id(value) not in measured:
                measured[id(value)] = value.nbytes
            sizes[name] = measured[id(value)]
    return sizes


def _last_uses(events: Sequence[Event], root: Mapping[str, str]) -> dict[int, list[str]]:
    """By index of a call: values of the program's own making that nothing needs after it."""
    needed: set[str] = set()
    ends: dict[int, list[str]] = {}
    for index in range(len(events) - 1, -1, -1):
        for name in (*events[index].node.outputs, *events[index].uses):
            owner = None if name is None else root.get(name)
            if owner is not None and owner not in needed:
                needed.add(owner)
                if root.get(owner) == owner:
                    ends.setdefault(index, []).append(owner)
    return ends


def _saved(events: Sequence[Event], root: Mapping[str, str], values: Mapping[str, Value]) -> dict[str, int]:
    """Values that gradients read, by the index of the earliest call whose gradient does."""
    saved: dict[str, int] = {}
    for index, event in enumerate(events):
        if event.gradient is None:
            continue
        operands = event.tensors(values)
        names: list[str | None] = [operands[place] for place in event.gradient.operands]
        names += [event.node.outputs[place] for place in event.gradient.results]
        for name in names:
            if name is not None and name in root:
                saved.setdefault(root[name], index)
    return saved


class _Reverse:
    """The calls run backwards: a gradient's memory appears when it is computed and goes with its last holder."""

    def __init__(self, values: Mapping[str, Value], meter: _Meter) -> None:
        self.values = values
        self.meter = meter
        self.gradients: dict[str, int] = {}  # by value: which buffer holds its gradient
        self.buffers: list[Dim] = []
        self.holders: list[int] = []

    def give(self, name: str) -> None:
        """The gradient of a result of the program, which comes from outside."""
        value = self.values.get(name)
        if name not in self.gradients and isinstance(value, TensorType) and value.requires_grad:
            self.gradients[name] = self.allocate(name, value.like().nbytes)

    def run(self, event: Event) -> list[tuple[str, int]]:
        """Compute a call's gradients while the results' are alive; gradients of values that have one are returned."""
        assert event.gradient is not None
        operands = event.tensors(self.values)
        incoming = next((self.gradients[name] for name in event.node.outputs if name in self.gradients), None)
        again = []
        for (place, fresh), gradient in zip(
            event.gradient.gradients, event.gradient.estimate.out, strict=False
        ):
            if fresh or incoming is None:
                size = gradient.nbytes if isinstance(gradient, TensorType) else 0
                buffer = self.allocate(operands[place], size)
            else:
                buffer = self.share(incoming)
            if operands[place] in self.gradients:
                again.append((operands[place], buffer))
            else:
                self.gradients[operands[place]] = buffer
        self.meter.mark(event.node.name, workspace=event.gradient.estimate.workspace)
        return again

    def accumulate(self, name: str, buffer: int, node: str) -> None:
        """Add a second gradient of a value to its first: in place, unless that is repeated or others hold it too."""
        first, value = self.gradients[name], self.values[name]
        assert isinstance(value, TensorType)
        size = value.like().nbytes
        if self.holders[first] > 1 or self.buffers[first] != size:
            self.gradients[name] = self.allocate(name, size)
            self.meter.mark(node)
            self.drop(first)
        self.drop(buffer)

    def allocate(self, name: str, size: Dim) -> int:
        self.buffers.append(size)
        self.holders.append(1)
        buffer = len(self.buffers) - 1
        self.meter.take(name, size, "gradient", -1 - buffer)  # numbers from 0 on are those of calls
        return buffer

    def share(self, buffer: int) -> int:
        self.holders[buffer] += 1
        return buffer

    def drop(self, buffer: int) -> None:
        self.holders[buffer] -= 1
        if self.holders[buffer] == 0:
            self.meter.drop(-1 - buffer)


def _backward(
    events: Sequence[Event],
    rows: Sequence[int],
    values: Mapping[str, Value],
    seeds: Iterable[str],
    released: Mapping[int, Sequence[str | int]],
    meter: _Meter,
) -> None:
    """Run the calls backwards; `released` says what each call's gradient is the last to need."""
    reverse = _Reverse(values, meter)
    for name in seeds:
        reverse.give(name)
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        meter.row = rows[index]
        again = [] if event.gradient is None else reverse.run(event)
        for output in event.node.outputs:
            if output in reverse.gradients:
                reverse.drop(reverse.gradients.pop(output))
        for key in released.get(index, ()):
            meter.drop(key)
        for name, buffer in again:
            reverse.accumulate(name, buffer, event.node.name)
