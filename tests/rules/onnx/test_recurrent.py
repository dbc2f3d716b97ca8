"""Recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import RuleError, ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import INT32, TensorType
from tests.support import price, shapes, t

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, INPUT, HIDDEN = 5, 2, 3, 4


def weights(kind: str, directions: int = 1) -> tuple[TensorType, TensorType]:
    """The two stacks of matrices."""
    rows = GATES[kind] * HIDDEN
    return t(directions, rows, INPUT), t(directions, rows, HIDDEN)


def test_lstm_counts_every_step() -> None:
    for directions, run, flops in ((1, "reverse", 6_553_600), (2, "bidirectional", 13_107_200)):
        weights = t(directions, 256, 64), t(directions, 256, 64)
        estimate = price("onnx.LSTM.14", t(100, 1, 64), *weights, direction=run)
        assert estimate.matrix_flops == directions * 2 * 4 * (64 * 64 + 64 * 64) * 100 == flops


def test_gru_counts_every_step() -> None:
    estimate = price("onnx.GRU.14", t(100, 1, 64), t(1, 192, 64), t(1, 192, 64))
    assert estimate.matrix_flops == 2 * 3 * (64 * 64 + 64 * 64) * 100 == 4_915_200


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions, direction", [(1, "forward"), (1, "reverse"), (2, "bidirectional")])
@pytest.mark.parametrize("layout", [0, 1])
def test_results(kind: str, directions: int, direction: str, layout: int) -> None:
    x = t(BATCH, STEPS, INPUT) if layout else t(STEPS, BATCH, INPUT)
    estimate = price(f"onnx.{kind}.14", x, *weights(kind, directions), direction=direction, layout=layout)
    last = (BATCH, directions, HIDDEN) if layout else (directions, BATCH, HIDDEN)
    every = (BATCH, STEPS, directions, HIDDEN) if layout else (STEPS, directions, BATCH, HIDDEN)
    assert shapes(estimate) == [every, *[last] * (2 if kind == "LSTM" else 1)]
    assert estimate.matrix_flops == 2 * directions * STEPS * BATCH * GATES[kind] * HIDDEN * (INPUT + HIDDEN)


@pytest.mark.parametrize("kind, each, functions", [("RNN", 1, 1), ("GRU", 7, 3), ("LSTM", 8, 5)])
def test_work_of_the_cell(kind: str, each: int, functions: int) -> None:
    x, units = t(STEPS, BATCH, INPUT), STEPS * BATCH * HIDDEN
    plain = price(f"onnx.{kind}.7", x, *weights(kind))
    assert (plain.vector_flops, plain.transcendentals) == (each * units, functions * units)
    biased = price(f"onnx.{kind}.7", x, *weights(kind), t(1, 2 * GATES[kind] * HIDDEN))
    assert biased.vector_flops == (each + 2 * GATES[kind]) * units


def test_optional_operands_and_results() -> None:
    x, state = t(STEPS, BATCH, INPUT), t(1, BATCH, HIDDEN)
    rest = (None, t(BATCH, dtype=INT32), state, state, t(1, 3 * HIDDEN))
    plain = price("onnx.LSTM.7", x, *weights("LSTM"), outputs=(False, True))
    full = price("onnx.LSTM.7", x, *weights("LSTM"), *rest, outputs=(True, False, True))
    assert [value is None for value in plain.out] == [True, False, True]
    assert [value is None for value in full.out] == [False, True, False]
    assert full.vector_flops - plain.vector_flops == 6 * STEPS * BATCH * HIDDEN  # peepholes
    more = 4 * (BATCH + 2 * BATCH * HIDDEN + 3 * HIDDEN)
    assert full.cost.read_bytes - plain.cost.read_bytes == more


@pytest.mark.parametrize(
    "kind, settings, each, functions",
    [
        ("RNN", {"activations": ("Relu",)}, 2, 0),
        ("GRU", {"activations": ("HardSigmoid", "Tanh")}, 7 + 2 * 4, 1),
        ("LSTM", {"activations": ("sigmoid", "TANH", "Softsign")}, 8 + 3, 4),
        ("LSTM", {"clip": 1.0}, 8 + 2 * 4, 5),
    ],
)
def test_other_activations(kind: str, settings: dict[str, Any], each: int, functions: int) -> None:
    estimate = price(f"onnx.{kind}.14", t(STEPS, BATCH, INPUT), *weights(kind), **settings)
    units = STEPS * BATCH * HIDDEN
    assert (estimate.vector_flops, estimate.transcendentals) == (each * units, functions * units)


def test_symbolic_steps_and_batch() -> None:
    steps, batch = symbol("s"), symbol("b")
    given = {"direction": "bidirectional", "outputs": (True,)}
    estimate = price("onnx.LSTM.14", t("s", "b", 64), t(2, 256, 64), t(2, 256, 64), **given)
    assert shapes(estimate) == [(steps, 2, batch, 64)]
    assert estimate.matrix_flops == 2 * 65_536 * steps * batch


def test_what_provably_does_not_fit_is_rejected() -> None:
    w, r = weights("LSTM")
    with pytest.raises(ShapeError, match="features"):
        price("onnx.LSTM.14", t(5, 2, 7), w, r)
    with pytest.raises(ShapeError, match="gates"):
        price("onnx.GRU.14", t(5, 2, 3), w, r)
    with pytest.raises(RuleError, match="unknown activation"):
        price("onnx.RNN.14", t(5, 2, 3), *weights("RNN"), activations=("Sinus",))


def test_backward_through_time_is_each_product_twice() -> None:
    w, r = (replace(matrix, requires_grad=True) for matrix in weights("LSTM"))
    state = t(1, BATCH, HIDDEN, requires_grad=True)
    given = {"x": t(STEPS, BATCH, INPUT, requires_grad=True), "w": w, "r": r, "initial_h": state}
    forward = price("onnx.LSTM.14", **given)
    back = find_backward("onnx.LSTM.14")
    assert back is not None
    estimate = back(ForwardCall(forward, given, frozenset(given)))
    assert shapes(estimate) == [x.shape for x in given.values()]
    assert estimate.matrix_flops == 2 * forward.matrix_flops
