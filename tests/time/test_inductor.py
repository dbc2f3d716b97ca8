"""Kernels under torch.compile: what inductor of PyTorch 2.11 wrote for the same programs on an H200."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from graphflops.analysis import as_graph
from graphflops.devices import HOPPER, complete, device
from graphflops.inductor.fusing import split_lengths
from graphflops.inductor.plan import Plans
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.compiled import CompiledLauncher


@pytest.mark.parametrize(
    ("results", "length", "is_inner", "of_moments", "steps"),
    [  # `xnumel` and `r0_numel` in the code of ResNet-18, BERT, ResNet-50, EfficientNet and MNASNet
        (64, 16 * 112 * 112, False, True, [(65536, 196), (512, 128), (64, 8)]),
        (40, 32 * 112 * 112, False, False, [(40960, 392), (40, 1024)]),
        (768, 8 * 256, False, False, [(12288, 128), (768, 16)]),
        (512, 16 * 49, False, True, [(3584, 112), (512, 7)]),
        (512, 112 * 112, False, False, [(50176, 128), (512, 98)]),
        (2048, 768, True, True, [(2048, 768)]),
    ],
)
def test_steps_of_a_reduction(results, length, is_inner, of_moments, steps):
    assert split_lengths(results, length, HOPPER, is_inner=is_inner, of_moments=of_moments) == steps


class Block(nn.Module):
    """A feed-forward block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stem(nn.Module):
    """The first layers of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(torch.relu(self.norm(self.conv(x))))


def launcher(module: nn.Module, *inputs: torch.Tensor, training: bool = False) -> CompiledLauncher:
    program = graphflops.capture(module.eval(), inputs)
    options = graphflops.Training() if training else None
    graph = as_graph(program)
    priced = price(graph, bind(graph, {}, {}), training=options)
    host = complete(device("h200")).host
    assert host is not None
    return CompiledLauncher(priced, {}, Plans(priced, HOPPER), host.seconds)


def families(launches):
    return [
        f"{kernel.family}.{getattr(kernel.sizes, 'masking', kernel.variant)}".strip(".")
        for launch in launches
        for kernel in launch.kernels or ()
    ]


def test_a_norm_an_activation_and_a_residual_are_kernels_between_products():
    forward = launcher(Block(), torch.empty(8, 64)).forward(records=False)
    loop = "elementwise.fused"
    assert families(forward) == ["reduction.fused", "matmul", loop, "matmul", loop]
    norm, activation, residual = (
        kernel for launch in forward for kernel in launch.kernels if kernel.variant == "fused"
    )
    x, wide = 4 * 8 * 64, 4 * 8 * 256
    assert (norm.read_bytes, norm.written_bytes) == (x + 2 * 4 * 64, x)  # weight and bias with it
    # in float32 the biases of the products are added here
    assert (activation.read_bytes, activation.written_bytes) == (wide + 4 * 256, wide)
    assert (residual.read_bytes, residual.written_bytes) == (2 * x + 4 * 64, x)


def test_images_and_weights_are_copied_to_channels_last():
    loop = "elementwise.fused"
    forward = launcher(Stem(), torch.empty(2, 3, 64, 64)).forward(records=False)
    # copies of image and weight, which cuDNN rounds in copies of its own; the norm and the activation; the pooling
    rounded = ["copy.memcpy", "copy.memcpy"]
    assert families(forward) == [loop, loop, *rounded, "convolution", loop, loop]


def test_channels_that_fill_no_tile_are_padded_beside_a_compiled_convolution():
    module = nn.Sequential(nn.Conv2d(37, 56, 3, bias=False), nn.ReLU()).bfloat16()
    forward = launcher(module, torch.empty(2, 37, 16, 16).bfloat16()).forward(records=False)
    padded = [one for launch in forward for one in launch.kernels if one.family == "copy"]
    image, weight = 2 * 16 * 16 * 2, 56 * 3 * 3 * 2  # bytes of a channel
    assert [(one.read_bytes, one.written_bytes) for one in padded] == [
        (37 * image, 40 * image),
        (37 * weight, 40 * weight),
    ]


def test_an_interpolation_of_half_precision_is_stored_in_float32():
    class Larger(nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return torch.cat([nn.functional.interpolate(x + 1, scale_factor=2, mode="bilinear"), other], 1)

    forward = launcher(
        Larger(), torch.empty(2, 3, 8, 8).bfloat16(), torch.empty(2, 3, 16, 16).bfloat16()
    ).forward(records=False)
    first, last = [kernel for launch in forward for kernel in launch.kernels]
    assert (first.read_bytes, first.written_bytes) == (2 * 2 * 3 * 8 * 8, 4 * 2 * 3 * 16 * 16)
    assert (last.read_bytes, last.written_bytes) == ((4 + 2) * 2 * 3 * 16 * 16, 2 * 2 * 6 * 16 * 16)


def test_a_convolution_of_sequences_keeps_its_layout():
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(64, 64, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)

    forward = launcher(Sequence().bfloat16(), torch.empty(4, 64, 500).bfloat16()).forward(records=False)
    # cuDNN converts image, weight and result by itself; inductor adds the bias
    *own, bias = families(forward)
    assert own == ["copy.channels_last", "copy.channels_last", "convolution", "copy.channels_last"]
    assert bias == "elementwise.fused"


def test_an_encoder_layer_that_runs_as_one_operator_has_its_kernels():
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).bfloat16()
    one = launcher(layer, torch.empty(2, 128, 64).bfloat16())
    forward = one.forward(records=False)
    assert families(forward).count("matmul") == 4  # queries, keys and values in one; out of heads; up; down
    called = max(forward, key=lambda launch: len(launch.kernels or ()))  # the CPU has a call for each, in C++
    assert called.host_seconds == pytest.approx(len(called.kernels) * one.costs["forward.inside"])
    assert [one for one in families(forward) if one.startswith("attention")] == ["attention"]


class Masked(nn.Module):
    """Two attentions with one mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x


def test_a_mask_of_booleans_becomes_numbers_for_all_attentions_at_once():
    x, mask = torch.empty(2, 4, 128, 64, dtype=torch.bfloat16), torch.empty(2, 1, 128, 128, dtype=torch.bool)
    forward = launcher(Masked(), x, mask).forward(records=False)
    assert families(forward) == ["elementwise.fused", "attention.masked", "attention.masked"]
    numbers = next(kernel for launch in forward for kernel in launch.kernels)
    assert (numbers.read_bytes, numbers.written_bytes) == (2 * 128 * 128, 2 * 2 * (2 * 128 * 128))


def test_a_long_sum_of_residuals_is_stored_once_it_takes_more_than_four_reads():
    class Residuals(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return x

    forward = launcher(Residuals(), torch.empty(2, 4, 64)).forward(records=False)
    # each product needs its operand in memory, so a loop stands before each but the first, and one at the end
    assert families(forward) == ["matmul", "elementwise.fused"] * 6
    # a product of matrices adds to a copy of what is read by the next one, or returned
    copied = ["elementwise", "matmul"] * 6
    assert families(launcher(Residuals(), torch.empty(8, 64)).forward(records=False)) == copied


def test_products_copy_what_blas_cannot_read_and_what_they_add_to():
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.y = nn.Parameter(torch.empty(8, 6, 5))

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.baddbmm(bias, x.permute(2, 0, 1), self.y)

    operands = torch.empty(4, 6, 8), torch.empty(8, 1, 5)
    forward = launcher(Products(), *operands).forward(records=False)
    backward = families(launcher(Products(), *operands, training=True).backward())
    assert backward[-2:] == ["copy.strided", "matmul"]  # the gradient of y reads x, in another order again
    assert families(forward) == ["copy.strided", "elementwise", "matmul"]
    copied, start, _ = (kernel for launch in forward for kernel in launch.kernels)
    assert copied.written_bytes == 4 * 6 * 8 * 4
    assert (start.read_bytes, start.written_bytes) == (8 * 5 * 4, 8 * 4 * 5 * 4)


def test_a_gradient_of_a_bias_is_a_reduction_in_two_steps():
    backward = launcher(Block(), torch.empty(2048, 64), training=True).backward()
    found = families(backward)
    assert found.count("matmul") == 4  # of two products, for the operand and the weight
    for step in ("outer", "parts"):  # of two biases, 2048 rows in 16 parts
        assert found.count(f"reduction.fused.{step}") >= 2


def test_a_step_has_a_time():
    program = graphflops.capture(Block().eval(), (torch.empty(8, 64),))
    report = graphflops.analyze(program, training=True, execution="compiled", device="h200")
    assert report.step_time is not None
    assert 0 < report.step_time.low < report.step_time.seconds < report.step_time.high


def test_the_gradient_of_a_cross_entropy_reads_the_scores():
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 1000, bias=False)

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.head(x), target)

    x, target = torch.empty(128, 64), torch.zeros(128, dtype=torch.int64)
    backward = launcher(Classifier(), x, target, training=True).backward()
    gradient = next(kernel for launch in backward for kernel in launch.kernels if kernel.variant == "fused")
    scores = 128 * 1000 * 4
    statistics = 128 * 2 * 4  # the maximum and the sum of each row
    assert (
        gradient.read_bytes == scores + statistics + 128 * 8 + 4
    )  # the classes, and the loss's own gradient
    assert gradient.written_bytes == scores
