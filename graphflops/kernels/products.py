"""Matrix products, each one kernel of the BLAS library after copies of operands that no kernel can read; recurrent layers.

One kernel stands for an entire LSTM, GRU or RNN; a cell is two products and a pointwise kernel. cuDNN keeps a reserve that
gradients read: gates and states of each layer, the input of each layer after the first, and a copy of bfloat16 weights. Its
workspace has the products of the gates, another copy of the weights, and 8 MiB for each layer and direction; batch-first
sequences are copied. From 180 measurements of LSTMs on an H200 with PyTorch 2.11, and from programs with a GRU.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from graphflops.base.record import Record, replace
from graphflops.cost import Value
from graphflops.dims import Dim, ceil_div, dim_max, total
from graphflops.graph import Ref, tensor_type
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.convolution import known, up
from graphflops.kernels.kernel import SEQUENCE_RANK, Kernel, Pass, Product, ProductAlgorithm, Recurrence
from graphflops.kernels.moved import copied, copy, elementwise, on_operand, pointwise, reduction, repeat
from graphflops.passes.program import PricedCall
from graphflops.tensor import BFLOAT16

_FEW_ROWS, _TILE, _FEW_TILES = limits("aten_2", "biased", "few_rows tile few_tiles")
# Element types of which ATen multiplies one group after the other (GroupedBlas.cpp).
_IN_TURN = ("float32", "float16")
_DEEP, _RESULTS, _MOST_RESULTS = limits("aten_2", "biased", "deep results most_results")


def multiplied(sizes: Product, like: Tensor, *, with_bias: bool = False) -> Kernel:
    """The kernel of a product of matrices with the elements of `like`; its epilogue adds a bias."""
    batch, m, n, k = sizes.batch, sizes.m, sizes.n, sizes.k
    read = ((m * k + k * n) * batch + with_bias * n) * like.bits // 8
    written = batch * m * n * like.bits // 8
    return Kernel("matmul", like.dtype, 2 * batch * m * n * k, with_bias * m * n, read, written, sizes)


def product(call: ConcreteCall) -> list[Kernel]:
    """The product after the copies that it needs; if the operand is not contiguous, a separate kernel adds the bias."""
    if (found := _problem(call)) is None:
        return []
    sizes, like = found
    if call.operator.name == "grouped_mm":
        return _of_groups(call, sizes, like)
    x, bias, out, kernels = call.operand("a"), call.operand("bias"), call.out, copied(call)
    if call.operator.name == "linear" and x is not None and x.rank > 2 and not x.is_contiguous:
        kernels.append(multiplied(replace(sizes, layout="tn") if kernels else sizes, like))
        if bias is not None and out is not None:
            read = out.full_bytes + bias.nbytes
            kernels.append(pointwise(out, [out, bias], read, out.full_bytes, out.numel))
        return kernels
    if bias is not None and out is not None and bias.rank > 1:  # the result starts as a copy of the bias
        kernels.append(elementwise(out, bias.nbytes, out.full_bytes))
        bias = None
    algorithm = _algorithm(call, sizes, like.dtype, with_bias=bias is not None)
    kernel = multiplied(replace(sizes, algorithm=algorithm), like, with_bias=bias is not None)
    operands = [call.operand("a"), call.operand("b", "weight")]
    if like.dtype == "int8" or len({x.bits for x in operands if x is not None}) > 1:  # mixed widths
        kernel = replace(kernel, read_bytes=call.cost.read_bytes, written_bytes=call.cost.written_bytes)
    return [*kernels, kernel]


def _algorithm(call: ConcreteCall, sizes: Product, dtype: str, *, with_bias: bool) -> ProductAlgorithm:
    """How a product is computed; cuBLASLt chooses for float32 with a bias, by the number of tiles and the length of sums."""
    if call.operator.word == "_int_mm":
        return "int8" if sizes.layout == "tn" else "int8_across"
    if call.operator.name == "scaled_mm" and any(x.numel > 1 for x in call.operands[2:4]):
        return "scaled_rows"
    is_chosen = with_bias and dtype == "float32" and sizes.layout == "tn" and sizes.batch == 1
    if not is_chosen or sizes.m <= _FEW_ROWS or sizes.n == 1:
        return ""
    if -(-sizes.m // _TILE) * -(-sizes.n // _TILE) <= _FEW_TILES:
        return "long_in_parts" if sizes.k >= _DEEP else "long"
    return "long" if sizes.m * sizes.n < min(_RESULTS * sizes.k, _MOST_RESULTS) else "tn"


def _of_groups(call: ConcreteCall, sizes: Product, like: Tensor) -> list[Kernel]:
    """One kernel multiplies the rows of each group by the group's matrix; another finds where groups begin.

    Without a kernel for the element type, zeros are filled in by a product for each group that has rows. Which groups have
    any depends on data: the matrices read are as many as expected if rows fall into groups at random.
    """
    weight = max(call.operands, key=lambda operand: operand.rank)
    groups, rows = max(weight.shape[0], 1), sizes.m
    reached = groups * (1 - (1 - 1 / groups) ** rows)
    sizes = replace(sizes, m=-(-rows // groups), batch=groups)
    read, written = call.cost.moved
    if call.operands[0].rank == 2 < weight.rank:
        if call.operator.word == "grouped_mm_fallback" or like.dtype in _IN_TURN:
            each = replace(sizes, m=-(-rows // max(round(reached), 1)), batch=1)
            zeros = Kernel("elementwise", like.dtype, written_bytes=written)
            return [zeros, *[multiplied(each, like)] * round(reached)]
        read -= int((min(rows, groups) - reached) * weight.full_bytes / groups)
        sizes = replace(sizes, algorithm="grouped")
    kernel = Kernel("matmul", like.dtype, call.cost.matrix_flops, 0, read, written, sizes)
    return [Kernel("elementwise", "int64"), kernel]


def product_backward(call: ConcreteCall) -> list[Kernel]:
    """One product for each factor that wants a gradient, and a sum over rows if a bias wants one."""
    if (found := _problem(call)) is None:
        return []
    sizes, like = found
    kernels, a, b = list[Kernel](), call.operand("a"), call.operand("b", "weight")
    for_b = sizes.for_a if b is not None and b.rank < 2 else sizes.for_b  # a vector is the first factor
    # Each product copies a gradient that repeats one number to all elements, in the order that it reads.
    repeated = [repeat(call.out)] if call.is_repeated and call.out is not None else []
    if repeated and sizes.layout == "tn":
        for_b = replace(for_b, layout="nn")
    for operand, other, gradient in ((a, b, sizes.for_a), (b, a, for_b)):
        if operand is not None and operand.requires_grad:
            kernels += repeated
            vectors = [x for x in (other, b) if x is not None and x.rank < 2]
            if len(vectors) == 2:  # a column times a row; if the first operand is a vector it has one row
                read = operand.shape[-1] * operand.bits // 8 + (0 if call.out is None else call.out.nbytes)
                kernels.append(elementwise(operand, read, operand.full_bytes, operand.numel))
            else:
                kernels.append(multiplied(gradient, like))
    bias, is_of_rows = call.operand("bias"), call.operator.name == "linear"
    if bias is not None and bias.requires_grad and call.out is not None:
        is_summed = is_of_rows or bias.numel < call.out.numel
        kernels += [reduction(call.out, sizes.n, is_inner=False)] * is_summed
    if not kernels:  # operands without canonical names, such as those of einsum: one product per gradient
        each = (sizes.for_a, sizes.for_b)[: len(call.gradients)]
        kernels = [multiplied(gradient, like) for gradient in each]
    return [*copied(call, again=True), *kernels]


def _problem(call: ConcreteCall) -> tuple[Product, Tensor] | None:
    """The sizes of a product, and a factor with the type that is multiplied; k is derived from the FLOPs."""
    out = call.out
    if out is None or not out.numel or not call.cost.matrix_flops or not call.operands:
        return None
    a, b = call.operand("a") or call.operands[0], call.operand("b", "weight")
    k = max(call.cost.matrix_flops // (2 * out.numel), 1)
    own = call.estimate.matrix_dtype  # where the rule states one
    like = a if own is None else replace(a, dtype=own.name)
    batch, n = 1, out.shape[-1] if out.rank else 1
    if b is not None and b.rank < 2:  # a vector: all results are in one column
        n = out.numel
    elif b is None or b.rank > 2:  # a weight that all batch entries share makes them one product
        first = call.operand("a")
        is_row = first is not None and first.rank < 2  # a vector times each matrix of a batch
        batch = prod(out.shape[: -1 if is_row else -2])
    m = out.numel // max(batch * n, 1)
    # The first letter is that of the second operand, in the order of BLAS: t if k is innermost.
    is_t = call.operator.name == "linear" or (b is not None and b.is_transposed)
    if a.is_transposed:
        return Product(m, n, k, batch, "tt" if is_t else "nt"), like
    return Product(m, n, k, batch, "tn" if is_t else "nn"), like


_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_LAYERS, _TRAIN, _BIDIRECTIONAL, _BATCH_FIRST = "#4", "#6", "#7", "#8"  # arguments by place
_CELLS = "rnn gru lstm"
_LAYER_BYTES, _BOTH, _OF_GRADIENTS = limits("cudnn_9", "recurrent", "layer both gradients")
_RESIDENT_FORWARD, _RESIDENT_BACKWARD = limits("cudnn_9", "resident", "forward backward")
_UNITS, _OF_GATE = limits("cudnn_9", "resident", "units gate")
RESIDENT_TYPES = frozenset({"float32", "float16"})
# By cell: tensors of all steps that a layer reserves; tensors that on-chip weights add to the workspace of gradients.
_RESERVED = dict(zip(_CELLS.split(), limits("cudnn_9", "reserve", _CELLS), strict=True))
_ON_CHIP = dict(zip(_CELLS.split(), limits("cudnn_9", "resident", _CELLS), strict=True))


@on_operand
def recurrent(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel for all layers and steps, after a copy if the batch is first; also for cuDNN's operator of gradients."""
    if not out.rank:
        return []
    phase: Pass = "backward" if call.operator.word.endswith("_backward") else "forward"
    sizes = _sizes(call, phase)
    if "cell" in call.operator.word:  # products of operand and state, and one kernel for all gates
        gates = sizes.gates * sizes.hidden
        size = sizes.batch * gates * x.bits // 8
        gated = elementwise(x, 2 * size, size // sizes.gates, 3 * sizes.batch * gates)
        return [*[multiplied(each, x) for each in _of_cell(sizes)], gated]
    turned = [copy(x.permuted(1, 0, *range(2, x.rank)))] if _is_batch_first(call) else []
    return [*turned, Kernel("recurrence", x.dtype, call.cost.matrix_flops, 0, *call.cost.moved, sizes)]


@on_operand
def recurrent_backward(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel that processes the steps in reverse."""
    if not out.rank:
        return []
    sizes, cost = _sizes(call, "backward"), call.backward_cost
    if "cell" not in call.operator.word:
        return [Kernel("recurrence", x.dtype, cost.matrix_flops, 0, *cost.moved, sizes)]
    # A cell: its gates, sums for both biases, and for each product the gradients of operand and weight.
    gates, rows = sizes.gates * sizes.hidden, sizes.batch
    size = rows * gates * x.bits // 8
    grads = replace(x, shape=(rows, gates), strides=(gates, 1), nbytes=size)
    kernels = [elementwise(x, 2 * size, size, 3 * rows * gates)]
    kernels += [reduction(grads, gates, is_inner=False)] * 2
    for each in _of_cell(sizes):
        kernels += [multiplied(each.for_a, x), multiplied(each.for_b, x)]
    return kernels


def _is_batch_first(call: ConcreteCall) -> bool:
    return call.own.get("batch_first") is True and call.operands[0].rank >= SEQUENCE_RANK


def _sizes(call: ConcreteCall, phase: Pass) -> Recurrence:
    """Steps, batch and widths, as far as the operands show them; a cell is one step."""
    x, out, own = call.operands[0], call.out, call.own
    assert out is not None
    gates = _GATES.get(call.operator.name, 1)
    if "mode" in own:  # cuDNN's operator in a recorded step has a number for the cell
        from graphflops.rules.recurrent import MODES  # no other program needs it

        gates = MODES[own["mode"]].gates
    given = own.get("hx")
    states = (call.named(given.name),) if isinstance(given, Ref) else call.results[1:]
    state = next((each for each in states if each is not None and each.rank >= SEQUENCE_RANK), None)
    hidden = state.shape[-1] if state is not None else out.shape[-1]
    directions = 1 + (own.get("bidirectional") is True)
    layers = max(prod(state.shape[:-2]) // directions, 1) if state is not None else 1
    if x.rank < SEQUENCE_RANK:
        steps, batch = (x.shape[0], 1) if state is not None else (1, x.shape[0] if x.rank else 1)
    else:
        steps, batch = (x.shape[1], x.shape[0]) if _is_batch_first(call) else x.shape[:2]
    return Recurrence(steps, batch, x.shape[-1] if x.rank else 1, hidden, gates, layers, directions, phase)


def _of_cell(sizes: Recurrence) -> list[Product]:
    """The products of operand and state with the weights of all gates."""
    return [Product(sizes.batch, sizes.gates * sizes.hidden, width) for width in (sizes.inputs, sizes.hidden)]


def is_resident(sizes: Recurrence, dtype: str) -> bool:
    """Whether the recurrent weight stays on chip, so that one kernel processes all steps."""
    most = _RESIDENT_BACKWARD if sizes.phase == "backward" else _RESIDENT_FORWARD
    return dtype in RESIDENT_TYPES and resident_weights(sizes) <= most


def resident_weights(sizes: Recurrence) -> int:
    """Elements of the recurrent weight, padded as kernels that keep it on chip need it."""
    return sizes.gates * up(sizes.hidden, _UNITS) ** 2


def reserve_bytes(cell: str, out: Dim, layers: int, copied: Dim, *, is_training: bool) -> Dim:
    """Bytes of cuDNN's reserve: what gradients read, in training. out: bytes of the result. copied: of copies of weights."""
    return copied + (out * (layers * _RESERVED[cell] + layers - 1) if is_training else 0)


class Recurrent(Record, frozen=True):
    """Bytes that a stack of recurrent layers needs."""

    reserve: Dim
    workspace: Dim
    # What gradients need beside themselves. cuDNN computes the operand's gradient even if it is not wanted, from a copy of
    # the result's gradient if the batch is first. The weights' gradients come after it.
    backward: Dim

    @staticmethod
    def of(call: PricedCall, values: Mapping[str, Value]) -> Recurrent | None:
        """The layers of a call on padded sequences; None for other calls."""
        name = call.node.operator.name
        if name not in _RESERVED or call.node.operator.kind != "recurrent":
            return None
        out = tensor_type(call.node.outputs[0], values)
        if out is None or out.rank != SEQUENCE_RANK:
            return None
        arguments, read = call.node.arguments(), [tensor_type(each, values) for each in call.uses]
        layers, directions = arguments.get(_LAYERS), 2 if arguments.get(_BIDIRECTIONAL) is True else 1
        if not isinstance(layers, int):
            return None
        is_batch_first, states = arguments.get(_BATCH_FIRST) is True, 2 if name == "lstm" else 1
        x, *others = [each for each in read if each is not None]
        copied, given = total(weight.like().nbytes for weight in others[states:]), x.like().nbytes
        is_training = arguments.get(_TRAIN) is True
        unit, hidden = ceil_div(out.nbytes, directions), known(ceil_div(out.shape[-1], directions))
        sizes = Recurrence(1, 1, 1, hidden, _GATES[name], layers, directions)
        beside = copied + layers * directions * _LAYER_BYTES + (given if is_batch_first else 0)
        forward, backward = (
            beside + _workspace(name, unit, given, replace(sizes, phase=phase), out.dtype.name, is_training)
            for phase in ("forward", "backward")
        )
        transposed = out.like().nbytes if is_batch_first else 0
        unwanted = 0 if x.requires_grad else given
        kept = copied if out.dtype == BFLOAT16 else 0
        reserve = reserve_bytes(name, unit * directions, layers, kept, is_training=is_training)
        return Recurrent(reserve, forward, backward + unwanted + dim_max(0, transposed - copied))


def _workspace(cell: str, unit: Dim, x: Dim, sizes: Recurrence, dtype: str, is_training: bool) -> Dim:
    """Bytes of cuDNN's products of operand and state, and in training of their gradients.

    unit: bytes of one direction's result. x: bytes of the operand. A second layer reads what the first one makes: one more
    tensor of each direction, or one less if the weights of a single direction are not on chip.
    """
    both, is_on_chip = sizes.directions > 1, is_resident(sizes, dtype)
    whole = sizes.directions * (sizes.gates + 1) + _BOTH * both + _OF_GATE * sizes.gates * is_on_chip
    products = unit * whole + x
    if not is_training:
        return products
    further = (sizes.directions if both or is_on_chip else -1) * (sizes.layers > 1)
    kept = sizes.directions * _OF_GRADIENTS + _ON_CHIP[cell] * is_on_chip + further
    return dim_max(products, unit * kept + 2 * x + sizes.directions**2 * dim_max(unit, x))
