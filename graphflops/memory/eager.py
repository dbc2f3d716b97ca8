"""Eager execution on a GPU: Python calls the modules, PyTorch's kernels run one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import dim_max
from graphflops.memory import kernels
from graphflops.memory.attention import AttentionMemory
from graphflops.memory.export_only import as_run
from graphflops.memory.frames import held_until
from graphflops.memory.layouts import Layouts
from graphflops.passes.program import CallByCall
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.attention import AttentionUse
    from graphflops.dims import Dim
    from graphflops.passes.program import PricedCall, PricedGraph


class Eager(CallByCall):
    """Memory lives as long as Python refers to it; kernels need buffers beside their operands and results."""

    def __init__(self, graph: PricedGraph, training: bool, attentions: Sequence[AttentionUse] = ()) -> None:
        super().__init__(graph, training, attentions)
        self.calls = as_run(graph.calls, attentions)
        self.layouts = Layouts(self.calls, self.values)

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

    def attention(self, call: PricedCall) -> AttentionMemory | None:
        """The memory of a call that chooses an attention kernel; None for other calls."""
        return AttentionMemory.of(call, self.layouts, self.training)

    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """The rule's workspace and that of the CUDA kernel."""
        attention = self.attention(call)
        if attention is not None:
            return dim_max(0, attention.forward - saved)
        return super().forward_bytes(call, saved) + kernels.forward_bytes(call, self.values)

    def backward_bytes(self, call: PricedCall) -> Dim:
        """The rule's workspace and that of the CUDA kernels."""
        attention = self.attention(call)
        if attention is not None:
            return attention.backward
        return super().backward_bytes(call) + kernels.backward_bytes(call, self.values)

    def saved_bytes(self, call: PricedCall) -> Dim:
        """What the rule says is saved, and the copy of an operand that an in-place activation overwrites."""
        attention = self.attention(call)
        if attention is not None and call.gradient is not None:
            return attention.saved + (super().saved_bytes(call) if attention.is_fused else 0)
        return super().saved_bytes(call) + kernels.saved_input_bytes(call, self.values)

    def saved_values(self, call: PricedCall) -> list[str | None]:
        """Operands and results that the gradients read; the unfused attention copies its operands."""
        attention = self.attention(call)
        if attention is not None and not attention.is_fused and call.gradient is not None:
            return [*attention.saved_operands]
        return super().saved_values(call)
