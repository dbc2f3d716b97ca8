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


@pytest.mark.parametrize(("shape", "measured"), [((4, 256, 16, 16), 388), ((4, 128, 32, 32), 200)])
def test_full_blocks_take_as_long_as_in_u_net(shape: tuple[int, ...], measured: float) -> None:
    assert microseconds(shape) == pytest.approx(measured, rel=0.15)


def test_few_threads_wait_for_the_cache_but_not_for_one_another() -> None:
    full, few = microseconds((4, 256, 16, 16)), microseconds((4, 256, 7, 7))
    assert few < full / 1.5
    assert few > 1024 * 0.12  # about what one access of the L2 cache takes, for each image
