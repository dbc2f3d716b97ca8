"""Workspaces of cuDNN's convolutions: what they need beside operands, results and gradients.

Kernels for tensor cores want the channels last and a multiple of 16 bytes of them: cuDNN copies tensors that lie otherwise
into such an order, and results back; `cudnn_groups` has those of several groups. Gradients of weights are summed up in
several parts at once. PyTorch itself copies what does not lie in the order that operand or weight ask for.

Which kernel cuDNN takes follows from heuristics of its own. The limits here were read from 12,500 convolutions that were
measured on an H200 with PyTorch 2.11 and cuDNN 9: the difference between the peak of requested bytes during an operator and
the larger of the bytes before and after it, and the names of the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Dim, dim_max
from graphflops.memory import cudnn_groups, split_sums
from graphflops.memory.convolutions import Convolution, Layout, known, up
from graphflops.memory.reductions import reduction_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.devices import Platform

_FLOAT_BYTES = 4
_ROW = 8  # positions of half precision that are read at once
# Image stems run with tensor cores where the kernel is large and there is much work. Patches do where they have many
# positions and many results, very many positions, or half of the channels that are read at once.
_STEM_TAPS, _STEM_MULTIPLIES, _PATCH_TAPS, _WIDE_PATCH, _LARGEST_PATCH = 25, 400_000_000, 36, 512, 1024
# Elements of a weight from which a product of images without aligned rows copies them: of few positions, and others.
_FEW_POSITIONS, _LARGE_WEIGHT, _LARGEST_WEIGHT = 64, 75_000, 700_000
# Float32, where one position in each stride is read: copies from so many channels, if results are many or images small.
_STRIDED_CHANNELS, _STRIDED_RESULTS, _STRIDED_POSITIONS = 80, 160, 400
_STRIDED_GRADIENT, _STRIDED_NARROW, _STRIDED_MULTIPLIES = 160, 40, 38_600_000
_STRIDED_WEIGHT = 80
# Transposed: images of few results are a first layer seen backwards. Float32 convolutions of little work are not copied.
_FEW_PRODUCTS, _FEW_GRADIENTS = 272, 955_232
_LITTLE_TRANSPOSED, _LITTLE_WEIGHT = 114_000_000, 13_000_000
# Float32: kernels for Ampere write results in row-major order; cuDNN takes them for little work and few channels.
_LITTLE_WORK, _FEW_CHANNELS, _SMALL_IMAGE, _MORE_CHANNELS = 389_000_000, 56, 712, 296
_NARROW_CHANNELS, _NARROW_RESULTS, _SMALL_KERNEL, _VOLUME = 64, 64, 16, 3
_ROWS_IN_ORDER, _MORE_ROWS_IN_ORDER = 60_000, 70_000
_LEAST_CHANNELS, _LEAST_WORK = 32, 115_000_000
_SMALL_OPERAND, _SMALL_RESULT = 161_920, 41_216  # elements
# Gradients of pointwise weights: one for each batch entry, added up after, or copies of the whole batch.
_MANY_POSITIONS, _NARROW, _NARROW_ODD, _NARROW_FEW = 424, 160, 200, 800
_FEW_ENTRIES, _SOME_ENTRIES, _SOME_POSITIONS = 4, 8, 256
_ENTRY_CHANNELS, _ENTRY_RANGE, _ENTRY_WEIGHT = 400, range(851, 1301), 900_000
_SINGLE_POSITIONS, _SINGLE_RANGE, _SINGLE_WEIGHT = 144, range(851, 1541), 1_200_000
_TINY_POSITIONS, _SPLIT_WEIGHT = 36, 800_000
_DEPTHWISE_PARTS, _DEPTHWISE_CHANNELS, _DEPTHWISE_ROWS = 8, 32, 512
_MANY_ROWS, _MANY_FLOAT_ROWS = 16_000, 2_000  # from which the gradient of a weight is summed up in parts
_TILE = 128
_FEW_ROWS = 150  # of which float32 sums without tensor cores


def forward_bytes(conv: Convolution, layout: Layout) -> Dim:
    """Bytes beside operand, weight and result: copies that PyTorch makes, and the workspace."""
    gathered = conv.x.like().nbytes if layout.gaps else 0
    return gathered + ordered_weight(conv, layout) + result_bytes(conv, layout.operand)


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
        found.append(ordered + ordered_weight(conv, layout) + operand_gradient_bytes(conv, layout.operand))
    if conv.wants_weight:
        gathered = conv.x.like().nbytes if layout.gaps else 0
        found.append(ordered + gathered + weight_gradient_bytes(conv, layout.operand, platform))
    if conv.wants_bias:
        axes = [axis for axis in range(conv.out.rank) if axis != 1]
        found.append(reduction_bytes(conv.out.shape, strides, axes, _FLOAT_BYTES, platform))
    return found


def ordered_weight(conv: Convolution, layout: Layout) -> Dim:
    """The weight in the order of the operand, which for one position is any."""
    is_ordered = layout.weight or not layout.operand or conv.is_pointwise or conv.is_depthwise
    return 0 if is_ordered else conv.weight.nbytes


def result_bytes(conv: Convolution, is_last: bool) -> Dim:
    """The workspace of the forward pass. is_last: whether the channels are last."""
    if conv.is_depthwise:
        return 0
    if conv.groups > 1:
        return cudnn_groups.result_bytes(conv, is_last)
    if conv.is_image_stem:
        return 0 if is_last or not _fills_tensor_cores(conv) else sum(conv.copies())
    if is_last:
        return _padded(conv, of_results=not conv.is_pointwise)
    if conv.transposed:
        is_direct = not conv.is_half and conv.multiplies < _LITTLE_TRANSPOSED
        return 0 if is_direct else sum(conv.copies())
    if conv.is_product:
        return split_sums.result_bytes(conv) if split_sums.is_split(conv) else _product(conv)
    if conv.is_pointwise:
        is_small = conv.results <= _STRIDED_RESULTS and conv.positions >= _STRIDED_POSITIONS
        return 0 if not conv.is_half and (conv.channels < _STRIDED_CHANNELS or is_small) else _images(conv)
    return sum(conv.copies()) if conv.is_half else _float_result(conv)


def operand_gradient_bytes(conv: Convolution, is_last: bool) -> Dim:
    """The workspace of the gradient of the operand."""
    if conv.is_depthwise:
        return 0
    if conv.groups > 1:
        return cudnn_groups.operand_gradient_bytes(conv, is_last)
    if is_last:
        return 0 if conv.transposed else _padded(conv, of_results=not conv.is_pointwise)
    if conv.transposed:
        few = conv.results * conv.taps <= _FEW_PRODUCTS and _elements(conv.out.nbytes, conv) <= _FEW_GRADIENTS
        return 0 if few else sum(conv.copies())
    if conv.is_image_stem:
        return sum(conv.copies()) if conv.is_half else 0
    if conv.is_product:
        return split_sums.operand_gradient_bytes(conv) if split_sums.is_split(conv) else _product(conv)
    if conv.is_pointwise:
        is_narrow = conv.channels <= _STRIDED_GRADIENT or conv.results <= _STRIDED_NARROW
        is_small = not conv.is_half and (is_narrow or conv.multiplies <= _STRIDED_MULTIPLIES)
        return 0 if is_small else _images(conv)
    small_x = _elements(conv.x.nbytes, conv) <= _SMALL_OPERAND
    is_small = not conv.is_half and (small_x or _elements(conv.out.nbytes, conv) <= _SMALL_RESULT)
    return 0 if is_small else sum(conv.copies())


def weight_gradient_bytes(conv: Convolution, is_last: bool, platform: Platform) -> Dim:
    """The workspace of the gradient of the weight."""
    if conv.is_depthwise:
        return _depthwise_parts(conv) if is_last and conv.is_half else 0
    if conv.groups > 1:
        return cudnn_groups.weight_gradient_bytes(conv, is_last, platform)
    if is_last:
        is_padded = conv.is_half and not conv.transposed and not conv.is_pointwise
        return (_padded(conv, of_results=True) if is_padded else 0) + _parts(conv, platform)
    if conv.is_product:
        return _product_weight_gradient(conv, platform)
    is_little = conv.multiplies <= _LITTLE_WEIGHT or (conv.rows <= _FEW_ROWS and not conv.is_pointwise)
    if conv.result_positions == 1 or (is_little and (conv.transposed or not conv.is_half)):
        return 0
    if conv.is_pointwise:
        if conv.is_half:
            return _images(conv)
        is_small = conv.multiplies <= _STRIDED_MULTIPLIES or conv.results <= _STRIDED_WEIGHT
        return 0 if is_small else _images(conv) + _parts(conv, platform)
    return sum(conv.copies()) + _parts(conv, platform)


def _padded(conv: Convolution, of_results: bool) -> Dim:
    """With channels last: tensors whose channels are padded. of_results: whether those of the result may be."""
    copies = conv.copies()
    is_x = conv.aligned(conv.channels) != conv.channels
    is_out = of_results and conv.aligned(conv.results) != conv.results
    if conv.is_pointwise and not conv.is_half:
        return 0
    return (
        (copies.x if is_x else 0) + (copies.weight if is_x or is_out else 0) + (copies.out if is_out else 0)
    )


def _images(conv: Convolution) -> Dim:
    """Copies of operand and result of a pointwise kernel, and of its weight if channels are padded."""
    copies = conv.copies()
    return copies.x + copies.out + (0 if conv.is_aligned else copies.weight)


def _product(conv: Convolution) -> Dim:
    """A product reads images in row-major order where rows are aligned, or copies would cost more."""
    if not conv.is_half or conv.positions % _ROW == 0 or conv.positions == 1:
        return 0
    limit = _LARGE_WEIGHT if conv.positions < _FEW_POSITIONS else _LARGEST_WEIGHT
    return 0 if conv.channels * conv.results < limit else _images(conv)


def _fills_tensor_cores(conv: Convolution) -> bool:
    if conv.is_patch:
        is_large = conv.results >= _WIDE_PATCH or conv.taps >= _LARGEST_PATCH
        is_half_row = conv.channels == conv.alignment // 2
        return conv.is_half and conv.taps >= _PATCH_TAPS and (is_large or is_half_row)
    return conv.taps > _STEM_TAPS and conv.multiplies >= _STEM_MULTIPLIES


def _float_result(conv: Convolution) -> Dim:
    """In float32: what kernels for tensor cores copy, those that write the result in order, or none."""
    copies = conv.copies()
    is_large = conv.taps > _SMALL_KERNEL and len(conv.kernel) > 1
    if conv.multiplies <= _LITTLE_WORK and not is_large:
        if _is_direct(conv):
            return 0
        writes_in_order = conv.channels <= _MORE_CHANNELS
    elif conv.results == _NARROW_RESULTS and len(conv.kernel) == _VOLUME:
        writes_in_order = True
    else:
        limit = _MORE_ROWS_IN_ORDER if conv.channels > _NARROW_CHANNELS else _ROWS_IN_ORDER
        is_narrow = conv.results == _NARROW_RESULTS or conv.channels <= _NARROW_CHANNELS
        writes_in_order = is_narrow and not is_large and conv.rows < limit
    return copies.x + copies.weight + (0 if writes_in_order else copies.out)


def _is_direct(conv: Convolution) -> bool:
    """Whether a small convolution in float32 runs without tensor cores."""
    if conv.channels <= _LEAST_CHANNELS and (conv.multiplies <= _LEAST_WORK or conv.is_strided):
        return True
    return conv.channels <= _FEW_CHANNELS and conv.positions <= _SMALL_IMAGE


def _product_weight_gradient(conv: Convolution, platform: Platform) -> Dim:
    """Gradients of a pointwise weight by batch entry in float32, added up after, or copies of the whole batch."""
    if conv.positions == 1:
        return 0
    if conv.batch == 1 and conv.positions <= _SINGLE_POSITIONS:
        return _single_weight_gradient(conv)
    if split_sums.is_split(conv) and conv.is_half and conv.channels * conv.results <= _SPLIT_WEIGHT:
        return split_sums.weight_gradient_bytes(conv)
    if _is_summed_by_entry(conv):
        return conv.x.shape[0] * conv.float_weight
    return _images(conv) + (0 if conv.is_half else _parts(conv, platform))


def _single_weight_gradient(conv: Convolution) -> Dim:
    """The same of one small image: in float32, in row-major order, or with copies."""
    elements, is_few = conv.channels * conv.results, conv.positions <= _FEW_POSITIONS
    is_tiny = conv.positions <= _TINY_POSITIONS and conv.channels <= _ENTRY_CHANNELS
    if elements <= _SINGLE_WEIGHT and (is_tiny or (is_few and conv.channels in _SINGLE_RANGE)):
        return conv.float_weight
    if elements <= _SPLIT_WEIGHT and not is_few:
        return conv.float_weight
    is_read_in_order = is_few and (conv.results > conv.channels or elements < _LARGE_WEIGHT)
    return 0 if is_read_in_order else _images(conv)


def _is_summed_by_entry(conv: Convolution) -> bool:
    narrow, is_few = min(conv.channels, conv.results), conv.positions < _FEW_POSITIONS
    is_light = conv.channels * conv.results <= _ENTRY_WEIGHT
    if conv.positions % 2 == 0 and conv.is_half:
        is_small = conv.batch <= (_SOME_ENTRIES if conv.positions >= _SOME_POSITIONS else _FEW_ENTRIES)
        return conv.positions > _MANY_POSITIONS or narrow <= (_NARROW_FEW if is_small else _NARROW)
    if not is_few:
        return narrow <= _NARROW_ODD if conv.is_half else not _is_thin(conv)
    if conv.is_half:
        return conv.channels <= _ENTRY_CHANNELS or (conv.channels in _ENTRY_RANGE and is_light)
    return conv.channels <= _NARROW_ODD or (conv.batch <= _SOME_ENTRIES and is_light)


def _is_thin(conv: Convolution) -> bool:
    """Whether a product in float32 has few channels at many positions."""
    limits = ((32, 144, 3000), (64, 128, 12_500))
    return any(
        conv.channels <= wide and conv.results <= high and conv.positions >= positions
        for wide, high, positions in limits
    )


def _depthwise_parts(conv: Convolution) -> Dim:
    """Eight parts for each batch entry, in float32, of a kernel with a position in the middle."""
    is_odd = conv.kernel[0] % 2 == 1 and not (conv.is_pointwise and conv.is_strided)
    if conv.rows < _DEPTHWISE_ROWS or not is_odd:
        return 0
    channels = up(conv.results * conv.groups, _DEPTHWISE_CHANNELS)
    return conv.x.shape[0] * (_DEPTHWISE_PARTS * channels * conv.taps * _FLOAT_BYTES)


def _parts(conv: Convolution, platform: Platform) -> Dim:
    """Parts of the gradient of a small weight in float32: as many as keep the GPU busy, if many rows add to it."""
    if conv.rows < (_MANY_ROWS if conv.is_half else _MANY_FLOAT_ROWS):
        return 0
    tiles = -(-conv.channels // _TILE) * -(-conv.results // _TILE) * conv.taps
    return max(0, platform.multiprocessors // tiles - 1) * conv.float_weight


def _elements(size: Dim, conv: Convolution) -> int:
    """How many elements so many bytes are."""
    return known(size) * 8 // conv.x.dtype.bits
