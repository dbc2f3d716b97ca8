"""A device decides which kernels are predicted: its generation, and how many threads it holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphflops
from graphflops.devices import HOPPER, device, names, platform_of
from graphflops.errors import OptionError
from graphflops.inductor.fusing import split_lengths
from graphflops.kernels.beside import reduction_bytes
from graphflops.render import render


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


@pytest.fixture(scope="module")
def program() -> object:
    return graphflops.capture(Attention(), tuple(torch.randn(2, 8, 256, 64).bfloat16() for _ in range(3)))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("h200", "cudnn"),
        ("h100", "cudnn"),
        ("a100", "flash"),
        ("l4", "flash"),
        ("rtx4090", "flash"),
        ("mi300x", "flash"),
    ],
)
def test_attention_runs_by_the_kernel_of_its_device(name: str, kernel: str, program: object) -> None:
    report = graphflops.analyze(program, device=name)
    assert [use.kernel for use in report.attentions] == [kernel]
    assert report.kernels_of == "2.11"


def test_a_release_of_pytorch_is_named_in_the_report(program: object) -> None:
    report = graphflops.analyze(program, device="h100", torch="2.10")
    assert [use.kernel for use in report.attentions] == ["flash"]
    assert report.kernels_of == "2.10"
    assert "as PyTorch 2.10 launches them, measured with 2.11" in render(report, "table")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"torch": "2.9", "device": "h100"}, "known of PyTorch 2.10, 2.11, 2.12, 2.13, 2.14"),
        ({"torch": "2.11"}, "name one with --device"),
    ],
)
def test_a_release_without_choices_or_device_is_refused(options: Any, said: str, program: object) -> None:
    with pytest.raises(OptionError, match=f"--torch {options['torch']}: .*{said}"):
        graphflops.analyze(program, **options)


def test_every_gpu_says_its_generation() -> None:
    known = [device(name) for name in names()]
    assert [
        one.name for one in known if one.kind == "gpu" and (one.capability is None or not one.multiprocessors)
    ] == []
    assert platform_of(device("h200")) == platform_of(None) == HOPPER


def test_a_device_with_fewer_multiprocessors_shares_a_sum_among_fewer_blocks() -> None:
    """Reduce.cuh fills the device: 132 * 2048 threads of an H200, 58 * 1536 of an L4, in blocks of 512."""
    shape, strides = (1, 2**24), (2**24, 1)
    blocks = [
        reduction_bytes(shape, strides, {1}, 4, platform_of(device(name))) // 4 - 1 for name in ("h200", "l4")
    ]
    assert blocks == [132 * 2048 // 512, 58 * 1536 // 512]


def test_inductor_cuts_a_sum_for_the_threads_of_the_device() -> None:
    found = [
        split_lengths(1, 2**22, platform_of(device(name)), is_inner=True, of_moments=False)[0][0]
        for name in ("h200", "l4")
    ]
    assert found[1] < found[0]
