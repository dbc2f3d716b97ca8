"""Corrects a modelled time by measurements of kernels of similar sizes.

Each calibration point has the ratio of a measured time to the modelled time. For other sizes the ratio is interpolated by
kriging (a Gaussian process on the nearest points): if the logarithms of sizes are close, the ratios are alike.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product, repeat
from math import dist, exp, log, log2, prod, sqrt
from operator import mul
from typing import Any

from graphflops.base.record import Record
from graphflops.devices import Calibration, Device
from graphflops.kernels.kernel import Attention, Convolution, Kernel, Product, Rows, bytes_of
from graphflops.time.predict_products import convolution_kind, product_kind

NINE_OF_TEN = 1.645  # standard deviations
OTHER_DEVICE = 1.3  # factor on the interval of a device that has the constants of another
_NEAREST = 12  # points that take part; more tell no more of kernels that are not among them
_ALIKE = {"float16": "bfloat16", "bfloat16": "float16"}  # types that run at the same speed
_MOST_ALIGNED, _ALIKE_ALIGNMENTS = 16, 4.0  # elements; octaves of alignment over which ratios are alike
_MOST = 4.0  # largest correction, as a factor
_ROOT = sqrt(3)
_ROWS = 8  # of the smallest tile: fewer rows take as long as 8


class Columns(Record, frozen=True):
    """The sizes that tell kernels of a family apart, and how the ratio varies with them."""

    names: tuple[str, ...]
    lengths: tuple[float, ...]  # octaves of each size over which ratios are alike
    signal: float  # standard deviation of the logarithm of the ratio
    noise: float  # of repeated measurements, and of what the sizes do not show
    aligned: tuple[int, ...] = ()  # places of sizes whose largest power of two counts as a size too


_COLUMNS = {
    "matmul": Columns(("m", "n", "k", "batch"), (3.0, 3.5, 3.0, 3.0), 0.10, 0.06),
    "convolution": Columns(
        ("batch", "pixels", "filters", "channels", "taps", "groups"),
        (4.0, 3.0, 3.0, 3.0, 3.0, 3.0),
        signal=0.4,
        noise=0.1,
        aligned=(1, 2, 3),
    ),
    "attention": Columns(
        ("batch", "heads", "queries", "keys", "width", "group", "visible"),
        (7.0, 5.0, 8.0, 8.0, 1.5, 5.0, 12.0),
        signal=0.23,
        noise=0.05,
    ),
    "collective": Columns(("bytes", "devices"), (3.0, 1.5), 0.12, 0.04),
}
_TRAFFIC = Columns(("bytes", "rows", "columns"), (3.0, 3.0, 3.0), 0.2, 0.08)


class Correction(Record, frozen=True):
    """A factor of the time, and the standard deviation of its logarithm."""

    factor: float
    deviation: float


def correction(kernel: Kernel, device: Device) -> Correction | None:
    """The correction by the points of the kernel's family, variant and element type, or else of similar ones."""
    variant, sizes = variant_of(kernel), columns_of(kernel)
    variants = (variant, f"{variant}.alone", "tn.alone") if kernel.family == "matmul" else (variant,)
    if isinstance(kernel.sizes, Product) and not kernel.sizes.is_alone:
        layout = "batched" if kernel.sizes.batch > 1 else kernel.sizes.layout
        if any(f"matmul.{layout}.{bits}" in device.rates for bits in (8, 16, 32, 64)):
            variants = (variant,)  # these constants are of this layout alone, so points must be too
    names = _COLUMNS.get(kernel.family, _TRAFFIC).names[: len(sizes)]
    dtypes = kernel.dtype, _ALIKE.get(kernel.dtype, "")
    found = (device.measured.get((kernel.family, *key)) for key in product(variants, dtypes))
    points = next((each for each in found if each and each.columns[: len(sizes)] == names), None)
    return None if points is None else interpolated(points, sizes)


def interpolated(calibration: Calibration, sizes: Sequence[float]) -> Correction:
    """The ratio at these sizes, interpolated from the nearest points."""
    columns = _COLUMNS.get(calibration.family, _TRAFFIC)
    (place,), (places, _) = _scaled([sizes], columns), _points(calibration, len(sizes))
    aparts = [*map(dist, places, repeat(place))]
    near = sorted(range(len(places)), key=aparts.__getitem__)[:_NEAREST]
    others, lower, rest, mean = _factored(calibration, len(sizes), tuple(sorted(near)))
    *row, own = _row(place, others, lower, columns)
    ninth = log(1 + calibration.error[2]) if calibration.error else 0.0
    return Correction(exp(mean + sum(map(mul, row, rest))), max(columns.signal * own, ninth / NINE_OF_TEN))


@lru_cache(maxsize=256)
def _factored(calibration: Calibration, count: int, near: tuple[int, ...]) -> tuple[Any, Any, Any, float]:
    """Points, the Cholesky factor of their likeness, their ratios without the mean divided by it, and the mean."""
    columns, (places, ratios) = _COLUMNS.get(calibration.family, _TRAFFIC), _points(calibration, count)
    mean, others = sum([ratios[at] for at in near]) / len(near), [places[at] for at in near]
    lower, rest = list[list[float]](), list[float]()
    for at in near:
        lower.append(_row(places[at], others, lower, columns))
        rest.append((ratios[at] - mean - sum(map(mul, lower[-1], rest))) / lower[-1][-1])
    return others, lower, rest, mean


def _row(one: Sequence[float], others: Any, lower: list[list[float]], columns: Columns) -> list[float]:
    """The next row of the factor: for the likeness (Matern 3/2 of the distance) of a place and those before it."""
    row: list[float] = []
    for before, apart in zip(lower, map(dist, repeat(one), others), strict=False):
        apart *= _ROOT
        row.append(((1 + apart) * exp(-apart) - sum(map(mul, row, before))) / before[-1])
    return [*row, sqrt(1 + (columns.noise / columns.signal) ** 2 - sum(map(mul, row, row)))]


@lru_cache(maxsize=64)
def _points(calibration: Calibration, count: int) -> tuple[Sequence[tuple[float, ...]], Sequence[float]]:
    """The points' scaled sizes (the first `count` of them), in order, and the logarithm of the ratio at each."""
    columns, points = _COLUMNS.get(calibration.family, _TRAFFIC), calibration.points
    ratios = [log(min(max(point[-1], 1 / _MOST), _MOST)) for point in points]
    pairs = sorted(zip(_scaled([point[:count] for point in points], columns), ratios, strict=True))
    return [place for place, _ in pairs], [ratio for _, ratio in pairs]


def _scaled(points: Iterable[Sequence[float]], columns: Columns) -> list[tuple[float, ...]]:
    """Logarithms of the sizes of points, in units of the lengths over which ratios are alike."""
    given = [*zip(*points, strict=True)]
    pairs = zip(given, columns.lengths, strict=False)
    found = [[log2(max(size, 1)) / length for size in sizes] for sizes, length in pairs]
    for place in columns.aligned:  # the largest power of two that divides each
        whole = [min(int(size) & -int(size), _MOST_ALIGNED) or 1 for size in given[place]]
        found.append([log2(power) / _ALIKE_ALIGNMENTS for power in whole])
    return [*zip(*found, strict=True)]


def columns_of(kernel: Kernel) -> tuple[float, ...]:
    """The sizes that tell kernels of a family apart."""
    moved = kernel.read_bytes + kernel.written_bytes
    match kernel.sizes:
        case Product(m, n, k, batch):
            return max(m, _ROWS) if variant_of(kernel) == "skinny" else m, n, k, batch
        case Convolution() as sizes:
            filters, channels = sizes.filters // sizes.groups, sizes.channels // sizes.groups
            return sizes.batch, prod(sizes.result), filters, channels, prod(sizes.filter), sizes.groups
        case Attention() as sizes:
            group = sizes.heads / max(sizes.kv_heads, 1)
            visible = max(1.0, sizes.keys * sizes.computed)
            return sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.width, group, visible
        case Rows(rows, columns):
            return moved, rows, columns
        case _:
            return (moved,)


def names_of(family: str, count: int) -> tuple[str, ...]:
    """The columns' names of a family's points: sizes, measured time, and its ratio to the modelled time."""
    return (*_COLUMNS.get(family, _TRAFFIC).names[: count - 2], "microseconds", "ratio")


def variant_of(kernel: Kernel) -> str:
    """What tells kernels of a family apart beside their sizes."""
    match kernel.sizes:
        case Product() as sizes:
            own = sizes.algorithm if sizes.algorithm in ("long", "long_in_parts", "tn") else ""
            kind = own or product_kind(sizes, bytes_of(kernel.dtype))
            return f"{sizes.layout}.alone" if sizes.is_alone else kind
        case Convolution() as sizes:
            return f"{convolution_kind(sizes, bytes_of(kernel.dtype))}.{sizes.phase}"
        case Attention() as sizes:
            phase = "decoding" if sizes.queries == 1 else sizes.phase
            return ".".join(filter(None, (sizes.kernel, sizes.masking, phase)))
        case _:
            return kernel.variant
