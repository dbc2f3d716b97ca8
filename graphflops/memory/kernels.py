"""What CUDA kernels need beside operands and results while a program runs eagerly: buffers that live during one call.

The sizes were measured on an H200 with PyTorch 2.11 and cuDNN 9 (benchmarks/memory.py): the difference between the peak of
requested bytes during an operator and the larger of the bytes before and after it. Each rule names its mechanism. Half
precision convolutions are the large ones: cuDNN's tensor core kernels want the channels last, so tensors in row-major order
are copied into that order and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import Dim, ceil_div, dim_max, dim_min, prod
from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.cost import Value
    from graphflops.memory.layouts import Layouts
    from graphflops.passes.program import PricedCall

_ALIGNED = 8  # channels; fewer, or a number between multiples, are padded with zeros
_WIDE_PATCH = 512  # channels of patches from which tensor cores are used for images
_SMALL_KERNEL = 9  # positions
_INDEX_BYTES = 8
_FLOAT_BYTES = 4
# gpu_reduce_kernel of ATen: threads of a block along the result and along the reduced axis, results of one thread, values
# that a thread reduces at least and at most, and the blocks that fill the GPU (132 multiprocessors, 16 blocks each).
_BLOCK_WIDTH, _BLOCK_HEIGHT, _VECTOR = 32, 4, 4
_FEWEST_VALUES, _MOST_VALUES, _MULTIPROCESSORS, _BLOCKS_EACH = 16, 256, 132, 16

# Tensors of the result's size that PyTorch's formula of a gradient makes on its way, beside the gradient: for a power,
# `grad * (exponent * x.pow(exponent - 1))` makes two (tools/autograd/derivatives.yaml).
_TEMPORARIES = {"pow": 2, "rsqrt": 2, "sqrt": 1, "abs": 1, "sin": 1, "cos": 1, "softmax": 1}


def forward_bytes(call: PricedCall, layouts: Layouts) -> Dim:
    """Bytes that the kernels of a call need beside its operands and results."""
    kind, name, values = call.node.operator.kind, call.node.operator.name, layouts.values
    if kind == "convolution":
        found = _Convolution.of(call, values)
        if found is None:
            return 0
        x, weight, *_ = call.tensors(values)
        if not layouts.has_channels_last(x):
            return found.forward
        return found.forward_channels_last - found.weight.nbytes * layouts.has_channels_last(weight)
    if name == "max_pool":  # the positions of the maxima are computed whether or not a gradient wants them
        out = _tensor(call.node.outputs[0], values)
        return 0 if out is None or len(call.node.outputs) > 1 else prod(out.shape) * _INDEX_BYTES
    return 0


def backward_bytes(call: PricedCall, values: Mapping[str, Value]) -> Dim:
    """Bytes that the kernels of a call's gradients need beside what they read and write."""
    kind = call.node.operator.kind
    if kind == "convolution":
        found = _Convolution.of(call, values)
        return 0 if found is None else found.backward
    temporaries = _TEMPORARIES.get(call.node.operator.name)
    if temporaries is not None:
        out = _tensor(call.node.outputs[0], values)
        return 0 if out is None else temporaries * out.like().nbytes
    if kind == "product":
        bias = call.node.arguments().get("bias")
        out = _tensor(call.node.outputs[0], values)
        if isinstance(bias, Ref) and out is not None and out.rank and _wants(bias, values):
            return column_sum_bytes(prod(out.shape[:-1]), out.shape[-1])
    return 0


def saved_input_bytes(call: PricedCall, values: Mapping[str, Value]) -> Dim:
    """Bytes of the copy that autograd keeps of an operand which is overwritten and which the gradient needs."""
    operator = call.node.operator
    if not operator.mutates or not operator.gradient_reads_input or call.gradient is None:
        return 0
    out = _tensor(call.node.outputs[0], values)
    return 0 if out is None else out.like().nbytes


def column_sum_bytes(rows: Dim, columns: Dim) -> Dim:
    """Bytes of partial sums when the rows of a matrix are added up, as for the gradient of a bias.

    Source: `setReduceConfig` in aten/src/ATen/native/cuda/Reduce.cuh. Several blocks share the rows of one group of columns;
    each writes float32 sums for all of its threads.
    """
    width = _BLOCK_WIDTH * _VECTOR
    values, groups = ceil_div(rows, _BLOCK_HEIGHT), ceil_div(columns, width)
    is_short = isinstance(values, int) and values < _MOST_VALUES
    if is_short or (isinstance(groups, int) and groups >= _MULTIPROCESSORS):
        return 0  # one block for each group of columns
    blocks = dim_max(
        dim_min(ceil_div(_MULTIPROCESSORS * _BLOCKS_EACH, groups), ceil_div(values, _FEWEST_VALUES)),
        ceil_div(values, _MOST_VALUES),
    )
    return columns * blocks * width * _FLOAT_BYTES


class _Convolution:
    """Sizes of a convolution in half precision, in bytes: operand, weight, result."""

    def __init__(
        self,
        x: TensorType,
        weight: TensorType,
        out: TensorType,
        arguments: Mapping[str, Any],
        transposed: bool,
    ) -> None:
        axes, groups = x.rank - 2, arguments.get("groups", 1)
        self.x, self.weight, self.out = x, weight, out
        self.stride = _per_axis(arguments.get("stride", 1), axes)
        self.padding = _per_axis(arguments.get("padding", 0), axes)
        self.groups = groups if isinstance(groups, int) else 1
        self.transposed = transposed or arguments.get("transposed") is True

    @staticmethod
    def of(call: PricedCall, values: Mapping[str, Value]) -> _Convolution | None:
        """The convolution that a call is; None in element types that have no tensor cores."""
        arguments = call.node.arguments()
        x, weight = (_tensor(arguments.get(name), values) for name in ("x", "weight"))
        out = _tensor(call.node.outputs[0], values)
        if x is None or weight is None or out is None or x.dtype.bits not in (16, 32) or x.rank < 3:
            return None
        return _Convolution(x, weight, out, arguments, call.node.operator.name == "conv_transpose")

    @property
    def channels(self) -> Dim:
        """Channels of one group of the narrow side: of the operand, or of a transposed convolution's result."""
        return self.weight.shape[1]

    @property
    def kernel(self) -> tuple[Dim, ...]:
        return self.weight.shape[2:]

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels == 1

    @property
    def is_pointwise(self) -> bool:
        return all(size == 1 for size in self.kernel)

    @property
    def is_plain_product(self) -> bool:
        """A pointwise convolution that cuDNN computes as a matrix product on tensors in row-major order."""
        positions = prod(self.x.shape[2:])
        aligned = positions % _ALIGNED == 0 if isinstance(positions, int) and self.is_half else True
        return self.is_pointwise and all(step == 1 for step in self.stride) and bool(aligned)

    @property
    def is_patch(self) -> bool:
        """Whether windows neither overlap nor reach into padding: the operand is cut into patches."""
        return self.stride == self.kernel and not any(self.padding) and not self.transposed

    @property
    def is_half(self) -> bool:
        return self.x.dtype.bits == 16

    @property
    def is_image_stem(self) -> bool:
        """A first layer on a few channels with a small kernel, patches of few channels or a small batch: no tensor cores."""
        if self.groups > 1 or self.transposed or self.channels not in range(_ALIGNED):
            return False
        if self.is_patch:
            results = self.weight.shape[0]
            return not self.is_half or (isinstance(results, int) and results < _WIDE_PATCH)
        positions = prod(self.kernel)
        is_small = isinstance(positions, int) and positions <= _SMALL_KERNEL
        return is_small or (self.is_half and len(self.kernel) > 2) or self.x.shape[0] == 1

    @property
    def forward(self) -> Dim:
        if self.is_depthwise or self.is_plain_product or self.is_image_stem:
            return 0
        if self.is_pointwise:
            return self.x.nbytes + self.out.nbytes
        return self.copies

    @property
    def forward_channels_last(self) -> Dim:
        """Where the operand has its channels last: the weight in that order, and an image padded to 8 channels."""
        if self.is_depthwise or self.is_pointwise or self.is_image_stem:
            return 0
        is_padded = self.groups == 1 and self.padded != self.channels
        weight = self.weight.nbytes
        return (self.x.nbytes + weight) * self.padded // self.channels if is_padded else weight

    @property
    def backward(self) -> Dim:
        if self.is_depthwise:
            return 0
        if self.is_plain_product:  # one float32 gradient of the weight for each batch entry, added up after
            return self.x.shape[0] * prod(self.weight.shape) * _FLOAT_BYTES
        return self.x.nbytes + self.out.nbytes if self.is_pointwise else self.copies

    @property
    def copies(self) -> Dim:
        """Operand, weight and result once more, with the channels last and padded."""
        x, weight, out = self.x.nbytes, self.weight.nbytes, self.out.nbytes
        padded, own = self.padded, self.channels
        if self.groups > 1:
            return (x + out) * padded // own + weight * padded * padded // (own * own)
        if self.transposed:
            return x + (weight + out) * padded // own
        return (x + weight) * padded // own + out

    @property
    def padded(self) -> Dim:
        """The channels; in half precision filled up to a multiple of 8, in a group to a power of two."""
        if not self.is_half:
            return self.channels
        if self.groups == 1:
            return ceil_div(self.channels, _ALIGNED) * _ALIGNED
        return 1 << (self.channels - 1).bit_length() if isinstance(self.channels, int) else self.channels


def _tensor(value: object, values: Mapping[str, Value]) -> TensorType | None:
    found = (
        values.get(value.name if isinstance(value, Ref) else value) if isinstance(value, (Ref, str)) else None
    )
    return found if isinstance(found, TensorType) else None


def _wants(argument: Ref, values: Mapping[str, Value]) -> bool:
    value = values.get(argument.name)
    return isinstance(value, TensorType) and value.requires_grad


def _per_axis(argument: Any, axes: int) -> tuple[Any, ...]:
    """An attribute for each axis; one number or word is repeated for all axes."""
    if isinstance(argument, tuple):
        return argument * axes if len(argument) == 1 else argument
    return (argument,) * axes
