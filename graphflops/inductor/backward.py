"""Lowers the gradients of calls into operators of the joint graph, the last call first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import prod
from graphflops.inductor.attentions import attention_gradient
from graphflops.inductor.library_calls import convolution_gradient, product_gradient
from graphflops.inductor.lowering import FLOAT_BYTES, GradientLowering, Lowered
from graphflops.inductor.norms import normalisation_gradient, softmax_gradient
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from graphflops.graph import Graph
    from graphflops.inductor.joint_graph import JointGraph
    from graphflops.inductor.lowering import Lowering

_MOST_SEPARATE = 8  # gradients of one call that are operators of their own
_NARROWED = frozenset({"elementwise", "comparison", "logic"})
_FUSIBLE = frozenset(
    {
        *("elementwise", "comparison", "logic", "cast", "identity", "creation", "movement", "view"),
        *("dropout", "random", "resampling", "pooling", "loss", "reduction", "softmax", "normalisation"),
    }
)


class BackwardLowering(GradientLowering):
    """Appends the operators of the gradients to a joint graph. gradient: by value, the tensor that is its gradient."""

    def __init__(self, graph: Graph, forward: Lowering, joint: JointGraph, seeds: Iterable[str]) -> None:
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

    def lower(self, of: Lowered) -> None:
        """Append the gradients of one call."""
        call = of.call
        assert call.gradient is not None
        of.incoming = [self.gradient[name] for name in call.node.outputs if name in self.gradient]
        if not of.incoming:
            return
        found: list[tuple[int, str]] = []
        for (place, is_fresh), gradient in zip(
            call.gradient.gradients, call.gradient.estimate.out, strict=False
        ):
            size = gradient.nbytes if isinstance(gradient, TensorType) else 0
            if call.node.operator.is_gate:  # its operand may be in float32; one from around a branch is not
                size = self.joint.sizes.get(of.operands[place], size)
            if is_fresh:
                of.fresh[place] = self.new(of.names[place], size)
            found.append((place, of.fresh.get(place, of.incoming[0])))
        if of.fresh:
            self.compute(of)
        for name in call.node.outputs:
            self.gradient.pop(name or "", None)
        for place, tensor in found:
            self.accumulate(of.names[place], tensor, of)

    def accumulate(self, name: str, tensor: str, of: Lowered) -> None:
        """Note a gradient of a value; a second one is added to the first."""
        name = self.parameters.get(name, name)
        before = self.gradient.get(name)
        if before is not None:
            both = self.new(name, self.joint.sizes[before])
            self.add(of, "pointwise", (both,), (before, tensor), self.forward.elements(name))
            tensor = both
        self.gradient[name] = tensor

    def compute(self, of: Lowered) -> None:
        """Append what computes the gradients of the operands that need one."""
        operator, regions = of.call.node.operator, of.call.estimate.regions
        if operator.kind in _SPECIAL and not regions:
            _SPECIAL[operator.kind](self, of)
        elif operator.kind in _FUSIBLE and not regions:
            self.pointwise(of)
        else:
            reads, is_over = (
                (*of.incoming, *self.read(of), *of.beside.values()),
                operator.name == "all_reduce",
            )
            more = {"is_over": is_over, "is_exchange": operator.kind == "collective"}
            workspace = self.workspace(of)
            self.add(
                of, "extern", of.fresh.values(), reads, workspace=workspace, allocates=not is_over, **more
            )

    def pointwise(self, of: Lowered) -> None:
        """Each gradient from those of the results; summed up for an operand that was broadcast."""
        operator = of.call.node.operator
        if operator.kind == "pooling" and not self.is_global(of):
            self.pooling(of)
            return
        read = [] if operator.kind == "pooling" else [*self.read(of), *of.beside.values()]
        if operator.kind == "loss":  # the softmax in a cross-entropy is computed again
            read = [*dict.fromkeys((of.operands[0], *read))]
        if operator.is_threshold:
            read = [self.threshold(of, tensor) for tensor in read]
        reads = (*of.incoming, *read)
        if len(of.fresh) > _MOST_SEPARATE:
            self.add(of, "pointwise", of.fresh.values(), reads)
            return
        wide = max(map(self.forward.elements, of.call.node.outputs), default=0)
        is_narrowed = operator.kind in _NARROWED or operator.name in ("expand", "repeat")
        for place, tensor in of.fresh.items():
            count = self.forward.elements(of.names[place])
            if count < wide and is_narrowed:
                shape = self.forward.typed(of.names[place]).shape
                is_inner = len(shape) > 1 and shape[-1] == 1
                self.add(of, "reduction", (tensor,), reads, wide, kept=count, is_inner=is_inner)
            else:
                self.add(of, "pointwise", (tensor,), reads, count)

    def pooling(self, of: Lowered) -> None:
        """An operator that the partitioner does not fuse. It is given the operand, of which it reads the shape."""
        reads = (*of.incoming, *of.operands[:1], *of.beside.values())
        for tensor in of.fresh.values():
            if of.beside:
                self.add(of, "pointwise", (tensor,), reads, recomputable=False)
            else:
                self.add(of, "extern", (tensor,), reads, allocates=True)

    def is_global(self, of: Lowered) -> bool:
        """Whether a pooling leaves one position of each channel."""
        out = self.values[of.call.node.outputs[0] or ""]
        return isinstance(out, TensorType) and all(size == 1 for size in out.shape[2:])

    def threshold(self, of: Lowered, tensor: str) -> str:
        """Append the comparison that the gradient of an activation selects by: a truth value for each element."""
        name = f"{of.call.node.name} mask"
        self.joint.sizes[name] = self.forward.typed(of.call.node.outputs[0] or "").numel
        self.joint.labels[name] = (of.call.node.name, "saved")
        self.add(of, "pointwise", (name,), (tensor,), is_gradient=False)
        return name

    def gather(self, of: Lowered) -> None:
        """The rows' gradients are summed into a table of zeros, in float32, which is then converted."""
        indices, rows = self.read(of), self.forward.elements(of.call.node.outputs[0])
        for place, tensor in of.fresh.items():
            name = of.names[place]
            count = self.forward.elements(name)
            zeros = self.new(name, prod(self.forward.typed(name).shape) * FLOAT_BYTES)
            summed = self.new(name, 0)  # the same memory
            self.add(of, "pointwise", (zeros,), (), count, is_alone=True)
            self.add(of, "pointwise", (summed,), (zeros, *of.incoming, *indices), rows, is_alone=True)
            self.add(of, "pointwise", (tensor,), (zeros, summed), count)


_SPECIAL: Mapping[str, Callable[[BackwardLowering, Lowered], None]] = {
    "product": product_gradient,
    "gather": BackwardLowering.gather,
    "convolution": convolution_gradient,
    "attention": attention_gradient,
    "normalisation": normalisation_gradient,
    "softmax": softmax_gradient,
}
