"""Recurrent layers: whole sequences, packed ones, single cells, libraries' spellings and gradients."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import parse_dim, symbol
from graphflops.errors import ShapeError
from graphflops.passes.gradients import gradient
from graphflops.rules import find
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
Tensors = tuple[TensorType, ...]


def parameters(
    kind: str,
    width: int,
    hidden: int,
    layers: int = 1,
    directions: int = 1,
    project: int = 0,
    bias: bool = True,
) -> Tensors:
    """Weights in torch's order: input, hidden, both biases, projection, for each layer and direction."""
    gates, out = GATES[kind] * hidden, project or hidden
    flat: list[TensorType] = []
    for layer in range(layers):
        for _ in range(directions):
            flat += [t(gates, width if layer == 0 else directions * out), t(gates, out)]
            flat += [t(gates), t(gates)] * bias
            flat += [t(project, hidden)] * (project > 0)
    return tuple(flat)


def run(
    kind: str,
    x: TensorType,
    hidden: int,
    *,
    layers: int = 1,
    directions: int = 1,
    project: int = 0,
    bias: bool = True,
    dropout: float = 0.0,
    batch_first: bool = False,
) -> Estimate:
    """One call of `aten.<kind>.input` with fitting states and parameters."""
    batch = x.shape[0 if batch_first else 1]
    h, c = (x.like((layers * directions, batch, size)) for size in (project or hidden, hidden))
    weights = parameters(kind, int(str(x.shape[2])), hidden, layers, directions, project, bias)
    flags = (bias, layers, dropout, True, directions == 2, batch_first)
    return price(f"aten.{kind}.input", x, (h, c) if kind == "lstm" else h, weights, *flags)


def test_lstm_counts_every_step() -> None:
    one = run("lstm", t(100, 1, 64), 64)
    assert one.matrix_flops == 2 * 100 * 4 * (64 * 64 + 64 * 64) == 6_553_600
    assert run("lstm", t(100, 1, 64), 64, directions=2).matrix_flops == 13_107_200


def test_lstm_counts_its_projection() -> None:
    estimate = run("lstm", t(100, 1, 64), 64, project=32)
    assert estimate.matrix_flops == 2 * 100 * (4 * 64 * 64 + 4 * 64 * 32 + 64 * 32) == 2 * 2_662_400
    assert shapes(estimate) == [(100, 1, 32), (1, 1, 32), (1, 1, 64)]


def test_gru_counts_every_step() -> None:
    assert run("gru", t(100, 1, 64), 64).matrix_flops == 2 * 100 * 3 * (64 * 64 + 64 * 64) == 4_915_200


@pytest.mark.parametrize(
    "kind, per_unit, functions", [("lstm", 8, 5), ("gru", 7, 3), ("rnn_tanh", 1, 1), ("rnn_relu", 2, 0)]
)
def test_vector_work_is_the_cell_and_two_biases_per_gate(kind: str, per_unit: int, functions: int) -> None:
    units = 7 * 3 * 5
    plain = run(kind, t(7, 3, 6), 5, bias=False)
    assert (plain.vector_flops, plain.transcendentals) == (per_unit * units, functions * units)
    assert run(kind, t(7, 3, 6), 5).vector_flops == (per_unit + 2 * GATES[kind]) * units


def test_layers_above_the_first_read_both_directions() -> None:
    estimate = run("gru", t(7, 3, 6), 5, layers=2, directions=2)
    per_row = 2 * 3 * 5 * (6 + 5) + 2 * 3 * 5 * (10 + 5)
    assert estimate.matrix_flops == 2 * 21 * per_row
    assert shapes(estimate) == [(7, 3, 10), (4, 3, 5)]
    dropped = run("gru", t(7, 3, 6), 5, layers=2, directions=2, dropout=0.5)
    between = dropped.vector_flops - estimate.vector_flops
    assert between == 3 * 21 * 10  # compare, select, scale


def test_batch_first_and_symbols() -> None:
    estimate = run("lstm", t("b", "n", 6), 5, batch_first=True)
    assert shapes(estimate)[0] == (symbol("b"), symbol("n"), 5)
    assert estimate.matrix_flops == 2 * 4 * 5 * (6 + 5) * parse_dim("b*n")


def test_packed_rows_count_once() -> None:
    lengths = (7, 4, 2)
    rows = t(sum(lengths), 6)
    state, sizes = t(1, 3, 5), t(7, dtype="int64")
    flags = (True, 1, 0.0, False, False)
    lstm = price("aten.lstm.data", rows, sizes, (state, state), parameters("lstm", 6, 5), *flags)
    assert lstm.matrix_flops == 2 * 13 * 4 * 5 * (6 + 5)
    assert shapes(lstm) == [(13, 5), (1, 3, 5), (1, 3, 5)]
    relu = price("aten.rnn_relu.data", rows, sizes, state, parameters("rnn_relu", 6, 5), *flags)
    assert (shapes(relu), relu.matrix_flops) == ([(13, 5), (1, 3, 5)], 2 * 13 * 5 * (6 + 5))


def test_weights_are_read_once() -> None:
    estimate = run("gru", t(7, 3, 6), 5)
    assert estimate.cost.read_bytes == 4 * (7 * 3 * 6 + 3 * 5 + 3 * 5 * (6 + 5 + 2))
    assert estimate.cost.written_bytes == 4 * (7 * 3 * 5 + 3 * 5)


@pytest.mark.parametrize("kind", GATES)
def test_single_cells(kind: str) -> None:
    gates = GATES[kind] * 5
    state = t(3, 5)
    hx = (state, state) if kind == "lstm" else state
    estimate = price(f"aten.{kind}_cell.default", t(3, 6), hx, t(gates, 6), t(gates, 5), t(gates), t(gates))
    assert estimate.matrix_flops == 2 * 3 * gates * (6 + 5)
    assert shapes(estimate) == [(3, 5)] * (2 if kind == "lstm" else 1)


@pytest.mark.parametrize(
    "wants, per_row",
    [
        # backward products per row: hidden 3 * 5 * 5, input 3 * 5 * 6; each weight's gradient once more
        ("x params", 75 + 90 + 75 + 90),
        ("params", 75 + 75 + 90),
        ("x", 75 + 90),
    ],
)
def test_back_propagation_through_time(wants: str, per_row: int) -> None:
    rows, batch = 7 * 3, 3
    estimate = trained_gru(wants)
    # nobody wants the initial state's gradient, so the first step's hidden product does not run backward
    assert estimate.matrix_flops == 2 * (rows * per_row - batch * 75)
    with_state = trained_gru(f"{wants} hx")
    assert with_state.matrix_flops == 2 * rows * per_row


def trained_gru(wants: str) -> Estimate:
    """The backward of a one-layer GRU over 7 steps of 3 sequences, 6 features to 5."""
    weights = tuple(t(*w.shape, requires_grad="params" in wants) for w in parameters("gru", 6, 5))
    arguments = {
        "x": t(7, 3, 6, requires_grad="x" in wants.split()),
        "hx": t(1, 3, 5, requires_grad="hx" in wants),
        "params": weights,
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": True,
        "bidirectional": False,
        "batch_first": False,
    }
    rule = find("aten.gru.input")
    assert rule is not None
    result = gradient(rule, arguments, rule.function(**arguments))
    assert result is not None
    return result


def test_back_propagation_reads_every_steps_gates() -> None:
    x, state, weights, out = 7 * 3 * 6, 3 * 5, 15 * 6 + 15 * 5 + 2 * 15, 7 * 3 * 5
    # both results' gradients, the operands, the result itself, and 3 gates and the candidate's hidden part per unit
    expected = (out + state) + (x + state + weights) + out + 4 * out
    assert trained_gru("x params").cost.read_bytes == 4 * expected


def test_gradients_come_in_the_order_of_the_operands() -> None:
    assert shapes(trained_gru("x params hx")) == [(7, 3, 6), (1, 3, 5), (15, 6), (15, 5), (15,), (15,)]


def test_a_cell_multiplies_again_for_each_wanted_operand() -> None:
    arguments = {
        "x": t(3, 6),
        "hx": (t(3, 5, requires_grad=True), t(3, 5, requires_grad=True)),
        "w_ih": t(20, 6, requires_grad=True),
        "w_hh": t(20, 5),
    }
    rule = find("aten.lstm_cell.default")
    assert rule is not None
    estimate = gradient(rule, arguments, rule.function(**arguments))
    assert estimate is not None
    assert estimate.matrix_flops == 2 * 3 * 20 * (6 + 5)
    assert shapes(estimate) == [(3, 5), (3, 5), (20, 6)]


def test_fused_gates_are_vector_work() -> None:
    gates, state, bias = t(3, 20), t(3, 5), t(20)
    forward = price("aten._thnn_fused_lstm_cell.default", gates, gates, state, bias, bias)
    assert shapes(forward) == [(3, 5), (3, 5), (3, 20)]
    assert (forward.matrix_flops, forward.vector_flops) == (0, 15 * (8 + 8))
    back = price("aten._thnn_fused_lstm_cell_backward.default", state, None, state, state, gates, True)
    assert shapes(back) == [(3, 20), (3, 20), (3, 5), (20,), (20,)]
    assert back.cost.written_bytes == 4 * (60 + 15 + 20)  # one tensor serves as two of the results
    gru = price("aten._thnn_fused_gru_cell.default", t(3, 15), t(3, 15), state)
    assert (shapes(gru), gru.vector_flops) == ([(3, 5), (3, 25)], 15 * 7)
    back = price("aten._thnn_fused_gru_cell_backward.default", state, t(3, 25), False)
    assert [value and value.shape for value in back.out] == [(3, 15), (3, 15), (3, 5), None, None]


@pytest.mark.parametrize("mode, kind", [(0, "rnn_relu"), (1, "rnn_tanh"), (2, "lstm"), (3, "gru")])
def test_libraries_agree_with_the_layer(mode: int, kind: str) -> None:
    x, state = t(7, 3, 6), t(1, 3, 5)
    cx = state if kind == "lstm" else None
    weights = parameters(kind, 6, 5)
    rest = (mode, 5, 0, 1, False, 0.0, True, False, (), None)
    cudnn = price("aten._cudnn_rnn.default", x, weights, 4, None, state, cx, *rest)
    plain = run(kind, x, 5)
    assert cudnn.matrix_flops == plain.matrix_flops
    assert cudnn.vector_flops == plain.vector_flops
    assert shapes(cudnn)[:2] == [(7, 3, 5), (1, 3, 5)]
    back = price(
        "aten._cudnn_rnn_backward.default",
        *(x, weights, 4, t(9), state, cx, t(7, 3, 5), t(7, 3, 5), None, None),
        *rest,
        *(t(0), (True, True, True, True)),
    )
    assert back.matrix_flops == 2 * plain.matrix_flops
    assert shapes(back)[-4:] == [weight.shape for weight in weights]


def test_one_direction_of_one_layer() -> None:
    weights = (*parameters("lstm", 6, 5), t(1, 3, 5), t(1, 3, 5))
    flags = (False, (), 2, 5, 1, True, False, False, False)
    estimate = price("aten.mkldnn_rnn_layer.default", t(7, 3, 6), *weights, *flags)
    assert estimate.matrix_flops == run("lstm", t(7, 3, 6), 5).matrix_flops
    assert shapes(estimate)[:3] == [(7, 3, 5), (1, 3, 5), (1, 3, 5)]


def test_parameters_that_do_not_fit() -> None:
    state = t(1, 3, 5)
    with pytest.raises(ShapeError, match="the input has 6 features, the layer takes 8"):
        price("aten.gru.input", t(7, 3, 6), state, parameters("gru", 8, 5), True, 1, 0.0, False, False, False)
    with pytest.raises(ShapeError, match="4 parameters do not make 3 layers"):
        price("aten.gru.input", t(7, 3, 6), state, parameters("gru", 6, 5), True, 3, 0.0, False, False, False)


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    module = torch.nn.GRU(6, 5, 2, bidirectional=True)
    x = torch.randn(7, 3, 6)
    with FlopCounterMode(display=False) as forward:
        out, _ = module(x)
    with FlopCounterMode(display=False) as back:
        out.sum().backward()
    weights = tuple(t(*p.shape, requires_grad=True) for p in module._flat_weights)
    arguments = {
        "x": t(7, 3, 6),
        "hx": t(4, 3, 5),
        "params": weights,
        "has_biases": True,
        "num_layers": 2,
        "dropout": 0.0,
        "train": True,
        "bidirectional": True,
        "batch_first": False,
    }
    rule = find("aten.gru.input")
    assert rule is not None
    ours = rule.function(**arguments)
    theirs = gradient(rule, arguments, ours)
    assert theirs is not None
    assert ours.matrix_flops == forward.get_total_flops()
    assert theirs.matrix_flops == back.get_total_flops()


def test_a_state_for_another_batch_is_refused() -> None:
    weights = (t(128, 16), t(128, 32))
    args = (weights, False, 1, 0.0, False, False)
    with pytest.raises(ShapeError, match="batch sizes differ: input 4, state 2"):
        price("aten.lstm.input", t(4, 10, 16), (t(1, 2, 32), t(1, 2, 32)), *args, True)


@pytest.mark.parametrize(
    ("states", "changed", "said"),
    [
        (((2, 3, 5),), {}, "1 initial states, the layers have 2"),
        (((1, 3, 5), (2, 3, 5)), {}, r"an initial state is \[1, 3, 5\], not \(2, batch, 5\)"),
        (((2, 3, 4), (2, 3, 5)), {}, r"an initial state is \[2, 3, 4\], not \(2, batch, 5\)"),
        (((2, 3, 5), (2, 3, 6)), {}, r"an initial state is \[2, 3, 6\], not \(2, batch, 5\)"),
        (((3, 5), (2, 3, 5)), {}, r"an initial state is \[3, 5\], not"),
        (((2, 3, 5),) * 2, {1: (20, 6)}, r"a weight of layer 0 is \[20, 6\], not \[20, 5\]"),
        (((2, 3, 5),) * 2, {4: (20, 6)}, r"a weight of layer 1 is \[20, 6\], not \[20, 5\]"),
        (((2, 3, 5),) * 2, {4: (24, 5)}, r"a weight of layer 1 is \[24, 5\], not \[20, 5\]"),
        (((2, 3, 5),) * 2, {3: (5,)}, r"a weight of layer 0 is \[5\], not \[20\]"),
    ],
)
def test_states_and_weights_of_other_layers_are_refused(
    states: tuple[tuple[int, ...], ...], changed: dict[int, tuple[int, ...]], said: str
) -> None:
    """Two layers of an LSTM of 5 units over 3 sequences of 6 features."""
    weights = [*parameters("lstm", 6, 5, layers=2)]
    for place, shape in changed.items():
        weights[place] = t(*shape)
    flags = (True, 2, 0.0, False, False, False)
    with pytest.raises(ShapeError, match=said):
        price("aten.lstm.input", t(7, 3, 6), tuple(t(*state) for state in states), tuple(weights), *flags)
