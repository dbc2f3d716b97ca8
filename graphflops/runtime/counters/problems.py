"""The matrix products that a call of a report computes: the sizes that a kernel divides into tiles."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Union

from graphflops.base.record import Record, replace
from graphflops.dims import Dim
from graphflops.kernels.convolution import up
from graphflops.ops import Op, operator
from graphflops.report import Named, Row

Value = Callable[[Dim], Union[int, None]]

_ALIGNED = 128  # bits: channels of a convolution are padded to a multiple of this size


class TiledAxis(Record, frozen=True):
    """An axis of a product: `times` segments of `size` elements each, such as the channels of every filter tap."""

    size: int
    times: int = 1

    @property
    def length(self) -> int:
        """Elements in all segments."""
        return self.times * self.size

    def padded(self, tile: int) -> tuple[int, ...]:
        """Lengths in whole tiles, if the axis is padded as a whole, or each segment by itself."""
        return tuple(dict.fromkeys((up(self.length, tile), self.times * up(self.size, tile))))


class MatrixProduct(Record, frozen=True):
    """`batch` products of a (rows, depth) and a (depth, columns) matrix. note: padding that this layout needs."""

    rows: TiledAxis
    columns: TiledAxis
    depth: TiledAxis
    batch: int = 1
    note: str = ""


class KernelJob(Record, frozen=True):
    """One product that a kernel computes. ways: its possible layouts. role: in a convolution, fprop, dgrad or wgrad."""

    ways: tuple[MatrixProduct, ...]
    role: str = ""


class Products(Record, frozen=True):
    """The products of one call."""

    flops: int  # of one job, a multiply-add counted as two
    jobs: tuple[KernelJob, ...]  # each runs once
    inside: int | None = None  # FLOPs of one job of a convolution, without taps on padding


class AttentionProblem(Record, frozen=True):
    """Scaled dot-product attention over `heads` heads of the whole batch. A causal mask starts at the top left."""

    heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    causal: bool = False
    backward: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of two products; of five for the backward, which computes the scores again."""
        times = (3, 2) if self.backward else (1, 1)
        widths = times[0] * self.width + times[1] * self.value_width
        return 2 * self.heads * self.queries * self.keys * widths


Problem = Union[Products, AttentionProblem]


def problem_of(row: Row, value: Value, backward: bool = False) -> Problem | None:
    """The products of a call, or of its gradients; None for other calls. value: `Report.value`, the number of a size."""
    op = operator(row.op)
    inputs, outputs = _shapes(row.inputs, value), _shapes(row.outputs, value)
    if inputs is None or not outputs or not op.parameters:
        return None
    if op.kind == "convolution":
        whole = max(1, _ALIGNED // row.inputs[0].type.dtype.bits)
        return _convolution(op, inputs, outputs, whole, backward)
    if op.kind == "attention":
        first = op.parameters.index("query")  # the gradient of the result may come first
        query, key, of_values = (*inputs[first : 3 + first], (), (), ())[:3]
        if min(map(len, (query, key, of_values))) < 2:
            return None
        heads, queries, keys = prod(query[:-2]), query[-2], key[-2]
        plain = AttentionProblem(heads, queries, keys, query[-1], of_values[-1], backward=op.is_backward)
        hidden = queries * keys - sum(min(line + 1, keys) for line in range(queries))
        masked = value(row.cost.masked_flops) or 0
        causal = hidden > 0 and masked * queries * keys == plain.flops * hidden
        return replace(plain, causal=causal, backward=backward or op.is_backward)
    if op.kind != "product" or "a" not in op.parameters:
        return None
    first = op.parameters.index("a")
    if len(inputs) <= first or not outputs[0] or not inputs[first]:
        return None
    return _product(outputs[0], inputs[first][-1], backward)


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

    def job(each: tuple[int, int, int], folded: tuple[int, int, int]) -> KernelJob:
        ways = {each: count, folded: 1}  # the same without a batch
        axes = [(TiledAxis(m), TiledAxis(n), TiledAxis(k), number) for (m, n, k), number in ways.items()]
        return KernelJob(tuple([MatrixProduct(*one) for one in axes]))

    if not backward:
        return Products(flops, (job((rows, columns, depth), (count * rows, columns, depth)),))
    first = job((rows, depth, columns), (count * rows, depth, columns))
    return Products(flops, (first, job((depth, columns, rows), (depth, columns, count * rows))))


def _convolution(
    op: Op, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], whole: int, backward: bool
) -> Products | None:
    """As implicit products: pixels by channels over taps of channels, its transpose, and channels by taps over pixels."""
    gradients = op.is_backward
    if len(inputs) < 2 + gradients:
        return None
    y, x, weight = inputs[:3] if gradients else (outputs[0], *inputs[:2])
    if not len(x) == len(y) == len(weight) > 2 or 0 in (*x, *y, *weight):
        return None
    transposed = op.name == "conv_transpose" or x[1] % weight[1] != 0 or weight[0] != y[1]
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
    images: int, outputs: int, inputs: Sequence[int], groups: int, sides: Sequence[tuple[int, int, int]],
    strides: Sequence[int],
) -> tuple[KernelJob, ...]:  # fmt: skip
    """The jobs of the output, of the input's gradient and of the filter's gradient.

    outputs, inputs: channels of a group; of the inputs, plain and padded.
    sides: sizes of image, result and filter along each axis.
    """
    wide, narrow, count = (prod(sizes) for sizes in zip(*sides, strict=True))
    pixels, phases = TiledAxis(narrow, images), prod(strides)
    output, gradient, weight = [], [], []
    for c in dict.fromkeys(inputs):
        note = f"{inputs[0]} channels padded to {c}" if c > inputs[0] else ""
        output.append(MatrixProduct(pixels, TiledAxis(outputs), TiledAxis(c, count), groups, note))
        weight.append(MatrixProduct(TiledAxis(outputs), TiledAxis(c, count), pixels, groups, note))
        if phases == 1:
            columns, depth = TiledAxis(c), TiledAxis(outputs, count)
            gradient.append(MatrixProduct(TiledAxis(wide, images), columns, depth, groups, note))
            continue
        if wide % phases == 0 == count % phases:  # each offset within a stride has its own taps
            own, depth = TiledAxis(wide // phases, images * phases), TiledAxis(outputs, count // phases)
            gradient.append(MatrixProduct(own, TiledAxis(c), depth, groups, note))
        steps = list(zip(sides, strides, strict=True))
        rows, parts = (prod(-(-side[place] // stride) for side, stride in steps) for place in (0, 2))
        together = "; ".join(filter(None, (note, "taps padded to whole strides")))
        columns, depth = TiledAxis(c, phases), TiledAxis(outputs, parts)
        gradient.append(MatrixProduct(TiledAxis(rows, images), columns, depth, groups, together))
    roles = {"fprop": output, "dgrad": gradient, "wgrad": weight}
    return tuple([KernelJob(tuple(ways), role) for role, ways in roles.items()])


def _inside(size: int, results: int, taps: int, stride: int) -> int:
    """The number of taps on the image along one axis, over all results. Padding follows from the sizes, half at each end."""
    padding = max(0, -(-(stride * (results - 1) + taps - size) // 2))
    total = 0
    for tap in range(taps):
        first, last = -(-(padding - tap) // stride), (size - 1 + padding - tap) // stride
        total += max(0, min(last, results - 1) - max(first, 0) + 1)
    return total
