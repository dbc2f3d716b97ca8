"""Recurrent layers and cells: their sizes as the operands tell them, and the bytes that cuDNN needs, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.kernel import Recurrence
from graphflops.kernels.products import Recurrent, recurrent, recurrent_backward, reserve_bytes
from graphflops.tensor import TensorType
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made, one_call

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 10, 8
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1}


def layers(
    name: str,
    x: TensorType,
    count: int = 1,
    *,
    both: bool = False,
    batch_first: bool = False,
    training: bool = True,
    dtype: str = "float32",
    hidden: int = HIDDEN,
) -> tuple[Any, ...]:
    """A stack of layers with biases."""
    directions, wide = 1 + both, GATES[name] * hidden
    state = g(count * directions, x.shape[0 if batch_first else 1], hidden, dtype=dtype)
    weights = [
        g(wide, *width, dtype=dtype)
        for layer in range(count)
        for _ in range(directions)
        for width in ((hidden * directions if layer else INPUTS,), (hidden,), (), ())
    ]
    states = (state, state) if name == "lstm" else state
    return f"aten.{name}.input", x, states, tuple(weights), True, count, 0.0, training, both, batch_first


def outputs(name: str) -> int:
    return 3 if name == "lstm" else 2


@pytest.mark.parametrize(("count", "both"), [(1, False), (2, False), (1, True), (3, True)])
@pytest.mark.parametrize("name", GATES)
def test_sizes_of_layers(name: str, count: int, both: bool) -> None:
    given = layers(name, g(STEPS, BATCH, INPUTS), count, both=both)
    sizes = Recurrence(STEPS, BATCH, INPUTS, HIDDEN, GATES[name], count, 1 + both)
    (kernel,) = forward(*given, outputs=outputs(name))
    assert (kernel.family, kernel.sizes, kernel.vector_flops) == ("recurrence", sizes, 0)
    # a product of operand and state with each gate's weights, in each step, of each layer and direction
    first, further = INPUTS + HIDDEN, HIDDEN * (1 + both) + HIDDEN
    widths = (1 + both) * (first + (count - 1) * further)
    assert kernel.flops == 2 * STEPS * BATCH * GATES[name] * HIDDEN * widths
    (back,) = backward(*given, outputs=outputs(name))
    assert (back.flops, back.vector_flops) == (2 * kernel.flops, 0)
    assert back.sizes == Recurrence(
        STEPS, BATCH, INPUTS, HIDDEN, GATES[name], count, 1 + both, phase="backward"
    )


def test_sequences_with_the_batch_first_are_turned() -> None:
    given = layers("lstm", g(BATCH, STEPS, INPUTS), batch_first=True)
    turned, kernel = forward(*given, outputs=3)
    size = 4 * STEPS * BATCH * INPUTS
    assert (turned.family, turned.variant, turned.read_bytes, turned.written_bytes) == (
        *("copy", "strided"),
        *(size, size),
    )
    assert kernel.sizes == Recurrence(STEPS, BATCH, INPUTS, HIDDEN, 4)
    (back,) = backward(*given, outputs=3)
    assert back.sizes == Recurrence(STEPS, BATCH, INPUTS, HIDDEN, 4, phase="backward")


def test_a_batch_of_one_has_nothing_to_turn() -> None:
    """One sequence lies alike either way, so its copy computes no addresses; the steps are counted as they are."""
    turned, kernel = forward(*layers("gru", g(1, STEPS, INPUTS), batch_first=True), outputs=2)
    assert (turned.family, turned.variant) == ("copy", "memcpy")
    assert kernel.sizes == Recurrence(STEPS, 1, INPUTS, HIDDEN, 3)


def test_packed_sequences_are_rows_of_all_steps() -> None:
    """Without padding: which rows are of which step is data."""
    states = (g(1, BATCH, HIDDEN),) * 2
    weights = tuple(g(4 * HIDDEN, *width) for width in ((INPUTS,), (HIDDEN,), (), ()))
    lengths = t(STEPS, dtype="int64")
    (kernel,) = forward(
        "aten.lstm.data", g(12, INPUTS), lengths, states, weights, True, 1, 0.0, True, False, outputs=3
    )
    assert kernel.sizes == Recurrence(12, 1, INPUTS, HIDDEN, 4)


def test_a_cell_takes_one_step_of_a_batch() -> None:
    """Of each row a product of the operand, one of the state, and a kernel that reads both and writes the state."""
    given = (g(BATCH, INPUTS), g(BATCH, HIDDEN), *(g(24, *w) for w in ((INPUTS,), (HIDDEN,), (), ())))
    first, second, gates = forward("aten.gru_cell.default", *given)
    assert (first.flops, second.flops) == (2 * BATCH * 24 * INPUTS, 2 * BATCH * 24 * HIDDEN)
    assert [kernel.vector_flops for kernel in (first, second, gates)] == [0, 0, 3 * BATCH * 24]
    back = backward("aten.gru_cell.default", *given)
    assert [kernel.vector_flops for kernel in back] == [3 * BATCH * 24, BATCH * 24, BATCH * 24, 0, 0, 0, 0]
    halves = [TensorType(x.shape, t(1, dtype="bfloat16").dtype, requires_grad=True) for x in given]
    *_, gates = forward("aten.gru_cell.default", *halves)
    assert (gates.read_bytes, gates.written_bytes) == (2 * 2 * BATCH * 24, 2 * BATCH * HIDDEN)


def test_layers_without_types_are_no_kernels() -> None:
    call = one_call(*layers("lstm", g(STEPS, BATCH, INPUTS)), outputs=3)
    blind = ConcreteCall(call.call, {}, {}, call.sizes)
    assert recurrent(blind) == recurrent_backward(blind) == []


UNIT = 4 * STEPS * BATCH * HIDDEN  # bytes of all steps and hidden states
BLOCK = 8 * 2**20  # of the workspace, for each layer and direction
OPERAND = 4 * STEPS * BATCH * INPUTS  # more than a unit, 10 numbers a step instead of 8
RNN_WEIGHTS = 4 * (8 * INPUTS + 8 * HIDDEN + 2 * 8)
LSTM_WEIGHTS = 4 * (32 * INPUTS + 32 * HIDDEN + 2 * 32)
LSTM_FURTHER = 4 * (32 * HIDDEN + 32 * HIDDEN + 2 * 32)  # of a layer that reads another
GRU_WEIGHTS = 4 * (24 * INPUTS + 24 * HIDDEN + 2 * 24)
GRU_FURTHER = 4 * (24 * HIDDEN + 24 * HIDDEN + 2 * 24)
BOTH_FURTHER = 4 * (32 * 2 * HIDDEN + 32 * HIDDEN + 2 * 32)
BOTH_OF_TWO = 2 * (LSTM_WEIGHTS + BOTH_FURTHER)  # both directions of two layers


def needed(name: str, x: TensorType, **more: Any) -> Recurrent | None:
    call = one_call(*layers(name, x, **more), outputs=outputs(name))
    return Recurrent.of(call.call, call.values)


@pytest.mark.parametrize(
    ("name", "more", "reserve", "workspace"),
    [
        # A layer of an RNN reserves 1 unit, of a GRU 6, of an LSTM 5; one that reads another also what it reads.
        # Products are a unit and one for each gate, and 4 more for both directions; weights that stay on chip add 4 units
        # for each gate. With gradients of those on chip they are 9, 14 or 12 units, 3 for each direction, one for each in
        # a stack, and the operand three times; six times of both directions.
        ("rnn_tanh", {}, UNIT, (9 + 3) * UNIT + 3 * OPERAND + RNN_WEIGHTS + BLOCK),
        ("rnn_tanh", {"training": False}, 0, (2 + 4) * UNIT + OPERAND + RNN_WEIGHTS + BLOCK),
        ("rnn_tanh", {"both": True}, 2 * UNIT, (9 + 6) * UNIT + 6 * OPERAND + 2 * RNN_WEIGHTS + 2 * BLOCK),
        ("lstm", {}, 5 * UNIT, (5 + 16) * UNIT + OPERAND + LSTM_WEIGHTS + BLOCK),
        ("lstm", {"training": False}, 0, (5 + 16) * UNIT + OPERAND + LSTM_WEIGHTS + BLOCK),
        ("lstm", {"count": 2}, 11 * UNIT, 21 * UNIT + OPERAND + LSTM_WEIGHTS + LSTM_FURTHER + 2 * BLOCK),
        ("lstm", {"count": 3}, 17 * UNIT, 21 * UNIT + OPERAND + LSTM_WEIGHTS + 2 * LSTM_FURTHER + 3 * BLOCK),
        ("lstm", {"both": True}, 2 * 5 * UNIT, (14 + 16) * UNIT + OPERAND + 2 * LSTM_WEIGHTS + 2 * BLOCK),
        ("lstm", {"both": True, "count": 2}, 22 * UNIT, 30 * UNIT + OPERAND + BOTH_OF_TWO + 4 * BLOCK),
        ("gru", {}, 6 * UNIT, (14 + 3) * UNIT + 3 * OPERAND + GRU_WEIGHTS + BLOCK),
        ("gru", {"count": 2}, 13 * UNIT, (14 + 4) * UNIT + 3 * OPERAND + GRU_WEIGHTS + GRU_FURTHER + 2 * BLOCK),
    ],
)  # fmt: skip
def test_reserve_and_workspace(name: str, more: dict[str, Any], reserve: int, workspace: int) -> None:
    assert needed(name, g(STEPS, BATCH, INPUTS), **more) == Recurrent(reserve, workspace, workspace)
    unwanted = 4 * STEPS * BATCH * INPUTS  # the operand's gradient, which cuDNN computes all the same
    found = needed(name, t(STEPS, BATCH, INPUTS), **more)
    assert found == Recurrent(reserve, workspace, workspace + unwanted)


def test_weights_beyond_the_chip_take_no_more() -> None:
    """An LSTM of 192 hidden units keeps them there, one of 193 does not; nor does bfloat16."""
    for hidden, more in ((192, 16), (193, 0)):
        found = needed("lstm", g(STEPS, BATCH, INPUTS), hidden=hidden)
        assert found is not None
        weights = 4 * 4 * hidden * (INPUTS + hidden + 2)
        assert found.workspace == (5 + more) * 4 * STEPS * BATCH * hidden + OPERAND + weights + BLOCK


def test_half_precision_keeps_a_copy_of_all_weights_in_the_reserve() -> None:
    found = needed("lstm", g(STEPS, BATCH, INPUTS, dtype="bfloat16"), dtype="bfloat16")
    assert found is not None
    assert found.reserve == (5 * UNIT + LSTM_WEIGHTS) // 2
    assert found.workspace == (3 * UNIT + 3 * OPERAND + LSTM_WEIGHTS) // 2 + BLOCK


@pytest.mark.parametrize("steps", [STEPS, 500])
def test_with_the_batch_first_the_operand_is_copied(steps: int) -> None:
    """The gradient of the result is copied where the weights, which come after it, do not hold its place."""
    unit = 4 * steps * BATCH * HIDDEN
    workspace = 21 * unit + 2 * 4 * steps * BATCH * INPUTS + LSTM_WEIGHTS + BLOCK
    found = needed("lstm", g(BATCH, steps, INPUTS), batch_first=True)
    assert found == Recurrent(5 * unit, workspace, workspace + max(0, unit - LSTM_WEIGHTS))
    unwanted = needed("lstm", t(BATCH, steps, INPUTS), batch_first=True)
    assert unwanted is not None
    assert found is not None
    assert unwanted.backward - found.backward == 4 * BATCH * steps * INPUTS


def test_other_calls_have_no_reserve() -> None:
    for op, given in (
        ("relu.default", (g(STEPS, BATCH, INPUTS),)),
        ("lstm_cell.default", (g(4, 10), (g(4, 8), g(4, 8)), g(32, 10), g(32, 8), g(32), g(32))),
    ):
        call = one_call(f"aten.{op}", *given, outputs=2 if "lstm" in op else 1)
        assert Recurrent.of(call.call, call.values) is None
    whole = one_call(*layers("lstm", g(STEPS, BATCH, INPUTS)), outputs=3)
    assert Recurrent.of(whole.call, {**whole.values, "y0": None}) is None
    assert Recurrent.of(whole.call, {**whole.values, "y0": t(STEPS, HIDDEN)}) is None
    assert reserve_bytes("lstm", 100, 1, 0, is_training=True) == 500
    assert reserve_bytes("gru", 200, 4, 7, is_training=True) == 200 * (4 * 6 + 3) + 7
    assert reserve_bytes("gru", 200, 4, 7, is_training=False) == 7


def test_sums_of_cells_are_over_rows() -> None:
    given = (g(BATCH, INPUTS), g(BATCH, HIDDEN), *(g(HIDDEN, *w) for w in ((INPUTS,), (HIDDEN,), (), ())))
    _, *sums, _, _, _, _ = made(backward("aten.rnn_tanh_cell.default", *given))
    assert [(one[3], one[4]) for one in sums] == [(4 * BATCH * HIDDEN, 4 * HIDDEN)] * 2


def test_axes_are_permuted() -> None:
    """As cuDNN reads 3 sequences of 5 steps of 4 numbers."""
    x = Tensor((3, 5, 4), "float32", 32, (20, 4, 1), 4 * 3 * 5 * 4)
    turned = x.permuted(1, 0, 2)
    assert (turned.shape, turned.strides) == ((5, 3, 4), (4, 20, 1))
