"""Times of single operators, lowered from a program, against those of a profiler on an H200 with torch 2.11."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

import graphflops
from graphflops.kernels.call import Tensor
from graphflops.kernels.moved import strided

if TYPE_CHECKING:
    from collections.abc import Callable

HALF = torch.bfloat16


class Call(torch.nn.Module):
    """One function of its operands."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """The function of the operands."""
        return self.function(*args)


def microseconds(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> float:
    """Predicted time of the kernels of a function on bfloat16 operands."""
    program = graphflops.capture(Call(function), tuple(torch.zeros(shape, dtype=HALF) for shape in shapes))
    report = graphflops.analyze(program, device="h200", execution="graph")
    assert report.totals.time is not None
    return sum(row.time.seconds for row in report.rows if row.time is not None) * 1e6


@pytest.mark.parametrize(
    ("function", "shapes", "measured"),
    [
        (lambda x: functional.max_pool2d(x, 3, 2, 1), [(8, 128, 56, 56)], 15.2),
        (lambda x: functional.max_pool2d(x, 5, 1, 2), [(8, 256, 28, 28)], 49.3),
        (lambda x: functional.avg_pool2d(x, 3, 2, 1), [(8, 256, 56, 56)], 21.6),
        (lambda x: functional.adaptive_avg_pool2d(x, 7), [(32, 64, 56, 56)], 17.5),
        (lambda x: functional.adaptive_avg_pool2d(x, 1), [(32, 256, 28, 28)], 4.8),
        (lambda x: functional.layer_norm(x, (213,)), [(16823, 213)], 97.4),  # rows that do not align
        (lambda x: functional.layer_norm(x, (512,)), [(4928, 512)], 10.5),
        (lambda x: x.roll((3, 3), (1, 2)), [(32, 14, 14, 96)], 7.3),  # one kernel for each axis
        (lambda x: x.cumsum(1), [(4, 67, 139)], 13.7),
        (lambda x: x.softmax(1), [(1, 1000, 16)], 15.2),
        (lambda x: x.mean((2, 3)), [(8, 1280, 7, 7)], 4.5),
        (lambda x, y: x * y, [(16, 784, 480), (16, 1, 480)], 14.4),  # broadcast
        (lambda x: x.sum((0, 2, 3)), [(8, 256, 14, 14)], 8.8),  # planes of several images
        (lambda x, y: x.transpose(1, 2) + y, [(16, 768, 196), (16, 196, 768)], 14.8),  # transposed
        # one operand is not contiguous: as many blocks copy each of the two
        (lambda x, y: torch.cat([x.transpose(1, 2), y], 2), [(32, 128, 16, 32), (32, 16, 128, 32)], 18.2),
        (
            lambda x, y: torch.cat([x, y[:, :, 0].transpose(1, 2)], 2),
            [(32, 16, 1024, 128), (32, 1, 3, 16, 128)],
            407,
        ),
    ],
)
def test_operators_take_about_as_long_as_measured(
    function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]], measured: float
) -> None:
    assert microseconds(function, *shapes) == pytest.approx(measured, rel=0.3)


def tensor(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "bfloat16", bits: int = 16
) -> Tensor:
    """A tensor that lies with these strides."""
    return Tensor(shape, dtype, bits, strides, 0)


def test_axes_in_which_all_tensors_lie_alike_are_one() -> None:
    out = tensor((8, 16, 32), (512, 32, 1))
    assert strided(out, [out, out]) is None
    row = strided(out, [out, tensor((32,), (1,))])
    assert row is not None
    assert (row.elements, row.axes, row.tensors, row.waste) == (8 * 16 * 32, 2, 3, 0)
    channel = strided(out, [out, tensor((16, 1), (1, 1))])
    assert channel is not None
    assert channel.axes == 3  # neither 8 and 16 nor 16 and 32 are one axis of all three


def test_a_transposed_operand_loads_whole_sectors() -> None:
    out = tensor((1024, 1024), (1024, 1))
    turned = strided(out, [tensor((1024, 1024), (1, 1024))])
    assert turned is not None
    assert turned.waste == 32 - 2  # of a sector of 32 bytes one element is used


def test_operands_of_two_types_are_cast() -> None:
    out = tensor((4096,), (1,), "float32", 32)
    mixed = strided(out, [out, tensor((4096,), (1,))])
    assert mixed is not None
    assert mixed.has_casts


@pytest.mark.parametrize(
    ("image", "weight", "options", "measured"),
    [  # bfloat16, as the profiler timed them, conversions of layouts and all
        (
            (32, 384, 14, 14),
            (384, 24, 3, 3),
            {"groups": 16, "padding": 1},
            40.3,
        ),  # groups padded to 32 channels
        ((8, 64, 56, 56), (64, 4, 3, 3), {"groups": 16, "padding": 1}, 17.3),  # groups that share a kernel
        ((16, 512, 56, 56), (512, 1, 5, 5), {"groups": 512, "padding": 2}, 448.6),
        ((32, 960, 14, 14), (960, 1, 7, 7), {"groups": 960, "padding": 3}, 215.3),  # many taps are outside
        ((16, 256, 512), (256, 256, 5), {}, 25.8),
        ((4, 128, 3000), (128, 128, 7), {}, 21.2),
    ],
)
def test_convolutions(
    image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, int], measured: float
) -> None:
    function = functional.conv2d if len(image) == 4 else functional.conv1d
    found = microseconds(lambda x, w: function(x, w, **options), image, weight)
    assert found == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize(
    ("image", "weight", "stride", "padding", "measured"),
    [
        ((16, 256, 28, 28), (256, 256, 4, 4), 4, 0, 273.9),
        ((1, 512, 32, 32), (512, 512, 4, 4), 2, 1, 49.9),
        ((16, 1024, 8, 8), (1024, 512, 2, 2), 2, 0, 51.7),
        ((8, 64, 28, 28), (64, 32, 2, 2), 2, 0, 13.3),
    ],
)
def test_transposed_convolutions_are_gradients_of_convolutions(
    image: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int, measured: float
) -> None:
    found = microseconds(
        lambda x, w: functional.conv_transpose2d(x, w, stride=stride, padding=padding), image, weight
    )
    assert found == pytest.approx(measured, rel=0.35)


def test_rows_are_added_by_atomic_additions() -> None:
    """Measured: 15.9 us for 33,373 rows of 64 in float32, beside the copy of the 64 rows that they are added to."""
    index = torch.zeros(33_373, dtype=torch.int64)
    added = Call(lambda x, y, i: x.index_add(0, i, y))
    program = graphflops.capture(added, (torch.zeros(64, 64), torch.zeros(33_373, 64), index))
    report = graphflops.analyze(program, device="h200", execution="graph")
    assert report.totals.time is not None
    assert report.totals.time.seconds * 1e6 == pytest.approx(15.9 + 1.5, rel=0.25)


def test_an_instance_norm_is_the_batch_norm_of_one_image() -> None:
    """Two images of 8 channels take as long as one of 16 that is normalised with its own moments."""
    instance = microseconds(lambda x: functional.instance_norm(x), (2, 8, 64, 64))
    batch = microseconds(lambda x: functional.batch_norm(x, None, None, training=True), (1, 16, 64, 64))
    assert instance == pytest.approx(batch)
