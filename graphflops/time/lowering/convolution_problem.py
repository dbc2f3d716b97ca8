"""A convolution of concrete sizes: which operands cuDNN converts, and what its kernel sees."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.time.kernel import Convolution, Kernel, Rows
from graphflops.time.lowering.moved import copy

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import Pass

_TILE = 32  # channels and pixels of a tile of the conversion
_ALIGNED = 8  # channels: others are padded up to a multiple for tensor cores
_SMALL_WINDOW = 9  # positions
_SMALL_BATCH = 2
_WIDE_PATCH = 512  # filters
_IMAGE_RANK = 4
# Elements of the weight of a product from which several images are converted, of few positions or many rows, and others.
_FEW_IMAGES, _FEW_POSITIONS, _MANY_ROWS, _LARGE_WEIGHT, _LARGER_WEIGHT = 3, 64, 5_000, 75_000, 700_000
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
        is_half = self.x.bits < _FULL_BITS
        is_volume = self.x.rank > _IMAGE_RANK
        is_wide = channels > _ALIGNED and not is_volume
        if is_half and not self.is_pointwise and (is_wide or self.phase == "weight_gradient"):
            return False
        is_small = prod(self.weight.shape[2:]) <= _SMALL_WINDOW or is_volume
        return is_small or (is_half and (self.x.shape[0] <= _SMALL_BATCH or self.is_narrow_patch))

    @property
    def has_several_filters_last(self) -> bool:
        """Whether each channel has several filters and channels are innermost: cuDNN then has no kernel for all channels."""
        return self.is_depthwise and self.is_channels_last and self.out.shape[1] > self.x.shape[1]

    @property
    def is_converted_product(self) -> bool:
        """Whether a product of several images whose rows do not align runs with channels innermost, for a large weight."""
        positions, weight = prod(self.x.shape[2:]), prod(self.weight.shape[:2])
        is_odd = positions % 2 == 1 and positions > 1 and self.x.bits < _FULL_BITS
        is_large = positions < _FEW_POSITIONS or self.x.shape[0] * positions >= _MANY_ROWS
        least = _LARGE_WEIGHT if is_large else _LARGER_WEIGHT
        is_like = self.phase != "input_gradient" and self.x.shape[0] > _FEW_IMAGES
        return is_odd and is_like and weight >= least and weight % _ALIGNED**2 == 0

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
        is_in_order = not self.is_channels_last and not self.is_direct
        return is_plain and is_in_order and not self.is_converted_product

    @property
    def is_channels_last(self) -> bool:
        """Whether the operand has its channels innermost already; that of a sequence is put in order first."""
        return self.x.rank > _SEQUENCE_RANK and self.x.shape[1] > 1 and self.x.strides[1] == 1

    @property
    def sizes(self) -> Convolution:
        """As the kernel sees it: a transposed one is the gradient of the convolution from its result to its operand."""
        x, out = (self.out, self.x) if self.transposed else (self.x, self.out)
        turned = _TURNED.get(self.phase, self.phase) if self.transposed else self.phase
        is_converted = self.needs_channels_last and not self.is_planar
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
