"""Convolutions as cuDNN sees them: types, options, and the sizes by which it chooses a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphflops.base.record import Record
from graphflops.cost import Value
from graphflops.dims import Dim, differ, prod
from graphflops.execution.strides import (
    Shape,
    Strides,
    channels_last,
    has_channels_last,
    row_major,
    size_hint,
)
from graphflops.graph import tensor_type
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import HALF, SINGLE
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

_ALIGNED_BYTES, _FEWEST_PACKED = limits("cudnn_9", "convolution", "aligned", "fewest_packed")
(_LONG_WINDOW,) = limits("cudnn_9", "convolution", "long_kernel")
_LEAST_AXES = 3  # batch, channels and at least one more
_MOST_ALIGNED = 8  # elements
_OPEN = 64  # taken for any open size where a kernel is chosen


class Layout(Record, frozen=True):
    """Which tensors of a convolution have their channels last. gaps: whether the operand must be copied first."""

    operand: bool = False
    gaps: bool = False
    weight: bool = False
    gradient: bool = False

    @staticmethod
    def of(shape: Shape, strides: Strides, weight_shape: Shape, weight_strides: Strides) -> Layout:
        """How operand and weight lie. Sequences are copied into row-major order first (Convolution.cpp of ATen)."""
        is_weight_last = has_channels_last(weight_shape, weight_strides)
        is_last = len(shape) > _LEAST_AXES and (is_weight_last or has_channels_last(shape, strides))
        order = channels_last(len(shape)) if is_last else None
        wanted = zip(shape, strides, row_major(shape, order), strict=True)
        gaps = any(differ(own, step) for size, own, step in wanted if size != 1)
        return Layout(is_last, gaps, is_weight_last)


class Convolution(Record, frozen=True):
    """Types and options of a convolution."""

    x: TensorType
    weight: TensorType
    out: TensorType
    stride: tuple[Any, ...]
    padding: tuple[Any, ...]
    groups: int
    transposed: bool
    wants_x: bool = True  # which gradients are computed
    wants_weight: bool = True
    wants_bias: bool = False

    @staticmethod
    def of(call: PricedCall, values: Mapping[str, Value]) -> Convolution | None:
        """The convolution that a call is, or computes the gradients of; None where operands do not tell."""
        arguments = call.node.arguments()
        x, weight, bias = (tensor_type(arguments.get(name), values) for name in ("x", "weight", "bias"))
        out = tensor_type(arguments.get("grad"), values) or tensor_type(call.node.outputs[0], values)
        if x is None or weight is None or out is None:
            return None
        if x.rank < _LEAST_AXES or not x.rank == weight.rank == out.rank:
            return None
        groups, axes, mask = arguments.get("groups", 1), x.rank - 2, arguments.get("output_mask")
        given = [value is not None and value.requires_grad for value in (x, weight, bias)]
        wanted = mask if isinstance(mask, tuple) and len(mask) == len(given) else given
        return Convolution(
            *(x, weight, out),
            _per_axis(arguments.get("stride", 1), axes),
            _per_axis(arguments.get("padding", 0), axes),
            groups if isinstance(groups, int) and groups > 0 else 1,
            call.node.operator.name == "conv_transpose" or arguments.get("transposed") is True,
            *wanted,
        )

    @property
    def is_half(self) -> bool:
        return self.x.dtype.bits == HALF

    @property
    def is_single(self) -> bool:
        return self.x.dtype.bits == SINGLE

    @property
    def channels(self) -> int:
        """Channels of the operand in one group."""
        return max(1, known(self.x.shape[1]) // self.groups)

    @property
    def results(self) -> int:
        """Channels of the result in one group."""
        return max(1, known(self.out.shape[1]) // self.groups)

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(known(size) for size in self.weight.shape[2:])

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return max(1, math.prod(self.kernel))

    @property
    def batch(self) -> int:
        return known(self.x.shape[0])

    @property
    def positions(self) -> int:
        """Positions of one image of the operand."""
        return math.prod(known(size) for size in self.x.shape[2:])

    @property
    def result_positions(self) -> int:
        return math.prod(known(size) for size in self.out.shape[2:])

    @property
    def is_one_position(self) -> bool:
        """Whether it is a product of matrices as it lies: images of one position, whose channels are last either way."""
        return self.positions == self.result_positions == 1

    @property
    def rows(self) -> int:
        """Positions of all results: the rows of the product that a convolution is."""
        return self.batch * self.result_positions

    @property
    def multiplies(self) -> int:
        """Multiply-adds."""
        places = self.batch * self.positions if self.transposed else self.rows
        return places * self.channels * self.results * self.groups * self.taps

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels == 1

    @property
    def is_pointwise(self) -> bool:
        return self.taps == 1

    @property
    def is_strided(self) -> bool:
        return any(step != 1 for step in self.stride)

    @property
    def is_patch(self) -> bool:
        """Whether windows neither overlap nor reach into padding: the operand is cut into patches."""
        return self.stride == self.weight.shape[2:] and not any(self.padding) and not self.transposed

    @property
    def wide(self) -> int:
        """Channels of a group, of operand or result."""
        return max(self.channels, self.results)

    @property
    def narrow(self) -> int:
        """Channels of a group, of operand or result, whichever has fewer."""
        return min(self.channels, self.results)

    @property
    def is_power(self) -> bool:
        """Whether the channels of a group are a power of two."""
        return power_of_two(self.wide) == self.wide

    @property
    def is_long(self) -> bool:
        """Whether a group is a kernel without matrix units, as those of long windows of sequences in half precision."""
        return self.axes == 1 and self.taps > _LONG_WINDOW and self.is_half and not self.is_power

    @property
    def packed(self) -> int:
        """Channels of a group where groups share a kernel."""
        return max(_FEWEST_PACKED, power_of_two(self.wide))

    @property
    def weight_elements(self) -> int:
        """Elements of one position of the weight of one group."""
        return self.channels * self.results

    @property
    def operand_elements(self) -> int:
        return math.prod(known(size) for size in self.x.shape)

    @property
    def result_elements(self) -> int:
        return math.prod(known(size) for size in self.out.shape)

    @property
    def axes(self) -> int:
        """Axes of the kernel: 1 of a sequence, 2 of an image."""
        return len(self.kernel)

    @property
    def positions_align(self) -> int:
        """The largest power of two, at most 8, that the positions of the operand are a multiple of."""
        return alignment_of(self.positions)

    @property
    def channels_align(self) -> int:
        return alignment_of(self.channels)

    @property
    def results_align(self) -> int:
        return alignment_of(self.results)

    @property
    def steps(self) -> int:
        """Elements that a result is a sum of: the inner size of the product that a convolution is."""
        return self.channels * self.taps

    @property
    def alignment(self) -> int:
        """Channels of which tensor cores read a multiple."""
        return _ALIGNED_BYTES * 8 // self.x.dtype.bits

    def aligned(self, channels: int) -> int:
        """Channels filled up to what tensor cores read."""
        return up(channels, self.alignment)

    @property
    def is_aligned(self) -> bool:
        return all(self.aligned(channels) == channels for channels in (self.channels, self.results))

    @property
    def float_weight(self) -> Dim:
        """Bytes of the weight in float32."""
        return prod(self.weight.shape) * 4

    def copies(self, padded: int | None = None) -> dict[str, Dim]:
        """Bytes of operand x, weight w and result o once more. padded: channels of a group; else as tensor cores read."""
        channels, results = self.channels, self.results
        padded_channels, padded_results = padded or self.aligned(channels), padded or self.aligned(results)
        weight = self.weight.nbytes * padded_channels * padded_results // (channels * results)
        x, out = self.x.nbytes * padded_channels // channels, self.out.nbytes * padded_results // results
        return {"x": x, "w": weight, "o": out}


def up(size: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-size // step) * step


def alignment_of(size: int) -> int:
    """The largest power of two, at most 8, that a size is a multiple of."""
    return math.gcd(size, _MOST_ALIGNED)


def power_of_two(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def known(size: Dim) -> int:
    """A number for a size by which a kernel is chosen: open sizes count as 64, which is aligned and not small."""
    return size_hint(size, _OPEN)


def _per_axis(argument: Any, axes: int) -> tuple[Any, ...]:
    """An attribute for each axis; one number or word is repeated for all axes; a "valid" padding is none."""
    if argument == "valid":
        argument = 0
    if isinstance(argument, tuple):
        return argument * axes if len(argument) == 1 else argument
    return (argument,) * axes
