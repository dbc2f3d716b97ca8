"""onnxruntime's products with weights of few bits, and gathers from tables of few bits.

Products are computed in the type of the activations; every weight is converted to it once, and is read at its packed
width.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, differ, prod
from graphflops.rules.lowprecision import weight_only
from graphflops.rules.norm import MEAN_SQUARE, normalised
from graphflops.rules.onnx.entries import sizes
from graphflops.rules.onnx.fused import Outputs, Touched, applied, chosen, fused, work
from graphflops.rules.quantized import DEQUANTIZE, MIN_MAX, QUANTIZE
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis as axis_of
from graphflops.rules.shapes import only_result
from graphflops.rules.work import WORK, activation
from graphflops.tensor import FLOAT8, INT8, UINT8, DType, TensorType

KIND = "product"

LOOKED_UP = 2  # a code becomes its value in a table 1, times its block's scale 1
INT8_ACTIVATIONS = 4  # an `accuracy_level` at which activations are quantized for the product


def by_weight(
    x: TensorType,
    inner: Dim,
    features: Dim,
    per_weight: int,
    *weight: TensorType | None,
    bias: TensorType | None,
) -> Estimate:
    """Rows of `inner` features times a packed weight, and a bias."""
    require(not differ(x.shape[-1], inner), f"the input has {x.shape[-1]} features, the weight takes {inner}")
    product = weight_only(x, features, per_weight, *weight, bias)
    biased = only_result(product).numel if bias is not None else 0
    return replace(product, vector_flops=product.vector_flops + biased)


def narrowed(x: TensorType, product: Estimate, dtype: DType) -> Estimate:
    """The product in another type, to which the activations are quantized first."""
    vector = product.vector_flops + (MIN_MAX + QUANTIZE) * x.numel
    return replace(product, vector_flops=vector, matrix_dtype=dtype)


@rule("com.microsoft.MatMulNBits")
def matmul_nbits(
    x: TensorType,
    weight: TensorType,
    scales: TensorType,
    zero_points: TensorType | None = None,
    group_index: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
) -> Estimate:
    """Three operations dequantize each weight; the default zero point is the middle of the range."""
    require(bits in (2, 4, 8), f"a weight of {bits} bits")
    require(block_size >= 16 and block_size & (block_size - 1) == 0, f"blocks of {block_size} weights")
    blocks = -(-K // block_size)
    stated = N * blocks * (block_size * bits // 8)  # bytes
    require(
        not differ(weight.nbytes, stated),
        f"a weight {weight} for {N} features in {blocks} blocks of {block_size}",
    )
    require(not differ(scales.numel, N * blocks), f"scales {scales} for {N} features in {blocks} blocks")
    product = by_weight(x, K, N, DEQUANTIZE, weight, scales, zero_points, group_index, bias=bias)
    return narrowed(x, product, INT8) if accuracy_level == INT8_ACTIVATIONS else product


@rule("com.microsoft.MatMulBnb4")
def matmul_bnb4(
    x: TensorType,
    weight: TensorType,
    absmax: TensorType,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    transB: int = 1,
) -> Estimate:
    """A table look-up and a scale per weight."""
    inner, features = (K, N) if transB else (N, K)
    return by_weight(x, inner, features, LOOKED_UP, weight, absmax, bias=None)


@rule("com.microsoft.MatMulFpQ4")
def matmul_fpq4(x: TensorType, weight: TensorType, shape: TensorType) -> Estimate:
    """Dequantizes each weight; the weight's shape is an operand, its scales are stored between its blocks."""
    inner, features = sizes(shape) or (x.shape[-1], data_dependent("features"))
    return by_weight(x, inner, features, DEQUANTIZE, weight, bias=None)


@rule("com.microsoft.MatMulBlockQuantizedFp4Weight")
def matmul_fp4(
    x: TensorType,
    weight: TensorType,
    scales: TensorType,
    global_scale: TensorType,
    input_scale: TensorType | None = None,
    bias: TensorType | None = None,
) -> Estimate:
    """A conversion and a scale per weight; block scale and global scale are multiplied beforehand."""
    return by_weight(
        x, 2 * weight.shape[1], weight.shape[0], LOOKED_UP, weight, scales, global_scale, bias=bias
    )


@rule("com.microsoft.MatMulBlockQuantizedFp8Weight")
def matmul_fp8(
    x: TensorType,
    weight: TensorType,
    scales: TensorType,
    input_scale: TensorType | None = None,
    bias: TensorType | None = None,
) -> Estimate:
    """A conversion and a scale per weight; with an input scale the activations are float8 too."""
    product = by_weight(
        x, weight.shape[1], weight.shape[0], LOOKED_UP, weight, scales, input_scale, bias=bias
    )
    return product if input_scale is None else narrowed(x, product, FLOAT8[0])


# Several products after one norm.


def entering(x: TensorType, skip: TensorType | None, scale: TensorType | None) -> Estimate:
    """The work of an optional addition of `skip` and of an optional RMS norm."""
    added = x.numel if skip is not None else 0
    if scale is None:
        return work(added)
    norm = normalised(x, prod(x.shape[:-1]), scale, statistics=MEAN_SQUARE)
    return work(added + norm.vector_flops, norm.transcendentals)


def several(
    x: TensorType,
    skip: TensorType | None,
    scale: TensorType | None,
    products: tuple[Estimate, ...],
    *more: Estimate,
) -> tuple[tuple[Estimate, ...], Touched]:
    """Parts and reads of several products of one input, which may be normalised first."""
    parts = (entering(x, skip, scale), *products, *more)
    return parts, (x, skip, scale, *(read for product in products for read in product.reads[1:]))


@rule("com.microsoft.MatMulNBitsMlp")
def matmul_nbits_mlp(
    x: TensorType,
    skip: TensorType | None,
    norm_scale: TensorType | None,
    gate: TensorType,
    gate_scales: TensorType,
    gate_bias: TensorType | None,
    up: TensorType,
    up_scales: TensorType,
    up_bias: TensorType | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    activation: str,
    outputs: Outputs = (True,),
) -> Estimate:
    """Two products of one input; the first is activated and multiplied with the second."""
    products = tuple(
        by_weight(x, K, N, DEQUANTIZE, weight, scales, bias=bias)
        for weight, scales, bias in ((gate, gate_scales, gate_bias), (up, up_scales, up_bias))
    )
    out = only_result(products[0])
    parts, reads = several(x, skip, norm_scale, products, gating(activation, out))
    return fused(chosen(outputs, out, x.like() if skip is not None else None), *parts, reads=reads)


def gating(name: str, gate: TensorType) -> Estimate:
    """The work of activating a gate and multiplying with it."""
    return applied(activation(name).more(WORK["mul"].flops), gate)


@rule("com.microsoft.MatMulNBitsQkv")
def matmul_nbits_qkv(
    x: TensorType,
    skip: TensorType | None,
    norm_scale: TensorType,
    q: TensorType,
    q_scales: TensorType,
    q_bias: TensorType | None,
    k: TensorType,
    k_scales: TensorType,
    k_bias: TensorType | None,
    v: TensorType,
    v_scales: TensorType,
    v_bias: TensorType | None = None,
    *,
    K: int,
    Nq: int,
    Nkv: int,
    block_size: int,
    outputs: Outputs = (True,),
) -> Estimate:
    """Three products of one normalised input."""
    weights = ((q, q_scales, q_bias, Nq), (k, k_scales, k_bias, Nkv), (v, v_scales, v_bias, Nkv))
    products = tuple(
        by_weight(x, K, features, DEQUANTIZE, weight, scales, bias=bias)
        for weight, scales, bias, features in weights
    )
    parts, reads = several(x, skip, norm_scale, products)
    summed = x.like() if skip is not None else None
    return fused(chosen(outputs, *map(only_result, products), summed), *parts, reads=reads)


@rule("com.microsoft.GatherBlockQuantized")
def gather_block_quantized(
    data: TensorType,
    indices: TensorType,
    scales: TensorType,
    zero_points: TensorType | None = None,
    *,
    bits: int = 4,
    gather_axis: int = 0,
) -> Estimate:
    """The rows returned, read at their packed width with their scales, and dequantized.

    Bytes hold several values where `bits` says so; zero points that are not given are then the middle of the range.
    """
    place = axis_of(gather_axis, data.rank)

    def taken(x: TensorType) -> TensorType:
        return x.like((*x.shape[:place], *indices.shape, *x.shape[place + 1 :]))

    rows, per_byte = taken(data), 8 // bits if data.dtype == UINT8 else 1
    out = scales.like((*rows.shape[:-1], rows.shape[-1] * per_byte))
    centred = zero_points is not None or data.dtype == UINT8
    read = (taken(x) for x in (scales, zero_points) if x is not None)
    return Estimate(
        (out,), vector_flops=(DEQUANTIZE - (not centred)) * out.numel, reads=(rows, indices, *read)
    )
