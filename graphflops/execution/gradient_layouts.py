"""How gradients lie in an eager backward, where they lie otherwise than their values, and which calls copy them first.

A product gives each factor a row-major gradient, also a factor that is a transposed view. The view turns it back, so that it
lies turned there: what regroups its axes, or reads it row by row, copies it (`reshape` and `contiguous` of ATen).
"""

from msgspec import Struct

from graphflops.dims import prod
from graphflops.execution.layouts import Layouts
from graphflops.execution.strides import Strides, dense_as, is_contiguous, regrouped, row_major
from graphflops.graph import tensor_type
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

# Kinds whose gradients lie as they are given.
_PASSED_ON = frozenset({"elementwise", "cast", "identity", "dropout"})
# Names of operators that read gradients row by row.
_IN_ROWS = frozenset({"layer_norm", "softmax", "log_softmax"})


class GradientLayouts(Struct):
    """The layouts of a graph's gradients, found in reverse."""

    layouts: Layouts
    seen: set[str]  # values that have a gradient; at first those that are given one
    repeated: set[str]  # values whose gradient repeats one number, as that of a sum does
    strides: dict[str, Strides] = {}  # by value, of gradients that lie otherwise than it

    def follow(self, call: PricedCall) -> tuple[Strides | None, list[str]]:
        """Lay out the gradients of a call's operands.

        Returns the strides of the result's gradient if the call copies it to row-major, and operands with another gradient.
        """
        assert call.gradient is not None
        result, lie, values = next(iter(call.node.outputs), None) or "", self.layouts, self.layouts.values
        out, is_repeated = tensor_type(result, values), self.is_repeated(call)
        own = self.strides.get(result) or (dense_as(lie.of(result), out.shape) if out is not None else ())
        is_copied, again, names = False, list[str](), call.tensors(values)
        for place, has_memory in call.gradient.gradients:
            name = names[place] if place < len(names) else ""
            if (x := tensor_type(name, values)) is None:
                continue
            if name in self.seen:  # a sum of gradients lies as the first of them
                self.repeated.discard(name)
                again.append(name)
                continue
            self.seen.add(name)
            if is_repeated and not has_memory:  # a view
                self.repeated.add(name)
            as_operand = dense_as(lie.of(name), x.shape)  # in the order of the value's axes
            found = as_operand if out is None else _passed(call, x, out, own, as_operand)
            is_copied |= found is None
            if (strides := found or row_major(x.shape)) != as_operand:
                self.strides[name] = strides
        return own if is_copied and not is_repeated else None, again

    def is_repeated(self, call: PricedCall) -> bool:
        """Whether the gradient of a call's result repeats one number."""
        return not self.repeated.isdisjoint(call.node.outputs)


def _passed(call: PricedCall, x: TensorType, out: TensorType, own: Strides, usual: Strides) -> Strides | None:
    """The strides of an operand's gradient, `usual` if as the operand's; None if row-major, after a copy of the result's."""
    operator, rows = call.node.operator, row_major(x.shape)
    if operator.kind == "product":  # of matrices, after batch axes are merged, or all but the last
        kept = out.shape[-1:] if operator.name == "linear" else out.shape[-2:]
        merged = (prod(out.shape[: out.rank - len(kept)]), *kept)
        return rows if out.rank <= len(merged) or regrouped(out.shape, own, merged) else None
    if operator.name in _IN_ROWS:
        return rows if is_contiguous(out.shape, own) else None
    if operator.kind in _PASSED_ON:
        return own if x.shape == out.shape else rows
    if (order := operator.turned(call.node.arguments(), x.rank)) is not None:
        back = dict(zip(order, own, strict=True))
        return tuple([back[axis] for axis in range(x.rank)])
    if operator.kind == "view":  # a part is written into zeros, a broadcast view is summed
        return regrouped(out.shape, own, x.shape) if out.numel == x.numel else rows
    return usual
