"""Eager execution on a GPU: Python calls the modules, PyTorch's kernels run one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.memory import kernels
from graphflops.memory.frames import held_until
from graphflops.memory.layouts import Layouts
from graphflops.passes.program import CallByCall
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim
    from graphflops.passes.program import PricedCall


class Eager(CallByCall):
    """Memory lives as long as Python refers to it; kernels need buffers beside their operands and results."""

    def __init__(self, calls: Sequence[PricedCall], values: Mapping[str, Value], training: bool) -> None:
        super().__init__(calls, values, training)
        self.layouts = Layouts(calls, values)

    def owners(self) -> dict[str, str]:
        """The value whose memory each tensor shares; whether a layout operator copies follows from how its operand lies."""
        layouts, values = self.layouts, self.values
        root: dict[str, str] = {}
        for call in self.calls:
            outputs = [name for name in call.node.outputs if name is not None]
            is_view = call.estimate.alias
            if outputs and outputs[0] in layouts.views:
                is_view = True
            elif outputs and outputs[0] in layouts.copies:
                is_view = False
            first = next((name for name in call.uses if isinstance(values.get(name), TensorType)), None)
            owner = root.get(first, first) if is_view and first is not None else None
            root.update((name, owner or name) for name in outputs if isinstance(values.get(name), TensorType))
        return root

    def held_until(self, root: Mapping[str, str]) -> Mapping[str, int]:
        """What Python's frames hold."""
        return held_until([call.node for call in self.calls], root)

    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """The rule's workspace and that of the CUDA kernel."""
        return super().forward_bytes(call, saved) + kernels.forward_bytes(call, self.values)

    def backward_bytes(self, call: PricedCall) -> Dim:
        """The rule's workspace and that of the CUDA kernels."""
        return super().backward_bytes(call) + kernels.backward_bytes(call, self.values)

    def saved_bytes(self, call: PricedCall) -> Dim:
        """What the rule says is saved, and the copy of an operand that an in-place activation overwrites."""
        return super().saved_bytes(call) + kernels.saved_input_bytes(call, self.values)
