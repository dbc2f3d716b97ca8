"""Lowers the gradients of calls into operators of the joint graph, the last call first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from graphflops.dims import Dim, dim_max, prod
from graphflops.graph import Ref
from graphflops.inductor.gradient_lowering import GradientLowering
from graphflops.inductor.layout_choice import is_of_images
from graphflops.inductor.library_calls import reshaped_operands
from graphflops.inductor.norm_gradients import normalisation, softmax
from graphflops.inductor.padding import padded_columns, padded_rows
from graphflops.kernels import buffers as kernels
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphflops.graph import Graph
    from graphflops.inductor.forward import ForwardLowering, Lowered
    from graphflops.inductor.joint_graph import JointGraph, OpKind

_FLOAT_BYTES = 4
_MOST_SEPARATE = 8  # gradients of one call that are operators of their own
_FUSIBLE = frozenset(
    {
        *("elementwise", "comparison", "logic", "cast", "identity", "creation", "movement", "view"),
        *("dropout", "random", "resampling", "pooling", "loss", "reduction", "softmax", "normalisation"),
    }
)


class BackwardLowering(GradientLowering):
    """Appends the operators of the gradients to a joint graph. gradient: by value, the tensor that is its gradient."""

    def __init__(
        self, graph: Graph, forward: ForwardLowering, joint: JointGraph, seeds: Iterable[str]
    ) -> None:
        super().__init__(forward, joint)
        stored = [entry for entry in graph.inputs if entry.role == "parameter"]
        first = {entry.target: entry.name for entry in reversed(stored)}
        self.parameters = {entry.name: first.get(entry.alias_of, entry.name) for entry in stored}
        self.wanted = {entry.name for entry in graph.inputs}
        self.gradient: dict[str, str] = {}
        for name in seeds:
            value = self.values.get(name)
            if name not in self.gradient and isinstance(value, TensorType) and value.requires_grad:
                tangent = self.new(name, value.like().nbytes)
                self.gradient[name] = tangent
                joint.tangents[tangent] = None

    def lower(self, lowered: Lowered) -> None:
        """Append the gradients of one call."""
        call = lowered.call
        assert call.gradient is not None
        incoming = [
            self.gradient[name] for name in call.node.outputs if name is not None and name in self.gradient
        ]
        if not incoming:
            return
        operands = call.tensors(self.values)
        estimates = zip(call.gradient.gradients, call.gradient.estimate.out, strict=False)
        fresh: dict[int, str] = {}
        found: list[tuple[int, str]] = []
        for (place, is_fresh), gradient in estimates:
            size = gradient.nbytes if isinstance(gradient, TensorType) else 0
            if call.node.operator.is_gate:  # its operand may be in float32; one from around a branch is not
                size = self.joint.sizes.get(lowered.operands[place], size)
            if is_fresh:
                fresh[place] = self.new(operands[place], size)
            found.append((place, fresh.get(place, incoming[0])))
        if fresh:
            self.compute(lowered, incoming, fresh)
        for name in call.node.outputs:
            self.gradient.pop(name or "", None)
        for place, tensor in found:
            self.accumulate(operands[place], tensor, lowered)

    def accumulate(self, name: str, tensor: str, lowered: Lowered) -> None:
        """Note a gradient of a value; a second one is added to the first."""
        name = self.parameters.get(name, name)
        before = self.gradient.get(name)
        if before is not None:
            both = self.new(name, self.joint.sizes[before])
            self.add(lowered, "pointwise", (both,), (before, tensor), self.forward.elements(name))
            tensor = both
        self.gradient[name] = tensor

    def compute(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """Append what computes the gradients of these operands, by place."""
        call = lowered.call
        kind = call.node.operator.kind
        kinds: Mapping[str, Callable[[Lowered, Sequence[str], Mapping[int, str]], None]] = {
            "product": self.product,
            "convolution": self.convolution,
            "attention": self.attention,
            "normalisation": partial(normalisation, self),
            "softmax": partial(softmax, self),
            "gather": self.gather,
        }
        special = kinds.get(kind)
        if special is not None and not call.estimate.regions:
            special(lowered, incoming, fresh)
        elif kind in _FUSIBLE and not call.estimate.regions:
            self.pointwise(lowered, incoming, fresh)
        else:
            reads = (*incoming, *self.read(lowered), *lowered.beside.values())
            is_over = call.node.operator.name == "all_reduce"
            self.add(
                lowered,
                "extern",
                tuple(fresh.values()),
                reads,
                workspace=self.workspace(lowered),
                allocates=not is_over,
                is_over=is_over,
                is_exchange=kind == "collective",
            )

    def pointwise(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """Each gradient from those of the results; summed up for an operand that was broadcast."""
        call = lowered.call
        is_pooled = call.node.operator.kind == "pooling"
        read = [] if is_pooled else [*self.read(lowered), *lowered.beside.values()]
        if call.node.operator.kind == "loss":  # the softmax in a cross-entropy is computed again
            read = [*dict.fromkeys((lowered.operands[0], *read))]
        if call.node.operator.kind == "pooling" and not self.is_global(lowered):
            self.pooling(lowered, incoming, fresh)
            return
        if call.node.operator.is_threshold:
            read = [self.threshold(lowered, tensor) for tensor in read]
        if len(fresh) > _MOST_SEPARATE:
            self.add(lowered, "pointwise", tuple(fresh.values()), (*incoming, *read))
            return
        operands = call.tensors(self.values)
        wide = max((self.forward.elements(name or "") for name in call.node.outputs), default=0)
        is_narrowed = call.node.operator.kind in ("elementwise", "comparison", "logic")
        for place, tensor in fresh.items():
            count = self.elements(operands[place])
            if count < wide and (is_narrowed or call.node.operator.name in ("expand", "repeat")):
                kind = self.values[operands[place]]
                is_inner = isinstance(kind, TensorType) and kind.rank > 1 and kind.shape[-1] == 1
                reads = (*incoming, *read)
                self.add(lowered, "reduction", (tensor,), reads, wide, kept=count, is_inner=is_inner)
            else:
                self.add(lowered, "pointwise", (tensor,), (*incoming, *read), elements=count)

    def pooling(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """An operator that the partitioner does not fuse. It is given the operand, of which it reads the shape."""
        reads = (*incoming, *lowered.operands[:1], *lowered.beside.values())
        for tensor in fresh.values():
            if lowered.beside:
                self.add(lowered, "pointwise", (tensor,), reads, recomputable=False)
            else:
                self.add(lowered, "extern", (tensor,), reads, allocates=True)

    def is_global(self, lowered: Lowered) -> bool:
        """Whether a pooling leaves one position of each channel."""
        out = self.values[lowered.call.node.outputs[0] or ""]
        return isinstance(out, TensorType) and all(size == 1 for size in out.shape[2:])

    def threshold(self, lowered: Lowered, tensor: str) -> str:
        """Append the comparison that the gradient of an activation selects by: a truth value for each element."""
        name = f"{lowered.call.node.name} mask"
        out = self.values[lowered.call.node.outputs[0] or ""]
        assert isinstance(out, TensorType)
        self.joint.sizes[name] = out.numel
        self.joint.labels[name] = (lowered.call.node.name, "saved")
        self.add(lowered, "pointwise", (name,), (tensor,), is_gradient=False)
        return name

    def product(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """A product for each factor; what was added to the product gets the sum of its gradient."""
        call = lowered.call
        assert call.gradient is not None
        operands = [
            lowered.beside.get(f"operand {place}", tensor) for place, tensor in enumerate(lowered.operands)
        ]
        factors = sorted(call.gradient.operands)
        names = call.tensors(self.values)
        added = [ref.name for key in ("bias", "c") if isinstance(ref := call.node.arguments().get(key), Ref)]
        wide = self.forward.elements(call.node.outputs[0] or "")
        for place, tensor in fresh.items():
            if names[place] in added:
                count = self.elements(names[place])
                kind: OpKind = "reduction" if count < wide else "pointwise"
                self.add(lowered, kind, (tensor,), incoming[:1], wide, kept=count, is_inner=False)
                continue
            others = [operands[other] for other in factors if other != place]
            reads = [*incoming[:1], *others]
            is_padded = padded_columns(call, self.values) is not None
            if is_padded:
                reads[0] = self.padded(lowered, incoming[0], padded_rows(call, self.values))
                reads[1:] = [
                    self.padded(lowered, x, self.forward.nbytes(names[1])) if place == 0 else x
                    for x in others
                ]
            views = frozenset(reshaped_operands(call, self.values, operands))
            self.add(
                lowered,
                "extern",
                (tensor,),
                reads,
                workspace=self.workspace(lowered),
                views=views,
                is_padded=is_padded,
            )

    def padded(self, lowered: Lowered, tensor: str, size: Dim) -> str:
        """Append a copy with rows or columns up to a multiple of 8."""
        copy = self.new(lowered.call.node.name, size)
        self.add(lowered, "pointwise", (copy,), (tensor,), elements=self.joint.number(size))
        return copy

    def convolution(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """One call for the gradients of image and weight; the bias gets a sum."""
        call = lowered.call
        operands = [
            lowered.beside.get(f"operand {place}", tensor) for place, tensor in enumerate(lowered.operands)
        ]
        own = tuple(tensor for place, tensor in fresh.items() if place < 2)
        workspace = self.workspace(lowered)
        if not (self.forward.channels_last and is_of_images(call, self.values)):
            workspace = dim_max(
                workspace, kernels.backward_bytes(call, self.forward.execution.layouts, False)
            )
        if own:
            self.add(
                lowered, "extern", own, (*incoming[:1], *operands[:2]), workspace=workspace, allocates=True
            )
        wide = self.forward.elements(call.node.outputs[0] or "")
        names = call.tensors(self.values)
        is_inner = self.forward.is_inner(of_images=True)
        for place, tensor in fresh.items():
            if place >= 2:
                kept = self.elements(names[place])
                self.add(
                    lowered,
                    "reduction",
                    (tensor,),
                    incoming[:1],
                    wide,
                    kept=kept,
                    is_inner=is_inner,
                    in_order=False,
                )

    def attention(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """One call for all gradients of a fused kernel."""
        found = self.forward.execution.attention(lowered.call)
        if found is not None and not found.is_fused:
            self.unfused(lowered, incoming, fresh)
            return
        reads = (*incoming[:1], *lowered.operands[:3], *lowered.results[:1], *lowered.beside.values())
        workspace = self.workspace(lowered) if found is None else found.backward
        self.add(lowered, "extern", tuple(fresh.values()), reads, workspace=workspace, allocates=True)

    def unfused(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """Four products in float32 with the gradient of a softmax between them."""
        kept = lowered.beside
        name = lowered.call.node.name
        sizes = self.joint.sizes
        space = self.joint.number(sizes[kept["scores"]]) // _FLOAT_BYTES
        rows = self.joint.number(sizes[kept["statistics"]]) // (2 * _FLOAT_BYTES)
        made = {use: self.new(name, sizes[kept[source]]) for use, source in _UNFUSED.items()}
        mask = [kept["mask"]] if "mask" in kept else []
        softmax = (made["probabilities"], kept["probabilities"], *mask)
        self.add(lowered, "pointwise", (made["result"],), incoming[:1])
        self.add(
            lowered,
            "extern",
            (made["value"],),
            (made["result"], kept["weights"]),
            views=frozenset((kept["weights"],)),
        )
        self.add(lowered, "extern", (made["probabilities"],), (made["result"], kept["value"]))
        self.add(lowered, "reduction", (made["sums"],), softmax, elements=space, kept=rows)
        self.add(lowered, "pointwise", (made["scores"],), (*softmax, made["sums"]), elements=space)
        self.add(lowered, "extern", (made["query"],), (made["scores"], kept["key"]))
        self.add(lowered, "extern", (made["key"],), (made["scores"], kept["query"]))
        names = lowered.call.tensors(self.values)
        for place, tensor in fresh.items():
            use = ("query", "key", "value", "scores")[min(place, 3)]
            count = self.elements(names[place])
            element = self.joint.number(sizes[made[use]]) // _FLOAT_BYTES
            kind: OpKind = "pointwise" if count >= element else "reduction"
            self.add(
                lowered,
                kind,
                (tensor,),
                (made[use],),
                elements=element,
                kept=count if kind == "reduction" else 0,
                is_inner=False,
            )

    def gather(self, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]) -> None:
        """The rows' gradients are summed into a table of zeros, in float32, which is then converted."""
        names = lowered.call.tensors(self.values)
        indices = self.read(lowered)
        for place, tensor in fresh.items():
            value = self.values[names[place]]
            assert isinstance(value, TensorType)
            count = self.elements(names[place])
            zeros = self.new(names[place], prod(value.shape) * _FLOAT_BYTES)
            summed = self.new(names[place], 0)  # the same memory
            self.add(lowered, "pointwise", (zeros,), (), elements=count, is_alone=True)
            rows = self.forward.elements(lowered.call.node.outputs[0] or "")
            self.add(
                lowered, "pointwise", (summed,), (zeros, *incoming, *indices), elements=rows, is_alone=True
            )
            self.add(lowered, "pointwise", (tensor,), (zeros, summed), elements=count)


# Gradients that attention without a fused kernel computes in memory, and the tensors of the forward of the same size.
_UNFUSED = {
    "result": "result",
    "value": "value",
    "probabilities": "scores",
    "sums": "statistics",
    "scores": "scores",
    "query": "query",
    "key": "key",
}
