"""Recurrent layers: one layer in one or both directions, its gates' matrices stacked, peepholes and all.

Of onnxruntime: an LSTM with quantized weights, one with an attention mechanism.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from graphflops.cost import Estimate
from graphflops.dims import Dim, differ, meet, prod
from graphflops.rules import recurrent as shared
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.entries import work
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import MIN_MAX, QUANTIZE
from graphflops.rules.recurrent import Cell, Layer, recur, recur_back, with_gradients
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.softmax import SOFTMAX
from graphflops.rules.work import activation
from graphflops.tensor import INT8, TensorType

KIND = "recurrent"

OPERANDS = "x w r bias? sequence_lens? initial_h? initial_c? peepholes?"


@rule("com.microsoft.DynamicQuantizeLSTM", product=("x", "w", "r"))
@takes(f"{OPERANDS} w_scale? w_zero_point? r_scale? r_zero_point?")
def dynamic_quantize_lstm(of: Operands, **attributes: Any) -> Estimate:
    """An LSTM with integer weights (directions, in, 4 * hidden); inputs and states are quantized at every step."""
    x, w, r, *others = of
    turned = (x.view((x.shape[0], x.shape[2], x.shape[1])) for x in (w, r))
    estimate = lstm(x, *turned, *others[:-4], **attributes)
    states = prod(x.shape[:2]) * r.shape[0] * r.shape[1]
    return estimate.plus(
        vector_flops=(MIN_MAX + QUANTIZE) * (x.numel + states), reads=tuple(others[-4:]), matrix_dtype=INT8
    )


@rule("com.microsoft.AttnLSTM", product=("x", "w", "r"))
@takes(f"{OPERANDS} query_weight? memory_weight? score_weight? memory? memory_lens? narrowing?")
def attn_lstm(of: Operands, **attributes: Any) -> Estimate:
    """An LSTM whose input at every step is joined with a context: the previous state's attention to a memory.

    Keys are made of the memory once. A step makes a query of the state, adds it to every key, takes a tanh and a
    product with a vector for the score, and sums the memory by softmax; a last product may make the context narrower.
    """
    x, *own = (*of,)[:-6]
    joined = x.like((*x.shape[:2], of.w.shape[-1]))  # the context is a part of the input
    estimate = lstm(joined, *own, **attributes)
    query, keys, memory, narrowing = of.named("query_weight memory_weight memory narrowing")
    part = work(0) if None in (query, keys, memory) else attending(x, query, keys, memory, narrowing)
    return replace(estimate.plus(part), reads=(x, *estimate.reads[1:], *(*of,)[-6:]))


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


PEEPHOLES = 6  # per hidden unit: a product with the cell state and its addition for three gates
CLIP = 2  # per gate: two comparisons
# Index, gate by gate, into the activations named for a direction.
APPLIED = {"RNN": (0,), "GRU": (0, 0, 1), "LSTM": (0, 0, 0, 1, 2)}
CELLS = {"RNN": shared.TANH, "GRU": shared.GRU, "LSTM": shared.LSTM}


def cell_of(kind: str, activations: tuple[str, ...], clip: float | None, peepholes: bool) -> Cell:
    """The cell with the activations of its first direction in place of sigmoids and hyperbolic tangents."""
    cell, applied = CELLS[kind], APPLIED[kind]
    more = (PEEPHOLES if peepholes else 0) + (CLIP * cell.gates if clip is not None else 0)
    cell = replace(cell, combining=cell.combining + more)
    if not activations:
        return cell
    require(
        len(activations) > max(applied),
        f"{len(activations)} activations for a cell that has {max(applied) + 1}",
    )
    named = [activation(name) for name in activations]
    return replace(cell, activations=tuple(named[place] for place in applied))


def layer(cell: Cell, of: Operands, layout: int, results: int) -> Estimate:
    """All directions over all padded steps of all sequences."""
    x, w, r, bias = of.named("x w r bias")
    require(x.rank == 3 and w.rank == 3 and r.rank == 3, f"a recurrent layer of {w} and {r} does not fit {x}")
    directions, rows, hidden = r.shape
    meet(rows, cell.gates * hidden, f"{rows} rows do not form {cell.gates} gates of {hidden}")
    require(
        isinstance(directions, int) and not differ(w.shape[0], directions), f"{directions} directions of {w}"
    )
    assert isinstance(directions, int)
    batch, steps = x.shape[:2] if layout else x.shape[1::-1]
    biases = () if bias is None else (bias.like((rows,)),) * 2
    both = [Layer(w.like(w.shape[1:]), r.like(r.shape[1:]), None, biases)] * directions
    held = tuple(state for state in of.named("initial_h initial_c") if state is not None)
    estimate = recur(cell, x, held, both, x)
    every = (batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden)
    last = (batch, directions, hidden) if layout else (directions, batch, hidden)
    out = (x.like(every), *(x.like(last) for _ in range(results - 1)))
    return estimate.plus(out=out, reads=(of.sequence_lens, of.peepholes))


@backward("onnx.RNN", "onnx.GRU", "onnx.LSTM")
def layer_backward(call: ForwardCall) -> Estimate:
    """Back-propagation through time: each product once for what goes in, once for its matrix."""
    given = call.arguments
    x, r = given["x"], given["r"]
    cell = next(cell for cell in CELLS.values() if not differ(r.shape[1], cell.gates * r.shape[2]))
    one = Layer(given["w"].like(given["w"].shape[1:]), r.like(r.shape[1:]))
    state = x.like((x.shape[0 if given.get("layout") else 1], r.shape[2]))
    groups = {"x": {"x"}, "hx": {"initial_h", "initial_c"}, "params": {"w", "r", "bias", "peepholes"}}
    wants = frozenset(name for name, members in groups.items() if members & call.wants)
    work = recur_back(cell, x, state, [one] * r.shape[0], r.shape[0], wants)
    return with_gradients(work, call)


@takes(OPERANDS)
def recurrent(
    of: Operands,
    *,
    kind: str,
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    layout: int = 0,
    direction: str = "forward",
    hidden_size: int | None = None,
    **others: object,
) -> Estimate:
    """Both matrices of all gates once per row of every step, and the cell's formula."""
    cell = cell_of(kind, activations, clip, of.peepholes is not None)
    # raises ShapeError where the attributes of a layer contradict its matrix of the state
    require(of.r.rank == 3, f"a recurrent layer of {of.r}")
    directions = 2 if direction == "bidirectional" else 1
    require(
        not differ(of.r.shape[0], directions), f"{of.r.shape[0]} directions in a layer that runs {direction}"
    )
    fits = hidden_size is None or not differ(of.r.shape[2], hidden_size)
    require(fits, f"a state of {of.r.shape[2]}, where hidden_size is {hidden_size}")
    return layer(cell, of, layout, 3 if kind == "LSTM" else 2)


for _kind in CELLS:  # a GRU that resets before the product costs the same as one that does after it
    rule(f"onnx.{_kind}", product=("x", "w", "r")).derived(recurrent, kind=_kind)
lstm = partial(recurrent, kind="LSTM")
