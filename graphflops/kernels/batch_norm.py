"""Batch norms as PyTorch and cuDNN compute them, forward and backward (Normalization.cuh of ATen)."""

from __future__ import annotations

from math import prod

from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import Kernel, Rows, Strided
from graphflops.kernels.moved import elementwise, is_last

(_ON_CHIP,) = limits("cudnn_9", "batch_norm", "on_chip")
_HALF = 16  # bits
_WARP = 32  # pixels
_SHARED = 2  # images of a block
_THREADS = (32, 64, 128, 256, 512)  # of a block along the pixels of an image; the last: of a block
_IN_TURN = 4  # pixels of a thread in gradients


def batch_norm(call: ConcreteCall, x: Tensor) -> list[Kernel]:
    """In training one kernel of cuDNN, or three of PyTorch: moments, running moments, and their use; else the last alone."""
    if call.arguments.get("training") is not True:
        return _applied(call, x)
    if _is_of_cudnn(call, x):
        return [_of_cudnn(call, x, 1, "batch_norm_training")]
    channels, size = _count(x), x.full_bytes
    running = elementwise(x, 4 * channels, 4 * channels)
    if is_last(x):
        moments = _kernel(call, x, size, 0, _channels(x, _pixels(x)), "batch_norm_moments_last")
        applied = _kernel(call, x, size, size, Rows(_pixels(x), channels), "batch_norm_applied_last")
        return [running, moments, running, applied]
    moments = _kernel(call, x, size, 0, _channels(x, _turns(x, 1)), "batch_norm_moments")
    return [moments, running, _applied(call, x)[-1]]


def batch_norm_backward(call: ConcreteCall, x: Tensor) -> list[Kernel]:
    """One kernel for all gradients, or two of PyTorch where channels are innermost: sums, and their use."""
    arguments, size = call.arguments, x.full_bytes
    if arguments.get("training", arguments.get("train")) is not False and _is_of_cudnn(call, x):
        return [_of_cudnn(call, x, 2, "batch_norm_training_backward")]
    if is_last(x):
        sums = _kernel(call, x, 2 * size, 0, _channels(x, _pixels(x)), "batch_norm_sums_last")
        return [
            sums,
            _kernel(call, x, 2 * size, size, Rows(_pixels(x), _count(x)), "batch_norm_gradient_last"),
        ]
    return [_kernel(call, x, 2 * size, size, _channels(x, _turns(x, _IN_TURN)), "batch_norm_backward")]


def _is_of_cudnn(call: ConcreteCall, x: Tensor) -> bool:
    """Whether cuDNN has it: not in bfloat16, and with a weight, in float32 beside 16 bits (Normalization.cpp)."""
    weight = call.operand("weight")
    if weight is None or x.rank <= 2 or "bfloat16" in (x.dtype, weight.dtype):
        return False
    return x.bits > _HALF or weight.bits > _HALF


def _of_cudnn(call: ConcreteCall, x: Tensor, tensors: int, variant: str) -> Kernel:
    """A kernel that reads so many tensors twice, or once where a channel of them stays on the chip."""
    rows, times = _channels(x, _pixels(x)), 2
    if is_last(x):
        variant += "_last"
    elif tensors * rows.columns * x.bits <= 8 * _ON_CHIP:
        variant, times = f"{variant}_once", 1
    return _kernel(call, x, times * tensors * x.full_bytes, x.full_bytes, rows, variant)


def _count(x: Tensor) -> int:
    """Channels."""
    return prod(x.shape[1:2])


def _pixels(x: Tensor) -> int:
    """Pixels of all images."""
    return x.numel // max(_count(x), 1)


def _channels(x: Tensor, columns: int) -> Rows:
    """A block for each channel. columns: elements that it goes through, with those that have no pixel."""
    return Rows(_count(x), columns, is_inner=False)


def _turns(x: Tensor, each: int) -> int:
    """Turns of a block of a channel, each of as many elements as the block has threads: rows of pixels of several images."""
    pixels = prod(x.shape[2:])
    along = max(_threads(pixels // each), min(_threads(pixels), _THREADS[1]))
    across = _THREADS[-1] // along
    return -(-x.shape[0] // across) * -(-pixels // along) * _THREADS[-1]


def _threads(pixels: int) -> int:
    return next((each for each in _THREADS if pixels <= each), _THREADS[-1])


def _kernel(call: ConcreteCall, x: Tensor, read: int, written: int, rows: Rows, variant: str) -> Kernel:
    work = call.cost.vector_flops + call.cost.transcendentals
    return Kernel("normalization", x.dtype, 0, work, read, written, rows, variant=variant)


def _applied(call: ConcreteCall, x: Tensor) -> list[Kernel]:
    """One kernel with a block for each channel of each image; in half precision the factors are made first, by two."""
    channels = _count(x)
    read, written = call.cost.read_bytes, call.cost.written_bytes
    factors = _factors(x, channels) if x.bits == _HALF else []
    if prod(x.shape[2:]) == 1 or x.strides[1] == 1:  # channels are innermost: a pointwise kernel
        rows = Rows(x.numel // max(channels, 1), channels)
        return [*factors, _kernel(call, x, read, written, rows, "batch_norm_last")]
    pixels = prod(x.shape[2:])
    images = -(-x.shape[0] // (_SHARED if pixels <= _WARP else 1))  # small ones share a block
    rows = Rows(images * channels, pixels)
    return [*factors, _kernel(call, x, read, written, rows, "batch_norm")]


def _factors(x: Tensor, channels: int) -> list[Kernel]:
    """The variance in float32, and the inverse of its root."""
    sizes = Strided(channels, 1, 2, has_casts=True)
    cast = Kernel("copy", x.dtype, 0, 0, 2 * channels, 4 * channels, sizes, variant="strided")
    return [cast, elementwise(x, 4 * channels, 4 * channels)]
