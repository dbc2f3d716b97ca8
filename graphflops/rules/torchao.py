"""Operators of torchao, which quantises in blocks, and its products of narrow, sparse and packed operands."""

from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_max, floor_div, prod, same
from graphflops.rules.attention import attend
from graphflops.rules.matmul import flops_of, matmul, matmul_into
from graphflops.rules.operands import Operands
from graphflops.rules.quantized import MIN_MAX, QUANTIZE, dequantize, scaled_mm
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import only_result
from graphflops.tensor import BFLOAT16, FLOAT32, INT8, INT32, DType, TensorType

KIND = "product"


def scaled_product(
    x: TensorType,
    kept: Dim,
    features: Dim,
    dtype: DType,
    *scales: TensorType,
    bias: TensorType | None = None,
    per_result: int = 2,
) -> Estimate:
    """Rows times `kept` weights, then so many operations per result; a bias is one more."""
    out = x.like((*x.shape[:-1], features), dtype)
    return Estimate(
        (out,),
        flops_of(prod(x.shape[:-1]) * kept, x.dtype),
        (per_result + (bias is not None)) * out.numel,
        reads=(x, *scales, bias),
    )


rule("torchao.int_matmul", product=("a", "b")).derived(matmul_into, order="a b", out_dtype=INT32)


@rule("torchao.int_scaled_matmul", product=("a", "b"))
def int_scaled_matmul(a: TensorType, b: TensorType, scales: TensorType) -> Estimate:
    """A product of int8 matrices, each result times its row's scale."""
    return scaled_product(a, prod(b.shape), b.shape[-1], scales.dtype, b, scales, per_result=1)


# Products of matrices whose tiles may lie in another order.
rule("torchao.swizzle_mm", product=("a", "b")).derived(matmul, order="a b _ _")
rule("torchao.swizzle_scaled_mm", product=("a", "b")).derived(
    scaled_mm, order="a b _ _ scale_a scale_b bias scale_result out_dtype"
)


@rule("torchao.mx_fp8_bf16", product=("a", "b"))
def mx_fp8_bf16(a: TensorType, b: TensorType, a_scale: TensorType, b_scale: TensorType) -> Estimate:
    """A product of microscaled floats, which the multiplying unit scales itself."""
    return matmul_into(a, b, BFLOAT16).plus(reads=(a_scale, b_scale))


@rule("torchao.float8_linear_cpu").takes("x x_scales weight weight_scales bias? output_dtype?")
def float8_linear(of: Operands) -> Estimate:
    """A product with a weight in tiles or as it is; each result takes both scales."""
    features = of.weight.shape[0] * (of.weight.shape[3] if of.weight.rank == 4 else 1)
    kept, scaled = of.x.shape[-1] * features, of.named("x_scales weight weight_scales")
    return scaled_product(of.x, kept, features, of.output_dtype, *scaled, bias=of.bias)


@rule("torchao.da8w4_linear_cpu").takes(
    "x x_scales x_zeros weight weight_scales weight_zeros compensation bias? output_dtype?"
)
def da8w4_linear(of: Operands) -> Estimate:
    """A product with 4-bit weights, two in a byte; each result takes both scales and the correction for zero points."""
    require(of.weight.rank == 4, f"packed weights have four axes, not {of.weight.rank}")
    features = of.weight.shape[0] * of.weight.shape[3] * 2
    kept, reads = of.x.shape[-1] * features, of.but("x bias output_dtype")
    return scaled_product(of.x, kept, features, of.output_dtype, *reads, bias=of.bias, per_result=3)


@rule("torchao.float8_linear_prepack_cpu", "torchao.da8w4_linear_prepack_cpu", kind="movement")
def prepack(*parts: TensorType) -> Estimate:
    """Weights and what belongs to them in the order that the product wants; corrections are as large as the data says."""
    corrections = (TensorType((0,), FLOAT32),) * (len(parts) > 2)
    return Estimate((*(part.like() for part in parts), *corrections), reads=parts)


@rule("torchao.rowwise_scaled_linear_sparse_cutlass_f8f8").takes(
    "x x_scale weight weight_meta weight_scale bias? out_dtype?"
)
def sparse_linear(of: Operands) -> Estimate:
    """A product with the half of the weights that is kept; each result takes both scales."""
    dtype = of.x_scale.dtype if of.out_dtype is None else of.out_dtype
    kept, features = prod(of.weight.shape), of.weight.shape[0]
    return scaled_product(of.x, kept, features, dtype, *of.but("x bias out_dtype"), bias=of.bias)


@rule("torchao.to_sparse_semi_structured_cutlass_sm9x_f8", kind="movement")
def to_sparse(weight: TensorType) -> Estimate:
    """Half of the weights kept, with the places that they had."""
    rows, columns = weight.shape
    places = weight.like((rows, dim_max(floor_div(columns, 8), 16)), INT8)
    return Estimate((weight.like((rows, floor_div(columns, 2))), places), reads=(weight,))


@rule("float8_sparse.fp8_sparse_mm").takes("x packed bias? alpha out_features=")
def fp8_sparse_mm(of: Operands, *attributes: object) -> Estimate:
    """A product with the half of the weights that is kept; each result takes one scale."""
    x, packed, bias, alpha, features = of
    kept = floor_div(x.shape[-1] * features, 2)
    return scaled_product(x, kept, features, FLOAT32, packed, alpha, bias=bias, per_result=1)


@rule("blocksparse.int_addmm").takes("rows columns values a left right")
def block_sparse_int_mm(of: Operands) -> Estimate:
    """The stored int8 blocks of a matrix times a dense one, turned; each result takes both scales."""
    out = of.a.like((of.a.shape[-1], of.left.shape[-1]), BFLOAT16)
    work = flops_of(of.values.numel * of.a.shape[-1], of.a.dtype)
    return Estimate((out,), work, 2 * out.numel, reads=(of.values, *of.but("values")))


@rule("torchao.reference_dqlinear_int4").takes(
    "x x_eps? weight weight_scale weight_zero_point? bias? group_size?"
)
def dynamic_int4_linear(of: Operands) -> Estimate:
    """Rows quantised, a product of integers, and per result and group of weights a scale and a sum."""
    features, inner = of.weight.shape
    groups, reads = floor_div(inner, of.group_size[1]), (of.weight, of.weight_scale)
    product = scaled_product(of.x, inner * features, features, FLOAT32, *reads, bias=of.bias, per_result=1)
    more = (MIN_MAX + QUANTIZE) * of.x.numel + 2 * groups * only_result(product).numel
    return product.plus(vector_flops=more, matrix_dtype=INT8)


@rule("torchao.qscaled_dot_product", kind="attention").takes(
    "query key value attn_mask? dropout_p? is_causal?"
)
def quantized_attention(of: Operands, *attributes: object) -> Estimate:
    """Attention over quantised operands; probabilities and results are quantised again."""
    problem = attend(of.query, of.key, of.value, of.attn_mask, right=0 if of.is_causal else None)
    return problem.forward(of.query.like()).plus(vector_flops=QUANTIZE * (problem.scores + of.query.numel))


@rule("torchao._scaled_embedding_bag", kind="gather").takes(
    "weight indices offsets weight_scale o_scale? mode? include_last_offset? output_dtype?"
)
def scaled_embedding_bag(of: Operands) -> Estimate:
    """One addition per element looked up, and the weights' scale per result."""
    width = of.weight.shape[1]
    looked_up = of.weight.like((of.indices.numel, width))
    out = of.weight.like((of.offsets.shape[0] - 1, width), of.output_dtype)
    reads = (looked_up, of.indices, of.offsets, of.weight_scale)
    return Estimate((out,), 0, looked_up.numel + out.numel, reads=reads)


rule("torchao.dequantize_affine", kind="quantisation").derived(
    dequantize, order="x block_size scale zero_point input_dtype quant_min quant_max output_dtype"
)


@rule("torchao.choose_qparams_affine", kind="quantisation").takes(
    "x mapping_type? block_size? target_dtype? quant_min? quant_max? eps? scale_dtype? zero_point_dtype? keepdim?"
)
def choose_qparams_affine(of: Operands) -> Estimate:
    """Minimum and maximum of each block; computing the parameters from them is not counted."""
    axes, rank = len(of.block_size), of.x.rank
    require(axes == rank, f"blocks of {axes} axes do not fit a tensor of {rank}")
    # Blocks along each axis; without `keepdim` an axis of one block is dropped.
    pairs = zip(of.x.shape, of.block_size, strict=True)
    kept = [(a, b) for a, b in pairs if of.keepdim or not same(a, b) or same(b, 1)]
    shape = [1 if same(a, b) and not same(b, 1) else floor_div(a, b) for a, b in kept]
    out = (of.x.like(shape, of.scale_dtype), of.x.like(shape, of.zero_point_dtype or INT32))
    return Estimate(out, vector_flops=MIN_MAX * of.x.numel, reads=(of.x,))


@rule("torchao.choose_scale_float8", kind="quantisation").takes(
    "x block_size? float8_dtype? scale_dtype? hp_value_lb? hp_value_ub?"
)
def choose_scale_float8(of: Operands) -> Estimate:
    """The largest absolute value of each block."""
    out = of.x.like(map(floor_div, of.x.shape, of.block_size), FLOAT32)
    return Estimate((out,), vector_flops=MIN_MAX * of.x.numel, reads=(of.x,))
