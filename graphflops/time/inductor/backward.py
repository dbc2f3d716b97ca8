"""The nodes of the gradients of a graph, from the last call to the first.

Pointwise gradients are computed wherever they are read, from the incoming gradient and from what the forward stored.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.tensor import TensorType
from graphflops.time.concrete import ConcreteCall, OpenSizeError
from graphflops.time.inductor.kinds import is_fusible, is_view
from graphflops.time.inductor.nodes import Value
from graphflops.time.inductor.operands import operand_name
from graphflops.time.lowering.norms import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from graphflops.passes.program import PricedCall
    from graphflops.time.concrete import Tensor
    from graphflops.time.inductor.forward import Forward
    from graphflops.time.kernel import Kernel

_OPERATIONS = 6  # of one element of a gradient
_FUSED_MULTIPLY_ADDS = 4  # operations of a polynomial that take as long as a load
_FLOAT = 4  # bytes
_WIDE = 64  # elements of a row, above which threads add to different places
# Loads that an addition to memory takes as long as: to different places, to the same in float32, and in half precision.
_ADDED, _CONTENDED, _CONTENDED_HALF = 5, 4000, 16000
_WINDOW = 10  # loads that a window takes as long as, for each element that is in it


class Backward:
    """Records the nodes of gradients after those of the forward.

    gradients: by value, what its gradient is computed from. lower: the kernels of the gradients of a call that is not fused.
    """

    def __init__(
        self,
        forward: Forward,
        seeds: Collection[str],
        parameters: Collection[str],
        lower: Callable[[PricedCall], tuple[Kernel, ...] | None],
    ) -> None:
        self.forward, self.recorder, self.lower = forward, forward.recorder, lower
        self.values, self.sizes = forward.graph.values, forward.sizes
        self.gradients: dict[str, Value] = {}
        for name in seeds:
            seed = f"{name}'seed"
            self.gradients[forward.base.get(name, name)] = Value({seed: forward.nbytes(name)}, is_stored=True)
        for place in reversed(range(len(forward.calls))):
            self.add(place, forward.calls[place])
        for name in parameters:
            if name in self.gradients:
                self._stored(name, forward.rows.get(name, 0))

    def add(self, place: int, call: PricedCall) -> None:
        """Record the gradients of one call."""
        if call.gradient is None:
            return
        operands = call.tensors(self.values)
        wanted = [operands[index] for index, _ in call.gradient.gradients if index < len(operands)]
        outputs = [name for name in call.node.outputs if name is not None]
        incoming = [self.gradients[base] for name in outputs if (base := self._base(name)) in self.gradients]
        if not wanted or not outputs:
            return
        kind = call.node.operator.kind
        try:
            if call.estimate.regions:
                self._own(call, wanted, (), place)
            elif is_view(call):
                self._view(call, wanted, incoming)
            elif is_fusible(call) or kind == "view":
                concrete = ConcreteCall(call, self.values, self.forward.layouts.known, self.sizes)
                _FUSED.get(kind, Backward._pointwise)(self, call, concrete, wanted, incoming)
            else:
                self._own(call, wanted, self.lower(call))
        except OpenSizeError:
            self.recorder.own(call.row, (), {}, None)

    def _base(self, name: str) -> str:
        return self.forward.base.get(name, name)

    def _give(self, name: str, value: Value, row: int) -> None:
        """Add to the gradient of a value, which is stored once it takes too many reads."""
        base = self._base(name)
        before = self.gradients.get(base)
        own = value if before is None else Value.of((before, value), 1)
        self.gradients[base] = own
        if own.is_worth_storing(is_shared=self.forward.users[name] > 1):
            self._stored(base, row)

    def _stored(self, name: str, row: int) -> Value:
        """The gradient of a value in memory."""
        base = self._base(name)
        value = self.gradients.get(base) or Value({})
        if not value.is_stored:
            buffer = f"{base}'{len(self.recorder.nodes)}"
            value = self.recorder.loop(
                row, self.forward.elements(base), value, buffer, self.forward.nbytes(base)
            )
            self.gradients[base] = value
        return value

    def _own(
        self,
        call: PricedCall,
        wanted: Sequence[str],
        kernels: tuple[Kernel, ...] | None,
        nested: int | None = None,
    ) -> None:
        """Gradients that a library computes: what they read is in memory; a bias has the sum of what comes in."""
        forward = self.forward
        incoming = [
            self._stored(name, call.row)
            for name in call.node.outputs
            if name and self._base(name) in self.gradients
        ]
        added = operand_name(call, "bias") if call.node.operator.kind in ("product", "convolution") else ""
        read = [forward.value(name) for name in call.tensors(self.values) if name != added]
        rest = [name for name in wanted if name != added]
        writes = {f"{name}'{call.node.name}": forward.nbytes(name) for name in rest}
        if rest:
            self.recorder.own(call.row, [*incoming, *read], writes, kernels)
            self.recorder.nodes[-1].call = nested
        for name, (buffer, size) in zip(rest, writes.items(), strict=False):
            self._give(name, Value({buffer: size}, is_stored=True), call.row)
        if added and added in wanted and incoming:
            out = next(name for name in call.node.outputs if name)
            self._sum(call, added, self.forward.elements(out), incoming[0])

    def _sum(
        self, call: PricedCall, name: str, elements: int, value: Value, *, is_inner: bool = False
    ) -> None:
        """The gradient of a value that was repeated: the sum over the repeats."""
        results = self.forward.elements(name)
        buffer = f"{name}'{call.node.name}"
        summed = self.recorder.reduction(
            call.row, (results, elements // max(results, 1)), value, buffer, is_inner=is_inner
        )
        self._give(name, summed, call.row)

    def _view(self, call: PricedCall, wanted: Sequence[str], incoming: Sequence[Value]) -> None:
        """The gradient of a view is that of its operand, of a repeated one its sum."""
        name, output = wanted[0], call.node.outputs[0]
        if output is None or self._base(output) == self._base(name) or not incoming:
            return
        if self.forward.elements(output) > self.forward.elements(name):
            self._sum(call, name, self.forward.elements(output), Value.of(incoming))
        else:
            self._give(name, Value.of(incoming, 1), call.row)

    def _pointwise(
        self, call: PricedCall, concrete: ConcreteCall, wanted: Sequence[str], incoming: Sequence[Value]
    ) -> None:
        assert call.gradient is not None
        elements = concrete.out.numel if concrete.out else 1
        names = call.tensors(self.values)
        read = [names[place] for place in sorted(call.gradient.operands) if place < len(names)]
        results = [
            name for place, name in enumerate(call.node.outputs) if name and place in call.gradient.results
        ]
        for name in wanted:
            further = [self.forward.value(other) for other in (*_others(read, name), *results)]
            if call.node.operator.kind == "dropout":
                further = [Value({f"{call.node.name}/mask": elements})]
            slow = _slow_functions(concrete, elements) if further else 0
            value = Value.of((*incoming, *further), _OPERATIONS if further else 1, slow)
            self._reduced(call, name, elements, value)

    def _reduced(self, call: PricedCall, name: str, elements: int, value: Value) -> None:
        """A gradient, summed over the axes that the operand was repeated along."""
        if self.forward.elements(name) < elements and call.node.operator.kind in (
            "elementwise",
            "comparison",
            "logic",
        ):
            kind = self.values[name]
            is_inner = isinstance(kind, TensorType) and kind.rank > 1 and kind.shape[-1] == 1
            self._sum(call, name, elements, value, is_inner=is_inner)
        else:
            self._give(name, value, call.row)

    def _of_rows(
        self, call: PricedCall, concrete: ConcreteCall, wanted: Sequence[str], incoming: Sequence[Value]
    ) -> None:
        """Sums of each row, and gradients that are computed from these and from the row."""
        names = call.tensors(self.values)
        x = concrete.operands[0] if concrete.operands else None
        if x is None or not x.rank:
            return
        if concrete.operator.name in ("group_norm", "native_group_norm") and names[0] in wanted:
            self._of_groups(call, x, wanted, incoming)
            return
        rows = self._rows(concrete, x)
        kept = Value({f"{call.node.name}/kept": 8 * rows[0]})
        lies = self.forward.operands(call)[0]
        read = Value.of((*incoming, lies, kept), _OPERATIONS)
        parameters = [name for name in wanted if name != names[0]]
        is_batch_norm = concrete.operator.name == "batch_norm"
        factors = [self.forward.value(name) for name in names[1:]]
        if names[0] in wanted and is_batch_norm and concrete.arguments.get("training") is not True:
            self._give(names[0], Value.of((*incoming, *factors), _OPERATIONS), call.row)
        elif names[0] in wanted:
            is_inner = self.forward.is_inner(lies, of_images=concrete.operator.is_of_images)
            sums = self.recorder.reduction(call.row, rows, read, f"{call.node.name}'sums", is_inner=is_inner)
            self._give(names[0], Value.of((read, sums, *factors), _OPERATIONS), call.row)
            if is_batch_norm:  # the gradients of weight and bias are these sums
                parameters = parameters[1:]
        for name in parameters:
            self._sum(call, name, x.numel, read if name == parameters[0] else Value.of((*incoming, kept)))

    def _of_groups(
        self, call: PricedCall, x: Tensor, wanted: Sequence[str], incoming: Sequence[Value]
    ) -> None:
        """Sums over each channel of each image, and from these those of groups; the gradient takes two passes."""
        channels = prod(x.shape[:2])
        lies, *factors = self.forward.operands(call)
        read = Value.of((*incoming, lies), _OPERATIONS)
        sums = self.recorder.reduction(
            call.row,
            (channels, x.numel // max(channels, 1)),
            read,
            f"{call.node.name}'sums",
            is_inner=self.forward.is_inner(lies, of_images=True),
        )
        first, *parameters = wanted
        part = Value.of((read, sums, *factors), _OPERATIONS)
        part = self.recorder.loop(call.row, x.numel, part, f"{first}'{call.node.name}/part", x.full_bytes)
        self._give(first, Value.of((part, sums)), call.row)
        for name in parameters:
            self._sum(call, name, channels, sums)

    def _rows(self, concrete: ConcreteCall, x: Tensor) -> tuple[int, int]:
        """How many rows there are, and their length."""
        if concrete.operator.kind == "softmax":
            axis = concrete.number("axis", -1) % x.rank
            return x.numel // max(x.shape[axis], 1), x.shape[axis]
        found = rows_of(concrete, x)
        return found.rows, found.columns

    def _spread(
        self, call: PricedCall, concrete: ConcreteCall, wanted: Sequence[str], incoming: Sequence[Value]
    ) -> None:
        """The gradient of a reduction: the same for all elements, which are compared with an extreme value."""
        for name in wanted:
            further = [] if call.node.operator.name in ("sum", "mean") else [self.forward.value(name)]
            self._give(name, Value.of((*incoming, *further), 1), call.row)

    def _window(
        self, call: PricedCall, concrete: ConcreteCall, wanted: Sequence[str], incoming: Sequence[Value]
    ) -> None:
        out = concrete.out
        if out is None or not wanted:
            return
        if prod(out.shape[2:]) == 1 and "max" not in call.node.operator.name:
            self._give(wanted[0], Value.of(incoming, 1), call.row)
            return
        read = [self._stored(name, call.row) for name in call.node.outputs[:1] if name]
        indices = Value({f"{call.node.name}/indices": out.numel})
        x = concrete.operands[0]
        windows = max(1, concrete.cost.vector_flops // max(x.numel, 1))
        gradient = Value.of((*read, indices), slow=_WINDOW * windows)
        value = self.recorder.loop(call.row, x.numel, gradient, f"{wanted[0]}'{call.node.name}", x.full_bytes)
        self._give(wanted[0], value, call.row)

    def _scattered(
        self, call: PricedCall, concrete: ConcreteCall, wanted: Sequence[str], incoming: Sequence[Value]
    ) -> None:
        """Zeros in float32, to which rows are added, and a conversion."""
        out = concrete.out
        for name in wanted[:1]:
            elements = self.forward.elements(name)
            zeros = f"{name}'{call.node.name}/zeros"
            filled = self.recorder.loop(call.row, elements, Value({}), zeros, _FLOAT * elements)
            indices = map(self.forward.value, call.tensors(self.values)[1:])
            rows = Value.of((*incoming, *indices, filled), 1, _slowness(concrete))
            size = out.full_bytes if out else 0
            added = Value.of(
                (self.recorder.loop(call.row, out.numel if out else 1, rows, f"{zeros}/added", size),)
            )
            self._give(name, Value({**added.reads, zeros: _FLOAT * elements}), call.row)


def _slow_functions(concrete: ConcreteCall, elements: int) -> int:
    """Loads that the transcendental functions of a gradient take as long as, with the polynomials around them."""
    cost = concrete.backward_cost
    each = cost.transcendentals // max(elements, 1)
    return each * (1 + cost.vector_flops // max(elements, 1) // _FUSED_MULTIPLY_ADDS)


def _others(read: Sequence[str], name: str) -> Sequence[str]:
    """What the gradient of one operand reads: the others, as of a product, or itself where it is the only one."""
    return [other for other in read if other != name] or read


def _slowness(concrete: ConcreteCall) -> int:
    """Loads that one addition to a row takes as long as: threads that add to one place wait for one another."""
    table = concrete.operands[0]
    if not table.rank or table.shape[-1] >= _WIDE:
        return _ADDED
    in_float = concrete.operator.is_embedding or table.bits >= _FLOAT * 8
    return _CONTENDED if in_float else _CONTENDED_HALF


_FUSED = {
    "normalisation": Backward._of_rows,
    "softmax": Backward._of_rows,
    "reduction": Backward._spread,
    "pooling": Backward._window,
    "gather": Backward._scattered,
}
