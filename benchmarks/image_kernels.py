"""Kernels of networks of images for `step_kernels.py`, with channels apart or innermost, and others of its decoders."""

from __future__ import annotations

from functools import partial
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[[], Any]

DEVICE = "cuda"
LARGEST = 6e7  # elements of an image that is resized
# images, channels, pixels of a side, window, stride
WINDOWS = ((4, 192, 28, 3, 2), (8, 3, 224, 7, 4), (1, 64, 56, 3, 1), (16, 32, 28, 3, 1), (2, 256, 14, 5, 2))
STAGES = ((112, 64), (56, 64), (56, 256), (28, 128), (28, 512), (14, 256), (14, 1024), (7, 512), (7, 2048))
FURTHER = ((28, 96), (14, 672), (112, 32), (7, 320))
STEMS = ((64, 224, 7, 2), (32, 224, 3, 2), (768, 224, 16, 16), (96, 224, 4, 4))
BATCHES = (4, 16, 32, 64, 128, 256)
WAYS = ((1, 1), (3, 1), (1, 1), (3, 2), (1, 2), (3, 1), (3, 1), (5, 1), (1, 1))  # taps and stride
GROUPS = {6: 0, 7: 32}  # by place among the ways; 0: depthwise
PHASES = ("forward", "input_gradient", "weight_gradient")
NORMS = (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32"))
NUMBERS = (1 << 22, 3 << 21, 1 << 24, 25 << 20, 1 << 26, 1 << 28)
PARTS = (
    *((2, 4096, 4096), (4, 4096, 1024), (8, 8192, 512)),
    *((2, 65536, 128), (16, 1024, 4096), (3, 16384, 768)),
)
ATTENTIONS = (
    *((4, 16, 4, 2048, 64), (2, 8, 2, 2048, 64), (16, 32, 8, 512, 128), (1, 16, 16, 4096, 64)),
    *((16, 12, 12, 512, 64), (8, 32, 8, 2048, 64), (2, 32, 4, 4096, 128), (32, 16, 16, 256, 64)),
    *((1, 8, 8, 8192, 64), (4, 40, 8, 2048, 128)),
)
FORMS = {False: torch.contiguous_format, True: torch.channels_last}


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, last: bool = False) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype).to(memory_format=FORMS[last])


def convolution(phase: str, dtype: str, *sizes_of: int, last: bool) -> Run:
    """One phase of a convolution of square images and filters: batch, channels, filters, side, taps, stride, groups."""
    batch, channels, filters, side, taps, stride, groups = sizes_of
    kind, padding = getattr(torch, dtype), taps // 2
    result = (side + 2 * padding - taps) // stride + 1
    x = randn(batch, channels, side, side, dtype=kind, last=last)
    weight = randn(filters, channels // groups, taps, taps, dtype=kind, last=last)
    g = randn(batch, filters, result, result, dtype=kind, last=last)
    sizes = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    if phase == "forward":
        return lambda: torch.ops.aten.convolution(x, weight, None, *sizes)
    mask = [phase == "input_gradient", phase == "weight_gradient", False]
    return lambda: torch.ops.aten.convolution_backward(g, x, weight, None, *sizes, mask)


def phase_of(call: Run, operands: tuple[torch.Tensor, ...], *, back: bool) -> Run:
    """The call, or what finds its gradients."""
    if not back:
        return call
    for each in operands:
        each.requires_grad_()
    y = call()
    g = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, operands, g, retain_graph=True)


def channel_norm(
    dtype: str, weights: str, batch: int, channels: int, side: int, *, last: bool, back: bool
) -> Run:
    """A batch norm in training: forward or gradients. Weights of 16 bits are PyTorch's kernels, others cuDNN's."""
    x = randn(batch, channels, side, side, dtype=getattr(torch, dtype), last=last)
    kind = getattr(torch, weights)
    weight, bias, mean = (randn(channels, dtype=kind) for _ in range(3))
    variance = torch.ones(channels, device=DEVICE, dtype=kind)
    call = partial(F.batch_norm, x, mean, variance, weight, bias, training=True)
    return phase_of(call, (x, weight, bias), back=back)


def group_norm(batch: int, channels: int, side: int, *, back: bool) -> Run:
    x, weight, bias = randn(batch, channels, side, side), randn(channels), randn(channels)
    return phase_of(partial(F.group_norm, x, 32, weight, bias), (x, weight, bias), back=back)


def dropout(numel: int, dtype: str) -> Run:
    x = randn(numel, dtype=getattr(torch, dtype))
    return lambda: torch.ops.aten.native_dropout(x, 0.1, True)


def joined(count: int, rows: int, columns: int, axis: int) -> Run:
    parts = [randn(rows, columns) for _ in range(count)]
    return lambda: torch.cat(parts, axis)


def pool(name: str, batch: int, channels: int, side: int, *, last: bool, back: bool) -> Run:
    x = randn(batch, channels, side, side, last=last)
    call = partial(F.max_pool2d, x, kernel_size=3, stride=2, padding=1)
    if name == "avg":
        call = partial(F.avg_pool2d, x, kernel_size=2)
    return phase_of(call, (x,), back=back)


def resized(
    mode: str, dtype: str, batch: int, channels: int, side: int, larger: int, *, last: bool, back: bool
) -> Run:
    x = randn(batch, channels, side, side, dtype=getattr(torch, dtype), last=last)
    return phase_of(partial(F.interpolate, x, size=larger, mode=mode), (x,), back=back)


def patches(batch: int, channels: int, side: int, taps: int, stride: int, *, back: bool) -> Run:
    x = randn(batch, channels, side, side)
    return phase_of(partial(F.unfold, x, taps, padding=taps // 2, stride=stride), (x,), back=back)


MAKERS: dict[str, Callable[..., Run]] = {
    "convolution": convolution, "channel_norm": channel_norm, "group_norm": group_norm, "dropout": dropout,
    "cat": joined, "pool": pool, "resized": resized, "patches": patches,
}  # fmt: skip


def cases() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Kind, operands and options of each; the same everywhere."""
    for dtype in ("bfloat16", "float32"):
        for last in (False, True):
            yield from of_convolutions(Random(2712), dtype, last)
    for kinds in NORMS:
        for back, last in product((False, True), repeat=2):
            chance = Random(2713)
            for _ in range(26):
                side, channels = chance.choice((*STAGES, *FURTHER))
                yield (
                    "channel_norm",
                    (*kinds, chance.choice(BATCHES), channels, side),
                    {"last": last, "back": back},
                )
    for back in (False, True):
        chance = Random(2714)
        for _ in range(24):
            batch, channels, side = (
                chance.choice(each)
                for each in ((1, 2, 4, 8, 16), (128, 256, 320, 512, 640, 1280), (8, 16, 32, 64, 128))
            )
            yield "group_norm", (batch, channels, side), {"back": back}
        for name, last in product(("max", "avg"), (False, True)):
            chance = Random(2715)
            for _ in range(14):
                side, channels = chance.choice((*STAGES, *FURTHER)[:-3])
                yield "pool", (name, chance.choice(BATCHES), channels, side), {"last": last, "back": back}
    for dtype, numel in product(("bfloat16", "float32"), NUMBERS):
        yield "dropout", (numel, dtype), {}
    for parts, axis in product(PARTS, (0, 1)):
        yield "cat", (*parts, axis), {}
    for back, causal, operands in product((False, True), (False, True), ATTENTIONS):
        yield "attention", operands, {"causal": causal, "back": back}
    chance = Random(2716)
    for _ in range(16):
        rows, width, tokens = (
            chance.choice(each)
            for each in ((8000, 30000, 50304, 128256), (512, 768, 1024, 2048, 4096), (2048, 8192, 32768))
        )
        yield "embedding", (rows, width, tokens), {}
    yield from of_interpolations(Random(2811))


def of_interpolations(chance: Random) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    for mode, last, back in product(("nearest", "bilinear", "bicubic"), (False, True), (False, True)):
        for _ in range(16):
            batch, channels, side = (
                chance.choice(each)
                for each in (
                    (1, 2, 4, 8, 16),
                    (3, 21, 64, 96, 128, 256, 512, 768),
                    (7, 14, 16, 28, 32, 56, 64),
                )
            )
            larger = chance.choice((side, 2 * side, 2 * side, 4 * side, chance.randrange(8, 160)))
            if batch * channels * max(side, larger) ** 2 < LARGEST:
                dtype = chance.choice(("bfloat16", "float32"))
                yield "resized", (mode, dtype, batch, channels, side, larger), {"last": last, "back": back}
    for sizes, back in product(WINDOWS, (False, True)):
        yield "patches", sizes, {"back": back}


def of_convolutions(
    chance: Random, dtype: str, last: bool
) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    for index in range(63):
        side, channels = chance.choice((*STAGES, *FURTHER))
        batch = chance.choice(BATCHES)
        taps, stride = WAYS[index % 9]
        most = 4 * channels if taps == 1 else channels
        filters = chance.choice((channels, 2 * channels, channels // 2, most))
        groups = GROUPS.get(index % 9, 1) or channels
        sizes = batch, channels, filters if groups == 1 else channels, side, taps, stride, groups
        for phase in PHASES:
            yield "convolution", (phase, dtype, *sizes), {"last": last}
    for (filters, side, taps, stride), batch in product(STEMS, (16, 64, 128)):
        for phase in ("forward", "weight_gradient"):
            sizes = batch, 3, filters, side, taps, stride, 1
            yield "convolution", (phase, dtype, *sizes), {"last": last}
