"""Normalisation: by the batch, by groups, by rows, by neighbouring channels; and dropout."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, free
from graphflops.dims import Dim, broadcast, differ, mod, prod
from graphflops.rules.dropout import masked
from graphflops.rules.norm import MEAN_SQUARE, normalised, scaled, updated
from graphflops.rules.onnx.activation import only_value
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.onnx.fused import Outputs, chosen, is_wanted
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axes as axes_of
from graphflops.rules.shapes import axis as axis_of
from graphflops.rules.shapes import reduced, tensors_of
from graphflops.tensor import BOOL, DType, TensorType


@takes("x scale bias mean var")
def batch_normalization(
    of: Operands,
    *,
    training_mode: int = 0,
    is_test: int = 0,
    outputs: Outputs = (True,),
    by_results: bool = False,
) -> Estimate:
    """In inference one scale and one shift per element; in training seven operations, and new running statistics."""
    x, scale, bias, *statistics = of
    trains = not is_test and any(outputs[1:]) if by_results else training_mode
    times = 1 if trains and not by_results else 2
    out = chosen(outputs, *(part.like() for part in (x, *statistics * times)))
    if not trains:
        return replace(scaled(*of), transcendentals=of.var.numel, out=out)
    running = [given if is_wanted(outputs, place) else None for place, given in enumerate(statistics, 1)]
    return replace(updated(normalised(x, of.var.numel, scale, bias), *running), out=out, writes=None)


rule("onnx.BatchNormalization").derived(batch_normalization)
rule(*(f"onnx.BatchNormalization.{version}" for version in (1, 6, 7, 9))).derived(
    batch_normalization,
    says="As the newest version; it trains if statistics are wanted: the running ones, and the batch's "
    "for the backward pass.",
    by_results=True,
)


@rule("onnx.InstanceNormalization")
def instance_normalization(x: TensorType, scale: TensorType, bias: TensorType) -> Estimate:
    """Seven operations per element, a reciprocal root per channel of each sample."""
    return normalised(x, prod(x.shape[:2]), scale, bias)


@rule("onnx.GroupNormalization")
def group_normalization(x: TensorType, scale: TensorType, bias: TensorType, *, num_groups: int) -> Estimate:
    """Seven operations per element, a reciprocal root per group of each sample; scales of groups or of channels."""
    require(x.rank >= 2 and num_groups > 0, f"{num_groups} groups of the channels of {x}")
    channels = x.shape[1]
    require(not differ(mod(channels, num_groups), 0), f"{channels} channels do not make {num_groups} groups")
    return normalised(x, x.shape[0] * num_groups, scale, bias)


def require_parts(shape: tuple[Dim, ...], *parts: TensorType | None) -> None:
    """Raises ShapeError for a scale or a bias that does not broadcast to what it scales."""
    for part in parts:
        wide = shape if part is None else broadcast(part.shape, shape)
        fits = len(wide) == len(shape) and not any(map(differ, wide, shape))
        require(fits, f"a scale or bias {part} for [{', '.join(map(str, shape))}]")


def from_axis(x: TensorType, axis: int) -> tuple[int, tuple[Dim, ...]]:
    """The first normalised axis, and the shape of the statistics."""
    place = axis_of(axis, x.rank)
    return place, (*x.shape[:place], *(1,) * (x.rank - place))


@rule("onnx.LayerNormalization")
@takes("x scale bias?")
def layer_normalization(
    of: Operands, *, axis: int = -1, stash_type: int = 1, outputs: Outputs = (True,)
) -> Estimate:
    """Seven operations per element with a bias, a reciprocal root per row."""
    x, scale, bias = of
    place, kept = from_axis(x, axis)
    require_parts(x.shape, scale, bias)
    statistic = x.like(kept, onnx_dtype(stash_type))
    estimate = normalised(x, prod(x.shape[:place]), scale, bias)
    return replace(estimate, out=chosen(outputs, x.like(), statistic, statistic))


@rule("onnx.RMSNormalization")
def rms_normalization(x: TensorType, scale: TensorType, *, axis: int = -1) -> Estimate:
    """Four operations per element, a reciprocal root per row."""
    place, _ = from_axis(x, axis)
    require_parts(x.shape, scale)
    estimate = normalised(x, prod(x.shape[:place]), scale, statistics=MEAN_SQUARE)
    return replace(estimate, out=(x.like(dtype=scale.dtype),))


@rule("onnx.LpNormalization")
def lp_normalization(x: TensorType, *, axis: int = -1, p: int = 2) -> Estimate:
    """A magnitude or a square, a sum and a division per element; a root per row of squares."""
    rows = prod(reduced(x.shape, axis))
    return Estimate((x.like(),), vector_flops=3 * x.numel, transcendentals=rows if p == 2 else 0, reads=(x,))


@rule("onnx.MeanVarianceNormalization")
def mean_variance_normalization(x: TensorType, *, axes: tuple[int, ...] = (0, 2, 3)) -> Estimate:
    """Five operations per element, a root per group."""
    return normalised(x, prod(reduced(x.shape, axes_of(axes, x.rank))))


@rule("onnx.LRN")
def local_response_normalization(x: TensorType, *, size: int) -> Estimate:
    """Squares of neighbouring channels summed; scaled, shifted, raised to a power, and divided by, per element."""
    require(size > 0 and size % 2 == 1, f"{size} neighbouring channels have no middle")
    return Estimate((x.like(),), vector_flops=(size + 4) * x.numel, transcendentals=x.numel, reads=(x,))


@rule("onnx.Dropout")
@takes("x ratio? training_mode?")
def dropout(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """In training three operations per element; an unknown mode counts as training."""
    mode = of.training_mode
    training = mode is not None and only_value(mode) != 0 and only_value(of.ratio) != 0
    return _dropped(of.x, training, outputs, BOOL)


@rule("onnx.Dropout.1", "onnx.Dropout.6")
def dropout_unless_tested(
    x: TensorType, *, is_test: int = 0, ratio: float = 0.5, outputs: Outputs = (True,)
) -> Estimate:
    """Three operations per element, or none with `is_test`, which writes no mask."""
    return _dropped(x, not is_test and ratio != 0, (True,) if is_test else outputs, x.dtype)


def _dropped(
    x: TensorType, training: bool = False, outputs: Outputs = (True,), mask: DType | None = None
) -> Estimate:
    """Free: this version is inference only; a mask is of the operand's own type."""
    if not training and not is_wanted(outputs, 1):
        return free(replace(x.view(x.shape), value=x.value))
    estimate = masked(x, x.dtype if mask is None else mask, training)
    return replace(estimate, out=chosen(outputs, *tensors_of(estimate.out)))


rule("onnx.Dropout.7").derived(_dropped, order="x", training=False)
rule("onnx.Dropout.10").derived(
    _dropped, says="Free: this version is inference only.", order="x", training=False, mask=BOOL
)
