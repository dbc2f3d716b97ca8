"""The nodes of a forward graph.

A pointwise value is computed again by every kernel that reads it, unless it is a result of the graph, is read by a library's
kernel, or takes many reads or much arithmetic to compute.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

from graphflops.time.concrete import ConcreteCall, OpenSizeError, Tensor
from graphflops.time.inductor.kinds import is_fusible, is_view
from graphflops.time.inductor.nodes import Value
from graphflops.time.inductor.operands import operand_name, operands_of
from graphflops.time.inductor.values import Values
from graphflops.time.lowering.norms import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.memory.runs import Run
    from graphflops.passes.program import PricedCall, PricedGraph
    from graphflops.time.concrete import Sizes
    from graphflops.time.kernel import Kernel

_LOAD = 1  # operations of a load or conversion
_TRANSCENDENTAL = 2
_BRANCH = 6  # loads that the choice of an operand, as of a `cat`, takes as long as
_WINDOW = 5  # loads that an element of a window of pooling takes as long as
_UNROLLED = 8  # elements of a reduction that is no loop
_IMAGE_RANK = 4


class Forward(Values):
    """Records the nodes of a graph's calls. lower: the kernels of a call that is not fused."""

    def __init__(
        self,
        graph: PricedGraph,
        run: Run,
        sizes: Sizes,
        lower: Callable[[PricedCall], tuple[Kernel, ...] | None],
        *,
        channels_last: bool,
    ) -> None:
        super().__init__(graph, run.layouts, sizes, channels_last=channels_last)
        self.calls, self.lower = run.calls, lower
        self.users = _users(run.calls)
        for place, call in enumerate(run.calls):
            self.add(place, call)
        for name in graph.graph.returned:
            if name in self.known:
                self.stored(name)

    def add(self, place: int, call: PricedCall) -> None:
        """Record one call, whose results are stored or computed again."""
        self.rows.update((name, call.row) for name in call.node.outputs if name is not None)
        try:
            if call.estimate.unknown or call.estimate.regions:
                self._own(call, None if call.estimate.unknown else (), place)
            elif self._is_in_order(call) or (is_view(call) and not self._is_copy(call)):
                self._view(call)
            elif is_fusible(call) or self._is_copy(call) or _is_written(call):
                concrete = ConcreteCall(call, self.graph.values, self.layouts.known, self.sizes)
                _FUSED.get(call.node.operator.kind, Forward._pointwise)(self, call, concrete)
            elif any(call.node.outputs):  # others are checks that leave no kernel
                self._own(call, self.lower(call))
        except OpenSizeError:
            self.recorder.own(call.row, (), {}, None)

    def _is_copy(self, call: PricedCall) -> bool:
        return any(name in self.layouts.copies for name in call.node.outputs if name is not None)

    def _is_in_order(self, call: PricedCall) -> bool:
        """Whether the operand of a `contiguous` lies in order already."""
        return any(name in self.layouts.views for name in call.node.outputs if name is not None)

    def _view(self, call: PricedCall) -> None:
        """A view of all elements is its operand; one of some elements reads these."""
        names = call.tensors(self.graph.values)
        if not names:
            return
        base = self.base.get(names[0], names[0])
        value = self.value(base)
        for output in call.node.outputs:
            if output is None:
                continue
            nbytes = self.nbytes(output)
            if nbytes == self.nbytes(base):
                self.base[output] = base
            else:
                self.known[output] = self.recorder.part(output, value, nbytes)

    def _own(self, call: PricedCall, kernels: tuple[Kernel, ...] | None, nested: int | None = None) -> None:
        """A call of a library: its operands and results are in memory."""
        operator = call.node.operator
        writes = {name: self.nbytes(name) for name in call.node.outputs if name is not None}
        bias = operand_name(call, "bias") if operator.kind == "convolution" else ""
        if bias:
            writes = {f"{name}/products": size for name, size in writes.items()}
        self.recorder.own(call.row, operands_of(call, self), writes, kernels)
        self.recorder.nodes[-1].call = nested
        for name in call.node.outputs:
            if name is not None and bias:
                products = Value({f"{name}/products": self.nbytes(name)})
                self.known[name] = Value.of((products, self.value(bias)), _LOAD)
            elif name is not None:
                self.known[name] = Value({name: self.nbytes(name)}, is_stored=True)

    def _inline(self, call: PricedCall, values: Sequence[Value], operations: int, slow: int = 0) -> None:
        """Results that are computed again wherever they are read, unless that takes too much."""
        made = Value.of(values, operations + _LOAD, slow)
        for name in call.node.outputs:
            if name is None:
                continue
            self.known[name] = made
            if made.is_worth_storing(is_shared=self.users[name] > 1):
                self.stored(name)

    def _pointwise(self, call: PricedCall, concrete: ConcreteCall) -> None:
        out, cost = concrete.out, concrete.cost
        elements = max(out.numel if out else 1, 1)
        functions = cost.transcendentals // elements
        work = cost.vector_flops // elements + _TRANSCENDENTAL * functions
        slow = functions * (1 + cost.vector_flops // elements)  # polynomials around them
        if call.node.operator.kind == "movement" and len(concrete.operands) > 1:
            slow = _BRANCH * len(concrete.operands)
        self._inline(call, self.operands(call), work, slow)
        if call.in_place and call.node.outputs and call.node.outputs[0] is not None and call.uses:
            written = self.base.get(call.uses[0], call.uses[0])
            if written not in self.rows:  # a buffer of the module
                self.stored(call.node.outputs[0])
            self.base[written] = call.node.outputs[0]

    def _made(self, call: PricedCall, concrete: ConcreteCall) -> None:
        copies = call.node.operator.name in ("copy", "fill")
        self._inline(call, self.operands(call) if copies else [], 1)

    def _gather(self, call: PricedCall, concrete: ConcreteCall) -> None:
        """Rows of a table: those that are read."""
        out = concrete.out
        name = next((name for name in call.node.outputs if name is not None), "")
        rows = Value({f"{name}/rows": out.nbytes if out else 0})
        self._inline(call, [rows, *self.operands(call)[1:]], 1)

    def _reduction(self, call: PricedCall, concrete: ConcreteCall) -> None:
        values, out = self.operands(call), concrete.out
        if out is None or not concrete.operands or not values:
            return self._inline(call, values, 1)
        x = concrete.operands[0]
        length = x.numel // max(out.numel, 1)
        if length < _UNROLLED:
            return self._inline(call, values[:1], length)
        of_images = x.rank >= _IMAGE_RANK
        is_kept = out.rank == x.rank and out.shape[-1] == x.shape[-1] and x.shape[-1] > 1
        value = Value.of(values, _LOAD)
        is_inner = self.is_inner(value, of_images=of_images) and not (
            is_kept or _keeps_last(concrete, x, out)
        )
        for name in call.node.outputs:
            if name is not None:
                self.known[name] = self.recorder.reduction(
                    call.row, (out.numel, length), value, name, is_inner=is_inner
                )
        return None

    def _by_rows(self, call: PricedCall, rows: tuple[int, int], *, is_inner: bool) -> None:
        """Statistics of each row, and results that are computed from them and from the row."""
        x, *parameters = self.operands(call)
        name = next((name for name in call.node.outputs if name is not None), "")
        statistics = self.recorder.reduction(
            call.row, rows, Value.of((x,), _LOAD), f"{name}/statistics", is_inner=is_inner
        )
        self._inline(call, [x, statistics, *parameters], _TRANSCENDENTAL)

    def _norm(self, call: PricedCall, concrete: ConcreteCall) -> None:
        x, operator = concrete.operand("x"), call.node.operator
        if x is None:
            return self._pointwise(call, concrete)
        if operator.name == "batch_norm" and concrete.arguments.get("training") is not True:
            return self._inline(call, self.operands(call), _TRANSCENDENTAL)
        rows = rows_of(concrete, x)
        value = self.operands(call)[0]
        is_inner = self.is_inner(value, of_images=operator.is_of_images or "group" in operator.name)
        return self._by_rows(call, (rows.rows, rows.columns), is_inner=is_inner)

    def _softmax(self, call: PricedCall, concrete: ConcreteCall) -> None:
        x = next(iter(concrete.operands), None)
        if x is None or not x.rank:
            return self._pointwise(call, concrete)
        axis = concrete.number("axis", -1) % x.rank
        rows = (x.numel // max(x.shape[axis], 1), x.shape[axis])
        return self._by_rows(
            call, rows, is_inner=axis == x.rank - 1 and self.is_inner(self.operands(call)[0])
        )

    def _scan(self, call: PricedCall, concrete: ConcreteCall) -> None:
        """A scan has results for all elements, and is fused as a reduction of rows is."""
        x = next(iter(concrete.operands), None)
        if x is None or not x.rank:
            return self._pointwise(call, concrete)
        self._softmax(call, concrete)
        for name in call.node.outputs:
            if name is not None:
                self.stored(name)
        return None

    def _window(self, call: PricedCall, concrete: ConcreteCall) -> None:
        """Pooling: the mean of a whole image is a reduction, else each element loops over a window of stored elements."""
        x, out = next(iter(concrete.operands), None), concrete.out
        names = call.tensors(self.graph.values)
        if x is None or out is None or not names:
            return
        if out.rank > 2 and prod(out.shape[2:]) == 1 and "max" not in call.node.operator.name:
            self._reduction(call, concrete)
            return
        window = concrete.cost.vector_flops // max(out.numel, 1)
        value = Value.of([self.stored(name) for name in names[:1]], slow=_WINDOW * window)
        for name in call.node.outputs:
            if name is not None:
                self.known[name] = value
                self.stored(name)

    def _resampled(self, call: PricedCall, concrete: ConcreteCall) -> None:
        self._inline(
            call, [self.stored(name) for name in call.tensors(self.graph.values)[:1]], _TRANSCENDENTAL
        )

    def _loss(self, call: PricedCall, concrete: ConcreteCall) -> None:
        """Reductions along rows where there are classes, and over all of them."""
        x = next(iter(concrete.operands), None)
        name = next((name for name in call.node.outputs if name is not None), "")
        value = Value.of(self.operands(call), _LOAD)
        if x is None:
            return
        if call.node.operator.name == "cross_entropy_loss" and x.rank > 1:
            rows = (x.numel // max(x.shape[-1], 1), x.shape[-1])
            value = self.recorder.reduction(call.row, rows, value, f"{name}/rows", is_inner=True)
            x = Tensor(rows[:1], x.dtype, x.bits, (1,), 4 * rows[0])
        self.known[name] = self.recorder.reduction(call.row, (1, x.numel), value, name, is_inner=True)


def _is_written(call: PricedCall) -> bool:
    """Whether inductor writes a kernel for a call that is not pointwise: a scan, or differences of neighbours."""
    return call.node.operator.kind == "scan" or call.node.operator.name == "diff"


def _keeps_last(concrete: ConcreteCall, x: Tensor, out: Tensor) -> bool:
    """Whether a reduction that drops its axes keeps the last one."""
    axes = concrete.arguments.get("axes")
    given = axes if isinstance(axes, tuple) else (axes,) if isinstance(axes, int) else ()
    return (
        bool(given)
        and out.rank < x.rank
        and all(isinstance(a, int) and a % x.rank < x.rank - 1 for a in given)
    )


def _users(calls: Sequence[PricedCall]) -> Counter[str]:
    """How many calls read each value, through views of it too."""
    users: Counter[str] = Counter()
    for call in reversed(calls):
        times = sum(users[name] for name in call.node.outputs if name) if is_view(call) else 1
        for name in dict.fromkeys(call.uses):
            users[name] += times
    return users


_FUSED = {
    "creation": Forward._made,
    "gather": Forward._gather,
    "reduction": Forward._reduction,
    "normalisation": Forward._norm,
    "softmax": Forward._softmax,
    "scan": Forward._scan,
    "pooling": Forward._window,
    "resampling": Forward._resampled,
    "loss": Forward._loss,
}
