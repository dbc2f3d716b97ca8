"""onnxruntime's products of 8-bit integers, alone and inside attention, and its full-width fused products.

Zero points are subtracted from every operand element once; a floating-point result is converted and scaled.
"""

from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate
from graphflops.dims import meet
from graphflops.rules.elementwise import WORK, elementwise
from graphflops.rules.matmul import add_product, matmul, matmul_into
from graphflops.rules.onnx.attention import Cache, attended, attention_to, merged, per_score, project, rotated
from graphflops.rules.onnx.entries import Outputs, fused, onnx_dtype, require_scales, work
from graphflops.rules.onnx.microsoft_qlinear import quantized_product
from graphflops.rules.onnx.reduce import gemm
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import MIN_MAX, QUANTIZE, TO_FLOAT, activated
from graphflops.rules.reduce import reduction
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import only_result
from graphflops.tensor import INT8, INT32, UINT8, UINT32, TensorType

KIND = "product"

FROM_FLOAT = QUANTIZE - 1  # without a zero point


def zeroed(*pairs: tuple[TensorType, TensorType | None]) -> tuple[TensorType, ...]:
    """The operands that have a zero point."""
    return tuple(x for x, zero_point in pairs if zero_point is not None)


def require_features(of: Operands) -> None:
    """Raises ShapeError for scales and a bias that do not fit the results' features."""
    features = of.b.shape[-1]
    require_scales((*of.b.shape[:-2], 1, features), of.b_scale, of.b_zero_point)
    if of.bias is not None:
        meet(of.bias.numel, features, f"a bias {of.bias} for {features} features")


@rule("com.microsoft.MatMulIntegerToFloat", product=("a", "b")).takes(
    "a b a_scale b_scale a_zero_point? b_zero_point? bias?"
)
def matmul_integer_to_float(of: Operands) -> Estimate:
    """A product of integers; each result is converted and scaled, and biased."""
    require_scales((), of.a_scale, of.a_zero_point)
    require_features(of)
    return quantized_product(
        matmul(of.a, of.b),
        *zeroed((of.a, of.a_zero_point), (of.b, of.b_zero_point)),
        dtype=of.a_scale.dtype,
        per_result=TO_FLOAT + (of.bias is not None),
        reads=of.but("a b"),
    )


@rule("com.microsoft.DynamicQuantizeMatMul", product=("a", "b")).takes("a b b_scale b_zero_point? bias?")
def dynamic_quantize_matmul(of: Operands) -> Estimate:
    """Quantizes the first operand, eight operations per element; then as MatMulIntegerToFloat."""
    require_features(of)
    narrow = of.a.like(dtype=UINT8)
    zeros = zeroed((narrow, narrow), (of.b, of.b_zero_point))
    per_result = TO_FLOAT + (of.bias is not None)
    product = quantized_product(matmul(narrow, of.b), *zeros, dtype=of.a.dtype, per_result=per_result)
    quantizing = work((MIN_MAX + QUANTIZE) * of.a.numel)
    return fused(product.out, product, quantizing, reads=(*of,), matrix_dtype=INT8)


@rule("com.microsoft.QGemm", product=("a", "b")).takes(
    "a a_scale a_zero_point b b_scale b_zero_point c? y_scale? y_zero_point?"
)
def qgemm(of: Operands, *, transA: int = 0, transB: int = 0) -> Estimate:
    """As Gemm of integers; results are quantized where they have a scale, else floating point."""
    require_scales((), of.a_scale, of.a_zero_point, of.y_scale, of.y_zero_point)
    product = gemm(of.a, of.b, of.c, transA=transA, transB=transB)
    require_scales(only_result(product).shape[-1:], of.b_scale, of.b_zero_point)
    product = replace(product, reads=(of.a, of.b, of.c))
    dtype = (of.a_scale if of.y_zero_point is None else of.y_zero_point).dtype
    per_result = TO_FLOAT if of.y_scale is None else QUANTIZE
    return quantized_product(product, of.a, of.b, dtype=dtype, per_result=per_result, reads=of.but("a b c"))


@rule("com.microsoft.MulInteger", kind="elementwise").takes("a a_zero_point? b b_zero_point?")
def mul_integer(of: Operands) -> Estimate:
    """A multiplication per result, and a subtraction per operand element with a zero point."""
    shifted = sum(x.numel for x in zeroed((of.a, of.a_zero_point), (of.b, of.b_zero_point)))
    product = elementwise(WORK["mul"], of.a, of.b, result=lambda *_: INT32)
    return replace(product.plus(vector_flops=shifted), reads=(*of,))


@rule("com.microsoft.ReduceSumInteger", kind="reduction")
def reduce_sum_integer(x: TensorType, *, axes: tuple[int, ...], keepdims: int) -> Estimate:
    """One addition per element, in 32 bits."""
    return reduction(x, axes, bool(keepdims), UINT32 if x.dtype == UINT8 else INT32)


@rule("com.microsoft.QAttention", product=("x", "weights"), kind="attention").takes(
    "x weights bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?; num_heads "
    "unidirectional=0 do_rotary=0 past_present_share_buffer=0"
)
def qattention(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """As Attention with an integer projection; all matrix work is recorded as int8."""
    product, q, v = project(of.x.like(dtype=of.bias.dtype), of.weights, of.bias, of.num_heads, ())
    keys = (of.past.shape[-2] if of.past is not None else 0) + of.x.shape[1]
    problem = attention_to(q, of.num_heads, keys, v.shape[-1], causal=of.unidirectional != 0)
    zeros = zeroed((of.x, of.input_zero_point), (of.weights, of.weight_zero_point))
    estimate = attended(
        problem,
        merged(q, v.shape[-1]),
        (Cache(of.past, q.like((2, *q.shape)), keys, of.past_present_share_buffer != 0),),
        product,
        work(TO_FLOAT * 3 * q.numel + sum(x.numel for x in zeros)),
        per_score(problem, of.mask_index),
        rotated(*(q, q) * (of.do_rotary != 0)),
        reads=of.but("past"),
        outputs=outputs,
    )
    return replace(estimate, matrix_dtype=INT8)


# Operands in the layouts of cuBLASLt, without zero points.


@rule("com.microsoft.QOrderedMatMul", product=("a", "b")).takes(
    "a scale_a b scale_b scale_y bias? c? scale_c?"
)
def qordered_matmul(of: Operands) -> Estimate:
    """A product of integers; each result takes the bias, a scaled addend, and is quantized."""
    product = matmul(of.a, of.b)
    per_result = FROM_FLOAT + (of.bias is not None) + 2 * (of.c is not None)
    return quantized_product(product, dtype=of.a.dtype, per_result=per_result, reads=of.but("a b"))


@rule("com.microsoft.QOrderedAttention", product=("x", "q_weight"), kind="attention").takes(
    "x scale_input scale_q scale_k scale_v q_weight k_weight v_weight scale_q_weight scale_k_weight scale_v_weight "
    "q_bias k_bias v_bias scale_scores? scale_softmax? scale_values? mask_index? past? attention_bias?"
)
def qordered_attention(of: Operands, *, num_heads: int, unidirectional: int = 0) -> Estimate:
    """Three projections and attention on integers; projections, softmax and results are quantized again."""
    x, widths = of.x, tuple(weight.shape[-1] for weight in of.named("q_weight k_weight v_weight"))
    wide = x.like((x.shape[-1], sum(widths)))
    product, q, v = project(x, wide, of.q_bias, num_heads, widths)
    keys, causal = x.shape[1], unidirectional != 0
    problem = attention_to(q, num_heads, keys, v.shape[-1], of.attention_bias, causal=causal)
    out = merged(q, v.shape[-1])
    requantized = FROM_FLOAT * (x.shape[0] * x.shape[1] * wide.shape[-1] + problem.scores + out.numel)
    parts = (product, problem.forward(), per_score(problem, of.mask_index), work(requantized))
    return fused((out,), *parts, reads=(*of,))


def turned(x: TensorType, transposed: int, batch_first: int = 0) -> TensorType:
    """An operand transposed as the product needs it. batch_first: moves the rows from before the batch to after it."""
    require(not batch_first or x.rank > 2, f"{x} has no batch to stand behind the rows")
    if x.rank < 2:
        return x
    *batch, rows, columns = x.shape
    if batch_first:
        batch, rows = [*batch[1:], rows], batch[0] if batch else rows
    return x.view((*batch, columns, rows) if transposed else (*batch, rows, columns))


@rule("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul", product=("a", "b"))
@takes("a b; alpha=1.0 transA=0 transB=0 transBatchA=0 transBatchB=0")
def fused_matmul(of: Operands, **parameters: object) -> Estimate:
    """A product of operands that may be transposed, scaled by alpha."""
    product = matmul(turned(of.a, of.transA, of.transBatchA), turned(of.b, of.transB, of.transBatchB))
    return product if of.alpha == 1 else product.plus(vector_flops=only_result(product).numel)


@rule("com.microsoft.FusedMatMulActivation", product=("a", "b"))
def fused_matmul_activation(a: TensorType, b: TensorType, *, activation: str, **given: Any) -> Estimate:
    """As FusedMatMul, and an activation."""
    return activated(fused_matmul(a, b, **given), activation)


@rule("com.microsoft.FusedGemm", product=("a", "b"))
def fused_gemm(
    a: TensorType, b: TensorType, c: TensorType | None = None, *, activation: str = "", **given: Any
) -> Estimate:
    """As Gemm, and an activation."""
    return activated(gemm(a, b, c, **given), activation)


@rule("com.microsoft.GemmFloat8", product=("a", "b")).takes(
    "a b c? scale_a? scale_b? scale_y?; activation='NONE' beta=0.0 dtype=1"
)
def gemm_float8(of: Operands, **given: Any) -> Estimate:
    """As Gemm on narrow floats, one operation per result for each scale, and relu or gelu."""
    product, scales = gemm(of.a, of.b, of.c, beta=of.beta, **given), of.but("a b c")
    out = only_result(product).like(dtype=onnx_dtype(of.dtype))
    done = activated(product, of.activation, sum(scale is not None for scale in scales))
    return done.plus(out=(out,), reads=scales)


@rule("com.microsoft.GemmFastGelu", product=("x", "weight"))
def gemm_fast_gelu(x: TensorType, weight: TensorType, bias: TensorType | None = None) -> Estimate:
    """A product, its bias, and gelu by tanh."""
    product = matmul(x, weight)
    biased = product if bias is None else add_product(bias, product, 1, 1)
    return biased.plus(WORK["gelu_tanh"].on(only_result(product).numel))


@rule("com.microsoft.MatMulInteger16", product=("a", "b"))
def matmul_integer16(a: TensorType, b: TensorType) -> Estimate:
    """A product of 16-bit integers accumulated in 32 bits."""
    return matmul_into(a, b, INT32 if "int" in (a.dtype.kind, b.dtype.kind) else UINT32)


rule("com.microsoft.SparseToDenseMatMul", product=("a", "b")).derived(
    fused_matmul,
    says="A product with a sparse first operand, counted as dense because its density is data-dependent.",
)
