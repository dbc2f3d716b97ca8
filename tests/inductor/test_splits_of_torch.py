"""How reductions are split and strides padded: beside inductor's own functions, which are asked about an H200."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import choices, ir

from graphflops.devices import HOPPER
from graphflops.inductor.fusing import split_lengths
from graphflops.inductor.library_calls import ALIGNED, aligned_bytes
from graphflops.kernels.convolution import up

H200 = SimpleNamespace(
    multi_processor_count=HOPPER.multiprocessors,
    max_threads_per_multi_processor=HOPPER.threads_each,
    warp_size=32,
    warp_size_or_default=32,
    major=9,
    regs_per_multiprocessor=65536,
)


def parts_of_torch(results: int, length: int, is_inner: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(choices.DeviceProperties, "create", staticmethod(lambda device: H200))
    if length <= 32 or results >= 2 * 32 * HOPPER.multiprocessors:  # `Reduction.num_splits` asks no further
        return 1
    device: Any = torch.device("cuda")
    return choices.InductorChoices.reduction_split_factor(device, length, results, is_inner)


def sizes() -> list[tuple[int, int]]:
    """Results and elements of each: few and many, round and odd."""
    choose = random.Random(25)
    found = [(round(2 ** choose.uniform(0, 15)), round(2 ** choose.uniform(3, 25))) for _ in range(150)]
    borders = [
        (1, 8192), (1, 8193), (1, 32), (1, 33), (263, 8193), (264, 8193), (263, 8192), (2, 31), (128, 4096), (129, 4096),
        (8447, 100), (8448, 100), (64, 2**20), (512, 50_000), (512, 50_021), (1024, 12_544), (3, 999_983),
    ]  # fmt: skip
    return found + borders


@pytest.mark.parametrize("is_inner", [True, False])
def test_reductions_are_split_as_inductor_splits_them(
    is_inner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for results, length in sizes():
        expected = parts_of_torch(results, length, is_inner or results == 1, monkeypatch)
        steps = split_lengths(results, length, HOPPER, is_inner=is_inner, of_moments=False)
        parts = steps[0][0] // results if len(steps) > 1 else 1
        assert parts == max(expected, 1), (results, length)
        if len(steps) > 1:
            assert steps == [(results * parts, -(-length // parts)), (results, parts)]


def test_moments_are_split_again() -> None:
    """Of 2^26 elements as many parts are left as one block adds up, and no more."""
    steps = split_lengths(1, 2**30, HOPPER, is_inner=True, of_moments=True)
    lengths = [length for _, length in steps]
    assert steps[-1][0] == 1
    for (before, _), (results, length) in pairwise(steps):
        assert before == results * length
    assert lengths[-1] <= 8192
    assert len(split_lengths(1, 2**30, HOPPER, is_inner=True, of_moments=False)) == 2
    assert lengths[0] * steps[0][0] >= 2**30


@pytest.mark.parametrize(
    ("shape", "bits"),
    [
        ((4, 1025), 16), ((4, 1024), 16), ((4, 1088), 16), ((4, 1030), 32), ((3, 5, 1500), 16), ((3, 1500, 5), 16),
        ((2, 2, 2000), 32), ((7, 1100, 1100), 16), ((2, 1, 3000), 16), ((50257,), 16), ((5, 50257), 16),
    ],
)  # fmt: skip
def test_strides_are_padded_as_inductor_pads_them(
    shape: tuple[int, ...], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = SimpleNamespace(graph=None, get_current_node=lambda: None)
    monkeypatch.setattr(ir, "V", graph)
    strides = torch.empty(shape, device="meta").stride()
    dtype = {16: torch.bfloat16, 32: torch.float32}[bits]
    padded = ir.Layout._pad_strides(strides, shape, dtype)
    size = (1 + sum((count - 1) * step for count, step in zip(shape, padded, strict=True))) * bits // 8
    assert aligned_bytes(shape, bits) == (None if tuple(padded) == strides else size)


def test_sizes_of_tensor_cores_are_multiples_of_8() -> None:
    assert [up(size, ALIGNED) for size in (1, 7, 8, 9, 60, 64)] == [8, 8, 8, 16, 64, 64]
    assert aligned_bytes((4, 0), 16) is None
