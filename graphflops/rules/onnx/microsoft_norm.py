"""onnxruntime's normalisations, fused with the additions before them and the activations after them."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import differ, floor_div, mod, prod
from graphflops.rules.norm import MEAN_SQUARE, STATISTICS, normalised
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.onnx.fused import Outputs, applied, chosen, fused, work
from graphflops.rules.onnx.norm import from_axis
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import tensors_of
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


@takes("x skip gamma beta? bias?")
def skip_layer_normalization(
    of: Operands, *, outputs: Outputs = (True,), statistics: int = STATISTICS
) -> Estimate:
    """One addition per element for `skip` and one for a bias, then as LayerNormalization over the last axis."""
    norm = normalised(of.x, prod(of.x.shape[:-1]), of.gamma, of.beta, statistics)
    return after_sum(of.x, of.skip, of.bias, norm=norm, outputs=outputs)


rule("com.microsoft.SkipLayerNormalization")(skip_layer_normalization)
rule("com.microsoft.SkipSimplifiedLayerNormalization", "onnx.SkipSimplifiedLayerNormalization").derived(
    skip_layer_normalization,
    says="One addition per element for `skip` and one for a bias, then the root mean square over the last axis.",
    order="x skip gamma bias",
    statistics=MEAN_SQUARE,
)


@rule("onnx.SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def simplified_layer_normalization(
    x: TensorType, scale: TensorType, *, axis: int = -1, stash_type: int = 1, outputs: Outputs = (True,)
) -> Estimate:
    """Four operations per element, a reciprocal root per row: the root mean square from the axis on."""
    place, kept = from_axis(x, axis)
    norm = normalised(x, prod(x.shape[:place]), scale, statistics=MEAN_SQUARE)
    out = chosen(outputs, x.like(dtype=scale.dtype), x.like(kept, onnx_dtype(stash_type)))
    return replace(norm, out=out)


@rule("com.microsoft.GroupNorm")
@takes("x gamma beta skip? bias?")
def group_norm(
    of: Operands, *, activation: int, groups: int, channels_last: int = 1, outputs: Outputs = (True,)
) -> Estimate:
    """Seven operations per element, of the sum with `skip` and a bias, a reciprocal root per group; and an optional silu."""
    channels = of.x.shape[-1 if channels_last else 1]
    require(not differ(mod(channels, groups), 0), f"{channels} channels do not make {groups} groups")
    norm = normalised(of.x, of.x.shape[0] * groups, of.gamma, of.beta)
    after = WORK["silu" if activation else "identity"]
    done = fused(norm.out, norm, applied(after, of.x), reads=norm.reads)
    if of.skip is None:
        return done
    return after_sum(of.x, of.skip, of.bias, norm=done, outputs=outputs, statistics=False)


rule("com.microsoft.SkipGroupNorm").derived(group_norm)


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
@takes("x scale_x scale bias? scale_y")
def qordered_layer_normalization(of: Operands, *, axis: int = -1) -> Estimate:
    """A layer norm between a conversion from integers and one back."""
    place, _ = from_axis(of.x, axis)
    norm = normalised(of.x, prod(of.x.shape[:place]), of.scale, of.bias)
    converting = work((DEQUANTIZE - 1 + QUANTIZE - 1) * of.x.numel)
    return fused((of.x.like(),), norm, converting, reads=(*of,))


# The embedding layer of encoders: rows of up to three tables, summed and normalised.


def embedded(of: Operands, places: TensorType | None) -> Estimate:
    """Looks up word, position and segment embeddings, sums and normalises them; only the used rows are read.

    Results are the normalised rows, the unmasked length of each sequence, one addition per position, and the sum.
    """
    total = of.words.like((*of.ids.shape, of.words.shape[-1]))
    used = of.positions.like((*(places.shape if places is not None else of.ids.shape[1:]), total.shape[-1]))
    rows = (total, used, of.of_segments and of.of_segments.like(total.shape))
    norm = normalised(total.like(dtype=of.gamma.dtype), of.ids.numel, of.gamma, of.beta)
    sums = (1 + (of.of_segments is not None)) * total.numel + (0 if of.mask is None else of.mask.numel)
    reads = (of.ids, of.segments, *rows, of.gamma, of.beta, places, of.mask)
    return fused((total, of.ids.like(of.ids.shape[:1], INT32), total), norm, work(sums), reads=reads)


@rule("com.microsoft.EmbedLayerNormalization")
@takes("ids segments? words positions of_segments? gamma beta mask? places?")
def embed_layer_normalization(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """Two or three embedding rows per token, summed, and a layer norm; the mask gives the sequence lengths."""
    made = embedded(of, of.places)
    return replace(made, out=chosen(outputs, *tensors_of(made.out)))


@rule("com.microsoft.QEmbedLayerNormalization")
@takes(
    "ids segments? words positions of_segments? gamma beta mask? words_scale? positions_scale? segments_scale? "
    "gamma_scale? beta_scale? words_zero? positions_zero? segments_zero? gamma_zero? beta_zero?"
)
def qembed_layer_normalization(of: Operands, *, outputs: Outputs = (True, True)) -> Estimate:
    """As EmbedLayerNormalization of integers: three operations dequantize every used element."""
    made = embedded(of, None)
    rows, lengths, _ = tensors_of(made.out)
    used = rows.numel * (2 + (of.of_segments is not None)) + of.gamma.numel + of.beta.numel
    parameters = of.but("ids segments words positions of_segments gamma beta mask")
    results = chosen(outputs, rows.like(dtype=FLOAT32), lengths)
    return fused(results, made, work(DEQUANTIZE * used), reads=(*made.reads, *parameters))
