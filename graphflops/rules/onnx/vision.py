"""Images sampled between their pixels: at the points of a grid, within boxes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.rules import resample
from graphflops.rules import vision as shared
from graphflops.rules.onnx.entries import many, sizes, unknown
from graphflops.rules.registry import require, require_known, rule

if TYPE_CHECKING:
    from graphflops.cost import Estimate
    from graphflops.tensor import TensorType

KIND = "boxes"

MODES = {"bilinear": 0, "linear": 0, "nearest": 1, "bicubic": 2, "cubic": 2}


@rule("onnx.GridSample")
def grid_sample(x: TensorType, grid: TensorType, *, mode: str = "linear") -> Estimate:
    """Per channel two operations per tap; per grid point its position and a weight per tap."""
    require_known(mode in MODES, f"unknown mode {mode!r}")
    return resample.grid_sampler(x, grid, MODES[mode])


@rule("onnx.AffineGrid")
def affine_grid(theta: TensorType, size: TensorType) -> Estimate:
    """Every position, with a 1 appended, times the transposed affine matrix."""
    count = many(size) or 4
    require(count in (4, 5), f"a grid of {count} axes")
    shape = sizes(size) or (theta.shape[0], *(unknown("grid", place) for place in range(1, count)))
    estimate = resample.affine_grid_generator(theta, shape)
    return replace(estimate, reads=(theta, size))


@rule("onnx.RoiAlign")
def roi_align(
    x: TensorType,
    rois: TensorType,
    batch_indices: TensorType,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
) -> Estimate:
    """The bilinear samples of each output, and a division by their number where they are averaged."""
    size = {"pooled_height": output_height, "pooled_width": output_width}
    estimate = shared.roi_align(x, rois, sampling_ratio=sampling_ratio, **size)
    return replace(estimate, reads=(x, rois, batch_indices))


@rule("onnx.MaxRoiPool")
def max_roi_pool(x: TensorType, rois: TensorType, *, pooled_shape: tuple[int, ...]) -> Estimate:
    """One comparison per pixel of each output's window, whose size only data can tell."""
    require(len(pooled_shape) == 2, f"a picture is pooled to two sizes, not {len(pooled_shape)}")
    height, width = pooled_shape
    estimate = shared.roi_pool(x, rois, pooled_height=height, pooled_width=width)
    return replace(estimate, out=estimate.out[:1])
