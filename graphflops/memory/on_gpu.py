"""What eager and compiled execution on a GPU have in common: where tensors lie, attention kernels, copies of operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import dim_max, total
from graphflops.memory.attention import AttentionMemory
from graphflops.memory.products import operand_copies
from graphflops.passes.program import CallByCall
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.dims import Dim
    from graphflops.memory.runs import Runs
    from graphflops.passes.program import PricedCall, PricedGraph


class OnGpu(CallByCall):
    """Calls of PyTorch's operators on a GPU."""

    def __init__(self, graph: PricedGraph, training: bool, runs: Runs) -> None:
        super().__init__(graph, training)
        self.calls, self.layouts = runs.of(graph, has_fast_paths=not training)

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

    def attention(self, call: PricedCall) -> AttentionMemory | None:
        """The memory of a call that chooses an attention kernel; None for other calls."""
        return AttentionMemory.of(call, self.layouts, self.training)

    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """The rule's workspace, that of an attention kernel, and copies of a product's operands."""
        attention = self.attention(call)
        if attention is not None:
            return dim_max(0, attention.forward - saved)
        copies = total(operand_copies(call, self.layouts).values())
        own = super().forward_bytes(call, saved)
        return own if self.training and saved != 0 else own + copies

    def backward_bytes(self, call: PricedCall) -> Dim:
        """The rule's workspace or that of an attention kernel."""
        attention = self.attention(call)
        return super().backward_bytes(call) if attention is None else attention.backward

    def saved_bytes(self, call: PricedCall) -> Dim:
        """What the rule says is saved, or an attention kernel keeps, and copies of a product's operands."""
        attention = self.attention(call)
        if attention is not None and call.gradient is not None:
            return attention.saved + (super().saved_bytes(call) if attention.is_fused else 0)
        return super().saved_bytes(call) + total(self.saved_copies(call).values())

    def saved_copies(self, call: PricedCall) -> Mapping[str, Dim]:
        """Copies of a product's operands that its gradient reads."""
        if call.gradient is None:
            return {}
        read = super().saved_values(call)
        return {name: size for name, size in operand_copies(call, self.layouts).items() if name in read}

    def saved_values(self, call: PricedCall) -> list[str | None]:
        """Operands and results that the gradients read; not those that were copied for the forward."""
        attention = self.attention(call)
        if attention is not None and not attention.is_fused and call.gradient is not None:
            return [*attention.saved_operands]
        copies = self.saved_copies(call)
        return [name for name in super().saved_values(call) if name not in copies]
