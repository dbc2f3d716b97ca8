"""How torch.compile lays out tensors: images with their channels last (`decide_layout_opt`), products padded (`pad_mm`)."""

from __future__ import annotations

from collections.abc import Sequence

from graphflops.dims import Dim, prod
from graphflops.execution.strides import Values
from graphflops.graph import Ref
from graphflops.kernels.kernel import HALF, IMAGE_RANK
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

# Time with channels last relative to without, by class of convolution, and calls of a program with few convolutions:
# the constants of torch/_inductor/graph.py.
_GROUPED, _DEFAULT, _NARROWING, _SMALL = 1.358, 0.823, 0.725, 0.783
_MOST_OPS = 300
# Operators that a call becomes, about: one for kinds that are not listed.
_OPS = {"product": 4, "normalisation": 11, "softmax": 5, "attention": 3}
_OPS_OF_GATE = 6
_SMALL_CHANNELS = 64


def prefers_channels_last(calls: Sequence[PricedCall], values: Values, given: int, *, training: bool) -> bool:
    """Whether the convolutions of a program run with channels last. given: inputs of it, weights too."""
    found = [(call, *pair) for call in calls if (pair := image_and_weight(call, values)) is not None]
    kinds = [_class(*each) for each in found]
    if not any(weight.rank == IMAGE_RANK for _, _, weight in found):
        return False
    nodes = given + sum(map(_nodes, calls))
    if nodes >= _MOST_OPS * len(found) or "open" in kinds:
        return False
    if training:
        is_slow = "grouped" in kinds or any(_is_narrowing(weight) for _, _, weight in found)
        return not is_slow and any(kind != "small" for kind in kinds)
    work = [call.estimate.matrix_flops for call, _, _ in found]
    times = {"grouped": _GROUPED, "small": _SMALL, "narrowing": _NARROWING, "default": _DEFAULT}
    numbers = [flops if isinstance(flops, int) else 0 for flops in work]
    return sum(flops * times[kind] for flops, kind in zip(numbers, kinds, strict=True)) <= sum(numbers)


def _nodes(call: PricedCall) -> int:
    """Nodes of a call in the graph that torch.compile sees, about: none of assertions, and of dropouts in evaluation."""
    node, operator = call.node, call.node.operator
    if not node.outputs or (operator.kind == "dropout" and node.arguments().get("training") is False):
        return 0
    return _OPS_OF_GATE if operator.has("gate") else _OPS.get(operator.kind, 1)


def is_of_images(call: PricedCall, values: Values) -> bool:
    """Whether a convolution has two spatial axes: those of sequences and volumes are never turned."""
    found = image_and_weight(call, values)
    return found is not None and found[1].rank == IMAGE_RANK


def is_turned(call: PricedCall, values: Values, *, is_copied: bool) -> bool:
    """Whether a convolution runs with channels last where its program does.

    is_copied: whether its weight is a copy with channels last, as in the forward of a training step. A single channel lies
    alike either way; then the weight decides, and else the channels of the result come first.
    """
    found = image_and_weight(call, values)
    return found is not None and found[1].rank == IMAGE_RANK and (is_copied or found[0].shape[1] != 1)


def image_and_weight(call: PricedCall, values: Values) -> tuple[TensorType, TensorType] | None:
    """The operands of a convolution that PyTorch runs; None for other calls."""
    if call.node.operator.kind != "convolution" or call.estimate.unknown:
        return None
    arguments, names = call.node.arguments(), call.tensors(values)[:2]
    given = [argument.name for key in ("x", "weight") if isinstance(argument := arguments.get(key), Ref)]
    x, weight = (values.get(name) for name in given) if given == names and len(given) == 2 else (None, None)
    if not isinstance(x, TensorType) or not isinstance(weight, TensorType) or min(x.rank, weight.rank) < 3:
        return None
    return x, weight


def _class(call: PricedCall, x: TensorType, weight: TensorType) -> str:
    """The class of a convolution that the constants are given for; `open` where a size is."""
    if not all(isinstance(size, int) for size in (*x.shape, *weight.shape)):
        return "open"
    groups = call.node.arguments().get("groups", 1)
    results, channels = weight.shape[:2]
    if isinstance(groups, int) and groups > 1 and channels != 1:
        return "grouped"
    if all(isinstance(size, int) and size <= _SMALL_CHANNELS for size in (results, channels)):
        return "small"
    return "narrowing" if _is_narrowing(weight) else "default"


def _is_narrowing(weight: TensorType) -> bool:
    """Whether a convolution of several positions has at most half as many results as channels."""
    results, channels, positions = weight.shape[:3]
    if not isinstance(results, int) or not isinstance(channels, int):
        return False
    return 2 * results <= channels and positions != 1


_ALIGNED = 8
# Multiply-adds of an element read or written: half of what an H200 does while it loads one.
_COMPUTE_BOUND = 95
_MOST_PADDED = 1.25
_BY_MATRIX = frozenset({"linear", "matmul", "mm"})
_LINE_BYTES, _LONG = 128, 1024  # inductor's padding_alignment_bytes, and padding_stride_threshold in elements


def padded_columns(call: PricedCall, values: Values, *, adds_bias: bool = False) -> int | None:
    """Columns of rows times a matrix after padding; None where they are a multiple of 8 or no tensor core is used.

    Inductor measures whether a copy is worth it where arithmetic takes the time: for a vocabulary of 50,257 words it is. A
    product that adds a bias is padded always.
    """
    names = call.tensors(values)
    weight = values.get(names[1]) if call.node.operator.name in _BY_MATRIX else None
    if not isinstance(weight, TensorType) or weight.dtype.bits != HALF or weight.rank != 2:
        return None
    columns, inner = weight.shape if call.node.operator.name == "linear" else weight.shape[::-1]
    if not isinstance(columns, int) or columns == 1 or columns % _ALIGNED == 0:
        return None
    out = values[call.node.outputs[0] or ""]
    rows = prod(out.shape[:-1]) if isinstance(out, TensorType) else 1
    if not adds_bias and isinstance(rows, int) and isinstance(inner, int):
        moved = rows * inner + inner * columns + rows * columns
        if rows * inner * columns < _COMPUTE_BOUND * moved:
            return None
    return aligned(columns)


def padded_inner(call: PricedCall, values: Values) -> int | None:
    """The inner size of batched products after padding; None where it is a multiple of 8, or padding adds too much."""
    operands = [values[name] for name in call.tensors(values)[:2]]
    tensors = [one for one in operands if isinstance(one, TensorType) and one.rank > 2]
    if len(tensors) < 2 or tensors[0].dtype.bits != HALF:
        return None
    inner, columns = tensors[0].shape[-1], tensors[1].shape[-1]
    if not isinstance(inner, int) or inner % _ALIGNED == 0 or columns == 1:
        return None
    return aligned(inner) if aligned(inner) <= _MOST_PADDED * inner else None


def aligned(size: int) -> int:
    """A size rounded up to what tensor cores load at once."""
    return -(-size // _ALIGNED) * _ALIGNED


def aligned_bytes(shape: Sequence[Dim], bits: int) -> int | None:
    """Bytes of a stored result whose matrices are longer than a kilobyte of elements: each begins at a line of memory.

    None where that is already so, or where a size is open. Source: `_pad_strides` in torch/_inductor/ir.py.
    """
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or 0 in sizes:
        return None
    line, stride, last, is_aligned = _LINE_BYTES * 8 // bits, 1, 0, True
    for size in reversed(sizes):
        if stride > _LONG and stride % line:
            stride, is_aligned = -(-stride // line) * line, False
        last += (size - 1) * stride
        stride *= size
    return None if is_aligned else (last + 1) * bits // 8


def padded_rows(call: PricedCall, values: Values) -> Dim:
    """Bytes of a copy of a result with padded columns, or of its gradient: its rows begin at lines of memory."""
    columns = padded_columns(call, values)
    out = values[call.node.outputs[0] or ""]
    if columns is None or not isinstance(out, TensorType):
        return 0
    return prod(out.shape[:-1]) * (-(-columns * HALF // 8 // _LINE_BYTES) * _LINE_BYTES)
