"""The values of a graph while its nodes are recorded: which are stored, and what the others are computed from."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.tensor import TensorType
from graphflops.time.inductor.nodes import Recorder, Value

if TYPE_CHECKING:
    from graphflops.memory.layouts import Layouts
    from graphflops.passes.program import PricedCall, PricedGraph
    from graphflops.time.concrete import Sizes


class Values:
    """Values by name.

    known: a value that is not in it is an input. base: by view of all elements, the value that it is a view of. rows: by
    value, the row of the call that computes it. channels_last: whether convolutions run with channels innermost.
    """

    def __init__(self, graph: PricedGraph, layouts: Layouts, sizes: Sizes, *, channels_last: bool) -> None:
        self.graph, self.layouts, self.sizes = graph, layouts, sizes
        self.channels_last = channels_last
        self.recorder = Recorder()
        self.known: dict[str, Value] = {}
        self.base: dict[str, str] = {}
        self.rows: dict[str, int] = {}

    def value(self, name: str) -> Value:
        """How kernels read a value."""
        name = self.base.get(name, name)
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = Value({name: self.nbytes(name)}, is_stored=True)
        return found

    def stored(self, name: str) -> Value:
        """A value in memory; it is written if it was not."""
        name = self.base.get(name, name)
        value = self.value(name)
        if not value.is_stored:
            row = self.rows.get(name, 0)
            value = self.recorder.loop(row, self.elements(name), value, name, self.nbytes(name))
            self.known[name] = value
        return value

    def nbytes(self, name: str) -> int:
        """Bytes of a value that is a tensor."""
        value = self.graph.values.get(name)
        return self.sizes(value.nbytes) if isinstance(value, TensorType) else 0

    def elements(self, name: str) -> int:
        """Elements of a value; one where it is no tensor."""
        kind = self.graph.values.get(name)
        return self.sizes(prod(kind.shape)) if isinstance(kind, TensorType) else 1

    def operands(self, call: PricedCall) -> list[Value]:
        """How a call reads the tensors that it takes."""
        return [self._as_it_lies(name) for name in call.tensors(self.graph.values)]

    def _as_it_lies(self, name: str) -> Value:
        value, kind = self.value(name), self.graph.values[name]
        if not value.is_stored or not isinstance(kind, TensorType) or kind.rank <= 1:
            return value
        strides = self.layouts.known.get(name)
        is_inner = strides is None or strides[-1] in (0, 1)
        return replace(value, inner=int(is_inner), outer=int(not is_inner))

    def is_inner(self, value: Value, *, of_images: bool = False) -> bool:
        """Whether most of what a value is computed from has its last axis innermost; of images, channels may be."""
        if self.channels_last:
            return not of_images
        return value.inner > value.outer or value.inner == value.outer == 0
