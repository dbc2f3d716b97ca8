"""Recurrent layers: plain, LSTM and GRU, whole sequences, packed sequences and single cells.

A step multiplies every weight matrix once per row of the batch. Vector FLOPs per row and hidden unit are those
of the cell's formula, including two bias additions per gate if there are biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, differ, meet, prod, total
from graphflops.rules.matmul import flops_of
from graphflops.rules.operands import Operands, takes
from graphflops.rules.random import DROPOUT
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Tensors, shown
from graphflops.rules.work import WORK, Work, first_gradient
from graphflops.tensor import INT8, TensorType


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of cell: its gates and activations, and its other work per hidden unit and row."""

    gates: int
    activations: tuple[Work, ...]  # those of the gates, and of the state
    combining: int  # operations besides the activations and the biases, forward
    combining_back: int = 0  # and backward
    transcendentals_back: int = 0  # functions that the backward pass evaluates again
    kept: int = 0  # values per hidden unit and row that the backward pass reads besides the result
    around: int = 0  # the same of a single step: both products, and what is made of them

    @property
    def vector(self) -> int:
        """Operations per hidden unit and row, without biases."""
        return self.combining + sum(activation.flops for activation in self.activations)

    @property
    def transcendentals(self) -> int:
        """Function evaluations per hidden unit and row."""
        return sum(activation.transcendentals for activation in self.activations)

    @property
    def vector_back(self) -> int:
        """Operations of the backward pass per hidden unit and row, without biases."""
        return self.combining_back + sum(first_gradient(activation).flops for activation in self.activations)


_SIGMOID, _TANH = WORK["sigmoid"], WORK["tanh"]
# h' = activation(ih + hh)
TANH = Cell(gates=1, activations=(_TANH,), combining=1)
RELU = Cell(gates=1, activations=(WORK["relu"],), combining=1)
# i, f, o = sigmoid, g = tanh, each of a sum, 4; c' = f * c + i * g, 3; h' = o * tanh(c'), 1. Backward: do and the
# gradient of tanh(c') are products, whose sum with dc is dc', 3; di, df, dg and dc are products, 4; tanh(c') is
# evaluated again. Kept: the gates and c'.
LSTM = Cell(
    4, (_SIGMOID,) * 3 + (_TANH,) * 2, 4 + 3 + 1, 3 + 4, transcendentals_back=1, kept=4 + 1, around=4 + 4 + 4
)
# r, z = sigmoid and n = tanh(in + r * hn), 3 sums and a product; h' = (h - n) * z + n, 3. Backward: dn 2, dz 1, dr 1,
# dhn 1, dh 1. Kept: the gates and hn.
GRU = Cell(3, (_SIGMOID,) * 2 + (_TANH,), 3 + 1 + 3, 2 + 1 + 1 + 1 + 1, kept=3 + 1, around=3 + 3 + 5)
KINDS = {"rnn_relu": RELU, "rnn_tanh": TANH, "lstm": LSTM, "gru": GRU}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer in one direction: weights of the input, of the hidden state and of the projection, and biases."""

    from_input: TensorType
    from_hidden: TensorType
    project: TensorType | None = None
    biases: Tensors = ()

    @property
    def tensors(self) -> tuple[TensorType | None, ...]:
        """All of them."""
        return (self.from_input, self.from_hidden, self.project, *self.biases)

    @property
    def recurrent(self) -> Dim:
        """Multiply-adds per row that depend on the previous step."""
        return self.from_hidden.numel + (self.project.numel if self.project else 0)

    def hidden(self, cell: Cell) -> Dim:
        """Hidden units, before a projection."""
        return self.from_hidden.shape[0] // cell.gates


def layers_of(params: Tensors, count: int, has_biases: bool) -> list[Layer]:
    """Groups the flat list of parameters by layer: two matrices, two biases, one projection."""
    require(count > 0 and len(params) % count == 0, f"{len(params)} parameters do not make {count} layers")
    each = len(params) // count
    biases = 2 if has_biases else 0
    require(each in (2 + biases, 3 + biases), f"a layer cannot have {each} parameters")
    chunks = (params[start : start + each] for start in range(0, len(params), each))
    return [Layer(c[0], c[1], c[-1] if each == 3 + biases else None, c[2 : 2 + biases]) for c in chunks]


def recur(cell: Cell, x: TensorType, states: Tensors, layers: list[Layer], out: TensorType) -> Estimate:
    """All layers over all rows of the input: steps times batch, or the packed rows."""
    features, expected = x.shape[-1], layers[0].from_input.shape[-1]
    meet(features, expected, f"the input has {features} features, the layer takes {expected}")
    rows, units = prod(x.shape[:-1]), total(layer.hidden(cell) for layer in layers)
    biased = 2 * cell.gates if layers[0].biases else 0
    return Estimate(
        (out, *(state.like() for state in states)),
        flops_of(rows * total(layer.from_input.numel + layer.recurrent for layer in layers), x.dtype),
        vector_flops=rows * units * (cell.vector + biased),
        transcendentals=rows * units * cell.transcendentals,
        reads=(x, *states, *(value for layer in layers for value in layer.tensors)),
    )


def recur_back(
    cell: Cell, x: TensorType, state: TensorType, layers: list[Layer], directions: int, wants: frozenset[str]
) -> Estimate:
    """Work of back-propagation through time for the wanted operands among "x", "hx" and "params", without results.

    The products with the hidden state's matrices always run backward, except in the first step if the initial state
    has no gradient; those with the input's matrices run if the input, or a layer below, has a gradient. The gradient
    of each matrix is its product once more.
    """
    rows, units = prod(x.shape[:-1]), total(layer.hidden(cell) for layer in layers)
    below = layers if "x" in wants else layers[directions:]
    recurrent = total(layer.recurrent for layer in layers)
    per_row = recurrent + total(layer.from_input.numel for layer in below)
    if "params" in wants:
        per_row += recurrent + total(layer.from_input.numel for layer in layers)
    first = 0 if "hx" in wants else state.shape[-2] * total(layer.from_hidden.numel for layer in layers)
    summed = cell.gates if "params" in wants and layers[0].biases else 0  # both biases have the same gradient
    return Estimate(
        matrix_flops=flops_of(rows * per_row - first, x.dtype),
        vector_flops=rows * units * (cell.vector_back + summed),
        transcendentals=rows * units * cell.transcendentals_back,
    )


def states_of(hx: TensorType | Tensors) -> Tensors:
    """The initial states: an LSTM has two, in a list."""
    return hx if isinstance(hx, tuple) else (hx,)


def check_sizes(cell: Cell, states: Tensors, layers: list[Layer], directions: int) -> None:
    """Refuse states and weights that are not those of such layers.

    States: an entry for each layer and direction, as wide as its results; cells of an LSTM are as wide as its hidden units.
    """
    hidden, project = layers[0].hidden(cell), layers[0].project
    width = hidden if project is None else project.shape[0]
    widths = (width, hidden)[: 2 if cell is LSTM else 1]
    require(len(states) == len(widths), f"{len(states)} initial states, the layers have {len(widths)}")
    for state, wide in zip(states, widths, strict=True):
        fits = state.rank == 3 and not any(map(differ, state.shape[::2], (len(layers), wide)))
        require(fits, f"an initial state is {shown(state.shape)}, not ({len(layers)}, batch, {wide})")
    for place, layer in enumerate(layers):
        read = layers[0].from_input.shape[-1] if place < directions else directions * width
        expected = ((cell.gates * hidden, read), (cell.gates * hidden, width))
        for weight, shape in zip((layer.from_input, layer.from_hidden), expected, strict=True):
            fits = weight.rank == 2 and not any(map(differ, weight.shape, shape))
            said = f"a weight of layer {place // directions} is {shown(weight.shape)}, not {shown(shape)}"
            require(fits, said)


# Whole sequences: `.input` takes padded ones, `.data` packed ones, whose rows are all steps of all sequences.


def sequence_back(cell: Cell, call: ForwardCall) -> Estimate:
    """Gradients of a stack of layers; reads the gates and states of every step and the outputs of every layer."""
    directions = 2 if call["bidirectional"] else 1
    layers = layers_of(call["params"], call["num_layers"] * directions, call["has_biases"])
    x, state = call["x"], states_of(call["hx"])[0]
    work = with_gradients(recur_back(cell, x, state, layers, directions, call.wants), call)
    per_row = cell.kept * total(layer.hidden(cell) for layer in layers)
    per_row += (len(layers) - directions) * state.shape[-1]
    return work.plus(reads=(call.out, x.like((prod(x.shape[:-1]), per_row)).nbytes))


def with_gradients(work: Estimate, call: ForwardCall) -> Estimate:
    """The work, with the wanted operands' gradients as results; results' gradients and operands are read."""
    wanted = (states_of(value) for name, value in call.arguments.items() if name in call.wants)
    results = tuple(value.like() for values in wanted for value in values if value.requires_grad)
    grads = tuple(value for value in call.estimate.out if isinstance(value, TensorType))
    return replace(work, out=results, reads=(*grads, *call.estimate.reads))


def layers(
    x: TensorType,
    *,
    batch_sizes: TensorType | None = None,
    hx: TensorType | Tensors,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
    cell: Cell,
) -> Estimate:
    """All layers over a padded or a packed batch; in training with dropout between them.

    Workspace: the input products of one layer's gates in all steps, the result of each step before they are joined
    (for two directions also separately), and the results of the layer before.
    """
    states, directions = states_of(hx), 2 if bidirectional else 1
    if batch_sizes is None and x.rank == 3 and states[0].rank == 3:
        batch, held = x.shape[0 if batch_first else 1], states[0].shape[1]
        meet(batch, held, f"batch sizes differ: input {batch}, state {held}")
    stack = layers_of(params, num_layers * directions, has_biases)
    check_sizes(cell, states, stack, directions)
    out = x.like((*x.shape[:-1], directions * states[0].shape[-1]))
    gates = x.like((*x.shape[:-1], cell.gates * stack[0].hidden(cell)))
    copies = (1 if directions == 1 else 2) + (num_layers > 1)
    return recur(cell, x, states, stack, out).plus(
        vector_flops=DROPOUT * out.numel * (num_layers - 1) if dropout and train else 0,
        workspace=gates.nbytes + copies * out.nbytes,
        reads=(batch_sizes,),
    )


@takes("x hx? w_ih w_hh b_ih? b_hh?")
def _step(of: Operands, *, cell: Cell) -> Estimate:
    biases = (of.b_ih, of.b_hh) if of.b_ih is not None and of.b_hh is not None else ()
    states, layer = states_of(of.hx), Layer(of.w_ih, of.w_hh, None, biases)
    estimate = recur(cell, of.x, states, [layer], of.x.like(states[0].shape))
    return replace(estimate, out=estimate.out[1:])


def _step_back(cell: Cell, call: ForwardCall) -> Estimate:
    wants = call.wants
    x, w_ih, w_hh = call["x"], call["w_ih"], call["w_hh"]
    rows = prod(x.shape[:-1])
    multiply_adds = w_ih.numel * len(wants & {"x", "w_ih"}) + w_hh.numel * len(wants & {"hx", "w_hh"})
    hidden = w_hh.shape[0] // cell.gates
    per_row = cell.vector_back * hidden + (w_hh.shape[0] if wants & {"b_ih", "b_hh"} else 0)
    functions = rows * cell.transcendentals_back * hidden
    kept = x.like((rows, cell.around * hidden)).nbytes
    work = Estimate((), flops_of(rows * multiply_adds, x.dtype), rows * per_row, functions)
    return with_gradients(work, call).plus(reads=(kept,))


for _name, _cell in KINDS.items():
    rule(f"aten.{_name}.input", f"aten.{_name}.data").derived(layers, cell=_cell)
    backward(f"aten.{_name}.input", f"aten.{_name}.data")(partial(sequence_back, _cell))
    rule(f"aten.{_name}_cell").derived(_step, cell=_cell)
    backward(f"aten.{_name}_cell")(partial(_step_back, _cell))
    rule(f"aten.quantized_{_name}_cell", kind="recurrent").derived(
        _step,
        lambda work: replace(work, matrix_dtype=INT8),
        says="One step of a cell with eight-bit weights.",
        cell=_cell,
    )
