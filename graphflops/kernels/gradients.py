"""The kernels of the gradients of one call, by kind of operator; also the kernels of operators that compute gradients.

Recorded steps and joint graphs call such operators: `native_layer_norm_backward` runs what the gradient of
`native_layer_norm` runs. Its operands describe the forward call as far as its gradient reads it: they have the names of the
forward's operands, and an operand that is missing has the type of its gradient.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from math import prod

from graphflops.base.record import replace
from graphflops.execution.composed_gradients import gradient_calls
from graphflops.graph import Ref
from graphflops.kernels import attention, cudnn, images, matrices, moved, products, rowwise
from graphflops.kernels.buffers import GradientKernels, axes_of, gradient_kernels
from graphflops.kernels.call import READING_IN_ORDER, ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.gathered import added_sorted, rows_taken
from graphflops.kernels.kernel import Family, Kernel, Rows
from graphflops.kernels.lower import ALIGNED, forward_kernels, kernels_inside
from graphflops.ops.operator import Op, by_name, operator, orders
from graphflops.passes.program import Backward, PricedCall
from graphflops.rules.elementwise import work_of_launch
from graphflops.rules.formula import REDUCING, SCANNING
from graphflops.tensor import TensorType

_KINDS = frozenset({"attention", "gather", "loss", "normalisation", "pooling", "resampling", "softmax"})
_OUTGOING = ("grad_output", "grad_out", "grad")  # names of the gradient of the forward's result
_WANTED = ("output_mask", "grad_input_mask")  # names of the mask of operands that want a gradient
_DENSE = "_dense"  # in `embedding_dense_backward`, which fills a whole table


@lru_cache(maxsize=2**10)
def forward_of(found: Op) -> Op | None:
    """The operator whose gradients this one computes, by name; None if it computes none or its kind is not listed."""
    word, is_gradient, rest = found.word.partition("_backward")
    if not is_gradient or rest not in ("", "_data") or found.dialect != "aten":
        return None
    forward = operator(f"aten.{word.removesuffix(_DENSE)}.default")
    return forward if forward.kind in _KINDS and forward.parameters else None


def _as_forward(call: ConcreteCall, forward: Op) -> ConcreteCall:
    """The forward call whose gradients a call computes. Its result is the gradient that comes in."""
    given, own, names = call.call, call.own, orders(forward.spelling)[0][: len(forward.parameters)]
    values = {name: call.values.get(name) for name in given.uses}
    pairs = zip(given.estimate.out, given.node.outputs, strict=False)
    made = [(x, name or "") for x, name in pairs if isinstance(x, TensorType)]
    if names[0] not in own and made:
        own, values[made[0][1]] = {**own, names[0]: Ref(made[0][1])}, made[0][0]
    wanted = next((own[name] for name in _WANTED if name in own), (True,) * len(made))
    uses, wanting = list[str](), list[int]()
    turn = 0  # the place among operands that may have a gradient
    for name in names:
        ref = own.get(name)
        x = values.get(ref.name) if isinstance(ref, Ref) else None
        if isinstance(ref, Ref) and isinstance(x, TensorType):
            is_wanted = turn < len(wanted) and bool(wanted[turn])
            values[ref.name] = replace(x, requires_grad=is_wanted)
            wanting += [len(uses)] * is_wanted
            uses.append(ref.name)
        turn += isinstance(x, TensorType) or name not in own
    incoming = next((ref.name for name in _OUTGOING if isinstance(ref := own.get(name), Ref)), "")
    known = tuple(own.items())
    node = replace(given.node, op=forward.spelling, args=(), kwargs=known, outputs=(incoming,))
    writes = tuple([x for x, _ in made]) if given.estimate.writes is None else given.estimate.writes
    estimate = replace(given.estimate, out=(values.get(incoming),), writes=writes)
    gradient = Backward(given.estimate, tuple([(place, True) for place in wanting]))
    priced = PricedCall(node, tuple(uses), estimate, gradient, given.row)
    return ConcreteCall(priced, values, call.strides, call.sizes, None, call.attention_kernel)


def call_kernels(call: ConcreteCall) -> list[Kernel]:
    """The kernels of a call, in order; an operator that computes gradients launches those of its forward's backward."""
    forward = forward_of(call.operator)
    return forward_kernels(call) if forward is None else backward_kernels(_as_forward(call, forward))


def backward_kernels(call: ConcreteCall) -> list[Kernel]:
    """The kernels of a call's gradients, in order."""
    if not call.gradients:
        return []
    operator = call.operator
    if (inside := gradient_calls(call.call, call.values)) is not None:
        out, places = call.out, [place for place, _ in call.gradients]
        known = [call.operands[each] for each in places if gradient_kernels(call.call, each, call.values)]
        sums = [_summed(call, out, x) for x in known if out is not None and x.numel < out.numel]
        return [*kernels_inside(call, inside), *sums]
    if operator.word in _SELECTING:
        return _selected(call)
    lower = _BY_NAME.get(operator.name) or _BACKWARD.get(operator.kind, _other_backward)
    kernels = lower(call) or ([] if operator.parameters else _other_backward(call))
    if call.out is None or not call.is_repeated or operator.kind not in READING_IN_ORDER - {"product"}:
        return kernels
    return [moved.repeat(call.out), *kernels]


@moved.on_operand
def _elementwise_backward(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """The kernels of the formula for each wanted operand, and a sum over the axes along which the operand is broadcast."""
    kernels: list[Kernel] = []
    for place, has_memory in call.gradients:
        if place >= len(call.operands):
            continue
        operand = call.operands[place]
        if has_memory:
            computed = gradient_kernels(call.call, place, call.values)
            if computed is not None and not computed.formula.is_fused:
                kernels += _launched(call, computed, out)
            elif computed is None or not kernels:  # one fused kernel computes the gradients of all operands
                cost, count = call.backward_cost, sum(each for _, each in call.gradients)
                # Special-function units evaluate transcendentals at the same time.
                read, work = cost.read_bytes // count, cost.arithmetic // count
                kernels.append(moved.pointwise(out, [out, *call.operands[:1]], read, out.full_bytes, work))
        if operand.numel < out.numel:
            kernels.append(_summed(call, out, operand))
        if operand.dtype != out.dtype:
            kernels.append(_converted(operand, out))
    return kernels


def _converted(x: Tensor, out: Tensor) -> Kernel:
    """The kernel that converts a gradient from the result's element type to the operand's."""
    return moved.copy(replace(x, dtype=out.dtype, bits=out.bits, nbytes=x.numel * out.bits // _BYTE), x.bits)


def _launched(call: ConcreteCall, found: GradientKernels, out: Tensor) -> list[Kernel]:
    """The kernels of a formula, each of which reads operands and what earlier ones have made."""
    tensors, kernels = list[Tensor](), list[Kernel]()

    def named(leaf: str) -> Tensor:
        return call.named(found.named.get(leaf, "")) or out

    for launch in found.launches:
        # Not the mask where sizes are equal, nor a factor that is a broadcast view.
        leaves = map(named, sorted(found.shaped(launch)))
        made = max(leaves, key=lambda leaf: (leaf.numel, leaf.bits, leaf.nbytes), default=out)
        size = made.full_bytes
        if launch.function in REDUCING:  # as in the forward
            made = out
            kernels.append(moved.reduction(call.operands[0], out.numel if launch.leaves else 1))
        elif not launch.leaves:  # one number
            kernels.append(moved.elementwise(out, 0, out.bits // _BYTE))
        elif launch.function == "flip":
            kernels.append(Kernel("copy", made.dtype, 0, 0, size, size, variant="strided"))
        elif launch.function in SCANNING:  # in reverse
            kernels.append(moved.rows_kernel("scan", made, call, size, size))
        else:
            if launch.function == "masked_fill" and not launch.is_in_place:
                kernels.append(moved.copy(made))
            read = [tensors[each] if isinstance(each, int) else named(each) for each in launch.operands]
            work, written = work_of_launch(launch), made.numel if launch.is_mask else size
            count = (work.flops + work.transcendentals) * made.numel
            kernels.append(moved.pointwise(made, read, sum(x.nbytes for x in read), written, count))
            made = replace(made, bits=_BYTE, nbytes=made.numel) if launch.is_mask else made
        tensors.append(made)
    return kernels


def _summed(call: ConcreteCall, out: Tensor, operand: Tensor) -> Kernel:
    """The sum of a gradient over the axes that the operand was broadcast along."""
    axes = zip(axes_of(call.operator, operand.shape, out.rank), operand.shape, strict=True)
    kept = [axis for axis, size in axes if size == out.shape[axis]]
    return replace(moved.sum_to(out, kept), read_bytes=out.full_bytes, written_bytes=operand.full_bytes)


@moved.on_operand
def _view_backward(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """For a part, zeros and a copy of the gradient into them; for `expand`, a sum; for `split` and the like, one copy."""
    name = call.operator.name
    if name in ("slice", "select", "narrow", "index_select", "diagonal", "unfold", "as_strided"):
        return [moved.fill(x), moved.copy(out)] if x.numel != out.numel else []
    if name in ("split", "chunk", "unbind"):
        # Gradients have the order of the parts' axes. Stacked in order, whole loads are read at a time.
        run = prod(out.shape[moved.axis_of(call, x.rank) :]) * x.bits // _BYTE
        in_order = [*out.strides] == sorted(out.strides, reverse=True) and run % ALIGNED == 0
        stacked = "cat_aligned" if in_order else "joined"
        variant = stacked if name == "unbind" else ""
        return [Kernel("copy", x.dtype, 0, 0, x.full_bytes, x.full_bytes, variant=variant)]
    return [_summed(call, out, x)] if name == "expand" and x.numel < out.numel else []


@moved.on_operand
def _reduction_backward(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """The kernels of the formula; the gradient of a sum is an expanded view, that of a mean is divided and written."""
    if call.operator.name == "sum":
        return []
    if call.operator.name == "mean":
        return [moved.spread(x, out)]
    found = gradient_kernels(call.call, 0, call.values)
    return _selected(call) if found is None else _launched(call, found, out)


def _selected(call: ConcreteCall) -> list[Kernel]:
    """The gradients of elements that were selected along an axis, scattered into zeros."""
    out, x = call.out, call.operands[0]
    if out is None or len(call.results) < 2:  # a function whose gradient has no formula
        return [moved.elementwise(x, x.full_bytes, x.full_bytes, x.numel)]
    return [moved.fill(x), moved.scattered(x, out.numel, "scatter")]


def _gather_backward(call: ConcreteCall) -> list[Kernel]:
    """Zeros of the table's size, to which the rows of the gradient are added."""
    out, table, name = call.out, call.operand("weight", "x"), call.operator.name
    if out is None or table is None or not table.requires_grad:
        return []
    indices = max(out.numel // max(prod(table.shape[1:]), 1), 1)
    size = out.full_bytes
    if name == "embedding" and indices <= _UNSORTED:
        sizes = Rows(table.shape[-1], indices, is_inner=False)
        added = [Kernel("scatter", table.dtype, 0, 0, size, size, sizes, variant="embedding_backward")]
    elif name in ("embedding", "embedding_bag", "index"):
        added = added_sorted(call, table, out)
    elif name == "gather":
        added = [moved.scattered_along(call, table, out.numel, "scatter_add")]
    else:
        added = [moved.added_rows(table, out.numel)]
    return [moved.fill(table), *added]


def _scatter_backward(call: ConcreteCall) -> list[Kernel]:
    """The operand's gradient is a copy of the result's with zeros at the written places; the source's is gathered from it.

    One kernel reads whole rows, also if an index is expanded along all axes behind the first.
    """
    kernels, name = _other_backward(call), call.operator.name
    index, source = call.operand("index"), call.operand("source")
    is_repeated = name == "scatter_add" and index is not None and not any(index.strides[1:])
    is_by_rows = is_repeated or name == "index_add"
    if is_by_rows and source is not None and source.rank and moved.axis_of(call, source.rank) == 0:
        rows, columns = source.shape[0], prod(source.shape[1:])
        taken = [replace(kernel, family="gather") for kernel in kernels]
        kernels = [rows_taken(kernel, rows, columns, source.bits) for kernel in taken]
    if (0, True) in call.gradients:
        zeros = 2 if call.operator.name == "index_put" else 1  # zeros are made first, then written
        kernels += [moved.elementwise(call.operands[0], 0, 0)] * zeros
    return kernels


def _movement_backward(call: ConcreteCall) -> list[Kernel]:
    """Gradients of joined parts are views; padded or repeated operands need a copy, after a fill for constant padding."""
    name, out = call.operator.name, call.out
    wanted = [call.operands[place] for place, _ in call.gradients if place < len(call.operands)]
    if call.operator.word in _JOINING:  # views; those of another element type are converted
        return [_converted(x, out) for x in wanted if out is not None and x.dtype != out.dtype]
    if name == "repeat" and out is not None:
        return [_summed(call, out, x) for x in wanted]
    added = [] if out is None else [each for x in wanted for each in moved.reflected(call, x, out, "scatter")]
    if added:
        return [*map(moved.fill, wanted), *added]
    is_filled = name == "pad" and call.arguments.get("mode") in (None, "constant")
    copied = [call.operands[place] for place, has_memory in call.gradients if has_memory]
    return [*(map(moved.fill, wanted) if is_filled else ()), *map(moved.copy, copied)]


@moved.on_operand
def _softmax_backward(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """For a softmax, the gradient is first multiplied by the result; a log-softmax needs no product."""
    if not out.numel:
        return []
    size, name, axis = out.full_bytes, call.operator.name, moved.axis_of(call, out.rank)
    product = [] if name.startswith("log") else [moved.elementwise(out, 2 * size, size, out.numel)]
    kernel = moved.softmax(out, axis, call.cost.arithmetic, f"{name}_backward", 2 * size, size)
    return [*product, kernel]


def _resampling_backward(call: ConcreteCall) -> list[Kernel]:
    """Interpolations with a model of their own; grids and antialiased interpolations are one kernel for each gradient."""
    word = call.operator.word
    is_known = images.is_cubic(word) or "nearest" in word or "linear" in word
    return images.interpolation_backward(call) if is_known else _other_backward(call)


def _other_backward(call: ConcreteCall) -> list[Kernel]:
    """One kernel for each gradient that has memory of its own; the kernels share work and traffic."""
    count = sum(has_memory for _, has_memory in call.gradients)
    like, cost = call.out or next(iter(call.operands), None), call.backward_cost
    if like is None or not count or cost.written_bytes == 0:
        return []
    read, written = (size // count for size in cost.moved)
    flops, work = cost.matrix_flops // count, cost.arithmetic // count
    family, variant = _FAMILY_OF_BACKWARD.get(call.operator.kind, "other"), f"{call.operator.name}_backward"
    return [Kernel(family, like.dtype, flops, work, read, written, variant=variant)] * count


_BYTE = 8  # bits
(_UNSORTED,) = limits("aten_2", "embedding", "unsorted")
_JOINING = frozenset(
    {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "row_stack", "dstack", "column_stack"}
)
_SELECTING = frozenset({"median", "nanmedian", "kthvalue", "mode", "cummax", "cummin"})
_FAMILY_OF_BACKWARD: Mapping[str, Family] = {"resampling": "pool", "dropout": "elementwise", "scan": "scan"}
_BY_NAME: Mapping[str, moved.Lowering] = by_name(
    {
        "col2im": moved.on_operand(lambda call, x, out: images.columns(call, out, x)),
        "im2col": moved.on_operand(lambda call, x, out: images.image(call, out, x)),
        # A gradient is moved back, or scaled, by the same kernel.
        **dict.fromkeys(("pixel_shuffle", "roll", "weight_norm"), forward_kernels),
    }
)
_BACKWARD: Mapping[str, moved.Lowering] = {
    "elementwise": _elementwise_backward,
    "cast": moved.on_operand(  # it keeps the strides of what it converts
        lambda call, x, out: [] if call.estimate.alias else [moved.copy_to(replace(out, bits=x.bits), out)]
    ),
    "identity": _view_backward,
    "view": _view_backward,
    "movement": _movement_backward,
    "gather": _gather_backward,
    "scatter": _scatter_backward,
    "reduction": _reduction_backward,
    "pooling": partial(images.pooling, is_backward=True),
    "loss": rowwise.loss_backward,
    "resampling": _resampling_backward,
    "scan": _reduction_backward,
    "softmax": _softmax_backward,
    "sort": _selected,
    "product": products.product_backward,
    "convolution": cudnn.convolution_backward,
    "normalisation": rowwise.norm_backward,
    "attention": attention.attention_backward,
    "recurrent": products.recurrent_backward,
    "linear_algebra": lambda call: matrices.decomposition_gradient(call) or _other_backward(call),
    "collective": partial(moved.collective, is_backward=True),
}
