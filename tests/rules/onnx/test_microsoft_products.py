"""onnxruntime's products: fused, of few bits, of integers, of experts."""

from __future__ import annotations

import pytest

from graphflops.dims import dim_min, symbol
from graphflops.errors import RuleError, ShapeError
from graphflops.tensor import FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8
from tests.support import price, shapes, t

MS = "com.microsoft."
S, Z = t(), t(dtype=UINT8)


@pytest.mark.parametrize(
    "a, b, settings, out, flops",
    [
        ((2, 3, 4), (2, 5, 4), {"transB": 1}, (2, 3, 5), 2 * 2 * 3 * 4 * 5),
        ((2, 4, 3), (4, 5), {"transA": 1}, (2, 3, 5), 2 * 2 * 3 * 4 * 5),
        ((3, 2, 4), (2, 4, 5), {"transBatchA": 1}, (2, 3, 5), 2 * 2 * 3 * 4 * 5),
        (
            (4, 2, 3),
            (5, 2, 4),
            {"transA": 1, "transBatchA": 1, "transB": 1, "transBatchB": 1},
            (2, 3, 5),
            240,
        ),
        ((4,), (4, 5), {"transA": 1}, (5,), 2 * 4 * 5),
    ],
)
def test_fused_matmul(a, b, settings, out, flops) -> None:
    for op in ("FusedMatMul", "TransposeMatMul")[: 1 if "transBatchA" in settings else 2]:
        estimate = price(MS + op, t(*a), t(*b), **settings)
        assert (shapes(estimate), estimate.matrix_flops, estimate.vector_flops) == ([out], flops, 0)


def test_scales_and_activations() -> None:
    scaled = price(MS + "FusedMatMul", t(3, 4), t(4, 5), alpha=0.125)
    assert scaled.vector_flops == 15
    activated = price(MS + "FusedMatMulActivation", t(3, 4), t(4, 5), alpha=0.125, activation="Sigmoid")
    assert (activated.vector_flops, activated.transcendentals) == (15, 15)
    gemm = price(MS + "FusedGemm", t(3, 4), t(4, 5), t(5), activation="LeakyRelu", activation_alpha=0.1)
    assert (gemm.matrix_flops, gemm.vector_flops) == (120, 15 + 2 * 15)
    clipped = price(MS + "FusedGemm", t(3, 4), t(4, 5), activation="Clip")
    assert clipped.vector_flops == 2 * 15
    gelu = price(MS + "GemmFastGelu", t(2, 3, 4), t(4, 5), t(5))
    assert (shapes(gelu), gelu.vector_flops, gelu.transcendentals) == ([(2, 3, 5)], 30 + 9 * 30, 30)
    with pytest.raises(RuleError, match="unknown activation 'Sharpen'"):
        price(MS + "FusedGemm", t(3, 4), t(4, 5), activation="Sharpen")


def test_narrow_floats() -> None:
    a, b = t(3, 4, dtype="float8_e4m3fn"), t(5, 4, dtype="float8_e4m3fn")
    estimate = price(MS + "GemmFloat8", a, b, None, t(1), t(1), transB=1, dtype=10)
    assert [(x.shape, x.dtype) for x in estimate.out] == [((3, 5), FLOAT16)]
    assert (estimate.matrix_flops, estimate.vector_flops) == (120, 2 * 15)


# Weights of few bits.


def test_weights_of_four_bits_do_the_same_work_on_fewer_bytes() -> None:
    x, weight, scales = t(4, 64), t(128, 2, 16, dtype=UINT8), t(128, 2)
    estimate = price(MS + "MatMulNBits", x, weight, scales, K=64, N=128, bits=4, block_size=32)
    assert shapes(estimate) == [(4, 128)]
    assert estimate.matrix_flops == 65_536
    assert weight.nbytes + scales.nbytes == 4_096 + 1_024
    assert estimate.cost.read_bytes == 4 * 4 * 64 + 4_096 + 1_024
    assert estimate.vector_flops == 3 * 64 * 128
    narrow = price(MS + "MatMulNBits", x, weight, scales, K=64, N=128, block_size=32, accuracy_level=4)
    assert narrow.matrix_dtype is INT8
    assert narrow.vector_flops == 3 * 64 * 128 + 8 * 4 * 64
    with pytest.raises(ShapeError, match="the input has 32 features, the weight takes 64"):
        price(MS + "MatMulNBits", t(4, 32), weight, scales, K=64, N=128, bits=4, block_size=32)


def test_other_weights_of_few_bits() -> None:
    bnb = price(
        *(MS + "MatMulBnb4", t(2, "s", 64), t(64 * 128 // 2, dtype=UINT8), t(128)),
        K=64,
        N=128,
        block_size=64,
        quant_type=1,
    )
    assert (shapes(bnb), bnb.matrix_flops) == ([(2, symbol("s"), 128)], 2 * 2 * symbol("s") * 64 * 128)
    shape = t(2, dtype="int64", value=(64, 128))
    assert shapes(price(MS + "MatMulFpQ4", t(4, 64), t(5000, dtype=UINT8), shape)) == [(4, 128)]
    fp4 = price(
        MS + "MatMulBlockQuantizedFp4Weight",
        t(4, 64, dtype=FLOAT16),
        t(128, 32, dtype=UINT8),
        t(128, 4),
        t(),
        None,
        t(128),
    )
    assert (shapes(fp4), fp4.matrix_flops) == ([(4, 128)], 65_536)


def test_gated_weights_of_few_bits() -> None:
    x, weight, scales = t(1, 4, 64), t(128, 2, 16, dtype=UINT8), t(128, 2)
    settings = {"K": 64, "N": 128, "block_size": 32, "activation": "silu", "outputs": (True, True)}
    mlp = price(MS + "MatMulNBitsMlp", x, x, t(64), weight, scales, None, weight, scales, None, **settings)
    assert shapes(mlp) == [(1, 4, 128), (1, 4, 64)]
    assert mlp.matrix_flops == 2 * 65_536
    # dequantized, added and normalised, gated
    assert mlp.vector_flops == 2 * 3 * 64 * 128 + (1 + 4) * 256 + 2 * 512
    assert mlp.transcendentals == 4 + 512
    qkv = price(
        *(
            MS + "MatMulNBitsQkv",
            x,
            None,
            t(64),
            weight,
            scales,
            None,
            weight,
            scales,
            None,
            weight,
            scales,
            None,
        ),
        K=64,
        Nq=128,
        Nkv=128,
        block_size=32,
        outputs=(True,),
    )
    assert (shapes(qkv), qkv.matrix_flops) == ([(1, 4, 128)], 3 * 65_536)


@pytest.mark.parametrize(
    "data, settings, out, read",
    [
        (t(1000, 32, dtype=UINT8), {"bits": 4}, (2, 3, 64), 6 * 32),
        (t(1000, 64, dtype=UINT8), {"bits": 8}, (2, 3, 64), 6 * 64),
        (t(1000, 64, dtype=INT4), {}, (2, 3, 64), 6 * 32),
    ],
)
def test_rows_of_a_packed_table(data, settings, out, read) -> None:
    operands = (data, t(2, 3, dtype="int64"), t(1000, 2, dtype=FLOAT16))
    estimate = price(MS + "GatherBlockQuantized", *operands, block_size=32, **settings)
    assert [(x.shape, x.dtype) for x in estimate.out] == [(out, FLOAT16)]
    assert estimate.cost.read_bytes == read + 6 * 8 + 6 * 2 * 2
    assert estimate.vector_flops == (3 if settings else 2) * 6 * 64


# Integers.


def test_integers_to_floats() -> None:
    a, b = t(2, 4, 64, dtype=UINT8), t(64, 128, dtype=INT8)
    estimate = price(MS + "MatMulIntegerToFloat", a, b, S, t(128), Z, None, t(128))
    assert [(x.shape, x.dtype) for x in estimate.out] == [((2, 4, 128), FLOAT32)]
    assert (estimate.matrix_flops, estimate.matrix_dtype) == (2 * 65_536, INT8)
    assert estimate.vector_flops == (2 + 1) * 1024 + 2 * 4 * 64
    dynamic = price(MS + "DynamicQuantizeMatMul", t(2, 4, 64), b, t(128))
    assert (dynamic.matrix_flops, dynamic.matrix_dtype) == (2 * 65_536, INT8)
    assert dynamic.vector_flops == 2 * 1024 + 512 + 8 * 512
    assert dynamic.cost.read_bytes == 4 * 512 + 64 * 128 + 4 * 128


def test_quantized_gemm() -> None:
    a, b, c = t(4, 64, dtype=UINT8), t(128, 64, dtype=INT8), t(128, dtype=INT32)
    narrow = price(MS + "QGemm", a, S, Z, b, S, t(dtype=INT8), c, S, Z, transB=1)
    assert [(x.shape, x.dtype) for x in narrow.out] == [((4, 128), UINT8)]
    assert narrow.vector_flops == (6 + 1) * 512 + 256 + 64 * 128
    wide = price(MS + "QGemm", a, S, Z, b, S, t(dtype=INT8), transB=1)
    assert [x.dtype for x in wide.out] == [FLOAT32]


def test_cublas_orders() -> None:
    x, w = t(2, 4, 64, dtype=INT8), t(64, 128, dtype=INT8)
    orders = {"order_A": 1, "order_B": 0, "order_Y": 1}
    product = price(MS + "QOrderedMatMul", x, S, w, S, S, t(128), **orders)
    assert (shapes(product), product.matrix_flops, product.vector_flops) == (
        [(2, 4, 128)],
        2 * 65_536,
        6 * 1024,
    )
    weights = (t(64, 64, dtype=INT8),) * 3
    attention = price(
        MS + "QOrderedAttention", x, *(S,) * 4, *weights, *(S,) * 3, *(t(64),) * 3, S, S, S, num_heads=4
    )
    assert attention.matrix_flops == 2 * 8 * 64 * 192 + 4 * 2 * 4 * 16 * 16
    assert [x.dtype for x in attention.out] == [INT8]


def test_quantized_lstm() -> None:
    x, w, r = t(100, 1, 64), t(1, 64, 256, dtype=INT8), t(1, 64, 256, dtype=INT8)
    estimate = price(
        MS + "DynamicQuantizeLSTM", x, w, r, t(1, 512), outputs=(True, True, True), hidden_size=64
    )
    assert shapes(estimate) == [(100, 1, 1, 64), (1, 1, 64), (1, 1, 64)]
    assert (estimate.matrix_flops, estimate.matrix_dtype) == (6_553_600, INT8)
    w, r = t(2, 64, 256, dtype=INT8), t(2, 64, 256, dtype=INT8)
    stated = {"direction": "bidirectional", "hidden_size": 64, "input_forget": 0}
    both = price(MS + "DynamicQuantizeLSTM", x, w, r, t(2, 512), outputs=(True,), **stated)
    assert shapes(both) == [(100, 2, 1, 64)]
    assert both.matrix_flops == 2 * 6_553_600


# Experts.


def test_a_mixture_counts_chosen_experts_only() -> None:
    x, router = t(2, 3, 16), t(6, 8)
    fc1, fc2, fc3 = t(8, 32, 16), t(8, 16, 32), t(8, 32, 16)
    settings = {"k": 2, "activation_type": "silu"}
    estimate = price(MS + "MoE", x, router, fc1, None, fc2, None, fc3, **settings)
    assert shapes(estimate) == [(2, 3, 16)]
    assert estimate.matrix_flops == 2 * (2 * 6) * 3 * 512
    # softmax of eight, the best two in order; silu and a product; weighted sums
    assert estimate.vector_flops == 6 * (5 * 8 + 2) + 12 * (2 * 32 + 2 * 16)
    assert estimate.cost.read_bytes == 4 * (96 + 48 + 8 * 3 * 512)
    one = price(MS + "MoE", t(1, 1, 16), t(1, 8), fc1, None, fc2, None, fc3, **settings)
    assert one.matrix_flops == 2 * 2 * 3 * 512
    assert one.cost.read_bytes == 4 * (16 + 8 + 2 * 3 * 512)


def test_a_mixture_of_symbolic_tokens_reads_each_expert_at_most_once() -> None:
    tokens = symbol("tokens")
    x, router = t("tokens", 16), t("tokens", 8)
    estimate = price(MS + "MoE", x, router, t(8, 32, 16), None, t(8, 16, 32), k=2)
    assert estimate.matrix_flops == 2 * 2 * tokens * 1024
    assert estimate.cost.read_bytes == 4 * (24 * tokens + 1024 * dim_min(8, 2 * tokens))


def test_experts_of_few_bits() -> None:
    x, router = t(6, 32), t(6, 4)
    fc1, fc2 = t(4, 64, 16, dtype=UINT8), t(4, 32, 16, dtype=UINT8)
    settings = {"k": 1, "activation_type": "swiglu", "swiglu_fusion": 1}
    estimate = price(MS + "QMoE", x, router, fc1, t(4, 64), None, fc2, t(4, 32), **settings)
    assert estimate.matrix_flops == 2 * 6 * (64 * 32 + 32 * 32)
    assert estimate.cost.read_bytes == 4 * (6 * 32 + 6 * 4) + 4 * (64 * 16 + 32 * 16) + 4 * 4 * (64 + 32)
    dequantized = 3 * 4 * (64 * 32 + 32 * 32)
    assert estimate.vector_flops == 6 * 5 * 4 + 6 * (2 * 32 + 2 * 32) + dequantized
    eight = price(
        MS + "QMoE",
        x,
        router,
        t(4, 64, 32, dtype=UINT8),
        None,
        None,
        t(4, 32, 32, dtype=UINT8),
        None,
        expert_weight_bits=8,
        **settings,
    )
    assert eight.matrix_flops == estimate.matrix_flops
