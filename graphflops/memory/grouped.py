"""Which way cuDNN takes for a convolution of several groups, which decides its workspace and its time.

Groups are packed into one kernel for tensor cores, with their channels filled up to a power of two, or run one by one in
eight streams, or one kernel computes them as they lie: with channels last, or without tensor cores where there is little
work. A few groups in half precision that have more results than channels, or fewer, are not packed. Which of these cuDNN
takes follows from heuristics of its own. The limits here were read from the workspaces and kernels of 7,300 grouped
convolutions of 100 image models and of 900 random ones, which an H200 ran with PyTorch 2.11 and cuDNN 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from graphflops.memory.convolutions import power_of_two

if TYPE_CHECKING:
    from graphflops.memory.convolutions import Convolution

Way = Literal["direct", "packed", "one_by_one"]

STREAMS = 8  # in which groups run one by one
LONG_KERNEL = (
    31  # positions of a sequence, above which groups that are no power of two run without tensor cores
)

# Channels of a group: fewer than the first run without tensor cores in half precision. Those of up to the second share a
# kernel, up to the third if groups are many, of more than the fourth and up to the fifth if there are many rows.
_FEWEST, _PACKED, _MIDDLE, _WORTH_PACKING, _WIDEST = 4, 32, 48, 72, 256
_ROWS, _MORE_ROWS = 1_500, 6_000
_TILE = 128  # channels
_FEW_GROUPS, _SOME_GROUPS = 5, 16
_FILLED_POSITIONS, _FILLED_ROWS = 80_000, 25_000  # of operands, of results
_GRADIENT_PACKED, _WEIGHT_PACKED, _FLOAT_PACKED = 40, 112, 128  # channels of a group
# Little work without tensor cores: multiply-adds of a strided operand's gradient; rows and channels of a weight's.
_STRIDED_MULTIPLIES, _WEIGHT_ROWS, _WEIGHT_CHANNELS = 30_000_000, 4_352, 24
# Float32: channels of all groups up to which one image runs without tensor cores; elements and channels of small results.
_SINGLE_CHANNELS, _DIRECT_ELEMENTS, _DIRECT_CHANNELS = 208, 100_000, 12
_FLOAT_MULTIPLIES = 12_000_000
_HALF_TILE = 64


def of_result(conv: Convolution, is_last: bool) -> Way:
    """The way of the forward pass. is_last: whether the channels are last."""
    wide = channels(conv)
    if is_last:
        return _with_channels_last(conv)
    if len(conv.kernel) == 1 and conv.taps > LONG_KERNEL and not _is_power(wide):
        return "direct"
    if not conv.is_half:
        return "direct" if conv.is_pointwise else _in_single_precision(conv)
    if conv.channels < _FEWEST:
        return "direct"
    is_few = conv.groups <= _FEW_GROUPS
    if conv.is_pointwise or wide > _WIDEST or (is_few and conv.channels != conv.results):
        return "one_by_one"
    if wide <= _MIDDLE:
        return _packed(not is_few or _is_power(wide) or _is_worth_filling(conv))
    if wide <= _WORTH_PACKING:
        return "one_by_one"
    return _packed(conv.rows >= (_ROWS if wide <= _TILE else _MORE_ROWS))


def of_operand_gradient(conv: Convolution, is_last: bool) -> Way:
    """The way of the gradient of the operand."""
    if is_last:
        return _with_channels_last(conv)
    if not conv.is_half:
        return _in_single_precision(conv) if conv.channels == conv.results else "one_by_one"
    wide = channels(conv)
    is_packed = wide <= _PACKED or (wide <= _GRADIENT_PACKED and not conv.is_strided)
    if not is_packed or conv.channels < _FEWEST or conv.is_pointwise:
        return "one_by_one"
    is_little = conv.is_strided and conv.groups <= _SOME_GROUPS and conv.multiplies <= _STRIDED_MULTIPLIES
    return "direct" if is_little else "packed"


def of_weight_gradient(conv: Convolution, is_last: bool) -> Way:
    """The way of the gradient of the weight."""
    wide = channels(conv)
    if is_last:
        return "direct" if wide == _HALF_TILE or is_shared_as_it_lies(conv) else _packed(wide <= _MIDDLE)
    if conv.is_half and conv.channels <= _FEWEST:
        return "direct"
    if conv.is_pointwise:
        return "one_by_one"
    if conv.is_half:
        is_few = conv.groups < _SOME_GROUPS and wide <= _WEIGHT_CHANNELS
        is_little = is_few and conv.rows <= _WEIGHT_ROWS
    else:
        is_few = conv.groups * conv.channels <= _SINGLE_CHANNELS
        is_little = is_few and conv.multiplies <= _FLOAT_MULTIPLIES
    return "direct" if is_little else _packed(wide <= (_WEIGHT_PACKED if conv.is_half else _FLOAT_PACKED))


def channels(conv: Convolution) -> int:
    """Channels of a group, of operand or result."""
    return max(conv.channels, conv.results)


def is_shared_as_it_lies(conv: Convolution) -> bool:
    """Whether one kernel takes all groups as they are, if their channels are last."""
    return channels(conv) <= _PACKED and _is_power(channels(conv))


def _with_channels_last(conv: Convolution) -> Way:
    wide = channels(conv)
    as_it_lies = is_shared_as_it_lies(conv) or (
        not conv.is_half and wide <= _FLOAT_PACKED and _is_power(wide)
    )
    if wide < _FEWEST or as_it_lies:
        return "direct"
    return _packed(wide <= (_MIDDLE if conv.is_half else _FLOAT_PACKED))


def _is_worth_filling(conv: Convolution) -> bool:
    """Whether a few groups of up to 48 channels, in half precision, are filled up to share a kernel."""
    wide = channels(conv)
    if wide <= _PACKED:
        return conv.batch * conv.positions <= _FILLED_POSITIONS
    return wide > _GRADIENT_PACKED and conv.rows > _FILLED_ROWS


def _in_single_precision(conv: Convolution) -> Way:
    """Of result and operand's gradient."""
    wide, results = channels(conv), conv.results * conv.groups
    if conv.is_pointwise:
        return "one_by_one"
    is_one_small_image = conv.batch == 1 and conv.channels * conv.groups <= _SINGLE_CHANNELS
    if wide <= _DIRECT_CHANNELS and conv.rows * results <= _DIRECT_ELEMENTS:
        return "direct"
    if wide <= _PACKED and is_one_small_image:
        return "direct"
    is_rare = conv.groups <= _FEW_GROUPS and not _is_power(wide) and wide <= _MIDDLE
    return _packed(wide <= _FLOAT_PACKED and not is_rare)


def _packed(is_packed: bool) -> Way:
    return "packed" if is_packed else "one_by_one"


def _is_power(size: int) -> bool:
    return power_of_two(size) == size
