"""Resampling to a size, by a factor, and at the points of a grid."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import floor_div, parse_dim, symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.rules.resample import scaled
from tests.support import price, shapes, t

s, h = symbol("s"), symbol("h")


@pytest.mark.parametrize(
    ("size", "factor", "expected"),
    [
        (10, 2.0, 20),
        (10, 1.7, 17),
        (3, 2.5, 7),
        (100, 0.29, 28),  # 28.999999999999996 in floating point
        (h, 2.0, 2 * h),
        (h, 0.5, floor_div(h, 2)),
        (h, 1.7, parse_dim("TruncToInt(1.7*ToFloat(h))")),
    ],
)
def test_sizes_by_factor(size: Any, factor: float, expected: Any) -> None:
    assert scaled(size, factor) == expected


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "flops"),
    [
        ("aten.upsample_nearest1d.vec", (t(2, 3, 8), None, (2.0,)), (2, 3, 16), 0),
        ("aten.upsample_nearest2d.default", (t(2, 3, 8, 8), (16, 12)), (2, 3, 16, 12), 0),
        ("aten.upsample_nearest2d.vec", (t(2, 3, "h", 8), None, (2.0, 2.0)), (2, 3, 2 * h, 16), 0),
        ("aten._upsample_nearest_exact3d.vec", (t(1, 1, 2, 2, 2), (4, 4, 4), None), (1, 1, 4, 4, 4), 0),
        ("aten.upsample_linear1d.vec", (t(2, 3, 8), None, False, (2.0,)), (2, 3, 16), 2 * 2 * 96),
        (
            "aten.upsample_bilinear2d.vec",
            (t("s", 3, 8, 8), (16, 16), True, None),
            (s, 3, 16, 16),
            2 * 4 * 768 * s,
        ),
        ("aten.upsample_bilinear2d.default", (t(1, 1, 8, 8), (4, 4), False), (1, 1, 4, 4), 2 * 4 * 16),
        (
            "aten.upsample_trilinear3d.vec",
            (t(1, 1, 2, 2, 2), (4, 4, 4), False, None),
            (1, 1, 4, 4, 4),
            2 * 8 * 64,
        ),
        ("aten.upsample_bicubic2d.default", (t(1, 1, 8, 8), (16, 16), False), (1, 1, 16, 16), 2 * 16 * 256),
        # half the size: columns first (8 rows of 4), 2 taps stretched over twice as many inputs, then rows
        (
            "aten._upsample_bilinear2d_aa.default",
            (t(1, 1, 8, 8), (4, 4), False),
            (1, 1, 4, 4),
            2 * (32 * 4 + 16 * 4),
        ),
        (
            "aten._upsample_bicubic2d_aa.vec",
            (t(1, 1, 8, 8), (16, 16), False, None),
            (1, 1, 16, 16),
            2 * 4 * (128 + 256),
        ),
        (
            "aten.upsample_nearest2d_backward.default",
            (t(1, 1, 16, 16), (16, 16), (1, 1, 8, 8)),
            (1, 1, 8, 8),
            256,
        ),
        (
            "aten.upsample_bilinear2d_backward.default",
            (t(1, 1, 16, 16), (16, 16), (1, 1, 8, 8), False),
            (1, 1, 8, 8),
            2 * 4 * 256,
        ),
    ],
)
def test_upsampling(op: str, arguments: Any, shape: Any, flops: Any) -> None:
    priced = price(op, *arguments)
    assert shapes(priced) == [shape]
    assert priced.vector_flops == flops
    assert priced.matrix_flops == 0


def test_what_is_not_picked_is_not_read() -> None:
    assert price("aten.upsample_nearest2d.default", t(1, 1, 64, 64), (8, 8)).cost.read_bytes == 4 * 64
    assert price("aten.upsample_nearest2d.default", t(1, 1, 8, 8), (64, 64)).cost.read_bytes == 4 * 64


def test_rank_and_size_are_asked_for() -> None:
    with pytest.raises(ShapeError, match="do not fit"):
        price("aten.upsample_nearest2d.default", t(3, 8, 8), (16, 16))
    with pytest.raises(ShapeError, match="neither a size nor factors"):
        price("aten.upsample_nearest2d.vec", t(1, 3, 8, 8), None, None)


POINT = 4 * 2 + 4  # a position on two axes and four weights


@pytest.mark.parametrize(
    ("op", "x", "grid", "mode", "shape", "flops"),
    [
        ("aten.grid_sampler.default", t(2, 3, 8, 8), t(2, 5, 6, 2), 0, (2, 3, 5, 6), 8 * 180 + POINT * 60),
        ("aten.grid_sampler_2d.default", t(2, 3, 8, 8), t(2, 5, 6, 2), 1, (2, 3, 5, 6), 4 * 2 * 60),
        (
            "aten.grid_sampler_2d.default",
            t(2, 3, 8, 8),
            t(2, 5, 6, 2),
            2,
            (2, 3, 5, 6),
            32 * 180 + (8 + 16) * 60,
        ),
        (
            "aten.grid_sampler_3d.default",
            t(1, 3, 4, 4, 4),
            t(1, 2, 2, 2, 3),
            0,
            (1, 3, 2, 2, 2),
            16 * 24 + (12 + 8) * 8,
        ),
        (
            "aten.grid_sampler.default",
            t("s", 3, 8, 8),
            t("s", 5, 6, 2),
            0,
            (s, 3, 5, 6),
            (8 * 90 + POINT * 30) * s,
        ),
    ],
)
def test_grids(op: str, x: Any, grid: Any, mode: int, shape: Any, flops: Any) -> None:
    priced = price(op, x, grid, mode, 0, False)
    assert shapes(priced) == [shape]
    assert priced.vector_flops == flops


def test_only_the_wanted_gradients_of_a_grid_are_paid() -> None:
    given = (t(2, 3, 5, 6), t(2, 3, 8, 8), t(2, 5, 6, 2), 0, 0, False)
    both = price("aten.grid_sampler_2d_backward.default", *given, (True, True))
    assert shapes(both) == [(2, 3, 8, 8), (2, 5, 6, 2)]
    assert both.vector_flops == (8 + 16) * 180 + POINT * 60
    one = price("aten.grid_sampler_2d_backward.default", *given, (True, False))
    assert one.out[1] is None
    assert one.vector_flops == 8 * 180 + POINT * 60


def test_the_backward_of_a_grid_is_its_operator() -> None:
    given = {
        "x": t(2, 3, 8, 8),
        "grid": t(2, 5, 6, 2),
        "interpolation_mode": 0,
    }
    gradient = find_backward("aten.grid_sampler.default")
    assert gradient is not None
    forward = price("aten.grid_sampler.default", *given.values())
    assert shapes(gradient(ForwardCall(forward, given, frozenset({"grid"})))) == [(2, 5, 6, 2)]


def test_a_nearest_gradient_is_one_addition_per_output() -> None:
    given = {"x": t(1, 1, 8, 8), "output_size": (16, 16)}
    gradient = find_backward("aten.upsample_nearest2d.default")
    assert gradient is not None
    forward = price("aten.upsample_nearest2d.default", *given.values())
    assert gradient(ForwardCall(forward, given, frozenset({"x"}))).vector_flops == 256


def test_a_grid_with_other_coordinates() -> None:
    with pytest.raises(ShapeError, match="3 coordinates, not 2"):
        price("aten.grid_sampler.default", t(2, 3, 8, 8), t(2, 5, 6, 3), 0, 0, False)


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "flops"),
    [
        (
            "aten.affine_grid_generator.default",
            (t(2, 2, 3), (2, 3, 5, 6), False),
            (2, 5, 6, 2),
            2 * (2 * 30) * 3 * 2,
        ),
        (
            "aten.affine_grid_generator.default",
            (t("s", 3, 4), (s, 1, 2, 3, 4), False),
            (s, 2, 3, 4, 3),
            2 * 24 * 12 * s,
        ),
        (
            "aten.affine_grid_generator_backward.default",
            (t(2, 5, 6, 2), (2, 3, 5, 6), False),
            (2, 2, 3),
            2 * 60 * 3 * 2,
        ),
        ("aten.cudnn_affine_grid_generator.default", (t(2, 2, 3), 2, 3, 5, 6), (2, 5, 6, 2), 2 * 60 * 3 * 2),
    ],
)
def test_affine_grids_are_products(op: str, arguments: Any, shape: Any, flops: Any) -> None:
    priced = price(op, *arguments)
    assert shapes(priced) == [shape]
    assert priced.matrix_flops == flops


AXES = {1: t(2, 4, 8), 2: t(2, 4, 8, 8), 3: t(2, 4, 8, 8, 8)}
TWICE = {1: t(2, 4, 16), 2: t(2, 4, 16, 16), 3: t(2, 4, 16, 16, 16)}


@pytest.mark.parametrize(
    ("name", "axes", "taps"),
    [
        ("upsample_nearest1d", 1, 0),
        ("upsample_nearest2d", 2, 0),
        ("upsample_nearest3d", 3, 0),
        ("_upsample_nearest_exact1d", 1, 0),
        ("_upsample_nearest_exact2d", 2, 0),
        ("_upsample_nearest_exact3d", 3, 0),
        ("upsample_linear1d", 1, 2),
        ("upsample_bilinear2d", 2, 2 * 2),
        ("upsample_bicubic2d", 2, 4 * 4),
        ("upsample_trilinear3d", 3, 2 * 2 * 2),
        # One axis after the other, the first on half as many rows.
        ("_upsample_bilinear2d_aa", 2, 2 / 2 + 2),
        ("_upsample_bicubic2d_aa", 2, 4 / 2 + 4),
        ("_upsample_lanczos2d_aa", 2, 6 / 2 + 6),
    ],
)
def test_twice_the_size_and_back(name: str, axes: int, taps: float) -> None:
    """A multiply-add for each tap of each result; of the nearest none, and one sum for its gradient."""
    small, large = AXES[axes], TWICE[axes]
    align_corners = () if "nearest" in name else (False,)
    up = price(f"aten.{name}.default", small, large.shape[2:], *align_corners)
    assert (up.out, up.vector_flops) == ((large,), 2 * taps * large.numel)
    back = price(f"aten.{name}_backward.default", large, large.shape[2:], small.shape, *align_corners)
    assert (back.out, back.vector_flops) == ((small,), (2 * taps or 1) * large.numel)


@pytest.mark.parametrize(
    "name", ["upsample_nearest3d", "_upsample_nearest_exact2d", "_upsample_lanczos2d_aa"]
)
def test_a_factor_is_a_size(name: str) -> None:
    axes = 3 if "3d" in name else 2
    align_corners = (False,) if "lanczos" in name else ()
    by_factor = price(f"aten.{name}.vec", AXES[axes], None, *align_corners, (2.0,) * axes)
    by_size = price(f"aten.{name}.vec", AXES[axes], (16,) * axes, *align_corners, None)
    assert by_factor.out == by_size.out == (TWICE[axes],)
    assert by_factor.cost == by_size.cost


def test_sampling_at_points_by_cudnn_is_bilinear() -> None:
    image, grid, sampled = t(2, 4, 8, 8), t(2, 5, 5, 2), t(2, 4, 5, 5)
    plain = price("aten.grid_sampler.default", image, grid, 0, 0, True)
    assert price("aten.cudnn_grid_sampler.default", image, grid) == plain
    gradients = price("aten.grid_sampler_2d_backward.default", sampled, image, grid, 0, 0, True, (True, True))
    assert shapes(gradients) == [(2, 4, 8, 8), (2, 5, 5, 2)]
    fallback = price("aten._grid_sampler_2d_cpu_fallback_backward.default", sampled, image, grid, 0, 0, True)
    assert fallback == price("aten.cudnn_grid_sampler_backward.default", image, grid, sampled) == gradients


def test_the_gradient_of_affine_grids_is_a_product_with_all_points() -> None:
    gradient = price("aten.cudnn_affine_grid_generator_backward.default", t(2, 5, 5, 2), 2, 3, 5, 5)
    assert (shapes(gradient), gradient.matrix_flops) == ([(2, 2, 3)], 2 * 2 * (5 * 5) * 2 * 3)
