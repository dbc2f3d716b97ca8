"""Corrects a modelled time by measured kernels of similar sizes.

Each calibration point holds the ratio of a measured time to the modelled one. The ratio for other sizes is interpolated by
kriging (a Gaussian process on the nearest points): on the logarithms of sizes, ratios that are near each other are alike.
"""

from __future__ import annotations

from math import exp, log, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

from graphflops.time.kernel import Attention, Convolution, Product, Rows
from graphflops.time.predict_products import convolution_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.devices import Calibration, Device
    from graphflops.time.kernel import Kernel

_NEAREST = 16  # points that take part
_LENGTH = 3.0  # octaves over which a ratio keeps about half of its likeness
_SIGNAL = 0.10  # standard deviation of the logarithm of ratios around their mean
_NOISE = 0.06  # of repeated measurements, and of what no size tells
_MOST = 2.0  # largest correction, as a factor


class Correction(NamedTuple):
    """A factor of the time, and the standard deviation of its logarithm."""

    factor: float
    deviation: float


def correction(kernel: Kernel, device: Device) -> Correction | None:
    """The correction by the points of the kernel's family, variant and element type; None without points."""
    for one in device.calibration:
        if (one.family, one.variant, one.dtype) == (kernel.family, variant_of(kernel), kernel.dtype):
            return interpolated(one, columns_of(kernel))
    return None


def interpolated(calibration: Calibration, sizes: Sequence[float]) -> Correction:
    """The ratio at these sizes, from the nearest points."""
    place = [log2(max(size, 1)) for size in sizes]
    near = sorted(
        (sqrt(sum((log2(max(a, 1)) - b) ** 2 for a, b in zip(point, place, strict=False))), point[-1], point)
        for point in calibration.points
    )[:_NEAREST]
    ratios = [log(min(max(ratio, 1 / _MOST), _MOST)) for _, ratio, _ in near]
    mean = sum(ratios) / len(ratios)
    points = [[log2(max(size, 1)) for size in point[: len(place)]] for _, _, point in near]
    matrix = [
        [_likeness(_distance(a, b)) + (_NOISE**2 if i == j else 0.0) for j, b in enumerate(points)]
        for i, a in enumerate(points)
    ]
    likeness = [_likeness(distance) for distance, _, _ in near]
    weights = _solved(matrix, likeness)
    found = mean + sum(weight * (ratio - mean) for weight, ratio in zip(weights, ratios, strict=True))
    left = _SIGNAL**2 - sum(weight * like for weight, like in zip(weights, likeness, strict=True))
    return Correction(exp(found), sqrt(max(left, 0.0) + _NOISE**2))


def columns_of(kernel: Kernel) -> tuple[float, ...]:
    """The sizes by which kernels of a family are told apart."""
    moved = kernel.read_bytes + kernel.written_bytes
    match kernel.sizes:
        case Product(m, n, k, batch):
            return m, n, k, batch
        case Convolution() as sizes:
            pixels = sizes.batch
            for size in sizes.result:
                pixels *= size
            taps = 1
            for size in sizes.filter:
                taps *= size
            return pixels, sizes.filters / sizes.groups, sizes.channels / sizes.groups * taps, sizes.groups
        case Attention() as sizes:
            group = sizes.heads / max(sizes.kv_heads, 1)
            visible = max(1.0, sizes.keys * sizes.computed)
            return sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.width, group, visible
        case Rows(rows, columns):
            return moved, rows, columns
        case _:
            return (moved,)


COLUMNS = {
    "matmul": ("m", "n", "k", "batch"),
    "convolution": ("pixels", "filters_per_group", "taps", "groups"),
    "attention": ("batch", "heads", "queries", "keys", "width", "queries_per_key", "visible_keys"),
}


def variant_of(kernel: Kernel) -> str:
    """What tells kernels of a family apart beside their sizes."""
    match kernel.sizes:
        case Product(layout=layout):
            return layout
        case Convolution() as sizes:
            return f"{convolution_kind(sizes)}.{sizes.phase}"
        case Attention() as sizes:
            return f"{sizes.kernel}.{sizes.phase}"
        case _:
            return kernel.variant


def _likeness(distance: float) -> float:
    """Covariance of two ratios whose sizes are so many octaves apart (Matern 3/2)."""
    scaled = sqrt(3) * distance / _LENGTH
    return _SIGNAL**2 * (1 + scaled) * exp(-scaled)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)))


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a system with a symmetric positive definite matrix, by Gaussian elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    count = len(rows)
    for i in range(count):
        for j in range(i + 1, count):
            share = rows[j][i] / rows[i][i]
            if share:
                rows[j][i:] = [a - share * b for a, b in zip(rows[j][i:], rows[i][i:], strict=True)]
    found = [0.0] * count
    for i in reversed(range(count)):
        known = sum(rows[i][j] * found[j] for j in range(i + 1, count))
        found[i] = (rows[i][count] - known) / rows[i][i]
    return found
