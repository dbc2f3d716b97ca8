"""The backward pass of a training step: when the memory of each gradient is allocated and released."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from graphflops.dims import Dim
from graphflops.graph import Graph
from graphflops.passes.meter import AGAIN, Meter
from graphflops.passes.program import Backward, CallByCall, PricedCall
from graphflops.tensor import TensorType


class Reverse:
    """The backward pass: a gradient's memory is allocated when it is computed and released with its last holder.

    parameters: by name of a parameter, that of the first one that it is tied to. views: buffers that nothing is added to.
    repeated: buffers of one number. earlier: parameters with a gradient from the start.
    """

    def __init__(self, graph: Graph, meter: Meter, execution: CallByCall, earlier: Iterable[str]) -> None:
        self.values = execution.values
        self.meter = meter
        self.execution = execution
        stored = [entry for entry in graph.inputs if entry.role == "parameter"]
        first = {entry.target: entry.name for entry in reversed(stored)}
        self.parameters = {entry.name: first.get(entry.alias_of, entry.name) for entry in stored}
        self.gradients: dict[str, int] = {}  # by value: which buffer holds its gradient
        self.sizes: dict[int, Sequence[Dim]] = {}
        self.buffers: list[Dim] = []
        self.holders: list[int] = []
        self.views: set[int] = set()
        self.repeated: set[int] = set()
        for name in earlier:
            self.give(self.parameters.get(name, name))

    def give(self, name: str, repeats: bool = False) -> None:
        """Allocate a gradient that comes from outside: of a result, or of a parameter from an earlier micro-step.

        repeats: whether it repeats one number, as the gradient of a sum does.
        """
        value = self.values.get(name)
        if name not in self.gradients and isinstance(value, TensorType) and value.requires_grad:
            is_one = repeats and self.execution.keeps_repeated
            buffer = self.gradients[name] = self.allocate(name, 0 if is_one else value.like().nbytes)
            if is_one:
                self.repeated.add(buffer)

    def run(self, call: PricedCall, released: Sequence[str | int]) -> list[tuple[str, int]]:
        """Compute a call's gradients while the results' are alive; gradients of values that have one are returned.

        released: keys of what only these gradients need.
        """
        assert call.gradient is not None
        operands = call.tensors(self.values)
        incoming = next((self.gradients[name] for name in call.node.outputs if name in self.gradients), None)
        again = []
        first, buffers = self.execution.gradient_buffers(call, incoming in self.repeated)
        self.meter.take_before(call.node.name, first)
        if first:
            self.meter.step()
        gradients = [*zip(call.gradient.gradients, self.sizes_of(call.gradient), strict=False)]
        if self.execution.is_last_operand_first(call):
            gradients.reverse()
        for number, ((place, fresh), size) in enumerate(gradients, 1):
            buffer = self.held_by(call, operands[place], size, None if fresh else incoming)
            name = self.parameters.get(operands[place], operands[place])
            if name in self.gradients:
                again.append((name, buffer))
            else:
                self.gradients[name] = buffer
            if number < len(buffers):
                self.meter.mark(call.node.name, buffers=buffers[number - 1])
        again_made = [key for key in released if isinstance(key, str) and key.endswith(AGAIN)]
        if again_made and self.execution.sums_afterwards(call):
            self.meter.mark(call.node.name)
            for key in again_made:
                self.meter.drop(key)
        self.meter.mark(call.node.name, buffers=buffers[-1])
        self.meter.drop_before(first)
        return again

    def held_by(self, call: PricedCall, operand: str, size: Dim, incoming: int | None) -> int:
        """The buffer of an operand's gradient: that of the result's, or a fresh one."""
        if incoming is not None:
            self.holders[incoming] += 1
            return incoming
        buffer = self.allocate(operand, size)
        if operand in self.parameters and self.execution.transposes_gradient(call):
            self.views.add(buffer)
        return buffer

    def sizes_of(self, gradient: Backward) -> Sequence[Dim]:
        """Bytes of each gradient; equal calls share the object."""
        sizes = self.sizes.get(id(gradient))
        if sizes is None:
            out = gradient.estimate.out
            sizes = [value.nbytes if isinstance(value, TensorType) else 0 for value in out]
            self.sizes[id(gradient)] = sizes
        return sizes

    def accumulate(self, name: str, buffer: int, node: str) -> None:
        """Add a second gradient of a value to its first.

        In place, unless the first is a view or repeated, or others hold it too.
        """
        first, value = self.gradients[name], self.values[name]
        assert isinstance(value, TensorType)
        size = value.like().nbytes
        if first in self.views or self.holders[first] > 1 or self.buffers[first] != size:
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

    def drop(self, buffer: int) -> None:
        self.holders[buffer] -= 1
        if self.holders[buffer] == 0:
            self.meter.drop(-1 - buffer)

    def backward(
        self,
        calls: Sequence[PricedCall],
        released: Mapping[int, Sequence[str | int]],
        before: Mapping[int, Callable[[], None]],
    ) -> None:
        """Run the gradients of the calls, the last one first.

        released: by index of a call, what its gradient is the last to need. before: by index, what runs before its gradient.
        """
        for index in range(len(calls) - 1, -1, -1):
            call = calls[index]
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
