"""Patches of images as columns, and back (im2col.cuh of ATen)."""

from __future__ import annotations

from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import constants
from graphflops.kernels.kernel import Kernel, Rows, Windows

(_SHARED,) = constants("aten_2", "patches", "shared")
_MOST = 1024  # kernels that are told apart; a file may claim any batch
_COLUMNS_RANK = 3  # of a batch of columns; that of its images has one more


def columns(call: ConcreteCall) -> list[Kernel]:
    """A kernel for each image, in which a thread copies one patch of a channel, one position after the other."""
    return _columns(call.operands[0], call.out) if call.out is not None and call.operands else []


def columns_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradients of the patches are added up."""
    return [_image(call.out, call.operands[0])] if call.out is not None and call.operands else []


def image(call: ConcreteCall) -> list[Kernel]:
    """One kernel, in which a thread adds up what the patches have for its position."""
    return [_image(call.operands[0], call.out)] if call.out is not None and call.operands else []


def image_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradient of the image is copied into the patches."""
    return _columns(call.out, call.operands[0]) if call.out is not None and call.operands else []


def _columns(x: Tensor, out: Tensor) -> list[Kernel]:
    images = out.shape[0] if out.rank == _COLUMNS_RANK else 1
    kernels = min(images, _MOST)
    moved = x.full_bytes // max(kernels, 1), out.full_bytes // max(kernels, 1)
    taps = out.shape[-2] // max(x.shape[-3], 1)  # rows of the columns, by channels
    turns = int(taps**_SHARED) * -(-images // max(kernels, 1))
    sizes = Rows(1, turns, is_inner=False)
    return [Kernel("copy", x.dtype, 0, 0, *moved, sizes, variant="im2col")] * kernels


def _image(x: Tensor, out: Tensor) -> Kernel:
    patches = x.numel / max(out.numel, 1)  # that a position is in
    moved = x.full_bytes, out.full_bytes
    return Kernel("scatter", x.dtype, 0, 0, *moved, Windows(out.numel, patches), variant="col2im")
