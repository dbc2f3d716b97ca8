"""The matrix products that a call of a report asks for: sizes that a kernel's tiles are laid over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.dims import Dim
    from graphflops.report import Named, Row

    Value = Callable[[Dim], Union[int, None]]

# The place of the first factor, whose last axis is the depth.
_PRODUCTS = {"mm": 0, "bmm": 0, "matmul": 0, "linear": 0, "mv": 0, "_int_mm": 0, "_scaled_mm": 0}
_PRODUCTS |= {"addmm": 1, "baddbmm": 1, "addmv": 1}
_ALIGNED = 128  # bits: a convolution of channels that do not fill so many is given empty ones


@dataclass(frozen=True)
class Axis:
    """`times` stretches of `size` places: filter taps of channels, images of pixels."""

    size: int
    times: int = 1

    @property
    def length(self) -> int:
        """All places."""
        return self.times * self.size

    def padded(self, tile: int) -> tuple[int, ...]:
        """Lengths in whole tiles: laid over all of it, or over each stretch anew."""
        return tuple(dict.fromkeys((up(self.length, tile), self.times * up(self.size, tile))))


@dataclass(frozen=True)
class Product:
    """`batch` products of a (rows, depth) and a (depth, columns) matrix. note: what a kernel must do for it."""

    rows: Axis
    columns: Axis
    depth: Axis
    batch: int = 1
    note: str = ""


@dataclass(frozen=True)
class Job:
    """One product to be done. ways: how it can be laid out. role: of a convolution's, fprop, dgrad or wgrad."""

    ways: tuple[Product, ...]
    role: str = ""


@dataclass(frozen=True)
class Products:
    """What a call multiplies.

    flops: those of one job, a multiply-add is two. jobs: each is done once.
    inside: FLOPs of one job of a convolution without the taps that fall on padding.
    """

    flops: int
    jobs: tuple[Job, ...]
    inside: int | None = None


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention over `heads` heads of the whole batch; causal from the top left."""

    heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    causal: bool = False
    backward: bool = False

    @property
    def flops(self) -> int:
        """Of two products; backward of five, the scores once more."""
        times = (3, 2) if self.backward else (1, 1)
        widths = times[0] * self.width + times[1] * self.value_width
        return 2 * self.heads * self.queries * self.keys * widths


Problem = Union[Products, Attention]


def problem_of(row: Row, value: Value, backward: bool = False) -> Problem | None:
    """What a call multiplies, from its types; None where it is no matrix product, convolution or attention.

    value: a size's number, `Report.value`. backward: its gradients, where the row prices them.
    """
    name = row.op.partition(".")[2].partition(".")[0]
    inputs, outputs = _shapes(row.inputs, value), _shapes(row.outputs, value)
    if inputs is None or not outputs:
        return None
    if "conv" in name:
        whole = max(1, _ALIGNED // row.inputs[0].type.dtype.bits)
        return _convolution(name, inputs, outputs, whole, backward)
    if "attention" in name:
        return _attention(name, inputs, value(row.cost.masked_flops), backward)
    place = _PRODUCTS.get(name)
    if place is None or len(inputs) <= place or not outputs[0] or not inputs[place]:
        return None
    return _product(outputs[0], inputs[place][-1], backward)


def up(size: int, tile: int) -> int:
    """The next whole multiple of a tile."""
    return -(-size // tile) * tile


def _shapes(named: Sequence[Named], value: Value) -> list[tuple[int, ...]] | None:
    shapes: list[tuple[int, ...]] = []
    for entry in named:
        sizes = [size for dim in entry.type.shape if (size := value(dim)) is not None]
        if len(sizes) != len(entry.type.shape):
            return None
        shapes.append(tuple(sizes))
    return shapes


def _product(out: tuple[int, ...], depth: int, backward: bool) -> Products:
    *batch, rows, columns = out if len(out) > 1 else (1, *out)
    count, flops = prod(batch), 2 * prod(out) * depth

    def job(m: int, n: int, k: int, folded: tuple[int, int, int]) -> Job:
        ways = [Product(Axis(m), Axis(n), Axis(k), count)]
        if count > 1:
            ways.append(Product(Axis(folded[0]), Axis(folded[1]), Axis(folded[2])))
        return Job(tuple(ways))

    if not backward:
        return Products(flops, (job(rows, columns, depth, (count * rows, columns, depth)),))
    first = job(rows, depth, columns, (count * rows, depth, columns))
    return Products(flops, (first, job(depth, columns, rows, (depth, columns, count * rows))))


def _convolution(
    name: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], whole: int, backward: bool
) -> Products | None:
    """As implicit products: pixels by channels over taps of channels, its transpose, and channels by taps over pixels."""
    gradients = "backward" in name
    if len(inputs) < 2 + gradients:
        return None
    y, x, weight = inputs[:3] if gradients else (outputs[0], *inputs[:2])
    if not len(x) == len(y) == len(weight) > 2 or 0 in (*x, *y, *weight):
        return None
    transposed = "transpose" in name or x[1] % weight[1] != 0 or weight[0] != y[1]
    if transposed:
        x, y = y, x
    if x[1] % weight[1] or weight[0] != y[1]:
        return None
    images, taps, groups = x[0], weight[2:], x[1] // weight[1]
    sides = list(zip(x[2:], y[2:], taps, strict=True))
    strides = [max(1, round(wide / narrow)) for wide, narrow, _ in sides]
    counts = [weight[1], up(weight[1], whole)] if groups == 1 else [weight[1]]
    to_output, to_input, to_weight = _jobs(images, weight[0] // groups, counts, groups, sides, strides)
    one_way, other = (to_input, to_output) if transposed else (to_output, to_input)
    jobs = (other, to_weight) if backward or gradients else (one_way,)
    channels = 2 * images * y[1] * weight[1]
    inside = [_inside(*side, stride) for side, stride in zip(sides, strides, strict=True)]
    return Products(channels * prod(y[2:]) * prod(taps), jobs, channels * prod(inside))


def _jobs(
    images: int,
    outputs: int,
    inputs: Sequence[int],
    groups: int,
    sides: Sequence[tuple[int, int, int]],
    strides: Sequence[int],
) -> tuple[Job, Job, Job]:
    """The output, the input's gradient and the filter's.

    outputs, inputs: channels of a group; of the inputs, plain and padded.
    sides: sizes of image, result and filter along each axis.
    """
    wide, narrow, count = (prod(sizes) for sizes in zip(*sides, strict=True))
    pixels, phases = Axis(narrow, images), prod(strides)
    output, gradient, weight = [], [], []
    for c in dict.fromkeys(inputs):
        note = f"{inputs[0]} channels padded to {c}" if c > inputs[0] else ""
        output.append(Product(pixels, Axis(outputs), Axis(c, count), groups, note))
        weight.append(Product(Axis(outputs), Axis(c, count), pixels, groups, note))
        if phases == 1:
            gradient.append(Product(Axis(wide, images), Axis(c), Axis(outputs, count), groups, note))
            continue
        if wide % phases == 0 == count % phases:  # each place within a stride has taps of its own
            own = Axis(wide // phases, images * phases)
            gradient.append(Product(own, Axis(c), Axis(outputs, count // phases), groups, note))
        rows, parts = (
            prod(-(-side[place] // stride) for side, stride in zip(sides, strides, strict=True))
            for place in (0, 2)
        )
        together = "; ".join(filter(None, (note, "taps padded to whole strides")))
        gradient.append(Product(Axis(rows, images), Axis(c, phases), Axis(outputs, parts), groups, together))
    return Job(tuple(output), "fprop"), Job(tuple(gradient), "dgrad"), Job(tuple(weight), "wgrad")


def _inside(size: int, results: int, taps: int, stride: int) -> int:
    """Taps that fall on the image along one axis, over all results; padding is what the sizes imply, alike at both ends."""
    padding = max(0, -(-(stride * (results - 1) + taps - size) // 2))
    total = 0
    for tap in range(taps):
        first, last = -(-(padding - tap) // stride), (size - 1 + padding - tap) // stride
        total += max(0, min(last, results - 1) - max(first, 0) + 1)
    return total


def _attention(
    name: str, inputs: list[tuple[int, ...]], masked: int | None, backward: bool
) -> Attention | None:
    gradients = name.endswith("backward")
    first = int(gradients and "flex" not in name)  # behind the result's gradient
    if ("scaled_dot_product" not in name and "flex" not in name) or len(inputs) < 3 + first:
        return None
    query, key, value = inputs[first : 3 + first]
    if min(map(len, (query, key, value))) < 2:
        return None
    heads, queries, keys = prod(query[:-2]), query[-2], key[-2]
    plain = Attention(heads, queries, keys, query[-1], value[-1], backward=gradients)
    hidden = queries * keys - sum(min(row + 1, keys) for row in range(queries))
    causal = hidden > 0 and (masked or 0) * queries * keys == plain.flops * hidden
    return replace(plain, causal=causal, backward=backward or gradients)
