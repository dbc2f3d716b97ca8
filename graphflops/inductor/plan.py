"""The plan of a compiled program: which kernels its forward and its backward are, in which order, and what they store.

Calls become operators of a joint graph of forward and backward; the partitioner chooses what is saved between the two; each
of them becomes kernels in the order that inductor prefers. Memory and time are found from the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.execution.fast_path import LAYER
from graphflops.execution.runs import Runs
from graphflops.inductor.backward import BackwardLowering
from graphflops.inductor.forward import ForwardLowering
from graphflops.inductor.fusing import fused
from graphflops.inductor.joint_graph import JointGraph
from graphflops.inductor.ordering import lowest_peak
from graphflops.inductor.partition import Partition
from graphflops.inductor.realizing import in_steps, oriented, realized
from graphflops.memory.on_gpu import OnGpu
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.devices import Platform
    from graphflops.inductor.fusing import Kernel
    from graphflops.inductor.joint_graph import Op
    from graphflops.passes.program import PricedGraph, PricedProgram


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """The forward or the backward: its kernels in the order in which they run.

    given: tensors that are there before and are freed after their last use. outputs: tensors that outlive the graph.
    computed_again: by tensor that is not stored but computed wherever it is read, its operator.
    """

    kernels: Sequence[Kernel]
    given: Mapping[str, None]
    outputs: Mapping[str, None]
    computed_again: Mapping[str, Op]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a graph runs under torch.compile. backward: None where no gradients are computed.

    channels_last: whether its convolutions run with channels last.
    """

    execution: OnGpu
    joint: JointGraph
    channels_last: bool
    forward: CompiledGraph
    backward: CompiledGraph | None = None


class Plans(Runs):
    """The plans of the graphs of one program, each made once. Of the modules with a fast path whole layers take it."""

    def __init__(self, program: PricedProgram, platform: Platform) -> None:
        super().__init__(program.attentions, platform, is_eager=False, fast_paths=(LAYER,))
        self.sizes = dict(program.binding.examples)
        self.plans: dict[tuple[PricedGraph, bool], Plan] = {}

    def plan(self, graph: PricedGraph, *, training: bool) -> Plan:
        """The plan of a graph. training: whether it is run for gradients."""
        key = (graph, training)
        if key not in self.plans:
            self.plans[key] = _plan(graph, OnGpu(graph, training, self), self.sizes)
        return self.plans[key]


def _plan(graph: PricedGraph, execution: OnGpu, sizes: Mapping[str, int]) -> Plan:
    joint = JointGraph(sizes, execution.layouts.platform)
    for entry in graph.graph.inputs:
        value = execution.values.get(entry.name)
        nbytes = value.nbytes if isinstance(value, TensorType) else 0
        joint.inputs[entry.name] = nbytes
        joint.sizes[entry.name] = nbytes if entry.role == "user" else 0
    forward = ForwardLowering(graph, execution, joint)
    lowered = [forward.lower(call) for call in execution.calls]
    joint.results.update(forward.tensor(name) for name in (*graph.graph.returned, *graph.graph.lasting))
    if not execution.training:
        return Plan(execution, joint, forward.channels_last, _forward(joint, {}))
    backward = BackwardLowering(graph.graph, forward, joint, graph.graph.seeds)
    for one in reversed(lowered):
        if one.call.gradient is not None:
            backward.lower(one)
    joint.gradients.update(
        (tensor, None) for name, tensor in backward.gradient.items() if name in backward.wanted
    )
    saved = Partition(joint).saved()
    return Plan(execution, joint, forward.channels_last, _forward(joint, saved), _backward(joint, saved))


def _forward(joint: JointGraph, saved: Mapping[str, None]) -> CompiledGraph:
    made = {name for op in joint.ops for name in op.outputs}
    kept = [name for name in (*saved, *joint.results) if name in made]
    return _compiled(joint, _computing(joint.ops, kept, joint.inputs), {}, dict.fromkeys(kept))


def _backward(joint: JointGraph, saved: Mapping[str, None]) -> CompiledGraph:
    given = {name: None for name in (*saved, *joint.tangents) if name not in joint.inputs}
    ops = _computing(joint.ops, joint.gradients, {*joint.inputs, *given})
    return _compiled(joint, ops, given, dict.fromkeys([*joint.gradients, *joint.results]))


def _compiled(
    joint: JointGraph, ops: Sequence[Op], given: Mapping[str, None], outputs: Mapping[str, None]
) -> CompiledGraph:
    stored, computed_again = realized(ops, outputs)
    steps = [step for op in oriented(stored, joint) for step in in_steps(op, joint)]
    order = lowest_peak(fused(steps, outputs), joint.bytes, given, outputs)
    return CompiledGraph(order, given, outputs, computed_again)


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
