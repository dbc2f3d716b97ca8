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

    def owners(self, calls: Sequence[PricedCall], values: Mapping[str, Value]) -> dict[str, str]:
        """The value whose memory each tensor shares; whether a layout operator copies follows from how its operand lies."""
        layouts = Layouts(calls, values)
        root: dict[str, str] = {}
        for call in calls:
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

    def held_until(self, calls: Sequence[PricedCall], root: Mapping[str, str]) -> Mapping[str, int]:
        """What Python's frames hold."""
        return held_until([call.node for call in calls], root)

    def forward_bytes(self, call: PricedCall, values: Mapping[str, Value], saved: Dim) -> Dim:
        """The rule's workspace and that of the CUDA kernel."""
        return super().forward_bytes(call, values, saved) + kernels.forward_bytes(call, values)

    def backward_bytes(self, call: PricedCall, values: Mapping[str, Value]) -> Dim:
        """The rule's workspace and that of the CUDA kernels."""
        return super().backward_bytes(call, values) + kernels.backward_bytes(call, values)

    def saved_bytes(self, call: PricedCall, values: Mapping[str, Value]) -> Dim:
        """What the rule says is saved, and the copy of an operand that an in-place activation overwrites."""
        return super().saved_bytes(call, values) + kernels.saved_input_bytes(call, values)
