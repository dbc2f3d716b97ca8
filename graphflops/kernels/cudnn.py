"""How cuDNN runs a convolution: which tensors it converts first, in how many parts it sums up, and what that takes.

Kernels for tensor cores want the channels last and a multiple of 16 bytes of them: cuDNN copies tensors that lie otherwise
into such an order, and results back. Groups are packed into one kernel, their channels filled up to a power of two, or run
one by one in streams, or one kernel computes them as they lie. Sums over many elements for few results are cut into parts
that are added up after, in float32. PyTorch itself copies what does not lie in the order that operand or weight ask for.

Which of these cuDNN takes follows from heuristics of its own, which `choices/cudnn_9.json` has as decision trees.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from graphflops.dims import Dim, dim_max, prod
from graphflops.kernels.choices import chosen, library, limits
from graphflops.kernels.convolution import Convolution, Layout, up
from graphflops.kernels.reductions import reduction_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.devices import Platform
    from graphflops.kernels.choices import Choice

_SPLIT = ("split", "converted_split", "operands_converted_split")
STREAMS, LONG_KERNEL = limits("cudnn_9", "convolution", "streams", "long_kernel")
_FLOAT_BYTES = 4
_PART, _MOST_PARTS, _TILE, _GROUP_TILE, _MANY_ROWS, _MANY_FLOAT_ROWS = limits(
    *("cudnn_9", "split", "part", "most_parts", "tile", "group_tile", "many_rows", "many_float_rows")
)
_DEPTHWISE_PARTS, _DEPTHWISE_CHANNELS, _DEPTHWISE_ROWS = limits(
    "cudnn_9", "depthwise", "parts", "channels", "rows"
)


@lru_cache(maxsize=4096)
def way(conv: Convolution, phase: str, is_last: bool) -> str:
    """The way that cuDNN takes for a phase: forward, input_gradient or weight_gradient.

    converted: channels-last copies of all tensors. operands_converted: the kernel writes the result in order. by_entry: a
    part of the weight's gradient for each batch entry. Those that end in split cut sums into parts. direct, packed and
    one_by_one are those of several groups. is_last: whether the channels of the operand are last.
    """
    if conv.is_depthwise or (conv.positions == conv.result_positions == 1 and conv.groups == 1):
        return "as_it_lies"  # of one position, the channels are last already
    if conv.groups > 1:
        if phase == "forward" and conv.axes == 1 and conv.taps > LONG_KERNEL and not conv.is_power:
            return "direct"
        name = f"groups.{phase}{'.channels_last' if is_last else ''}"
    elif is_last:
        return "as_it_lies"
    else:
        name = f"{phase}.{'pointwise' if conv.is_pointwise else 'window'}"
    return chosen(choices()[name].tree, conv)


def choices() -> dict[str, Choice]:
    """The trees of the release that is assumed, by their names."""
    return library("cudnn_9").choices


def converted(conv: Convolution, phase: str, is_last: bool) -> str:
    """Which tensors are copied into another order, as letters: x, the weight w, and the result o, or their gradients.

    With channels last these are tensors whose channels are padded.
    """
    if is_last:
        return _padded(conv, phase)
    taken = way(conv, phase, is_last)
    if taken == "packed":
        return "xwo"
    if not taken.startswith(("converted", "operands_converted")):
        return ""
    weight = "" if conv.is_pointwise and conv.is_aligned else "w"
    return f"x{weight}{'o' if taken.startswith('converted') else ''}"


def _padded(conv: Convolution, phase: str) -> str:
    if conv.groups > 1 or (conv.is_pointwise and (not conv.is_half or phase == "weight_gradient")):
        return ""
    if phase != "forward" and (conv.transposed or (phase == "weight_gradient" and not conv.is_half)):
        return ""
    is_x = conv.aligned(conv.channels) != conv.channels
    is_out = conv.aligned(conv.results) != conv.results and not conv.is_pointwise
    return f"{'x' if is_x else ''}{'w' if is_x or is_out else ''}{'o' if is_out else ''}"


def is_weight_ordered(conv: Convolution, phase: str, layout: Layout) -> bool:
    """Whether PyTorch copies the weight into the order of an operand whose channels are last."""
    is_other = layout.operand and not layout.weight and phase != "weight_gradient"
    return is_other and not conv.is_pointwise and not conv.is_depthwise


def forward_bytes(conv: Convolution, layout: Layout, platform: Platform) -> Dim:
    """Bytes beside operand, weight and result: copies that PyTorch makes, and the workspace."""
    gathered = conv.x.like().nbytes if layout.gaps else 0
    return gathered + workspace(conv, "forward", layout, platform)


def backward_bytes(conv: Convolution, layout: Layout, strides: Sequence[Dim], platform: Platform) -> Dim:
    """Bytes beside all gradients. The operand's comes first, while that of the weight has no memory yet."""
    own = [*gradient_bytes(conv, layout, strides, platform)]
    if conv.wants_x and conv.wants_weight:
        own[0] = own[0] - conv.weight.nbytes
    return dim_max(0, *own)


def gradient_bytes(
    conv: Convolution, layout: Layout, strides: Sequence[Dim], platform: Platform
) -> Sequence[Dim]:
    """Bytes beside each gradient: of operand, weight and bias. strides: of the result's gradient.

    Each of the first two copies the result's gradient where it lies in another order.
    """
    ordered = conv.out.nbytes if layout.operand != layout.gradient else 0
    found: list[Dim] = []
    if conv.wants_x:
        found.append(ordered + workspace(conv, "input_gradient", layout, platform))
    if conv.wants_weight:
        gathered = conv.x.like().nbytes if layout.gaps else 0
        found.append(ordered + gathered + workspace(conv, "weight_gradient", layout, platform))
    if conv.wants_bias:
        axes = [axis for axis in range(conv.out.rank) if axis != 1]
        found.append(reduction_bytes(conv.out.shape, strides, axes, _FLOAT_BYTES, platform))
    return found


def workspace(conv: Convolution, phase: str, layout: Layout, platform: Platform) -> Dim:
    """Bytes of the tensors that are converted, and of the parts of sums."""
    ordered = conv.weight.nbytes if is_weight_ordered(conv, phase, layout) else 0
    if conv.is_depthwise:
        has_parts = phase == "weight_gradient" and layout.operand and conv.is_half
        return _depthwise_parts(conv) if has_parts else 0
    if conv.groups > 1:
        return ordered + _of_groups(conv, phase, layout.operand, platform)
    copies = conv.copies()
    sizes = {"x": copies.x, "w": copies.weight, "o": copies.out}
    letters = converted(conv, phase, layout.operand)
    return ordered + sum(sizes[letter] for letter in letters) + _parts(conv, phase, layout.operand, platform)


def _parts(conv: Convolution, phase: str, is_last: bool, platform: Platform) -> Dim:
    """Parts of sums in float32: one for each batch entry, for 64 channels each, or as many as keep the GPU busy."""
    taken = way(conv, phase, is_last)
    if taken == "by_entry":
        return conv.x.shape[0] * conv.float_weight
    has_many = conv.rows >= (_MANY_ROWS if conv.is_half else _MANY_FLOAT_ROWS)
    if taken not in _SPLIT and not (is_last and phase == "weight_gradient" and has_many):
        return 0
    if phase != "weight_gradient":
        summed, written = (conv.channels, conv.out) if phase == "forward" else (conv.results, conv.x)
        return prod(written.shape) * (_FLOAT_BYTES * min(_MOST_PARTS, -(-summed // _PART)))
    if taken == "split" and conv.is_pointwise:
        return min(_MOST_PARTS, -(-conv.rows // (_PART if conv.is_half else _TILE))) * conv.float_weight
    taps = conv.taps if conv.channels >= _PART else 1  # fewer channels share a tile with those of other taps
    tiles = taps * -(-conv.channels * (conv.taps // taps) // _TILE) * -(-conv.results // _TILE)
    return max(1, platform.multiprocessors // tiles - 1) * conv.float_weight


def _of_groups(conv: Convolution, phase: str, is_last: bool, platform: Platform) -> Dim:
    if is_last and not conv.is_half and _rounds_to_tf32(conv, phase):
        other = conv.weight if phase == "input_gradient" else conv.x
        return conv.out.nbytes + other.nbytes
    taken = way(conv, phase, is_last)
    if taken == "packed":
        wide = conv.packed
        parts = _packed_parts(conv, platform) if phase == "weight_gradient" and not is_last else 0
        return sum(conv.copies(lambda _: wide)) + parts
    if taken == "one_by_one":
        copies = conv.copies()
        # Of a weight that needs no copy, the channels of the groups that run are cut out.
        weight = 0 if is_last or (conv.is_pointwise and conv.is_aligned) else copies.weight
        return (copies.x + weight + copies.out) * min(STREAMS, conv.groups) // conv.groups
    return 0


def _rounds_to_tf32(conv: Convolution, phase: str) -> bool:
    """Whether a kernel that takes groups in float32 as they are rounds what it reads first."""
    if phase == "input_gradient":
        return conv.is_strided
    return phase == "weight_gradient" and conv.wide <= _GROUP_TILE // 2 and conv.is_power


def _packed_parts(conv: Convolution, platform: Platform) -> Dim:
    """Parts of the gradient of the weight of packed groups: as many as keep the GPU busy, if many rows add to it."""
    if conv.rows < _MANY_ROWS:
        return 0
    wide = conv.packed
    tile = _TILE if wide >= _TILE else _GROUP_TILE
    tiles = -(-conv.groups * wide // tile) * max(1, wide // tile) * conv.taps
    return max(0, platform.multiprocessors // tiles - 1) * tiles * tile * tile * _FLOAT_BYTES


def _depthwise_parts(conv: Convolution) -> Dim:
    """Eight parts for each batch entry, in float32, of a kernel with a position in the middle."""
    is_odd = conv.kernel[0] % 2 == 1 and not (conv.is_pointwise and conv.is_strided)
    if conv.rows < _DEPTHWISE_ROWS or not is_odd:
        return 0
    channels = up(conv.results * conv.groups, _DEPTHWISE_CHANNELS)
    return conv.x.shape[0] * (_DEPTHWISE_PARTS * channels * conv.taps * _FLOAT_BYTES)
