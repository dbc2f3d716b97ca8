"""Launches under torch.compile: the kernels of a program's plan, which inductor generates or libraries provide."""

from collections import Counter
from collections.abc import Iterator, Sequence

from graphflops.base.record import replace
from graphflops.errors import DimError
from graphflops.execution.fast_path import calls_of_module, is_module
from graphflops.execution.layouts import Layouts
from graphflops.inductor.library_calls import ALIGNED, convolution_of, is_turned
from graphflops.inductor.lowering import Extern
from graphflops.inductor.plan import Plan, Plans
from graphflops.kernels.beside import operand_copies
from graphflops.kernels.convolution import up
from graphflops.kernels.kernel import Convolution, Kernel, Product
from graphflops.kernels.lower import inside_operator
from graphflops.kernels.rowwise import loss_kernels
from graphflops.passes.program import PricedCall, PricedGraph
from graphflops.time.exchanges import Exchanges, Launches, awaited_later
from graphflops.time.launches import Launcher
from graphflops.time.schedule import Costs, recurrent_seconds
from graphflops.time.written import Written

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
        return [Launches(-1, (), host), *self._launches(self.program.main.inlined, 0, 1, is_backward=False)]

    def backward(self) -> list[Launches]:
        """The launches of the gradients, which are a graph of their own."""
        self.records = True
        loss = loss_kernels(self.program, self.sizes, stores_gradients=True)
        return [
            Launches(-1, loss, self.costs["compiled.autograd"] / 2),
            *self._launches(self.program.main.inlined, 0, 1, is_backward=True),
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
        conv, is_copied = convolution_of(call, plan.execution.values), plan.backward and not op.is_gradient
        turned = plan.joint.channels_last and is_turned(conv, is_copied=bool(is_copied))
        kernels = self._lowered(call, plan.execution.layouts, is_backward=op.is_gradient, is_turned=turned)
        if kernels is None:
            return None
        kind, own = call.node.operator.kind, [each for each in kernels if each.family not in _WRITTEN]
        if kind == "product":
            return _of_product(call, op, kernels, plan.execution.layouts)
        if kind == "collective":  # if it copies its operand, inductor generates that kernel
            return kernels[-1:]
        if kind not in ("attention", "convolution"):
            return kernels
        if kind == "attention":
            own = [kernel for kernel in own if kernel.family != "copy"]
        elif turned:
            own = [part for kernel in own for part in _image_kernels(kernel)]
        else:
            own = [each for each in own if each.variant != "strided"]
            if own and op.is_gradient and plan.joint.channels_last and is_turned(conv):
                # The gradient of the result is channels last.
                size = self.sizes(plan.joint.sizes.get(op.reads[0], 0))
                own.insert(0, Kernel("copy", own[0].dtype, 0, 0, size, size, variant="strided"))
        return tuple(own)


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
