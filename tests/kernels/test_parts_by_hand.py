"""Parts of lowerings, each given what a test names: axes that are kept, bytes of sectors, options along each axis."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.kernels.beside import reduced_axes
from graphflops.kernels.convolution import Convolution
from graphflops.kernels.moved import _waste, axis_of
from graphflops.kernels.rowwise import _of_cudnn, loss_backward
from tests.support import t
from tests.time.one_call import one_call


@pytest.mark.parametrize(
    ("axes", "reduced"),
    [
        ((-1,), {2}),  # of three axes
        (-1, {2}),
        (1, {1}),
        ((0, 2), {0, 2}),
        ((0, -1), {0, 2}),
        ((0, 1, 2), {0, 1, 2}),
        ((), {0, 1, 2}),
        (None, {0, 1, 2}),
        ((1, None), {1}),
    ],
)
def test_axes_that_are_reduced(axes: Any, reduced: set[int]) -> None:
    assert reduced_axes(axes, 3) == reduced
    assert reduced_axes(axes, 0) == set()


@pytest.mark.parametrize(
    ("axes", "width", "bytes_of_each"),
    [
        # A sector has 32 bytes: of these an element uses its own, and of a step of two the gap is 4 bytes.
        ([(8, [1])], 4, 0),
        ([(8, [0])], 4, 0),
        ([(8, [2])], 4, 2 * 4 - 4),
        ([(8, [8])], 4, 32 - 4),
        ([(8, [100])], 4, 32 - 4),
        ([(8, [100])], 2, 32 - 2),
        ([(8, [7])], 2, 7 * 2 - 2),
        # Four neighbours along the next axis share a sector; of eight nothing is left over.
        ([(2, [100]), (4, [1])], 4, 32 / 4 - 4),
        ([(2, [100]), (3, [1])], 2, 32 / 3 - 2),
        ([(2, [100]), (8, [1])], 4, 0),
        ([(2, [100]), (8, [2])], 4, 32 - 4),
        ([(2, [100]), (1, [1])], 4, 32 - 4),
        # What the next axis repeats is loaded once by a block of 1,024 bytes: by 512 / 128 or 256 / 128 rows.
        ([(128, [64]), (8, [0])], 2, 32 / (512 / 128) - 2),
        ([(128, [64]), (8, [0])], 4, 32 / (256 / 128) - 4),
        ([(128, [64]), (3, [0])], 2, 32 / 3 - 2),
        ([(128, [64]), (64, [1]), (8, [0])], 2, 32 / (512 / 128) - 2),
        ([(128, [64]), (64, [1]), (8, [8192])], 2, 32 / (256 / 128) - 2),
    ],
)
def test_bytes_that_a_sector_holds_beside_an_element(axes: Any, width: float, bytes_of_each: float) -> None:
    assert _waste(axes, 0, width) == pytest.approx(bytes_of_each)


@pytest.mark.parametrize(
    ("given", "rank", "axis"),
    [
        ({}, 3, 2),
        ({"axis": 0}, 3, 0),
        ({"axis": -3}, 3, 0),
        ({"axis": -4}, 3, 2),  # no axis
        ({"axis": 3}, 3, 2),
        ({"axis": 2}, 3, 2),
        ({"axis": None}, 3, 2),
        ({"axis": 0}, 0, -1),
    ],
)
def test_the_axis_of_a_call(given: dict[str, Any], rank: int, axis: int) -> None:
    call: Any = Space(arguments=given)
    assert axis_of(call, rank) == axis


@pytest.mark.parametrize(("name", "axes"), [("conv1d", 1), ("conv2d", 2), ("conv3d", 3)])
def test_options_of_a_convolution_along_each_axis(name: str, axes: int) -> None:
    call = one_call(f"aten.{name}.default", t(2, 8, *[6] * axes), t(16, 8, *[3] * axes), None, 2, 1)
    found = Convolution.of(call.call, call.values)
    assert found is not None
    assert (found.stride, found.padding) == ((2,) * axes, (1,) * axes)


@pytest.mark.parametrize(
    ("shape", "strides", "tensors", "reads"),
    [
        ((2, 8, 4, 4), (128, 1, 32, 8), 1, 2),  # channels last: always twice
        ((2, 8, 4, 4), (128, 1, 32, 8), 2, 4),
        ((2, 8, 4, 4), None, 1, 1),
        ((2, 8, 4, 4), None, 2, 2),
        ((64, 8, 256, 256), None, 1, 2),  # four million numbers of a channel stay on no chip
        ((64, 8, 256, 256), None, 2, 4),
    ],
)
def test_how_often_a_batch_norm_reads_a_tensor(shape: Any, strides: Any, tensors: int, reads: int) -> None:
    lie = {} if strides is None else {0: strides}
    call = one_call(
        "aten.batch_norm.default", t(*shape), t(8), t(8), None, None, True, 0.1, 1e-5, True, strides=lie
    )
    x = call.operands[0]
    kernel = _of_cudnn(call, x, tensors, "batch_norm")
    assert kernel.read_bytes == reads * 4 * x.numel
    assert kernel.written_bytes == 4 * x.numel


def test_a_loss_that_wants_no_gradient_has_none() -> None:
    call = one_call("aten.cross_entropy_loss.default", t(10, 8), t(10, dtype="int64"))
    assert loss_backward(call) == []
