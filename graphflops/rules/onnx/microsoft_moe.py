"""onnxruntime's mixtures of experts: every token goes through the `k` experts that its router rates highest.

FLOPs are those of the chosen experts only; weights are read for as many experts as tokens can choose at most.
Dequantizing is counted once for each weight that is read.

Products with weights of few bits, and gathers from such tables, are here too. Products are computed in the type of the
activations; every weight is converted to that type once, and is read at its packed width.
"""

from typing import NamedTuple

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, dim_min, floor_div, meet, prod, same
from graphflops.rules.elementwise import WORK, Work, activation_named
from graphflops.rules.lapack import n_log_n
from graphflops.rules.matmul import matmul
from graphflops.rules.norm import MEAN_SQUARE, normalised
from graphflops.rules.onnx.entries import fused, sizes, work
from graphflops.rules.operands import Operands
from graphflops.rules.quantized import DEQUANTIZE, MIN_MAX, QUANTIZE, weight_only
from graphflops.rules.reduce import SOFTMAX
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis_of, only_result
from graphflops.tensor import FLOAT8, FLOAT32, INT8, UINT8, DType, TensorType

KIND = "product"

COMBINED = 2  # an expert's result is multiplied by its weight and added to the others'


class ExpertLayer(NamedTuple):
    """One layer of all experts: weights (experts, ...), bias, quantization parameters, weights per stored element."""

    weights: TensorType
    bias: TensorType | None = None
    parameters: tuple[TensorType | None, ...] = ()
    packed: int = 1


def gate(of: Operands, apart: bool) -> Work:
    """Work per hidden element of the activation between two layers, times a third layer's result if `apart`."""
    row = activation_named(of.activation_type)
    if of.activation_type != "swiglu":
        return row.more(apart)
    limits = 3 * (of.swiglu_limit is not None)
    return row.more((of.activation_alpha != 1) + (of.activation_beta != 0) + limits)


ROUTING = "k=1 normalize_routing_weights=0"
ACTIVATION = "activation_type='relu' activation_alpha=1.0 activation_beta=0.0 swiglu_limit=None"


def mixture(of: Operands, layers: tuple[ExpertLayer, ...], *more: TensorType | None) -> Estimate:
    """The layers into the hidden width and back, and an optional third one in parallel with the first."""
    x, router = of.named("x router_probs")
    tokens, hidden, experts = prod(x.shape[:-1]), x.shape[-1], router.shape[-1]
    used, touched = of.k * tokens, dim_min(experts, of.k * tokens)
    # weights of an expert
    sizes = [floor_div(layer.packed * layer.weights.numel, experts) for layer in layers]
    packed = [size for layer, size in zip(layers, sizes, strict=True) if layer.parameters]
    inner = floor_div(sizes[1], hidden)
    widths = (floor_div(sizes[0], hidden), hidden, inner)
    row = gate(of, len(layers) > 2)
    biased = sum(width for layer, width in zip(layers, widths, strict=False) if layer.bias is not None)
    # softmax over the experts and selection of the best `k`, optionally with weights normalised to sum one
    per_token = (SOFTMAX + 1) * experts + n_log_n(of.k) + (2 * of.k if of.normalize_routing_weights else 0)
    parts = (
        Estimate(matrix_flops=2 * used * sum(sizes)),
        work(tokens * per_token, tokens * experts),
        work(used * (row.flops * inner + biased + COMBINED * hidden), used * row.transcendentals * inner),
        work(DEQUANTIZE * touched * sum(packed)),
    )
    held = [tensor for layer in layers for tensor in (layer.weights, layer.bias, *layer.parameters) if tensor]
    # tensors with an axis of experts are read in part, others whole
    of_experts = [y.rank > 0 and same(y.shape[0], experts) for y in held]
    reads = (y.like((touched, *y.shape[1:])) if of else y for y, of in zip(held, of_experts, strict=True))
    return fused((x.like(),), *parts, reads=(x, router, *reads, *more))


@rule("com.microsoft.MoE", product=("x", "fc1")).takes(
    f"x router_probs fc1 fc1_bias? fc2 fc2_bias? fc3? fc3_bias?; {ROUTING} {ACTIVATION}"
)
def moe(of: Operands) -> Estimate:
    """The layers of the chosen experts for every token."""
    stored = map(of.named, ("fc1 fc1_bias", "fc2 fc2_bias", "fc3 fc3_bias"))
    return mixture(of, tuple(ExpertLayer(*layer) for layer in stored if layer[0] is not None))


@rule("com.microsoft.QMoE", product=("x", "fc1")).takes(
    "x router_probs fc1 fc1_scales? fc1_bias? fc2 fc2_scales? fc2_bias? fc3? fc3_scales? fc3_bias? fc1_zero_points? "
    "fc2_zero_points? fc3_zero_points? router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? "
    "fc2_act_scale? fc1_act_block_scale? fc2_act_block_scale?; expert_weight_bits=4 fc1_expert_weight_bits=0 "
    f"fc2_expert_weight_bits=0 fc3_expert_weight_bits=0 {ROUTING} {ACTIVATION}"
)
def qmoe(of: Operands) -> Estimate:
    """As MoE with weights of few bits, several to a byte, which become the activations' type for the products."""
    stored = (
        (of.fc1, of.fc1_bias, (of.fc1_scales, of.fc1_zero_points, of.fc1_global_scale)),
        (of.fc2, of.fc2_bias, (of.fc2_scales, of.fc2_zero_points, of.fc2_global_scale)),
        (of.fc3, of.fc3_bias, (of.fc3_scales, of.fc3_zero_points)),
    )
    bits = (of.fc1_expert_weight_bits, of.fc2_expert_weight_bits, of.fc3_expert_weight_bits)
    layers = []
    for (weights, bias, parameters), own in zip(stored, bits, strict=True):
        if weights is not None:
            # Narrow floats: one to an element.
            width = 8 if weights.dtype.is_floating else own or of.expert_weight_bits
            layers.append(ExpertLayer(weights, bias, parameters, weights.dtype.bits // width))
    read = of.named("router_weights fc1_act_scale fc2_act_scale fc1_act_block_scale fc2_act_block_scale")
    return mixture(of, tuple(layers), *read)


LOOKED_UP = 2  # look a code up in a table 1, multiply by its block's scale 1
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
    meet(x.shape[-1], inner, f"the input has {x.shape[-1]} features, the weight takes {inner}")
    product = weight_only(x, features, per_weight, *weight, bias)
    return product.plus(vector_flops=only_result(product).numel if bias is not None else 0)


def narrowed(x: TensorType, product: Estimate, dtype: DType) -> Estimate:
    """The product in another type, to which the activations are quantized first."""
    return product.plus(vector_flops=(MIN_MAX + QUANTIZE) * x.numel, matrix_dtype=dtype)


@rule("com.microsoft.MatMulNBits").takes(
    "x weight scales zero_points? group_index? bias?; K N block_size bits=4 accuracy_level=0"
)
def matmul_nbits(of: Operands) -> Estimate:
    """Three operations dequantize each weight; the default zero point is the middle of the range."""
    K, N, block_size, bits = of.K, of.N, of.block_size, of.bits
    require(block_size >= 16 and block_size & (block_size - 1) == 0, f"blocks of {block_size} weights")
    blocks = -(-K // block_size)
    stated = N * blocks * (block_size * bits // 8)  # bytes
    told = f"for {N} features in {blocks} blocks"
    meet(of.weight.nbytes, stated, f"a weight {of.weight} {told} of {block_size}")
    meet(of.scales.numel, N * blocks, f"scales {of.scales} {told}")
    if of.zero_points is not None:
        each = blocks if of.zero_points.dtype.is_floating else -(-blocks * bits // 8)
        meet(of.zero_points.numel, N * each, f"zero points {of.zero_points} {told}")
    product = by_weight(of.x, K, N, DEQUANTIZE, *of.but("x bias"), bias=of.bias)
    return narrowed(of.x, product, INT8) if of.accuracy_level == INT8_ACTIVATIONS else product


@rule("com.microsoft.MatMulBnb4").takes("x weight absmax")
def matmul_bnb4(of: Operands, *, K: int, N: int, transB: int = 1) -> Estimate:
    """A table look-up and a scale per weight."""
    inner, features = (K, N) if transB else (N, K)
    return by_weight(of.x, inner, features, LOOKED_UP, of.weight, of.absmax, bias=None)


@rule("com.microsoft.MatMulFpQ4")
def matmul_fpq4(x: TensorType, weight: TensorType, shape: TensorType) -> Estimate:
    """Dequantizes each weight; the weight's shape is an operand, its scales are stored between its blocks."""
    inner, features = sizes(shape) or (x.shape[-1], data_dependent("features"))
    return by_weight(x, inner, features, DEQUANTIZE, weight, bias=None)


@rule("com.microsoft.MatMulBlockQuantizedFp4Weight").takes("x weight scales global_scale input_scale? bias?")
def matmul_fp4(of: Operands) -> Estimate:
    """A conversion and a scale per weight; block scale and global scale are multiplied beforehand."""
    features, halved = of.weight.shape
    read = of.named("weight scales global_scale")
    return by_weight(of.x, 2 * halved, features, LOOKED_UP, *read, bias=of.bias)


@rule("com.microsoft.MatMulBlockQuantizedFp8Weight").takes("x weight scales input_scale? bias?")
def matmul_fp8(of: Operands) -> Estimate:
    """A conversion and a scale per weight; with an input scale the activations are float8 too."""
    features, inner = of.weight.shape
    product = by_weight(of.x, inner, features, LOOKED_UP, *of.but("x bias"), bias=of.bias)
    return product if of.input_scale is None else narrowed(of.x, product, FLOAT8[0])


@rule("com.microsoft.MatMulPacked").takes("x weight global_scale?; K N activation_type='none'")
def matmul_packed(of: Operands) -> Estimate:
    """A conversion and a scale per weight, whatever its packed format; the result may be activated."""
    product = by_weight(of.x, of.K, of.N, LOOKED_UP, of.weight, of.global_scale, bias=None)
    rows = {"none": Work(""), "silu": WORK["silu"]}
    done = rows.get(of.activation_type, WORK["relu"].more(1)).on(only_result(product).numel)  # else squared
    return product.plus(done)


def several(
    of: Operands, products: tuple[Estimate, ...], out: tuple[TensorType, ...], *more: Estimate
) -> Estimate:
    """Several products of one input, which may be summed and normalised first; the sum is a result of its own."""
    x, skip, scale = of.named("x skip norm_scale")
    results = (*out, x.like() if skip is not None else None)
    reads = (x, skip, scale, *(read for product in products for read in product.reads[1:]))
    added = work(x.numel if skip is not None else 0)
    norm = Estimate() if scale is None else normalised(x, prod(x.shape[:-1]), scale, statistics=MEAN_SQUARE)
    return fused(results, added, norm, *products, *more, reads=reads)


@rule("com.microsoft.MatMulNBitsMlp").takes(
    "x skip? norm_scale? gate gate_scales gate_bias? up up_scales up_bias?"
)
def matmul_nbits_mlp(of: Operands, *, K: int, N: int, activation: str) -> Estimate:
    """Two products of one input; the first is activated and multiplied with the second."""
    products = tuple(
        by_weight(of.x, K, N, DEQUANTIZE, weight, scales, bias=bias)
        for weight, scales, bias in map(of.named, ("gate gate_scales gate_bias", "up up_scales up_bias"))
    )
    out = only_result(products[0])
    gating = activation_named(activation).more(WORK["mul"].flops).on(out.numel)
    return several(of, products, (out,), gating)


@rule("com.microsoft.MatMulNBitsQkv").takes(
    "x skip? norm_scale q q_scales q_bias? k k_scales k_bias? v v_scales v_bias?"
)
def matmul_nbits_qkv(of: Operands, *, K: int, Nq: int, Nkv: int) -> Estimate:
    """Three products of one normalised input."""
    weights = map(of.named, ("q q_scales q_bias", "k k_scales k_bias", "v v_scales v_bias"))
    products = tuple(
        by_weight(of.x, K, features, DEQUANTIZE, weight, scales, bias=bias)
        for (weight, scales, bias), features in zip(weights, (Nq, Nkv, Nkv), strict=True)
    )
    return several(of, products, tuple(map(only_result, products)))


@rule("com.microsoft.GatherBlockQuantized").takes("data indices scales zero_points?")
def gather_block_quantized(of: Operands, *, bits: int = 4, gather_axis: int = 0) -> Estimate:
    """The rows returned, read at their packed width, several values to a byte, with their scales, and dequantized."""
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


@rule("com.microsoft.MoEGroupRouter").takes("x expert_bias projection?; top_k")
def moe_group_router(of: Operands) -> Estimate:
    """A sigmoid and a bias per expert, two comparisons, a logarithm for each one chosen; or a projection, and no choice."""
    x, tokens, experts = of.x, prod(of.x.shape[:-1]), of.expert_bias.shape[0]
    scored, chosen = WORK["sigmoid"].more(1).on(tokens * experts), Estimate()
    if of.projection is None:
        meet(x.shape[-1], experts, f"{of.expert_bias} for scores {x}")
        chosen = work(2 * tokens * experts + tokens * of.top_k, tokens * of.top_k)
    else:
        chosen = matmul(x, of.projection.view(of.projection.shape[::-1]))
    scores = TensorType((tokens, experts), FLOAT32)
    return fused((x.like(scores.shape), scores, scores), scored, chosen, reads=(*of,))
