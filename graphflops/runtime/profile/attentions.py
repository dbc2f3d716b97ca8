"""Attention kernels of torch to be measured: prefill and decoding, with and without a mask, and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import torch

from graphflops.kernels.kernel import Attention, AttentionKernel, Kernel
from graphflops.runtime.profile.trial import Calls, Clock, Trial, random

# Kernel, element type, forward and backward calls.
_COUNTS: tuple[tuple[AttentionKernel, str, int, int], ...] = (
    ("flash", "bfloat16", 90, 40),
    ("efficient", "float32", 40, 20),
    ("efficient", "bfloat16", 30, 10),
    ("cudnn", "bfloat16", 40, 20),
)
# Of a CPU, which has one kernel: named as the one that a GPU runs in this element type.
_CPU_COUNTS: tuple[tuple[AttentionKernel, str, int, int], ...] = (
    ("efficient", "float32", 70, 0),
    ("cudnn", "bfloat16", 30, 0),
)
_MOST_FLOPS = {"cuda": 1.5e12, "cpu": 1e10}
_MOST_SCORES = 2**31
_BATCHES = {"cuda": (1, 2, 4, 8, 16, 32, 64, 256), "cpu": (1, 1, 2, 4)}


def attentions(clock: Clock) -> Iterator[Trial]:
    """Attention by every kernel that torch has on a GPU, and by the one that it has on a CPU."""
    for kernel, dtype, forward, backward in _COUNTS if clock.device == "cuda" else _CPU_COUNTS:
        chance = Random(kernel + dtype)
        for index in range(forward + backward):
            sizes, is_causal = _sizes(chance, kernel, index >= forward, _BATCHES[clock.device])
            trial = _trial(sizes, is_causal, dtype, clock.device)
            if trial.kernel.flops < _MOST_FLOPS[clock.device] * (0.2 if dtype == "float32" else 1):
                yield trial


def _sizes(
    chance: Random, kernel: AttentionKernel, is_backward: bool, batches: tuple[int, ...]
) -> tuple[Attention, bool]:
    batch, heads = chance.choice(batches), chance.choice((4, 8, 12, 16, 32, 48))
    width = chance.choice((32, 64, 64, 64, 80, 128, 128))
    keys = chance.choice((32, 49, 77, 128, 197, 256, 512, 577, 1024, 1500, 2048, 4096, 8192))
    is_flash = kernel == "flash" and not is_backward
    shapes = ("self", "self", "causal", "decode") if is_flash else ("self", "causal")
    shape = chance.choice(shapes)
    if shape == "decode":
        keys *= chance.choice((1, 4))
    queries = 1 if shape == "decode" else keys
    batch = max(1, min(batch, _MOST_SCORES // (heads * queries * keys), 2**29 // (heads * keys * width)))
    shared = chance.choice((1, 1, 4)) if kernel == "flash" and not is_backward else 1
    computed = 0.5 * (1 + 1 / queries) if shape == "causal" else 1.0
    phase = "backward" if is_backward else "forward"
    sizes = Attention(batch, heads, heads // shared, queries, keys, width, computed, kernel, phase)  # type: ignore[arg-type]
    return sizes, shape == "causal"


def _trial(sizes: Attention, is_causal: bool, dtype: str, device: str) -> Trial:
    kind = getattr(torch, dtype)
    queries = sizes.batch * sizes.heads * sizes.queries * sizes.width * kind.itemsize
    keys = 2 * sizes.batch * sizes.kv_heads * sizes.keys * sizes.width * kind.itemsize
    flops = int(4 * sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.width * sizes.computed)
    if sizes.phase == "backward":
        kernel = Kernel("attention", dtype, flops * 5 // 2, 0, 3 * queries + keys, queries + keys, sizes)
    else:
        kernel = Kernel("attention", dtype, flops, 0, queries + keys, queries, sizes)
    return Trial(kernel, partial(_prepare, kind, sizes, is_causal, device))


def _prepare(kind: torch.dtype, sizes: Attention, is_causal: bool, device: str) -> Calls:
    q = random((sizes.batch, sizes.queries, sizes.heads, sizes.width), kind, device).transpose(1, 2)
    shape = (sizes.batch, sizes.keys, sizes.kv_heads, sizes.width)
    k, v = (random(shape, kind, device).transpose(1, 2) for _ in range(2))
    if device == "cpu":
        attend = torch.nn.functional.scaled_dot_product_attention
        return [partial(attend, q, k, v, is_causal=is_causal)]
    forward = _forward(sizes, q, k, v, is_causal)
    if sizes.phase == "forward":
        return [forward]
    return [_backward(sizes, q, k, v, is_causal, forward())]


def _forward(sizes: Attention, q: Any, k: Any, v: Any, is_causal: bool) -> partial[Any]:
    ops = torch.ops.aten
    wants = sizes.phase == "backward"
    if sizes.kernel == "flash":
        return partial(ops._scaled_dot_product_flash_attention, q, k, v, 0.0, is_causal)
    if sizes.kernel == "cudnn":
        return partial(ops._scaled_dot_product_cudnn_attention, q, k, v, None, wants, 0.0, is_causal)
    return partial(ops._scaled_dot_product_efficient_attention, q, k, v, None, wants, 0.0, is_causal)


def _backward(sizes: Attention, q: Any, k: Any, v: Any, is_causal: bool, saved: Any) -> partial[Any]:
    ops, inputs = torch.ops.aten, (random(saved[0].shape, saved[0].dtype, "cuda"), q, k, v)
    if sizes.kernel == "efficient":
        wanted = [True, True, True, False]
        backward = ops._scaled_dot_product_efficient_attention_backward
        return partial(backward, *inputs, None, *saved, 0.0, wanted, is_causal)
    out, lse, *lengths, seed, offset = saved[:8]
    if sizes.kernel == "flash":
        backward = ops._scaled_dot_product_flash_attention_backward
        return partial(backward, *inputs, out, lse, *lengths, 0.0, is_causal, seed, offset)
    backward = ops._scaled_dot_product_cudnn_attention_backward
    return partial(backward, *inputs, out, lse, seed, offset, None, *lengths, 0.0, is_causal)
