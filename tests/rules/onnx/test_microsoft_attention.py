"""onnxruntime's attention: heads, caches, windows, packed rows."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import FLOAT16, INT8, INT32, UINT8, TensorType
from tests.support import price, shapes, t

MS = "com.microsoft."
ALL, ONE = (True,) * 4, (True,)


def whole(*values: int) -> TensorType:
    """A small int32 operand with known contents."""
    return t(len(values), dtype=INT32, value=values)


# Attention: one projection and two products.


def test_projection_and_attention() -> None:
    estimate = price(MS + "Attention", t(2, 16, 64), t(64, 192), t(192), num_heads=4, outputs=ONE)
    assert shapes(estimate) == [(2, 16, 64)]
    projected, attended = 2 * 32 * 64 * 192, 4 * 2 * 4 * 16 * 16 * 16
    assert estimate.matrix_flops == projected + attended == 786_432 + 131_072
    assert estimate.vector_flops == 32 * 192 + 2 * 4 * 256 * 5
    assert estimate.transcendentals == 2 * 4 * 256
    assert estimate.masked_flops == 0
    assert estimate.cost.read_bytes == 4 * (2 * 16 * 64 + 64 * 192 + 192)
    assert estimate.cost.written_bytes == 4 * 2 * 16 * 64


def test_causal_attention_sees_the_past() -> None:
    past = t(2, 1, 4, 5, 8)
    estimate = price(
        MS + "Attention",
        t(1, 3, 32),
        t(32, 96),
        t(96),
        None,
        past,
        num_heads=4,
        unidirectional=1,
        outputs=(True, True),
    )
    assert shapes(estimate) == [(1, 3, 32), (2, 1, 4, 8, 8)]
    assert estimate.matrix_flops == 2 * 3 * 32 * 96 + 2 * (8 + 8) * 4 * 3 * 8
    assert estimate.masked_flops == 2 * (8 + 8) * 4 * (3 * 8 - (6 + 7 + 8))
    assert estimate.cost.read_bytes == 4 * (3 * 32 + 32 * 96 + 96 + past.numel)
    assert estimate.cost.written_bytes == 4 * (3 * 32 + 2 * 4 * 8 * 8)


def test_wider_values() -> None:
    x, weights = t(2, 3, 12), t(12, 56)
    estimate = price(
        MS + "Attention", x, weights, None, num_heads=2, qkv_hidden_sizes=(16, 16, 24), outputs=ONE
    )
    assert shapes(estimate) == [(2, 3, 24)]
    assert estimate.matrix_flops == 2 * 6 * 12 * 56 + 2 * (8 + 12) * 2 * 2 * 9


def test_a_shared_buffer_is_written_in_place() -> None:
    past = t(2, 1, 4, 100, 8)
    arguments = (t(1, 1, 32), t(32, 96), t(96), None, past, None)
    settings = {"num_heads": 4, "past_present_share_buffer": 1, "outputs": (True, True)}
    estimate = price(MS + "Attention", *arguments, whole(9), **settings)
    assert shapes(estimate) == [(1, 1, 32), (2, 1, 4, 100, 8)]
    assert estimate.matrix_flops == 2 * 32 * 96 + 4 * 8 * 4 * 10
    assert estimate.cost.written_bytes == 4 * (32 + 2 * 4 * 8)
    assert estimate.cost.read_bytes == 4 * (32 + 32 * 96 + 96 + 2 * 4 * 9 * 8 + 1)
    unknown = price(MS + "Attention", *arguments, t(1, dtype=INT32), **settings)
    filled = symbol("past_sequence_length?")
    assert unknown.matrix_flops == 2 * 32 * 96 + 4 * 8 * 4 * (filled + 1)


def test_a_projection_of_integers() -> None:
    x, w, s, z = t(2, 16, 64, dtype=UINT8), t(64, 192, dtype=INT8), t(), t(dtype=UINT8)
    estimate = price(MS + "QAttention", x, w, t(192), s, s, None, z, t(dtype=INT8), num_heads=4, outputs=ONE)
    assert [x.dtype.name for x in estimate.out if x] == ["float32"]
    assert estimate.matrix_flops == 786_432 + 131_072
    assert estimate.matrix_dtype is INT8
    # bias, two operations to convert each, zero points off both operands, scale and softmax
    assert estimate.vector_flops == 32 * 192 * 3 + 2048 + 64 * 192 + 2 * 4 * 256 * 5


# MultiHeadAttention: projections outside.


def test_values_may_be_narrower_than_keys() -> None:
    estimate = price(
        MS + "MultiHeadAttention", t(2, 16, 256), t(2, 16, 256), t(2, 16, 128), num_heads=4, outputs=ONE
    )
    assert shapes(estimate) == [(2, 16, 128)]
    assert estimate.matrix_flops == 2 * 2 * 4 * 16 * 16 * (64 + 32)


@pytest.mark.parametrize(
    "query, key, value",
    [
        (t(2, 3, 4, 3, 8), None, None),
        (t(2, 3, 32), t(2, 3, 4, 2, 8), None),
        (t(2, 3, 32), t(2, 3, 32), t(2, 3, 32)),
        (t(2, 3, 32), t(2, 4, 3, 8), t(2, 4, 3, 8)),
    ],
)
def test_packings(query, key, value) -> None:
    estimate = price(MS + "MultiHeadAttention", query, key, value, num_heads=4, outputs=ALL)
    assert shapes(estimate) == [(2, 3, 32), (2, 4, 3, 8), (2, 4, 3, 8), (2, 4, 3, 3)]
    assert estimate.matrix_flops == 4 * 2 * 4 * 9 * 8


def test_symbolic_cache_grows() -> None:
    b, p, s = symbol("b"), symbol("p"), symbol("s")
    new, past = t("b", "s", 32), t("b", 4, "p", 8)
    estimate = price(
        *(MS + "MultiHeadAttention", new, new, new, None, None, None, past, past),
        num_heads=4,
        outputs=(True, True, True),
    )
    assert shapes(estimate) == [(b, s, 32), (b, 4, p + s, 8), (b, 4, p + s, 8)]
    assert estimate.matrix_flops == 4 * 4 * 8 * b * s * (p + s)
    assert estimate.cost.written_bytes == 4 * (32 * b * s + 2 * 32 * b * (p + s))


def test_causal_without_a_past_starts_at_the_first_key() -> None:
    estimate = price(MS + "MultiHeadAttention", *(t(1, 8, 16),) * 3, num_heads=2, unidirectional=1)
    pairs = 8 * 9 // 2
    assert estimate.matrix_flops - estimate.masked_flops == 4 * 8 * 2 * pairs


def test_biases_and_masks() -> None:
    x = t(2, 3, 32)
    plain = price(MS + "MultiHeadAttention", x, x, x, num_heads=4)
    both = price(MS + "MultiHeadAttention", x, x, x, t(96), t(2, 3, dtype=INT32), t(1, 4, 3, 3), num_heads=4)
    assert both.vector_flops - plain.vector_flops == 3 * x.numel + 2 * (2 * 4 * 9)
    assert both.cost.read_bytes - plain.cost.read_bytes == 4 * (96 + 6 + 36)


def test_one_row_against_a_buffer() -> None:
    row, past = t(2, 1, 32), t(2, 4, 50, 8)
    estimate = price(
        *(MS + "DecoderMaskedMultiHeadAttention", row, row, row, None, None, past, past, whole(9)),
        num_heads=4,
        past_present_share_buffer=1,
        outputs=ALL,
    )
    assert shapes(estimate) == [(2, 1, 32), (2, 4, 50, 8), (2, 4, 50, 8), (2, 4, 1, 10)]
    assert estimate.matrix_flops == 4 * 2 * 4 * 10 * 8
    assert estimate.cost.written_bytes == 4 * (64 + 2 * 64 + 2 * 4 * 10)


def test_decoder_attention_on_the_encoders_states() -> None:
    flags = [t(1, dtype="bool", value=(value,)) for value in (1, 0, 0, 0)]
    operands = (t(3, 2, 32), t(7, 2, 32), t(32, 32), t(32, 64), t(96), None, None, None)
    estimate = price(MS + "DecoderAttention", *operands, *flags, num_heads=4, outputs=(True, True, True))
    assert shapes(estimate) == [(3, 2, 32), (2, 4, 7, 8), (2, 4, 7, 8)]
    projections = 2 * 6 * 32 * 32 + 2 * 14 * 32 * 64
    assert estimate.matrix_flops == projections + 4 * 2 * 4 * 3 * 7 * 8


# GroupQueryAttention.

GQA = MS + "GroupQueryAttention"
THREE = (True, True, True)


def test_grouped_queries_count_flops_by_query_heads_and_bytes_by_key_heads() -> None:
    q, kv = t(1, 128, 32 * 64), t(1, 128, 8 * 64)
    estimate = price(GQA, q, kv, kv, None, None, whole(127), whole(128), num_heads=32, kv_num_heads=8)
    assert estimate.matrix_flops == 4 * 32 * 128 * 128 * 64 == 134_217_728
    assert estimate.masked_flops == 4 * 32 * 64 * (128 * 127 // 2)
    assert estimate.cost.read_bytes == 4 * (q.numel + 2 * kv.numel + 2)


def test_a_decoding_step_sees_every_key() -> None:
    q, kv, past = t(1, 1, 64), t(1, 1, 32), t(1, 2, 1023, 16)
    estimate = price(GQA, q, kv, kv, past, past, num_heads=4, kv_num_heads=2, outputs=THREE)
    assert shapes(estimate) == [(1, 1, 64), (1, 2, 1024, 16), (1, 2, 1024, 16)]
    assert estimate.matrix_flops == 4 * 4 * 1024 * 16
    assert estimate.masked_flops == 0
    assert estimate.cost.read_bytes == 4 * (64 + 32 + 32 + 2 * 2 * 1023 * 16)
    assert estimate.cost.written_bytes == 4 * (64 + 2 * 2 * 1024 * 16)


def test_the_last_query_is_aligned_with_the_last_key() -> None:
    q, kv, past = t(1, 4, 8), t(1, 4, 8), t(1, 1, 6, 8)
    estimate = price(GQA, q, kv, kv, past, past, num_heads=1, kv_num_heads=1)
    assert estimate.matrix_flops - estimate.masked_flops == 2 * (8 + 8) * 34


@pytest.mark.parametrize("window, pairs", [(4, 26), (8, 36), (-1, 36)])
def test_a_sliding_window_counts_the_row_itself(window, pairs) -> None:
    x = t(1, 8, 16)
    estimate = price(GQA, x, x, x, num_heads=1, kv_num_heads=1, local_window_size=window)
    assert estimate.matrix_flops - estimate.masked_flops == 2 * 32 * pairs


def test_a_long_enough_cache_is_a_buffer() -> None:
    q, kv, past = t(1, 1, 64), t(1, 1, 32), t(1, 2, 4096, 16)
    arguments = (q, kv, kv, past, past, whole(99), whole(100))
    estimate = price(GQA, *arguments, num_heads=4, kv_num_heads=2, outputs=THREE)
    assert shapes(estimate) == [(1, 1, 64), (1, 2, 4096, 16), (1, 2, 4096, 16)]
    assert estimate.matrix_flops == 4 * 4 * 100 * 16
    assert estimate.cost.read_bytes == 4 * (64 + 2 * 32 + 2 * 2 * 99 * 16 + 2)
    assert estimate.cost.written_bytes == 4 * (64 + 2 * 32)


def test_symbolic_total_length() -> None:
    b, s, p = symbol("b"), symbol("s"), symbol("p")
    total = t(dtype=INT32, value=p + s)
    past = t("b", 2, "p", 16)
    estimate = price(
        *(GQA, t("b", "s", 128), None, None, past, past, t("b", dtype=INT32), total),
        num_heads=4,
        kv_num_heads=2,
        outputs=THREE,
    )
    assert shapes(estimate) == [(b, s, 64), (b, 2, p + s, 16), (b, 2, p + s, 16)]
    assert estimate.matrix_flops == 4 * 4 * 16 * b * s * (p + s)
    assert estimate.masked_flops == 4 * 4 * 8 * b * (s * (s - 1))  # half of the pairs but the diagonal


def test_rotation_norms_and_sinks() -> None:
    q, kv = t(1, 8, 64), t(1, 8, 32)
    plain = price(GQA, q, kv, kv, num_heads=4, kv_num_heads=2)
    table = t(100, 4)
    turned = price(GQA, q, kv, kv, *(None,) * 4, table, table, num_heads=4, kv_num_heads=2, do_rotary=1)
    assert turned.vector_flops - plain.vector_flops == 3 * 8 * 8 * (4 + 2)  # eight of sixteen channels
    assert turned.cost.read_bytes - plain.cost.read_bytes == 2 * 8 * 4 * 4
    normed = price(GQA, q, kv, kv, *(None,) * 11, t(16), t(16), num_heads=4, kv_num_heads=2)
    assert normed.vector_flops - plain.vector_flops == 4 * 8 * 16 * 6
    assert normed.transcendentals - plain.transcendentals == 8 * 6
    capped = price(GQA, q, kv, kv, *(None,) * 8, t(4), num_heads=4, kv_num_heads=2, softcap=30.0)
    assert capped.transcendentals - plain.transcendentals == 4 * 64 + 4 * 8


def test_a_cache_of_few_bits() -> None:
    q, kv, past = t(1, 1, 64), t(1, 1, 32), t(1, 2, 31, 16, dtype=INT8)
    arguments = (q, kv, kv, past, past, *(None,) * 7, t(1), t(1))
    settings = {"num_heads": 4, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    estimate = price(GQA, *arguments, **settings, outputs=THREE)
    assert [x.dtype.name for x in estimate.out if x] == ["float32", "int8", "int8"]
    assert estimate.vector_flops == 4 * 32 * 6 + 2 * (5 * 32 + 2 * 32 * 32)
    assert estimate.cost.written_bytes == 4 * 64 + 2 * 2 * 32 * 16


def test_heads_that_do_not_divide_are_wrong() -> None:
    with pytest.raises(ShapeError, match="do not make 3 heads"):
        price(GQA, t(1, 8, 64), t(1, 8, 32), t(1, 8, 32), num_heads=3, kv_num_heads=1)


# Packed rows.


def test_packed_rows_attend_within_their_sequence() -> None:
    x = t(8, 2 * 64)
    padded = t(2, 5, dtype=INT32)
    estimate = price(MS + "PackedMultiHeadAttention", x, x, x, None, padded, whole(0, 3, 8), num_heads=2)
    assert shapes(estimate) == [(8, 128)]
    assert estimate.matrix_flops == 4 * 2 * 64 * (9 + 25) == 17_408
    unknown = price(MS + "PackedMultiHeadAttention", x, x, x, None, padded, t(3, dtype=INT32), num_heads=2)
    assert unknown.matrix_flops == 4 * 2 * 64 * 8 * 5


def test_packed_projection() -> None:
    estimate = price(
        MS + "PackedAttention", t(8, 32), t(32, 96), t(96), t(2, 5, dtype=INT32), whole(0, 3, 8), num_heads=2
    )
    assert shapes(estimate) == [(8, 32)]
    assert estimate.matrix_flops == 2 * 8 * 32 * 96 + 4 * 32 * 34


def test_pages() -> None:
    q, kv, cache = t(3, 64, dtype=FLOAT16), t(3, 32, dtype=FLOAT16), t(10, 16, 2, 16, dtype=FLOAT16)
    tables = (whole(0, 1, 3), whole(20, 4), t(2, 4, dtype=INT32))
    settings = {"num_heads": 4, "kv_num_heads": 2, "outputs": THREE}
    estimate = price(MS + "PagedAttention", q, kv, kv, cache, cache, *tables, **settings)
    assert shapes(estimate) == [(3, 64), (10, 16, 2, 16), (10, 16, 2, 16)]
    pairs = 21 + 2 * 6
    assert estimate.matrix_flops == 4 * 4 * 16 * pairs
    assert estimate.masked_flops == 4 * 4 * 16 * 1
    assert estimate.cost.written_bytes == 2 * (3 * 64 + 2 * 3 * 32)
    assert estimate.cost.read_bytes == 2 * (3 * 128 + 2 * 27 * 32) + 4 * (3 + 2 + 8)
    unknown = (t(3, dtype=INT32), t(2, dtype=INT32), t(2, 4, dtype=INT32))
    bounded = price(MS + "PagedAttention", q, kv, kv, cache, cache, *unknown, **settings)
    assert bounded.matrix_flops == 4 * 4 * 16 * 3 * (4 * 16)


def test_longformer_counts_windows() -> None:
    x, weight = t(1, 16, 32), t(32, 96)
    estimate = price(
        *(MS + "LongformerAttention", x, weight, t(96), t(1, 16), weight, t(96), t(1, 16, dtype=INT32)),
        num_heads=4,
        window=2,
    )
    globals_ = symbol("global_tokens?")
    projections = 2 * 2 * 16 * 32 * 96
    assert estimate.matrix_flops == projections + 4 * 32 * 16 * 5 + 4 * 32 * 2 * 16 * globals_
    assert estimate.masked_flops == 4 * 32 * (2 * (2 + 1))


@pytest.mark.parametrize(
    "op, operands, attributes, vector",
    [
        ("RotaryEmbedding", (t(2, 3, 32), t(2, 3), t(9, 4), t(9, 4)), {}, 3 * 2 * 3 * 32),
        ("RotaryEmbedding", (t(2, 4, 3, 8), t(1), t(9, 4), t(9, 4)), {}, 3 * 2 * 3 * 32),
        (
            "RotaryEmbedding",
            (t(2, 3, 32), t(2, 3), t(9, 2), t(9, 2)),
            {"num_heads": 4, "rotary_embedding_dim": 4},
            3 * 2 * 3 * 16,
        ),
        ("GemmaRotaryEmbedding", (t(1, 3, 8), *(t(1, 2, 3, 8),) * 4), {}, 3 * 2 * 48),
    ],
)
def test_rotations(op, operands, attributes, vector) -> None:
    assert price(MS + op, *operands, **attributes).vector_flops == vector


def test_relative_positions() -> None:
    lengths = (t(1, dtype="int64", value=(5,)), t(1, dtype="int64", value=(7,)))
    assert shapes(price(MS + "RelativePositionBias", t(32, 4), *lengths, max_distance=128)) == [(1, 4, 5, 7)]
    operands = (t(2, 5, 32), t(32), t(1, 4, 5, 5), t(8, 6), t(6), t(1, 4, 1, 1))
    gated = price(MS + "GatedRelativePositionBias", *operands, num_heads=4)
    assert shapes(gated) == [(2, 4, 5, 5)]
    assert gated.matrix_flops == 2 * (2 * 4 * 5) * 8 * 6
