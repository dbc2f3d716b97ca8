"""Products of one image by a pointwise weight: parts of their sums over channels, which the workspace holds in float32.

A convolution of a kernel of one position is a product that cuBLAS computes. With one image there are few tiles for many
multiprocessors; where the image's rows are not aligned to 16 bytes, the kernels that are left split the sum over channels
into parts of 64 or 128, which are added up after. The numbers of parts were read from 1,300 products of image models that
an H200 ran with PyTorch 2.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.memory.convolutions import Convolution

_PART = 64  # channels
_ALIGNED = 8  # positions
_LEAST = 448  # channels that are split
_SOME, _WIDE_SPLIT = range(128, 256), 192  # fewer ones, if results are many
_FEW_POSITIONS, _SOME_POSITIONS, _MORE_POSITIONS = 64, 100, 128
_DEEP, _DEEPER, _DEEPEST = 800, 1024, 1536  # channels
_NARROW, _MIDDLE, _WIDE = 384, 512, 832  # results
_FEWEST, _GRADIENT_LEAST, _MOST, _MORE = (
    8,
    384,
    24,
    16,
)  # parts of many results; channels; parts of deep gradients
_SHARED_CHANNELS, _WEIGHT_PARTS = range(112, 385), 4  # of a weight whose gradient has several parts
_FLOAT_BYTES = 4


def is_split(conv: Convolution) -> bool:
    """Whether a pointwise convolution is a product of one image whose rows are not aligned."""
    return conv.batch == 1 and conv.positions > 1 and conv.positions % _ALIGNED != 0


def result_bytes(conv: Convolution) -> Dim:
    """The parts of the result."""
    summed, results, half_parts = conv.channels, conv.results, -(-conv.channels // _PART)
    if summed < _LEAST:
        is_wide = results >= _WIDE_SPLIT and results % _PART == 0 and conv.positions >= _SOME_POSITIONS
        parts = 2 * (summed // _PART) if summed in _SOME and is_wide else 0
    elif not conv.is_half:
        parts = 2 * (half_parts if results <= _MIDDLE else _FEWEST)
    elif conv.positions < _FEW_POSITIONS:
        parts = half_parts * (2 if _DEEP - 2 * _PART <= summed <= _DEEPEST else 1)
    elif summed <= _DEEP:
        parts = 2 * half_parts if summed <= _MIDDLE else half_parts if summed % _PART == 0 else 2 * _FEWEST
    elif results >= _WIDE:
        parts = 2 * _FEWEST
    else:
        parts = half_parts * (2 if summed <= _DEEPER or results <= _NARROW else 1)
    return _elements(conv.out.nbytes, conv) * parts * _FLOAT_BYTES // 2


def operand_gradient_bytes(conv: Convolution) -> Dim:
    """The parts of the gradient of the operand, which sums over the results' channels."""
    summed, results, half_parts = conv.results, conv.channels, -(-conv.results // _PART)
    if conv.positions >= _MORE_POSITIONS:
        parts = 0 if summed < _GRADIENT_LEAST else half_parts * (2 if results < _WIDE else 1)
    elif summed >= _DEEPEST:
        parts = 2 * (_MOST if conv.positions < _FEW_POSITIONS else _MORE)
    elif summed < _LEAST or conv.positions >= _FEW_POSITIONS:
        parts = 0
    else:
        parts = _FEWEST - 1
    return _elements(conv.x.nbytes, conv) * parts * _FLOAT_BYTES // 2


def weight_gradient_bytes(conv: Convolution) -> Dim:
    """The parts of the gradient of the weight, which sums over positions."""
    is_shared = conv.positions > _MORE_POSITIONS and conv.channels in _SHARED_CHANNELS
    return conv.float_weight * (_WEIGHT_PARTS if is_shared and conv.results >= _PART else 1)


def _elements(nbytes: Dim, conv: Convolution) -> Dim:
    return nbytes * 8 // conv.x.dtype.bits
