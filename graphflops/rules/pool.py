"""Pooling: a reduction over a window per output; window elements that lie in the padding count as well."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, call, compare, floor_div, mod, prod, same
from graphflops.rules.reduce import indexed, operand_gradient
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, have_shape, only_result, shown
from graphflops.tensor import INT8, INT64, TensorType

KIND = "pooling"

PerAxis = Dim | Shape  # one value for all spatial axes, or one for each


def spread(value: PerAxis, spatial: int, empty: PerAxis = 0) -> Shape:
    """One value per pooled axis; an empty list (a stride that was not given) stands for `empty`."""
    if not isinstance(value, tuple):
        return (value,) * spatial
    if not value:
        return spread(empty, spatial)
    return value * spatial if len(value) == 1 else value


def outputs(
    size: Dim, kernel: Dim, stride: Dim, padding: Dim | tuple[Dim, Dim], dilation: Dim, ceil_mode: bool
) -> Dim:
    """Output size of a window; with `ceil_mode` a last position counts only if it starts before the end padding.

    padding: one width for both ends, or one for each.
    """
    before, after = padding if isinstance(padding, tuple) else (padding, padding)
    window, padded = dilation * (kernel - 1) + 1, before + size + after
    spare = padded - window + (stride - 1 if ceil_mode else 0)
    require(not at_least(-1, spare), f"a window of {window} is larger than its input of {padded}")
    count = floor_div(spare, stride) + 1
    if not ceil_mode or at_least(window, after + stride):  # else the last window may start after the input
        return count
    return count - compare(">=", (count - 1) * stride, before + size)


def windowed(x: TensorType, kernel: Shape, counts: Shape, each: int = 1, final: int = 0) -> Estimate:
    """`each` operations per window element and `final` per output, for `counts` outputs along the last axes."""
    out = x.like((*x.shape[: -len(counts)], *counts))
    return Estimate((out,), vector_flops=(each * prod(kernel) + final) * out.numel, reads=(x,))


def pooling(
    x: TensorType,
    kernel_size: PerAxis,
    stride: PerAxis = (),
    padding: PerAxis = 0,
    *,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    spatial: int,
    final: int = 0,
) -> Estimate:
    """One comparison or addition per window element; of an average also a division per output."""
    require(x.rank in (spatial + 1, spatial + 2), f"{spatial} pooled axes do not fit a tensor of {x.rank}")
    kernel = spread(kernel_size, spatial)
    sizes, pads = x.shape[-spatial:], spread(padding, spatial)
    for name, value in (("window", kernel), ("stride", stride), ("dilation", dilation)):
        positive = not any(at_least(0, each) for each in spread(value, spatial, 1))
        require(positive, f"a {name} of {value} has no positive size")
    steps, dilations = spread(stride, spatial, kernel), spread(dilation, spatial, 1)
    wide = any(at_least(-1, n) or at_least(2 * n, size + 1) for n, size in zip(pads, kernel, strict=True))
    require(not wide, f"a padding of {shown(pads)} does not fit a window of {shown(kernel)}")
    settings = zip(sizes, kernel, steps, pads, dilations, strict=True)
    counts = tuple(outputs(*setting, ceil_mode) for setting in settings)
    # With ceil_mode a window may be larger than its input; it then holds only the elements of the input.
    whole = ((window, size + 2 * pad) for window, size, pad in zip(kernel, sizes, pads, strict=True))
    held = tuple(size if at_least(window, size) else window for window, size in whole)
    return windowed(x, held, counts, final=final)


def pooling_backward(
    grad_output: TensorType, x: TensorType, kernel_size: PerAxis, *, spatial: int, again: bool
) -> Estimate:
    """An addition per output and an operation per element of its window. again: the positions of maxima are found again."""
    flops = (prod(spread(kernel_size, spatial)) + 1) * grad_output.numel
    return Estimate((x.like(),), vector_flops=flops, reads=(grad_output, x if again else None))


for _spatial in (1, 2, 3):
    _max: dict[str, Any] = {"says": "One comparison per window element.", "spatial": _spatial}
    rule(f"aten.max_pool{_spatial}d", f"aten.quantized_max_pool{_spatial}d").derived(pooling, **_max)
    rule(f"aten.max_pool{_spatial}d_with_indices").derived(pooling, indexed, **_max)
    rule(f"aten.avg_pool{_spatial}d").derived(
        pooling, says="One addition per window element and a division per output.", spatial=_spatial, final=1
    )
    if _spatial > 1:
        rule(f"aten.mkldnn_max_pool{_spatial}d").derived(pooling, **_max)
        rule(f"aten.avg_pool{_spatial}d_backward").derived(pooling_backward, spatial=_spatial, again=False)
rule("aten.max_pool2d_backward").derived(pooling_backward, spatial=2, again=True)


# torch.compile's decomposition of a maximum with its index: the place within the window, as a byte.
@rule("prims._low_memory_max_pool_with_offsets", "prims._low_memory_max_pool2d_with_offsets")
def max_pool_with_offsets(
    x: TensorType, kernel_size: Shape, stride: Shape, padding: Shape, dilation: Shape, *, ceil_mode: bool
) -> Estimate:
    """One comparison per window element."""
    found = pooling(
        x, kernel_size, stride, padding, dilation=dilation, ceil_mode=ceil_mode, spatial=len(kernel_size)
    )
    values = only_result(found)
    return replace(found, out=(values, values.like(dtype=INT8)))


@rule("prims._low_memory_max_pool_offsets_to_indices", "prims._low_memory_max_pool2d_offsets_to_indices")
def max_pool_offsets_to_indices(x: TensorType, *, stride: Shape) -> Estimate:
    """Integers per element: 3 to split the place at an axis, 2 to place it, 2 to join it with the next axis."""
    axes = len(stride)
    return Estimate((x.like(dtype=INT64),), vector_flops=(7 * axes - 5) * x.numel, reads=(x,))


@backward(
    "aten.max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    "aten.adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d",
)
def max_pool_gradient(call: ForwardCall) -> Estimate:
    """Adds each output's gradient at the position of its maximum; a training step keeps the indices."""
    return replace(operand_gradient(call, saved=(call.out.like(dtype=INT64),)), vector_flops=call.out.numel)


def adaptive_windows(sizes: Shape, counts: Shape) -> Dim:
    """Elements of all windows of one channel together.

    Along an axis of n elements and m windows, neighbours share one element at each of the m - gcd(n, m)
    borders that fall inside an element.
    """
    return prod(size + count - _common(size, count) for size, count in zip(sizes, counts, strict=True))


def _common(size: Dim, count: Dim) -> Dim:
    """The greatest common divisor."""
    found = call("gcd", size, count)
    return found if isinstance(found, int) or not same(mod(size, count), 0) else count


def adaptive(x: TensorType, output_size: PerAxis, *, spatial: int, final: int) -> Estimate:
    """One operation per window element, and a division per average."""
    counts = spread(output_size, spatial)
    require(x.rank in (spatial + 1, spatial + 2), f"{spatial} pooled axes do not fit a tensor of {x.rank}")
    lead, sizes = x.shape[:-spatial], x.shape[-spatial:]
    out = x.like((*lead, *counts))
    work = prod(lead) * adaptive_windows(sizes, counts) + final * out.numel
    return Estimate((out,), vector_flops=work, reads=(x,))


for _spatial in (1, 2, 3):
    rule(f"aten.adaptive_avg_pool{_spatial}d").derived(adaptive, spatial=_spatial, final=1)
    rule(f"aten.adaptive_max_pool{_spatial}d").derived(adaptive, indexed, spatial=_spatial, final=0)
rule("aten._adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d").derived(adaptive, spatial=2, final=1)
rule("aten._adaptive_avg_pool3d").derived(adaptive, spatial=3, final=1)


# One operation per window element, and a division per average; the operand's elements are not read.
backward(
    "aten.adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"
)(lambda call: replace(operand_gradient(call), vector_flops=call.estimate.vector_flops))


@rule(
    "aten._adaptive_avg_pool2d_backward mkldnn_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
    "aten.adaptive_avg_pool3d_backward",
)
def adaptive_avg_pool_backward(grad_output: TensorType, x: TensorType) -> Estimate:
    """Each output's gradient divided once and added to every element of its window."""
    work = adaptive_windows(x.shape, grad_output.shape) + grad_output.numel
    return Estimate((x.like(),), vector_flops=work, reads=(grad_output,))


@rule("aten.fractional_max_pool2d", "aten.fractional_max_pool3d")
def fractional_max_pool(
    x: TensorType, kernel_size: Shape, output_size: Shape, random_samples: TensorType
) -> Estimate:
    """One comparison per window element; the random numbers place the windows."""
    spatial = len(output_size)
    out = x.like((*x.shape[:-spatial], *output_size))
    work = prod(spread(kernel_size, spatial)) * out.numel
    return indexed(Estimate((out,), vector_flops=work, reads=(x, random_samples)))


@rule("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(x: TensorType, indices: TensorType, output_size: Shape) -> Estimate:
    """Writes values to their former positions and zeros elsewhere; no arithmetic."""
    fits = have_shape(x.shape, indices) and x.rank - len(output_size) in (0, 1, 2)
    require(fits, f"{shown(x.shape)} at {shown(indices.shape)} is not unpooled to {shown(output_size)}")
    return Estimate((x.like((*x.shape[: -len(output_size)], *output_size)),), reads=(x, indices))


# Gathers the gradients from the positions of the values.
backward("aten.max_unpool2d", "aten.max_unpool3d")(
    lambda call: Estimate((call["x"].like(),), reads=(call["x"], call["indices"]))
)
