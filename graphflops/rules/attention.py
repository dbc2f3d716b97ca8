"""Scaled dot-product attention: softmax(scale * q @ k.T + mask) @ v, over (..., heads, rows, width).

The two products are counted dense; the FLOPs that a causal or windowed structure makes needless are in `masked_flops`, exact
to the element. Fused operators never store scores. Keys and values are read at their own number of heads, however many
queries share them.

Packed sequences attend within themselves, so the work is the sum of the products of their lengths. It is counted
in this way if the contents of the offsets are known; if they depend on data, it is bounded by every row attending
to as many keys as the longest sequence has, and no part of it counts as masked.
"""

from collections.abc import Container, Mapping
from itertools import pairwise
from typing import Any

from graphflops.base.record import Record, replace
from graphflops.cost import Estimate, Value
from graphflops.dims import Dim, Expr, broadcast, differ, floor_div, meet, mod, prod, total
from graphflops.rules.creation import DROPOUT
from graphflops.rules.reduce import SOFTMAX
from graphflops.rules.registry import require
from graphflops.rules.shapes import Shape, doubled_pairs, where_wanted
from graphflops.tensor import FLOAT32, TensorType

SCALE = MASK = 1


class Attention(Record, frozen=True):
    """One attention problem, however its operands are laid out in memory."""

    query: TensorType
    key: TensorType
    value: TensorType
    mask: TensorType | None
    rows: Dim  # query rows over the batch and all query heads
    scores: Dim  # pairs of a query row with a key, over the batch and all query heads
    doubled_visible: Dim | None = None  # twice the number of visible pairs; None if all are visible
    dropout: bool = False

    @property
    def masking(self) -> int:
        """The mask's operations per score, whether it is an operand or part of the structure."""
        return MASK if self.mask is not None or self.doubled_visible is not None else 0

    @property
    def operands(self) -> tuple[TensorType | None, ...]:
        """The operands that every pass reads."""
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
        """The forward as two separate products: the first writes the scores (the last of `out`), the second reads them."""
        return self.forward(*out, reads=(self.probabilities,))

    @property
    def probabilities(self) -> Dim:
        """Bytes of a stored score tensor."""
        return self.scores * (self.query.dtype.bits // 8)

    def backward(self, wants: Container[str], out: TensorType, *, fused: bool = True) -> Estimate:
        """The wanted gradients of query, key, value and mask; None for the others.

        A fused kernel recomputes the scores from the saved row sums: five products for the forward's two.
        With stored scores there are four. Work per score beside the products: to recompute it, scale 1, mask 1, subtract
        1 and an exponential; softmax's gradient 2 (4 if row sums of the gradient are taken over scores),
        scale 1, dropout 2. The fused kernel takes these row sums from `out`: 2 per element of it.
        """
        dk, dv = self.query.shape[-1], self.value.shape[-1]
        asked = tuple(name in wants for name in ("query", "key", "value", "mask"))
        for_query, for_key, for_value, for_mask = asked
        through = for_query or for_key or for_mask  # the softmax
        matrix, masked = self.products(dk * (fused + for_query + for_key) + dv * (for_value + through))
        recomputed = (SCALE + self.masking + 1) * fused
        per_score = recomputed + (5 - 2 * fused) * through + 2 * self.dropout
        gradients = where_wanted(self.operands, asked)
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

    left, right: how many keys before and after its own place a query sees; None is no limit, and causal is `right=0`, or
    `is_causal`. The first query stands at the first key, or `offset` keys behind it; with `bottom_right`, the last query
    stands at the last key.
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


# Rows before heads: (batch, rows, heads, width), or packed (all rows, heads, width).


def heads_first(x: TensorType) -> TensorType:
    """The same memory with the head axis before the row axis."""
    batch, rows, heads, width = x.shape
    return x.view((batch, heads, rows, width))


def by_head(x: TensorType, heads: Dim) -> TensorType:
    """The operand (batch, rows, heads * width) as (batch, heads, rows, width)."""
    require(x.rank == 3, f"attention takes (batch, rows, hidden), not {x}")
    batch, rows, hidden = x.shape
    require(not differ(mod(hidden, heads), 0), f"{hidden} features do not make {heads} heads")
    return x.view((batch, heads, rows, floor_div(hidden, heads)))


def lengths(offsets: TensorType | None) -> list[Dim] | None:
    """Lengths of the sequences that these offsets delimit; None if the offsets' contents are not known."""
    if offsets is None or not isinstance(offsets.value, tuple):
        return None
    edges = [edge for edge in offsets.value if isinstance(edge, (int, Expr))]
    return [end - start for start, end in pairwise(edges)]


def pack(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    offsets_q: TensorType | None,
    offsets_k: TensorType | None,
    max_k: Dim,
    mask: TensorType | None = None,
    *,
    left: Dim | None = None,
    right: Dim | None = None,
    bottom_right: bool = True,
    dropout_p: float = 0.0,
) -> Attention:
    """The problem of packed operands, without offsets of padded ones; the last row stands at the last key."""
    if offsets_q is None:
        q, k, v = map(heads_first, (query, key, value))
        dense = attend(q, k, v, mask, left=left, right=right, bottom_right=bottom_right, dropout_p=dropout_p)
        return replace(dense, query=query, key=key, value=value)
    rows, heads = query.shape[-3], query.shape[-2]
    lengths_q, lengths_k = lengths(offsets_q), lengths(offsets_k)
    visible, scores = None, heads * rows * max_k
    if lengths_q is not None and lengths_k is not None:
        sequences = list(zip(lengths_q, lengths_k, strict=True))
        scores = heads * total(q * k for q, k in sequences)
        if left is not None or right is not None:
            offsets = ((q, k, k - q if bottom_right else 0) for q, k in sequences)
            pairs = (doubled_pairs(q, k, left=left, right=right, offset=offset) for q, k, offset in offsets)
            visible = heads * total(pairs)
    return Attention(query, key, value, mask, heads * rows, scores, visible, dropout_p > 0)


# The problems of torch's kernels, by the names that the rules give to the operands of a call.

Given = Mapping[str, Any]
OPERANDS = ("query", "key", "value")


def dense(given: Given) -> Attention:
    """The problem with heads before rows, causal from the top left; `enable_gqa=False` forbids sharing key heads."""
    operands: list[Any] = [given.get(name) for name in (*OPERANDS, "mask")]
    return attend(
        *operands,
        dropout_p=given.get("dropout_p") or 0.0,
        is_causal=bool(given.get("is_causal")),
        grouped=bool(given.get("enable_gqa", True)),
    )


def packed(given: Given, **structure: Any) -> Attention:
    """The problem of operands with rows before heads, packed if there are offsets."""
    structure = {"right": 0 if given.get("is_causal") else None, **structure}
    operands: list[Any] = [given.get(name) for name in (*OPERANDS, "offsets_q", "offsets_k", "max_k", "mask")]
    return pack(*operands, dropout_p=given.get("dropout_p") or 0.0, **structure)


def flash(given: Given) -> Attention:
    """Flash attention; a window of -1 or None has no limit."""
    sides = given.get("window_size") or (given.get("left"), given.get("right"))
    left, right = (None if size == -1 else size for size in sides)
    return packed(given, left=left, right=0 if given.get("is_causal") else right)


CAUSAL_BOTTOM_RIGHT = 2  # a `custom_mask_type`; 1 is causal from the top left, 0 none


def efficient(given: Given) -> Attention:
    """Memory-efficient attention; its window counts the row's own place and applies only if the mask is causal."""
    kind, window, longest = given["custom_mask_type"], given.get("window_size"), given.get("max_k")
    return packed(
        {**given, "max_k": given["key"].shape[1] if longest is None else longest},
        left=window - 1 if kind and window else None,
        right=0 if kind else None,
        bottom_right=kind == CAUSAL_BOTTOM_RIGHT,
    )


def cudnn(given: Given) -> Attention:
    """Attention of cuDNN: heads before rows if dense, rows before heads if packed; causal from the top left."""
    return dense(given) if given.get("offsets_q") is None else packed(given, bottom_right=False)
