"""The plan of a compiled program: the kernels of its forward and backward, their order, and what they store.

Calls become operators of a joint graph; the partitioner chooses what is saved between forward and backward. Each of the two
becomes kernels, in that of three orders which has the lowest peak by inductor's estimate (`reorder_for_peak_memory` in
torch/_inductor/memory.py; its breadth-first order does not predict the peaks of 147 measured programs better).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate

from graphflops.base.record import Record, replace
from graphflops.devices import Platform
from graphflops.execution.fast_path import LAYER
from graphflops.execution.runs import Runs
from graphflops.inductor.calls import CallLowering
from graphflops.inductor.fusing import Kernel, Size, fused, in_steps
from graphflops.inductor.library_calls import prefers_channels_last
from graphflops.inductor.lowering import JointGraph, Op, places_of
from graphflops.inductor.partition import Partition
from graphflops.inductor.storing import realized, with_sums
from graphflops.memory.on_gpu import OnGpu
from graphflops.passes.program import PricedGraph, PricedProgram
from graphflops.tensor import grouped

Names = Container[str]
Tensors = Mapping[str, None]  # by name, in order


def lowest_peak(
    kernels: Sequence[Kernel], size: Size, given: Names, outputs: Names
) -> list[tuple[Kernel, int]]:
    """The kernels in inductor's order, each with the bytes that are live then by its estimate.

    given: tensors that exist before and may be freed. outputs: tensors that outlive the graph.
    """
    order = _Order(kernels, size, given, outputs).as_written()
    plan = _Order([kernels[index] for index in order], size, given, outputs)
    orders = ([*range(len(kernels))], plan.least_memory(), plan.smallest_first())
    best = min(orders, key=lambda order: max(0, *plan.live(order)))
    return [(plan.kernels[index], amount) for index, amount in zip(best, plan.live(best), strict=False)]


class _Order:
    """Topological orders of kernels, as lists of places."""

    def __init__(self, kernels: Sequence[Kernel], size: Size, given: Names, outputs: Names) -> None:
        self.kernels, self.outputs = kernels, outputs
        self.results = [(*kernel.outputs, *kernel.inside) for kernel in kernels]
        self.maker = {name: index for index, names in enumerate(self.results) for name in names}
        known = self.maker
        # Tensors that are added to in place: inductor's estimate names memory by its base, which does not outlive the graph.
        adding = [op for kernel in kernels for op in kernel.members if op.role == "adding"]
        base = {op.outputs[0]: op.reads[-1] for op in adding}
        found = [(*each.reads, *[base[name] for name in each.reads if name in base]) for each in kernels]
        self.reads = [[x for x in dict.fromkeys(names) if x in known or x in given] for names in found]
        read = grouped((name, index) for index, names in enumerate(self.reads) for name in names)
        self.readers = {name: list[int]() for name in self.maker} | read
        self.given = [name for name in self.readers if name not in self.maker]
        self.size = {name: 0 if name in base else size(name) for name in self.readers}
        self.before = [sorted({known[name] for name in names if name in known}) for names in self.reads]
        self.made = [sum(self.size[name] for name in names) for names in self.results]

    def as_written(self) -> list[int]:
        """Each kernel after the kernels that it reads, otherwise in the given order."""
        return _depth_first(range(len(self.kernels)), lambda index: self.before[index])

    def least_memory(self) -> list[int]:
        """Always run the ready kernel that frees most without raising the maximum so far; if there is none, the smallest."""
        left = {name: len(readers) + (name in self.outputs) for name, readers in self.readers.items()}
        net = [*self.made]  # bytes made, minus the bytes that the kernel then frees
        for index, names in enumerate(self.results):
            net[index] -= sum(self.size[name] for name in self.reads[index] if left[name] == 1)
            net[index] -= sum(self.size[name] for name in names if left[name] == 0)
        waiting = [len(makers) for makers in self.before]
        ready = {index for index, count in enumerate(waiting) if count == 0}
        live = sum(self.size[name] for name in self.given)
        most = max(live, sum(size for name, size in self.size.items() if name in self.outputs))
        order: list[int] = []
        while ready:
            fitting = [(net[index], index) for index in ready if live + self.made[index] <= most]
            index = min(fitting)[1] if fitting else min((self.made[at], net[at], at) for at in ready)[2]
            ready.remove(index)
            order.append(index)
            most = max(most, live + self.made[index])
            live += net[index]
            for other in {reader for name in self.results[index] for reader in self.readers[name]}:
                waiting[other] -= 1
                if waiting[other] == 0:
                    ready.add(other)
            for name in self.reads[index]:
                left[name] -= 1
                if left[name] == 1:
                    for reader in self.readers[name]:
                        net[reader] -= self.size[name]
        return order

    def smallest_first(self) -> list[int]:
        """Kernels that read and write the fewest bytes first, each after what it reads, in the same order."""
        moved = [sum(map(self.size.__getitem__, names), self.made[at]) for at, names in enumerate(self.reads)]

        def smallest(places: Iterable[int]) -> list[int]:
            return sorted(places, key=lambda index: (moved[index], index))

        return _depth_first(smallest(range(len(moved))), lambda index: smallest(self.before[index]))

    def live(self, order: Sequence[int]) -> list[int]:
        """Bytes live if the kernels run in this order and no memory is reused, as inductor estimates them.

        One value for each kernel, and one for the end. Release 2.11 subtracts what outlives the graph from the start.
        """
        step = {index: turn for turn, index in enumerate(order)}
        change = [0] * (len(order) + 1)
        change[0] = sum(self.size[name] for name in self.given)
        for name, readers in self.readers.items():
            made = self.maker.get(name)
            if made is not None:
                change[step[made]] += self.size[name]
            last = max((step[reader] for reader in readers), default=0 if made is None else step[made])
            change[0 if name in self.outputs else last + 1] -= self.size[name]
        return [*accumulate(change)]


class CompiledGraph(Record, frozen=True):
    """The forward or the backward."""

    kernels: Sequence[Kernel]  # in execution order
    live: Sequence[int]  # bytes live during each of them, by inductor's estimate
    given: Tensors  # tensors that exist before, and are freed after their last use
    outputs: Tensors  # tensors that outlive the graph
    lies_in: Mapping[str, str]  # by part of a tensor that is written separately, the tensor


class Plan(Record, frozen=True):
    """How a graph runs under torch.compile."""

    execution: OnGpu
    joint: JointGraph
    forward: CompiledGraph
    backward: CompiledGraph | None = None  # None if no gradients are computed


class Plans(Runs):
    """The plans of a program's graphs, each made once. Only whole transformer layers take their fast path."""

    def __init__(self, program: PricedProgram, platform: Platform) -> None:
        super().__init__(program.attentions, platform, is_eager=False, fast_paths=(LAYER,))
        self.sizes = dict(program.binding.examples)
        self.plans: dict[tuple[PricedGraph, bool], Plan] = {}

    def plan(self, graph: PricedGraph, *, training: bool) -> Plan:
        """The plan of a graph. training: whether gradients are computed."""
        key = (graph, training)
        if key in self.plans:
            return self.plans[key]
        execution = OnGpu(graph, training, self)
        calls, values = execution.calls, execution.values
        is_last = prefers_channels_last(calls, values, len(graph.graph.inputs), training=training)
        joint = JointGraph(self.sizes, execution.layouts.platform, channels_last=is_last)
        lowering = CallLowering(execution, joint)
        for entry in graph.graph.inputs:
            joint.inputs[entry.name] = lowering.nbytes(entry.name)
            joint.sizes[entry.name] = joint.inputs[entry.name] if entry.role == "user" else 0
        lowered = [lowering.lower(call) for call in calls]
        lowering.write_back(lowered)
        returned = (*graph.graph.returned, *graph.graph.lasting)
        joint.results.update(dict.fromkeys(map(lowering.tensor, returned)))
        saved: Tensors = {}
        if training:
            lowering.backward(graph.graph, lowered)
            saved = Partition(joint).saved()
        made = {name for op in joint.ops for name in op.outputs}
        kept = [name for name in (*saved, *joint.results) if name in made]
        ops = _computing(joint.ops, kept, joint.inputs)
        if not training:
            ops = _near_readers(ops, joint)
        plan = Plan(execution, joint, _compiled(joint, ops, {}, dict.fromkeys(kept)))
        if training:
            given = {name: None for name in (*saved, *joint.tangents) if name not in joint.inputs}
            ops = _computing(joint.ops, joint.gradients, {*joint.inputs, *given})
            wanted = dict.fromkeys([*joint.gradients, *joint.results])
            plan = replace(plan, backward=_compiled(joint, ops, given, wanted))
        self.plans[key] = plan
        return plan


def _compiled(joint: JointGraph, ops: Sequence[Op], given: Tensors, outputs: Tensors) -> CompiledGraph:
    joint = replace(joint, lies_in={**joint.lies_in})  # this graph adds what it joins
    stored = realized(with_sums(ops, outputs, joint), outputs, joint)
    steps = [step for op in stored for step in in_steps(op, joint)]
    sizes = {**joint.sizes, **joint.inputs}
    kernels = fused(steps, outputs, lambda name: joint.number(sizes.get(name, 0)))
    order = lowest_peak(kernels, joint.bytes, given, outputs)
    order = [one for one in order if one[0].last.role != "joined"]
    run, live = [kernel for kernel, _ in order], [size for _, size in order]
    return CompiledGraph(run, live, given, outputs, joint.lies_in)


def _computing(ops: Sequence[Op], wanted: Iterable[str], given: Iterable[str]) -> list[Op]:
    """The operators that compute `wanted` from `given`; those without gradients come just before their first reader."""
    makers, _ = places_of(ops)
    for name in given:
        makers.pop(name, None)

    def before(index: int) -> list[int]:
        return sorted({makers[name] for name in ops[index].reads if name in makers})

    needed = sorted(_depth_first([makers[name] for name in wanted if name in makers], before))
    has_gradients = any(ops[index].is_gradient for index in needed)
    starts = [index for index in needed if ops[index].is_gradient or not has_gradients]
    return [ops[index] for index in _depth_first(starts, before)]


def _near_readers(ops: Sequence[Op], joint: JointGraph) -> list[Op]:
    """Each operator just before its first reader (`reorder_for_locality` of inductor's post_grad.py).

    An operator stays if it is read through one of several views that a call returns.
    """
    maker, users = places_of(ops)
    left = dict.fromkeys(range(len(ops)))
    order: list[Op] = []
    seen: set[int] = set()
    while left:
        last, _ = left.popitem()
        order.append(ops[last])
        seen.add(last)
        for made in [maker[name] for name in ops[last].reads if name in maker]:
            readers = [(name, user) for name in ops[made].outputs for user in users.get(name, ())]
            is_item = any(ops[user].views.get(name) in joint.items for name, user in readers)
            if made in left and not is_item and seen.issuperset(user for _, user in readers):
                del left[made]
                left[made] = None
    return order[::-1]


def _depth_first(starts: Iterable[int], before: Callable[[int], Sequence[int]]) -> list[int]:
    """All starts in order, each after what `before` says must come first."""
    seen: set[int] = set()
    order: list[int] = []
    for start in starts:
        stack = [(start, False)]
        while stack:
            index, is_done = stack.pop()
            if is_done:
                order.append(index)
            elif index not in seen:
                seen.add(index)
                stack.append((index, True))
                stack += [(other, False) for other in reversed(before(index)) if other not in seen]
    return order
