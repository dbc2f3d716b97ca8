"""What eager and compiled execution on a GPU have in common: where tensors lie, attention kernels, copies of operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import dim_max, total
from graphflops.execution.forms import by_form, places_by_form
from graphflops.graph import Ref
from graphflops.kernels.attention_memory import AttentionMemory
from graphflops.kernels.operand_copies import operand_copies, pair_results
from graphflops.passes.program import CallByCall

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from graphflops.dims import Dim
    from graphflops.execution.runs import Runs
    from graphflops.kernels.operand_copies import Copy
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
        keeps = self.training and saved != 0
        own = super().forward_bytes(call, saved) + total(self.brief_copies(call, keeps))
        return own if keeps else own + pair_results(call, self.layouts)

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

    def operand_copies(self, call: PricedCall) -> Mapping[str, Copy]:
        """Copies of operands that do not lie as a kernel of a library reads them."""
        return operand_copies(call, self.layouts) if call.node.operator.kind == "product" else {}

    def saved_copies(self, call: PricedCall) -> Mapping[str, Dim]:
        """Bytes of the copies of operands that the gradient reads."""
        return {name: copy.nbytes for name, copy in self.operand_copies(call).items() if copy.is_kept}

    def brief_copies(self, call: PricedCall, keeps: bool) -> list[Dim]:
        """Bytes of the copies that live during the call only. keeps: whether the others are kept for the gradient."""
        return [copy.nbytes for copy in self.operand_copies(call).values() if not (keeps and copy.is_kept)]

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
