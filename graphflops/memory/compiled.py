"""Execution under torch.compile: fused chains make no tensors, and gradients recompute what is cheap to recompute.

A value takes memory only if another kernel reads it. A kernel that reads an operand for the last time writes its result over
it. For the gradients the partitioner keeps what products, convolutions and attention read; what other gradients read is
computed again from kept values where elementwise calls alone lead to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import dim_max, total
from graphflops.memory.buffer_reuse import Buffer, reused
from graphflops.memory.layouts import at_some_size
from graphflops.memory.on_gpu import OnGpu
from graphflops.passes.fusion import fused, is_fusible, is_view
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from graphflops.dims import Dim
    from graphflops.memory.runs import Runs
    from graphflops.passes.program import PricedCall, PricedGraph

_COMPUTED_AGAIN = frozenset(
    (
        *("elementwise", "comparison", "logic", "cast", "identity", "creation", "movement"),
        *("dropout", "random", "normalisation"),
    )
)


_INLINED = _COMPUTED_AGAIN - {"normalisation"} | {"gather"}
_MOST_READ = (
    4  # tensors that a value is computed from before it is stored (inductor's realize_reads_threshold)
)

_ALIGNED = 8  # channels of an operand of tensor cores


class Compiled(OnGpu):
    """Memory of the kernels that inductor makes of a graph."""

    def __init__(self, graph: PricedGraph, training: bool, runs: Runs) -> None:
        super().__init__(graph, training, runs)
        self.fusion = fused(self.calls, self.values)
        self.root = super().owners()
        self.maker = {
            name: place
            for place, call in enumerate(self.calls)
            for name in call.node.outputs
            if name is not None
        }
        self.returned = {self.root.get(name, name) for name in graph.graph.returned}
        self.kept = self.for_gradients() if training else set()
        self.calls = self.with_inlined()

    def with_inlined(self) -> list[PricedCall]:
        """The calls; those that compute an operand again read what it is computed from."""
        by_kernels = {
            self.root.get(name, name)
            for call in self.calls
            if not is_fusible(call) and not is_view(call)
            for name in call.uses
        }
        self.sources: dict[str, tuple[str, ...]] = {}  # by value that is computed again wherever it is read
        found = []
        for call in self.calls:
            read = dict.fromkeys(
                source for name in call.uses for source in self.sources.get(self.root.get(name, name), ())
            )
            for name in call.node.outputs:
                if (
                    name is None
                    or self.root.get(name) != name
                    or name in by_kernels | self.returned | self.kept
                ):
                    continue
                own = tuple(
                    dict.fromkeys(
                        x
                        for use in call.uses
                        for x in self.sources.get(self.root.get(use, use), (self.root.get(use, use),))
                    )
                )
                if call.node.operator.kind in _INLINED and not call.in_place and len(own) <= _MOST_READ:
                    self.sources[name] = own
            is_more = read and is_fusible(call)
            found.append(replace(call, uses=(*call.uses, *read), form=None) if is_more else call)
        return found

    def read_outside(self) -> set[str]:
        """Owners of memory that another kernel than their own reads, that gradients read, or that are results."""
        found = self.returned | self.kept
        for place, call in enumerate(self.calls):
            if is_view(call):
                continue
            for name in call.uses:
                owner = self.root.get(name, name)
                if (
                    owner in self.maker
                    and owner not in self.sources
                    and self.group(self.maker[owner]) != self.group(place)
                ):
                    found.add(owner)
        return found

    def group(self, place: int) -> int:
        """The kernel of a call; a view has none."""
        return self.fusion.group_of.get(place, -1)

    def unstored(self) -> set[str]:
        """Values inside of one kernel."""
        made = {owner for owner in self.root.values() if owner in self.maker}
        return {owner for owner in made if is_fusible(self.calls[self.maker[owner]])} - self.read_outside()

    def owners(self) -> Mapping[str, str]:
        """The value whose memory each tensor shares: that of a view, and the buffer that it takes from another."""
        last: dict[str, int] = {}
        for place, call in enumerate(self.calls):
            last.update((self.root[name], place) for name in call.uses if name in self.root)
        end = len(self.calls)
        last.update(dict.fromkeys(self.returned | self.kept, end))
        inside = [frozenset(places) for places in self.fusion.groups]
        buffers = []
        stored = self.read_outside() | {name for name in self.root.values() if name in self.maker} - set(
            self.unstored()
        )
        for name, place in self.maker.items():
            if name in stored and self.root.get(name) == name and (size := self.nbytes(name)):
                over: tuple[str, ...] = ()
                if is_fusible(self.calls[place]):
                    members = inside[self.group(place)]
                    read = dict.fromkeys(
                        self.root.get(x, x) for member in sorted(members) for x in self.calls[member].uses
                    )
                    over = tuple(
                        x for x in read if last.get(x) in members and self.maker.get(x, place) not in members
                    )
                buffers.append(Buffer(name, size, place, last.get(name, place), over))
        instead = reused(buffers, end)
        return {name: instead.get(owner, owner) for name, owner in self.root.items()}

    def nbytes(self, name: str) -> int:
        """Bytes of a tensor; open sizes are taken at some size, for only equality and order matter."""
        value = self.values[name]
        size = value.nbytes if isinstance(value, TensorType) else 0
        return size if isinstance(size, int) else at_some_size(size)

    def for_gradients(self) -> set[str]:
        """Owners of memory that is kept for the gradients."""
        kept: set[str] = set()
        again: dict[str, bool] = {}
        for fusible in (False, True):
            for call in self.calls:
                if is_fusible(call) is fusible:
                    for name in super().saved_values(call):
                        owner = self.root.get(name or "")
                        if owner is not None and not (fusible and self.is_computed_again(owner, kept, again)):
                            kept.add(owner)
        return kept

    def is_computed_again(self, owner: str, kept: Container[str], again: dict[str, bool]) -> bool:
        """Whether elementwise calls alone lead from kept values to this one."""
        if owner in kept:
            return True
        if owner not in again:
            call = self.calls[self.maker[owner]] if owner in self.maker else None
            again[owner] = False
            again[owner] = call is None or (
                call.node.operator.kind in _COMPUTED_AGAIN
                and not call.in_place
                and all(
                    self.is_computed_again(self.root[name], kept, again)
                    for name in call.uses
                    if name in self.root
                )
            )
        return again[owner]

    def saved_values(self, call: PricedCall) -> list[str | None]:
        """Operands and results that the gradients read from memory."""
        return [name for name in super().saved_values(call) if self.root.get(name or "") in self.kept]

    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """Also a padded weight, and an image with its channels last."""
        attention = self.attention(call)
        if attention is not None:
            return dim_max(0, attention.forward_compiled - saved)
        padded = self.padded_weight(call)
        return (
            super().forward_bytes(call, saved)
            + (0 if padded is None else padded.nbytes)
            + self.image_copy(call)
        )

    def backward_bytes(self, call: PricedCall) -> Dim:
        """Also padded gradients, and the gradient of a table of embeddings, which is summed up in float32."""
        own = super().backward_bytes(call)
        if self.padded_weight(call) is not None:
            return own + 2 * self.nbytes(call.node.outputs[0] or "")
        table = next(iter(call.tensors(self.values)), "")
        if call.node.operator.name == "embedding" and table and self.layouts.typed(table).dtype.bits == 16:
            return own + 2 * self.layouts.typed(table).like().nbytes
        return own

    def padded_weight(self, call: PricedCall) -> TensorType | None:
        """The weight of a product in half precision whose number of columns is not a multiple of 8: it is padded."""
        weight = (
            self.values.get(next(iter(call.tensors(self.values)[1:]), ""))
            if call.node.operator.kind == "product"
            else None
        )
        if not isinstance(weight, TensorType) or weight.dtype.bits != 16 or weight.rank != 2:
            return None
        columns = weight.shape[0]
        return (
            weight.like() if isinstance(columns, int) and columns > _ALIGNED and columns % _ALIGNED else None
        )

    def image_copy(self, call: PricedCall) -> Dim:
        """A convolution on an image: image and weight with the channels last, in half precision padded to 8 channels too."""
        if call.node.operator.kind != "convolution":
            return 0
        operands = [self.layouts.typed(name).like() for name in call.tensors(self.values)[:2]]
        channels = operands[0].shape[1]
        if not isinstance(channels, int) or channels >= _ALIGNED:
            return 0
        own = total(operand.nbytes for operand in operands)
        return own + (own * _ALIGNED // channels if operands[0].dtype.bits == 16 else own)

    def saved_bytes(self, call: PricedCall) -> Dim:
        """Statistics of normalisations and row sums of attention; the mask of a dropout is drawn again."""
        return 0 if call.node.operator.kind == "dropout" else super().saved_bytes(call)

    def shares_gradient(self, call: PricedCall) -> bool:
        """Fused gradients write over the gradient that they read."""
        return is_fusible(call)
