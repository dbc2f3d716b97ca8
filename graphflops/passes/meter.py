"""Live memory along a program: the bytes live at each moment, what holds them, and their peak, also for symbolic sizes.

A moment is a point where memory is measured: a call, a nested graph at its peak, or one of a call's gradients. In the
backward of a training step, the memory of each gradient is allocated and released.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from msgspec import Struct

from graphflops.dims import Dim, Expr, Sums, at_least, dim_max, evaluate_all, not_exceeded, symbol, total
from graphflops.errors import DimError
from graphflops.graph import Graph
from graphflops.passes.program import CallByCall, Peak, PricedCall, PricedProgram
from graphflops.report import Held, HeldKind, Timeline
from graphflops.tensor import TensorType

_BEFORE = "before "  # prefix of the key of a buffer that a call allocates before its results
AGAIN = " again"  # suffix of a value that a checkpoint recomputes
# Polynomials that a symbolic peak is the maximum of; if there are more, the smallest at the hints are dropped.
_MOST_CANDIDATES = 16
# Marks that are compared in pairs; if there are more, only those that are the largest at some sample sizes.
_MOST_COMPARED = 64
_SOME_SIZE = 4096  # for a size without an example, when sums are ranked
_SAMPLED = tuple(4**power for power in range(11))
# Terms of all marks together that are evaluated to find the largest, and that are shifted by the least sizes.
_MOST_EVALUATED, _MOST_SHIFTED = 300_000, 5_000
# Sums with more terms are long; if long sums have more terms than this in all, no formula is made.
_LONG, _MOST_OF_LONG = 32, 250_000


class Meter:
    """A running sum of sizes and its distinct values. Sums are memoised, because a model repeats its layers.

    Memory is taken and dropped by a key, such as the name of a value.
    """

    def __init__(self, program: PricedProgram) -> None:
        # For comparing symbolic sizes: an example of each symbol, and its least value.
        symbols = program.graph.symbols.items()
        self.hints = program.binding.examples
        self.minimums = {name: entry.minimum for name, entry in symbols if entry.minimum is not None}
        self.live: Dim = 0
        self.sums: dict[tuple[Dim, Dim, bool], Dim] = {}
        self.marks: dict[Dim, str] = {}
        self.row = 0
        self.rows: list[int] = []  # by moment
        self.open: dict[Hashable, tuple[str, HeldKind, int, Dim]] = {}
        self.held: list[Held] = []
        self.long = 0  # terms of long sums so far

    def take(self, name: str, size: Dim, kind: HeldKind, key: Hashable = None) -> None:
        if size != 0:
            self.live = self.changed(size)
            self.open[name if key is None else key] = (name, kind, len(self.rows), size)

    def drop(self, key: Hashable) -> None:
        if key in self.open:
            name, kind, first, size = self.open.pop(key)
            self.live = self.changed(size, is_less=True)
            if first < len(self.rows):
                self.held.append(Held(name, kind, first, len(self.rows) - 1, size))

    def take_before(self, node: str, sizes: Sequence[Dim]) -> None:
        """Hold buffers that a call allocates before its results, until `drop_before`."""
        for place, size in enumerate(sizes):
            self.take(node, size, "workspace", f"{_BEFORE}{place}")

    def drop_before(self, sizes: Sequence[Dim]) -> None:
        for place in range(len(sizes)):
            self.drop(f"{_BEFORE}{place}")

    def timeline(self, gradients_from: int | None) -> tuple[Timeline, int]:
        """Everything held so far, and how many entries are not released: those come last and are held to the end."""
        last = len(self.rows) - 1
        opened = [Held(name, kind, first, last, size) for name, kind, first, size in self.open.values()]
        rest = [entry for entry in opened if entry.first <= last]
        return Timeline(tuple(self.rows), (*self.held, *rest), gradients_from), len(rest)

    def changed(self, size: Dim, *, is_less: bool = False) -> Dim:
        """The sum plus or minus a size; DimError if many symbols would make ever longer sums."""
        live = self.live
        if isinstance(live, int) and isinstance(size, int):
            return live - size if is_less else live + size
        key = (live, size, is_less)
        if key not in self.sums:
            terms = _terms(live)
            self.long += terms if terms > _LONG else 0
            if self.long > _MOST_OF_LONG:
                raise DimError(f"the sums of live bytes have more than {_MOST_OF_LONG:,} terms")
            self.sums[key] = live - size if is_less else live + size
        return self.sums[key]

    def step(self) -> None:
        """Start another moment: what is taken next is allocated after what was taken before."""
        self.rows.append(self.row)

    def mark(self, node: str, peaks: Sequence[Peak] = (), buffers: Sequence[Dim] = ()) -> None:
        """Record a moment for the call with its buffers, and one for each graph nested in it."""
        moments: list[tuple[str, Sequence[Dim], HeldKind]] = [(node, buffers, "workspace")]
        moments += [(f"{node}/{peak.node}", (peak.bytes,), "nested") for peak in peaks if peak.bytes != 0]
        for name, sizes, kind in moments:
            now = len(self.rows)
            self.marks.setdefault(self.changed(total(sizes)), name)
            self.held += [Held(node, kind, now, now, size) for size in sizes if size != 0]
            self.rows.append(self.row)

    def peak(self) -> Peak:
        """The largest sum; for symbolic sizes a `max` of the sums that no other sum provably covers."""
        if not self.marks:
            return Peak(self.live)
        if all(isinstance(mark, int) for mark in self.marks):
            most = max(self.marks)  # type: ignore[type-var]
            return Peak(most, self.marks[most])
        # Largest at the hints first; sizes without an example are so large that leading terms decide.
        marks = [*self.marks]
        names = {name for mark in marks if isinstance(mark, Expr) for name in mark.symbols}
        found = evaluate_all(marks, {**dict.fromkeys(names, _SOME_SIZE), **self.hints})
        sizes = dict(zip(marks, found, strict=True))
        ranked = sorted(marks, key=lambda mark: sizes[mark] or 0, reverse=True)
        if len(ranked) > _MOST_COMPARED:
            candidates = not_exceeded(ranked)
            sums = Sums(candidates)
            tried = [[value or 0 for value in sums.at(at)] for at in self._spread()]  # 0: has no value
            largest = {candidates[values.index(max(values))] for values in tried}
            ranked = [ranked[0], *(mark for mark in ranked[1:] if mark in largest)]
        best: dict[Dim, Dim] = {}
        terms = (term for mark in ranked if isinstance(mark, Expr) for term in mark.terms)
        shifts = sum(2 ** len(term) for term in terms) <= _MOST_SHIFTED
        for mark in ranked:
            if len(best) == _MOST_CANDIDATES:
                break
            shifted = mark
            if shifts and isinstance(mark, Expr):
                # Each symbol becomes its least value plus a symbol: so `64*s*t` covers `64*s` if t >= 1.
                least = self.minimums
                shifted = mark.substitute({name: symbol(name) + least.get(name, 1) for name in mark.symbols})
            if not any(at_least(other, shifted) for other in best.values()):
                best = {m: other for m, other in best.items() if not at_least(shifted, other)}
                best[mark] = shifted
        return Peak(dim_max(*best), self.marks[ranked[0]])

    def _spread(self) -> list[dict[str, int]]:
        """Sample sizes, small to large: all symbols equal, and each symbol alone with the others at their hints."""
        uses = Counter(name for mark in self.marks if isinstance(mark, Expr) for name in sorted(mark.symbols))
        names = sorted(uses)
        most = _MOST_EVALUATED // (len(_SAMPLED) * max(sum(_terms(mark) for mark in self.marks), 1))
        alone = sorted(name for name, _ in uses.most_common(most))
        least = {name: self.minimums.get(name, 1) for name in names}
        hinted = {name: self.hints.get(name, least[name]) for name in names}
        return [
            {name: max(size, least[name]) if name in varied else hinted[name] for name in names}
            for varied in ({*names}, *({name} for name in alone if len(names) > 1))
            for size in _SAMPLED
        ]


def _terms(mark: Dim) -> int:
    return len(mark.terms) if isinstance(mark, Expr) else 0


class _Buffer(Struct, eq=False):
    size: Dim
    holders: int = 1
    is_view: bool = False  # nothing may be added to it in place
    is_repeated: bool = False  # it holds one number


class Reverse:
    """The backward pass: a gradient's memory is allocated when it is computed and released with its last holder."""

    def __init__(self, graph: Graph, meter: Meter, execution: CallByCall, earlier: Iterable[str]) -> None:
        self.values = execution.values
        self.meter = meter
        self.execution = execution
        stored = [entry for entry in graph.inputs if entry.role == "parameter"]
        first = {entry.target: entry.name for entry in reversed(stored)}
        # By name of a parameter, the name of the first parameter that it is tied to.
        self.parameters = {entry.name: first.get(entry.alias_of, entry.name) for entry in stored}
        self.gradients: dict[str, _Buffer] = {}  # by value
        for name in earlier:  # parameters with a gradient from the start
            self.give(self.parameters.get(name, name))

    def give(self, name: str, repeats: bool = False) -> None:
        """Allocate a gradient that comes from outside: a result's, or a parameter's from an earlier micro-step.

        repeats: whether it repeats one number, as the gradient of a sum does.
        """
        value = self.values.get(name)
        if name not in self.gradients and isinstance(value, TensorType) and value.requires_grad:
            is_one = repeats and self.execution.keeps_repeated
            buffer = self.gradients[name] = self.allocate(name, 0 if is_one else value.like().nbytes)
            buffer.is_repeated = is_one

    def run(self, call: PricedCall, released: Sequence[Hashable]) -> list[tuple[str, _Buffer]]:
        """Compute a call's gradients while those of its results are live. Return second gradients, with their buffers.

        released: keys of what only these gradients need.
        """
        assert call.gradient is not None
        operands = call.tensors(self.values)
        incoming = next((self.gradients[name] for name in call.node.outputs if name in self.gradients), None)
        again = []
        is_repeated = incoming is not None and incoming.is_repeated
        kernels = self.execution.gradient_kernels(call, is_repeated)
        self.meter.take_before(call.node.name, kernels.first)
        if kernels.first:
            self.meter.step()
        gradients = [*zip(call.gradient.gradients, call.gradient.sizes, strict=False)]
        if kernels.is_last_operand_first:
            gradients.reverse()
        for number, ((place, fresh), size) in enumerate(gradients, 1):
            operand = operands[place]
            if not fresh and incoming is not None:  # it shares the memory of the result's gradient
                buffer = incoming
                buffer.holders += 1
            else:
                buffer = self.allocate(operand, size)
                buffer.is_view = kernels.is_transposed and operand in self.parameters
            name = self.parameters.get(operand, operand)
            if name in self.gradients:
                again.append((name, buffer))
            else:
                self.gradients[name] = buffer
            if number < len(kernels.buffers):
                self.meter.mark(call.node.name, buffers=kernels.buffers[number - 1])
        again_made = [key for key in released if isinstance(key, str) and key.endswith(AGAIN)]
        if again_made and kernels.sums_afterwards:
            self.meter.mark(call.node.name)
            for key in again_made:
                self.meter.drop(key)
        self.meter.mark(call.node.name, buffers=kernels.buffers[-1])
        self.meter.drop_before(kernels.first)
        return again

    def accumulate(self, name: str, buffer: _Buffer, node: str) -> None:
        """Add a second gradient of a value to its first; in place, unless that is a view, repeated, or held by others."""
        first, value = self.gradients[name], self.values[name]
        assert isinstance(value, TensorType)
        size = value.like().nbytes
        if first.is_view or first.holders > 1 or first.size != size:
            self.gradients[name] = self.allocate(name, size)
            self.meter.mark(node)
            self.drop(first)
        self.drop(buffer)

    def allocate(self, name: str, size: Dim) -> _Buffer:
        buffer = _Buffer(size)
        self.meter.take(name, size, "gradient", buffer)
        return buffer

    def drop(self, buffer: _Buffer) -> None:
        buffer.holders -= 1
        if buffer.holders == 0:
            self.meter.drop(buffer)

    def backward(
        self, released: Mapping[int, Sequence[Hashable]], before: Mapping[int, Callable[[], None]]
    ) -> None:
        """Run the gradients of the calls, from the last call to the first.

        released: by place, what the call's gradient is the last to need. before: by place, what runs before that gradient.
        """
        for index, call in reversed([*enumerate(self.execution.calls)]):
            if index in before:
                before[index]()
            self.meter.row = call.row
            again = [] if call.gradient is None else self.run(call, released.get(index, ()))
            for output in call.node.outputs:
                if output in self.gradients:
                    self.drop(self.gradients.pop(output))
            for key in released.get(index, ()):
                self.meter.drop(key)
            for name, buffer in again:
                self.accumulate(name, buffer, call.node.name)
