"""Scaled dot-product attention: softmax(scale * q @ k.T + mask) @ v, over (..., heads, rows, width).

Work per element of the score tensor: scale 1, mask 1 where there is one, softmax 4 and an exponential,
dropout 3. The two products are counted dense; what a causal or a windowed structure makes needless is in
`masked_flops`, exact to the element. Fused operators never store scores. Keys and values are read at their
own number of heads, however many queries share them.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, broadcast, ceil_div, dim_max, meet, mod, prod, same
from graphflops.rules.operands import Operands, takes
from graphflops.rules.random import DROPOUT
from graphflops.rules.registry import rule
from graphflops.rules.shapes import Shape, doubled_pairs, where_wanted
from graphflops.rules.softmax import SOFTMAX
from graphflops.tensor import BFLOAT16, FLOAT32, FLOAT64, INT64, UINT64, TensorType

KIND = "attention"

SCALE = MASK = 1


class Attention(Record, frozen=True):
    """One attention problem, however its operands are laid out in memory."""

    query: TensorType
    key: TensorType
    value: TensorType
    mask: TensorType | None
    rows: Dim  # query rows over the batch and all query heads
    scores: Dim  # pairs of a query row with a key, over the batch and all query heads
    doubled_visible: Dim | None = None  # twice those that the structure shows; None where it hides none
    dropout: bool = False

    @property
    def masking(self) -> int:
        """Operations per score that a mask, given or structural, costs."""
        return MASK if self.mask is not None or self.doubled_visible is not None else 0

    @property
    def operands(self) -> tuple[TensorType | None, ...]:
        """What every pass reads."""
        return (self.query, self.key, self.value, self.mask)

    def products(self, width: Dim) -> tuple[Dim, Dim]:
        """FLOPs of products with `width` multiply-adds per score, and the part that is masked away."""
        dense = 2 * self.scores * width
        return dense, 0 if self.doubled_visible is None else dense - self.doubled_visible * width

    def forward(self, *out: Value, reads: tuple[TensorType | Dim | None, ...] = ()) -> Estimate:
        """Both products and the softmax between them; scores stay on chip."""
        matrix, masked = self.products(self.query.shape[-1] + self.value.shape[-1])
        return Estimate(
            out,
            matrix_flops=matrix,
            vector_flops=self.scores * (SCALE + self.masking + SOFTMAX + DROPOUT * self.dropout),
            transcendentals=self.scores,
            masked_flops=masked,
            reads=(*self.operands, *reads),
        )

    def stored(self, *out: Value) -> Estimate:
        """The same as two products: the first writes the scores, `out`'s last, which the second reads."""
        return self.forward(*out, reads=(self.probabilities,))

    @property
    def probabilities(self) -> Dim:
        """Bytes of a stored score tensor."""
        return self.scores * (self.query.dtype.bits // 8)

    def backward(self, wants: Container[str], out: TensorType, *, fused: bool = True) -> Estimate:
        """Gradients of the wanted of query, key, value and mask, None for the others.

        A fused kernel recomputes the scores from the saved row sums: five products for the forward's two.
        Stored scores make it four. Work per score beside the products: recomputing scale 1, mask 1, subtract
        1 and an exponential; softmax's gradient 2 (4 where row sums of the gradient are taken over scores),
        scale 1, dropout 2. The fused kernel takes these row sums from `out`: 2 per element of it.
        """
        dk, dv = self.query.shape[-1], self.value.shape[-1]
        operands = ("query", "key", "value", "mask")
        for_query, for_key, for_value, for_mask = (name in wants for name in operands)
        through = for_query or for_key or for_mask  # the softmax
        matrix, masked = self.products(dk * (fused + for_query + for_key) + dv * (for_value + through))
        recomputed = (SCALE + self.masking + 1) * fused
        per_score = recomputed + (5 - 2 * fused) * through + 2 * self.dropout
        gradients = where_wanted(self.operands, (name in wants for name in operands))
        row_sums = self.rows * (FLOAT32.bits // 8)
        kept = (self.mask, out, row_sums) if fused else (self.probabilities, self.probabilities)
        return Estimate(
            gradients,
            matrix_flops=matrix,
            vector_flops=self.scores * per_score + (2 * out.numel if fused and through else 0),
            transcendentals=self.scores * fused,
            masked_flops=masked,
            reads=(self.query, self.key, self.value, out.like(), *kept),
            writes=gradients if fused else (*gradients, self.probabilities),
        )


def attend(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    mask: TensorType | None = None,
    *,
    left: Dim | None = None,
    right: Dim | None = None,
    bottom_right: bool = False,
    offset: Dim = 0,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    grouped: bool = True,
) -> Attention:
    """The problem of operands (..., heads, rows, width); a key head may serve several query heads.

    left, right: how far before and behind its own place a query sees, None without limit; causal is
    `right=0`, or `is_causal`. The place of the first query is the first key's or `offset` keys behind it, with
    `bottom_right` the one that aligns the last query with the last key.
    """
    rows, keys = query.shape[-2], key.shape[-2]
    widths = query.shape[-1], key.shape[-1]
    meet(*widths, f"query and key widths differ: {widths[0]} and {widths[1]}")
    meet(keys, value.shape[-2], f"{keys} keys but {value.shape[-2]} values")
    heads = prod(leading_axes(query, key, value, grouped))
    if mask is not None:
        broadcast(mask.shape, (*leading_axes(query, key, value, grouped), rows, keys))
    visible, right = None, 0 if is_causal else right
    if left is not None or right is not None:
        offset = keys - rows if bottom_right else offset
        visible = heads * doubled_pairs(rows, keys, left=left, right=right, offset=offset)
    return Attention(query, key, value, mask, heads * rows, heads * rows * keys, visible, dropout_p > 0)


def leading_axes(query: TensorType, key: TensorType, value: TensorType, grouped: bool) -> Shape:
    """Batch axes and query heads of the result."""
    shapes = [x.shape[:-2] for x in (key, value)]
    if grouped and min(query.rank, key.rank, value.rank) > 2:
        heads = query.shape[-3]
        for shape in shapes:
            meet(mod(heads, shape[-1]), 0, f"{heads} query heads do not share {shape[-1]} key heads")
        shapes = [(*shape[:-1], heads) for shape in shapes]
    return broadcast(query.shape[:-2], *shapes)


@rule("aten.scaled_dot_product_attention")
@takes("query key value attn_mask?")
def scaled_dot_product_attention(
    of: Operands, *, dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False
) -> Estimate:
    """Two products per score, as a fused kernel; `is_causal` aligns the first query with the first key."""
    query, key, value, _ = of
    problem = attend(*of, dropout_p=dropout_p, is_causal=is_causal, grouped=enable_gqa)
    out = (*leading_axes(query, key, value, enable_gqa), query.shape[-2], value.shape[-1])
    return problem.forward(query.like(out))


@rule("aten._scaled_dot_product_attention_math", "aten._scaled_dot_product_attention_math_for_mps")
@takes("query key value attn_mask? * dropout_mask?")
def attention_math(
    of: Operands, *, dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False
) -> Estimate:
    """The same two products with the scores written, read and returned."""
    query, key, value, _, dropout_mask = of
    problem = attend(*of.but("dropout_mask"), dropout_p=dropout_p, is_causal=is_causal, grouped=enable_gqa)
    problem = replace(problem, dropout=problem.dropout or dropout_mask is not None)
    rows = (*leading_axes(query, key, value, enable_gqa), query.shape[-2])
    return problem.stored(query.like((*rows, value.shape[-1])), query.like((*rows, key.shape[-2])))


def result_of(query: TensorType, value: TensorType) -> TensorType:
    """The result beside a query: its shape and type with the values' width; fp8 operands give bfloat16."""
    dtype = BFLOAT16 if query.dtype.bits == 8 else query.dtype
    return query.like((*query.shape[:-1], value.shape[-1]), dtype)


def philox(query: TensorType) -> tuple[TensorType, TensorType]:
    """Seed and offset of the random numbers that dropout drew."""
    return query.like((), INT64), query.like((), INT64)


def flash_state(query: TensorType) -> tuple[TensorType, TensorType]:
    """State of flash attention's random numbers, and an unused result."""
    return query.like((2,), UINT64), query.like((), UINT64)


def flash_debug_mask(query: TensorType, heads_rows: Shape, keys: Dim, wanted: bool) -> TensorType:
    """What flash attention returns for debugging, by default nothing; its last size is a number of blocks."""
    dtype = BFLOAT16 if query.dtype.bits == 8 else query.dtype
    if not wanted:
        return query.like((0,), dtype)
    block = 128 if not same(dim_max(query.shape[-1], 64), 64) else 256
    blocks = ceil_div(heads_rows[-1], block)
    if same(dim_max(keys, 256), 256):
        blocks = 128 if same(dim_max(keys, 128), 128) else 256
    return query.like((*heads_rows, blocks), dtype)


@rule("aten._scaled_dot_product_flash_attention")
@takes("query key value * q_descale? k_descale? v_descale?")
def flash_attention(
    of: Operands, *, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False
) -> Estimate:
    """Two products per score; row sums are kept for the backward pass. Of eight-bit operands the scales are read too."""
    query, key, value, *scales = of
    row_sums = query.like(query.shape[:-1], FLOAT32)
    debug = flash_debug_mask(query, query.shape[:-1], key.shape[-2], return_debug_mask)
    sizes = (None, None, query.shape[-2], key.shape[-2])
    out = (result_of(query, value), row_sums, *sizes, *flash_state(query), debug)
    problem = attend(query, key, value, dropout_p=dropout_p, is_causal=is_causal)
    return problem.forward(*out, reads=tuple(scales))


@rule("aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_fused_attention_overrideable")
@takes("query key value attn_bias?")
def cudnn_attention(
    of: Operands, *, compute_log_sumexp: bool | None = None, dropout_p: float = 0.0, is_causal: bool = False
) -> Estimate:
    """Two products per score; row sums are kept for the backward pass."""
    query, key, value, _ = of
    per_row = (*query.shape[:-1], 1)
    if compute_log_sumexp is None:  # the operator that others put theirs in place of
        per_row = per_row[:-1] if query.rank > 3 else (1, *per_row[:-1])
    sizes = (None, None, query.shape[-2], key.shape[-2])
    problem = attend(*of, dropout_p=dropout_p, is_causal=is_causal)
    row_sums = query.like(per_row, FLOAT32)
    return problem.forward(result_of(query, value), row_sums, *sizes, *philox(query), None)


@rule("aten._scaled_dot_product_flash_attention_for_cpu")
@takes("query key value * attn_mask?")
def flash_attention_for_cpu(of: Operands, *, dropout_p: float = 0.0, is_causal: bool = False) -> Estimate:
    """Two products per score; row sums are kept for the backward pass."""
    row_sums = of.query.like(of.query.shape[:-1], FLOAT64 if of.query.dtype == FLOAT64 else FLOAT32)
    problem = attend(*of, dropout_p=dropout_p, is_causal=is_causal)
    return problem.forward(result_of(of.query, of.value), row_sums)


@rule("aten._scaled_dot_product_efficient_attention")
@takes("query key value attn_bias?")
def efficient_attention(
    of: Operands, *, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False
) -> Estimate:
    """Two products per score; row sums, padded to blocks of 32, are kept on demand."""
    query = of.query
    padded = 32 * ceil_div(query.shape[-2], 32) if compute_log_sumexp else 0
    row_sums = query.like((*query.shape[:-2], padded), FLOAT32)
    problem = attend(*of, dropout_p=dropout_p, is_causal=is_causal)
    return problem.forward(result_of(query, of.value), row_sums, *philox(query))


@rule("aten._triton_scaled_dot_attention")
def triton_attention(q: TensorType, k: TensorType, v: TensorType, dropout_p: float = 0.0) -> Estimate:
    """Two products per score."""
    return attend(q, k, v, dropout_p=dropout_p).forward(result_of(q, v))


@rule("aten._fused_sdp_choice", kind="query")
def fused_sdp_choice() -> Estimate:
    """Which implementation would run, a number that depends on the machine: free."""
    return free(data_dependent("sdp_choice"), alias=False)
