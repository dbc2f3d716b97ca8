"""Recurrent cells and layers of single backends, and the gradients that autograd asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.rules.registry import ForwardCall, find_backward
from tests.support import price, shapes, t

# 3 rows, input width 8, hidden width 4.
STATE, LSTM_GATES, GRU_GATES = t(3, 4), t(3, 16), t(3, 12)


@pytest.mark.parametrize("kind, gates", [("rnn_relu", 1), ("rnn_tanh", 1), ("lstm", 4), ("gru", 3)])
def test_quantized_cells_count_like_plain_ones(kind: str, gates: int) -> None:
    weights = (t(4 * gates, 8), t(4 * gates, 4), t(4 * gates), t(4 * gates))
    packed = tuple(t(x.numel, dtype="int8") for x in weights)
    state = (STATE, STATE) if kind == "lstm" else STATE
    quantized = price(
        f"aten.quantized_{kind}_cell.default", t(3, 8), state, *weights, *packed, 1.0, 1.0, 0, 0
    )
    assert quantized.matrix_flops == 2 * 3 * (4 * gates) * (8 + 4)
    assert shapes(quantized) == [(3, 4)] * (2 if kind == "lstm" else 1)


@pytest.mark.parametrize("kind, gates", [("rnn_relu", 1), ("rnn_tanh", 1), ("lstm", 4), ("gru", 3)])
def test_the_gradient_of_a_cell_is_its_products_twice(kind: str, gates: int) -> None:
    arguments: dict[str, Any] = {"x": t(3, 8), "hx": (STATE, STATE) if kind == "lstm" else STATE}
    arguments |= {
        "w_ih": t(4 * gates, 8),
        "w_hh": t(4 * gates, 4),
        "b_ih": t(4 * gates),
        "b_hh": t(4 * gates),
    }
    rule = find_backward(f"aten.{kind}_cell")
    assert rule is not None
    gradients = rule(ForwardCall(price(f"aten.{kind}_cell", **arguments), arguments, frozenset(arguments)))
    assert gradients.matrix_flops == 2 * (2 * 3 * (4 * gates) * (8 + 4))


@pytest.mark.parametrize("kind", ["rnn_relu", "rnn_tanh", "gru", "lstm"])
def test_packed_rows_count_like_a_sequence_of_them(kind: str) -> None:
    gates = {"gru": 3, "lstm": 4}.get(kind, 1)
    state = (t(1, 3, 4), t(1, 3, 4)) if kind == "lstm" else t(1, 3, 4)
    parameters = (t(4 * gates, 8), t(4 * gates, 4))
    arguments = {"data": t(15, 8), "batch_sizes": t(5, dtype="int64"), "hx": state, "params": parameters}
    arguments |= {"has_biases": False, "num_layers": 1, "dropout": 0.0, "train": True, "bidirectional": False}
    packed = price(f"aten.{kind}.data", *arguments.values())
    assert packed.matrix_flops == 2 * 15 * (4 * gates) * (8 + 4)
    assert packed.out[0] == t(15, 4)


def test_gradients_of_the_gates_of_a_step() -> None:
    """A vector of the gates per row; `differentiable` operators compute the gates again from input and hidden ones."""
    fused = price("aten._thnn_fused_lstm_cell_backward.default", STATE, STATE, STATE, STATE, LSTM_GATES, True)
    impl = price(
        "aten._thnn_fused_lstm_cell_backward_impl.default", STATE, STATE, STATE, STATE, LSTM_GATES, True
    )
    assert shapes(impl) == [(3, 16), (3, 4), (16,)]
    assert (impl.vector_flops, impl.transcendentals) == (fused.vector_flops, fused.transcendentals)
    bias = (t(16), t(16))
    forward = price("aten._thnn_fused_lstm_cell.default", LSTM_GATES, LSTM_GATES, STATE, *bias)
    gates = (LSTM_GATES, LSTM_GATES, *bias)
    again = price("aten._thnn_differentiable_lstm_cell_backward.default", STATE, STATE, *gates, STATE, STATE)
    assert shapes(again) == [(3, 16), (3, 16), (3, 4), (16,), (16,)]
    assert again.vector_flops == fused.vector_flops + forward.vector_flops
    assert again.transcendentals == fused.transcendentals + forward.transcendentals


def test_gradients_of_the_gates_of_a_gru() -> None:
    fused = price("aten._thnn_fused_gru_cell_backward.default", STATE, t(3, 20), True)
    bias = (t(12), t(12))
    forward = price("aten._thnn_fused_gru_cell.default", GRU_GATES, GRU_GATES, STATE, *bias)
    gates = (GRU_GATES, GRU_GATES, STATE, *bias)
    again = price("aten._thnn_differentiable_gru_cell_backward.default", STATE, *gates)
    assert shapes(again) == [(3, 12), (3, 12), (3, 4), (12,), (12,)]
    assert again.vector_flops == fused.vector_flops + forward.vector_flops
    assert again.transcendentals == fused.transcendentals + forward.transcendentals


WEIGHTS = (t(16, 8), t(16, 4), t(16), t(16))
LSTM_MODE = 2
STEPS = 2 * 5 * 3 * 16 * (8 + 4)  # 5 steps of 3 rows


def test_an_lstm_by_miopen_returns_its_weights_in_one_buffer() -> None:
    state = t(1, 3, 4)
    sizes = (LSTM_MODE, 4, 1, False, 0.0, True, False, (), None)
    estimate = price("aten.miopen_rnn.default", t(5, 3, 8), WEIGHTS, 4, state, state, *sizes)
    assert estimate.matrix_flops == STEPS
    assert shapes(estimate) == [(5, 3, 4), (1, 3, 4), (1, 3, 4), (0,), (16 * 8 + 16 * 4 + 16 + 16,)]


def test_an_lstm_by_mkldnn_is_differentiated_for_every_operand() -> None:
    made, state = t(5, 3, 4), (STATE, STATE)
    estimate = price(
        *("aten.mkldnn_rnn_layer_backward.default", t(5, 3, 8), *WEIGHTS, *state, made, *state, made, *state),
        *(False, LSTM_MODE, 4, 1, True, True, False, (), False, t(100, dtype="uint8")),
    )
    assert estimate.matrix_flops == 2 * STEPS
    assert shapes(estimate) == [(5, 3, 8), *(weight.shape for weight in WEIGHTS), (3, 4), (3, 4)]
