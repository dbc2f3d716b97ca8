"""Norms and losses, forward and backward, as PyTorch's CUDA kernels compute them.

A loss is a pointwise kernel and a reduction; a loss of classes is a softmax and one block that reads each row's class.
"""

from collections.abc import Mapping
from math import log2, prod

from graphflops.base.record import replace
from graphflops.cost import Value
from graphflops.dims import Dim
from graphflops.execution.layouts import Layouts
from graphflops.execution.strides import row_major
from graphflops.graph import tensor_type
from graphflops.kernels.beside import OF_GROUPS, largest_power
from graphflops.kernels.call import ConcreteCall, Sizes, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import FLOAT_BYTES, HALF, Family, Kernel, Rows, Strided
from graphflops.kernels.moved import copied, elementwise, fill, is_last, reduction, repeat, softmax
from graphflops.passes.program import PricedCall, PricedProgram
from graphflops.tensor import TensorType

_MANY_ROWS, _FEW_COLUMNS = limits("aten_2", "layer_norm", "many_rows few_columns")
_ROWS_OF_A_PART, _VECTOR = limits("aten_2", "layer_norm", "rows_of_a_part vector")


def norm(call: ConcreteCall) -> list[Kernel]:
    """One kernel; a group norm computes moments, turns them into factors, and applies the factors."""
    if (x := call.operand("x")) is None:
        return []
    name, in_order = call.operator.name, copied(call)
    if name in OF_GROUPS:
        factors = [] if _is_of_vectors(x) else [elementwise(x, 0, 0)]
        moments = _moments(call, x, x.full_bytes)
        return [*in_order, moments, *factors, _with_factors(x, x.full_bytes, 2, 2)]
    if name == "batch_norm":
        return [*in_order, *batch_norm(call, _as_read(call, x))]
    read, written = call.cost.moved
    if x.rank and rows_of(call, x).columns % _VECTOR:
        return [*in_order, _of(call, x, read, 0, "moments"), _of(call, x, read, written, "applied")]
    return [*in_order, _of(call, x, read, written, name if name == "rms_norm" else "")]


def _as_read(call: ConcreteCall, x: Tensor) -> Tensor:
    """The operand, or its row-major copy."""
    return replace(x, strides=row_major(x.shape)) if copied(call) else x


def weight_norm(call: ConcreteCall) -> list[Kernel]:
    """A weight scaled to norms along its first or last axis; one block for every 16 columns loops over all rows."""
    x, g = call.operands[0], call.operands[-1]
    columns = max(g.numel, 1)
    rows = Rows(columns, x.numel // columns, is_inner=bool(g.rank) and g.shape[0] == columns)
    variant, size = "weight_norm" if rows.is_inner else "weight_norm_last", x.full_bytes
    return [Kernel("normalization", x.dtype, 0, 2 * x.numel, size, size, rows, variant)]


def norm_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradient of the operand, and another kernel for weight and bias if they want one."""
    if (x := call.operand("x")) is None:
        return []
    if (name := call.operator.name) == "batch_norm":
        return batch_norm_backward(call, _as_read(call, x))
    if name in OF_GROUPS:
        # Sums over the pixels of each channel, factors from the sums, their use; the weight's gradient is from the sums.
        size, channels, small = 2 * x.full_bytes, prod(x.shape[:2]), elementwise(x, 0, 0)
        applied, of_weight = _with_factors(x, size, 4, 3), call.wants("weight", "bias")
        if _is_of_vectors(x):  # factors in one kernel; one block for every 32 channels loops over all vectors
            each = Rows(x.shape[1], _LONE * x.shape[0], is_inner=False)
            added = Kernel("reduction", x.dtype, 0, 4 * x.numel, size, 0, each, variant="layer_norm_weight")
            return [*[_moments(call, x, size), applied] * x.requires_grad, *[added] * of_weight]
        sums = _of(call, x, size, 0, "channel_sums", Rows(channels, x.numel // max(channels, 1)))
        return [sums, *[small, applied] * x.requires_grad, *[small] * of_weight]
    # A root-mean-square norm runs the kernel of a layer norm.
    of_x = _of(call, x, 2 * x.full_bytes, x.full_bytes, "layer_norm_backward")
    summed = _weight_gradient(call, x, name) if call.wants("weight", "bias") else []
    return [*copied(call, again=True), *[of_x] * x.requires_grad, *summed]


def _is_of_vectors(x: Tensor) -> bool:
    """Whether each channel has one element."""
    return x.numel == prod(x.shape[:2])


def _moments(call: ConcreteCall, x: Tensor, read: int) -> Kernel:
    """One block for each group, or one warp if a group has few elements."""
    variant = "moments" if rows_of(call, x).columns >= _THREADS else "moments_of_few"
    return _of(call, x, read, 0, variant)


def _with_factors(x: Tensor, read: int, work: int, factors: int) -> Kernel:
    """A pointwise kernel with `factors` factors for each channel."""
    return elementwise(x, read, x.full_bytes, work * x.numel, Strided(x.numel, 2, 2 + factors))


def _weight_gradient(call: ConcreteCall, x: Tensor, name: str) -> list[Kernel]:
    """One block for every 32 columns loops over all rows; many rows of few columns are summed in parts."""
    over, work, read = rows_of(call, x), 4 * x.numel, 2 * x.full_bytes
    rows, columns = over.rows, over.columns
    if rows <= _MANY_ROWS or columns >= _FEW_COLUMNS:
        sums = Rows(columns, rows, is_inner=False)
        return [Kernel("reduction", x.dtype, 0, work, read, 0, sums, variant=f"{name}_weight")]
    added = Rows(columns, rows // _ROWS_OF_A_PART, is_inner=False)
    count = added.rows * added.columns
    summed = Kernel("reduction", "float32", 0, count, FLOAT_BYTES * count, 0, added, variant="outer")
    return [elementwise(x, read, FLOAT_BYTES * count, work), summed]


def _of(
    call: ConcreteCall, x: Tensor, read: int, written: int, variant: str = "", over: Rows | None = None
) -> Kernel:
    rows = over or rows_of(call, x)
    variant = variant or "outer" * (not rows.is_inner)
    return Kernel("normalization", x.dtype, 0, call.cost.arithmetic, read, written, rows, variant=variant)


def rows_of(call: ConcreteCall, x: Tensor) -> Rows:
    """The rows that are normalised: the last axes, a group of channels, or one channel of all images."""
    if call.operator.has("images") and x.rank > 1:
        return Rows(x.shape[1], x.numel // max(x.shape[1], 1), is_inner=False)
    groups = call.arguments.get("groups")
    if isinstance(groups, int):
        rows = x.shape[0] * groups
        return Rows(rows, x.numel // max(rows, 1))
    weight = call.operand("weight")
    columns = weight.numel if weight is not None and weight.numel else x.shape[-1] if x.rank else 1
    return Rows(x.numel // max(columns, 1), columns)


# Batch norms as PyTorch and cuDNN compute them (Normalization.cuh of ATen)

_ON_CHIP, _ON_CHIP_HALF = limits("cudnn_9", "batch_norm", "on_chip on_chip_half")
_BLOCKS, *_TURNS = limits("cudnn_9", "batch_norm", "blocks fewest_turns most_turns")
_WARP = 32  # pixels
(_LONE,) = limits("aten_2", "group_norm", "lone")
_SHARED = 2  # images per block
_THREADS = 512  # of a block


def batch_norm(call: ConcreteCall, x: Tensor) -> list[Kernel]:
    """In training, one cuDNN kernel, or three of PyTorch: moments, running moments, their use. Otherwise their use alone."""
    if call.arguments.get("training") is not True:
        return _applied(call, x)
    if _is_of_cudnn(call, x):
        return [_of_cudnn(call, x, 1, "batch_norm_training")]
    each, size, last = rows_of(call, x), x.full_bytes, "_last" * _is_innermost(x)
    running = elementwise(x, 4 * each.rows, 4 * each.rows)
    moments = _of(call, x, size, 0, f"batch_norm_moments{last}")
    if not last:
        return [moments, running, _applied(call, x)[-1]]
    applied = _of(call, x, size, size, "batch_norm_applied_last", Rows(each.columns, each.rows))
    return [running, moments, running, applied]


def batch_norm_backward(call: ConcreteCall, x: Tensor) -> list[Kernel]:
    """One kernel for all gradients, or two of PyTorch if channels are innermost: sums, and their use."""
    arguments, each, size = call.arguments, rows_of(call, x), x.full_bytes
    if arguments.get("training", arguments.get("train")) is not False and _is_of_cudnn(call, x):
        return [_of_cudnn(call, x, 2, "batch_norm_training_backward")]
    if _is_innermost(x):
        sums, pixels = _of(call, x, 2 * size, 0, "batch_norm_sums_last"), Rows(each.columns, each.rows)
        return [sums, _of(call, x, 2 * size, size, "batch_norm_gradient_last", pixels)]
    return [_of(call, x, 2 * size, size, "batch_norm_backward")]


def _is_innermost(x: Tensor) -> bool:
    """Whether PyTorch's kernels for innermost channels run; they also run for rows of features."""
    return is_last(x) or (x.rank == 2 and x.strides[1] == 1)


def _is_of_cudnn(call: ConcreteCall, x: Tensor) -> bool:
    """Whether cuDNN runs it: not in bfloat16, and 16-bit operands only with a float32 weight (Normalization.cpp)."""
    weight = call.operand("weight")
    if weight is None or x.rank <= 2 or "bfloat16" in (x.dtype, weight.dtype):
        return False
    return x.bits > HALF or weight.bits > HALF


def _of_cudnn(call: ConcreteCall, x: Tensor, tensors: int, variant: str) -> Kernel:
    """A kernel that reads `tensors` tensors twice, or once if one channel of them fits on chip."""
    rows, times = rows_of(call, x), 2
    if is_last(x):
        variant += "_last"
    elif tensors * rows.columns * x.bits <= 8 * (_ON_CHIP if x.bits > HALF else _ON_CHIP_HALF):
        variant, times = f"{variant}_once", 1
    return _of(call, x, times * tensors * x.full_bytes, x.full_bytes, variant)


def _applied(call: ConcreteCall, x: Tensor) -> list[Kernel]:
    """One kernel with a block for each channel of each image; PyTorch's half precision first takes two to make factors."""
    channels, is_of_cudnn = prod(x.shape[1:2]), _is_of_cudnn(call, x)
    read, written = call.cost.moved
    factors = []
    if is_of_cudnn and is_last(x) and prod(x.shape[2:]) > 1:  # a block processes pieces of an image in turn
        image = x.numel // max(x.shape[0], 1)
        turns = max(largest_power(max(image // (_THREADS * _BLOCKS), 1), _TURNS[1]), _TURNS[0])
        pieces = Rows(x.shape[0] * -(-image // (_THREADS * turns)), min(turns, -(-image // _THREADS)))
        return [_of(call, x, read, written, "batch_norm_pieces", pieces)]
    if x.bits == HALF and not is_of_cudnn:  # the variance in float32, and the inverse of its square root
        sizes = Strided(channels, 1, 2, has_casts=True)
        cast = Kernel("copy", x.dtype, 0, 0, 2 * channels, 4 * channels, sizes, variant="cast")
        factors = [cast, elementwise(x, 4 * channels, 4 * channels)]
    if prod(x.shape[2:]) == 1 or x.strides[1] == 1:  # innermost channels: a pointwise kernel
        rows = Rows(x.numel // max(channels, 1), channels)
        return [*factors, _of(call, x, read, written, "batch_norm_last", rows)]
    pixels = prod(x.shape[2:])
    images = -(-x.shape[0] // (_SHARED if pixels <= _WARP else 1))  # small images share a block
    rows = Rows(images * channels, pixels)
    return [*factors, _of(call, x, read, written, "batch_norm", rows)]


_LABELS, _FEWEST, _MOST, _IMAGE_BLOCKS = limits("aten_2", "nll_loss", "labels fewest most blocks")
_OF_CLASSES = frozenset({"nll_loss", "cross_entropy_loss"})
_SMOOTHING = "#5"  # the argument at that place


def loss(call: ConcreteCall) -> list[Kernel]:
    """The loss of each element or row, and their mean."""
    x, out = call.operand("x"), call.out
    if x is None or out is None or not x.numel:
        return []
    if call.operator.name in _OF_CLASSES and x.shape:
        logs = _log_softmax(call, x, "log_softmax", 1)
        small, sums = elementwise(out, 0, 0), reduction(x, x.numel // max(_classes(x), 1))
        if _is_of_shares(call.call, call.values):
            return [*logs, _each(x), sums, small, small]
        smoothed = [sums, *[small] * 8, *[reduction(out, 1)] * 2] if call.arguments.get(_SMOOTHING) else []
        return [*logs, _picked(x, "gather"), *smoothed]
    return [_each(x), *([reduction(x, out.numel)] if out.numel < x.numel else [])]


def _each(x: Tensor) -> Kernel:
    return elementwise(x, 2 * x.full_bytes, x.full_bytes, 2 * x.numel)


def _is_of_shares(call: PricedCall, values: Mapping[str, Value]) -> bool:
    """Whether the labels are probabilities of classes."""
    labels = tensor_type(call.node.arguments().get("labels"), values)
    return labels is not None and labels.dtype.is_floating


def loss_backward(call: ConcreteCall) -> list[Kernel]:
    """Zeros before the kernel, or a division after it, for each element of the operand; the same for a target."""
    x = call.operand("x")
    if x is None or not x.numel or not call.gradients:
        return []
    if call.operator.name in _OF_CLASSES and x.shape:
        logs, small = _log_softmax(call, x, "log_softmax_backward", 2), [elementwise(x, 0, 0)]
        if _is_of_shares(call.call, call.values):
            return [*small * 2, _each(x), *logs]
        # Smoothing adds a share for each class.
        smoothed = [*small * 6, _each(x)] if call.arguments.get(_SMOOTHING) else []
        return [*smoothed, fill(x), _picked(x, "scatter"), *logs]
    return [_each(x)] * (2 * len(call.gradients))


def _classes(x: Tensor) -> int:
    """The number of classes: the second axis of the scores, or their only one."""
    return x.shape[1] if x.rank > 1 else x.numel


def _log_softmax(call: ConcreteCall, x: Tensor, variant: str, reads: int) -> list[Kernel]:
    if call.operator.name != "cross_entropy_loss":
        return []
    return [softmax(x, min(1, x.rank - 1), 5 * x.numel, variant, reads * x.full_bytes, x.full_bytes)]


def _picked(x: Tensor, family: Family) -> Kernel:
    """One block loops over all rows, or over the pixels of an image; large images have several blocks."""
    rows = x.numel // max(_classes(x), 1)
    threads = min(max(2 ** round(log2(max(rows, 1) / _LABELS)), _FEWEST), _MOST)
    if x.rank > 2:
        rows, threads = prod(x.shape[2:]), _MOST
        threads *= max(1, rows // (_MOST * _IMAGE_BLOCKS))
    return Kernel(family, x.dtype, sizes=Rows(1, -(-rows // threads)), variant="nll_loss")


def loss_bytes(call: PricedCall, layouts: Layouts) -> Dim:
    """Bytes of the losses of each element, if the labels are probabilities of classes."""
    return layouts.typed(call.uses[0]).like().nbytes if _is_of_shares(call, layouts.values) else 0


def loss_kernels(program: PricedProgram, sizes: Sizes, *, stores_gradients: bool) -> tuple[Kernel, ...]:
    """Sums of the results, their sum, and the gradient of the loss, which is one number.

    stores_gradients: whether each element of a sum's gradients is written, as a compiled backward reads them row-major. A
    mean divides each element of its gradients.
    """
    training = program.training
    if training is None or training.loss not in ("sum", "mean"):
        return ()
    values = map(program.main.values.get, dict.fromkeys(program.main.graph.seeds))
    wanted = [value for value in values if isinstance(value, TensorType) and value.requires_grad]
    results = [result for value in wanted if (result := sizes.known(value)) is not None]
    sums = [reduction(result, 1) for result in results]
    one = [replace(result, shape=(), strides=(), nbytes=result.bits // 8) for result in results[:1]]
    added = [elementwise(each, 2 * each.nbytes, each.nbytes) for each in one] * (len(results) - 1)
    is_written = stores_gradients or training.loss == "mean"
    return (*sums, *added, *map(fill, one), *map(repeat, results if is_written else ()))
