"""Recurrent layers as operators of particular libraries: fused gates, cuDNN, MIOpen, oneDNN, quantized cells."""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate, free
from graphflops.dims import Dim, total
from graphflops.rules.matmul import Mask
from graphflops.rules.operands import Operands, takes
from graphflops.rules.recurrent import GRU, KINDS, LSTM, Cell, Layer, layers_of, recur, recur_back
from graphflops.rules.registry import Derived, require, rule
from graphflops.rules.shapes import Tensors, tensors_of, where_wanted
from graphflops.tensor import FLOAT32, UINT8, TensorType

KIND = "recurrent"

MODES = tuple(KINDS.values())  # in the order of the libraries' numbers
GRU_SAVED = 5  # values per hidden unit that the fused GRU keeps for its backward pass
NOTHING = TensorType((0,), UINT8)


# Gates after the matrix products, fused into one kernel.


def gates(cell: Cell, state: TensorType, bias: TensorType | None) -> Estimate:
    """Vector work of one step's gates."""
    biased = 2 * cell.gates if bias else 0
    return Estimate((), 0, state.numel * (cell.vector + biased), state.numel * cell.transcendentals)


def gates_back(cell: Cell, state: TensorType, has_bias: bool) -> Estimate:
    """Vector work of one step's gates backward, and the sum that is both biases' gradient."""
    per_unit = cell.vector_back + (cell.gates if has_bias else 0)
    return Estimate((), 0, state.numel * per_unit, state.numel * cell.transcendentals_back)


@takes("input_gates hidden_gates state input_bias? hidden_bias?")
def fused_cell(of: Operands, *, cell: Cell) -> Estimate:
    """A step after both matrix products; gates, or values of the GRU, are kept for the backward pass."""
    state = of.state
    kept = state.like((*state.shape[:-1], GRU_SAVED * state.shape[-1]))
    results = (state.like(), kept) if cell is GRU else (state.like(), state.like(), of.input_gates.like())
    return replace(gates(cell, state, of.input_bias), out=results, reads=(*of,))


for _name, _cell in (("lstm", LSTM), ("gru", GRU)):
    rule(f"aten._thnn_fused_{_name}_cell", kind="elementwise").derived(fused_cell, cell=_cell)


@rule("aten._thnn_fused_lstm_cell_backward_impl", kind="elementwise")
@takes("grad_hy? grad_cy? cx cy workspace")
def fused_lstm_cell_backward_impl(of: Operands, *, has_bias: bool) -> Estimate:
    """Gradients of the gates, the cell state and the bias."""
    gate = of.workspace.like()
    bias = gate.like(gate.shape[-1:]) if has_bias else None
    return replace(gates_back(LSTM, of.cx, has_bias), out=(gate, of.cx.like(), bias), reads=(*of,))


def with_shared_gradients(grads: Estimate) -> Estimate:
    """As the `_impl` operator; both products share one gradient, and both biases share another."""
    gate, state, bias = grads.out
    return replace(grads, out=(gate, gate, state, bias, bias), writes=tensors_of(grads.out))


fused_lstm_cell_backward = Derived(fused_lstm_cell_backward_impl, with_shared_gradients)
rule("aten._thnn_fused_lstm_cell_backward")(fused_lstm_cell_backward)


@rule("aten._thnn_fused_gru_cell_backward", kind="elementwise")
def fused_gru_cell_backward(grad_hy: TensorType, workspace: TensorType, has_bias: bool) -> Estimate:
    """Gradients of both products' gates, the state and the biases."""
    *rows, hidden = grad_hy.shape
    gate = grad_hy.like((*rows, GRU.gates * hidden))
    bias = grad_hy.like((GRU.gates * hidden,)) if has_bias else None
    work = gates_back(GRU, grad_hy, has_bias)
    return replace(work, out=(gate, gate, grad_hy.like(), bias, bias), reads=(grad_hy, workspace))


@rule("aten._thnn_differentiable_lstm_cell_backward", kind="elementwise")
@takes("grad_hy? grad_cy? input_gates hidden_gates input_bias? hidden_bias? cx cy")
def differentiable_lstm_cell_backward(of: Operands) -> Estimate:
    """As the fused one, with the gates computed again."""
    own = of.named("grad_hy grad_cy cx cy input_gates")
    grads = fused_lstm_cell_backward(*own, has_bias=of.input_bias is not None)
    more = of.named("hidden_gates input_bias hidden_bias")
    return grads.plus(gates(LSTM, of.cx, of.input_bias), reads=more)


@rule("aten._thnn_differentiable_gru_cell_backward", kind="elementwise")
@takes("grad_hy input_gates hidden_gates hx input_bias? hidden_bias?")
def differentiable_gru_cell_backward(of: Operands) -> Estimate:
    """As the fused one, with the gates computed again."""
    grads = fused_gru_cell_backward(of.grad_hy, of.input_gates, of.input_bias is not None)
    return grads.plus(gates(GRU, of.hx, of.input_bias), reads=of.but("grad_hy input_gates"))


def cut(weights: Tensors, each: int) -> list[Layer]:
    """Layers from a list of `each` weights per layer and direction; an odd number includes a projection."""
    require(each in (2, 3, 4, 5), f"a layer cannot have {each} weights")
    return layers_of(weights, len(weights) // each, has_biases=each > 3)


@rule("aten._cudnn_rnn")
def cudnn_rnn(
    x: TensorType,
    weight: Tensors,
    weight_stride0: int,
    *,
    weight_buf: TensorType | None,
    hx: TensorType,
    cx: TensorType | None,
    mode: int,
    bidirectional: bool,
    in_one_buffer: bool = False,
) -> Estimate:
    """As the layer of that mode; the size of cuDNN's reserved memory is not known."""
    if in_one_buffer:
        weight_buf = x.like((total(value.numel for value in weight),))
    out = x.like((*x.shape[:-1], (2 if bidirectional else 1) * hx.shape[-1]))
    states = (hx,) if cx is None else (hx, cx)
    estimate = recur(MODES[mode], x, states, cut(weight, weight_stride0), out)
    cell_state = TensorType((0,), FLOAT32) if cx is None else cx.like()
    results = (out, hx.like(), cell_state, NOTHING, weight_buf)
    return replace(estimate, out=results, writes=(out, *states))


rule("aten.miopen_rnn").derived(
    cudnn_rnn,
    says="As _cudnn_rnn, with the weights also returned in one buffer.",
    weight_buf=None,
    in_one_buffer=True,
)


@rule("aten._cudnn_rnn_backward")
@takes("x * hx cx? output grad_output? grad_hy? grad_cy? weight_buf reserve")
def cudnn_rnn_backward(
    of: Operands, *, weight: Tensors, weight_stride0: int, mode: int, bidirectional: bool, output_mask: Mask
) -> Estimate:
    """Back-propagation through time, for the operands in the mask: input, both states, weights."""
    layers = cut(weight, weight_stride0)
    names = zip(("x", "hx", "cx", "params"), output_mask, strict=True)
    wants = frozenset(name for name, wanted in names if wanted)
    work = recur_back(MODES[mode], of.x, of.hx, layers, 2 if bidirectional else 1, wants)
    single = where_wanted((of.x, of.hx, of.cx), output_mask[:3])
    weights = (value.like() for value in weight if output_mask[3])
    return replace(work, out=(*single, *weights), reads=(*of,))


@rule("aten._cudnn_rnn_flatten_weight", kind="movement")
def cudnn_rnn_flatten_weight(weights: Tensors) -> Estimate:
    """A copy of all weights into one buffer."""
    return Estimate((weights[0].like((total(value.numel for value in weights),)),), reads=weights)


@rule("aten._use_cudnn_rnn_flatten_weight", kind="query")
def use_cudnn_rnn_flatten_weight() -> Estimate:
    """Free: a query of the library."""
    return free(False, alias=False)


@rule("aten.mkldnn_rnn_layer")
@takes("x weight0 weight1 weight2 weight3 hx_ cx_")
def mkldnn_rnn_layer(of: Operands, *, mode: int, hidden_size: Dim, has_biases: bool) -> Estimate:
    """One direction of one layer."""
    x, w_ih, w_hh, b_ih, b_hh, *states = of
    layer = Layer(w_ih, w_hh, None, (b_ih, b_hh) if has_biases else ())
    estimate = recur(MODES[mode], x, tuple(states), [layer], x.like((*x.shape[:-1], hidden_size)))
    return replace(estimate, out=(*estimate.out, NOTHING))


@rule("aten.mkldnn_rnn_layer_backward")
@takes(
    "x weight1 weight2 weight3 weight4 hx_ cx_tmp output hy_ cy_ grad_output? grad_hy? grad_cy? * workspace"
)
def mkldnn_rnn_layer_backward(of: Operands, *, mode: int, has_biases: bool) -> Estimate:
    """Back-propagation through time for all operands."""
    layer = Layer(of.weight1, of.weight2, None, (of.weight3, of.weight4) if has_biases else ())
    work = recur_back(MODES[mode], of.x, of.hx_, [layer], 1, frozenset(("x", "hx", "params")))
    operands = of.named("x weight1 weight2 weight3 weight4 hx_ cx_tmp")
    return replace(work, out=tuple(value.like() for value in operands), reads=(*of,))
