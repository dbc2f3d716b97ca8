"""Launches under torch.compile: the kernels of a program's plan, which inductor generates or libraries provide."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from graphflops.base.record import replace
from graphflops.errors import DimError
from graphflops.execution.fast_path import calls_of_module, is_module
from graphflops.execution.layouts import Layouts
from graphflops.graph import Ref
from graphflops.inductor.calls import places_of_interpolation
from graphflops.inductor.fusing import Kernel as PlannedKernel, split_lengths
from graphflops.inductor.library_calls import ALIGNED, is_of_images, is_turned
from graphflops.inductor.lowering import Extern, Loop, Op, Reduction
from graphflops.inductor.plan import Plan, Plans
from graphflops.kernels.beside import operand_copies
from graphflops.kernels.call import ConcreteCall, OpenSizeError, Sizes
from graphflops.kernels.choices import all_constants, limits
from graphflops.kernels.convolution import power_of_two, up
from graphflops.kernels.kernel import FLOAT_BYTES, HALF, SINGLE, Convolution, Kernel, Product, Rows
from graphflops.kernels.lower import inside_operator
from graphflops.kernels.rowwise import loss_kernels
from graphflops.passes.program import PricedCall, PricedGraph
from graphflops.rules.resample import BILINEAR, taps_of
from graphflops.time.exchanges import Exchanges, Launches, awaited_later
from graphflops.time.launches import Launcher
from graphflops.time.schedule import Costs, recurrent_seconds

# Families of kernels that inductor generates instead of a convolution's or attention's library: added biases, softmax.
_WRITTEN = ("elementwise", "reduction", "softmax")


class CompiledLauncher(Launcher):
    """Lowers the calls of a program as torch.compile runs them."""

    runs: Plans

    @property
    def phase(self) -> str:
        return "training" if self.records else "inference"

    def forward(self, *, records: bool) -> list[Launches]:
        """The launches of the forward, after the guards are checked."""
        self.records = records
        host = self.costs["compiled.guards"] + records * self.costs["compiled.autograd"] / 2
        return [Launches(-1, (), host), *self._launches(self.program.main, 0, 1, is_backward=False)]

    def backward(self) -> list[Launches]:
        """The launches of the gradients, which are a graph of their own."""
        self.records = True
        loss = loss_kernels(self.program, self.sizes, stores_gradients=True)
        return [
            Launches(-1, loss, self.costs["compiled.autograd"] / 2),
            *self._launches(self.program.main, 0, 1, is_backward=True),
            Launches(-1, (), self.costs["compiled.parameter"] * len(self.parameters)),
        ]

    def _launches(
        self, graph: PricedGraph, first: int, times: int, *, is_backward: bool
    ) -> Iterator[Launches]:
        try:
            plan = self.runs.plan(graph, training=self.records)
        except DimError:  # the sizes exceed what `Dim` can count
            yield Launches(first, None, 0.0, times)
            return
        part = plan.backward if is_backward else plan.forward
        assert part is not None
        cost = self.costs[f"compiled.{self.phase}.fused"]
        written = Written(plan, self.sizes)
        seen: set[tuple[str, bool]] = set()
        exchanges = Exchanges()
        late = awaited_later(plan.execution.calls) if graph.graph.has_exchanges else ()
        for planned in part.kernels:
            if exchanges.pending:
                yield from exchanges.ends(planned.reads)
            op = planned.last
            row = first + op.row
            if not isinstance(op, Extern):
                kernel = written.kernel(planned)
                yield Launches(row, None if kernel is None else (kernel,), cost, times)
                continue
            if (start := written.start(op)) is not None:
                yield Launches(row, (start,), 0.0, times)
            if (op.node, op.is_gradient) not in seen:  # all kernels of a call run together
                seen.add((op.node, op.is_gradient))
                call = written.calls[op.node]
                for launch in self._of_library(call, op, graph, plan, row, times):
                    if op.node in late and launch.kernels:
                        yield from exchanges.started(launch, op.outputs, call.node.group)
                    else:
                        yield launch
        yield from exchanges.ends(exchanges.pending)

    def _of_library(
        self, call: PricedCall, op: Extern, graph: PricedGraph, plan: Plan, row: int, times: int
    ) -> Iterator[Launches]:
        """The launches of a library call, and of the graphs that run inside it."""
        if call.estimate.unknown:
            yield Launches(row, None, 0.0, times)
        elif is_module(call):
            run, inside = self.runs.of(graph), list[Kernel]()
            for part in calls_of_module(call, run.calls):
                kernels = self._lowered(part, run.layouts, is_backward=False)
                inside += inside_operator(part, kernels or ())
            yield Launches(row, tuple(inside), len(inside) * self.costs["forward.inside"], times)
        elif not call.estimate.regions:
            kernels = self._own(call, op, plan)
            host = _host_seconds(self.costs, self.phase, kernels or (), is_gradient=op.is_gradient)
            yield Launches(row, kernels, host, times)
        for inner, start, turns in self._nested(call, row, times):
            yield from self._launches(inner, start, turns, is_backward=op.is_gradient)

    def _own(self, call: PricedCall, op: Extern, plan: Plan) -> tuple[Kernel, ...] | None:
        """The kernels of a call that inductor does not generate."""
        values, is_copied = plan.execution.values, plan.backward is not None and not op.is_gradient
        turned = plan.joint.channels_last and is_turned(call, values, is_copied=is_copied)
        kernels = self._lowered(call, plan.execution.layouts, is_backward=op.is_gradient, is_turned=turned)
        if kernels is None:
            return None
        kind = call.node.operator.kind
        if kind == "product":
            return _of_product(call, op, kernels, plan.execution.layouts)
        if kind == "attention":
            return tuple([kernel for kernel in kernels if kernel.family not in (*_WRITTEN, "copy")])
        if kind == "collective":  # if it copies its operand, inductor generates that kernel
            return kernels[-1:]
        if kind != "convolution":
            return kernels
        if not turned:
            own = [each for each in kernels if each.family not in _WRITTEN and each.variant != "strided"]
            if own and op.is_gradient and plan.joint.channels_last and is_of_images(call, values):
                # The gradient of the result is channels last.
                size = self.sizes(plan.joint.sizes.get(op.reads[0], 0))
                own.insert(0, Kernel("copy", own[0].dtype, 0, 0, size, size, variant="strided"))
            return tuple(own)
        own = [kernel for kernel in kernels if kernel.family not in _WRITTEN]
        return tuple([part for kernel in own for part in _image_kernels(kernel)])


def _host_seconds(costs: Costs, phase: str, kernels: Sequence[Kernel], *, is_gradient: bool) -> float:
    """CPU seconds of a library call. cuDNN also builds a key of the problem and converts its operands."""
    families = Counter(kernel.family for kernel in kernels)
    if families["attention"]:
        return costs[f"compiled.{phase}.attention"]
    if families["collective"]:
        return costs["compiled.collective"]
    convolutions = families["convolution"]
    # Groups that are kernels of their own are launched one by one.
    further = sum(kernel.launches - 1 for kernel in kernels) * costs["forward.further_kernel"]
    if convolutions and is_gradient:
        return convolutions * costs["compiled.training.convolution_gradient"] + further
    calls = (convolutions or len(kernels)) * costs[f"compiled.{phase}.library"]
    return calls + further + recurrent_seconds(costs, kernels)


def _of_product(
    call: PricedCall, op: Extern, kernels: Sequence[Kernel], layouts: Layouts
) -> tuple[Kernel, ...]:
    """A product, with padded sizes as tensor cores load them, after copies for BLAS and of the matrix that it adds to."""
    is_linear, copies = call.node.operator.name == "linear", operand_copies(call, layouts).values()
    by_inductor = sum(not copy.is_inside for copy in copies) * (not op.is_gradient)
    own = [kernel for kernel in kernels if kernel.family == "copy"][by_inductor:]
    for kernel in kernels:
        if isinstance(sizes := kernel.sizes, Product):
            if op.is_padded:
                m, n, k = (up(size, ALIGNED) for size in (sizes.m, sizes.n, sizes.k))
                sizes = replace(sizes, m=m, n=n, k=k)
            if is_linear and len(op.reads) == 2:  # another kernel adds the bias
                sizes = replace(sizes, algorithm="")
            own.append(replace(kernel, sizes=sizes))
        elif kernel.family == "elementwise" and not is_linear:
            own.append(kernel)
    return tuple(own)


def _image_kernels(kernel: Kernel) -> list[Kernel]:
    """The kernels of a channels-last convolution; the weight's gradient is then copied to the weight's layout."""
    sizes = kernel.sizes
    if not isinstance(sizes, Convolution):
        return [kernel]
    own = replace(kernel, sizes=replace(sizes, channels_last=True))
    lies_alike = set(sizes.filter) == {1} or sizes.channels == sizes.groups
    if sizes.phase != "weight_gradient" or lies_alike:
        return [own]
    nbytes = kernel.written_bytes
    return [own, Kernel("copy", kernel.dtype, 0, 0, nbytes, nbytes, variant="strided")]


_PERSISTENT, _TURN = limits("inductor_2", "reduction", "persistent turn")
# Times of parts of a kernel, and of additions to memory, in loads of an element each.
_TIME, _ADDED = all_constants("inductor_2", "written"), all_constants("inductor_2", "added")
_ADDED_IN_HALF = all_constants("inductor_2", "added_in_half")
_OF_ROW = (HALF // 8, FLOAT_BYTES, 2 * FLOAT_BYTES)  # bytes of what a block loads once for its row
_DRAWN = ("dropout", "random")
_COMPUTED = ("elementwise", "comparison", "logic", "cast", "identity", "movement", "softmax", *_DRAWN)


class Written:
    """A plan's generated kernels, as a device runs them."""

    def __init__(self, plan: Plan, sizes: Sizes) -> None:
        self.plan, self.joint, self.sizes = plan, plan.joint, sizes
        self.calls = {call.node.name: call for call in plan.execution.calls}
        self.known: dict[tuple[int | str, bool, bool], float] = {}

    def kernel(self, planned: PlannedKernel) -> Kernel | None:
        """A kernel that reads each outside buffer once, and stores what others read; None if a size is open."""
        loops, sizes = [op for op in planned.members if isinstance(op, Loop)], self.joint.sizes
        part = {op.outputs[0]: op.part_bytes for op in loops if op.part_bytes != 0}
        elements, adding = max(op.elements for op in loops), [op for op in loops if op.role == "adding"]
        reductions = [op for op in loops if isinstance(op, Reduction)]
        is_inner = bool(reductions) and all(op.is_inner for op in reductions)
        try:
            loads, read = self._reads(planned)
            # The tensor that it adds to is written by another kernel.
            summed = {name for op in adding for name in op.outputs}
            whole = [name for name in planned.outputs if name not in summed]
            written = sum(self.sizes(part.get(name) or sizes.get(name, 0)) for name in whole)
            written += sum(self._added(op) for op in adding)
            slow = sum(self._slow(op, is_inner) * op.elements for op in loops)
            slow += sum(self._slow(op, is_inner) for op in self._inside(planned)) * elements
        except OpenSizeError:
            return None
        slow += _TIME["point"] * sum(op.elements for op in loops if self._is_apart(op))
        # One block for each row: neighbouring elements of a block are in different sectors.
        if any(map(self._is_split_scan, reductions)):
            slow += _TIME["point"] * elements * (loads + len(whole))
        if any(op.role == "moments" and not op.is_inner for op in reductions):
            slow += _TIME["outer_moment"] * elements
        kept = max([op.kept for op in reductions], default=0)
        rows = Rows(kept, -(-elements // kept), is_inner) if kept else None
        softmaxes = [op for op in reductions if self._is_softmax(op) and not op.is_gradient]
        joins = bool(softmaxes) or any(op.role == "moments" for op in reductions)
        found = written_kernel(elements, loads, read, written, slow, rows, joins)
        roles = {op.role if op.role.startswith("parts") else "" for op in reductions}
        return replace(found, variant=f"fused.{max(roles, key=len)}") if roles and "" not in roles else found

    def start(self, op: Extern) -> Kernel | None:
        """The copy of a matrix that a product adds to (`addmm`); a row is added by the product's own kernel."""
        is_row = isinstance(self.calls[op.node].node.arguments().get("bias"), Ref) and not op.is_gradient
        if op.role != "product and sum" or is_row:
            return None
        size, added = self._bytes(op.outputs[0]), self._bytes(op.reads[-1])
        return Kernel("elementwise", "float32", 0, 0, size, size) if added == size else None

    def _is_split_scan(self, op: Reduction) -> bool:
        """Whether several blocks share a row along an outer axis, as when there are few rows (`SplitScan` of inductor)."""
        if op.role != "scan" or op.is_inner or not op.kept:
            return False
        platform, length = self.plan.execution.layouts.platform, op.elements // op.kept
        return len(split_lengths(op.kept, length, platform, is_inner=False, of_moments=False)) > 1

    def _inside(self, planned: PlannedKernel) -> list[Loop]:
        """The operators that a kernel computes without storing their results."""
        inside: dict[str, Loop] = {}
        todo = [made for op in planned.members if isinstance(op, Loop) for made in op.computes]
        while todo:
            op = todo.pop()
            if op.outputs[0] not in inside:
                inside[op.outputs[0]] = op
                todo += op.computes
        return [*inside.values()]

    def _reads(self, planned: PlannedKernel) -> tuple[float, int]:
        """A kernel's loads per element, and the bytes that it reads."""
        whole: dict[str, Op] = {}
        parts: dict[str, dict[str, int]] = {}
        outside = set(planned.reads)
        for op in planned.members:
            for name in [read for read in op.reads if read in outside]:  # a sum of floats follows their order
                if name in op.parts:
                    read = parts.setdefault(name, {})
                    read.update((part, self.sizes(size)) for part, size in op.parts[name].items())
                else:
                    whole[name] = op
        total = sum(self._bytes(name) for name in whole)
        beside = [(name, read) for name, read in parts.items() if name not in whole]
        total += sum(min(sum(read.values()), self._bytes(name)) for name, read in beside)
        kept = [op.kept for op in planned.members if isinstance(op, Reduction) and op.is_inner]
        once = {count * width for count in kept for width in _OF_ROW}
        each = [(size, op.elements) for name, op in whole.items() if (size := self._bytes(name)) not in once]
        loads = sum(_TIME["narrow"] if size < elements else 1 for size, elements in each)
        return loads + sum(map(len, parts.values())), total

    def _added(self, op: Op) -> int:
        """Bytes that an operator adds to. Its other parts are read, by what is computed inside of it."""
        sums = [self.sizes(part[name]) for part in op.parts.values() for name in op.outputs if name in part]
        return sum(sums) or FLOAT_BYTES * op.elements

    def _bytes(self, name: str) -> int:
        return self.sizes(self.joint.inputs.get(name) or self.joint.sizes.get(name, 0))

    def _is_apart(self, op: Loop) -> bool:
        """Whether neighbouring threads write to different sectors.

        A copy that transposes has no tiles if it reads what was written in place: inductor looks for the tensor's new name
        among the reads (`extract_normalized_read_writes` of torch/_inductor/tiling_utils.py).
        """
        return op.role == "apart" or (op.is_across and not self.joint.written.isdisjoint(op.reads))

    def _is_softmax(self, op: Loop) -> bool:
        return op.node in self.calls and self.calls[op.node].node.operator.kind == "softmax"

    def _times(self, is_inner: bool) -> Mapping[str, float]:
        """The times of slow instructions. is_inner: whether a kernel reduces rows along the last axis."""
        times = _TIME | {"window": _TIME["window_last"]} if self.joint.channels_last else _TIME
        functions = ("function", "function_gradient") if is_inner else ()
        return times | {name: _TIME["inner_function"] * _TIME[name] for name in functions}

    def _slow(self, op: Loop, is_inner: bool = False) -> float:
        """The time of an operator's slow instructions, in loads per element."""
        call, is_softmax = self.calls.get(op.node), self._is_softmax(op)
        if call is None or (isinstance(op, Reduction) and (op.is_gradient or not is_softmax)):
            return 0
        key = (self.plan.execution.forms.of(call) or op.node, op.is_gradient, is_inner)
        if key not in self.known:
            layouts = self.plan.execution.layouts
            concrete = ConcreteCall(call, layouts.values, layouts.known, self.sizes)
            self.known[key] = (_slow_gradient if op.is_gradient else _slow_result)(
                concrete, self._times(is_inner)
            )
        found = self.known[key]
        if op.is_gradient:
            is_sum = call.node.operator.kind in ("gather", "resampling")
            return found if op.role == "adding" or not is_sum else 0
        return found if is_softmax or op.outputs[0] in call.node.outputs else 0


def _slow_result(concrete: ConcreteCall, times: Mapping[str, float] = _TIME) -> float:
    kind, cost = concrete.operator.kind, concrete.cost
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    if kind == "pooling":
        return times["window"] * (cost.vector_flops // elements)
    if concrete.operator.name == "grid_sample":
        mode = concrete.own.get("interpolation_mode") or BILINEAR
        return times["point"] * max(1, taps_of(mode, concrete.operands[0].rank - 2))
    if kind == "resampling":  # a load for each further place
        return max(places_of_interpolation(concrete.call, concrete.operands[0].rank) - 1, 0)
    if kind not in _COMPUTED or _is_product(concrete):
        return 0
    return times["function"] * (cost.transcendentals // elements) + times["random"] * (kind in _DRAWN)


def _is_product(concrete: ConcreteCall) -> bool:
    """Whether a power is a few multiplications (`pow_recursive` of torch/_inductor/lowering.py)."""
    exponent = concrete.own.get("b") if concrete.operator.name == "pow" else None
    return isinstance(exponent, (int, float)) and float(exponent).is_integer()


def _slow_gradient(concrete: ConcreteCall, times: Mapping[str, float] = _TIME) -> float:
    """The time of a gradient's transcendental functions, pooling windows, or additions to memory, in loads per element."""
    kind, cost, gradient = concrete.operator.kind, concrete.backward_cost, concrete.gradient
    if kind == "gather":  # threads that add to the same place wait for each other
        table = concrete.operands[0]
        if not table.rank or table.shape[-1] >= _ADDED["wide"]:
            return _ADDED["row"]
        few = _ADDED if concrete.operator.is_embedding or table.bits >= SINGLE else _ADDED_IN_HALF
        return max(_ADDED["row"], min(few["most"], few["one"] // max(table.numel, 1)))
    if kind == "resampling":
        return _ADDED["apart"] * places_of_interpolation(concrete.call, concrete.operands[0].rank)
    if kind == "pooling":
        x = concrete.operands[0]
        is_global = concrete.out is None or prod(concrete.out.shape[2:]) == 1
        windows = 0 if is_global else max(1, concrete.cost.vector_flops // max(x.numel, 1))
        return times["window_gradient"] * windows
    if kind not in _COMPUTED or gradient is None or not (gradient.operands or gradient.results):
        return 0
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    return times["function_gradient"] * (cost.transcendentals // elements)


def written_kernel(
    elements: int,
    loads: float,
    read: int,
    written: int,
    slow: float = 0,
    rows: Rows | None = None,
    joins: bool = False,
) -> Kernel:
    """A pointwise kernel, or one that reduces rows. loads: per element. slow: the time of slow instructions, in loads.

    A block holds a row in registers, whose number is a power of two. It loops over a longer row, and does so again for the
    results. Means with variances, and softmax (joins), also join the elements that the last turn of the loop lacks.
    """
    if rows is None:
        work = int(elements * (_TIME["loop"] + loads) + slow)
        return Kernel("elementwise", "float32", 0, work, read, written, variant="fused")
    each, variant = _TIME["outer_load"] * loads, "fused.outer"
    if rows.is_inner:
        each, variant, held = _TIME["inner"], "fused", rows.columns
        if held <= _PERSISTENT:
            held = power_of_two(held)
        else:
            each *= loads * (1 + _TIME["again"] * (written >= elements))
            held, each = (up(held, _TURN), each + _TIME["joined"]) if joins else (held, each)
        each *= held / rows.columns
    return Kernel("reduction", "float32", 0, int(elements * each + slow), read, written, rows, variant)
