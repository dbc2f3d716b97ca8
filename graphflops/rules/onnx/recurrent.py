"""Layers that carry a state along the rows: recurrent ones, linear attention, short causal convolutions.

A recurrent layer runs in one or both directions, with stacked gate matrices and peepholes; in onnxruntime it may also have
quantized weights or an attention mechanism. Linear attention is counted row by row, though kernels may compute it in chunks.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from graphflops.cost import Estimate
from graphflops.dims import Dim, differ, dim_max, floor_div, meet, prod
from graphflops.rules import recurrent as shared
from graphflops.rules.attention import by_head
from graphflops.rules.elementwise import WORK, activation_named
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.entries import fused, work
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import MIN_MAX, QUANTIZE
from graphflops.rules.recurrent import Cell, Layer, recur, recur_back, with_gradients
from graphflops.rules.reduce import SOFTMAX
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.tensor import INT8, TensorType

KIND = "recurrent"

OPERANDS = "x w r bias? sequence_lens? initial_h? initial_c? peepholes?"


@rule("com.microsoft.DynamicQuantizeLSTM", product=("x", "w", "r")).takes(
    f"{OPERANDS} w_scale? w_zero_point? r_scale? r_zero_point?"
)
def dynamic_quantize_lstm(of: Operands, **attributes: Any) -> Estimate:
    """An LSTM with integer weights (directions, in, 4 * hidden); inputs and states are quantized at every step."""
    x, w, r, *others = of
    turned = (x.view((x.shape[0], x.shape[2], x.shape[1])) for x in (w, r))
    estimate = lstm(x, *turned, *others[:-4], **attributes)
    quantized = x.numel + prod(x.shape[:2]) * r.shape[0] * r.shape[1]
    vector = (MIN_MAX + QUANTIZE) * quantized
    return estimate.plus(vector_flops=vector, reads=tuple(others[-4:]), matrix_dtype=INT8)


@rule("com.microsoft.AttnLSTM", product=("x", "w", "r")).takes(
    f"{OPERANDS} query_weight? memory_weight? score_weight? memory? memory_lens? narrowing?"
)
def attn_lstm(of: Operands, **attributes: Any) -> Estimate:
    """An LSTM whose input at every step is joined with a context: the previous state's attention to a memory.

    Keys are computed from the memory once. A step computes a query from the state, adds it to every key, takes a tanh and a
    product with a vector for the score, and sums the memory by softmax; a last product may make the context narrower.
    """
    x, *own = (*of,)[:-6]
    joined = x.like((*x.shape[:2], of.w.shape[-1]))  # the context is part of the input
    estimate = lstm(joined, *own, **attributes)
    query, weight, memory, narrowing = of.named("query_weight memory_weight memory narrowing")
    if None not in (query, weight, memory):  # all directions over all steps of (steps, batch, features)
        directions, hidden, width = query.shape
        rows: Dim = directions * x.shape[0] * x.shape[1]
        places, depth = memory.shape[1], memory.shape[2]
        keys = matmul(memory.view((1, *memory.shape)), weight.view((directions, 1, depth, width)))
        products = hidden * width + places * width + places * depth
        products += 0 if narrowing is None else prod(narrowing.shape[1:])
        scores = rows * places
        estimate = estimate.plus(
            matrix_flops=keys.matrix_flops + 2 * rows * products,
            vector_flops=scores * (width + SOFTMAX),
            transcendentals=scores * (width + 1),
        )
    return replace(estimate, reads=(x, *estimate.reads[1:], *(*of,)[-6:]))


PEEPHOLES = 6  # per hidden unit: a product with the cell state and its addition for three gates
CLIP = 2  # per gate: two comparisons
# Index, gate by gate, into the activations named for a direction.
APPLIED = {"RNN": (0,), "GRU": (0, 0, 1), "LSTM": (0, 0, 0, 1, 2)}
CELLS = {"RNN": shared.TANH, "GRU": shared.GRU, "LSTM": shared.LSTM}


def layer(cell: Cell, of: Operands, directions: int, results: int) -> Estimate:
    """All directions over all padded steps of all sequences."""
    x, w, r, bias = of.named("x w r bias")
    rows, hidden = r.shape[1:]
    meet(rows, cell.gates * hidden, f"{rows} rows do not form {cell.gates} gates of {hidden}")
    batch, steps = x.shape[:2] if of.layout else x.shape[1::-1]
    biases = () if bias is None else (bias.like((rows,)),) * 2
    both = [Layer(w.like(w.shape[1:]), r.like(r.shape[1:]), None, biases)] * directions
    held = tuple(state for state in of.named("initial_h initial_c") if state is not None)
    estimate = recur(cell, x, held, both, x)
    every = (batch, steps, directions, hidden) if of.layout else (steps, directions, batch, hidden)
    last = (batch, directions, hidden) if of.layout else (directions, batch, hidden)
    out = (x.like(every), *(x.like(last) for _ in range(results - 1)))
    return estimate.plus(out=out, reads=(of.sequence_lens, of.peepholes))


@backward("onnx.RNN", "onnx.GRU", "onnx.LSTM")
def layer_backward(call: ForwardCall) -> Estimate:
    """Back-propagation through time: each product is repeated once for its input, once for its matrix."""
    x, w, r = call["x"], call["w"], call["r"]
    cell = next(cell for cell in CELLS.values() if not differ(r.shape[1], cell.gates * r.shape[2]))
    one = Layer(w.like(w.shape[1:]), r.like(r.shape[1:]))
    state = x.like((x.shape[0 if call.get("layout") else 1], r.shape[2]))
    groups = {"x": {"x"}, "hx": {"initial_h", "initial_c"}, "params": {"w", "r", "bias", "peepholes"}}
    wants = frozenset(name for name, members in groups.items() if members & call.wants)
    return with_gradients(recur_back(cell, x, state, [one] * r.shape[0], r.shape[0], wants), call)


@takes(f"{OPERANDS}; activations=() clip=None layout=0 direction='forward' hidden_size=None")
def recurrent(of: Operands, *, kind: str, **others: object) -> Estimate:
    """Both matrices of all gates once per row of every step, and the cell's formula."""
    # with the activations of the first direction in place of sigmoids and hyperbolic tangents
    cell, places = CELLS[kind], APPLIED[kind]
    more = PEEPHOLES * (of.peepholes is not None) + CLIP * cell.gates * (of.clip is not None)
    cell = replace(cell, combining=cell.combining + more)
    if of.activations:
        count, needs = len(of.activations), max(places) + 1
        require(count >= needs, f"{count} activations for a cell that has {needs}")
        named = [activation_named(name) for name in of.activations]
        cell = replace(cell, activations=tuple(named[place] for place in places))
    given, _, hidden = of.r.shape
    directions = 2 if of.direction == "bidirectional" else 1
    require(not differ(given, directions), f"{given} directions in a layer that runs {of.direction}")
    fits = of.hidden_size is None or not differ(hidden, of.hidden_size)
    require(fits, f"a state of {hidden}, where hidden_size is {of.hidden_size}")
    return layer(cell, of, directions, 3 if kind == "LSTM" else 2)


for _kind in CELLS:  # a GRU that resets before the product costs the same as one that does after it
    rule(f"onnx.{_kind}", product=("x", "w", "r")).derived(recurrent, kind=_kind)
lstm = partial(recurrent, kind="LSTM")


KIND = "other"


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


@rule("onnx.LinearAttention", "com.microsoft.LinearAttention").takes(
    "query key value past_state? decay? beta?; q_num_heads kv_num_heads state_window=0 update_rule='gated_delta'"
)
def linear_attention(of: Operands) -> Estimate:
    """Per row and key head a product of key and value into the state, and one of each query that shares it with it."""
    q_num_heads, kv_num_heads = of.q_num_heads, of.kv_num_heads
    q, k, v = by_head(of.query, q_num_heads), by_head(of.key, kv_num_heads), by_head(of.value, kv_num_heads)
    (batch, _, rows, width), depth = k.shape, v.shape[-1]
    meet(q.shape[-1], width, f"query and key widths differ: {q.shape[-1]} and {width}")
    for given, numbers in ((of.decay, (kv_num_heads, kv_num_heads * width)), (of.beta, (1, kv_num_heads))):
        fits = given is None or not all(differ(given.shape[-1], number) for number in numbers)
        require(fits, f"{given} for {kv_num_heads} heads of {width}")
    heads = max(q_num_heads, kv_num_heads)
    kept = (of.state_window,) if of.state_window else ()
    state = (of.past_state or of.query).like((*kept, batch, kv_num_heads, width, depth))
    decays = of.decay.numel if of.decay else 0
    part = recurrence(batch * rows, kv_num_heads, width, depth, of.update_rule, decays)
    sharing = batch * rows * (heads - kv_num_heads) * depth
    more = Estimate(matrix_flops=2 * width * sharing, vector_flops=sharing)
    return fused((q.like((batch, rows, heads * depth)), state), part, more, reads=(*of,))


@rule("com.microsoft.GatedDeltaNet").takes(
    "query key? value? cu_seqlens? decay? beta? initial_state? a_log? dt_bias? capture_count? state_update_active?; "
    "update_rule='gated_delta' beta_activation='none' gate_activation='none' qk_l2_norm=0 state_update_capacity=0"
)
def gated_delta_net(of: Operands) -> Estimate:
    """As LinearAttention on packed rows (tokens, heads, width), including its gates and normalisations."""
    decay, begun = of.decay, of.initial_state
    if of.key is not None and of.value is not None:
        (*rows_shape, q_heads, width), (heads, depth) = of.query.shape, of.value.shape[-2:]
    else:
        require(begun is not None, "packed queries, keys and values need a state that tells their sizes")
        (_, heads, depth, width), (*rows_shape, together) = begun.shape, of.query.shape
        q_heads = floor_div(together - heads * depth, 2 * width)
    rows = prod(rows_shape)
    part = recurrence(rows, heads, width, depth, of.update_rule, decay.numel if decay else 0)
    # the softplus of a sum, scaled
    gates = WORK["softplus"].more(2).on(decay.numel if decay and of.gate_activation != "none" else 0)
    rates = WORK["sigmoid"].on(of.beta.numel if of.beta and of.beta_activation != "none" else 0)
    normed = 2 * rows * q_heads * (of.qk_l2_norm != 0)
    norms = work(3 * width * normed, normed)
    sequences = begun.shape[0] if begun is not None else rows_shape[0] if len(rows_shape) > 1 else 1
    if of.cu_seqlens is not None:
        sequences = of.cu_seqlens.shape[0] - 1
    state = (decay or begun or of.query).like((sequences, heads, depth, width))
    captured = of.state_update_capacity * (heads + q_heads * width + heads * depth)
    out = of.query.like((*rows_shape, dim_max(q_heads, heads), depth))
    return fused((out, state, state.like((sequences, captured))), part, gates, rates, norms, reads=(*of,))


def convolved(x: TensorType, weight: TensorType, bias: TensorType | None, activation: str) -> Estimate:
    """A depthwise convolution, a bias, and an activation."""
    after = activation_named(activation).more(bias is not None)
    return replace(after.on(x.numel), matrix_flops=2 * prod(weight.shape[2:]) * x.numel)


@rule("onnx.CausalConvWithState", "com.microsoft.CausalConvWithState", product=("x", "weight")).takes(
    "x weight bias? past_state?; activation='none' channels_last=0 dilation=1 state_window=0"
)
def causal_convolution(of: Operands) -> Estimate:
    """A causal depthwise convolution along the last spatial axis; its last inputs are returned as a state."""
    x, past, length = of.x, of.past_state, (of.weight.shape[-1] - 1) * of.dilation
    held = past and past.shape[1 - x.rank if of.channels_last else -1]
    require(past is None or not differ(held, length), f"a state {past} of {length} steps")
    rest = (x.shape[0], length, *x.shape[2:]) if of.channels_last else (*x.shape[:-1], length)
    state = x.like((*(of.state_window,) * (of.state_window > 0), *rest))
    return fused((x.like(), state), convolved(x, of.weight, of.bias, of.activation), reads=(*of,))


@rule("com.microsoft.VarlenCausalConvWithState", product=("x", "weight")).takes(
    "x weight cumulative_sequence_length bias? initial_state capture_count? kernel_delta? previous_mask?; "
    "activation='none' state_update_capacity=0"
)
def packed_causal_convolution(of: Operands) -> Estimate:
    """As CausalConvWithState on packed rows (tokens, channels)."""
    captured = of.x.like((of.initial_state.shape[0], of.state_update_capacity, of.x.shape[1]))
    results = (of.x.like(), of.initial_state.like(), captured)
    return fused(results, convolved(of.x, of.weight, of.bias, of.activation), reads=(*of,))


@rule("com.microsoft.HyperConnectionPreMix").takes("streams pre_mix")
def hyper_connection_pre_mix(of: Operands, *, num_branches: int = 0, reduction_scale: float = 1) -> Estimate:
    """The streams' weighted sum, scaled."""
    leading, _, hidden = grouped(of.streams, num_branches)
    out = of.streams.like((*leading, hidden))
    vector = 2 * of.streams.numel + (out.numel if reduction_scale != 1 else 0)
    return Estimate((out,), vector_flops=vector, reads=(*of,))


@rule("com.microsoft.HyperConnectionPostMix").takes("streams block post_mix stream_mix?")
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
