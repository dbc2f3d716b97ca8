"""Buffers of CUDA kernels: predicted, against bytes that an H200 measured (PyTorch 2.11, bfloat16, row-major operands)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from graphflops.devices import HOPPER
from graphflops.dims import symbol
from graphflops.kernels.beside import reduction_bytes

HEADER = 147  # bytes of cuDNN's own at most, which are not predicted

# By convolution and operand: the peak of requested bytes during the call less operands and result.
MEASURED = [
    (
        nn.Conv2d(64, 64, 3, padding=1),
        (16, 64, 224, 224),
        205_594_771,
    ),  # operand, weight and result, channels last
    (nn.Conv2d(64, 128, 3, padding=1), (16, 64, 112, 112), 77_217_939),
    (nn.Conv3d(64, 128, 3, stride=2, padding=1), (2, 64, 16, 56, 56), 16_498_704),
    (nn.Conv2d(3, 64, 7, stride=2, padding=3), (32, 3, 224, 224), 77_120_528),  # 3 channels padded to 8
    (nn.Conv2d(3, 768, 32, stride=32), (16, 3, 224, 224), 26_632_208),
    (nn.Conv2d(3, 64, 7, stride=2, padding=3), (1, 3, 224, 224), 0),
    (nn.Conv2d(3, 768, 16, stride=16), (8, 3, 224, 224), 11_976_720),
    (nn.Conv2d(3, 384, 16, stride=16), (8, 3, 224, 224), 0),
    (nn.Conv2d(3, 64, 3, padding=1), (16, 3, 224, 224), 0),  # a small kernel on an image: no tensor cores
    (nn.Conv2d(96, 192, 2, stride=2), (8, 96, 56, 56), 7_372_816),
    (nn.Conv2d(320, 1280, 1), (32, 320, 7, 7), 5_017_616),  # 49 positions are no multiple of 8
    (nn.Conv2d(512, 1024, 1, stride=2), (32, 512, 28, 28), 38_535_315),
    (nn.Conv2d(64, 256, 1), (32, 64, 56, 56), 0),  # a matrix product
    (nn.Conv2d(888, 888, 3, padding=1, groups=37), (16, 888, 7, 7), 4_395_024),  # groups of 24 padded to 32
    (nn.Conv2d(96, 96, 7, padding=3, groups=96), (16, 96, 56, 56), 0),  # depthwise
    (nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1), (32, 32, 64, 64), 16_785_555),
]


@pytest.mark.parametrize(("module", "shape", "measured"), MEASURED, ids=lambda value: str(value)[:60])
def test_buffers_of_convolutions_are_those_measured(
    module: nn.Module, shape: tuple[int, ...], measured: int
) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(module.to("meta", torch.bfloat16), (x,))
    graph, eager = (
        graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")
    )
    assert measured - HEADER <= eager - graph <= measured


class ChannelsLast(nn.Module):
    """A convolution of an operand whose channels are the innermost axis in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(96, 192, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()


def test_operands_with_channels_last_are_not_copied() -> None:
    """The weight alone is; the result has its channels last too, so that `contiguous` copies nothing."""
    x = torch.empty(16, 56, 56, 96, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(ChannelsLast().to("meta", torch.bfloat16), (x,))
    peak = graphflops.analyze(program, execution="eager").totals.peak_bytes
    assert peak - x.nbytes == 2 * (16 * 28 * 28 * 192) + 2 * (192 * 96 * 2 * 2)


def test_convolutions_in_double_precision_need_no_copies() -> None:
    program = graphflops.capture(
        nn.Conv2d(64, 64, 3).to("meta", torch.float64),
        (torch.empty(2, 64, 9, 9, dtype=torch.float64, device="meta"),),
    )
    graph, eager = (
        graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")
    )
    assert graph == eager


def test_a_pooling_computes_the_positions_of_its_maxima() -> None:
    x = torch.empty(16, 64, 8, 8, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(nn.MaxPool2d(2), (x,))
    graph, eager = (
        graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")
    )
    assert eager - graph == 8 * (16 * 64 * 4 * 4)  # an int64 for each result


@pytest.mark.parametrize(
    ("rows", "columns", "measured"),
    [
        (3152, 3072, 78_643_296),
        (1568, 3072, 39_321_696),
        (6280, 608, 30_818_324),
        (800, 768, 0),
        (2048, 49152, 150_996_480),
    ],
)
def test_sums_of_columns_need_the_buffer_measured(rows: int, columns: int, measured: int) -> None:
    assert reduction_bytes((rows, columns), (columns, 1), (0,), 4, HOPPER) == measured


@pytest.mark.parametrize(
    ("shape", "strides", "axes", "measured"),
    [
        (
            (16, 320, 56, 56),
            (1_003_520, 1, 17_920, 320),
            {2, 3},
            128_450_720,
        ),  # a norm over images, channels last
        ((2, 256, 192, 192), (9_437_184, 1, 49_152, 256), {0, 2, 3}, 138_412_040),  # the gradient of a bias
        ((2, 32, 384, 384), (4_718_592, 1, 12_288, 32), {0, 2, 3}, 4_718_596),
        ((16, 320, 56, 56), (1_003_520, 3136, 56, 1), {2, 3}, 0),  # each image's elements lie together
    ],
)
def test_reductions_need_the_buffer_measured(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: set[int], measured: int
) -> None:
    assert reduction_bytes(shape, strides, axes, 4, HOPPER) == measured


def test_a_reduction_without_results_needs_no_buffer() -> None:
    assert reduction_bytes((0, 1000 * symbol("s")), (1000 * symbol("s"), 1), {1}, 4, HOPPER) == 0


def test_an_activation_in_place_keeps_its_input_for_the_gradient() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(self.fc(x), inplace=True)

    program = torch.export.export(Net(), (torch.randn(32, 64),))
    report = graphflops.analyze(program, training=True, execution="eager")
    assert [held.bytes for held in report.memory.held if held.kind == "saved"] == [4 * 32 * 64]
    assert not any(held.kind == "saved" for held in graphflops.analyze(program, training=True).memory.held)


def test_autograd_keeps_the_operand_of_a_max_pooling() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.max_pool2d(torch.tanh(self.conv(x)) + 1, 2)

    program = torch.export.export(Net(), (torch.randn(2, 8, 16, 16),))
    report = graphflops.analyze(program, training=True, execution="eager")
    add = next(held for held in report.memory.held if held.name == "add")
    assert add.last >= (report.memory.gradients_from or 0)


def test_a_convolution_with_a_weight_in_channels_last_makes_its_operand_so() -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1).to("meta", torch.bfloat16).to(memory_format=torch.channels_last)
    x = torch.empty(4, 64, 32, 32, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(conv, (x,))
    graph, eager = (
        graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")
    )
    assert eager - graph == x.nbytes


def test_a_repeated_factor_of_a_product_has_its_gradient_added_up_from_all_elements() -> None:
    """The product with the other factor is written out, and several blocks add it up, each into its own part."""
    scale = nn.Parameter(torch.ones(768, device="meta"))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x) * self.scale

    program = graphflops.capture(Scaled(), (torch.empty(3152, 768, device="meta"),))
    report = graphflops.analyze(program, training=True, execution="eager")
    found = [held.bytes for held in report.memory.held if (held.name, held.kind) == ("mul", "workspace")]
    assert found == [4 * 3152 * 768 + reduction_bytes((3152, 768), (768, 1), (0,), 4, HOPPER)]


def test_resampling_keeps_no_image_for_its_gradient() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(self.conv(x), scale_factor=2.0, mode="bilinear")

    program = torch.export.export(Net(), (torch.randn(2, 8, 16, 16),))
    report = graphflops.analyze(program, training=True, execution="eager")
    image = next(held for held in report.memory.held if held.name == "conv2d")
    assert image.last < (report.memory.gradients_from or 0)
