"""onnxruntime's linear attention, short causal convolutions, and the gates that go with them.

A recurrence is counted row by row, also where a kernel computes it in chunks.
"""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_max, floor_div, prod
from graphflops.rules.norm import MEAN_SQUARE, NORMALISE
from graphflops.rules.onnx.entries import applied, fused, work
from graphflops.rules.onnx.microsoft_attention import by_head
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.rules.work import WORK
from graphflops.rules.work import activation as activation_named
from graphflops.tensor import TensorType

NORMED = MEAN_SQUARE + NORMALISE + 1


def recurrence(rows: Dim, heads: Dim, width: Dim, depth: Dim, update_rule: str, decays: Dim) -> Estimate:
    """Recurrences over states (width, depth): per row a product into the state, one out of it, and the update rule.

    A decay costs an exponential, and a product per element of the state. A delta rule subtracts what the state holds
    for the key: one more product, a difference and a scaling of the value. The result is scaled.
    """
    delta, gated = "delta" in update_rule, "gated" in update_rule
    state = rows * heads * width * depth
    vector = (state if gated else 0) + rows * heads * depth * (3 if delta else 1)
    return Estimate(
        matrix_flops=2 * state * (3 if delta else 2),
        vector_flops=vector,
        transcendentals=decays if gated else 0,
    )


@rule("com.microsoft.LinearAttention")
@takes("query key value past_state? decay? beta?")
def linear_attention(
    of: Operands,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> Estimate:
    """One state per key head, for every row or the last few; several query heads may share a state."""
    q, k, v = by_head(of.query, q_num_heads), by_head(of.key, kv_num_heads), by_head(of.value, kv_num_heads)
    (batch, _, rows, width), depth = k.shape, v.shape[-1]
    heads = max(q_num_heads, kv_num_heads)
    more_reading = 2 * batch * rows * (heads - kv_num_heads) * width * depth
    kept = (state_window,) if state_window else ()
    state = (of.past_state or of.query).like((*kept, batch, kv_num_heads, width, depth))
    decays = of.decay.numel if of.decay else 0
    part = recurrence(batch * rows, kv_num_heads, width, depth, update_rule, decays)
    out = q.like((batch, rows, heads * depth))
    return fused((out, state), part, Estimate(matrix_flops=more_reading), reads=(*of,))


@rule("com.microsoft.GatedDeltaNet")
@takes(
    "query key? value? cu_seqlens? decay? beta? initial_state? a_log? dt_bias? capture_count? state_update_active?"
)
def gated_delta_net(
    of: Operands,
    *,
    update_rule: str = "gated_delta",
    beta_activation: str = "none",
    gate_activation: str = "none",
    qk_l2_norm: int = 0,
    state_update_capacity: int = 0,
) -> Estimate:
    """As LinearAttention on packed rows (tokens, heads, width), including its gates and normalisations."""
    decay, begun = of.decay, of.initial_state
    rows_shape, q_heads, width, heads, depth = delta_sizes(of.query, of.key, of.value, begun)
    rows = prod(rows_shape)
    part = recurrence(rows, heads, width, depth, update_rule, decay.numel if decay else 0)
    gates = activated("softplus", 2, decay if gate_activation != "none" else None)  # of a sum, and scaled
    rates = activated("sigmoid", 0, of.beta if beta_activation != "none" else None)
    normed = 2 * rows * q_heads * (qk_l2_norm != 0)
    norms = work(3 * width * normed, normed)
    sequences = begun.shape[0] if begun is not None else rows_shape[0] if len(rows_shape) > 1 else 1
    if of.cu_seqlens is not None:
        sequences = of.cu_seqlens.shape[0] - 1
    state = (decay or begun or of.query).like((sequences, heads, depth, width))
    captured = state_update_capacity * (heads + q_heads * width + heads * depth)
    out = of.query.like((*rows_shape, dim_max(q_heads, heads), depth))
    results = (out, state, state.like((sequences, captured)))
    return fused(results, part, gates, rates, norms, reads=(*of,))


def activated(name: str, more: int, x: TensorType | None) -> Estimate:
    """A function of every element of a tensor that may be missing, with `more` operations on each."""
    return work(0) if x is None else applied(WORK[name].more(more), x)


def delta_sizes(
    query: TensorType, key: TensorType | None, value: TensorType | None, state: TensorType | None
) -> tuple[tuple[Dim, ...], Dim, Dim, Dim, Dim]:
    """Row axes, query heads, their width, value heads, their width; for packed operands from the state's shape."""
    if key is not None and value is not None:
        return query.shape[:-2], query.shape[-2], query.shape[-1], value.shape[-2], value.shape[-1]
    require(state is not None, "packed queries, keys and values need a state that tells their sizes")
    assert state is not None
    _, heads, depth, width = state.shape
    q_heads = floor_div(query.shape[-1] - heads * depth, 2 * width)
    return query.shape[:-1], q_heads, width, heads, depth


def convolved(x: TensorType, weight: TensorType, bias: TensorType | None, activation: str) -> Estimate:
    """A depthwise convolution, a bias, and an activation."""
    after = activation_named(activation).more(bias is not None)
    return replace(applied(after, x), matrix_flops=2 * prod(weight.shape[2:]) * x.numel)


@rule("com.microsoft.CausalConvWithState", product=("x", "weight"))
@takes("x weight bias? past_state?")
def causal_convolution(
    of: Operands,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    state_window: int = 0,
) -> Estimate:
    """A causal depthwise convolution along the last spatial axis; its last inputs are returned as a state."""
    x, length = of.x, (of.weight.shape[-1] - 1) * dilation
    rest = (x.shape[0], length, *x.shape[2:]) if channels_last else (*x.shape[:-1], length)
    state = x.like((*(state_window,) * (state_window > 0), *rest))
    return fused((x.like(), state), convolved(x, of.weight, of.bias, activation), reads=(*of,))


@rule("com.microsoft.VarlenCausalConvWithState", product=("x", "weight"))
@takes("x weight cumulative_sequence_length bias? initial_state capture_count? kernel_delta? previous_mask?")
def packed_causal_convolution(
    of: Operands, *, activation: str = "none", state_update_capacity: int = 0
) -> Estimate:
    """As CausalConvWithState on packed rows (tokens, channels)."""
    captured = of.x.like((of.initial_state.shape[0], state_update_capacity, of.x.shape[1]))
    results = (of.x.like(), of.initial_state.like(), captured)
    return fused(results, convolved(of.x, of.weight, of.bias, activation), reads=(*of,))


@rule("com.microsoft.EngramGate")
@takes("key query value key_scale query_scale value_scale?")
def engram_gate(of: Operands) -> Estimate:
    """Root mean square norms of keys and queries, a dot product, a gate made of its root, and the gated value."""
    rows = prod(of.key.shape[:-1])
    normed = of.value_scale is not None
    vector = of.key.numel * (2 * NORMED + 2 + 1 + NORMED * normed) + 4 * rows
    out = of.key.like()
    return Estimate(
        (out, out),
        vector_flops=vector,
        transcendentals=rows * (4 + normed),  # two roots, the dot product's root, a sigmoid
        reads=(*of,),
    )


@rule("com.microsoft.HyperConnectionPreMix")
def hyper_connection_pre_mix(
    streams: TensorType, pre_mix: TensorType, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Estimate:
    """The streams' weighted sum, scaled."""
    leading, _, hidden = grouped(streams, num_branches)
    out = streams.like((*leading, hidden))
    vector = 2 * streams.numel + (out.numel if reduction_scale != 1 else 0)
    return Estimate((out,), vector_flops=vector, reads=(streams, pre_mix))


@rule("com.microsoft.HyperConnectionPostMix")
@takes("streams block post_mix stream_mix?")
def hyper_connection_post_mix(of: Operands, *, num_branches: int = 0) -> Estimate:
    """Mixes the streams by a small matrix and adds a weighted block result to each."""
    _, branches, _ = grouped(of.streams, num_branches)
    mixed = 2 * branches * of.streams.numel if of.stream_mix is not None else 0
    return Estimate((of.streams.like(),), mixed, vector_flops=2 * of.streams.numel, reads=(*of,))


def grouped(streams: TensorType, branches: int) -> tuple[tuple[Dim, ...], Dim, Dim]:
    """Leading axes, branches and features of streams (..., branches, features), or of flattened ones."""
    if branches:
        return streams.shape[:-1], branches, floor_div(streams.shape[-1], branches)
    return streams.shape[:-2], streams.shape[-2], streams.shape[-1]
