"""Launches under torch.compile: the kernels of a program's plan, which inductor writes or libraries have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.errors import DimError
from graphflops.inductor.padding import aligned
from graphflops.time.exchanges import Launches
from graphflops.time.host import recurrent_steps
from graphflops.time.kernel import Convolution, Kernel, Product
from graphflops.time.launches import Launcher
from graphflops.time.loss import loss_kernels
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
        phase = "backward" if is_backward else "recorded" if records else "inference"
        cost = self.costs[f"compiled.{phase}.fused"]
        written = Written(plan, self.sizes)
        seen: set[tuple[str, bool]] = set()
        for planned in part.kernels:
            row = first + planned.row
            if planned.is_written:
                kernel = written.kernel(planned, part.computed_again)
                yield Launches(row, None if kernel is None else (kernel,), cost, times)
                continue
            op = planned.members[0]
            if (op.node, op.is_gradient) not in seen:  # the kernels of a call run together
                seen.add((op.node, op.is_gradient))
                call = written.calls[op.node]
                yield from self._of_library(call, op, graph, plan, row, times, phase)

    def _of_library(
        self, call: PricedCall, op: Op, graph: PricedGraph, plan: Plan, row: int, times: int, phase: str
    ) -> Iterator[Launches]:
        """What a library runs of a call, and the graphs that run inside it."""
        if call.estimate.unknown:
            yield Launches(row, None, 0.0, times)
        elif not call.estimate.regions:
            kernels = self._own(call, op, graph, plan)
            is_exchange = call.node.operator.is_exchange
            cost = self.costs["compiled.collective" if is_exchange else f"compiled.{phase}.library"]
            host = (
                _calls(kernels or ()) * cost + recurrent_steps(kernels or ()) * self.costs["recurrent_step"]
            )
            yield Launches(row, kernels, host, times)
        for inner, start, turns in self._nested(call, row, times):
            records = phase != "inference"
            yield from self._launches(inner, start, turns, records, is_backward=phase == "backward")

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
        fused = (*_WRITTEN, "copy") if plan.channels_last else _WRITTEN
        own = [kernel for kernel in kernels if kernel.family not in fused]
        return tuple([part for kernel in own for part in _image_kernels(kernel, plan)])


def _calls(kernels: Sequence[Kernel]) -> int:
    """Calls of libraries; a convolution converts its operands by itself."""
    convolutions = sum(kernel.family == "convolution" for kernel in kernels)
    return convolutions or len(kernels)


def _image_kernels(kernel: Kernel, plan: Plan) -> list[Kernel]:
    """A convolution with channels innermost; the gradient of its weight is copied into the order of the weight."""
    sizes = kernel.sizes
    if not isinstance(sizes, Convolution) or not plan.channels_last:
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
