"""How gradients lie in memory, and where their layout takes a copy that no call of the program names.

A gradient lies as its value does, except behind the gradients of views: that of a part or of several parts is made in order,
and passes through transposed axes as they are. That of a sum or mean repeats one element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import prod
from graphflops.execution.strides import TURNING, by_form, is_contiguous, regrouped, row_major, turned
from graphflops.kernels.gradient_formulas import lies_as_gradient
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphflops.execution.layouts import Layouts
    from graphflops.execution.strides import Strides
    from graphflops.passes.program import PricedCall

_MADE_IN_ORDER = frozenset(
    {
        *("slice", "select", "narrow", "index_select", "unbind", "split", "chunk"),
        *("pad", "roll", "layer_norm", "linear"),
    }
)
_SAME_AXES = frozenset({"reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"})
_PASSES_ON = frozenset({"add", "sub", "identity"})
_ONE_BY_ONE = frozenset({"elementwise", "cast", "dropout"})
_ORDERED = frozenset({"layer_norm", "rms_norm", "group_norm"})


class GradientLayouts:
    """The strides of gradients, from the last call to the first. repeated: values whose gradient repeats one element."""

    def __init__(self, layouts: Layouts, repeated: Iterable[str]) -> None:
        self.layouts = layouts
        self.values = layouts.values
        self.known: dict[str, Strides] = {}
        self.forms, self.found = layouts.forms, dict[tuple[Any, ...], Any]()
        for name in repeated:
            if (value := self.typed(name)) is not None:
                self.known[name] = (0,) * value.rank

    def typed(self, name: str) -> TensorType | None:
        """The type of a value that is a tensor."""
        value = self.values.get(name)
        return value if isinstance(value, TensorType) else None

    def copies(self, call: PricedCall) -> list[Strides]:
        """The layouts from which the gradient of a call's result is copied; notes how those of its operands lie."""
        name = next((name for name in call.node.outputs if name is not None), "")
        out, strides = self.typed(name), self.known.get(name)
        first = next((operand for operand in call.uses if self.typed(operand)), None)
        if out is None or first is None:
            return []
        return self._followed(call, out, strides, first)

    def summed(self, name: str) -> None:
        """The gradient of a value is a sum of several, which lies as the value does."""
        self.known.pop(name, None)

    def _followed(
        self, call: PricedCall, out: TensorType, strides: Strides | None, first: str
    ) -> list[Strides]:
        operator = call.node.operator
        x = self.typed(first)
        assert x is not None
        name = operator.name
        if name in _MADE_IN_ORDER:
            self.known[first] = row_major(x.shape)
        copies = name in _SAME_AXES and call.node.outputs[0] in self.layouts.copies
        is_elementwise = operator.kind in _ONE_BY_ONE
        if strides is None and (copies or is_elementwise or operator.kind == "identity"):
            strides = self.layouts.of(call.node.outputs[0] or "")
        if strides is None:
            return []
        is_repeated = any(step == 0 for step in strides)
        if name in TURNING:
            back = dict(zip(turned(operator, call.node.arguments(), x.rank), strides, strict=True))
            self.known[first] = tuple([back[axis] for axis in range(x.rank)])
        elif name in _SAME_AXES:
            return self._reshaped(out, x, strides, first)
        elif is_elementwise or operator.kind == "identity":
            if not is_repeated or name in _PASSES_ON:
                for place, use in enumerate(call.tensors(self.values)):
                    if getattr(self.typed(use), "shape", None) == out.shape:
                        self.known[use] = strides if self._is_alike(call, place) else self.layouts.of(use)
        elif operator.kind == "product" and call.gradient is not None:
            return self._of_product(call, out, strides, is_repeated=is_repeated)
        elif name in _ORDERED and not is_contiguous(out.shape, strides):
            return [strides]
        return []

    @by_form
    def _is_alike(self, call: PricedCall, place: int) -> bool:
        return lies_as_gradient(call, place, self.values)

    def _reshaped(self, out: TensorType, x: TensorType, strides: Strides, first: str) -> list[Strides]:
        found = regrouped(out.shape, strides, x.shape)
        self.known[first] = row_major(x.shape) if found is None else found
        return [strides] if found is None else []

    def _of_product(
        self, call: PricedCall, out: TensorType, strides: Strides, *, is_repeated: bool
    ) -> list[Strides]:
        """BLAS reads no repeated operand: each product copies it; rows that do not lie evenly apart are copied once."""
        assert call.gradient is not None
        if is_repeated:
            return [strides] * min(len(call.gradient.gradients), 2)
        rows = out.rank - 1
        if rows > 1 and call.node.operator.name == "linear":
            merged = regrouped(out.shape, strides, (prod(out.shape[:-1]), out.shape[-1]))
            return [strides] if merged is None else []
        return []
