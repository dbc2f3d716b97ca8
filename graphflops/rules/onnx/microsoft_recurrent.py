"""onnxruntime's recurrent layers: an LSTM with quantized weights, one with an attention mechanism."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, prod
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.fused import Outputs, work
from graphflops.rules.onnx.recurrent import lstm
from graphflops.rules.quantized import MIN_MAX, QUANTIZE
from graphflops.rules.registry import rule
from graphflops.rules.softmax import SOFTMAX
from graphflops.tensor import INT8, TensorType

KIND = "recurrent"

OPERANDS = 5  # operands of an LSTM after its weights: bias, lengths, two states, peepholes


@rule("com.microsoft.DynamicQuantizeLSTM", product=("x", "w", "r"))
def dynamic_quantize_lstm(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    *operands: TensorType | None,
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    outputs: Outputs = (),
    **others: object,
) -> Estimate:
    """An LSTM with integer weights (directions, in, 4 * hidden); inputs and states are quantized at every step."""
    turned_w, turned_r = (x.view((x.shape[0], x.shape[2], x.shape[1])) for x in (w, r))
    given, scales = operands[:OPERANDS], operands[OPERANDS:]
    estimate = lstm(x, turned_w, turned_r, *given, activations=activations, clip=clip, outputs=outputs)
    states = prod(x.shape[:2]) * r.shape[0] * r.shape[1]
    return replace(
        estimate,
        vector_flops=estimate.vector_flops + (MIN_MAX + QUANTIZE) * (x.numel + states),
        reads=(*estimate.reads, *scales),
        matrix_dtype=INT8,
    )


@rule("com.microsoft.AttnLSTM", product=("x", "w", "r"))
def attn_lstm(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    *operands: TensorType | None,
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    outputs: Outputs = (),
    **others: object,
) -> Estimate:
    """An LSTM whose input at every step is joined with a context: the previous state's attention to a memory.

    Keys are made of the memory once. A step makes a query of the state, adds it to every key, takes a tanh and a
    product with a vector for the score, and sums the memory by softmax; a last product may make the context narrower.
    """
    joined = x.like((*x.shape[:2], w.shape[-1]))  # the context is a part of the input
    given, attention = operands[:OPERANDS], operands[OPERANDS:]
    estimate = lstm(joined, w, r, *given, activations=activations, clip=clip, outputs=outputs)
    query_weight, memory_weight, _, memory, _, attention_weight = (*attention, *(None,) * 6)[:6]
    part = work(0)
    if query_weight is not None and memory_weight is not None and memory is not None:
        part = attending(x, query_weight, memory_weight, memory, attention_weight)
    return replace(
        estimate,
        matrix_flops=estimate.matrix_flops + part.matrix_flops,
        vector_flops=estimate.vector_flops + part.vector_flops,
        transcendentals=estimate.transcendentals + part.transcendentals,
        reads=(x, *estimate.reads[1:], *attention),
    )


def attending(
    x: TensorType, query: TensorType, memory_weight: TensorType, memory: TensorType, narrow: TensorType | None
) -> Estimate:
    """The attention of all directions over all steps of (steps, batch, features)."""
    directions, hidden, width = query.shape
    rows: Dim = directions * x.shape[0] * x.shape[1]
    places, depth = memory.shape[1], memory.shape[2]
    keys = matmul(memory.view((1, *memory.shape)), memory_weight.view((directions, 1, depth, width)))
    products = hidden * width + places * width + places * depth
    if narrow is not None:
        products += prod(narrow.shape[1:])
    scores = rows * places
    return Estimate(
        matrix_flops=keys.matrix_flops + 2 * rows * products,
        vector_flops=scores * (width + SOFTMAX),
        transcendentals=scores * (width + 1),
    )
