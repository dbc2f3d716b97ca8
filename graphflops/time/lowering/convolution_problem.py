"""A convolution of concrete sizes: which operands cuDNN converts, and what its kernel sees."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.kernels import cudnn
from graphflops.kernels.convolution import Convolution as Choice
from graphflops.kernels.convolution import Layout
from graphflops.tensor import DTYPES, TensorType
from graphflops.time.kernel import Convolution, Kernel, Rows
from graphflops.time.lowering.moved import copy

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import Pass

_TILE = 32  # channels and pixels of a tile of the conversion
_ALIGNED = 8  # channels: others are padded up to a multiple for tensor cores
_SMALL_IMAGE, _MOST_BLOCKS = 144, 1_000_000  # positions; elements of a weight
_SEQUENCE_RANK = 3
_FULL_BITS = 32
_TURNED: dict[Pass, Pass] = {"forward": "input_gradient", "input_gradient": "forward"}


class Problem(NamedTuple):
    """A convolution of concrete sizes, or a gradient of it, as `phase` says."""

    x: Tensor
    weight: Tensor
    out: Tensor
    groups: int
    stride: tuple[int, ...]
    transposed: bool
    phase: Pass = "forward"

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.groups > 1 and self.weight.shape[1] == 1

    @property
    def is_pointwise(self) -> bool:
        """Whether the window is one position."""
        return all(size == 1 for size in self.weight.shape[2:]) and self.groups == 1

    @property
    def choice(self) -> Choice:
        """The convolution as cuDNN chooses a kernel for it."""
        ends = zip(self.x.shape[2:], self.out.shape[2:], self.weight.shape[2:], self.stride, strict=True)
        return Choice(
            *(_type(self.x), _type(self.weight), _type(self.out)),
            stride=self.stride,
            padding=tuple([max(0, (out - 1) * step + size - x) for x, out, size, step in ends]),
            groups=self.groups,
            transposed=self.transposed,
        )

    @property
    def way(self) -> str:
        """The way that cuDNN takes for it."""
        return cudnn.way(self.choice, self.phase, self.is_channels_last)

    @property
    def has_several_filters_last(self) -> bool:
        """Whether each channel has several filters and channels are innermost: cuDNN then has no kernel for all channels."""
        return self.is_depthwise and self.is_channels_last and self.out.shape[1] > self.x.shape[1]

    @property
    def is_weight_of_one_image(self) -> bool:
        """Whether a gradient of a pointwise weight, from one small image of odd rows, has a block for each element."""
        positions, (results, channels) = prod(self.x.shape[2:]), self.weight.shape[:2]
        is_one = self.x.shape[0] == 1 and positions % 2 == 1 and 1 < positions <= _SMALL_IMAGE
        is_wider = results > channels and results * channels < _MOST_BLOCKS and not self.is_channels_last
        is_product = self.is_pointwise and set(self.stride) == {1} and not self.transposed
        return (
            self.phase == "weight_gradient"
            and is_one
            and is_wider
            and is_product
            and self.x.bits < _FULL_BITS
        )

    @property
    def is_converted(self) -> bool:
        """Whether cuDNN converts operands to channels-last."""
        return "converted" in self.way or (self.way == "packed" and not self.is_channels_last)

    @property
    def is_channels_last(self) -> bool:
        """Whether the operand has its channels innermost already; that of a sequence is put in order first."""
        return self.x.rank > _SEQUENCE_RANK and self.x.shape[1] > 1 and self.x.strides[1] == 1

    @property
    def sizes(self) -> Convolution:
        """As the kernel sees it: a transposed one is the gradient of the convolution from its result to its operand."""
        x, out = (self.out, self.x) if self.transposed else (self.x, self.out)
        turned = _TURNED.get(self.phase, self.phase) if self.transposed else self.phase
        is_converted = self.is_converted
        channels = x.shape[1]
        is_stem = channels < _ALIGNED and turned == "forward"
        if is_converted and self.groups == 1 and not is_stem:
            channels = _padded(channels)
        return Convolution(
            *(x.shape[0], channels, out.shape[1], x.shape[2:], out.shape[2:], self.weight.shape[2:]),
            groups=self.groups,
            channels_last=self.is_channels_last or is_converted,
            phase=turned,
        )

    def kernel(self, flops: int, reads: tuple[Tensor, ...], writes: Tensor) -> Kernel:
        """One pass of the convolution."""
        read = sum(tensor.full_bytes for tensor in reads)
        return Kernel(
            "convolution",
            self.x.dtype,
            flops,
            read_bytes=read,
            written_bytes=writes.full_bytes,
            sizes=self.sizes,
        )

    def converted(self, *tensors: Tensor) -> list[Kernel]:
        """The conversions of these tensors to channels-last or back; few channels are padded."""
        choice, is_last = self.choice, self.is_channels_last
        of_groups = "xwo" if self.is_converted else ""
        letters = of_groups if self.groups > 1 else cudnn.converted(choice, self.phase, is_last)
        wanted = {"x": self.x, "w": self.weight, "o": self.out}
        layout = Layout(operand=is_last, gradient=is_last)
        is_ordered = self.weight in tensors and cudnn.is_weight_ordered(choice, self.phase, layout)
        ordered = [copy(self.weight)] if is_ordered and "w" not in letters else []
        found = [tensor for tensor in tensors if any(tensor is wanted[letter] for letter in letters)]
        return ordered + [kernel for tensor in found for kernel in self.conversion(tensor)]

    def conversion(self, tensor: Tensor) -> list[Kernel]:
        """The conversion of one tensor; few channels are padded with zeros first."""
        channels = tensor.shape[1]
        is_padded = self.groups == 1 and tensor is not self.out
        padded = _padded(channels) if is_padded else channels
        written = tensor.full_bytes * padded // max(channels, 1)
        zeros = [Kernel("elementwise", tensor.dtype, written_bytes=written)] if padded > channels else []
        if zeros and tensor is self.weight and tensor.shape[0] % _ALIGNED:  # padded along both axes
            generic = Kernel("copy", tensor.dtype, 0, 0, tensor.full_bytes, written, variant="generic")
            return [*zeros, generic]
        pixels = prod(tensor.shape[2:])
        tiles = Rows(tensor.shape[0] * -(-channels // _TILE) * -(-pixels // _TILE), 1)
        moved = Kernel("copy", tensor.dtype, 0, 0, tensor.full_bytes, written, tiles, variant="channels_last")
        return [*zeros, moved]


def _padded(channels: int) -> int:
    """Channels with the zeros that tensor cores need."""
    return -(-channels // _ALIGNED) * _ALIGNED


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tensor.shape, DTYPES[tensor.dtype])


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
