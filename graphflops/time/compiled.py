"""Launches under torch.compile: the kernels of a program's plan, which inductor writes or libraries have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

from graphflops.errors import DimError
from graphflops.execution.fast_path import calls_of_module, is_module
from graphflops.inductor.layout_choice import is_of_images
from graphflops.inductor.padding import aligned
from graphflops.kernels.kernel import Convolution, Kernel, Product
from graphflops.kernels.losses import loss_kernels
from graphflops.kernels.lower import inside_operator
from graphflops.time.exchanges import Exchanges, Launches, awaited_later
from graphflops.time.host import recurrent_seconds
from graphflops.time.launches import Launcher
from graphflops.time.written import Written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphflops.inductor.joint_graph import Op
    from graphflops.inductor.plan import Plan, Plans
    from graphflops.passes.program import PricedCall, PricedGraph, PricedProgram

# Families that inductor writes of the kernels of a convolution or attention: what adds a bias, a softmax.
_WRITTEN = ("elementwise", "reduction", "softmax")


class CompiledLauncher(Launcher):
    """Lowers the calls of a program as torch.compile runs them."""

    def __init__(
        self, program: PricedProgram, values: Mapping[str, int], plans: Plans, costs: Mapping[str, float]
    ) -> None:
        super().__init__(program, values, plans, costs)
        self.plans = plans

    def forward(self, *, records: bool) -> list[Launches]:
        """The forward after the checks of guards."""
        self.records = records
        guards = Launches(
            -1, (), self.costs["compiled.guards"] + records * self.costs["compiled.autograd"] / 2
        )
        return [guards, *self._launches(self.program.main, 0, 1, records, is_backward=False)]

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
            kernels = self._own(call, op, graph, plan)
            host = _host_seconds(self.costs, phase, kernels or (), is_gradient=op.is_gradient)
            yield Launches(row, kernels, host, times)
        for inner, start, turns in self._nested(call, row, times):
            yield from self._launches(inner, start, turns, phase == "training", is_backward=op.is_gradient)

    def _of_module(self, module: PricedCall, graph: PricedGraph) -> tuple[Kernel, ...]:
        """The kernels of a module of torch.nn that runs as one operator."""
        run = self.runs.of(graph)
        return tuple(
            [
                kernel
                for call in calls_of_module(module, run.calls)
                for kernel in inside_operator(
                    call, self._lowered(call, graph, run.layouts, is_backward=False) or ()
                )
            ]
        )

    def _own(self, call: PricedCall, op: Op, graph: PricedGraph, plan: Plan) -> tuple[Kernel, ...] | None:
        """The kernels of a call that inductor does not write."""
        kernels = self._lowered(call, graph, plan.execution.layouts, is_backward=op.is_gradient)
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


def _host_seconds(
    costs: Mapping[str, float], phase: str, kernels: Sequence[Kernel], *, is_gradient: bool
) -> float:
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
