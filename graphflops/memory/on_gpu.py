"""What eager and compiled execution on a GPU have in common: where tensors lie, attention kernels, copies of operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import dim_max, total
from graphflops.graph import Ref
from graphflops.memory.attention import AttentionMemory
from graphflops.memory.forms import by_form, places_by_form
from graphflops.memory.products import operand_copies, pair_results
from graphflops.passes.program import CallByCall

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from graphflops.dims import Dim
    from graphflops.memory.runs import Runs
    from graphflops.passes.program import PricedCall, PricedGraph


class OnGpu(CallByCall):
    """Calls of PyTorch's operators on a GPU.

    has_fast_paths: whether modules that have one run as a single call where nothing wants a gradient.
    """

    has_fast_paths = True

    def __init__(self, graph: PricedGraph, training: bool, runs: Runs) -> None:
        super().__init__(graph, training)
        self.run = runs.of(graph, has_fast_paths=self.has_fast_paths and not training)
        self.calls, self.layouts = self.run.calls, self.run.layouts
        self.values = self.layouts.values
        self.forms = self.layouts.forms
        self.found: dict[tuple[Any, ...], Any] = {}

    def owners(self) -> Mapping[str, str]:
        """The value whose memory each tensor shares, by how operands lie."""
        return self.run.owners

    def copied(self) -> Container[str]:
        """Results of reshapes that copy."""
        return self.layouts.copies

    @by_form
    def attention(self, call: PricedCall) -> AttentionMemory | None:
        """The memory of a call that chooses an attention kernel; None for other calls."""
        return AttentionMemory.of(call, self.layouts, self.training)

    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """The rule's workspace, that of an attention kernel, and copies of a product's operands."""
        attention = self.attention(call)
        if attention is not None:
            return dim_max(0, attention.forward - saved)
        copies = total(operand_copies(call, self.layouts).values()) + pair_results(call, self.layouts)
        own = super().forward_bytes(call, saved)
        return own if self.training and saved != 0 else own + copies

    def backward_bytes(self, call: PricedCall) -> Dim:
        """The rule's workspace or that of an attention kernel."""
        attention = self.attention(call)
        if attention is not None:
            return attention.backward
        return super().backward_bytes(call) + pair_results(call, self.layouts)

    def saved_bytes(self, call: PricedCall) -> Dim:
        """What the rule says is saved, or an attention kernel keeps, and copies of a product's operands."""
        attention = self.attention(call)
        if attention is not None and call.gradient is not None:
            return attention.saved + (super().saved_bytes(call) if attention.is_fused else 0)
        own = super().saved_bytes(call) + total(self.saved_copies(call).values())
        return own if call.gradient is None else own + pair_results(call, self.layouts)

    def saved_copies(self, call: PricedCall) -> Mapping[str, Dim]:
        """Copies of a product's operands that its gradient reads."""
        if call.gradient is None:
            return {}
        read = super().saved_values(call)
        return {name: size for name, size in operand_copies(call, self.layouts).items() if name in read}

    @places_by_form
    def saved_values(self, call: PricedCall) -> list[str | None]:
        """Operands and results that the gradients read; not those that were copied for the forward."""
        attention = self.attention(call)
        if attention is not None and not attention.is_fused and call.gradient is not None:
            return [*attention.saved_operands]
        copies = {*self.saved_copies(call)}
        mask = call.node.arguments().get("mask")
        if attention is not None and isinstance(mask, Ref) and attention.mask_copy != 0:
            copies.add(mask.name)
        return [name for name in super().saved_values(call) if name not in copies]
