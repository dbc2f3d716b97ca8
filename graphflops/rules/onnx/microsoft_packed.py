"""onnxruntime's attention over packed rows: all sequences one after another, (tokens, heads * width).

Rows attend within their own sequence. Where the contents of the offsets are known the work is the sum over the
sequences; where they are not known, every row is taken to meet as many keys as the longest sequence may have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from graphflops.cost import Estimate
from graphflops.dims import Dim, Expr, floor_div
from graphflops.rules.attention_packed import lengths, pack
from graphflops.rules.onnx.fused import Outputs, chosen, fused, work
from graphflops.rules.onnx.microsoft_grouped import normed, reshaped_scores, rotation, unpacked
from graphflops.rules.registry import rule

if TYPE_CHECKING:
    from graphflops.rules.attention import Attention
    from graphflops.rules.onnx.microsoft_attention import Sizes
    from graphflops.rules.onnx.microsoft_grouped import Given
    from graphflops.tensor import TensorType

KIND = "attention"


def packed_by_head(x: TensorType, heads: Dim) -> TensorType:
    """The operand (tokens, heads * width) as (tokens, heads, width)."""
    tokens, hidden = x.shape
    return x.view((tokens, heads, floor_div(hidden, heads)))


def within(q: TensorType, v: TensorType, padded: TensorType | None, offsets: TensorType | None) -> Attention:
    """Self-attention of packed rows (tokens, heads, width); `padded` is (batch, padded length)."""
    return pack(q, q, v, offsets, offsets, q.shape[0] if padded is None else padded.shape[-1])


@rule("com.microsoft.PackedMultiHeadAttention", product=("query", "key"))
def packed_multi_head_attention(
    query: TensorType,
    key: TensorType | None = None,
    value: TensorType | None = None,
    bias: TensorType | None = None,
    token_offset: TensorType | None = None,
    cumulative_sequence_length: TensorType | None = None,
    attention_bias: TensorType | None = None,
    *,
    num_heads: int,
) -> Estimate:
    """The two products of attention, after the biases of the projections; a query of four axes holds all three operands."""
    tokens = query.shape[0]
    rows = query.like((tokens, num_heads * query.shape[-1])) if query.rank == 4 else query
    q, v = packed_by_head(rows, num_heads), packed_by_head(rows if value is None else value, num_heads)
    problem = replace(within(q, v, token_offset, cumulative_sequence_length), mask=attention_bias)
    biased = 2 * q.numel + v.numel if bias is not None else 0
    reads = (query, key, value, bias, token_offset, cumulative_sequence_length, attention_bias)
    out = query.like((tokens, num_heads * v.shape[-1]))
    return fused((out,), problem.forward(), work(biased), reads=reads)


@rule("com.microsoft.PackedAttention", product=("x", "weights"))
def packed_attention(
    x: TensorType,
    weights: TensorType,
    bias: TensorType | None = None,
    token_offset: TensorType | None = None,
    cumulative_sequence_length: TensorType | None = None,
    attention_bias: TensorType | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sizes = (),
) -> Estimate:
    """One projection of the packed rows, and attention within each sequence."""
    tokens, hidden = x.shape
    third = floor_div(weights.shape[1], 3)
    wide_q, _, wide_v = qkv_hidden_sizes or (third, third, third)
    q, v = (packed_by_head(x.like((tokens, wide)), num_heads) for wide in (wide_q, wide_v))
    problem = replace(within(q, v, token_offset, cumulative_sequence_length), mask=attention_bias)
    projected = tokens * weights.shape[1]
    product = Estimate(matrix_flops=2 * projected * hidden, vector_flops=projected if bias is not None else 0)
    reads = (x, weights, bias, token_offset, cumulative_sequence_length, attention_bias)
    return fused((x.like((tokens, wide_v)),), product, problem.forward(), reads=reads)


class Paged(NamedTuple):
    """The operands of PagedAttention, in their order."""

    query: TensorType
    key: TensorType | None
    value: TensorType | None
    key_cache: TensorType
    value_cache: TensorType | None
    cumulative_sequence_length: TensorType
    past_seqlens: TensorType
    block_table: TensorType
    cos_cache: TensorType | None = None
    sin_cache: TensorType | None = None
    slot_mapping: TensorType | None = None
    head_sink: TensorType | None = None
    q_norm_weight: TensorType | None = None
    k_norm_weight: TensorType | None = None
    k_scale: TensorType | None = None
    v_scale: TensorType | None = None
    attention_metadata: TensorType | None = None

    @property
    def pages(self) -> PagedCache:
        """Keys and values, as the new rows see them."""
        offsets = with_past(self.cumulative_sequence_length, self.past_seqlens)
        return PagedCache((self.key_cache, self.value_cache), self.block_table, offsets)

    @property
    def tables(self) -> tuple[TensorType | None, ...]:
        """What is read besides queries, keys, values and the parts' own tables."""
        lengths = (self.cumulative_sequence_length, self.past_seqlens)
        return (*lengths, self.block_table, self.slot_mapping, self.head_sink, self.k_scale, self.v_scale)

    def given(self, heads: int, kv_heads: int) -> Given:
        """The three operands by head, as one batch."""
        query = self.query.view((1, *self.query.shape))
        key, value = (
            None if x is None else x.view((1, *x.shape)) for x in (self.key, self.value or self.key)
        )
        return unpacked(query, key, value, heads, kv_heads)


@rule("com.microsoft.PagedAttention", product=("query", "key"))
def paged_attention(
    query: TensorType,
    key: TensorType | None,
    *operands: TensorType | None,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    is_causal: int = 1,
    local_window_size: int = -1,
    softcap: float = 0.0,
    v_head_size: int = 0,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Packed rows against the pages of their sequences, which are read; new rows are written into them in place."""
    of = Paged(query, key, *operands)  # type: ignore[arg-type]
    given, pages = of.given(num_heads, kv_num_heads), of.pages
    left = local_window_size - 1 if local_window_size > 0 else None
    right = 0 if is_causal else None
    problem = pages.problem(given, of.cumulative_sequence_length, v_head_size, left, right)
    parts = (
        rotation(given.query, given.key, *((of.cos_cache, of.sin_cache) if do_rotary else (None, None))),
        normed(given.query, given.key, of.q_norm_weight, of.k_norm_weight),
        reshaped_scores(problem, softcap, of.head_sink is not None),
    )
    out = query.like((query.shape[0], num_heads * problem.value.shape[-1]))
    return fused(
        chosen(outputs, out, *(cache.view(cache.shape) for cache in pages.present)),
        problem.forward(),
        *parts,
        reads=(
            query,
            key,
            of.value,
            *pages.read,
            *of.tables,
            *(read for part in parts for read in part.reads),
        ),
        writes=(out, *pages.of_rows(query.shape[0])),
    )


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values in pages (block, row in block, heads, width).

    table: which blocks each sequence has.
    offsets: where the keys of each sequence begin, if known.
    """

    caches: tuple[TensorType | None, ...]
    table: TensorType
    offsets: TensorType | None

    @property
    def present(self) -> list[TensorType]:
        """The caches that are given: values may share the keys' one."""
        return [cache for cache in self.caches if cache is not None]

    @property
    def room(self) -> Dim:
        """The most rows that one sequence can have."""
        return self.table.shape[-1] * self.present[0].shape[1]

    @property
    def read(self) -> list[TensorType]:
        """The rows of all sequences; all that the table has room for where only data can tell how many."""
        return self.of_rows(sum(lengths(self.offsets) or [self.table.shape[0] * self.room]))

    def of_rows(self, rows: Dim) -> list[TensorType]:
        """So many rows of each cache."""
        return [cache.like((rows, *cache.shape[2:])) for cache in self.present]

    def problem(
        self, given: Given, offsets: TensorType, value_width: int, left: Dim | None, right: Dim | None
    ) -> Attention:
        """The attention of packed rows to the pages."""
        _, heads, tokens, width = given.query.shape
        return pack(
            given.query.like((tokens, heads, width)),
            given.key,
            given.value.like((tokens, given.value.shape[1], value_width or given.value.shape[-1])),
            *(offsets, self.offsets, self.room),
            left=left,
            right=right,
        )


def with_past(offsets: TensorType, past: TensorType) -> TensorType | None:
    """Offsets of the keys, past and new, of each sequence; None if unknown."""
    new, old = lengths(offsets), past.value
    if new is None or not isinstance(old, tuple):
        return None
    held = [length for length in old if isinstance(length, (int, Expr))]
    edges = accumulate((a + b for a, b in zip(new, held, strict=True)), initial=0)
    return replace(offsets, value=tuple(edges))
