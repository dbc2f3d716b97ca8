"""Times of interpolations beside those of a profiler on an H200: each thread loops over the images of a position."""

import pytest
import torch

import graphflops


class Larger(torch.nn.Module):
    """A bilinear interpolation to twice the size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four times the pixels."""
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")


def microseconds(shape: tuple[int, ...]) -> float:
    program = graphflops.capture(Larger(), (torch.rand(shape, dtype=torch.bfloat16),))
    (row,) = graphflops.analyze(program, device="h200", execution="graph").rows
    assert row.time is not None
    return row.time.seconds * 1e6


@pytest.mark.parametrize(
    ("shape", "measured"), [((4, 256, 16, 16), 216), ((4, 128, 32, 32), 111), ((4, 256, 7, 7), 185)]
)
def test_images_take_as_long_as_after_a_convolution(shape: tuple[int, ...], measured: float) -> None:
    """Where the image comes from the memory it takes twice as long (390, 199 and 330)."""
    assert microseconds(shape) == pytest.approx(measured, rel=0.15)


class LargerCubic(torch.nn.Module):
    """A bicubic interpolation to so many times the size."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """More pixels."""
        return torch.nn.functional.interpolate(x, scale_factor=self.scale, mode="bicubic")


@pytest.mark.parametrize(
    ("shape", "scale", "dtype", "measured"),
    [
        ((2, 21, 64, 64), 1.5, torch.bfloat16, 981),
        ((8, 21, 64, 64), 2, torch.bfloat16, 4540),
        ((8, 3, 64, 64), 8, torch.bfloat16, 24_130),
        ((2, 256, 64, 64), 8, torch.float32, 14_782),
    ],
)
def test_gradients_of_cubic_interpolation_add_to_sixteen_corners(
    shape: tuple[int, ...], scale: float, dtype: torch.dtype, measured: float
) -> None:
    # nearby threads add to one place; half precision adds slowly
    x = torch.rand(shape, dtype=dtype, requires_grad=True)
    program = torch.export.export(LargerCubic(scale), (x,))
    report = graphflops.analyze(
        program,
        training=graphflops.Training(grad_inputs=("x",), optimizer="none"),
        device="h200",
        execution="graph",
    )
    (time,) = [row.backward_time for row in report.rows if row.backward_time is not None]
    assert time.seconds * 1e6 == pytest.approx(measured, rel=0.6)
