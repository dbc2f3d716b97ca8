"""Memory under torch.compile: what the kernels of a program's plan allocate and free.

A kernel of elementwise calls or reductions writes over an operand that it is the last to read. Any other result takes the
last freed buffer of its size, unless keeping that until then raises the peak, as inductor estimates it without any reuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from graphflops.base.record import Record, replace
from graphflops.dims import Dim, dim_max
from graphflops.graph import tensor_type
from graphflops.inductor.fusing import Kernel
from graphflops.inductor.lowering import Extern
from graphflops.inductor.plan import CompiledGraph, Plan, Plans
from graphflops.kernels.kernel import IMAGE_RANK
from graphflops.memory.on_gpu import Eager, OnGpu
from graphflops.passes.memory import Measured, Peaks, Seeds, memory_use
from graphflops.passes.meter import Meter
from graphflops.passes.program import CallByCall, MemoryUse, PricedGraph, PricedProgram
from graphflops.tensor import TensorType, grouped

_AGAIN = " again"  # appended to the name of a tensor that the backward recomputes


def compiled_memory_use(program: PricedProgram, plans: Plans) -> MemoryUse:
    """The peaks of a compiled program; torch.compile leaves recurrent layers (not cells) to eager execution."""
    operators = [call.node.operator for call in program.main.inlined.calls]
    if any(one.kind == "recurrent" and not one.word.endswith("_cell") for one in operators):
        return memory_use(program, partial(Eager, runs=plans))
    return memory_use(program, partial(OnGpu, runs=plans), partial(_CompiledPeaks, plans))


class _CompiledPeaks(Peaks):
    def __init__(self, plans: Plans, *rest: Any) -> None:
        super().__init__(*rest)
        self.plans = plans

    def measured(self, execution: CallByCall, graph: PricedGraph, seeds: Seeds) -> Measured:
        """The peak of a graph, its timeline, and how many of the timeline's entries outlive the graph."""
        inner = [(call, found) for call in execution.calls if (found := self.inside(call, seeds is not None))]
        inside = {call.node.name: dim_max(*(peak.bytes for peak in found)) for call, found in inner}
        run = _Run(self.plans.plan(graph, training=seeds is not None), self.meter(graph, execution), inside)
        # Gradients of parameters from an earlier micro-step, to which the new ones are finally added.
        for name in self.earlier(graph, seeds):
            if (value := tensor_type(name, execution.values)) is not None:
                run.meter.take(name, value.like().nbytes, "gradient", f"{name} earlier")
                run.earlier.append(name)
        turn = run.graphs()
        return run.meter.peak(), *run.meter.timeline(turn)


class _Run:
    """Runs a plan's kernels, and meters what they allocate and free. inside: peaks of nested graphs, by call."""

    def __init__(self, plan: Plan, meter: Meter, inside: Mapping[str, Dim]) -> None:
        self.plan, self.joint, self.meter, self.inside = plan, plan.joint, meter, inside
        self.earlier: list[str] = []
        # By tensor that outlives its graph, the key of its memory in the meter.
        self.memory: dict[str, str] = {}

    def graphs(self) -> int | None:
        """Run the forward, and in training the backward; return the moment at which the backward starts."""
        joint, plan = self.joint, self.plan
        self.run(plan.forward, "")
        if plan.backward is None:
            return None
        turn = len(self.meter.rows)
        for name in joint.tangents:
            self.take(name, joint.sizes[name], name)
        self.run(plan.backward, _AGAIN)
        for name in self.earlier:
            self.meter.drop(f"{name} earlier")
        return turn

    def take(self, tensor: str, size: Dim, key: str) -> None:
        name, kind = self.joint.labels.get(tensor, (tensor, "value"))
        self.meter.take(name, size, kind, key)

    def run(self, graph: CompiledGraph, mark: str) -> None:
        """Run one graph. mark: appended to the names of results."""
        order = self.with_wholes(graph)
        buffers = self.buffers(order, graph)
        instead = reused([buffer for buffer in buffers if buffer.size], graph.live)
        lasts = grouped((instead.get(buffer.name, buffer.name), buffer.last) for buffer in buffers)
        final = {owner: max(each) for owner, each in lasts.items()}
        key = {name: name + mark for name in final}
        key.update((name, self.memory.get(name, name)) for name in graph.given)
        self.memory.update((name, key.get(instead.get(name, name), name)) for name in graph.outputs)
        ends = grouped((place, key[owner]) for owner, place in final.items())
        for place, kernel in enumerate(order, 1):
            self.meter.row = kernel.last.row
            for name in kernel.outputs:
                if name in final and name not in instead:
                    self.take(name, self.joint.sizes.get(name, 0), key[name])
            self.meter.mark(kernel.last.node, buffers=(self.workspace(kernel),))
            for name in ends.get(place, ()):
                self.meter.drop(name)

    def with_wholes(self, graph: CompiledGraph) -> Sequence[Kernel]:
        """The kernels, where the first kernel that writes a part of a tensor makes the whole tensor."""
        whole, found = graph.lies_in, list[Kernel]()
        made: set[str] = set()
        for kernel in graph.kernels:
            outputs = dict.fromkeys(whole.get(name, name) for name in kernel.outputs)
            reads = dict.fromkeys(whole.get(name, name) for name in kernel.reads)
            own = tuple([name for name in outputs if name not in made])
            found.append(replace(kernel, outputs=own, reads=tuple(reads)))
            made.update(own)
        return found

    def workspace(self, kernel: Kernel) -> Dim:
        """Bytes that a kernel needs beside its operands and results; for a call that runs graphs, with their peak."""
        last = kernel.last
        return self.inside.get(last.node, 0) + last.workspace if isinstance(last, Extern) else 0

    def is_turned(self, name: str) -> bool:
        """Whether a result is converted to its eager layout at the end, because the graph's images are channels last."""
        if not self.joint.channels_last or name not in self.joint.results:
            return False
        value, layouts = self.plan.execution.values.get(name), self.plan.execution.layouts
        if not isinstance(value, TensorType) or value.rank != IMAGE_RANK:
            return False
        is_same = value.shape[1] == 1 or all(size == 1 for size in value.shape[2:])
        return not is_same and not layouts.has_channels_last(name)

    def overwritten(self, kernel: Kernel, name: str) -> list[str]:
        """Outside tensors that a result may be written over, directly or through tensors of its size in the same kernel.

        None if such a tensor is made from nothing: it is random numbers, and the result is written over these.
        """
        if self.is_turned(name):
            return []
        seen: dict[str, None] = {}
        todo = [name]
        while todo:
            reads = [read for read in kernel.over.get(todo.pop(), ()) if read not in seen]
            seen.update(dict.fromkeys(reads))
            own = [read for read in reads if read in kernel.over]
            alike = [read for read in own if self.joint.bytes(read) == self.joint.bytes(name)]
            if not all(kernel.over[read] for read in alike):
                return []
            todo += alike
        return [read for read in seen if read not in kernel.over]

    def buffers(self, order: Sequence[Kernel], graph: CompiledGraph) -> list[Buffer]:
        """The tensors that exist before the graph runs, and those that its kernels make."""
        last = {name: place for place, kernel in enumerate(order, 1) for name in kernel.reads}
        last.update(dict.fromkeys(graph.outputs, len(order) + 1))
        size = self.joint.bytes
        buffers = [Buffer(name, size(name), 0, last.get(name, 0), is_given=True) for name in graph.given]
        # No result is written over those of collectives, of joins, and of additions in place.
        kept = {name for kernel in order if kernel.last.role == "exchange" for name in kernel.outputs}
        kept.update(graph.lies_in.values())
        for place, kernel in enumerate(order, 1):
            for name in kernel.outputs:
                ends = [read for read in self.overwritten(kernel, name) if last.get(read) == place]
                over = tuple(read for read in ends if read not in kept)
                is_fresh = isinstance(kernel.last, Extern) and kernel.last.into == "own"
                ends_at = last.get(name, place)
                buffers.append(Buffer(name, size(name), place, ends_at, over, is_fresh=is_fresh))
        return buffers


class Buffer(Record, frozen=True):
    """A tensor that exists before the graph runs or that a kernel makes."""

    name: str
    size: int
    first: int  # number of the kernel that makes it, from 1; 0 if it exists before
    last: int  # number of the kernel that reads it last; if it outlives the graph, one more than all
    over: tuple[str, ...] = ()  # tensors that its kernel reads last: it may be written over them
    # Whether it exists before the graph runs. A result may be written over it, but its memory is not reused later.
    is_given: bool = False
    is_fresh: bool = False  # whether a library allocates it, so that it reuses no memory


def reused(buffers: Sequence[Buffer], estimated: Sequence[int]) -> dict[str, str]:
    """By tensor that reuses a buffer, the tensor that had the buffer first. buffers: in the order in which they are made.

    estimated: live bytes during each kernel if no buffer is reused.
    """
    live = [0, *estimated]
    most, sizes = max(live), {buffer.name: buffer.size for buffer in buffers}
    instead: dict[str, str] = {}
    # By size: the free buffers, the latest last, each with the position since which it is free.
    free: dict[int, dict[str, int]] = defaultdict(dict)
    ends: dict[int, list[Buffer]] = defaultdict(list)
    taken: set[str] = set()  # tensors that have been written over
    place = 0
    for buffer in buffers:
        for position in range(place, buffer.first):
            for gone in ends.pop(position, ()):  # read for the last time
                if gone.name not in taken and not gone.is_given:
                    name = instead.get(gone.name, gone.name)
                    free[gone.size].pop(name, None)
                    free[gone.size][name] = position
        place = max(place, buffer.first)
        ends[buffer.last].append(buffer)
        if buffer.is_given:
            continue
        fitting, own = [name for name in buffer.over if sizes.get(name) == buffer.size], free[buffer.size]
        if over := next((name for name in fitting if name not in taken), ""):
            taken.add(over)
            name = instead[buffer.name] = instead.get(over, over)
            own.pop(name, None)
        elif own and not buffer.is_fresh:
            name, since = next(reversed(own.items()))
            between = live[since + 1 : buffer.first]
            if not between or buffer.size + max(0, *between) <= most:
                del own[name]
                live[since + 1 : buffer.first] = [amount + buffer.size for amount in between]
                instead[buffer.name] = name
    return instead
