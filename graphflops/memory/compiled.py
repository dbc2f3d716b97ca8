"""Memory under torch.compile: of the kernels that inductor makes of a program's forward and of its backward.

Calls become operators of a joint graph of forward and backward; the partitioner chooses what is saved between the two; each
graph becomes kernels in the order that inductor prefers, whose results take the memory of others where it would reuse it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from graphflops.dims import dim_max
from graphflops.memory.buffer_reuse import Buffer, reused
from graphflops.memory.eager import Eager
from graphflops.memory.inductor.backward import BackwardLowering
from graphflops.memory.inductor.forward import ForwardLowering
from graphflops.memory.inductor.fusing import kernels
from graphflops.memory.inductor.joint_graph import JointGraph
from graphflops.memory.inductor.ordering import lowest_peak
from graphflops.memory.inductor.partition import Partition
from graphflops.memory.on_gpu import OnGpu
from graphflops.passes.memory import Peaks, memory_use
from graphflops.passes.meter import Meter
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.memory.inductor.fusing import Kernel
    from graphflops.memory.inductor.joint_graph import Op
    from graphflops.memory.runs import Runs
    from graphflops.passes.program import CallByCall, MemoryUse, Peak, PricedGraph, PricedProgram
    from graphflops.report import Timeline

_AGAIN = " again"  # after the name of a tensor that the backward computes a second time


class Compiled(OnGpu):
    """The calls that torch.compile traces, with their layouts and attention kernels."""


def compiled_memory_use(program: PricedProgram, runs: Runs) -> MemoryUse:
    """The peaks of a compiled program; torch.compile leaves programs with recurrent layers to eager execution."""
    if any(call.node.operator.kind == "recurrent" for call in program.main.calls):
        return memory_use(program, partial(Eager, runs=runs))
    return memory_use(program, partial(Compiled, runs=runs), _CompiledPeaks)


class _CompiledPeaks(Peaks):
    """Measures the graphs of a compiled program."""

    def measured(
        self,
        execution: CallByCall,
        graph: PricedGraph,
        peaks: Sequence[Sequence[Peak]],
        resident: Iterable[str],
        seeds: Sequence[str] | None,
        earlier: Iterable[str],
    ) -> tuple[Peak, Timeline, int]:
        """The peak of a graph, what is held when, and how many of the entries outlive it."""
        assert isinstance(execution, OnGpu)
        inside = {
            call.node.name: dim_max(*(peak.bytes for peak in found))
            for call, found in zip(execution.calls, peaks, strict=True)
            if found
        }
        joint = _joint_graph(execution, graph, inside, dict(self.sizes.hints), seeds)
        run = _Run(joint, Meter(self.sizes))
        for name in dict.fromkeys(resident):
            value = execution.values.get(name)
            if isinstance(value, TensorType):
                run.meter.take(name, value.nbytes, "input")
        for name in earlier:
            run.hold_gradient(name, execution)
        turn = run.graphs(is_training=seeds is not None)
        return run.meter.peak(), *run.meter.timeline(turn)


def _joint_graph(
    execution: OnGpu,
    graph: PricedGraph,
    inside: Mapping[str, Dim],
    values: Mapping[str, int],
    seeds: Sequence[str] | None,
) -> JointGraph:
    """The joint graph of a program, without gradients where there are no seeds. inside: peaks of nested graphs by call."""
    joint = JointGraph(values)
    for entry in graph.graph.inputs:
        value = execution.values.get(entry.name)
        joint.inputs[entry.name] = True
        joint.sizes[entry.name] = (
            value.nbytes if isinstance(value, TensorType) and entry.role == "user" else 0
        )
    forward = ForwardLowering(graph, execution, joint, inside)
    lowered = [forward.lower(call) for call in execution.calls]
    joint.results.update(forward.tensor(name) for name in (*graph.graph.returned, *graph.graph.lasting))
    if seeds is not None:
        backward = BackwardLowering(graph.graph, forward, joint, seeds)
        for one in reversed(lowered):
            if one.call.gradient is not None:
                backward.lower(one)
        joint.gradients.update(
            (tensor, None) for name, tensor in backward.gradient.items() if name in backward.wanted
        )
    return joint


class _Run:
    """Runs the kernels of a joint graph, and meters what they allocate and free."""

    def __init__(self, joint: JointGraph, meter: Meter) -> None:
        self.joint, self.meter = joint, meter
        self.earlier: list[str] = []
        self.memory: dict[
            str, str
        ] = {}  # by tensor that outlives its graph, the key of its memory in the meter

    def hold_gradient(self, name: str, execution: OnGpu) -> None:
        """Hold the gradient of a parameter from an earlier micro-step; the new one is added to it in the end."""
        value = execution.values.get(name)
        if isinstance(value, TensorType):
            self.meter.take(name, value.like().nbytes, "gradient", f"{name} earlier")
            self.earlier.append(name)

    def graphs(self, *, is_training: bool) -> int | None:
        """Run the forward, and in training the backward; the moment at which the backward starts."""
        joint = self.joint
        saved = Partition(joint).saved() if is_training else {}
        made = {name for op in joint.ops for name in op.outputs}
        kept = [name for name in (*saved, *joint.results) if name in made]
        forward = _computing(joint.ops, kept, joint.inputs)
        self.run(forward, dict.fromkeys(kept), {}, "")
        if not is_training:
            return None
        turn = len(self.meter.rows)
        for name in joint.tangents:
            self.take(name, joint.sizes[name], name)
        given = {name: None for name in (*saved, *joint.tangents) if name not in joint.inputs}
        outputs = dict.fromkeys([*joint.gradients, *joint.results])
        backward = _computing(joint.ops, joint.gradients, {*joint.inputs, *given})
        self.run(backward, outputs, given, _AGAIN)
        for name in self.earlier:
            self.meter.drop(f"{name} earlier")
        return turn

    def take(self, tensor: str, size: Dim, key: str) -> None:
        """Allocate a tensor."""
        name, kind = self.joint.labels.get(tensor, (tensor, "value"))
        self.meter.take(name, size, kind, key)

    def run(
        self, ops: Sequence[Op], outputs: Mapping[str, None], given: Mapping[str, None], mark: str
    ) -> None:
        """Run one graph. given: tensors that are there and are freed after their last use; mark: after names of results."""
        joint = self.joint
        order = lowest_peak(kernels(ops, outputs), joint.bytes, given, outputs)
        last = {name: place for place, kernel in enumerate(order, 1) for name in kernel.reads}
        end = len(order) + 1
        last.update(dict.fromkeys(outputs, end))
        instead = self.taken_from(order, given, last, end)
        final = {name: last.get(name, 0) for name in given}
        for place, kernel in enumerate(order, 1):
            for name in kernel.outputs:
                owner = instead.get(name, name)
                final[owner] = max(final.get(owner, 0), last.get(name, place))
        key = {name: name + mark for name in final}
        key.update((name, self.memory.get(name, name)) for name in given)
        self.memory.update((name, key.get(instead.get(name, name), name)) for name in outputs)
        ends: dict[int, list[str]] = {}
        for owner, place in final.items():
            ends.setdefault(place, []).append(key[owner])
        for place, kernel in enumerate(order, 1):
            self.meter.row = kernel.row
            for name in kernel.outputs:
                if name in final and name not in instead:
                    self.take(name, joint.sizes.get(name, 0), key[name])
            self.meter.mark(kernel.node, workspace=kernel.workspace)
            for name in ends.get(place, ()):
                self.meter.drop(name)

    def overwritten(self, kernel: Kernel, name: str) -> list[str]:
        """Tensors from outside that a result may be written over, also by way of tensors of the same size in the kernel."""
        seen: dict[str, None] = {}
        todo = [name]
        while todo:
            reads = [read for read in kernel.over.get(todo.pop(), ()) if read not in seen]
            seen.update(dict.fromkeys(reads))
            own = [read for read in reads if read in kernel.over]
            todo += [read for read in own if self.joint.bytes(read) == self.joint.bytes(name)]
        return [read for read in seen if read not in kernel.over]

    def taken_from(
        self, order: Sequence[Kernel], given: Mapping[str, None], last: Mapping[str, int], end: int
    ) -> dict[str, str]:
        """By tensor that takes the memory of another: the first that had it."""
        size = self.joint.bytes
        buffers = [Buffer(name, size(name), 0, last.get(name, 0), is_given=True) for name in given]
        for place, kernel in enumerate(order, 1):
            for name in kernel.outputs:
                over = tuple(read for read in self.overwritten(kernel, name) if last.get(read) == place)
                buffer = Buffer(
                    name, size(name), place, last.get(name, place), over, is_fresh=not kernel.reuses
                )
                buffers.append(buffer)
        inside = {place: sum(map(size, kernel.inside)) for place, kernel in enumerate(order, 1)}
        return reused([buffer for buffer in buffers if buffer.size], end, inside)


def _computing(ops: Sequence[Op], wanted: Iterable[str], given: Iterable[str]) -> list[Op]:
    """The operators that compute tensors from given ones; what does not depend on gradients just before its first reader."""
    maker = {name: op for op in ops for name in op.outputs}
    place = {id(op): index for index, op in enumerate(ops)}
    there = set(given)
    needed: set[int] = set()
    todo = [name for name in wanted if name not in there]
    while todo:
        op = maker.get(todo.pop())
        if op is not None and place[id(op)] not in needed:
            needed.add(place[id(op)])
            todo += [name for name in op.reads if name not in there]
    has_gradients = any(ops[index].is_gradient for index in needed)
    order: list[Op] = []
    done: set[int] = set()
    for index in sorted(needed):
        if ops[index].is_gradient or not has_gradients:
            _append(index, ops, maker, place, needed, done, order)
    return order


def _append(
    index: int,
    ops: Sequence[Op],
    maker: Mapping[str, Op],
    place: Mapping[int, int],
    needed: set[int],
    done: set[int],
    order: list[Op],
) -> None:
    """Append an operator after those that it reads."""
    stack = [(index, False)]
    while stack:
        current, is_ready = stack.pop()
        if is_ready:
            order.append(ops[current])
        elif current not in done:
            done.add(current)
            stack.append((current, True))
            reads = [place[id(maker[name])] for name in ops[current].reads if name in maker]
            stack += [(other, False) for other in sorted(reads, reverse=True) if other in needed]
