"""Conversion of numbers to few bits and back, and products of matrices of few bits.

Element types that torch marks as quantized stand for the integers they are stored in. Products are of scaled narrow floats,
integers, packed and pruned weights.
"""

from itertools import chain

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value
from graphflops.dims import Dim, ceil_div, differ, floor_div, prod, same
from graphflops.rules.elementwise import WORK, activation_named, differentiate
from graphflops.rules.matmul import add_product, flops_of, grouped_mm, matmul, matmul_into
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import Tensors, only_result, shown, tensors_of
from graphflops.tensor import BFLOAT16, FLOAT4_PAIR, FLOAT32, INT8, INT32, UINT8, DType, TensorType, flat

KIND = "quantisation"


# Operations per element.
QUANTIZE = WORK["quantize"].flops
DEQUANTIZE = WORK["dequantize"].flops
TO_FLOAT = DEQUANTIZE - 1  # of a sum of integers: convert 1, multiply by the scales 1
MIN_MAX = 2  # both extremes


def convert(x: TensorType, dtype: DType | None, per_element: int, *parameters: Value) -> Estimate:
    """A conversion with `per_element` operations that reads the tensors among its parameters."""
    return Estimate((x.like(dtype=dtype),), 0, per_element * x.numel, reads=tensors_of((x, *parameters)))


# Operators of torch.export: quantized tensors are plain integer tensors.


@rule(
    "quantized_decomposed.dequantize_per_tensor dequantize_per_channel dequantize_per_channel_group dequantize_per_token"
).takes("x scale= zero_point? * out_dtype? output_dtype? block_size? input_dtype? quant_min? quant_max?")
def dequantize(of: Operands) -> Estimate:
    """Three operations per element, two without zero points; the result is in float32 by default."""
    dtype = of.out_dtype or of.output_dtype or FLOAT32
    return convert(of.x, dtype, DEQUANTIZE - (of.zero_point is None), of.scale, of.zero_point)


@takes("weight weight_scales weight_zero_points? indices")
def embedding(of: Operands, *, dtype: DType | None = None, packed: int) -> Estimate:
    """Three operations per element looked up, two without zero points."""
    weight, weight_scales, weight_zero_points, indices = of
    out = weight_scales.like((*indices.shape, weight.shape[1] * packed), dtype)
    per_row = [x.shape[1:] for x in (weight_scales, weight_zero_points) if x is not None]
    scales = weight_scales.like((*indices.shape, sum(prod(shape) for shape in per_row)))
    rows = weight.like((*indices.shape, weight.shape[1]))
    per_element = DEQUANTIZE - (weight_zero_points is None)
    return Estimate((out,), 0, per_element * out.numel, reads=(rows, scales, indices))


_OPERANDS = "weight weight_scales weight_zero_points _ _ indices"
for _name, _packed in (("embedding_byte", 1), ("embedding_4bit", 2), ("embedding_2bit", 4)):
    rule(f"quantized_decomposed.{_name}").derived(embedding, order=_OPERANDS, packed=_packed)


@rule("aten.quantize_per_tensor.tensors", "aten.dequantize.tensors").takes(
    "tensors= scales? zero_points? dtype?"
)
def convert_tensors(of: Operands) -> Estimate:
    """Six operations per element of each tensor, three where it is converted back."""
    dtype, each = (FLOAT32, DEQUANTIZE) if of.scales is None else (of.dtype or INT8, QUANTIZE)
    out = tuple(x.like(dtype=dtype) for x in of.tensors)
    return Estimate(out, 0, each * sum(x.numel for x in out), reads=(*of.tensors, of.scales, of.zero_points))


# Fake quantization: quantize and dequantize in one operator, so that training sees the rounding errors.

# The gradient passes for elements within the range; the mask is recomputed.
backward(
    "aten.fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
    "quantized_decomposed.fake_quant_per_channel",
)(differentiate(WORK["fake_quantize"], "x"))


KIND = "product"


@rule("aten._scaled_mm", product=("a", "b")).takes("a b scale_a scale_b bias? scale_result? out_dtype?")
def scaled_mm(of: Operands) -> Estimate:
    """Product of narrow floats; each result takes both operands' scales, then the bias and its own scale."""
    a, b, *scales = of.named("a b scale_a scale_b")
    # float32 scales may have these forms in torch: per tensor, per row, per block of 128.
    if {x.dtype.name for x in scales} == {"float32"} and any(differ(x.numel, 1) for x in scales):
        (m, k), n = a.shape, b.shape[1]
        blocks_m, blocks_k, blocks_n = (ceil_div(size, 128) for size in (m, k, n))
        forms = (
            *(((m, 1), (1, n)), ((m,), (n,))),  # the second of torch 2.4
            *(((m, blocks_k), (blocks_k, last)) for last in (n, blocks_n)),
            ((blocks_m, blocks_k), (blocks_k, n)),
        )
        given = [x.shape for x in scales]
        alike = (form for form in forms if [*map(len, form)] == [*map(len, given)])
        fits = any(not any(map(differ, chain(*form), chain(*given))) for form in alike)
        require(fits, f"scales of {shown(given[0])} and {shown(given[1])} do not fit {a} and {b}")
    return _scaled(matmul_into(a, b, of.out_dtype or a.dtype), tuple(scales), of.bias, of.scale_result)


@rule("aten._scaled_mm_v2", product=("a", "b")).takes("a b scale_a? * scale_b? bias?")
def scaled_mm_v2(of: Operands, *, out_dtype: DType | None) -> Estimate:
    """As _scaled_mm with several scales per operand."""
    return _scaled(matmul_into(of.a, of.b, out_dtype or of.a.dtype), (*of.scale_a, *of.scale_b), of.bias)


@rule("aten._scaled_addmm", product=("a", "b")).takes(
    "base a b scale_a? recipe_a? swizzle_a? scale_b? recipe_b? swizzle_b? contraction_dim?; beta=1 alpha=1"
)
def scaled_addmm(of: Operands) -> Estimate:
    """As _scaled_mm_v2, added to a matrix of the result's type."""
    product = _scaled(matmul_into(of.a, of.b, of.base.dtype), (*of.scale_a, *of.scale_b))
    return add_product(of.base, product, of.beta, of.alpha).plus(vector_flops=product.vector_flops)


@rule("aten._scaled_grouped_mm _scaled_grouped_mm_v2", product=("a", "b")).takes(
    "a b scale_a? * scale_b? offs? bias? scale_result?"
)
def scaled_grouped_mm(of: Operands, *, out_dtype: DType | None = None) -> Estimate:
    """As _grouped_mm for narrow floats with one or several scales per operand; the result is bfloat16 by default."""
    product = grouped_mm(of.a, of.b, of.offs, None, out_dtype or BFLOAT16)
    return _scaled(product, tuple(flat((of.scale_a, of.scale_b))), of.bias, of.scale_result)


def _scaled(
    product: Estimate, scales: Tensors, bias: TensorType | None = None, scale_result: TensorType | None = None
) -> Estimate:
    """The product, and one operation per result for each scale and the bias; pairs of numbers show half the columns."""
    factor = product.reads[0]
    pairs = 2 if isinstance(factor, TensorType) and factor.dtype is FLOAT4_PAIR else 1
    vector = only_result(product).numel * (2 + (bias is not None) + (scale_result is not None))
    reads = (*product.reads, *scales, bias, scale_result)
    return Estimate(product.out, pairs * product.matrix_flops, vector, reads=reads)


# Weights of few bits: products are computed in the type of the activations.


def weight_only(x: TensorType, features: Dim, per_weight: int, *weight: TensorType | None) -> Estimate:
    """Rows times a packed weight with `features` output features; each weight is first converted to the rows' type."""
    inner = x.shape[-1]
    out = x.like((*x.shape[:-1], features))
    flops = flops_of(out.numel * inner, x.dtype)
    return Estimate((out,), flops, per_weight * features * inner, reads=(x, *weight))


@rule("quantized_decomposed.mixed_linear").takes("x weight scales zero_points? dtype?")
def dequantized_product(of: Operands, *, axis: int = 0, each: int | None = None) -> Estimate:
    """Three operations dequantize each weight, two without zero points; rows of a 4-D weight come in tiles of eight.

    axis: that of the output features. each: operations per weight if zero points are not given separately.
    """
    features = of.weight.shape[axis] * (8 if of.weight.rank == 4 else 1)
    per_weight = DEQUANTIZE - (of.zero_points is None) if each is None else each
    return weight_only(of.x, features, per_weight, *of.but("x dtype"))


rule(
    "aten._weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros"
).derived(dequantized_product, order="x weight _ scales zero_points", each=DEQUANTIZE)
rule("quantized_decomposed.mixed_mm").derived(dequantized_product, axis=1)


@rule("aten._convert_weight_to_int4pack", kind="movement")
def pack_int4(weight: TensorType, tiles: int) -> Estimate:
    """A copy into tiles of eight rows and sixteen columns, eight weights to an integer."""
    # two weights to a byte, or one to an integer
    columns = weight.shape[1] * (2 if weight.dtype == UINT8 else 1)
    shape = (floor_div(weight.shape[0], 8), floor_div(columns, 16 * tiles), 32, tiles // 2)
    return Estimate((weight.like(shape, INT32),), reads=(weight,))


@rule("aten._dyn_quant_pack_4bit_weight", kind="movement")
def pack_dynamic_int4(weight: TensorType, scales_zeros: TensorType, bias: TensorType | None) -> Estimate:
    """A copy of weights, scales and bias into one buffer."""
    size = weight.numel + scales_zeros.numel + (bias.numel if bias else 0)
    return Estimate((weight.like((size,), FLOAT32),), reads=(weight, scales_zeros, bias))


@rule("aten._mixed_dtypes_linear").takes("x weight scale * bias?")
def mixed_dtypes_linear(of: Operands, *, activation: str | None = None) -> Estimate:
    """A conversion per weight, the scale per result, then an operation each for bias and activation."""
    product = weight_only(of.x, of.scale.shape[0], 1, *of.but("x"))
    return activated(product, activation, 1 + (of.bias is not None))


# Pruned weights: only stored weights are multiplied, half of 2:4 sparse ones.


@rule("aten._sparse_semi_structured_linear").takes("x weight meta * bias?")
def sparse_linear(of: Operands, *, activation: str | None = None, out_dtype: DType | None = None) -> Estimate:
    """A multiply-add per row and stored weight; others count the pruned half as well."""
    *rows, _ = of.x.shape
    flops = flops_of(prod(rows) * of.weight.numel, of.x.dtype)
    product = Estimate((of.x.like((*rows, of.weight.shape[0]), out_dtype),), flops, reads=(*of,))
    return activated(product, activation, int(of.bias is not None))


@rule("aten._sparse_semi_structured_addmm").takes("base a meta b; alpha=1 beta=1 out_dtype=None")
def sparse_addmm(of: Operands) -> Estimate:
    """A multiply-add per stored weight and column, added to one number per row."""
    column, out = of.base.view((of.base.shape[0], 1)), of.b.like((of.a.shape[0], of.b.shape[1]), of.out_dtype)
    flops = flops_of(of.a.numel * of.b.shape[1], of.a.dtype)
    return add_product(column, Estimate((out,), flops, reads=(of.a, of.meta, of.b)), of.beta, of.alpha)


@rule("aten._cslt_sparse_mm").takes("a b bias? alpha?; out_dtype=None transpose_result=False")
def cslt_sparse_mm(of: Operands) -> Estimate:
    """A multiply-add per column and stored weight: half of each row."""
    a, b, bias, alpha = of
    rows, (inner, columns) = a.shape[0], b.shape
    out = b.like((columns, rows) if of.transpose_result else (rows, columns), of.out_dtype)
    operations = (bias is not None) + (alpha is not None)
    flops = flops_of(rows * floor_div(inner, 2) * columns, b.dtype)
    return Estimate((out,), flops, operations * out.numel, reads=(a, b, bias, alpha))


def activated(product: Estimate, activation: str | None, operations: int = 0) -> Estimate:
    """The product followed by `operations` per result and an activation."""
    work = activation_named(activation or "none").more(operations)
    return product.plus(work.on(only_result(product).numel))


# Operators of torchao, which quantises in blocks: products of narrow, sparse and packed operands.


def scaled_product(
    of: Operands, features: Dim, dtype: DType, *weight: TensorType, per_result: int = 1
) -> Estimate:
    """Rows times a weight with `features` output features, then so many operations per result; a bias is one more."""
    product = weight_only(of.x, features, 0, *weight)
    out = only_result(product).like(dtype=dtype)
    work = (per_result + (of.bias is not None)) * out.numel
    return product.plus(out=(out,), vector_flops=work, reads=(of.bias,))


rule("torchao.int_matmul", product=("a", "b")).derived(matmul_into, order="a b", out_dtype=INT32)


# Products of matrices whose tiles may lie in another order.
rule("torchao.swizzle_mm", product=("a", "b")).derived(matmul, order="a b _ _")
rule("torchao.swizzle_scaled_mm", product=("a", "b")).derived(
    scaled_mm, order="a b _ _ scale_a scale_b bias scale_result out_dtype"
)


@rule("torchao.float8_linear_cpu").takes("x x_scales weight weight_scales bias? output_dtype?")
def float8_linear(of: Operands) -> Estimate:
    """A product with a weight in tiles or as it is; each result takes both scales."""
    features = of.weight.shape[0] * (of.weight.shape[3] if of.weight.rank == 4 else 1)
    scaled = of.named("x_scales weight weight_scales")
    return scaled_product(of, features, of.output_dtype, *scaled, per_result=2)


@rule("torchao.float8_linear_prepack_cpu", "torchao.da8w4_linear_prepack_cpu", kind="movement")
def prepack(*parts: TensorType) -> Estimate:
    """Weights and what belongs to them in the order that the product wants; corrections are as large as the data says."""
    corrections = (TensorType((0,), FLOAT32),) * (len(parts) > 2)
    return Estimate((*(part.like() for part in parts), *corrections), reads=parts)


@rule("float8_sparse.fp8_sparse_mm").takes("x packed bias? alpha out_features=")
def fp8_sparse_mm(of: Operands, *attributes: object) -> Estimate:
    """A product with the half of the weights that is kept; each result takes one scale."""
    whole = scaled_product(of, of.out_features, FLOAT32, of.packed, of.alpha)
    return replace(whole, matrix_flops=floor_div(whole.matrix_flops, 2))


@rule("torchao.reference_dqlinear_int4").takes(
    "x x_eps? weight weight_scale weight_zero_point? bias? group_size?"
)
def dynamic_int4_linear(of: Operands) -> Estimate:
    """Rows quantised, a product of integers, and per result and group of weights a scale and a sum."""
    features, inner = of.weight.shape
    groups = floor_div(inner, of.group_size[1])
    product = scaled_product(of, features, FLOAT32, of.weight, of.weight_scale)
    more = (MIN_MAX + QUANTIZE) * of.x.numel + 2 * groups * only_result(product).numel
    return product.plus(vector_flops=more, matrix_dtype=INT8)


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
