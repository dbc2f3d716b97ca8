"""Launches under torch.compile: calls that inductor fuses are one kernel, products, convolutions and attention their own."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.passes.fusion import fused, is_fusible, is_view
from graphflops.tensor import TensorType
from graphflops.time.concrete import OpenSizeError
from graphflops.time.kernel import Convolution, Kernel, Product
from graphflops.time.launches import Launcher, Launches
from graphflops.time.predict import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphflops.passes.program import PricedCall, PricedGraph

_ALIGNED, _WORTH_PADDING = 8, 2**30
_IMAGE_BACKWARD = 4  # kernels of the gradients of a convolution
_PASSES = {"group_norm": 3, "native_group_norm": 3}  # moments are taken in two steps, and then applied
_PART_OF = (
    "copy",
    "elementwise",
)  # what inductor fuses of the kernels of a convolution: conversions and the bias


class CompiledLauncher(Launcher):
    """Lowers the calls of a program as torch.compile runs them."""

    def forward(self, *, records: bool) -> list[Launches]:
        """The forward after the checks of guards. Keeping it for the backward takes the same CPU time: it is one node."""
        return [Launches(-1, (), self.costs["compiled.guards"]), *super().forward(records=records)]

    def _forward(self, graph: PricedGraph, first: int, times: int, records: bool) -> Iterator[Launches]:
        calls = self.runs.of(graph).calls
        groups = _Groups(calls, graph)
        for place, call in enumerate(calls):
            row = first + call.row
            if call.estimate.unknown:
                yield Launches(row, None, 0.0, times)
                continue
            kernels = self._kernels(place, call, graph, groups, is_backward=False)
            if kernels is None or kernels:
                yield Launches(row, kernels, len(kernels or ()) * self.costs["compiled.launch"], times)
            for inner, start, turns in self._nested(call, row, times):
                yield from self._forward(inner, start, turns, records)

    def _backward(self, graph: PricedGraph, first: int, times: int) -> Iterator[Launches]:
        calls = self.runs.of(graph).calls
        groups = _Groups(calls, graph)
        for place in reversed(range(len(calls))):
            call = calls[place]
            row = first + call.row
            for inner, start, turns in reversed(list(self._nested(call, row, times))):
                yield from self._backward(inner, start, turns)
            if call.gradient is None:
                continue
            kernels = self._kernels(place, call, graph, groups, is_backward=True)
            if kernels is None or kernels:
                is_image = call.node.operator.kind == "convolution"
                launched = _IMAGE_BACKWARD if is_image else len(kernels or ())
                yield Launches(row, kernels, launched * self.costs["compiled.backward_launch"], times)

    def _kernels(
        self, place: int, call: PricedCall, graph: PricedGraph, groups: _Groups, *, is_backward: bool
    ) -> tuple[Kernel, ...] | None:
        """The kernels that the call at a place launches: none before the last call of a group."""
        if not is_fusible(call):
            return self._own(call, graph, is_backward=is_backward)
        places = groups.ending.get(place)
        if places is None:
            return ()
        try:
            kernel = self._fused(places, graph, groups, is_backward=is_backward)
            passes = max(_PASSES.get(groups.calls[place].node.operator.name, 1) for place in places)
            return (kernel, *[replace(kernel, written_bytes=0)] * (passes - 1))
        except OpenSizeError:
            return None

    def _own(self, call: PricedCall, graph: PricedGraph, *, is_backward: bool) -> tuple[Kernel, ...] | None:
        """Of a call that is not fused; what is elementwise of a convolution goes into its neighbours."""
        layouts = self.runs.of(graph).layouts
        kernels = self._lowered(call, graph, layouts, is_backward=is_backward)
        if kernels is None or is_view(call):
            return None if kernels is None else ()
        if call.node.operator.kind == "attention":
            return tuple([kernel for kernel in kernels if _is_left(kernel)])
        if call.node.operator.kind != "convolution":
            return tuple([_padded(kernel) for kernel in kernels])
        return tuple(
            [part for kernel in kernels if kernel.family not in _PART_OF for part in _image_kernels(kernel)]
        )

    def _fused(
        self, places: Sequence[int], graph: PricedGraph, groups: _Groups, *, is_backward: bool
    ) -> Kernel:
        """One kernel that reads what comes from outside of the group and writes what others read."""
        read, written = groups.traffic(places)
        sizes = [self._bytes(name, graph) for name in (*read, *written)]
        moved_in, moved_out = sum(sizes[: len(read)]), sum(sizes[len(read) :])
        if is_backward:
            moved_in, moved_out = moved_in + moved_out, moved_in
        call = groups.calls[places[-1]]
        value = next((v for v in call.estimate.out if isinstance(v, TensorType)), None)
        dtype = "float32" if value is None else value.dtype.name
        return Kernel("elementwise", dtype, 0, 0, moved_in, moved_out)

    def _bytes(self, name: str, graph: PricedGraph) -> int:
        value = graph.values.get(name)
        return self.sizes(value.nbytes) if isinstance(value, TensorType) else 0


def _is_left(kernel: Kernel) -> bool:
    """Whether a kernel of an attention is one of its own: what is between the products goes into the softmax."""
    if kernel.family == "copy":
        return kernel.dtype != "float32"
    return kernel.family not in ("elementwise", "reduction")


def _image_kernels(kernel: Kernel) -> list[Kernel]:
    """A convolution with channels innermost, after a copy of its weight into that order."""
    sizes = kernel.sizes
    if not isinstance(sizes, Convolution):
        return [kernel]
    window = prod(sizes.filter)
    weight = window * sizes.channels * sizes.filters // sizes.groups * int(bytes_of(kernel.dtype))
    own = replace(kernel, sizes=replace(sizes, channels_last=True))
    return [Kernel("copy", kernel.dtype, 0, 0, weight, weight), own] if window > 1 else [own]


def _padded(kernel: Kernel) -> Kernel:
    """A product with rows and columns padded to what tensor cores can load, where that is worth a copy."""
    sizes = kernel.sizes
    if not isinstance(sizes, Product) or sizes.batch > 1 or sizes.m * sizes.n * sizes.k < _WORTH_PADDING:
        return kernel
    n, k = (-(-size // _ALIGNED) * _ALIGNED for size in (sizes.n, sizes.k))
    return replace(kernel, sizes=replace(sizes, n=n, k=k))


class _Groups:
    """The fused groups of a graph. ending: by the place of a group's last call, its places."""

    def __init__(self, calls: Sequence[PricedCall], graph: PricedGraph) -> None:
        self.calls = calls
        fusion = fused(calls, graph.values)
        self.group_of: Mapping[int, int] = fusion.group_of
        self.ending = {places[-1]: places for places in fusion.groups}
        self.base: dict[str, str] = {}  # by view: the value that it is a view of
        self.readers: dict[str, set[int]] = {}
        for place, call in enumerate(calls):
            names = [self.base.get(name, name) for name in call.uses]
            if is_view(call) and names:
                self.base.update((name, names[0]) for name in call.node.outputs if name is not None)
            else:
                for name in names:
                    self.readers.setdefault(name, set()).add(place)
        self.returned = {self.base.get(name, name) for name in graph.graph.returned}

    def traffic(self, places: Sequence[int]) -> tuple[list[str], list[str]]:
        """Names of what a group reads from outside and of what it writes for others; a gather's table is not read whole."""
        inside = set(places)
        made = {name for place in places for name in self.calls[place].node.outputs if name is not None}
        read: dict[str, None] = {}
        for place in places:
            call = self.calls[place]
            if call.node.operator.kind == "gather":
                read.update(dict.fromkeys(name for name in call.node.outputs[:1] if name is not None))
                continue
            read.update(dict.fromkeys(self.base.get(name, name) for name in call.uses))
        kept = [name for name in made if self._is_needed(name, inside)]
        return [name for name in read if name not in made], kept

    def _is_needed(self, name: str, inside: set[int]) -> bool:
        return name in self.returned or not self.readers.get(name, set()) <= inside
