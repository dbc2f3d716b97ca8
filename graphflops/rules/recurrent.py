"""Recurrent layers: plain, LSTM and GRU, whole sequences, packed sequences, single cells, and operators of libraries.

A step multiplies every weight matrix once per row of the batch. Vector FLOPs per row and hidden unit are those
of the cell's formula, including two bias additions per gate if there are biases.
"""

from dataclasses import dataclass
from functools import partial

from graphflops.base.record import replace
from graphflops.cost import Estimate, free
from graphflops.dims import Dim, differ, meet, prod, total
from graphflops.rules.creation import DROPOUT
from graphflops.rules.elementwise import WORK, Work, first_gradient
from graphflops.rules.matmul import flops_of
from graphflops.rules.operands import Derived, Operands, takes
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Tensors, have_shape, shown, tensors_of, where_wanted
from graphflops.tensor import FLOAT32, INT8, UINT8, TensorType

KIND = "recurrent"


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of cell: its gates and activations, and its other work per hidden unit and row."""

    gates: int
    activations: tuple[Work, ...]  # one per gate, then those of the state
    combining: int  # operations beside the activations and the biases, forward
    combining_back: int = 0  # the same, backward
    transcendentals_back: int = 0  # functions that the backward pass evaluates again
    kept: int = 0  # values per hidden unit and row that the backward reads beside the result
    around: int = 0  # the same for a call of a single cell: both products, and values computed from them

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
    weights = (x for own in layers for x in (own.from_input, own.from_hidden, own.project, *own.biases))
    return Estimate(
        (out, *(state.like() for state in states)),
        flops_of(rows * total(layer.from_input.numel + layer.recurrent for layer in layers), x.dtype),
        vector_flops=rows * units * (cell.vector + biased),
        transcendentals=rows * units * cell.transcendentals,
        reads=(x, *states, *weights),
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
    """Refuse states, of an entry for each layer and direction as wide as its results, and weights that do not fit."""
    hidden, project = layers[0].hidden(cell), layers[0].project
    width = hidden if project is None else project.shape[0]
    widths = (width, hidden)[: 2 if cell is LSTM else 1]
    require(len(states) == len(widths), f"{len(states)} initial states, the layers have {len(widths)}")
    for state, wide in zip(states, widths, strict=True):
        fits = state.rank == 3 and not any(map(differ, state.shape[::2], (len(layers), wide)))
        require(fits, f"an initial state is {shown(state.shape)}, not ({len(layers)}, batch, {wide})")
    for place, layer in enumerate(layers):
        read = layers[0].from_input.shape[-1] if place < directions else directions * width
        gates = cell.gates * hidden
        expected = ((gates, read), (gates, width), *((gates,) for _ in layer.biases))
        for weight, shape in zip((layer.from_input, layer.from_hidden, *layer.biases), expected, strict=True):
            said = f"a weight of layer {place // directions} is {shown(weight.shape)}, not {shown(shape)}"
            require(have_shape(shape, weight), said)


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
    """The work with the wanted gradients as results; it reads the results' gradients and what the forward read."""
    wanted = (states_of(value) for name, value in call.arguments.items() if name in call.wants)
    results = tuple(value.like() for values in wanted for value in values if value.requires_grad)
    grads = tuple(value for value in call.estimate.out if isinstance(value, TensorType))
    return replace(work, out=results, reads=(*grads, *call.estimate.reads))


@takes("x * batch_sizes? hx= params= has_biases= num_layers= dropout= train= bidirectional= batch_first?")
def layers(of: Operands, *, cell: Cell) -> Estimate:
    """All layers over a padded or a packed batch, in training with dropout between them.

    Workspace: the input products of one layer's gates in all steps, the result of each step before they are joined
    (for two directions also separately), and the results of the layer before.
    """
    x, states, directions = of.x, states_of(of.hx), 2 if of.bidirectional else 1
    if of.batch_sizes is None and x.rank == 3 and states[0].rank == 3:
        batch, held = x.shape[0 if of.batch_first else 1], states[0].shape[1]
        meet(batch, held, f"batch sizes differ: input {batch}, state {held}")
    stack = layers_of(of.params, of.num_layers * directions, of.has_biases)
    check_sizes(cell, states, stack, directions)
    out = x.like((*x.shape[:-1], directions * states[0].shape[-1]))
    gates = x.like((*x.shape[:-1], cell.gates * stack[0].hidden(cell)))
    copies = (1 if directions == 1 else 2) + (of.num_layers > 1)
    return recur(cell, x, states, stack, out).plus(
        vector_flops=DROPOUT * out.numel * (of.num_layers - 1) if of.dropout and of.train else 0,
        workspace=gates.nbytes + copies * out.nbytes,
        reads=(of.batch_sizes,),
    )


@takes("x hx? w_ih w_hh b_ih? b_hh?")
def _step(of: Operands, *, cell: Cell) -> Estimate:
    biases = (of.b_ih, of.b_hh) if of.b_ih is not None and of.b_hh is not None else ()
    states, layer = states_of(of.hx), Layer(of.w_ih, of.w_hh, None, biases)
    estimate = recur(cell, of.x, states, [layer], of.x.like(states[0].shape))
    return replace(estimate, out=estimate.out[1:])


def _step_back(cell: Cell, call: ForwardCall) -> Estimate:
    x, w_ih, w_hh, wants = call["x"], call["w_ih"], call["w_hh"], call.wants
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
    rule(f"aten.quantized_{_name}_cell").derived(
        _step, lambda work: replace(work, matrix_dtype=INT8), cell=_cell
    )


# Operators of libraries: the gates fused into one kernel after the matrix products; cuDNN, MIOpen, oneDNN.

MODES = tuple(KINDS.values())  # in the order of the libraries' numbers
GRU_SAVED = 5  # values per hidden unit that the fused GRU keeps for its backward pass
NOTHING = TensorType((0,), UINT8)


def gates(cell: Cell, state: TensorType, bias: TensorType | None) -> Estimate:
    """Vector work of one step's gates."""
    biased = 2 * cell.gates if bias else 0
    return Estimate((), 0, state.numel * (cell.vector + biased), state.numel * cell.transcendentals)


def gates_back(
    cell: Cell, state: TensorType, gate: TensorType, has_bias: bool, reads: tuple[TensorType | None, ...]
) -> Estimate:
    """The gradients of one step's gates and state, and the sum that is both biases' gradient."""
    per_unit = cell.vector_back + (cell.gates if has_bias else 0)
    out = (gate.like(), state.like(), gate.like(gate.shape[-1:]) if has_bias else None)
    return Estimate(out, 0, state.numel * per_unit, state.numel * cell.transcendentals_back, reads=reads)


@takes("input_gates hidden_gates state input_bias? hidden_bias?")
def fused_cell(of: Operands, *, cell: Cell) -> Estimate:
    """A step after both matrix products; gates, or values of the GRU, are kept for the backward pass."""
    state = of.state
    kept = state.like((*state.shape[:-1], GRU_SAVED * state.shape[-1]))
    results = (state.like(), kept) if cell is GRU else (state.like(), state.like(), of.input_gates.like())
    return replace(gates(cell, state, of.input_bias), out=results, reads=(*of,))


for _name, _cell in (("lstm", LSTM), ("gru", GRU)):
    rule(f"aten._thnn_fused_{_name}_cell", kind="elementwise").derived(fused_cell, cell=_cell)


@rule("aten._thnn_fused_lstm_cell_backward_impl", kind="elementwise").takes(
    "grad_hy? grad_cy? cx cy workspace"
)
def fused_lstm_cell_backward_impl(of: Operands, *, has_bias: bool) -> Estimate:
    """Gradients of the gates, the cell state and the bias."""
    return gates_back(LSTM, of.cx, of.workspace, has_bias, (*of,))


def with_shared_gradients(grads: Estimate) -> Estimate:
    """As the `_impl` operator; both products share one gradient, and both biases share another."""
    gate, state, bias = grads.out
    return replace(grads, out=(gate, gate, state, bias, bias), writes=tensors_of(grads.out))


fused_lstm_cell_backward = Derived(fused_lstm_cell_backward_impl, with_shared_gradients)
rule("aten._thnn_fused_lstm_cell_backward")(fused_lstm_cell_backward)


@rule("aten._thnn_fused_gru_cell_backward", kind="elementwise")
def fused_gru_cell_backward(grad_hy: TensorType, workspace: TensorType, has_bias: bool) -> Estimate:
    """Gradients of both products' gates, the state and the biases."""
    gates = grad_hy.like((*grad_hy.shape[:-1], GRU.gates * grad_hy.shape[-1]))
    grads = gates_back(GRU, grad_hy, gates, has_bias, (grad_hy, workspace))
    return replace(with_shared_gradients(grads), writes=None)


@rule("aten._thnn_differentiable_lstm_cell_backward", kind="elementwise").takes(
    "grad_hy? grad_cy? input_gates hidden_gates input_bias? hidden_bias? cx cy"
)
def differentiable_lstm_cell_backward(of: Operands) -> Estimate:
    """As the fused one, with the gates computed again."""
    own = of.named("grad_hy grad_cy cx cy input_gates")
    grads = fused_lstm_cell_backward(*own, has_bias=of.input_bias is not None)
    return grads.plus(gates(LSTM, of.cx, of.input_bias), reads=of.but("grad_hy grad_cy cx cy input_gates"))


@rule("aten._thnn_differentiable_gru_cell_backward", kind="elementwise").takes(
    "grad_hy input_gates hidden_gates hx input_bias? hidden_bias?"
)
def differentiable_gru_cell_backward(of: Operands) -> Estimate:
    """As the fused one, with the gates computed again."""
    grads = fused_gru_cell_backward(of.grad_hy, of.input_gates, of.input_bias is not None)
    return grads.plus(gates(GRU, of.hx, of.input_bias), reads=of.but("grad_hy input_gates"))


def cut(weights: Tensors, each: int) -> list[Layer]:
    """Layers from a list of `each` weights per layer and direction; an odd number includes a projection."""
    require(each in (2, 3, 4, 5), f"a layer cannot have {each} weights")
    return layers_of(weights, len(weights) // each, has_biases=each > 3)


@rule("aten._cudnn_rnn").takes("x weight= weight_stride0= * weight_buf? hx cx? mode= bidirectional=")
def cudnn_rnn(of: Operands, *, in_one_buffer: bool = False) -> Estimate:
    """As the layer of that mode; the size of cuDNN's reserved memory is not known. MIOpen returns the weights as one."""
    x, weight, each, weight_buf, hx, cx, mode, bidirectional = of
    if in_one_buffer:
        weight_buf = x.like((total(value.numel for value in weight),))
    out = x.like((*x.shape[:-1], (2 if bidirectional else 1) * hx.shape[-1]))
    states = (hx,) if cx is None else (hx, cx)
    estimate = recur(MODES[mode], x, states, cut(weight, each), out)
    cell_state = TensorType((0,), FLOAT32) if cx is None else cx.like()
    return replace(estimate, out=(out, hx.like(), cell_state, NOTHING, weight_buf), writes=(out, *states))


rule("aten.miopen_rnn").derived(cudnn_rnn, weight_buf=None, in_one_buffer=True)


@rule("aten._cudnn_rnn_backward").takes(
    "x * hx cx? output grad_output? grad_hy? grad_cy? weight_buf reserve; weight weight_stride0 mode bidirectional "
    "output_mask"
)
def cudnn_rnn_backward(of: Operands) -> Estimate:
    """Back-propagation through time, for the operands in the mask: input, both states, weights."""
    layers = cut(of.weight, of.weight_stride0)
    names = zip(("x", "hx", "cx", "params"), of.output_mask, strict=True)
    wants = frozenset(name for name, wanted in names if wanted)
    work = recur_back(MODES[of.mode], of.x, of.hx, layers, 2 if of.bidirectional else 1, wants)
    single = where_wanted((of.x, of.hx, of.cx), of.output_mask[:3])
    weights = (value.like() for value in of.weight if of.output_mask[3])
    return replace(work, out=(*single, *weights), reads=(*of,))


@rule("aten._cudnn_rnn_flatten_weight", kind="movement")
def cudnn_rnn_flatten_weight(weights: Tensors) -> Estimate:
    """A copy of all weights into one buffer."""
    return Estimate((weights[0].like((total(value.numel for value in weights),)),), reads=weights)


@rule("aten._use_cudnn_rnn_flatten_weight", kind="query")
def use_cudnn_rnn_flatten_weight() -> Estimate:
    """Free: a query of the library."""
    return free(False, alias=False)


@rule("aten.mkldnn_rnn_layer").takes("x weight0 weight1 weight2 weight3 hx_ cx_")
def mkldnn_rnn_layer(of: Operands, *, mode: int, hidden_size: Dim, has_biases: bool) -> Estimate:
    """One direction of one layer."""
    x, w_ih, w_hh, b_ih, b_hh, *states = of
    layer = Layer(w_ih, w_hh, None, (b_ih, b_hh) if has_biases else ())
    estimate = recur(MODES[mode], x, tuple(states), [layer], x.like((*x.shape[:-1], hidden_size)))
    return replace(estimate, out=(*estimate.out, NOTHING))


@rule("aten.mkldnn_rnn_layer_backward").takes(
    "x weight1 weight2 weight3 weight4 hx_ cx_tmp output hy_ cy_ grad_output? grad_hy? grad_cy? * workspace"
)
def mkldnn_rnn_layer_backward(of: Operands, *, mode: int, has_biases: bool) -> Estimate:
    """Back-propagation through time for all operands."""
    layer = Layer(of.weight1, of.weight2, None, (of.weight3, of.weight4) if has_biases else ())
    work = recur_back(MODES[mode], of.x, of.hx_, [layer], 1, frozenset(("x", "hx", "params")))
    operands = of.named("x weight1 weight2 weight3 weight4 hx_ cx_tmp")
    return replace(work, out=tuple(value.like() for value in operands), reads=(*of,))
