"""Convolutions: the kernel of cuDNN, the conversions to channels-last that its tensor-core kernels want, and the bias."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.time.kernel import Convolution, Kernel, Rows
from graphflops.time.lowering.moved import copy, pointwise, sum_to

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import Pass

_TILE = 32  # channels and pixels of a tile of the conversion
_ALIGNED = 8  # channels: others are padded up to a multiple for tensor cores
_SMALL_WINDOW = 9  # positions
_SMALL_BATCH = 2
_WIDE_PATCH = 512  # filters
_IMAGE_RANK = 4
_FULL_BITS = 32


class Problem(NamedTuple):
    """A convolution of concrete sizes."""

    x: Tensor
    weight: Tensor
    out: Tensor
    groups: int
    stride: tuple[int, ...]
    transposed: bool

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.groups > 1 and self.weight.shape[1] == 1

    @property
    def is_pointwise(self) -> bool:
        """Whether the window is one position."""
        return all(size == 1 for size in self.weight.shape[2:]) and self.groups == 1

    @property
    def is_product(self) -> bool:
        """Whether it is a plain product of matrices in row-major order: 1 x 1, stride 1, rows that align."""
        positions = prod(self.x.shape[2:])
        is_even = positions % 2 == 0 or positions == 1
        return self.is_pointwise and set(self.stride) == {1} and is_even and not self.transposed

    @property
    def is_direct(self) -> bool:
        """Whether it runs without tensor cores, on tensors as they lie: few channels, a small window or a small batch."""
        channels = self.weight.shape[1]
        if self.transposed or channels % _ALIGNED == 0 or (self.groups > 1 and channels > 1):
            return False
        is_small = prod(self.weight.shape[2:]) <= _SMALL_WINDOW or self.x.rank > _IMAGE_RANK
        is_half = self.x.bits < _FULL_BITS
        return is_small or (is_half and (self.x.shape[0] <= _SMALL_BATCH or self.is_narrow_patch))

    @property
    def is_narrow_patch(self) -> bool:
        """Whether windows do not overlap and have few filters."""
        return self.stride == self.weight.shape[2:] and self.weight.shape[0] < _WIDE_PATCH

    @property
    def needs_channels_last(self) -> bool:
        """Whether cuDNN converts operands to channels-last and the result back."""
        return not (self.is_depthwise or self.is_product or self.is_channels_last or self.is_direct)

    @property
    def is_planar(self) -> bool:
        """Whether it is a product for each image, of pixels in order; conversions of odd images are in its time."""
        is_plain = self.is_pointwise and set(self.stride) == {1} and not self.transposed
        return is_plain and not self.is_channels_last and not self.is_direct

    @property
    def is_channels_last(self) -> bool:
        """Whether the operand has its channels innermost already."""
        return self.x.rank > 2 and self.x.shape[1] > 1 and self.x.strides[1] == 1

    def sizes(self, phase: Pass) -> Convolution:
        """As the kernel sees it."""
        channels, filters = self.x.shape[1], self.out.shape[1]
        return Convolution(
            *(
                self.x.shape[0],
                channels,
                filters,
                self.x.shape[2:],
                self.out.shape[2:],
                self.weight.shape[2:],
            ),
            groups=self.groups,
            channels_last=self.is_channels_last or (self.needs_channels_last and not self.is_planar),
            transposed=self.transposed,
            phase=phase,
        )

    def kernel(self, phase: Pass, flops: int, reads: tuple[Tensor, ...], writes: Tensor) -> Kernel:
        """One pass of the convolution."""
        read = sum(tensor.full_bytes for tensor in reads)
        return Kernel(
            "convolution",
            self.x.dtype,
            flops,
            read_bytes=read,
            written_bytes=writes.full_bytes,
            sizes=self.sizes(phase),
        )

    def converted(self, *tensors: Tensor) -> list[Kernel]:
        """The conversions of these tensors to channels-last or back; few channels are padded."""
        if self.is_planar:
            return []
        if self.needs_channels_last:
            return [kernel for tensor in tensors for kernel in self.conversion(tensor)]
        is_own = self.is_channels_last and self.weight in tensors
        return [copy(self.weight)] if is_own and not self.is_pointwise and not self.is_depthwise else []

    def conversion(self, tensor: Tensor) -> list[Kernel]:
        """The conversion of one tensor; few channels are padded with zeros first, a 1 x 1 weight is as it must be."""
        if tensor is self.weight and self.is_pointwise:
            return []
        channels = tensor.shape[1]
        is_padded = self.groups == 1 and tensor is not self.out
        padded = -(-channels // _ALIGNED) * _ALIGNED if is_padded else channels
        written = tensor.full_bytes * padded // max(channels, 1)
        zeros = [Kernel("elementwise", tensor.dtype, written_bytes=written)] if padded > channels else []
        pixels = prod(tensor.shape[2:])
        tiles = Rows(tensor.shape[0] * -(-channels // _TILE) * -(-pixels // _TILE), 1)
        moved = Kernel("copy", tensor.dtype, 0, 0, tensor.full_bytes, written, tiles, variant="channels_last")
        return [*zeros, moved]


def problem_of(call: ConcreteCall) -> Problem | None:
    """The convolution that a call is; None where an operand is missing."""
    x, weight, out = call.operand("x"), call.operand("weight"), call.out
    if (
        x is None
        or weight is None
        or out is None
        or x.rank < 3
        or weight.rank != x.rank
        or out.rank != x.rank
    ):
        return None
    transposed = call.operator.name == "conv_transpose" or call.arguments.get("transposed") is True
    stride = call.per_axis("stride", x.rank - 2, 1)
    return Problem(x, weight, out, call.number("groups", 1), stride, transposed)


def convolution(call: ConcreteCall) -> list[Kernel]:
    """Conversions, the convolution, the conversion back, the bias."""
    problem = problem_of(call)
    if problem is None:
        return _unknown_sizes(call)
    x, weight, out = problem.x, problem.weight, problem.out
    bias = call.operand("bias")
    return [
        *problem.converted(x, weight),
        problem.kernel("forward", call.cost.matrix_flops, (x, weight), out),
        *problem.converted(out),
        *([_added(out, bias)] if bias is not None else []),
    ]


def _added(out: Tensor, bias: Tensor) -> Kernel:
    """The addition of a bias to each channel."""
    ones = (1,) * (out.rank - 2)
    by_channel = replace(bias, shape=(bias.numel, *ones), strides=(1, *ones))
    return pointwise(out, [out, by_channel], out.full_bytes + bias.nbytes, out.full_bytes)


def convolution_backward(call: ConcreteCall) -> list[Kernel]:
    """A convolution for the gradient of the operand and one for that of the weight, and the sum for that of the bias."""
    problem = problem_of(call)
    if problem is None:
        return []
    x, weight, out, flops = problem.x, problem.weight, problem.out, call.cost.matrix_flops
    kernels = []
    if x.requires_grad:
        kernels += problem.converted(out, weight)
        kernels += [problem.kernel("input_gradient", flops, (out, weight), x), *problem.converted(x)]
    if weight.requires_grad:
        kernels += problem.converted(out, x)
        kernels += [problem.kernel("weight_gradient", flops, (out, x), weight), *problem.converted(weight)]
    if call.wants("bias"):
        kernels.append(sum_to(out, [1]))
    return kernels


def _unknown_sizes(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None:
        return []
    cost = call.cost
    return [Kernel("convolution", out.dtype, cost.matrix_flops, 0, cost.read_bytes, cost.written_bytes)]
