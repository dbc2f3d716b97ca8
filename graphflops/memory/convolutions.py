"""Workspaces of cuDNN's convolutions: what they need beside operands, results and gradients.

The sizes were measured on an H200 with PyTorch 2.11 and cuDNN 9: the difference between the peak of requested bytes during
an operator and the larger of the bytes before and after it. Kernels for tensor cores want the channels last, so tensors in
row-major order are copied into that order and back. Gradients of small weights are summed up in several parts at once.
Which kernel cuDNN takes follows from heuristics of its own; the rules here are those that most of 3,000 convolutions of real
models obey.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.dims import Dim, at_least, ceil_div, dim_max, prod
from graphflops.graph import Ref
from graphflops.memory.reductions import reduction_bytes
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_ALIGNED = 8  # channels; fewer, or a number between multiples, are padded with zeros
_WIDE_PATCH = 512  # channels of patches from which tensor cores are used for images
_SMALL_KERNEL = 9  # positions
_FLOAT_BYTES = 4
_FEW_POSITIONS = 64  # of an image, below which a pointwise convolution has few rows
# Elements of a weight from which images without aligned rows are copied: those of few positions, and others.
_LARGE_WEIGHT, _LARGEST_WEIGHT = 75_000, 700_000
# The gradient of a pointwise weight is computed by batch entry on images of more positions than the first, and on smaller
# ones up to so many channels: of the narrower side, and of the operand where rows are not aligned.
_MANY_POSITIONS, _NARROW, _WIDE = 424, 160, 384
_DEPTHWISE_PARTS, _DEPTHWISE_CHANNELS = 8, 32
_MANY_ROWS = 16_000  # positions of the whole batch from which the gradient of a weight is summed up in parts
_TILE, _SMALLEST_TILE, _MULTIPROCESSORS = 128, 64, 132
_FEW_CHANNELS = 256  # of a group, up to which they are padded to a power of two


class Layout(NamedTuple):
    """Which tensors of a convolution have their channels last. gaps: whether the operand must be copied first."""

    operand: bool = False
    gaps: bool = False
    weight: bool = False
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """Types and options of a convolution in half or single precision."""

    x: TensorType
    weight: TensorType
    out: TensorType
    stride: tuple[Any, ...]
    padding: tuple[Any, ...]
    groups: int
    transposed: bool
    has_bias: bool

    @staticmethod
    def of(call: PricedCall, values: Mapping[str, Value]) -> Convolution | None:
        """The convolution that a call is; None in element types that have no tensor cores."""
        arguments = call.node.arguments()
        x, weight = (_tensor(arguments.get(name), values) for name in ("x", "weight"))
        out = _tensor(call.node.outputs[0], values)
        if x is None or weight is None or out is None or x.dtype.bits not in (16, 32) or x.rank < 3:
            return None
        groups, axes = arguments.get("groups", 1), x.rank - 2
        return Convolution(
            *(x, weight, out),
            stride=_per_axis(arguments.get("stride", 1), axes),
            padding=_per_axis(arguments.get("padding", 0), axes),
            groups=groups if isinstance(groups, int) else 1,
            transposed=call.node.operator.name == "conv_transpose" or arguments.get("transposed") is True,
            has_bias=isinstance(arguments.get("bias"), Ref),
        )

    @property
    def channels(self) -> Dim:
        """Channels of one group of the narrow side: of the operand, or of a transposed convolution's result."""
        return self.weight.shape[1]

    @property
    def kernel(self) -> tuple[Dim, ...]:
        return self.weight.shape[2:]

    @property
    def positions(self) -> Dim:
        """Positions of one image."""
        return prod(self.x.shape[2:])

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels == 1

    @property
    def is_pointwise(self) -> bool:
        return all(size == 1 for size in self.kernel)

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product at every position: a pointwise kernel that leaves none out."""
        return self.is_pointwise and self.groups == 1 and all(step == 1 for step in self.stride)

    @property
    def is_half(self) -> bool:
        return self.x.dtype.bits == 16

    @property
    def is_aligned(self) -> bool:
        """Whether rows of positions can be read eight at a time; open sizes count as aligned."""
        return not isinstance(self.positions, int) or self.positions % _ALIGNED == 0

    @property
    def is_patch(self) -> bool:
        """Whether windows neither overlap nor reach into padding: the operand is cut into patches."""
        return self.stride == self.kernel and not any(self.padding) and not self.transposed

    @property
    def is_image_stem(self) -> bool:
        """A first layer on a few channels with a small kernel, patches of few channels or a small batch: no tensor cores."""
        if self.groups > 1 or self.transposed or self.channels not in range(_ALIGNED):
            return False
        if self.is_patch:
            return not self.is_half or _is_below(self.weight.shape[0], _WIDE_PATCH)
        is_small = _is_below(prod(self.kernel), _SMALL_KERNEL + 1)
        return is_small or (self.is_half and len(self.kernel) > 2) or self.x.shape[0] == 1

    @property
    def is_grouped_sequence(self) -> bool:
        """A kernel over sequences in groups, as embeds positions of speech: no tensor cores."""
        return self.groups > 1 and len(self.kernel) == 1 and not self.is_pointwise

    @property
    def is_read_in_place(self) -> bool:
        """Whether a product reads tensors in row-major order: where rows are aligned, or copies would cost more."""
        if not self.is_half or self.is_aligned or self.positions == 1:
            return True
        limit = _LARGE_WEIGHT if _is_below(self.positions, _FEW_POSITIONS) else _LARGEST_WEIGHT
        return _is_below(prod(self.weight.shape), limit)

    def forward(self, layout: Layout) -> Dim:
        """Bytes of the workspace."""
        gathered = self.x.like().nbytes if layout.gaps else 0
        if layout.operand:
            return gathered + self.forward_channels_last(layout)
        if self.is_depthwise or self.is_image_stem or self.is_grouped_sequence:
            return gathered
        if self.is_product and self.is_read_in_place:
            return gathered
        return gathered + (self.x.nbytes + self.out.nbytes if self.is_pointwise else self.copies)

    def forward_channels_last(self, layout: Layout) -> Dim:
        """Where operand and result have their channels last: the weight in that order, and channels padded."""
        if self.is_depthwise or self.is_image_stem:
            return 0
        weight = 0 if layout.weight else self.weight.nbytes
        if self.padded == self.channels:
            return 0 if self.is_pointwise else weight
        if self.groups > 1:
            return self.copies
        return (self.x.nbytes + weight) * self.padded // self.channels

    def backward(self, layout: Layout, strides: Sequence[Dim]) -> Dim:
        """Bytes of the workspace beside the gradients. strides: of the result's gradient."""
        gathered = self.x.like().nbytes if layout.gaps else 0
        gathered = gathered + (self.out.nbytes if layout.operand != layout.gradient else 0)
        own = gathered + (self.backward_channels_last if layout.operand else self.backward_row_major)
        if not self.has_bias:
            return own
        axes = [axis for axis in range(self.out.rank) if axis != 1]
        return dim_max(own, reduction_bytes(self.out.shape, strides, axes, _FLOAT_BYTES))

    def operand_gradient(self, layout: Layout, whole: Dim) -> Dim:
        """Bytes of the workspace of the operand's gradient. whole: of both gradients."""
        if self.is_depthwise or (self.is_product and (self.is_summed_by_entry or self.is_read_in_place)):
            return 0
        own = 0 if layout.operand and self.groups == 1 else self.x.nbytes + self.out.nbytes
        if not self.is_pointwise and not layout.operand:
            own = self.copies
        return own if at_least(whole, own) else whole

    @property
    def backward_channels_last(self) -> Dim:
        """Parts of the weight's gradient in float32, and groups whose channels are padded."""
        if not self.is_depthwise:
            return self.copies if self.groups > 1 and self.padded != self.channels else self.parts
        if not self.is_half:
            return 0
        channels = ceil_div(self.weight.shape[0], _DEPTHWISE_CHANNELS) * _DEPTHWISE_CHANNELS
        return self.x.shape[0] * _DEPTHWISE_PARTS * channels * prod(self.kernel) * _FLOAT_BYTES

    @property
    def backward_row_major(self) -> Dim:
        if self.is_depthwise or prod(self.out.shape[2:]) == 1:
            return 0
        if self.is_product and self.is_summed_by_entry:
            return self.x.shape[0] * prod(self.weight.shape) * _FLOAT_BYTES
        if self.is_pointwise:
            return self.x.nbytes + self.out.nbytes
        return self.copies + self.parts

    @property
    def is_summed_by_entry(self) -> bool:
        """Whether a product's weight gets one float32 gradient for each batch entry, added up after."""
        results, operands = self.weight.shape[0], self.weight.shape[1]
        if _is_below(self.positions, _FEW_POSITIONS) and not self.is_aligned:
            return _is_below(operands, _WIDE + 1)
        if not self.is_half or not _is_below(self.positions, _MANY_POSITIONS + 1):
            return True
        return _is_below(operands, _NARROW + 1) or _is_below(results, _NARROW + 1)

    @property
    def parts(self) -> Dim:
        """Parts of the gradient of a small weight in float32: as many as keep the GPU busy, if many positions add to it."""
        rows = self.x.shape[0] * prod(self.out.shape[2:])
        wide, high, taps = (*self.weight.shape[:2], prod(self.kernel))
        if self.groups > 1 or _is_below(rows, _MANY_ROWS):
            return 0
        if not isinstance(wide, int) or not isinstance(high, int) or not isinstance(taps, int):
            return 0
        tiles = -(-wide // _TILE) * -(-high // _TILE) * taps
        others = max(0, _MULTIPROCESSORS // tiles - 1)
        return others * _tiled(wide) * _tiled(high) * taps * _FLOAT_BYTES

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
        """The channels; in half precision filled up to a multiple of 8, in a group of few to a power of two."""
        own = self.channels
        if not self.is_half:
            return own
        if self.groups > 1 and _is_below(own, _FEW_CHANNELS + 1) and isinstance(own, int):
            return 1 << (own - 1).bit_length()
        return ceil_div(own, _ALIGNED) * _ALIGNED


def _tiled(channels: int) -> int:
    """Channels filled up to whole tiles of a product."""
    return _SMALLEST_TILE if channels <= _SMALLEST_TILE else -(-channels // _TILE) * _TILE


def _is_below(size: Dim, limit: int) -> bool:
    """Whether a size is known and below a limit: an open one counts as large."""
    return isinstance(size, int) and size < limit


def _tensor(value: object, values: Mapping[str, Value]) -> TensorType | None:
    name = value.name if isinstance(value, Ref) else value
    found = values.get(name) if isinstance(name, str) else None
    return found if isinstance(found, TensorType) else None


def _per_axis(argument: Any, axes: int) -> tuple[Any, ...]:
    """An attribute for each axis; one number or word is repeated for all axes."""
    if isinstance(argument, tuple):
        return argument * axes if len(argument) == 1 else argument
    return (argument,) * axes
