"""What calls need on a GPU: layouts, attention kernels, copies of operands; in eager execution also buffers of kernels."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from graphflops.attention.kernel import last_refusal, remedy
from graphflops.base.record import replace
from graphflops.base.units import memory
from graphflops.dims import Dim, dim_max, evaluate, prod, total
from graphflops.execution.fast_path import projections
from graphflops.execution.layouts import chosen_kernel
from graphflops.execution.runs import Runs
from graphflops.execution.strides import by_form
from graphflops.graph import Ref
from graphflops.kernels import buffers as kernels
from graphflops.kernels.attention import AttentionMemory, cut
from graphflops.kernels.beside import Copy, operand_copies
from graphflops.kernels.call import READING_IN_ORDER
from graphflops.kernels.kernel import FLOAT_BYTES
from graphflops.kernels.products import Recurrent
from graphflops.passes.program import CallByCall, GradientKernels, PricedCall, PricedGraph, PricedProgram
from graphflops.tensor import TensorType


class OnGpu(CallByCall):
    """Calls of PyTorch's operators on a GPU."""

    has_fast_paths = True  # modules with a fast path are one call if nothing wants a gradient

    def __init__(self, graph: PricedGraph, training: bool, runs: Runs) -> None:
        super().__init__(graph, training)
        self.run = runs.of(graph, has_fast_paths=self.has_fast_paths and not training, records=training)
        self.calls, self.layouts = self.run.calls, self.run.layouts
        self.values, self.recomputed = self.layouts.values, self.run.recomputed
        self.copied, self.forms = self.layouts.copies, self.layouts.forms
        self.found: dict[tuple[Any, ...], Any] = {}

    def owners(self) -> Mapping[str, str]:
        return self.run.owners

    @by_form
    def attention(self, call: PricedCall) -> AttentionMemory | None:
        """The memory of a call that chooses an attention kernel; None for other calls."""
        return AttentionMemory.of(call, self.layouts, self.training)


_RETURNING_OPERAND = frozenset({"dropout", "identity", "cast"})  # kinds that may do nothing


class Eager(OnGpu):
    """Memory lives as long as Python refers to it; kernels need buffers beside operands and results."""

    keeps_repeated = True

    def held_until(self) -> Mapping[str, int]:
        """What Python's frames hold."""
        return self.run.lifetimes.until

    @cached_property
    def views(self) -> frozenset[str]:
        """Values that are views for autograd, with those that were written in place."""
        found: set[str] = set()
        for call in self.calls:
            operator, outputs = call.node.operator, [name for name in call.node.outputs if name is not None]
            shares = any(self.run.owners.get(name, name) != name for name in outputs)
            is_view = operator.kind == "view" and shares
            is_same = operator.mutates or operator.kind in _RETURNING_OPERAND
            if is_view or (is_same and not found.isdisjoint(call.tensors(self.values)[:1])):
                found.update(outputs)
        return frozenset(found)

    def copied_slices(self, call: PricedCall) -> Dim:
        """Bytes of two copies of the gradient, which autograd makes if a call overwrites a view (`CopySlices`)."""
        if call.gradient is None or not call.node.operator.mutates:
            return 0
        operand = next(iter(call.tensors(self.values)), "")
        if operand not in self.views:
            return 0
        base = self.layouts.typed(self.run.owners.get(operand, operand))
        return base.like().nbytes + self.layouts.typed(operand).like().nbytes

    @by_form
    def forward_bytes(self, call: PricedCall, saved: Dim) -> Dim:
        """The workspace of the rule or the attention kernel, plus that of CUDA kernels and copies of operands."""
        layers, attention = Recurrent.of(call, self.values), self.attention(call)
        if layers is not None:
            return layers.workspace + (0 if saved != 0 else layers.reserve)
        if attention is not None:
            own = dim_max(0, attention.forward - saved)
        else:
            keeps = self.training and saved != 0
            own = super().forward_bytes(call, saved) + total(self.brief_copies(call, keeps))
        if call.node.operator.name == "max_pool" and saved != 0:
            return own  # the maxima's positions are saved, so they are counted there
        return own + kernels.forward_bytes(call, self.layouts)

    def operand_copies(self, call: PricedCall) -> Mapping[str, Copy]:
        """Copies of operands whose layout the kernel cannot read."""
        return operand_copies(call, self.layouts)

    def saved_copies(self, call: PricedCall) -> Mapping[str, Dim]:
        """Bytes of copied operands that are saved for the gradient."""
        return {name: copy.nbytes for name, copy in self.operand_copies(call).items() if copy.is_kept}

    @by_form
    def brief_copies(self, call: PricedCall, keeps: bool) -> list[Dim]:
        """Bytes of the copies that live only during the call. keeps: whether the other copies are saved."""
        return [copy.nbytes for copy in self.operand_copies(call).values() if not (keeps and copy.is_kept)]

    def repeated_bytes(self, call: PricedCall) -> Dim:
        """Bytes for a gradient that is broadcast: most kinds copy it to all elements; a bias sums it without a buffer."""
        out = self.values.get(call.node.outputs[0] or "")
        reads = call.node.operator.kind in READING_IN_ORDER
        copy = out.like().nbytes if reads and isinstance(out, TensorType) else 0
        return copy + (0 if call.node.operator.kind == "product" else self.backward_bytes(call))

    def gradient_kernels(self, call: PricedCall, is_repeated: bool) -> GradientKernels:
        """As autograd runs them; it sums a bias's gradient after those of the product's factors (`validate_outputs`)."""
        operator, is_last_first = call.node.operator, kernels.is_last_operand_first(call)
        return GradientKernels(
            *self._buffers(call, is_repeated, self.copied_slices(call)),
            is_last_operand_first=is_last_first,
            sums_afterwards=operator.kind == "product" and not is_last_first,
            is_transposed=operator.name == "linear",
        )

    @by_form
    def _buffers(
        self, call: PricedCall, is_repeated: bool, slices: Dim
    ) -> tuple[Sequence[Dim], Sequence[Sequence[Dim]]]:
        """Bytes of the temporaries of a formula, made first, and of each kernel's buffers.

        A convolution computes its operand's gradient before its weight's. slices: bytes of copies of a view's gradient.
        """
        if is_repeated or call.gradient is None:
            is_product = call.node.operator.kind == "product"
            needed = self.repeated_bytes(call) + (0 if is_product else slices) if is_repeated else 0
            factors = [place for place, _ in call.gradient.gradients if place < 2] if call.gradient else []
            return (), ((needed,),) * (len(factors) if is_product and factors else 1)
        (first, parts), attention = kernels.gradient_buffers(call, self.layouts), self.attention(call)
        if len(parts) > 1:
            return [size for size in [slices] if size != 0], parts
        own = parts[0] if attention is None else attention.gradient_parts
        return first, (cut(self.backward_bytes(call) + slices - total(first), own),)

    @by_form
    def made_first(self, call: PricedCall) -> tuple[Sequence[Dim], Sequence[Dim]]:
        """Copies of operands, which are made before the results; for a fused module, what its parts return."""
        kept = [*self.saved_copies(call).values()] if self.training else []
        brief = self.brief_copies(call, self.training)
        attention = self.attention(call)
        if attention is not None:
            saved = self.saved_bytes(call) if self.training else 0
            kept += [attention.mask_copy] if saved != 0 else []
            brief.append(self.forward_bytes(call, saved))
        brief += [*projections(call, self.values)]
        return [size for size in kept if size != 0], [size for size in brief if size != 0]

    @by_form
    def backward_bytes(self, call: PricedCall) -> Dim:
        """Also the workspace of CUDA kernels; without copies of the gradient of a view."""
        layers, attention = Recurrent.of(call, self.values), self.attention(call)
        if layers is not None:
            return layers.backward
        own = super().backward_bytes(call) if attention is None else attention.backward
        again = [copy.nbytes for copy in self.operand_copies(call).values() if copy.is_again]
        # The copies are made one after the other.
        return own + dim_max(0, *again) + kernels.backward_bytes(call, self.layouts)

    @by_form
    def saved_bytes(self, call: PricedCall) -> Dim:
        """Bytes that the rule or attention kernel saves, with saved copies of operands."""
        layers, attention = Recurrent.of(call, self.values), self.attention(call)
        if layers is not None and call.gradient is not None:
            return layers.reserve
        copies = [*self.saved_copies(call).values()]
        if attention is not None and call.gradient is not None:
            copies = [attention.mask_copy]
        return super().saved_bytes(call) + total(copies) + kernels.saved_input_bytes(call, self.values)

    def saved_values(self, call: PricedCall) -> list[str | None]:
        """Operands and results that gradients read or autograd saves needlessly, without those saved as copies."""
        attention, operands = self.attention(call), call.tensors(self.values)
        copies = {*self.saved_copies(call)}
        mask = call.node.arguments().get("mask")
        if attention is not None and isinstance(mask, Ref) and attention.mask_copy != 0:
            copies.add(mask.name)
        kept = {name: None for name in super().saved_values(call) if name not in copies}
        kept |= dict.fromkeys(kernels.kept_operands(call, self.values))
        if kernels.saved_input_bytes(call, self.values) != 0:
            kept.pop(operands[0], None)
        return [*kept]


class GraphOnGpu(Eager):
    """The same kernels, called in order by what runs a graph: each value is freed after its last use."""

    has_fast_paths = False

    def held_until(self) -> Mapping[str, int]:
        """Only functions of ATen hold values past their last use."""
        return self.run.until_returns


def with_kernels(program: PricedProgram, runs: Runs) -> tuple[PricedProgram, Mapping[str, list[Dim]]]:
    """The program with each attention's kernel; and by reason, bytes of the scores of each unfused attention."""
    execution = OnGpu(program.main.inlined, program.training is not None, runs)
    first = {use.calls[0] for use in program.attentions}
    calls = [call for call, _ in execution.run.expanded.given if call.node.name in first]
    chosen = {call.node.name: chosen_kernel(call, execution.layouts, execution.training) for call in calls}
    unfused: dict[str, list[Dim]] = {}
    uses = []
    for use in program.attentions:
        if (found := chosen.get(use.calls[0])) is not None:
            problem, choice = found
            use = replace(use, kernel=choice.kernel, kernel_reason=choice.reason)
            if choice.kernel == "math":
                scores = prod(problem.query.type.shape[:-1]) * problem.key.type.shape[-2] * FLOAT_BYTES
                unfused.setdefault(choice.reason, []).append(scores)
        uses.append(use)
    return replace(program, attentions=tuple(uses)), unfused


def say_unfused(
    program: PricedProgram, reason: str, scores: Sequence[Dim], slowdowns: Mapping[str, float]
) -> None:
    """Note the attentions that are unfused for one reason. slowdowns: their times relative to fused ones, by reason."""
    sizes = [evaluate(size, program.binding.examples) for size in scores]
    known = [size for size in sizes if size is not None]
    cost = f", up to {memory(max(known))} at a time" if known else ""
    if program.training is not None and known:
        cost = f", {memory(sum(known))} of them kept for the gradients"
    why = last_refusal(reason)
    if why in slowdowns:
        cost += f" and about {slowdowns[why]:.2g} x the time of a fused kernel"
    advice = remedy(why)
    runs = "1 attention runs unfused and stores its" if len(scores) == 1 else ""
    runs = runs or f"{len(scores)} attentions run unfused and store their"
    text = f"{runs} scores in float32{cost}: {why}{'; ' + advice if advice else ''}"
    program.notes.say("GF122", "", text, reason)
