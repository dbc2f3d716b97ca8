"""Which way cuDNN takes for a convolution of several groups, which decides its workspace and its time.

Groups are packed into one kernel for tensor cores, with their channels filled up to a power of two, or run one by one in
eight streams, or one kernel without tensor cores computes them as they lie. Which of these cuDNN takes follows from
heuristics of its own. The limits here were read from the workspaces and kernels of 12,500 convolutions that were measured on
an H200 with PyTorch 2.11 and cuDNN 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from graphflops.memory.convolutions import power_of_two

if TYPE_CHECKING:
    from graphflops.memory.convolutions import Convolution

Way = Literal["direct", "packed", "one_by_one"]

# Groups of fewer channels than the first run without tensor cores. Those of up to the third are packed, few groups only if
# little is padded; those of more than the fourth and up to the fifth if there are many rows, twice as wide ones if more.
_FEWEST, _PACKED, _MIDDLE, _WORTH_PACKING, _WIDEST = 4, 32, 48, 72, 256
_ROWS, _MORE_ROWS = 1_500, 6_000
_TILE = 128  # channels
_FEW_GROUPS, _LARGE_KERNEL = 4, 9
_LONG_KERNEL = 31  # positions of a sequence, above which groups run without tensor cores
_GRADIENT_PACKED, _WEIGHT_PACKED, _FLOAT_PACKED = 40, 112, 128  # channels of a group
# Elements of results, and channels of a group, up to which float32 runs without tensor cores; for gradients of weights.
_DIRECT_ELEMENTS, _DIRECT_CHANNELS, _DIRECT_MULTIPLIES = 100_000, 12, 38_000_000


def of_result(conv: Convolution, is_last: bool) -> Way:
    """The way of the forward pass. is_last: whether the channels are last."""
    wide = _channels(conv)
    if is_last:
        return _with_channels_last(conv)
    is_long = len(conv.kernel) == 1 and conv.taps > _LONG_KERNEL
    if is_long or (conv.is_half and conv.channels < _FEWEST):
        return "direct"
    if not conv.is_half:
        return "direct" if conv.is_pointwise else _in_single_precision(conv)
    if conv.is_pointwise or wide > _WIDEST:
        return "one_by_one"
    if wide <= _MIDDLE:
        is_padded = power_of_two(wide) > wide
        is_rare = conv.groups <= _FEW_GROUPS and (wide <= _PACKED or wide * 4 < power_of_two(wide) * 3)
        is_large = wide > _PACKED and conv.taps > _LARGE_KERNEL
        return _packed(not (is_padded and (is_rare or is_large)))
    if wide <= _WORTH_PACKING:
        return "one_by_one"
    return _packed(conv.rows >= (_ROWS if wide <= _TILE else _MORE_ROWS))


def of_operand_gradient(conv: Convolution, is_last: bool) -> Way:
    """The way of the gradient of the operand."""
    if is_last:
        return _with_channels_last(conv)
    if not conv.is_half:
        return _in_single_precision(conv)
    wide = _channels(conv)
    is_packed = wide <= _PACKED or (wide <= _GRADIENT_PACKED and not conv.is_strided)
    return _packed(is_packed and conv.channels >= _FEWEST and not conv.is_pointwise)


def of_weight_gradient(conv: Convolution, is_last: bool) -> Way:
    """The way of the gradient of the weight."""
    if is_last:
        return _with_channels_last(conv)
    wide = _channels(conv)
    if conv.channels < _FEWEST and conv.is_half:
        return "direct"
    if conv.is_pointwise:
        return "one_by_one"
    if wide <= _PACKED and conv.multiplies <= _DIRECT_MULTIPLIES:
        return "direct"
    return _packed(wide <= (_WEIGHT_PACKED if conv.is_half else _FLOAT_PACKED))


def _with_channels_last(conv: Convolution) -> Way:
    wide = _channels(conv)
    if wide < _FEWEST or (wide <= _PACKED and power_of_two(wide) == wide):
        return "direct"
    return _packed(wide <= _MIDDLE)


def _in_single_precision(conv: Convolution) -> Way:
    """Of result and operand's gradient."""
    wide, results = _channels(conv), conv.results * conv.groups
    if conv.is_pointwise:
        return "one_by_one"
    if wide <= _DIRECT_CHANNELS and conv.rows * results <= _DIRECT_ELEMENTS:
        return "direct"
    is_rare = conv.groups <= _FEW_GROUPS + 1 and wide <= _PACKED and conv.rows >= _MORE_ROWS
    return _packed(wide <= _FLOAT_PACKED and not is_rare)


def _packed(is_packed: bool) -> Way:
    return "packed" if is_packed else "one_by_one"


def _channels(conv: Convolution) -> int:
    """Channels of a group, of operand or result."""
    return max(conv.channels, conv.results)
