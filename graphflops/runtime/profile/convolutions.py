"""Convolutions to be measured: those of image, audio and video models, forward and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from random import Random

import torch

from graphflops.kernels.kernel import Convolution, Kernel, Pass
from graphflops.runtime.profile.trial import Calls, Clock, Trial, random

# By element type: forward calls, and gradients of each operand.
_COUNTS = {
    "cuda": {"bfloat16": (150, 40), "float32": (90, 20)},
    "cpu": {"float32": (120, 0), "bfloat16": (30, 0)},
}
_MOST_FLOPS = {"cuda": 2e12, "cpu": 5e9}
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
# Side of an image and its channels, as networks narrow and widen.
_IMAGES = (
    (7, 512), (14, 256), (14, 512), (28, 128), (28, 256), (56, 64), (56, 128), (112, 32), (112, 64), (64, 320),
)  # fmt: skip


def convolutions(clock: Clock) -> Iterator[Trial]:
    """Convolutions in every element type, the gradients of some of them among them."""
    for dtype, (forward, backward) in _COUNTS[clock.device].items():
        chance = Random(dtype)
        for index in range(forward + 2 * backward):
            phase: Pass = "forward"
            if index >= forward:
                phase = "input_gradient" if index % 2 else "weight_gradient"
            sizes, stride = _sizes(chance, phase, clock.device)
            kernel = _kernel(sizes, dtype)
            if kernel.flops <= _MOST_FLOPS[clock.device]:
                yield Trial(kernel, partial(_prepare, getattr(torch, dtype), sizes, stride, clock))


def _sizes(chance: Random, phase: Pass, device: str) -> tuple[Convolution, int]:
    """One convolution of a kind that models use, and its stride."""
    batch = chance.choice(_BATCHES if device == "cuda" else _BATCHES[:4])
    make = chance.choices((_pointwise, _dense, _grouped, _stem, _sequence, _volume), (6, 8, 5, 2, 2, 1))[0]
    rank, side, channels, filters, width, stride, groups = make(chance)
    pad = 0 if stride == width else width // 2
    result = (side + 2 * pad - width) // stride + 1
    is_last = chance.random() < 0.4 and rank > 1
    axes = ((side,) * rank, (result,) * rank, (width,) * rank)
    batch = min(batch, 8) if rank == 3 else batch
    is_patches = stride == width > 1
    sizes = Convolution(batch, channels, filters, *axes, groups, is_last, phase=phase, is_patches=is_patches)
    return sizes, stride


# Each gives: spatial axes, side, channels, filters, width of the filter, stride, groups.
def _pointwise(chance: Random) -> tuple[int, ...]:
    side, channels = chance.choice(_IMAGES)
    channels *= chance.choice((1, 1, 2, 3))
    return 2, side, channels, chance.choice((channels, 2 * channels, 4 * channels, channels // 4)), 1, 1, 1


def _dense(chance: Random) -> tuple[int, ...]:
    side, channels = chance.choice(_IMAGES)
    filters = chance.choice((channels, channels, 2 * channels))
    return 2, side, channels, filters, chance.choice((3, 3, 3, 5)), chance.choice((1, 1, 2)), 1


def _grouped(chance: Random) -> tuple[int, ...]:
    side, channels = chance.choice(_IMAGES)
    groups = chance.choice((channels, channels, channels, channels, 32))
    return 2, side, channels, channels, chance.choice((3, 3, 5, 7)), chance.choice((1, 1, 2)), groups


def _stem(chance: Random) -> tuple[int, ...]:
    width = chance.choice((3, 7, 4, 16))
    return 2, 224, 3, chance.choice((32, 64, 96, 768)), width, width if width % 2 == 0 else 2, 1


def _sequence(chance: Random) -> tuple[int, ...]:
    channels = chance.choice((64, 384, 768))
    groups = channels if chance.random() < 0.3 else 1
    return 1, chance.choice((256, 1500, 3000, 16000)), channels, channels, chance.choice((1, 3, 7)), 1, groups


def _volume(chance: Random) -> tuple[int, ...]:
    channels = chance.choice((32, 64, 128))
    return 3, chance.choice((14, 28, 56)), channels, channels, 3, 1, 1


def _kernel(sizes: Convolution, dtype: str) -> Kernel:
    width = getattr(torch, dtype).itemsize
    taps = sizes.channels // sizes.groups * prod(sizes.filter)
    image = sizes.batch * sizes.channels * prod(sizes.image)
    result = sizes.batch * sizes.filters * prod(sizes.result)
    weight = sizes.filters * taps
    flops = 2 * result * taps
    read, written = {
        "input_gradient": (result + weight, image),
        "weight_gradient": (result + image, weight),
    }.get(sizes.phase, (image + weight, result))
    return Kernel("convolution", dtype, flops, 0, read * width, written * width, sizes)


def _prepare(kind: torch.dtype, sizes: Convolution, stride: int, clock: Clock) -> Calls:
    rank = len(sizes.image)
    layout = torch.contiguous_format
    if sizes.channels_last:
        layout = torch.channels_last if rank == 2 else torch.channels_last_3d

    def make(shape: tuple[int, ...]) -> torch.Tensor:
        return random(shape, kind, clock.device).to(memory_format=layout)

    image = make((sizes.batch, sizes.channels, *sizes.image))
    weight = make((sizes.filters, sizes.channels // sizes.groups, *sizes.filter))
    pad = 0 if stride == sizes.filter[0] else sizes.filter[0] // 2
    shape = ([stride] * rank, [pad] * rank, [1] * rank, False, [0] * rank, sizes.groups)
    if sizes.phase == "forward":
        return [partial(torch.ops.aten.convolution.default, image, weight, None, *shape)]
    gradient = make((sizes.batch, sizes.filters, *sizes.result))
    wanted = [sizes.phase == "input_gradient", sizes.phase == "weight_gradient", False]
    backward = torch.ops.aten.convolution_backward.default
    return [partial(backward, gradient, image, weight, None, *shape, wanted)]
