"""Launches under torch.compile: kernels that inductor writes, and those of products, convolutions and attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from graphflops.inductor.layout_choice import prefers_channels_last
from graphflops.time.concrete import OpenSizeError
from graphflops.time.host import recurrent_steps
from graphflops.time.inductor.backward import Backward
from graphflops.time.inductor.forward import Forward
from graphflops.time.inductor.kinds import is_view
from graphflops.time.inductor.schedule import fused, kernel_of, loop_kernel, readers_of, reduction_kernel
from graphflops.time.kernel import Convolution, Kernel, Product, Rows
from graphflops.time.launches import Launcher, Launches
from graphflops.time.predict import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphflops.memory.runs import Runs
    from graphflops.passes.program import PricedCall, PricedGraph, PricedProgram
    from graphflops.time.inductor.nodes import Node, Recorder

_HALF = 2  # bytes
_ALIGNED, _WORTH_PADDING = 8, 2**30
_CONTIGUOUS = {
    "tn": "kn",
    "nn": "kn",
    "nt": "mn",
    "tt": "mkn",
}  # sizes of rows in memory, by layout of a product
_WRITTEN = (
    "elementwise",
    "reduction",
)  # what inductor writes of the kernels of a convolution: what adds a bias


class _Plan(NamedTuple):
    """The kernels of a graph. first: of the backward's nodes."""

    recorder: Recorder
    groups: Sequence[Sequence[Node]]
    written: set[str]
    first: int
    calls: Sequence[PricedCall]


class CompiledLauncher(Launcher):
    """Lowers the calls of a program as torch.compile runs them."""

    def __init__(
        self, program: PricedProgram, values: Mapping[str, int], runs: Runs, costs: Mapping[str, float]
    ) -> None:
        super().__init__(program, values, runs, costs)
        self.plans: dict[tuple[PricedGraph, bool], _Plan] = {}

    def forward(self, *, records: bool) -> list[Launches]:
        """The forward after the checks of guards."""
        guards = Launches(
            -1, (), self.costs["compiled.guards"] + records * self.costs["compiled.autograd"] / 2
        )
        return [guards, *self._launches(self.program.main, 0, 1, records, is_backward=False)]

    def backward(self) -> list[Launches]:
        """The gradients, which are one graph of their own."""
        return [
            Launches(-1, (), self.costs["compiled.autograd"] / 2),
            *self._launches(self.program.main, 0, 1, True, is_backward=True),
            Launches(-1, (), self.costs["compiled.parameter"] * len(self.parameters)),
        ]

    def _launches(
        self, graph: PricedGraph, first: int, times: int, records: bool, *, is_backward: bool
    ) -> Iterator[Launches]:
        try:
            plan = self._plan(graph, records)
        except OpenSizeError:  # such as the number of nonzero elements: torch.compile ends its graph there
            apart = (
                self._backward(graph, first, times)
                if is_backward
                else self._forward(graph, first, times, records)
            )
            yield from apart
            return
        phase = "backward" if is_backward else "recorded" if records else "inference"
        fused_launch, library_call = (self.costs[f"compiled.{phase}.{kind}"] for kind in ("fused", "library"))
        begin = {id(node) for node in plan.recorder.nodes[plan.first :]}
        for group in plan.groups:
            last = group[-1]
            if (id(last) in begin) != is_backward:
                continue
            row = first + last.row
            if last.is_fusible:
                kernel = kernel_of(group, plan.written, plan.recorder)
                yield Launches(row, (kernel,), fused_launch, times)
                continue
            kernels = last.kernels or ()
            host = _calls(kernels) * library_call + recurrent_steps(kernels) * self.costs["recurrent_step"]
            if last.kernels is None or last.kernels:
                yield Launches(row, last.kernels, host, times)
            if last.call is not None:
                for inner, start, turns in self._nested(plan.calls[last.call], row, times):
                    yield from self._launches(inner, start, turns, records, is_backward=is_backward)

    def _plan(self, graph: PricedGraph, records: bool) -> _Plan:
        found = self.plans.get((graph, records))
        if found is None:
            run = self.runs.of(graph)
            is_last = prefers_channels_last(
                run.calls, graph.values, len(graph.graph.inputs), training=records
            )

            def lower(call: PricedCall) -> tuple[Kernel, ...] | None:
                return self._own(call, graph, is_backward=False, channels_last=is_last)

            def lower_backward(call: PricedCall) -> tuple[Kernel, ...] | None:
                return self._own(call, graph, is_backward=True, channels_last=is_last)

            forward = Forward(graph, run, self.sizes, lower, channels_last=is_last)
            recorder, first = forward.recorder, len(forward.recorder.nodes)
            kept = set(graph.graph.returned)
            if records:
                Backward(forward, graph.graph.seeds, self.parameters, lower_backward)
            groups = fused(recorder)
            readers = readers_of(groups, recorder)
            written = {
                buffer
                for index, group in enumerate(groups)
                for node in group
                for buffer in node.writes
                if readers[buffer] - {index} or not readers[buffer] or buffer in kept
            }
            found = self.plans[graph, records] = _Plan(recorder, groups, written, first, run.calls)
        return found

    def _own(
        self, call: PricedCall, graph: PricedGraph, *, is_backward: bool, channels_last: bool
    ) -> tuple[Kernel, ...] | None:
        """Of a call that is not fused; what is elementwise of it goes into its neighbours."""
        layouts = self.runs.of(graph).layouts
        kernels = self._lowered(call, graph, layouts, is_backward=is_backward)
        if kernels is None or is_view(call):
            return None if kernels is None else ()
        kind = call.node.operator.kind
        if kind == "attention":
            return tuple([_written(kernel) for kernel in kernels if _is_left(kernel)])
        if kind != "convolution":
            kept = [kernel for kernel in kernels if kind != "product" or kernel.family == "matmul"]
            return tuple([part for kernel in kept for part in _padded(kernel)])
        fused = (*_WRITTEN, "copy") if channels_last else _WRITTEN
        own = [kernel for kernel in kernels if kernel.family not in fused]
        return tuple(
            [part for kernel in own for part in (_image_kernels(kernel) if channels_last else (kernel,))]
        )


def _calls(kernels: Sequence[Kernel]) -> int:
    """Calls of libraries; a convolution converts its operands by itself."""
    convolutions = sum(kernel.family == "convolution" for kernel in kernels)
    return convolutions or len(kernels)


def _is_left(kernel: Kernel) -> bool:
    """Whether a kernel of an attention is one of its own: what is between the products goes into the softmax."""
    if kernel.family == "copy":
        return kernel.dtype not in ("float32", "bool")
    return kernel.family not in ("elementwise", "reduction")


def _written(kernel: Kernel) -> Kernel:
    """A kernel of an unfused attention as inductor writes it."""
    if kernel.family == "softmax" and isinstance(kernel.sizes, Rows):
        elements = kernel.sizes.rows * kernel.sizes.columns
        return reduction_kernel(elements, 2, kernel.read_bytes, kernel.written_bytes)
    if kernel.family == "copy":
        elements = kernel.written_bytes // int(bytes_of("float32"))
        return loop_kernel(elements, 1, kernel.read_bytes, kernel.written_bytes)
    return kernel


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


def _padded(kernel: Kernel) -> list[Kernel]:
    """A product with rows and columns padded to what tensor cores can load, where that is worth a copy."""
    sizes = kernel.sizes
    if not isinstance(sizes, Product) or sizes.batch > 1 or sizes.m * sizes.n * sizes.k < _WORTH_PADDING:
        return [kernel]
    width = int(bytes_of(kernel.dtype))
    if width != _HALF:  # float32 runs without tensor cores
        return [kernel]
    m, n, k = (
        -(-size // _ALIGNED) * _ALIGNED if axis in _CONTIGUOUS[sizes.layout] else size
        for axis, size in (("m", sizes.m), ("n", sizes.n), ("k", sizes.k))
    )
    if (m, n, k) == (sizes.m, sizes.n, sizes.k):
        return [kernel]
    copied = [
        width * rows * columns
        for rows, columns, is_changed in (
            (m, k, (m, k) != (sizes.m, sizes.k)),
            (n, k, (n, k) != (sizes.n, sizes.k)),
        )
        if is_changed
    ]
    copies = [loop_kernel(size // width, 1, size, size) for size in copied]
    return [*copies, replace(kernel, sizes=replace(sizes, m=m, n=n, k=k))]
