"""Convolutions: the kernels of cuDNN by the way that it takes (cudnn.py), the conversions around them, and the bias.

Packed groups share one kernel, their channels padded to a power of two; others are a kernel each, in several streams, or one
kernel without tensor cores computes all as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from graphflops.kernels import cudnn
from graphflops.kernels.choices import limits
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.kernels.kernel import DIRECT, Kernel, Rows
from graphflops.kernels.kernel import Convolution as Sizes
from graphflops.kernels.moved import copy, pointwise, sum_to

if TYPE_CHECKING:
    from graphflops.kernels.call import ConcreteCall, Tensor
    from graphflops.kernels.kernel import Pass

_TILE = 32  # channels and pixels of a tile of the conversion
_SMALL_IMAGE, _MOST_BLOCKS = limits("cudnn_9", "one_image", "positions", "elements")
_SEQUENCE_RANK = 3
_TURNED: dict[Pass, Pass] = {"forward": "input_gradient", "input_gradient": "forward"}


@dataclass(frozen=True)
class Problem:
    """One pass of a convolution with its tensors. conv: as cuDNN chooses a kernel for it.

    is_channels_last: whether the operand has its channels innermost already; that of a sequence is put in order first.
    """

    conv: Convolution
    x: Tensor
    weight: Tensor
    out: Tensor
    is_channels_last: bool = False
    phase: Pass = "forward"

    @staticmethod
    def of(call: ConcreteCall) -> Problem | None:
        """The forward of the convolution that a call is; None where an operand is missing."""
        conv = Convolution.of(call.call, call.bound_types)
        x, weight, out = call.operand("x"), call.operand("weight"), call.operand("grad") or call.out
        if conv is None or x is None or weight is None or out is None:
            return None
        is_last = x.rank > _SEQUENCE_RANK and x.shape[1] > 1 and x.strides[1] == 1
        return Problem(
            conv,
            x,
            weight,
            out,
            is_last or Layout.of(x.shape, x.strides, weight.shape, weight.strides).operand,
        )

    @cached_property
    def way(self) -> str:
        """The way that cuDNN takes for it."""
        return cudnn.way(self.conv, self.phase, self.is_channels_last)

    @property
    def is_each(self) -> bool:
        """Whether each group is a kernel without tensor cores.

        So where channels have several filters and are innermost, for long windows of sequences, and for single positions in
        float32.
        """
        conv = self.conv
        if conv.is_depthwise:
            return self.is_channels_last and self.out.shape[1] > self.x.shape[1]
        if self.way != "direct" or self.phase != "forward" or self.is_channels_last:
            return False
        return (conv.axes == 1 and conv.taps > cudnn.LONG_KERNEL) or (conv.is_single and conv.is_pointwise)

    @property
    def is_weight_of_one_image(self) -> bool:
        """Whether a gradient of a pointwise weight, from one small image of odd rows, has a block for each element."""
        conv = self.conv
        is_one = conv.batch == 1 and conv.positions % 2 == 1 and 1 < conv.positions <= _SMALL_IMAGE
        is_wider = conv.results > conv.channels and conv.weight_elements < _MOST_BLOCKS
        is_product = conv.is_pointwise and conv.groups == 1 and not conv.is_strided and not conv.transposed
        is_found = is_one and is_wider and is_product and not self.is_channels_last and not conv.is_single
        return is_found and self.phase == "weight_gradient"

    @property
    def is_converted(self) -> bool:
        """Whether cuDNN converts operands to channels-last."""
        return "converted" in self.way or (self.way == "packed" and not self.is_channels_last)

    @property
    def sizes(self) -> Sizes:
        """As the kernel sees it: a transposed one is the gradient of the convolution from its result to its operand."""
        conv = self.conv
        x, out = (self.out, self.x) if conv.transposed else (self.x, self.out)
        turned = _TURNED.get(self.phase, self.phase) if conv.transposed else self.phase
        is_converted = self.is_converted
        channels, filters = x.shape[1], out.shape[1]
        is_stem = channels < conv.alignment and turned == "forward"
        if self.is_padded_group:
            channels = filters = conv.packed * conv.groups
        elif is_converted and conv.groups == 1 and not is_stem:
            channels = conv.aligned(channels)
        return Sizes(
            *(x.shape[0], channels, filters, x.shape[2:], out.shape[2:], self.weight.shape[2:]),
            groups=conv.groups,
            channels_last=self.is_channels_last or is_converted,
            is_looped=self.is_each or self.way == "one_by_one",
            phase=turned,
            is_patches=conv.is_patch and not conv.is_pointwise,
        )

    @property
    def is_padded_group(self) -> bool:
        """Whether groups are packed into one kernel with more channels than they have."""
        return self.way == "packed" and self.conv.packed != self.conv.wide

    @property
    def operands(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """What the pass reads, and what it writes."""
        x, weight, out = self.x, self.weight, self.out
        if self.phase == "forward":
            return (x, weight), out
        return ((out, weight), x) if self.phase == "input_gradient" else ((out, x), weight)

    def kernels(self, flops: int) -> list[Kernel]:
        """The kernels of the pass: conversions before it and after it, and one kernel, or one for each group."""
        reads, writes = self.operands
        moved = (sum(tensor.full_bytes for tensor in reads), writes.full_bytes)
        kernel = Kernel("convolution", self.x.dtype, flops, 0, *moved, self.sizes)
        if self.is_each or self.is_weight_of_one_image:
            return [replace(kernel, variant=DIRECT)]
        if self.way in ("one_by_one", "direct"):
            return [kernel]
        return [*self.converted(*reads), kernel, *self.converted(writes)]

    def converted(self, *tensors: Tensor) -> list[Kernel]:
        """The conversions of these tensors to channels-last or back; few channels are padded."""
        conv, is_last = self.conv, self.is_channels_last
        letters = "xwo" if self.is_padded_group else cudnn.converted(conv, self.phase, is_last)
        wanted = {"x": self.x, "w": self.weight, "o": self.out}
        layout = Layout(operand=is_last, gradient=is_last)
        is_ordered = self.weight in tensors and cudnn.is_weight_ordered(conv, self.phase, layout)
        ordered = [copy(self.weight)] if is_ordered and "w" not in letters else []
        found = [tensor for tensor in tensors if any(tensor is wanted[letter] for letter in letters)]
        return ordered + [kernel for tensor in found for kernel in self.conversion(tensor)]

    def conversion(self, tensor: Tensor) -> list[Kernel]:
        """The conversion of one tensor, or back; channels are padded with zeros first."""
        conv, channels = self.conv, tensor.shape[1]
        is_weight, is_grouped = tensor is self.weight, conv.groups > 1
        padded = channels if tensor is self.out else conv.aligned(channels)
        if is_grouped:
            padded, channels = conv.packed, conv.wide
        written = tensor.full_bytes * padded // max(channels, 1)
        zeros = [Kernel("elementwise", tensor.dtype, written_bytes=written)] if padded > channels else []
        is_generic = (is_weight or self.is_channels_last) if is_grouped else tensor.shape[0] % conv.alignment
        moved = (tensor.full_bytes, written)
        if zeros and is_generic and (is_grouped or is_weight):  # a weight is padded along both axes
            return [*zeros, Kernel("copy", tensor.dtype, 0, 0, *moved, variant="generic")]
        wide, pixels = tensor.shape[1] * padded // max(channels, 1), prod(tensor.shape[2:])
        tiles = Rows(tensor.shape[0] * -(-wide // _TILE) * -(-pixels // _TILE), 1)
        return [*zeros, Kernel("copy", tensor.dtype, 0, 0, *moved, tiles, variant="channels_last")]


def convolution(call: ConcreteCall) -> list[Kernel]:
    """Conversions, the convolution, the conversion back, the bias."""
    problem, out, cost = Problem.of(call), call.out, call.cost
    if problem is None:
        moved = (cost.read_bytes, cost.written_bytes)
        return [] if out is None else [Kernel("convolution", out.dtype, cost.matrix_flops, 0, *moved)]
    if call.operand("grad") is not None:  # the file records the gradients
        return _gradients(
            problem, cost.matrix_flops // max(problem.conv.wants_x + problem.conv.wants_weight, 1)
        )
    bias = call.operand("bias")
    is_apart = bias is not None and bias.dtype != "int32"  # integers start the sums of integers
    added = [_added(problem.out, bias)] if bias is not None and is_apart else []
    is_scattered = not problem.is_channels_last and not problem.x.is_contiguous
    in_order = [copy(problem.x)] if is_scattered else []
    return [*in_order, *problem.kernels(cost.matrix_flops), *added]


def _added(out: Tensor, bias: Tensor) -> Kernel:
    """The addition of a bias to each channel."""
    ones = (1,) * (out.rank - 2)
    by_channel = replace(bias, shape=(bias.numel, *ones), strides=(1, *ones))
    return pointwise(out, [out, by_channel], out.full_bytes + bias.nbytes, out.full_bytes)


def convolution_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradients of a convolution that the call is."""
    problem = Problem.of(call)
    return [] if problem is None else _gradients(problem, call.cost.matrix_flops)


def _gradients(problem: Problem, flops: int) -> list[Kernel]:
    """A convolution for the gradient of the operand and one for that of the weight, and the sum for that of the bias."""
    conv, kernels = problem.conv, list[Kernel]()
    if conv.wants_x:
        kernels += replace(problem, phase="input_gradient").kernels(flops)
    if conv.wants_weight:
        kernels += replace(problem, phase="weight_gradient").kernels(flops)
    return [*kernels, *[sum_to(problem.out, [1])] * conv.wants_bias]
