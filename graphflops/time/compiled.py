"""Launches under torch.compile: the kernels of a program's plan, which inductor writes or libraries have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from math import prod

from msgspec.structs import replace

from graphflops.errors import DimError
from graphflops.execution.fast_path import calls_of_module, is_module
from graphflops.inductor.fusing import Kernel as PlannedKernel
from graphflops.inductor.layout_choice import aligned, image_and_weight, is_of_images
from graphflops.inductor.lowering import Op
from graphflops.inductor.plan import Plan, Plans
from graphflops.kernels.call import ConcreteCall, OpenSizeError, Sizes
from graphflops.kernels.kernel import SINGLE, Convolution, Kernel, Product
from graphflops.kernels.lower import inside_operator
from graphflops.kernels.rowwise import loss_kernels
from graphflops.passes.program import PricedCall, PricedGraph, PricedProgram
from graphflops.time.launches import Launcher
from graphflops.time.schedule import Costs, Exchanges, Launches, awaited_later, recurrent_seconds

# Families that inductor writes of the kernels of a convolution or attention: what adds a bias, a softmax.
_WRITTEN = ("elementwise", "reduction", "softmax")


class CompiledLauncher(Launcher):
    """Lowers the calls of a program as torch.compile runs them."""

    def __init__(self, program: PricedProgram, values: Mapping[str, int], plans: Plans, costs: Costs) -> None:
        super().__init__(program, values, plans, costs)
        self.plans = plans

    def forward(self, *, records: bool) -> list[Launches]:
        """The forward after the checks of guards."""
        self.records = records
        host = self.costs["compiled.guards"] + records * self.costs["compiled.autograd"] / 2
        return [Launches(-1, (), host), *self._launches(self.program.main, 0, 1, records, is_backward=False)]

    def backward(self) -> list[Launches]:
        """The gradients, which are one graph of their own."""
        self.records = True
        loss = loss_kernels(self.program, self.sizes, stores_gradients=True)
        return [
            Launches(-1, loss, self.costs["compiled.autograd"] / 2),
            *self._launches(self.program.main, 0, 1, True, is_backward=True),
            Launches(-1, (), self.costs["compiled.parameter"] * len(self.parameters)),
        ]

    def _launches(
        self, graph: PricedGraph, first: int, times: int, records: bool, *, is_backward: bool
    ) -> Iterator[Launches]:
        try:
            plan = self.plans.plan(graph, training=records)
        except DimError:  # sizes that are too large to count with
            yield Launches(first, None, 0.0, times)
            return
        part = plan.backward if is_backward else plan.forward
        assert part is not None
        phase = "training" if records else "inference"
        cost = self.costs[f"compiled.{phase}.fused"]
        written = Written(plan, self.sizes)
        seen: set[tuple[str, bool]] = set()
        exchanges = Exchanges()
        late = awaited_later(plan.execution.calls) if graph.graph.has_exchanges else ()
        for planned in part.kernels:
            if exchanges.pending:
                yield from exchanges.ends(planned.reads)
            row = first + planned.row
            if planned.is_written:
                kernel = written.kernel(planned, part.computed_again)
                yield Launches(row, None if kernel is None else (kernel,), cost, times)
                continue
            op = planned.members[0]
            if (op.node, op.is_gradient) not in seen:  # the kernels of a call run together
                seen.add((op.node, op.is_gradient))
                call = written.calls[op.node]
                for launch in self._of_library(call, op, graph, plan, row, times, phase):
                    if op.node in late and launch.kernels:
                        yield from exchanges.started(launch, op.outputs)
                    else:
                        yield launch
        yield from exchanges.all_ends()

    def _of_library(
        self, call: PricedCall, op: Op, graph: PricedGraph, plan: Plan, row: int, times: int, phase: str
    ) -> Iterator[Launches]:
        """What a library runs of a call, and the graphs that run inside it."""
        if call.estimate.unknown:
            yield Launches(row, None, 0.0, times)
        elif is_module(call):
            inside = self._of_module(call, graph)
            yield Launches(row, inside, len(inside) * self.costs["forward.inside"], times)
        elif not call.estimate.regions:
            kernels = self._own(call, op, plan)
            host = _host_seconds(self.costs, phase, kernels or (), is_gradient=op.is_gradient)
            yield Launches(row, kernels, host, times)
        for inner, start, turns in self._nested(call, row, times):
            yield from self._launches(inner, start, turns, phase == "training", is_backward=op.is_gradient)

    def _of_module(self, module: PricedCall, graph: PricedGraph) -> tuple[Kernel, ...]:
        """The kernels of a module of torch.nn that runs as one operator."""
        run, found = self.runs.of(graph), list[Kernel]()
        for call in calls_of_module(module, run.calls):
            found += inside_operator(call, self._lowered(call, run.layouts, is_backward=False) or ())
        return tuple(found)

    def _own(self, call: PricedCall, op: Op, plan: Plan) -> tuple[Kernel, ...] | None:
        """The kernels of a call that inductor does not write."""
        kernels = self._lowered(call, plan.execution.layouts, is_backward=op.is_gradient)
        if kernels is None:
            return None
        kind = call.node.operator.kind
        if kind == "product":
            own = [kernel for kernel in kernels if kernel.family == "matmul"]
            return _padded(own) if op.is_padded else tuple(own)
        if kind == "attention":
            return tuple([kernel for kernel in kernels if kernel.family not in (*_WRITTEN, "copy")])
        if kind == "collective":  # what it copies first is a kernel that inductor writes, if any
            return kernels[-1:]
        if kind != "convolution":
            return kernels
        if not (plan.channels_last and is_of_images(call, plan.execution.values)):
            is_own = [kernel.family not in _WRITTEN and kernel.variant != "strided" for kernel in kernels]
            return tuple(compress(kernels, is_own))
        own = [kernel for kernel in kernels if kernel.family not in (*_WRITTEN, "copy")]
        return tuple([part for kernel in own for part in _image_kernels(kernel)])


def _host_seconds(costs: Costs, phase: str, kernels: Sequence[Kernel], *, is_gradient: bool) -> float:
    """CPU seconds of a call of a library. One of cuDNN builds a key of its problem first, and converts its operands."""
    families = Counter(kernel.family for kernel in kernels)
    if families["attention"]:
        return costs[f"compiled.{phase}.attention"]
    if families["collective"]:
        return costs["compiled.collective"]
    convolutions = families["convolution"]
    if convolutions and is_gradient:
        return convolutions * costs["compiled.training.convolution_gradient"]
    calls = (convolutions or len(kernels)) * costs[f"compiled.{phase}.library"]
    return calls + recurrent_seconds(costs, kernels)


def _image_kernels(kernel: Kernel) -> list[Kernel]:
    """A convolution with channels innermost; the gradient of its weight is copied into the order of the weight."""
    sizes = kernel.sizes
    if not isinstance(sizes, Convolution):
        return [kernel]
    own = replace(kernel, sizes=replace(sizes, channels_last=True))
    lies_alike = set(sizes.filter) == {1} or sizes.channels == sizes.groups
    if sizes.phase != "weight_gradient" or lies_alike:
        return [own]
    nbytes = kernel.written_bytes
    return [own, Kernel("copy", kernel.dtype, 0, 0, nbytes, nbytes, variant="strided")]


def _padded(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Products with their sizes rounded up to what tensor cores load."""
    found = []
    for kernel in kernels:
        assert isinstance(kernel.sizes, Product)
        m, n, k = map(aligned, (kernel.sizes.m, kernel.sizes.n, kernel.sizes.k))
        found.append(replace(kernel, sizes=replace(kernel.sizes, m=m, n=n, k=k)))
    return tuple(found)


_LOOP = 2  # time of an element of a loop beside its loads, by that of a load
_INNER, _INNER_LOAD, _OUTER_LOAD = 5.5, 1.1, 2.2  # the same of an element that is reduced, and of its loads
_BRANCH = 3  # loads that the choice of an operand, as of a `cat`, takes as long as
_WINDOW, _GRADIENT_WINDOW = 5, 10  # loads that an element of a window of pooling takes as long as
_FUNCTION, _GRADIENT_OF_FUNCTION = 4, 7  # loads that a transcendental function takes as long as
# Channels of an image; loads that writing an element of so few takes as long as.
_FEW_CHANNELS, _APART = (8, 30)
_RANDOM = 14  # loads that a random number takes as long as
_WIDE = 64  # elements of a row, above which threads add to different places
_ADDED = 5  # loads that an addition to memory takes as long as
# The same where few places are added to again and again, at most, and of one place: in float32, and in half precision.
_CONTENDED, _CONTENDED_HALF = (4_000, 1_000_000), (20_000, 45_000_000)
_COMPUTED = frozenset(
    {"elementwise", "comparison", "logic", "cast", "identity", "movement", "dropout", "random"}
)


class Written:
    """Kernels of a plan as a device runs them."""

    def __init__(self, plan: Plan, sizes: Sizes) -> None:
        self.plan, self.joint, self.sizes = plan, plan.joint, sizes
        self.calls = {call.node.name: call for call in plan.execution.calls}
        self.known: dict[tuple[int | str, bool], int] = {}

    def kernel(self, planned: PlannedKernel, computed_again: Mapping[str, Op]) -> Kernel | None:
        """A kernel that reads what others made, each buffer once, and stores what is read elsewhere; None for open sizes."""
        part = {op.outputs[0]: op.part_bytes for op in planned.members if op.part_bytes != 0}
        sizes, elements = self.joint.sizes, max(op.elements for op in planned.members)
        try:
            loads, read = self._reads(planned)
            written = sum(self.sizes(part.get(name) or sizes.get(name, 0)) for name in planned.outputs)
            slow = sum(self._slow(op) * op.elements for op in planned.members)
            slow += sum(self._slow(op) for op in _inside(planned, computed_again)) * elements
        except OpenSizeError:
            return None
        if any(_adds_to_memory(op, self.calls) for op in planned.members):
            written += read
        reductions = [op for op in planned.members if op.kept]
        if reductions:
            is_inner = all(op.is_inner for op in reductions)
            return reduction_kernel(elements, loads, read, written, slow=slow, is_inner=is_inner)
        return loop_kernel(elements, loads, read, written, slow=slow)

    def _reads(self, planned: PlannedKernel) -> tuple[int, int]:
        """How many loads a kernel has for each element, and how many bytes they read."""
        whole: set[str] = set()
        parts: dict[str, dict[str, int]] = {}
        outside = set(planned.reads)
        for op in planned.members:
            for name in outside.intersection(op.reads):
                if name in op.parts:
                    read = parts.setdefault(name, {})
                    read.update((part, self.sizes(size)) for part, size in op.parts[name].items())
                else:
                    whole.add(name)
        total = sum(self._bytes(name) for name in whole)
        beside = [(name, read) for name, read in parts.items() if name not in whole]
        total += sum(min(sum(read.values()), self._bytes(name)) for name, read in beside)
        return len(whole) + sum(len(read) for read in parts.values()), total

    def _bytes(self, name: str) -> int:
        return self.sizes(self.joint.inputs.get(name) or self.joint.sizes.get(name, 0))

    def _slow(self, op: Op) -> int:
        """Loads that the slow instructions of an operator take as long as, for each element."""
        call = self.calls.get(op.node)
        if call is None or op.kind != "pointwise":
            return 0
        if op.is_random:
            return _RANDOM
        if op.moved and call.node.operator.kind == "convolution":
            # A copy of the operand: few channels that become the innermost axis are written far apart.
            pair = image_and_weight(call, self.plan.execution.values)
            if pair is None or op.elements != self.joint.number(pair[0].numel):
                return 0
            return _APART if 1 < self.joint.number(pair[0].shape[1]) < _FEW_CHANNELS else 0
        key = (self.plan.execution.forms.of(call) or op.node, op.is_gradient)
        if key not in self.known:
            layouts = self.plan.execution.layouts
            concrete = ConcreteCall(call, layouts.values, layouts.known, self.sizes)
            self.known[key] = _slow_gradient(concrete) if op.is_gradient else _slow_result(concrete)
        found = self.known[key]
        if op.is_gradient:
            return found if call.node.operator.kind != "gather" or _adds_to_memory(op, self.calls) else 0
        return found if op.outputs[0] in call.node.outputs else 0


def _inside(planned: PlannedKernel, computed_again: Mapping[str, Op]) -> Iterator[Op]:
    """The operators whose results are not stored that a kernel computes."""
    todo = [name for op in planned.members for name in op.computes]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        op = computed_again.get(name)
        if op is not None and name not in seen:
            seen.update(op.outputs)
            todo += op.reads
            yield op


def _adds_to_memory(op: Op, calls: Mapping[str, PricedCall]) -> bool:
    """Whether an operator adds rows to a table: the gradient of a gather."""
    call = calls.get(op.node)
    is_sum = op.is_gradient and op.is_alone and bool(op.reads)
    return call is not None and is_sum and call.node.operator.kind == "gather"


def _slow_result(concrete: ConcreteCall) -> int:
    kind, cost = concrete.operator.kind, concrete.cost
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    if kind == "movement" and len(concrete.operands) > 1:
        return _BRANCH * len(concrete.operands)
    if kind == "pooling":
        return _WINDOW * (cost.vector_flops // elements)
    if kind not in _COMPUTED:
        return 0
    return _FUNCTION * (cost.transcendentals // elements)


def _slow_gradient(concrete: ConcreteCall) -> int:
    """Of transcendental functions, of windows, and of additions to a row in memory."""
    kind, cost, gradient = concrete.operator.kind, concrete.backward_cost, concrete.gradient
    if kind == "gather":  # threads that add to one place wait for one another
        table = concrete.operands[0]
        if not table.rank or table.shape[-1] >= _WIDE:
            return _ADDED
        in_float = concrete.operator.is_embedding or table.bits >= SINGLE
        most, one = _CONTENDED if in_float else _CONTENDED_HALF
        return max(_ADDED, min(most, one // max(table.numel, 1)))
    if kind == "pooling":
        x = concrete.operands[0]
        is_global = concrete.out is None or prod(concrete.out.shape[2:]) == 1
        return 0 if is_global else _GRADIENT_WINDOW * max(1, concrete.cost.vector_flops // max(x.numel, 1))
    if kind not in _COMPUTED or gradient is None or not (gradient.operands or gradient.results):
        return 0
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    return _GRADIENT_OF_FUNCTION * (cost.transcendentals // elements)


def loop_kernel(elements: int, loads: int, read: int, written: int, *, slow: int = 0) -> Kernel:
    """A pointwise kernel. loads: of each element. slow: loads that its slow instructions take as long as."""
    work = elements * (_LOOP + loads) + slow
    return Kernel("elementwise", "float32", 0, work, read, written, variant="fused")


def reduction_kernel(
    elements: int, loads: int, read: int, written: int, *, slow: int = 0, is_inner: bool = True
) -> Kernel:
    """A kernel that reduces rows; arguments are those of a pointwise one. is_inner: along the innermost axis."""
    each = _INNER + _INNER_LOAD * loads if is_inner else _OUTER_LOAD * loads
    variant = "fused" if is_inner else "fused.outer"
    return Kernel("reduction", "float32", 0, int(elements * each) + slow, read, written, variant=variant)
