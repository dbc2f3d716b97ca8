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
from graphflops.rules.onnx.fused import Outputs, applied, chosen, fused, work
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import DEQUANTIZE, MIN_MAX, QUANTIZE
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis as axis_of
from graphflops.rules.shapes import only_result
from graphflops.rules.work import WORK
from graphflops.rules.work import activation as activation_named
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
@takes("x weight scales zero_points? group_index? bias?")
def matmul_nbits(
    of: Operands, *, K: int, N: int, block_size: int, bits: int = 4, accuracy_level: int = 0
) -> Estimate:
    """Three operations dequantize each weight; the default zero point is the middle of the range."""
    require(bits in (2, 4, 8), f"a weight of {bits} bits")
    require(block_size >= 16 and block_size & (block_size - 1) == 0, f"blocks of {block_size} weights")
    blocks = -(-K // block_size)
    stated = N * blocks * (block_size * bits // 8)  # bytes
    told = f"for {N} features in {blocks} blocks"
    require(not differ(of.weight.nbytes, stated), f"a weight {of.weight} {told} of {block_size}")
    require(not differ(of.scales.numel, N * blocks), f"scales {of.scales} {told}")
    product = by_weight(of.x, K, N, DEQUANTIZE, *of.but("x bias"), bias=of.bias)
    return narrowed(of.x, product, INT8) if accuracy_level == INT8_ACTIVATIONS else product


@rule("com.microsoft.MatMulBnb4")
def matmul_bnb4(
    x: TensorType, weight: TensorType, absmax: TensorType, *, K: int, N: int, transB: int = 1
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
@takes("x weight scales global_scale input_scale? bias?")
def matmul_fp4(of: Operands) -> Estimate:
    """A conversion and a scale per weight; block scale and global scale are multiplied beforehand."""
    features, halved = of.weight.shape
    read = of.named("weight scales global_scale")
    return by_weight(of.x, 2 * halved, features, LOOKED_UP, *read, bias=of.bias)


@rule("com.microsoft.MatMulBlockQuantizedFp8Weight")
@takes("x weight scales input_scale? bias?")
def matmul_fp8(of: Operands) -> Estimate:
    """A conversion and a scale per weight; with an input scale the activations are float8 too."""
    features, inner = of.weight.shape
    product = by_weight(of.x, inner, features, LOOKED_UP, *of.but("x bias"), bias=of.bias)
    return product if of.input_scale is None else narrowed(of.x, product, FLOAT8[0])


# Several products after one norm.


def entering(x: TensorType, skip: TensorType | None, scale: TensorType | None) -> Estimate:
    """The work of an optional addition of `skip` and of an optional RMS norm."""
    added = x.numel if skip is not None else 0
    if scale is None:
        return work(added)
    norm = normalised(x, prod(x.shape[:-1]), scale, statistics=MEAN_SQUARE)
    return work(added + norm.vector_flops, norm.transcendentals)


def several(
    of: Operands,
    products: tuple[Estimate, ...],
    out: tuple[TensorType, ...],
    outputs: Outputs,
    *more: Estimate,
) -> Estimate:
    """Several products of one input, which may be summed and normalised first; the sum is a result of its own."""
    x, skip, scale = of.named("x skip norm_scale")
    results = chosen(outputs, *out, x.like() if skip is not None else None)
    reads = (x, skip, scale, *(read for product in products for read in product.reads[1:]))
    return fused(results, entering(x, skip, scale), *products, *more, reads=reads)


@rule("com.microsoft.MatMulNBitsMlp")
@takes("x skip? norm_scale? gate gate_scales gate_bias? up up_scales up_bias?")
def matmul_nbits_mlp(
    of: Operands, *, K: int, N: int, activation: str, outputs: Outputs = (True,)
) -> Estimate:
    """Two products of one input; the first is activated and multiplied with the second."""
    products = tuple(
        by_weight(of.x, K, N, DEQUANTIZE, weight, scales, bias=bias)
        for weight, scales, bias in map(of.named, ("gate gate_scales gate_bias", "up up_scales up_bias"))
    )
    out = only_result(products[0])
    gating = applied(activation_named(activation).more(WORK["mul"].flops), out)
    return several(of, products, (out,), outputs, gating)


@rule("com.microsoft.MatMulNBitsQkv")
@takes("x skip? norm_scale q q_scales q_bias? k k_scales k_bias? v v_scales v_bias?")
def matmul_nbits_qkv(of: Operands, *, K: int, Nq: int, Nkv: int, outputs: Outputs = (True,)) -> Estimate:
    """Three products of one normalised input."""
    weights = map(of.named, ("q q_scales q_bias", "k k_scales k_bias", "v v_scales v_bias"))
    products = tuple(
        by_weight(of.x, K, features, DEQUANTIZE, weight, scales, bias=bias)
        for (weight, scales, bias), features in zip(weights, (Nq, Nkv, Nkv), strict=True)
    )
    return several(of, products, tuple(map(only_result, products)), outputs)


@rule("com.microsoft.GatherBlockQuantized")
@takes("data indices scales zero_points?")
def gather_block_quantized(of: Operands, *, bits: int = 4, gather_axis: int = 0) -> Estimate:
    """The rows returned, read at their packed width with their scales, and dequantized.

    Bytes hold several values where `bits` says so; zero points that are not given are then the middle of the range.
    """
    data, scales = of.data, of.scales
    place = axis_of(gather_axis, data.rank)

    def taken(x: TensorType) -> TensorType:
        return x.like((*x.shape[:place], *of.indices.shape, *x.shape[place + 1 :]))

    rows, per_byte = taken(data), 8 // bits if data.dtype == UINT8 else 1
    out = scales.like((*rows.shape[:-1], rows.shape[-1] * per_byte))
    centred = of.zero_points is not None or data.dtype == UINT8
    read = (taken(x) for x in (scales, of.zero_points) if x is not None)
    dequantizing = (DEQUANTIZE - (not centred)) * out.numel
    return Estimate((out,), vector_flops=dequantizing, reads=(rows, of.indices, *read))
