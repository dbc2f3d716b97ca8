"""onnxruntime's position embeddings: rotations of queries and keys, biases by relative position."""

from __future__ import annotations

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim
from graphflops.rules.onnx.entries import size
from graphflops.rules.onnx.fused import fused, work
from graphflops.rules.onnx.microsoft_attention import ROTATE, by_head, rotated
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

BUCKETED = 8  # a distance 1, its magnitude 1, a comparison 1, a ratio 1, a product 1, a sum 1, bounds 2; and a logarithm


def with_tables(
    x: TensorType,
    positions: TensorType,
    cos: TensorType,
    sin: TensorType,
    heads: int,
    width: int,
    places: tuple[Dim, ...],
) -> Estimate:
    """The rotation of `x`, which reads a row of each table per position."""
    by_heads = by_head(x, heads) if x.rank == 3 and heads else x
    rows = cos.like((*places, cos.shape[-1]))
    return fused((x.like(),), rotated(by_heads, width=width), reads=(x, positions, rows, rows))


@rule("com.microsoft.RotaryEmbedding", kind="elementwise")
def rotary_embedding(
    x: TensorType,
    positions: TensorType,
    cos_cache: TensorType,
    sin_cache: TensorType,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Estimate:
    """Two products and a sum per rotated element; a single position is that of the first row."""
    rows = x.shape[-2]
    places = positions.shape if positions.rank == 2 else (rows,)
    return with_tables(x, positions, cos_cache, sin_cache, num_heads, rotary_embedding_dim, places)


@rule("com.microsoft.MRotaryEmbedding", kind="elementwise")
def mrotary_embedding(
    x: TensorType,
    positions: TensorType,
    cos_cache: TensorType,
    sin_cache: TensorType,
    *,
    mrope_section: tuple[int, ...],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Estimate:
    """As RotaryEmbedding with three positions per row, each for a section of the channels."""
    places = positions.shape[1:]
    return with_tables(x, positions, cos_cache, sin_cache, num_heads, rotary_embedding_dim, places)


@rule("com.microsoft.GemmaRotaryEmbedding", kind="elementwise")
def gemma_rotary_embedding(
    angles: TensorType, q: TensorType, q_turned: TensorType, k: TensorType, k_turned: TensorType
) -> Estimate:
    """A sine and a cosine of every angle, converted; two products and a sum per element of queries and keys."""
    converted = 2 * angles.numel if angles.dtype != q.dtype else 0
    vector = converted + ROTATE * (q.numel + k.numel)
    reads = (angles, q, q_turned, k, k_turned)
    return Estimate((q.like(), k.like()), 0, vector, 2 * angles.numel, reads=reads)


@rule("com.microsoft.RelativePositionBias", kind="gather")
def relative_position_bias(
    table: TensorType, query_length: TensorType, key_length: TensorType, *, max_distance: int
) -> Estimate:
    """Computes the bucket of every distance and reads its bias for every pair of positions."""
    lengths = (size(query_length), size(key_length))
    rows, keys = (data_dependent("relative_positions") if length is None else length for length in lengths)
    out = table.like((1, table.shape[1], rows, keys))
    distances = rows + keys - 1
    reads = (table, query_length, key_length)
    return Estimate((out,), vector_flops=BUCKETED * distances, transcendentals=distances, reads=reads)


@rule("com.microsoft.GatedRelativePositionBias", product=("query", "weight"))
def gated_relative_position_bias(
    query: TensorType,
    query_bias: TensorType,
    rel_pos: TensorType,
    weight: TensorType,
    bias: TensorType,
    eco_a: TensorType,
    token_offset: TensorType | None = None,
    *,
    num_heads: int,
) -> Estimate:
    """Queries of every head times a small weight, summed to two gates that scale the bias of every pair."""
    require(weight.rank == 2, f"a weight of {weight} is not a matrix")
    batch, rows = (token_offset or query).shape[:2]
    queries = batch * rows * num_heads
    inner, gates = weight.shape
    out = query.like((batch, num_heads, rows, rel_pos.shape[-1]))
    gated = queries * (2 * gates + 4)  # bias and sum of either half, then u * (r * a - 1) + 2
    product = Estimate(matrix_flops=2 * queries * inner * gates)
    parts = (product, work(query.numel + gated + out.numel, 2 * queries))
    reads = (query, query_bias, rel_pos, weight, bias, eco_a, token_offset)
    return fused((out,), *parts, reads=reads)
