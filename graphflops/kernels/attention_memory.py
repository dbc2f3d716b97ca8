"""The memory of an attention: results that are more than its output, temporaries, and what its gradient reads.

A fused kernel keeps the scores on chip; its gradient sums those of the queries in float32. The unfused one ("math") has in
memory, in float32, copies of the operands, the scores twice, and the probabilities, which the gradient reads.
The sizes are those measured on an H200 with PyTorch 2.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from graphflops.attention.kernel import Choice, Operand, Problem, attention_kernel
from graphflops.dims import Dim, ceil_div, dim_max, dim_min, prod, total
from graphflops.execution.layouts import Layouts, attention_problem, is_chosen
from graphflops.execution.strides import is_contiguous
from graphflops.kernels.choices import limits
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

FLASH_ALIGNMENT = 8  # elements
_FLOAT_BYTES = 4
_BOOL_PART = 4  # a truth value takes a byte, a float32 score four
MASK_ALIGNMENT, _MASK_GRADIENT_ALIGNMENT, _ROWS_OF_BLOCK = limits(
    *("aten_2", "attention.efficient", "mask_row", "mask_gradient_row", "rows")
)


def rounded(size: Dim, step: int) -> Dim:
    """The next multiple of a step."""
    return ceil_div(size, step) * step


class AttentionMemory(NamedTuple):
    """Bytes that one attention needs. choice: the kernel that runs it. out_bytes: of its result."""

    problem: Problem
    choice: Choice
    out_bytes: Dim
    operands_in_order: tuple[bool, ...]

    @staticmethod
    def of(call: PricedCall, layouts: Layouts, training: bool) -> AttentionMemory | None:
        """Of a call of the operator that chooses its kernel; None for other calls."""
        if not is_chosen(call) or not call.node.outputs:
            return None
        problem = attention_problem(call, layouts, training)
        out = layouts.values.get(call.node.outputs[0] or "")
        if problem is None or not isinstance(out, TensorType):
            return None
        in_order = tuple([is_contiguous(each.type.shape, each.strides) for each in problem.operands])
        return AttentionMemory(problem, attention_kernel(problem, layouts.platform), out.nbytes, in_order)

    @property
    def is_fused(self) -> bool:
        """Whether the scores stay on chip."""
        return self.choice.kernel != "math"

    @property
    def forward(self) -> Dim:
        """The most that is allocated at once, beside the result; what the gradient keeps is part of it."""
        if self.is_fused:
            return self.mask_copy + self.filled
        key = self.problem.key.type.numel * _FLOAT_BYTES
        products = self.float_copies + self.scaled + key + self.score_operands + self.scores
        softmax = self.float_copies + self.scaled + 2 * self.scores + ceil_div(self.scores, _BOOL_PART)
        return dim_max(0, dim_max(products, softmax) - self.out_bytes) + self.mask_copy

    @property
    def saved(self) -> Dim:
        """What the gradient reads beside operands and result, the row sums of fused kernels apart."""
        if self.is_fused:
            return self.mask_copy
        return self.scores + self.dropped + self.scaled + self.repeated(self.problem.key) + self.value_copy

    @property
    def backward(self) -> Dim:
        """What the gradient needs beside operands, results and their gradients."""
        if not self.is_fused:
            gradients = gradient_bytes(self.problem)
            own = 3 * self.scores + self.repeated(self.problem.value) - self.value_copy
            return dim_max(0, own - self.out_bytes - gradients)
        batch, heads, rows, width = self.problem.query.type.shape
        if self.choice.kernel == "efficient":
            padded = rounded(rows, _ROWS_OF_BLOCK)
            return batch * heads * (padded * width + rows) * _FLOAT_BYTES + self.mask_gradient
        return batch * heads * rows * (width + 1) * _FLOAT_BYTES + self.shared_gradients

    # What these consist of, in the order in which it is allocated

    @property
    def parts(self) -> Sequence[Dim]:
        """Of what is allocated at once: float32 copies, the scaled query, scores twice, which of them are -inf."""
        if self.is_fused:
            return ()
        is_float = self.problem.query.type.dtype.bits == 32
        copies = [operand.type.numel * _FLOAT_BYTES for operand in self.problem.operands if not is_float]
        return [*copies, self.scaled, self.scores, self.scores, ceil_div(self.scores, _BOOL_PART)]

    @property
    def saved_parts(self) -> list[Dim]:
        """Of what the gradient reads."""
        if self.is_fused:
            return [self.mask_copy]
        key = self.repeated(self.problem.key)
        return cut(self.saved, (self.scaled, key, self.value_copy, self.scores, self.dropped))

    @property
    def gradient_parts(self) -> Sequence[Dim]:
        """Of what the gradient needs."""
        return (ceil_div(self.shared_gradients, 2),) * 2 if self.is_fused else (self.scores,) * 3

    @property
    def shared_gradients(self) -> Dim:
        """Gradients of keys and values for each query head, where heads share them: added up after."""
        key, value = self.problem.key.type, self.problem.value.type
        heads = self.problem.query.type.shape[1]
        if key.shape[1] == heads:
            return 0
        return sum(x.shape[0] * heads * prod(x.shape[2:]) * (x.dtype.bits // 8) for x in (key, value))

    @property
    def filled(self) -> Dim:
        """Copies of operands whose heads FlashAttention wants as wide as a multiple of 8, and what its result has more."""
        width = self.problem.query.type.shape[-1]
        wide = rounded(width, FLASH_ALIGNMENT)
        if self.choice.kernel != "flash" or wide == width:
            return 0
        own = [operand.type.like().nbytes for operand in self.problem.operands]
        return (total(own) + self.out_bytes) * wide // width - self.out_bytes

    @property
    def mask_copy(self) -> Dim:
        """A boolean mask is turned into numbers; the efficient kernel wants rows of a multiple of 8."""
        if self.problem.mask is None:
            return 0
        mask, element = self.problem.mask.type, self.problem.query.type.dtype.bits // 8
        keys = mask.shape[-1] if mask.rank else 1
        padded = rounded(keys, MASK_ALIGNMENT)
        if self.choice.kernel == "efficient" and padded != keys:
            return prod(mask.shape[:-1]) * padded * element
        return mask.numel * element if mask.dtype.kind == "bool" else 0

    @property
    def mask_gradient(self) -> Dim:
        """The gradient of a mask, for every batch entry and head."""
        mask = self.problem.mask
        if mask is None or not mask.type.requires_grad:
            return 0
        batch, heads, rows, _ = self.problem.query.type.shape
        padded = rounded(self.problem.key.type.shape[2], _MASK_GRADIENT_ALIGNMENT)
        return batch * heads * rows * padded * (mask.type.dtype.bits // 8)

    # The unfused kernel

    @property
    def scores(self) -> Dim:
        """Scores in float32."""
        query, key = self.problem.query.type, self.problem.key.type
        return prod(query.shape[:-1]) * key.shape[-2] * _FLOAT_BYTES

    @property
    def dropped(self) -> Dim:
        """The scores after dropout, and which of them it keeps."""
        if self.problem.dropout == 0:
            return 0
        return self.scores + ceil_div(self.scores, _BOOL_PART)

    @property
    def float_copies(self) -> Dim:
        """Query, key and value in float32; none where they are."""
        if self.problem.query.type.dtype.bits == 32:
            return 0
        return sum(operand.type.numel * _FLOAT_BYTES for operand in self.problem.operands)

    @property
    def scaled(self) -> Dim:
        """The query times the scale."""
        return self.problem.query.type.numel * _FLOAT_BYTES

    @property
    def score_operands(self) -> Dim:
        """Scaled query and key once more, in row-major order and repeated for every query head."""
        own, repeated = self.problem.key.type.numel * _FLOAT_BYTES, self.repeated(self.problem.key)
        is_query, is_key, _ = self.operands_in_order  # in order
        return (0 if is_query else self.scaled) + (0 if is_key and repeated == own else repeated)

    @property
    def value_copy(self) -> Dim:
        """The value as the second product reads it, where that is not the operand itself."""
        value, heads = self.problem.value.type, self.problem.query.type.shape[1]
        is_operand = value.dtype.bits == 32 and self.operands_in_order[2] and value.shape[1] == heads
        return 0 if is_operand else self.repeated(self.problem.value)

    def repeated(self, operand: Operand) -> Dim:
        """An operand in float32, repeated for every query head that shares it."""
        shape = (*self.problem.query.type.shape[:-2], *operand.type.shape[-2:])
        return prod(shape) * _FLOAT_BYTES


def cut(size: Dim, parts: Iterable[Dim]) -> list[Dim]:
    """So many bytes as parts of these sizes, as far as they go, and a rest."""
    ends = [0, *(dim_min(end, size) for end in accumulate(parts)), size]
    return [end - start for start, end in pairwise(ends) if end != start]


def gradient_bytes(problem: Problem) -> Dim:
    """Bytes of the gradients of query, key, value and mask."""
    operands = [*problem.operands, *([] if problem.mask is None else [problem.mask])]
    return sum(operand.type.like().nbytes for operand in operands if operand.type.requires_grad)
