"""onnxruntime's normalisations, fused with the additions before them and the activations after them."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import differ, floor_div, mod, prod
from graphflops.rules.norm import MEAN_SQUARE, STATISTICS, normalised
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.onnx.fused import Outputs, applied, chosen, fused, work
from graphflops.rules.onnx.norm import from_axis
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.registry import Derived, require, rule
from graphflops.rules.work import WORK
from graphflops.tensor import FLOAT32, INT32, TensorType

KIND = "normalisation"


def after_sum(
    x: TensorType, *added: TensorType | None, norm: Estimate, outputs: Outputs, statistics: bool = True
) -> Estimate:
    """A norm of the sum of `x` and `added`; optional results are mean and deviation, and the sum."""
    given = [part for part in added if part is not None]
    row = x.like((*x.shape[:-1], 1), FLOAT32)
    kept = (row, row) if statistics else ()
    out = chosen(outputs, x.like(), *kept, x.like())
    return fused(out, norm, work(len(given) * x.numel), reads=(*norm.reads, *given))


def skip_layer_normalization(
    x: TensorType,
    skip: TensorType,
    gamma: TensorType,
    beta: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Outputs = (True,),
    statistics: int = STATISTICS,
) -> Estimate:
    """One addition per element for `skip` and one for a bias, then as LayerNormalization over the last axis."""
    norm = normalised(x, prod(x.shape[:-1]), gamma, beta, statistics)
    return after_sum(x, skip, bias, norm=norm, outputs=outputs)


rule("com.microsoft.SkipLayerNormalization")(Derived(skip_layer_normalization))
rule("com.microsoft.SkipSimplifiedLayerNormalization", "onnx.SkipSimplifiedLayerNormalization")(
    Derived(
        skip_layer_normalization,
        says="One addition per element for `skip` and one for a bias, then the root mean square over the last axis.",
        order="x skip gamma bias",
        statistics=MEAN_SQUARE,
    )
)


@rule("onnx.SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def simplified_layer_normalization(
    x: TensorType,
    scale: TensorType,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: Outputs = (True,),
) -> Estimate:
    """Four operations per element, a reciprocal root per row: the root mean square from the axis on."""
    place, kept = from_axis(x, axis)
    norm = normalised(x, prod(x.shape[:place]), scale, statistics=MEAN_SQUARE)
    out = chosen(outputs, x.like(dtype=scale.dtype), x.like(kept, onnx_dtype(stash_type)))
    return replace(norm, out=out)


@rule("com.microsoft.GroupNorm")
def group_norm(
    x: TensorType,
    gamma: TensorType,
    beta: TensorType,
    skip: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    outputs: Outputs = (True,),
) -> Estimate:
    """Seven operations per element, of the sum with `skip` and a bias, a reciprocal root per group; and an optional silu."""
    channels = x.shape[-1 if channels_last else 1]
    require(not differ(mod(channels, groups), 0), f"{channels} channels do not make {groups} groups")
    norm = normalised(x, x.shape[0] * groups, gamma, beta)
    after = WORK["silu" if activation else "identity"]
    done = fused(norm.out, norm, applied(after, x), reads=norm.reads)
    return done if skip is None else after_sum(x, skip, bias, norm=done, outputs=outputs, statistics=False)


rule("com.microsoft.SkipGroupNorm")(Derived(group_norm))


@rule("com.microsoft.BranchwiseRMSNorm")
def branchwise_rms_norm(x: TensorType, scale: TensorType | None = None, *, num_branches: int = 0) -> Estimate:
    """An RMS norm of every branch; branches may be flattened into the last axis."""
    rows = prod(x.shape[:-1]) * (num_branches or 1)
    return normalised(x, rows, scale, statistics=MEAN_SQUARE)


@rule("com.microsoft.GatedRMSNorm")
def gated_rms_norm(
    x: TensorType, scale: TensorType, gate: TensorType, *, activation: str = "silu"
) -> Estimate:
    """An RMS norm of groups as long as the scale, times an activated gate."""
    norm = normalised(x, floor_div(x.numel, scale.numel), scale, statistics=MEAN_SQUARE)
    gated = work((1 + (activation != "sigmoid")) * x.numel, x.numel)
    return fused((x.like(),), norm, gated, reads=(x, scale, gate))


@rule("com.microsoft.QOrderedLayerNormalization")
def qordered_layer_normalization(
    x: TensorType,
    scale_x: TensorType,
    scale: TensorType,
    bias: TensorType | None,
    scale_y: TensorType,
    *,
    axis: int = -1,
) -> Estimate:
    """A layer norm between a conversion from integers and one back."""
    place, _ = from_axis(x, axis)
    norm = normalised(x, prod(x.shape[:place]), scale, bias)
    converting = work((DEQUANTIZE - 1 + QUANTIZE - 1) * x.numel)
    return fused((x.like(),), norm, converting, reads=(x, scale_x, scale, bias, scale_y))


# The embedding layer of encoders: rows of up to three tables, summed and normalised.


def embedded(
    ids: TensorType,
    segments: TensorType | None,
    tables: tuple[TensorType | None, ...],
    gamma: TensorType,
    beta: TensorType,
    places: TensorType | None,
) -> Estimate:
    """Looks up word, position and segment embeddings, sums and normalises them; only the used rows are read."""
    words, positions, of_segments = tables
    assert words is not None
    assert positions is not None
    hidden = words.shape[-1]
    total = words.like((*ids.shape, hidden))
    used = positions.like((*(places.shape if places is not None else ids.shape[1:]), hidden))
    rows = (total, used, of_segments and of_segments.like(total.shape))
    sums = 1 + (of_segments is not None)
    norm = normalised(total.like(dtype=gamma.dtype), ids.numel, gamma, beta)
    return fused(norm.out, norm, work(sums * total.numel), reads=(ids, segments, *rows, gamma, beta, places))


def mask_lengths(ids: TensorType, mask: TensorType | None) -> tuple[TensorType, Estimate]:
    """The unmasked length of each sequence: one addition per position."""
    counted = Estimate(vector_flops=0 if mask is None else mask.numel, reads=(mask,))
    return ids.like((ids.shape[0],), INT32), counted


@rule("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(
    ids: TensorType,
    segments: TensorType | None,
    words: TensorType,
    positions: TensorType,
    of_segments: TensorType | None,
    gamma: TensorType,
    beta: TensorType,
    mask: TensorType | None = None,
    places: TensorType | None = None,
    *,
    outputs: Outputs = (True,),
) -> Estimate:
    """Two or three embedding rows per token, summed, and a layer norm; the mask gives the sequence lengths."""
    made = embedded(ids, segments, (words, positions, of_segments), gamma, beta, places)
    lengths, counted = mask_lengths(ids, mask)
    summed = words.like((*ids.shape, words.shape[-1]))
    results = chosen(outputs, summed, lengths, summed)
    return fused(results, made, counted, reads=(*made.reads, *counted.reads))


@rule("com.microsoft.QEmbedLayerNormalization")
def qembed_layer_normalization(
    ids: TensorType,
    segments: TensorType | None,
    words: TensorType,
    positions: TensorType,
    of_segments: TensorType | None,
    gamma: TensorType,
    beta: TensorType,
    mask: TensorType | None = None,
    *parameters: TensorType | None,
    outputs: Outputs = (True, True),
) -> Estimate:
    """As EmbedLayerNormalization of integers: three operations dequantize every used element."""
    made = embedded(ids, segments, (words, positions, of_segments), gamma, beta, None)
    lengths, counted = mask_lengths(ids, mask)
    used = ids.numel * words.shape[-1] * (2 + (of_segments is not None)) + gamma.numel + beta.numel
    out = words.like((*ids.shape, words.shape[-1]), FLOAT32)
    results = chosen(outputs, out, lengths)
    reads = (*made.reads, *counted.reads, *parameters)
    return fused(results, made, counted, work(DEQUANTIZE * used), reads=reads)
