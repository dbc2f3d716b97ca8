"""Lowers the gradients of calls, the last call first, as the decompositions of torch.compile do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from graphflops.dims import prod
from graphflops.graph import Graph
from graphflops.inductor.calls import POINTWISE, places_of_interpolation
from graphflops.inductor.library_calls import convolution_gradient, product_gradient
from graphflops.inductor.lowering import GradientLowering, JointGraph, Lowered, Lowering, users_of
from graphflops.inductor.rowwise import attention_gradient, normalisation_gradient, softmax_gradient
from graphflops.kernels.kernel import FLOAT_BYTES
from graphflops.tensor import TensorType

_MOST_SEPARATE = 8  # gradients of one call that are operators of their own
_NARROWED = frozenset({"elementwise", "comparison", "logic"})
_FUSIBLE = POINTWISE | {"dropout", "reduction"}


class BackwardLowering(GradientLowering):
    """Appends the operators of the gradients to a joint graph. gradient: by value, the tensor that is its gradient."""

    def __init__(self, graph: Graph, forward: Lowering, joint: JointGraph, seeds: Iterable[str]) -> None:
        super().__init__(forward, joint)
        stored = [entry for entry in graph.inputs if entry.role == "parameter"]
        first = {entry.target: entry.name for entry in reversed(stored)}
        self.parameters = {entry.name: first.get(entry.alias_of, entry.name) for entry in stored}
        self.wanted = {entry.name for entry in graph.inputs}
        self.gradient: dict[str, str] = {}
        self.sums: dict[str, tuple[str, str]] = {}  # by a sum of two gradients of one value, these
        for name in seeds:
            value = self.values.get(name)
            if name not in self.gradient and isinstance(value, TensorType) and value.requires_grad:
                tangent = self.new(name, value.like().nbytes)
                self.gradient[name] = tangent
                joint.tangents[tangent] = None

    def lower(self, of: Lowered) -> None:
        call = of.call
        assert call.gradient is not None
        of.incoming = [self.gradient[name] for name in call.node.outputs if name in self.gradient]
        if not of.incoming:
            return
        found: list[tuple[int, str]] = []
        made = call.gradient.estimate.out
        for (place, is_fresh), gradient in zip(call.gradient.gradients, made, strict=False):
            size = gradient.nbytes if isinstance(gradient, TensorType) else 0
            # The operand of a gate may be in float32, but for one from around a branch.
            if call.node.operator.has("gate"):
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
            self.sums[both] = (tensor, before)
            tensor = both
        self.gradient[name] = tensor

    def add_in_products(self) -> None:
        """A sum that is the gradient of a matrix: the product that makes a part of it adds the other (post_grad.py)."""
        ops = self.joint.ops
        place = {name: index for index, op in enumerate(ops) for name in op.outputs}
        users, calls = users_of(ops), self.forward.execution.calls
        products = {call.node.name for call in calls if call.node.operator.kind == "product"}
        for name, both in self.gradient.items():
            if both not in self.sums or name not in self.wanted or self.forward.typed(name).rank != 2:
                continue
            parts = self.sums[both]
            for part, other in zip(parts, reversed(parts), strict=True):
                op = ops[place[part]] if part in place else None  # it is none of a gradient from outside
                if op is not None and op.node in products and op.kind == "extern" and len(users[part]) == 1:
                    ops[place[both]] = replace(op, outputs=(both,), reads=(*op.reads, other))
                    ops[place[part]] = replace(op, outputs=(), reads=())
                    break
        ops[:] = [op for op in ops if op.outputs]

    def compute(self, of: Lowered) -> None:
        """Append what computes the gradients of the operands that need one."""
        operator = of.call.node.operator
        is_own = not of.call.estimate.regions and operator.name != "embedding_bag"  # ATen's function adds it
        if operator.kind in _BACKWARD and is_own:
            _BACKWARD[operator.kind](self, of)
        elif operator.kind in _FUSIBLE and is_own:
            self.pointwise(of)
        elif operator.has("adds"):
            self.scatter(of)
        else:
            self.extern(of)

    def extern(self, of: Lowered) -> None:
        """A kernel of a library, or one that fuses with nothing."""
        operator, reads = of.call.node.operator, (*of.incoming, *self.read(of), *of.beside.values())
        is_over, is_exchange = operator.name == "all_reduce", operator.kind == "collective"
        more = {"is_over": is_over, "is_exchange": is_exchange, "allocates": not is_over}
        self.add(of, "extern", of.fresh.values(), reads, workspace=self.workspace(of), **more)

    def scatter(self, of: Lowered) -> None:
        """Of what was added it is the result's, read at the places that it was added to."""
        reads, moved = (*of.incoming, *self.read(of)), frozenset(of.incoming)
        for place, tensor in of.fresh.items():
            self.add(of, "pointwise", (tensor,), reads, self.forward.elements(of.names[place]), moved=moved)

    def pointwise(self, of: Lowered) -> None:
        """Each gradient from those of the results; summed up for an operand that was broadcast."""
        operator = of.call.node.operator
        is_pooling = operator.kind == "pooling"
        # A pooling that leaves one position of each channel is a mean.
        if is_pooling and any(size != 1 for size in self.forward.typed(of.made[0]).shape[2:]):
            self.pooling(of)
            return
        read = [] if is_pooling else [*self.read(of), *of.beside.values()]
        if operator.kind == "loss":  # the softmax in a cross-entropy is computed again
            read = [*dict.fromkeys((of.operands[0], *read))]
        if operator.has("threshold"):
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
        reads = (*of.incoming, *of.operands, *of.beside.values())
        for tensor in of.fresh.values():
            if of.beside:
                self.add(of, "pointwise", (tensor,), reads, recomputable=False)
            else:
                self.add(of, "extern", (tensor,), reads, allocates=True)

    def threshold(self, of: Lowered, tensor: str) -> str:
        """Append the comparison that the gradient of an activation selects by: a truth value for each element."""
        name = f"{of.call.node.name} mask"
        self.joint.sizes[name] = self.forward.typed(of.call.node.outputs[0] or "").numel
        self.joint.labels[name] = (of.call.node.name, "saved")
        self.add(of, "pointwise", (name,), (tensor,), is_gradient=False)
        return name

    def gather(self, of: Lowered) -> None:
        """The rows' gradients are summed into a table of zeros."""
        self.sum_into_zeros(of, 1, self.read(of))

    def resampling(self, of: Lowered) -> None:
        """Each element adds to all that it was interpolated from: for each place of these there is a table of zeros."""
        places = places_of_interpolation(of.call, self.forward.typed(of.names[0]).rank)
        if places:
            self.sum_into_zeros(of, places, ())
        else:
            self.pointwise(of)

    def sum_into_zeros(self, of: Lowered, tables: int, indices: Sequence[str]) -> None:
        """Add the gradients to so many tables of zeros in float32, at places that indices tell, which are then converted."""
        rows = self.forward.elements(of.call.node.outputs[0])
        for place, tensor in of.fresh.items():
            name = of.names[place]
            count, size = self.forward.elements(name), prod(self.forward.typed(name).shape) * FLOAT_BYTES
            zeros = [self.new(name, size) for _ in range(tables)]
            summed = self.new(name, 0)  # the same memory
            for table in zeros:
                self.add(of, "pointwise", (table,), (), count, is_alone=True)
            parts = {table: {summed: rows * FLOAT_BYTES} for table in zeros}
            reads = (*zeros, *of.incoming, *indices)
            self.add(of, "pointwise", (summed,), reads, rows, adds=True, parts=parts)
            self.add(of, "pointwise", (tensor,), (*zeros, summed), count)


_BACKWARD: Mapping[str, Callable[[BackwardLowering, Lowered], None]] = {
    "product": product_gradient,
    "gather": BackwardLowering.gather,
    "resampling": BackwardLowering.resampling,
    "convolution": convolution_gradient,
    "attention": attention_gradient,
    "normalisation": normalisation_gradient,
    "softmax": softmax_gradient,
}
