"""onnxruntime's linear attention, short causal convolutions, and the gates that go with them.

A recurrence is counted row by row, also where a kernel computes it in chunks.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_max, floor_div, prod
from graphflops.rules.norm import MEAN_SQUARE, NORMALISE
from graphflops.rules.onnx.fused import Outputs, applied, chosen, fused, work
from graphflops.rules.onnx.microsoft_attention import by_head
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
def linear_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    past_state: TensorType | None = None,
    decay: TensorType | None = None,
    beta: TensorType | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    state_window: int = 0,
    update_rule: str = "gated_delta",
    outputs: Outputs = (True,),
) -> Estimate:
    """One state per key head, for every row or the last few; several query heads may share a state."""
    q, k, v = by_head(query, q_num_heads), by_head(key, kv_num_heads), by_head(value, kv_num_heads)
    (batch, _, rows, width), depth = k.shape, v.shape[-1]
    heads = max(q_num_heads, kv_num_heads)
    more_reading = 2 * batch * rows * (heads - kv_num_heads) * width * depth
    kept = (state_window,) if state_window else ()
    state = (past_state or query).like((*kept, batch, kv_num_heads, width, depth))
    part = recurrence(batch * rows, kv_num_heads, width, depth, update_rule, decay.numel if decay else 0)
    out = q.like((batch, rows, heads * depth))
    reads = (query, key, value, past_state, decay, beta)
    return fused(chosen(outputs, out, state), part, Estimate(matrix_flops=more_reading), reads=reads)


@rule("com.microsoft.GatedDeltaNet")
def gated_delta_net(
    query: TensorType,
    key: TensorType | None = None,
    value: TensorType | None = None,
    cu_seqlens: TensorType | None = None,
    decay: TensorType | None = None,
    beta: TensorType | None = None,
    initial_state: TensorType | None = None,
    *more: TensorType | None,
    update_rule: str = "gated_delta",
    beta_activation: str = "none",
    gate_activation: str = "none",
    qk_l2_norm: int = 0,
    state_update_capacity: int = 0,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """As LinearAttention on packed rows (tokens, heads, width), including its gates and normalisations."""
    rows_shape, q_heads, width, heads, depth = delta_sizes(query, key, value, initial_state)
    rows = prod(rows_shape)
    part = recurrence(rows, heads, width, depth, update_rule, decay.numel if decay else 0)
    gates = activated("softplus", 2, decay if gate_activation != "none" else None)  # of a sum, and scaled
    rates = activated("sigmoid", 0, beta if beta_activation != "none" else None)
    normed = 2 * rows * q_heads * (qk_l2_norm != 0)
    norms = work(3 * width * normed, normed)
    sequences = (
        initial_state.shape[0] if initial_state is not None else rows_shape[0] if len(rows_shape) > 1 else 1
    )
    if cu_seqlens is not None:
        sequences = cu_seqlens.shape[0] - 1
    state = (decay or initial_state or query).like((sequences, heads, depth, width))
    captured = state_update_capacity * (heads + q_heads * width + heads * depth)
    out = query.like((*rows_shape, dim_max(q_heads, heads), depth))
    results = chosen(outputs, out, state, state.like((sequences, captured)))
    reads = (query, key, value, cu_seqlens, decay, beta, initial_state, *more)
    return fused(results, part, gates, rates, norms, reads=reads)


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
def causal_convolution(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None = None,
    past_state: TensorType | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    state_window: int = 0,
    outputs: Outputs = (True, True),
) -> Estimate:
    """A causal depthwise convolution along the last spatial axis; its last inputs are returned as a state."""
    length = (weight.shape[-1] - 1) * dilation
    rest = (x.shape[0], length, *x.shape[2:]) if channels_last else (*x.shape[:-1], length)
    state = x.like((*(state_window,) * (state_window > 0), *rest))
    part = convolved(x, weight, bias, activation)
    return fused(chosen(outputs, x.like(), state), part, reads=(x, weight, bias, past_state))


@rule("com.microsoft.VarlenCausalConvWithState", product=("x", "weight"))
def packed_causal_convolution(
    x: TensorType,
    weight: TensorType,
    cumulative_sequence_length: TensorType,
    bias: TensorType | None,
    initial_state: TensorType,
    capture_count: TensorType | None = None,
    *,
    activation: str = "none",
    state_update_capacity: int = 0,
    outputs: Outputs = (True, True),
) -> Estimate:
    """As CausalConvWithState on packed rows (tokens, channels)."""
    captured = x.like((initial_state.shape[0], state_update_capacity, x.shape[1]))
    results = chosen(outputs, x.like(), initial_state.like(), captured)
    reads = (x, weight, cumulative_sequence_length, bias, initial_state, capture_count)
    return fused(results, convolved(x, weight, bias, activation), reads=reads)


@rule("com.microsoft.EngramGate")
def engram_gate(
    key: TensorType,
    query: TensorType,
    value: TensorType,
    key_scale: TensorType,
    query_scale: TensorType,
    value_scale: TensorType | None = None,
    *,
    outputs: Outputs = (True,),
) -> Estimate:
    """Root mean square norms of keys and queries, a dot product, a gate made of its root, and the gated value."""
    rows = prod(key.shape[:-1])
    normed = value_scale is not None
    vector = key.numel * (2 * NORMED + 2 + 1 + NORMED * normed) + 4 * rows
    out = key.like()
    return Estimate(
        chosen(outputs, out, out),
        vector_flops=vector,
        transcendentals=rows * (4 + normed),  # two roots, the dot product's root, a sigmoid
        reads=(key, query, value, key_scale, query_scale, value_scale),
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
def hyper_connection_post_mix(
    streams: TensorType,
    block: TensorType,
    post_mix: TensorType,
    stream_mix: TensorType | None = None,
    *,
    num_branches: int = 0,
) -> Estimate:
    """Mixes the streams by a small matrix and adds a weighted block result to each."""
    _, branches, _ = grouped(streams, num_branches)
    mixed = 2 * branches * streams.numel if stream_mix is not None else 0
    reads = (streams, block, post_mix, stream_mix)
    return Estimate((streams.like(),), mixed, vector_flops=2 * streams.numel, reads=reads)


def grouped(streams: TensorType, branches: int) -> tuple[tuple[Dim, ...], Dim, Dim]:
    """Leading axes, branches and features of streams (..., branches, features), or of flattened ones."""
    if branches:
        return streams.shape[:-1], branches, floor_div(streams.shape[-1], branches)
    return streams.shape[:-2], streams.shape[-2], streams.shape[-1]
