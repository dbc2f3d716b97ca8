"""Other onnxruntime operators: older spellings of ONNX operators, look-ups, distances, transforms, elementwise ones."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent, free
from graphflops.dims import Dim, ceil_div, floor_div, prod
from graphflops.rules import fourier, lapack, linalg
from graphflops.rules.distance import euclidean_dist
from graphflops.rules.elementwise import pointwise
from graphflops.rules.embedding import embedding
from graphflops.rules.onnx import entries
from graphflops.rules.onnx.activation import own_type, rows_of, swish
from graphflops.rules.onnx.creation import range_ as onnx_range
from graphflops.rules.onnx.indexing import slice_
from graphflops.rules.onnx.norm import dropout
from graphflops.rules.operands import Operands, takes
from graphflops.rules.parts import copied_out
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.reduce import SOFTMAX
from graphflops.rules.registry import require, rule
from graphflops.rules.resample import suppression
from graphflops.rules.views import unfold
from graphflops.rules.work import WORK
from graphflops.tensor import BOOL, FLOAT32, INT32, INT64, STRING, UINT8, UINT32, TensorType

rule("onnx.DynamicSlice")(slice_)

ONE = TensorType((), INT64, value=1)
Sizes = tuple[Dim, ...]


@rule("com.microsoft.Range", kind="creation")
def range_(start: TensorType, limit: TensorType, delta: TensorType | None = None) -> Estimate:
    """As ONNX's Range, with a default step of one; bounds may be tensors of one element."""
    return onnx_range(start, limit, ONE if delta is None else delta)


@rule("com.microsoft.SampleOp", "onnx.MemcpyFromHost", "onnx.MemcpyToHost")
def copied(x: TensorType) -> Estimate:
    """A copy, with the known contents of small tensors."""
    return Estimate((replace(x.like(), value=x.value),), reads=(x,))


rule("com.microsoft.TorchEmbedding", kind="gather").derived(embedding, order="weight indices _ _")


rule("com.microsoft.UnfoldTensor", kind="movement").derived(
    unfold, copied_out, order="x", usually={"dim": -1, "step": 1}
)


rule("com.microsoft.Inverse", kind="linear_algebra").derived(
    linalg.factored, says="2 n^3 for every matrix.", made="nn", work=lambda _, n: lapack.inverse(n)
)


@rule("com.microsoft.CDist", kind="distance")
def cdist(a: TensorType, b: TensorType, *, metric: str = "sqeuclidean") -> Estimate:
    """|a|^2 - 2ab + |b|^2, at least 0, as the kernel computes it; a root follows unless the distance is squared."""
    found = euclidean_dist(a, b)
    return replace(found, transcendentals=0) if metric == "sqeuclidean" else found


@rule("com.microsoft.Rfft", kind="fourier")
def rfft(x: TensorType, *, signal_ndim: int = 1) -> Estimate:
    """Real-to-complex transforms along the last axes; real and imaginary parts form a new last axis."""
    half = (*x.shape[:-1], floor_div(x.shape[-1], 2) + 1)
    return _transformed(x, (*half, 2), x.shape[-1], half, signal_ndim)


def _transformed(x: TensorType, shape: Sizes, n: Dim, half: Sizes, axes: int) -> Estimate:
    """Transforms of `n` real numbers along the last axis, and complex ones along the `axes` - 1 before it."""
    require(0 < axes <= len(half), f"{axes} of {len(half)} axes cannot be transformed")
    along = range(len(half) - axes, len(half) - 1)
    transforms = fourier.transform(n, real=True) * prod(half[:-1]) + fourier.complex_work(half, along)
    return Estimate((x.like(shape),), vector_flops=transforms, reads=(x,))


@rule("com.microsoft.Irfft", kind="fourier")
def irfft(x: TensorType, *, signal_ndim: int) -> Estimate:
    """The inverse of `rfft`."""
    *leading, frequencies, _ = x.shape
    n = 2 * (frequencies - 1)
    return _transformed(x, (*leading, n), n, (*leading, frequencies), signal_ndim)


@rule("com.microsoft.CropAndResize", kind="boxes").takes("x rois batch_indices crop_size")
def crop_and_resize(of: Operands, *, mode: str = "bilinear") -> Estimate:
    """Samples every region on a grid: four weighted neighbours per sample, or the nearest."""
    height, width = entries.sizes(of.crop_size) or (entries.unknown("crop", 0), entries.unknown("crop", 1))
    out = of.x.like((of.rois.shape[0], of.x.shape[1], height, width))
    sampled = 8 * out.numel if mode == "bilinear" else 0
    positions = 2 * of.rois.shape[0] * (height + width)
    return Estimate((out,), vector_flops=sampled + positions, reads=(*of,))


@rule("com.microsoft.IsAllFinite", kind="reduction")
def is_all_finite(*tensors: TensorType) -> Estimate:
    """A test and a conjunction per element."""
    return Estimate((TensorType((), BOOL),), vector_flops=2 * sum(x.numel for x in tensors), reads=tensors)


@rule("com.microsoft.MurmurHash3", kind="elementwise")
def murmur_hash(x: TensorType, *, positive: int = 1) -> Estimate:
    """Seven operations mix each four bytes into the hash, and eight more finish it."""
    words = 1 if x.dtype == STRING else max(x.dtype.bits // 32, 1)
    out = x.like(dtype=UINT32 if positive == 1 else INT32)
    return Estimate((out,), vector_flops=(7 * words + 8) * x.numel, reads=(x,))


@rule("com.microsoft.QuantizeBFP", kind="quantisation")
def quantize_bfp(x: TensorType) -> Estimate:
    """Packs blocks that share an exponent into bytes, and returns the tensor's shape and strides."""
    rank = x.like((x.rank,), INT64)
    out = (x.like((data_dependent("bfp_bytes"),), UINT8), replace(rank, value=x.shape), rank)
    return Estimate(out, vector_flops=QUANTIZE * x.numel, reads=(x,))


@rule("com.microsoft.DequantizeBFP", kind="quantisation")
def dequantize_bfp(x: TensorType, shape: TensorType, strides: TensorType, *, dtype: int = 1) -> Estimate:
    """Unpacks every element from its block into the former shape."""
    out = x.like(entries.asked(shape, "bfp", "DequantizeBFP"), entries.onnx_dtype(dtype))
    return Estimate((out,), vector_flops=DEQUANTIZE * out.numel, reads=(x, shape, strides))


# Removing and restoring the padding of token rows.


@rule("com.microsoft.RemovePadding", kind="movement")
def remove_padding(x: TensorType, counts: TensorType) -> Estimate:
    """Packs the rows without padding; the token counts give their number."""
    known = entries.literals(counts)
    tokens: Dim = data_dependent("tokens") if known is None else sum(known)
    batch, rows, hidden = x.shape
    out = x.like((tokens, hidden))
    places = (x.like(shape, INT32) for shape in ((batch, rows), (batch + 1,), (1,)))
    return Estimate((out, *places), vector_flops=batch, reads=(out, counts))


# Experimental operators in files of ONNX's first years.


@rule("onnx.Crop", kind="movement")
def crop(x: TensorType, *, border: tuple[int, ...] = (0, 0, 0, 0), scale: tuple[int, ...] = ()) -> Estimate:
    """Crops an image by its borders, or to a given size from the upper left border."""
    *leading, height, width = x.shape
    left, top, right, bottom = border
    sides = tuple(scale) or (height - top - bottom, width - left - right)
    out = x.like((*leading, *sides))
    return Estimate((out,), reads=(out,))


@rule("onnx.GivenTensorFill", kind="creation")
def given_tensor_fill(
    shape: entries.Numbers = None, *, extra_shape: tuple[int, ...] = (), input_as_shape: int = 0
) -> Estimate:
    """Free: values of an attribute, in a shape given by an attribute or by the operand."""
    own = shape.shape if isinstance(shape, TensorType) and not input_as_shape else None
    filled = entries.asked(shape, "fill", "GivenTensorFill") if own is None else own
    return free(TensorType((*filled, *extra_shape), FLOAT32), alias=False)


# Detection operators of TensorRT's plug-ins.


@rule("onnx.EfficientNMS_TRT", "TRT.EfficientNMS_TRT", kind="boxes").takes("boxes scores anchors?")
def efficient_nms(of: Operands, *, max_output_boxes: int, **attributes: object) -> Estimate:
    """Non-maximum suppression over every pair of boxes; results are padded to the maximum number of boxes."""
    boxes, scores, _ = of
    batch, candidates, classes = scores.shape
    kept = (batch, max_output_boxes)
    counts, labels = (scores.like(shape, INT32) for shape in ((batch, 1), kept))
    out = (counts, boxes.like((*kept, 4)), scores.like(kept), labels)
    return Estimate(out, vector_flops=batch * classes * (candidates + suppression(candidates)), reads=(*of,))


# Elementwise: activations after a bias, gated sums, dropout after bias and residual.

KIND = "elementwise"


rule("com.microsoft.QuickGelu").derived(swish, usually={"alpha": 1.702})


@rule("com.microsoft.ScaledSiLU")
def scaled_silu(x: TensorType, scale: TensorType | None = None, *, alpha: float = 1.0) -> Estimate:
    """An optional scale, and a product with the sigmoid."""
    return replace(swish(x, alpha=alpha if scale is None else 2.0), reads=(x, scale))


@rule("com.microsoft.BiasSoftmax")
def bias_softmax(x: TensorType, bias: TensorType, *, axis: int = 1) -> Estimate:
    """An addition, and softmax over all axes from the one named on."""
    rows_of(x, axis)
    return Estimate((x.like(),), 0, (1 + SOFTMAX) * x.numel, x.numel, reads=(x, bias))


@rule("com.microsoft.LinearAttentionGate").takes("a bias scale b?")
def linear_attention_gate(of: Operands, *, outputs: entries.Outputs = (True,)) -> Estimate:
    """A sum, softplus and a product for the decay; a sigmoid for the update rate."""
    decay = WORK["softplus"].more(WORK["add"].flops + WORK["mul"].flops).on(of.a.numel)
    sigmoid = of.b if entries.is_wanted(outputs, 1) else None
    rate = WORK["sigmoid"].on(0 if sigmoid is None else sigmoid.numel)
    out = (of.a.like(), None if of.b is None else of.b.like())
    return entries.fused(out, decay, rate, reads=(of.a, of.bias, of.scale, sigmoid))


pointwise("ComplexMul ComplexMulConj", "complex_mul", result=own_type, dialect="com.microsoft")
pointwise("GatedAdd", "gated_add", operands="x y gate", result=own_type, dialect="com.microsoft")


# Dropout: active in training only; additions before and after it always count.


@rule("com.microsoft.BitmaskDropout").takes("x ratio? training_mode?")
def bitmask_dropout(of: Operands, *, outputs: entries.Outputs = (True,)) -> Estimate:
    """As Dropout, its mask a bit per element in words of 32."""
    estimate = dropout(*of, outputs=outputs)
    out, mask = estimate.out if len(estimate.out) > 1 else (*estimate.out, None)
    if mask is None:
        return estimate
    words = of.x.like((ceil_div(of.x.numel, 32),), UINT32)
    return replace(estimate, out=(out, words), writes=(words,) if estimate.alias else None)


@takes("x bias residual? ratio? training_mode?")
def bias_dropout(
    of: Operands, *, outputs: entries.Outputs = (True,), form: Callable[..., Estimate] = dropout
) -> Estimate:
    """One addition per element for the bias, a dropout, and one addition for a residual: `x` is never the result."""
    dropped = form(of.x, of.ratio, of.training_mode, outputs=outputs)
    sums = entries.work((1 + (of.residual is not None)) * of.x.numel)
    return entries.fused((of.x.like(), *dropped.out[1:]), dropped, sums, reads=of.named("x bias residual"))


rule("com.microsoft.BiasDropout").derived(bias_dropout, form=dropout)
rule("com.microsoft.BitmaskBiasDropout").derived(bias_dropout, form=bitmask_dropout)
