"""Inputs and weights that lie with their channels last: read from both forms of an export, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import graphflops
from graphflops.exporters import load
from graphflops.exporters.live import from_exported_program
from graphflops.exporters.types import memory_order

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

IMAGE, WEIGHT = (
    2 * 64 * 16 * 16 * 2,
    64 * 64 * 3 * 3 * 2,
)  # bytes in bfloat16; the result is as large as the image


def exported(memory_format):
    model = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3, padding=1, bias=False), torch.nn.MaxPool2d(2))
    model = model.to(torch.bfloat16, memory_format=memory_format).eval()
    x = torch.zeros(2, 64, 16, 16, dtype=torch.bfloat16).to(memory_format=memory_format)
    return torch.export.export(model, (x,))


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), None),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((4, 6), (1, 4), (1, 0)),
        ((4, 6), (1, 5), None),  # with gaps
        ((8, 4, 1, 1), (4, 1, 1, 1), None),  # axes of size 1 lie anywhere
        ((2, 3), (None, 1), None),
    ],
)
def test_the_order_of_axes(shape, strides, order):
    assert memory_order(shape, strides) == order


def test_readers_keep_the_order(tmp_path: Path):
    program = exported(torch.channels_last)
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    for graph in (load(str(path)), from_exported_program(program)):
        assert graph.orders == {"p_0_weight": (0, 2, 3, 1), "input": (0, 2, 3, 1)}
    assert from_exported_program(exported(torch.contiguous_format)).orders == {}


def test_nothing_is_copied_into_channels_last():
    peaks = [
        graphflops.analyze(exported(form), execution="eager").totals.peak_bytes
        for form in (torch.contiguous_format, torch.channels_last)
    ]
    converted = IMAGE + WEIGHT + IMAGE  # by the convolution: operand, weight and result once more
    positions = 8 * 2 * 64 * 8 * 8  # of the maxima, as int64
    assert peaks == [IMAGE + IMAGE + converted, IMAGE + IMAGE + IMAGE // 4 + positions]
