"""onnxruntime's operators that exporters seldom write: quantised, sparse and recurrent ones, and its layouts of devices."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

MS, NHWC = "com.microsoft.", "com.ms.internal.nhwc."
NUMBER, BYTES, ZERO = t(), t(4, 8, dtype="int8"), t(dtype="int8")
IDS, TABLE = t(5, dtype="int64"), t(20, 34, dtype="uint8")
SCORES = "float32[6, 8] float32[6, 8] float32[6, 8]"
GRAMS = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 0}
ORDERS = {"order_input": 1, "order_output": 0}


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "vector", "evaluations", "out"),
    [
        ("onnx.Hardmax.1", (t(3, 4),), {}, 12, 0, "float32[3, 4]"),
        ("onnx.Hardmax.11", (t(3, 4),), {}, 12, 0, "float32[3, 4]"),
        ("onnx.Scale.1", (t(8),), {"scale": 2.0}, 8, 0, "float32[8]"),
        ("onnx.ScaledTanh.1", (t(8),), {}, 2 * 8, 8, "float32[8]"),
        ("onnx.ParametricSoftplus.1", (t(8),), {}, 3 * 8, 2 * 8, "float32[8]"),
        # A bias and a residual are added; in inference nothing is dropped. The mask is a bit per element.
        (MS + "BitmaskBiasDropout.1", (t(4, 8), t(8), t(4, 8)), {"outputs": (True, True)}, 64, 0, "float32[4, 8] uint32[1]"),
        (MS + "MulInteger.1", (BYTES, ZERO, BYTES, None), {}, 32 + 32, 0, "int32[4, 8]"),  # a zero point off one operand
        (MS + "ReduceSumInteger.1", (t(4, 8, dtype="uint8"),), {"axes": (1,), "keepdims": 0}, 32, 0, "uint32[4]"),
        (MS + "ReduceSumInteger.1", (BYTES,), {"axes": (1,), "keepdims": 1}, 32, 0, "int32[4, 1]"),
        (MS + "QuantizeWithOrder.1", (t(4, 8), NUMBER), ORDERS, 5 * 32, 0, "int8[4, 8]"),
        (MS + "DequantizeWithOrder.1", (BYTES, NUMBER), ORDERS | {"to": 1}, 64, 0, "float32[4, 8]"),
        # From integers 2, normalise with weight and bias 7, to integers 5.
        (MS + "QOrderedLayerNormalization.1", (BYTES, NUMBER, t(8), t(8), NUMBER), {}, (2 + 7 + 5) * 32, 4, "int8[4, 8]"),
        (MS + "SwiGLU.1", (t(4, 8), t(4, 8)), {}, 2 * 32, 32, "float32[4, 8]"),
        # Halves of one operand; the gate is clamped at one end and the other half at both, to which a number is added.
        (MS + "SwiGLU.1", (t(4, 16),), {"limit": 7.0, "activation_beta": 1.0}, (2 + 3 + 1) * 32, 32, "float32[4, 8]"),
        (MS + "GatherPacked.1", (TABLE, IDS), {"K": 32, "packed_type": 8}, 2 * 160, 0, "bfloat16[5, 32]"),
        # A sigmoid and a bias for each of 6 x 8 scores, two comparisons; the logarithm of no less than a number for 6 x 2.
        (MS + "MoEGroupRouter.1", (t(2, 3, 8), t(8)), {"top_k": 2}, 3 * 48 + 12, 48 + 12, SCORES),
        # Two requests of 5 tokens: 3 products and 2 exclusive ors for each, a remainder for 2 n-grams and 2 heads.
        (MS + "VarlenNGramHashMapping.1", (IDS, IDS, IDS, t(3, dtype="int32")), GRAMS, 5 * 5 + 5 * 4, 0,
         "int64[5, 4] int64[2, 2] int32[2, 2]"),
    ],
)  # fmt: skip
def test_elementwise_operators(
    op: str, operands: tuple[Any, ...], attributes: dict[str, Any], vector: int, evaluations: int, out: str
) -> None:
    estimate = price(op, *operands, **attributes)
    assert (estimate.vector_flops, estimate.transcendentals, estimate.matrix_flops) == (
        vector,
        evaluations,
        0,
    )
    assert " ".join(map(str, estimate.out)) == out


def test_products_of_packed_weights_and_of_a_router() -> None:
    """Bytes become 32 x 16 weights, each of 4 x 16 results is compared and squared; of 6 x 8 scores none is chosen."""
    sizes = {"K": 32, "N": 16, "packed_type": 8}
    packed = price(
        MS + "MatMulPacked.1", t(4, 32), t(16, 34, dtype="uint8"), **sizes, activation_type="relu2"
    )
    assert (shapes(packed), packed.matrix_flops) == ([(4, 16)], 2 * 4 * 32 * 16)
    assert (packed.vector_flops, packed.cost.read_bytes) == (2 * 32 * 16 + 2 * 4 * 16, 4 * 32 * 4 + 16 * 34)
    router = price(MS + "MoEGroupRouter.1", t(6, 4), t(8), t(8, 4), top_k=2)
    assert (shapes(router), router.matrix_flops) == ([(6, 8)] * 3, 2 * 6 * 4 * 8)
    assert (router.vector_flops, router.transcendentals) == (6 * 8, 6 * 8)


def test_blocks_that_share_an_exponent_keep_the_shape_beside_them() -> None:
    blocks, shape, strides = price(MS + "QuantizeBFP.1", t(4, 8), bfp_type=0).out
    assert (blocks.shape, blocks.dtype.name) == ((symbol("bfp_bytes?"),), "uint8")
    assert (shape.value, strides.shape) == ((4, 8), (2,))
    assert price(MS + "DequantizeBFP.1", blocks, shape, strides, bfp_type=0).out == (t(4, 8),)


IMAGE, TURNED = t(2, 4, 8, 8), t(2, 8, 8, 4)
HALVED = {"kernel_shape": (2, 2), "strides": (2, 2)}


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("ConvTranspose.11", (t(4, 6, 2, 2),), {"strides": (2, 2)}),
        ("AveragePool.22", (), HALVED),
        ("LpPool.22", (), HALVED),
        ("GlobalMaxPool.22", (), {}),
        ("GlobalAveragePool.22", (), {}),
        ("GlobalLpPool.22", (), {}),
        ("LRN.13", (), {"size": 3}),
        ("BatchNormalization.15", (t(4), t(4), t(4), t(4)), {}),
        ("InstanceNormalization.6", (t(4), t(4)), {}),
        ("DepthToSpace.13", (), {"blocksize": 2}),
        ("SpaceToDepth.13", (), {"blocksize": 2}),
        ("GridSample.20", (t(2, 5, 5, 2),), {}),
    ],
)
def test_channels_at_the_end_cost_what_channels_after_the_batch_do(
    op: str, operands: Any, attributes: Any
) -> None:
    plain = price("onnx." + op, IMAGE, *operands, **attributes)
    turned = price(NHWC + op, TURNED, *operands, **attributes)
    assert turned.cost == plain.cost
    batch, channels, *places = plain.out[0].shape
    assert turned.out[0].shape == (batch, *places, channels)


def test_quantised_operators_with_channels_at_the_end() -> None:
    x, w = t(2, 8, 8, 4, dtype="int8"), t(6, 4, 3, 3, dtype="int8")
    conv = price(NHWC + "QLinearConv.1", x, NUMBER, ZERO, w, NUMBER, ZERO, NUMBER, ZERO, pads=(1, 1, 1, 1))
    assert (shapes(conv), conv.matrix_flops) == ([(2, 8, 8, 6)], 2 * (2 * 6 * 64) * (4 * 9))
    pool = price(NHWC + "QLinearAveragePool.1", x, NUMBER, ZERO, NUMBER, ZERO, **HALVED)
    assert shapes(pool) == [(2, 4, 4, 4)]


# Attention.


def test_a_step_of_decoding_with_its_projection() -> None:
    operands = (t(2, 1, 8), t(8, 24), t(24), None, t(2, 2, 2, 5, 4))
    step = price(MS + "DecoderMaskedSelfAttention.1", *operands, num_heads=2, outputs=(True,))
    # The projection to queries, keys and values; then 2 heads of 2 sequences see 5 keys of the past and their own.
    assert step.matrix_flops == 2 * 2 * 8 * 24 + 2 * 2 * (2 * 2 * 6) * 4
    assert shapes(step) == [(2, 1, 8)]


CACHE = t(1, 2, 64, 4)
LENGTH, LAST = t(1, dtype="int32"), t(dtype="int32", value=4)
GROUPED = {"num_heads": 4, "kv_num_heads": 2}
QKV = (t(1, 4, 16), t(1, 4, 8), t(1, 4, 8))


def test_attention_to_blocks_hides_what_causality_hides() -> None:
    blocks = (t(1, 3, dtype="int32"), t(1, 3, dtype="int32"))
    estimate = price(
        *(MS + "SparseAttention.1", *QKV, CACHE, CACHE, *blocks, LAST, LENGTH),
        **GROUPED,
        sparse_block_size=16,
    )
    assert (estimate.matrix_flops, estimate.masked_flops) == (4 * 4 * 16 * 4, 4 * 4 * 6 * 4)
    assert shapes(estimate)[0] == (1, 4, 16)


def test_attention_to_selected_keys() -> None:
    """4 heads of 4 rows meet 3 selected keys each."""
    chosen = (t(1, 2, 4, 3, dtype="int32"), t(1, 2, 4, dtype="int32"))
    dense = price(MS + "DynamicSparseAttention.1", *QKV, *(None,) * 4, *chosen, LENGTH, LAST, **GROUPED)
    assert (dense.matrix_flops, shapes(dense)[0]) == (4 * (4 * 4 * 3) * 4, (1, 4, 16))
    pages, table = t(10, 16, 2, 4), t(1, 5, dtype="int32")
    chosen = (t(4, 3, dtype="int32"), t(4, dtype="int32"))
    tokens = (t(4, 16), t(4, 8), t(4, 8), pages, pages, t(2, dtype="int32"), LENGTH, table, None)
    paged = price(MS + "SparsePagedAttention.1", *tokens, *chosen, **GROUPED)
    assert (paged.matrix_flops, shapes(paged)[0]) == (4 * (4 * 4 * 3) * 4, (4, 16))
    # The result, and the new rows of keys and values; pages stay where they are.
    assert paged.cost.written_bytes == 4 * (4 * 16) + 2 * 4 * (4 * 2 * 4)


def longformer(op: str, x: TensorType, *between: TensorType) -> Any:
    weight = t(8, 24, dtype=x.dtype)
    plain = (x, weight, t(24), t(1, 64), weight, t(24), t(1, 64, dtype="int32"))
    ordered = (x, NUMBER, weight, NUMBER, t(24), NUMBER, NUMBER, t(1, 64), weight, NUMBER, t(24), NUMBER)
    operands = (*ordered, plain[-1], NUMBER) if between else plain
    return price(MS + op, *operands, num_heads=2, window=16)


def test_a_quantised_longformer_converts_projections_and_results() -> None:
    plain = longformer("LongformerAttention.1", t(1, 64, 8))
    ordered = longformer("QOrderedLongformerAttention.1", t(1, 64, 8, dtype="int8"), NUMBER)
    assert (ordered.matrix_flops, ordered.masked_flops) == (plain.matrix_flops, plain.masked_flops)
    assert ordered.vector_flops - plain.vector_flops == 5 * 64 * (24 + 24 + 8)


# Products and recurrences.


def test_a_sparse_first_operand_counts_as_if_it_were_dense() -> None:
    assert price(MS + "SparseToDenseMatMul.1", t(4, 8), t(8, 3)).matrix_flops == 2 * 4 * 8 * 3


def test_a_product_with_weights_of_eight_bits() -> None:
    weight = t(128, 64, dtype="float8_e4m3fn")
    estimate = price(MS + "MatMulBlockQuantizedFp8Weight.1", t(4, 64), weight, t(1, 1), None, t(128))
    assert (estimate.matrix_flops, shapes(estimate)) == (2 * 4 * 64 * 128, [(4, 128)])
    # A conversion and a scale for each weight, a bias for each result.
    assert estimate.vector_flops == 2 * 128 * 64 + 4 * 128
    assert estimate.cost.read_bytes == 4 * (4 * 64) + 128 * 64 + 4 + 4 * 128


def test_a_gated_delta_rule_is_three_products_of_the_state_for_each_row() -> None:
    """The state (8, 4) times the key, the update by key and value, the state times the query: 6 rows of 2 heads."""
    operands = (t(6, 2, 4), t(6, 2, 4), t(6, 2, 8), t(3, dtype="int32"), t(6, 2), t(6, 2), t(2, 2, 8, 4))
    estimate = price(MS + "GatedDeltaNet.1", *operands, outputs=(True, True))
    assert estimate.matrix_flops == 6 * 2 * 3 * (2 * 8 * 4)
    assert shapes(estimate) == [(6, 2, 8), (2, 2, 8, 4)]


@pytest.mark.parametrize(
    ("attributes", "vector", "evaluations"),
    [
        # Queries and keys: a square, a sum, a product for each of 4 elements of 6 rows of 2 heads; a root for each row.
        ({"qk_l2_norm": 1}, 3 * 4 * (2 * 6 * 2), 2 * 6 * 2),
        # Each of 6 * 2 decays: the bias added, the softplus' own sum, scaled; an exponential and a logarithm.
        ({"gate_activation": "softplus"}, 3 * 12, 2 * 12),
        ({"beta_activation": "sigmoid"}, 0, 12),
    ],
)
def test_gates_and_norms_of_a_delta_rule(attributes: dict[str, Any], vector: int, evaluations: int) -> None:
    operands = (t(6, 2, 4), t(6, 2, 4), t(6, 2, 8), t(3, dtype="int32"), t(6, 2), t(6, 2), t(2, 2, 8, 4))
    plain = price(MS + "GatedDeltaNet.1", *operands)
    more = price(MS + "GatedDeltaNet.1", *operands, **attributes)
    assert more.vector_flops - plain.vector_flops == vector
    assert more.transcendentals - plain.transcendentals == evaluations


def test_a_gate_of_the_product_of_normed_keys_and_queries() -> None:
    """4 rows of 8: two norms of 4 operations per element, a dot product of 2, the gated value 1; 4 more for each row."""
    operands = (t(4, 8), t(4, 8), t(4, 8), t(8), t(8))
    gated = price(MS + "EngramGate.1", *operands)
    assert (gated.vector_flops, gated.transcendentals) == ((2 * 4 + 2 + 1) * 32 + 4 * 4, 4 * 4)
    normed = price(MS + "EngramGate.1", *operands, t(8))
    assert (normed.vector_flops, normed.transcendentals) == ((3 * 4 + 2 + 1) * 32 + 4 * 4, 5 * 4)


def test_a_transform_along_two_axes() -> None:
    """16 real lanes of 16 at half the work, then 2 * 9 complex ones of 8, each 5 n log n."""
    transform = price(MS + "Rfft.1", t(2, 8, 16), signal_ndim=2)
    assert transform.vector_flops == 16 * (5 * 16 * 4 // 2) + 18 * (5 * 8 * 3)
    assert shapes(transform) == [(2, 8, 9, 2)]


def test_a_causal_convolution_of_packed_rows() -> None:
    operands = (t(6, 8), t(8, 1, 4), t(3, dtype="int32"), t(8), t(2, 8, 3))
    estimate = price(MS + "VarlenCausalConvWithState.1", *operands, outputs=(True, True))
    assert (estimate.matrix_flops, estimate.vector_flops) == (2 * 6 * 8 * 4, 6 * 8)
    assert shapes(estimate) == [(6, 8), (2, 8, 3)]


def test_an_lstm_that_attends_to_a_memory() -> None:
    """5 steps of 3 rows; input 8 and context 6 wide, hidden 4, 9 places of memory 6 wide, attention 7 wide."""
    weights = (t(1, 16, 8 + 6), t(1, 16, 4), t(1, 32))
    attention = (t(1, 4, 7), t(1, 6, 7), t(1, 7), t(3, 9, 6), t(3, dtype="int32"), None)
    estimate = price(
        *(MS + "AttnLSTM.1", t(5, 3, 8), *weights, None, None, None, None, *attention),
        hidden_size=4,
        outputs=(True, True, True),
    )
    gates, keys = 2 * 5 * 3 * 16 * (14 + 4), 2 * (3 * 9) * 6 * 7
    queries, scores, context = 2 * 5 * 3 * 4 * 7, 2 * 5 * 3 * 9 * 7, 2 * 5 * 3 * 9 * 6
    assert estimate.matrix_flops == gates + keys + queries + scores + context
    assert shapes(estimate) == [(5, 1, 3, 4), (1, 3, 4), (1, 3, 4)]
