"""Convolutions as cuDNN sees them: types, options, and the sizes that decide the kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from graphflops.base.record import Record
from graphflops.cost import Value
from graphflops.dims import Dim, differ, prod
from graphflops.execution.strides import Strides, channels_last, has_channels_last, row_major, size_hint
from graphflops.graph import tensor_type
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import FLOAT_BYTES, HALF, SINGLE
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

_ALIGNED_BYTES, _FEWEST_PACKED = limits("cudnn_9", "convolution", "aligned fewest_packed")
_FEW, _NARROW = limits("cudnn_9", "convolution", "few narrow")
_LONG_WINDOW, _LONG_SUM = limits("cudnn_9", "convolution", "long_kernel long_sum")
_LEAST_AXES = 3  # batch, channels and at least one more
_MOST_ALIGNED = 8  # elements
_OPEN = 64  # the value of an open size where a kernel is chosen


class Layout(Record, frozen=True):
    """Which tensors of a convolution are channels last. gaps: whether the operand must be copied first."""

    operand: bool = False
    gaps: bool = False
    weight: bool = False

    @staticmethod
    def of(shape: Sequence[Dim], strides: Strides, weight: Sequence[Dim], weight_strides: Strides) -> Layout:
        """The layouts of operand and weight. Sequences are first copied to row-major (Convolution.cpp of ATen)."""
        is_weight_last = has_channels_last(weight, weight_strides)
        is_last = len(shape) > _LEAST_AXES and (is_weight_last or has_channels_last(shape, strides))
        order = channels_last(len(shape)) if is_last else None
        wanted = zip(shape, strides, row_major(shape, order), strict=True)
        gaps = any(differ(own, step) for size, own, step in wanted if size != 1)
        return Layout(is_last, gaps, is_weight_last)


class Convolution(Struct, eq=False, dict=True):
    """A convolution: its types and options, and the numbers by which cuDNN chooses a kernel; channels are per group."""

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
    is_dilated: bool = False  # whether the positions of a window lie apart

    def __post_init__(self) -> None:
        groups = self.groups
        self.is_half, self.is_single = self.x.dtype.bits == HALF, self.x.dtype.bits == SINGLE
        given, filters, made = ([*map(known, each.shape)] for each in (self.x, self.weight, self.out))
        self.batch, self.kernel = given[0], tuple(filters[2:])
        self.axes = len(self.kernel)  # 1 for a sequence, 2 for an image
        self.channels, self.results = (max(1, each[1] // groups) for each in (given, made))
        self.wide, self.narrow = max(self.channels, self.results), min(self.channels, self.results)
        self.taps = max(1, math.prod(self.kernel))
        self.positions, self.result_positions = math.prod(given[2:]), math.prod(made[2:])  # of one image
        self.operand_elements, self.result_elements = math.prod(given), math.prod(made)
        self.weight_elements = self.channels * self.results  # of one tap
        self.rows, self.steps = self.batch * self.result_positions, self.channels * self.taps  # as a product
        self.multiplies = (self.batch * self.positions if self.transposed else self.rows) * self.steps
        self.multiplies *= self.results * groups
        # One position is channels last and contiguous at once: the convolution is a matrix product without a copy.
        self.is_one_position = self.positions == self.result_positions == 1
        self.is_depthwise, self.is_pointwise = groups > 1 and self.channels == 1, self.taps == 1
        self.is_strided = any(step != 1 for step in self.stride)
        is_narrow = _FEW <= self.channels <= self.wide <= _NARROW
        self.is_narrow = is_narrow and self.is_single and not self.transposed
        # Whether windows neither overlap nor reach into padding, so that the operand is cut into patches.
        self.is_patch = self.stride == self.weight.shape[2:] and not any(self.padding) and not self.transposed
        self.is_power = power_of_two(self.wide) == self.wide
        # Whether groups run without matrix units, as those of long windows over half-precision sequences do.
        is_long = self.axes == 1 and self.taps > _LONG_WINDOW and self.steps > _LONG_SUM
        self.is_long = is_long and self.is_half and not self.is_power
        self.packed = max(_FEWEST_PACKED, power_of_two(self.wide))  # channels where groups share a kernel
        # The largest powers of two that these are multiples of, at most 8.
        sizes = (self.positions, self.channels, self.results)
        aligned = (math.gcd(size, _MOST_ALIGNED) for size in sizes)
        self.positions_align, self.channels_align, self.results_align = aligned
        # Tensor cores read channels in multiples of this.
        self.alignment = _ALIGNED_BYTES * 8 // self.x.dtype.bits
        self.is_aligned = self.channels % self.alignment == self.results % self.alignment == 0
        self.float_weight = prod(self.weight.shape) * FLOAT_BYTES  # bytes of the weight in float32

    @staticmethod
    def of(call: PricedCall, values: Mapping[str, Value]) -> Convolution | None:
        """The convolution that a call is, or whose gradients it computes; None if its operands do not show it."""
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
        return _convolution(
            *(x, weight, out),
            _per_axis(arguments.get("stride", 1), axes),
            _per_axis(arguments.get("padding", 0), axes),
            groups if isinstance(groups, int) and groups > 0 else 1,
            call.node.operator.name == "conv_transpose" or arguments.get("transposed") is True,
            *wanted,
            any(step != 1 for step in _per_axis(arguments.get("dilation", 1), axes)),
        )

    def is_of_cublas(self, phase: str) -> bool:
        """Whether cuBLAS multiplies an operand that is channels last: tensor cores of cuDNN cannot read its channels."""
        is_pointwise = self.is_pointwise and self.groups == 1 and not (self.is_strided or self.transposed)
        if not (is_pointwise and self.is_half) or self.is_aligned:
            return False
        return phase != "weight_gradient" or not self.is_one_position

    def aligned(self, channels: int) -> int:
        """A number of channels, padded to a multiple of what tensor cores read."""
        return up(channels, self.alignment)

    def copies(self, padded: int | None = None) -> dict[str, Dim]:
        """Bytes of copies of operand x, weight w, result o. padded: channels per group; by default as tensor cores read."""
        channels, results = self.channels, self.results
        padded_channels, padded_results = padded or self.aligned(channels), padded or self.aligned(results)
        weight = self.weight.nbytes * padded_channels * padded_results // (channels * results)
        x, out = self.x.nbytes * padded_channels // channels, self.out.nbytes * padded_results // results
        return {"x": x, "w": weight, "o": out}


_convolution = lru_cache(maxsize=1024)(Convolution)  # memory and time need the same objects


def up(size: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-size // step) * step


def power_of_two(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def known(size: Dim) -> int:
    """A number for a size that decides the kernel: an open size counts as 64, which is aligned and not small."""
    return size_hint(size, _OPEN)


def _per_axis(argument: Any, axes: int) -> tuple[Any, ...]:
    """An attribute for each axis; one number or word stands for all axes; "valid" padding is 0."""
    if argument == "valid":
        argument = 0
    if isinstance(argument, tuple):
        return argument * axes if len(argument) == 1 else argument
    return (argument,) * axes
