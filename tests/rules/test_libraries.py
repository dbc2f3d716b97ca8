"""Operators that libraries register: products of experts, sparse and narrow products, gradients of box operators."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from graphflops.passes.price_call import price_call
from graphflops.rules import find
from graphflops.tensor import BFLOAT16, FLOAT32
from tests.support import price, shapes, t

s = symbol("s")
i8, f8 = "int8", "float8_e4m3fn"


@pytest.mark.parametrize(
    ("op", "operands", "result", "matrix", "vector"),
    [
        # 12 tokens through 8 experts of 64 x 96: each token is multiplied by the matrix of one expert.
        (
            "transformers.grouped_mm_fallback",
            (t(12, 64), t(8, 64, 96), t(8, dtype="int32")),
            (12, 96),
            2 * 12 * 64 * 96,
            0,
        ),
        (
            "transformers.grouped_mm_fallback",
            (t("s", 64), t(8, 64, 96), t(8, dtype="int32")),
            (s, 96),
            2 * s * 64 * 96,
            0,
        ),
        (
            "transformers.grouped_mm_fallback_backward",
            (t(12, 64), t(8, 64, 96), t(8, dtype="int32"), t(12, 96)),
            (12, 64),
            2 * 2 * 12 * 64 * 96,
            0,
        ),
        # 10 rows of 4 heads, each with 3 blocks of 16 keys; two products of 32 multiply-adds per score.
        (
            "transformers_msa.sparse_atten",
            (t(10, 4, 32), t(90, 2, 32), t(90, 2, 32), t(10, 3), t(2), t(2), 3, 16, 90, 10, 90, 2, 0.1, ""),
            (10, 4, 32),
            2 * 10 * 4 * 3 * 16 * (32 + 32),
            10 * 4 * 3 * 16 * (1 + 4),
        ),
        (
            "_diffusers_flash_attn_3._flash_attn_forward",
            (t(2, 10, 4, 32), t(2, 20, 4, 32), t(2, 20, 4, 32)),
            (2, 10, 4, 32),
            2 * 2 * 4 * 10 * 20 * (32 + 32),
            2 * 4 * 10 * 20 * (1 + 4),
        ),
        ("torchao.int_matmul", (t(4, 8, dtype=i8), t(8, 6, dtype=i8)), (4, 6), 2 * 4 * 8 * 6, 0),
        (
            "torchao.int_scaled_matmul",
            (t(4, 8, dtype=i8), t(8, 6, dtype=i8), t(4, 1)),
            (4, 6),
            2 * 4 * 8 * 6,
            4 * 6,
        ),
        ("torchao.swizzle_mm", (t(4, 8), t(8, 6), False, True), (4, 6), 2 * 4 * 8 * 6, 0),
        (
            "torchao.mx_fp8_bf16",
            (t(4, 32, dtype=f8), t(32, 6, dtype=f8), t(4, 1), t(6, 1)),
            (4, 6),
            2 * 4 * 32 * 6,
            0,
        ),
        (
            "torchao.float8_linear_cpu",
            (t(4, 64, dtype=f8), t(4, 1), t(2, 1, 64, 32, dtype=f8), t(64), t(64), FLOAT32),
            (4, 64),
            2 * 4 * 64 * 64,
            (2 + 1) * 4 * 64,
        ),
        (
            "torchao.da8w4_linear_cpu",
            (t(4, 64, dtype=i8), t(4), t(4), t(2, 1, 64, 16, dtype=i8), t(64), t(64), t(64), None, FLOAT32),
            (4, 64),
            2 * 4 * 64 * 64,
            3 * 4 * 64,
        ),
        # Half of 64 weights a row are stored.
        (
            "torchao.rowwise_scaled_linear_sparse_cutlass_f8f8",
            (t(4, 64, dtype=f8), t(4, dtype=BFLOAT16), t(48, 32, dtype=f8), t(48, 16, dtype=i8), t(48)),
            (4, 48),
            2 * 4 * 48 * 32,
            2 * 4 * 48,
        ),
        (
            "float8_sparse.fp8_sparse_mm",
            (t(4, 64, dtype=f8), t(1728), None, t(), 48, 16),
            (4, 48),
            4 * 64 * 48,
            4 * 48,
        ),
        # 5 blocks of 16 x 16.
        (
            "blocksparse.addmm",
            (t(64, 10), t(5), t(5), t(5, 16, 16), 32, 64, None),
            (32, 10),
            2 * 5 * 16 * 16 * 10,
            0,
        ),
        (
            "blocksparse.int_addmm",
            (t(3), t(5), t(5, 16, 16, dtype=i8), t(64, 10, dtype=i8), t(32), t(10)),
            (10, 32),
            2 * 5 * 16 * 16 * 10,
            2 * 10 * 32,
        ),
        # 2 groups of 32 weights: a scale and a sum for each, then the rows' scale and the bias.
        (
            "torchao.reference_dqlinear_int4",
            (t(4, 64), 1e-5, t(48, 64, dtype=i8), t(48, 2), t(48, 2), t(48), (1, 32)),
            (4, 48),
            2 * 4 * 64 * 48,
            (2 + 6) * 4 * 64 + (1 + 1 + 2 * 2) * 4 * 48,
        ),
        (
            "torchao._scaled_embedding_bag",
            (t(1000, 32, dtype=i8), t(70, dtype="int64"), t(11, dtype="int64"), t(), 1.0, 0, True, FLOAT32),
            (10, 32),
            0,
            70 * 32 + 10 * 32,
        ),
        (
            "torchvision._roi_align_backward",
            (t(5, 3, 7, 7), t(5, 5), 0.5, 7, 7, 2, 3, 20, 20, 2, True),
            (2, 3, 20, 20),
            0,
            (2 * 2 * 2 * 4 + 1) * 5 * 3 * 7 * 7,
        ),
        (
            "torchvision._roi_pool_backward",
            (t(5, 3, 7, 7), t(5, 5), t(5, 3, 7, 7, dtype="int32"), 0.5, 7, 7, 2, 3, 20, 20),
            (2, 3, 20, 20),
            0,
            5 * 3 * 7 * 7,
        ),
    ],
)
def test_work(op, operands, result, matrix, vector):
    estimate = price(f"{op}.default", *operands)
    assert shapes(estimate)[0] == result
    assert estimate.matrix_flops == matrix
    assert estimate.vector_flops == vector


def test_experts_no_token_reaches_are_not_read():
    few = price("transformers.grouped_mm_fallback.default", t(3, 64), t(8, 64, 96), t(8, dtype="int32"))
    assert few.cost.read_bytes == 4 * (3 * 64 + 3 * 64 * 96 + 8)


def test_gradients_of_experts_cost_the_product_once_each():
    rule = find("transformers.grouped_mm_fallback.default")
    assert rule is not None
    operands = (t(12, 64, requires_grad=True), t(8, 64, 96, requires_grad=True), t(8, dtype="int32"))
    priced = price_call(rule, "transformers.grouped_mm_fallback.default", operands, (), training=True)
    assert priced.gradient_cost is not None
    assert priced.gradient_cost.matrix_flops == 2 * 2 * 12 * 64 * 96


def test_a_quantised_attention_quantises_its_probabilities():
    q = t(2, 4, 10, 32, dtype="uint8")
    estimate = price("torchao.qscaled_dot_product.default", q, q, q, None, 0.0, True)
    scores = 2 * 4 * 10 * 10
    assert estimate.matrix_flops == 2 * scores * (32 + 32)
    assert estimate.masked_flops == 2 * 2 * 4 * (10 * 9 // 2) * (32 + 32)
    assert estimate.vector_flops == scores * (1 + 1 + 4) + 6 * (scores + 2 * 4 * 10 * 32)


@pytest.mark.parametrize(
    ("op", "operands", "results", "read", "matrix"),
    [
        (
            "blocksparse.bsr_to_dense",
            (t(3), t(5), t(5, 16, 16), 32, 64),
            [(32, 64)],
            4 * (3 + 5 + 5 * 16 * 16),
            0,
        ),
        (
            "torchao.to_sparse_semi_structured_cutlass_sm9x_f8",
            (t(8, 256),),
            [(8, 128), (8, 32)],
            4 * 8 * 256,
            0,
        ),
        ("torchao.float8_linear_prepack_cpu", (t(8, 4), t(8)), [(8, 4), (8,)], 4 * (8 * 4 + 8), 0),
        (
            "torchao.da8w4_linear_prepack_cpu",
            (t(8, 4), t(8), t(8)),
            [(8, 4), (8,), (8,), (0,)],
            4 * (8 * 4 + 8 + 8),
            0,
        ),
        (
            "torchao.swizzle_scaled_mm",
            (t(4, 8, dtype=f8), t(8, 6, dtype=f8), True, False, t(4), t(6)),
            [(4, 6)],
            4 * 8 + 8 * 6 + 4 * (4 + 6),
            2 * 4 * 8 * 6,
        ),
        (
            "torchvision._ps_roi_align_backward",
            (t(5, 3, 7, 7), t(5, 5), t(5, 3, 7, 7), 0.5, 7, 7, 2, 2, 147, 20, 20),
            [(2, 147, 20, 20)],
            4 * (5 * 3 * 7 * 7 + 5 * 5 + 5 * 3 * 7 * 7),
            0,
        ),
        (
            "torchvision._ps_roi_pool_backward",
            (t(5, 3, 7, 7), t(5, 5), t(5, 3, 7, 7), 0.5, 7, 7, 2, 147, 20, 20),
            [(2, 147, 20, 20)],
            4 * (5 * 3 * 7 * 7 + 5 * 5 + 5 * 3 * 7 * 7),
            0,
        ),
        (
            "torchvision.qroi_align",
            (t(2, 3, 20, 20), t(5, 5), 0.1, 0, 0.1, 0, 0.5, 7, 7, 2, True),
            [(5, 3, 7, 7)],
            None,
            0,
        ),
        ("torchvision.qnms", (t(9, 4), t(9), 0.5), None, 4 * (9 * 4 + 9), 0),
        (
            "torchvision._deform_conv2d_backward",
            (
                t(1, 8, 10, 10),
                t(1, 4, 12, 12),
                t(8, 4, 3, 3),
                t(1, 18, 10, 10),
                t(0),
                t(8),
                1,
                1,
                0,
                0,
                1,
                1,
                1,
                1,
                False,
            ),
            [(1, 4, 12, 12), (8, 4, 3, 3), (1, 18, 10, 10), (0,), (8,)],
            None,
            2 * 2 * 8 * 10 * 10 * 4 * 3 * 3,
        ),
    ],
)
def test_results_and_traffic(op, operands, results, read, matrix):
    estimate = price(f"{op}.default", *operands)
    assert results is None or shapes(estimate) == results
    assert read is None or estimate.cost.read_bytes == read
    assert estimate.matrix_flops == matrix
