"""Attention, rotary embedding, linear attention."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.cost import Cost
from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import BOOL, FLOAT16, FLOAT32, INT64, TensorType
from tests.support import price, shapes, t

ATTENTION = "onnx.Attention.23"


def qkv(*shape: int | str, heads: int | None = None, keys: int | str | None = None) -> tuple[TensorType, ...]:
    """Query, key and value; the last two with their own heads and rows where given."""
    batch, own, rows, width = shape
    key = t(batch, own if heads is None else heads, rows if keys is None else keys, width)
    return t(*shape), key, key


def test_attention_is_two_products() -> None:
    assert price(ATTENTION, *qkv(1, 12, 64, 64)).matrix_flops == 12_582_912


def test_grouped_queries_count_flops_by_query_heads_and_bytes_by_key_heads() -> None:
    estimate = price(ATTENTION, *qkv(1, 32, 128, 64, heads=8), outputs=(True,))
    assert estimate.matrix_flops == 134_217_728
    assert estimate.cost.read_bytes == 4 * (32 + 2 * 8) * 128 * 64


def test_values_may_be_narrower_than_keys() -> None:
    q = t(1, 4, 16, 64)
    estimate = price(ATTENTION, q, q, t(1, 4, 16, 32), outputs=(True,))
    assert (shapes(estimate), estimate.matrix_flops) == ([(1, 4, 16, 32)], 196_608)


def test_a_causal_square_includes_the_diagonal() -> None:
    estimate = price(ATTENTION, *qkv(1, 2, 8, 16), is_causal=1)
    assert estimate.matrix_flops - estimate.masked_flops == (8 * 9 // 2) * 2 * (16 + 16) * 2


def test_causal_is_aligned_top_left_without_a_past() -> None:
    estimate = price(ATTENTION, *qkv(1, 1, 128, 8, keys=1024), is_causal=1)
    assert estimate.matrix_flops - estimate.masked_flops == 8_256 * 4 * 8


def test_causal_is_aligned_bottom_right_with_a_past() -> None:
    past = t(1, 1, 896, 8)
    estimate = price(ATTENTION, *qkv(1, 1, 128, 8), None, past, past, is_causal=1)
    assert estimate.matrix_flops - estimate.masked_flops == 122_944 * 4 * 8


def test_a_decoding_step_sees_every_key() -> None:
    past = t(1, 1, 1023, 8)
    estimate = price(ATTENTION, *qkv(1, 1, 1, 8), None, past, past, is_causal=1)
    assert (estimate.matrix_flops, estimate.masked_flops) == (1024 * 4 * 8, 0)


def test_a_small_causal_rectangle_is_exact() -> None:
    estimate = price(
        ATTENTION,
        t(1, 1, 4, 8),
        t(1, 1, 4, 8),
        t(1, 1, 4, 16),
        None,
        t(1, 1, 6, 8),
        t(1, 1, 6, 16),
        is_causal=1,
    )
    assert estimate.matrix_flops - estimate.masked_flops == 34 * 2 * (8 + 16) == 1_632


def test_a_sliding_window_counts_the_row_itself() -> None:
    estimate = price("onnx.Attention.25", *qkv(1, 1, 8, 4), is_causal=1, left_window_size=3)
    assert estimate.matrix_flops - estimate.masked_flops == 26 * 4 * 4


def test_window_to_both_sides() -> None:
    estimate = price("onnx.Attention.25", *qkv(1, 1, 4, 4, keys=6), left_window_size=2, right_window_size=1)
    assert estimate.matrix_flops - estimate.masked_flops == (2 + 3 + 4 + 4) * 4 * 4


def test_a_cache_filled_outside_is_taken_to_be_full() -> None:
    lengths = t(1, dtype=INT64)
    estimate = price("onnx.Attention.24", *qkv(1, 1, 4, 8, keys=10), None, None, None, lengths, is_causal=1)
    assert estimate.matrix_flops - estimate.masked_flops == 34 * 4 * 8


def test_a_cache_is_filled_to_one_number_for_each_sequence() -> None:
    with pytest.raises(ShapeError, match="a number for each sequence"):
        price("onnx.Attention.24", *qkv(2, 3, 4, 8), None, None, None, t(2, 1, dtype=INT64))


def test_heads_side_by_side() -> None:
    q, kv = t("b", "s", 512), t("b", "s", 128)
    estimate = price(ATTENTION, q, kv, kv, q_num_heads=8, kv_num_heads=2, outputs=(True,))
    b, s = symbol("b"), symbol("s")
    assert (shapes(estimate), estimate.matrix_flops) == ([(b, s, 512)], 2 * (64 + 64) * 8 * b * s * s)
    with pytest.raises(ShapeError, match="how many heads"):
        price(ATTENTION, q, kv, kv)
    with pytest.raises(ShapeError, match="do not make 3 heads"):
        price(ATTENTION, q, kv, kv, q_num_heads=3, kv_num_heads=3)


def test_what_is_kept_for_the_next_step() -> None:
    b, p = symbol("b"), symbol("p")
    past = t("b", 2, "p", 64)
    estimate = price(ATTENTION, *qkv("b", 8, 1, 64, heads=2), None, past, past, outputs=(True, True, True))
    assert shapes(estimate) == [(b, 8, 1, 64), (b, 2, p + 1, 64), (b, 2, p + 1, 64)]
    assert estimate.matrix_flops == 2 * (64 + 64) * 8 * b * (p + 1)
    kept = 2 * 2 * 64 * 4 * b * (p + 1)
    assert estimate.cost.read_bytes == 8 * 64 * 4 * b + kept
    assert estimate.cost.written_bytes == 8 * 64 * 4 * b + kept


@pytest.mark.parametrize(
    "settings, each, functions",
    [({}, 5, 1), ({"softcap": 30.0}, 7, 2), ({"is_causal": 1}, 6, 1), ({"qk_matmul_output_mode": 2}, 5, 1)],
)
def test_work_per_score(settings: dict[str, Any], each: int, functions: int) -> None:
    estimate = price(ATTENTION, *qkv(1, 2, 8, 16), **settings)
    assert (estimate.vector_flops, estimate.transcendentals) == (each * 128, functions * 128)
    assert shapes(estimate)[3] == (1, 2, 8, 8)


@pytest.mark.parametrize("mask", [(8, 8), (1, 1, 8, 8), (1, 2, 8, 5), (8, 1), (8,)])
def test_masks(mask: tuple[int, ...]) -> None:
    estimate = price(ATTENTION, *qkv(1, 2, 8, 16), t(*mask, dtype=BOOL), outputs=(True,))
    assert (shapes(estimate), estimate.vector_flops) == ([(1, 2, 8, 16)], 6 * 128)


def test_a_mask_has_at_most_the_axes_of_the_scores() -> None:
    with pytest.raises(ShapeError, match="a mask"):
        price(ATTENTION, *qkv(1, 2, 8, 16), t(1, 1, 2, 8, 8, dtype=BOOL))


def test_unequal_heads_are_rejected() -> None:
    with pytest.raises(ShapeError, match="do not share"):
        price(ATTENTION, *qkv(1, 8, 4, 16, heads=3))


def test_functions_of_scores_and_probabilities() -> None:
    class Run:
        name, out, cost = "mod", (), Cost(vector_flops=3 * 128, transcendentals=128, read_bytes=999)

    given = []

    def mod(scores: TensorType) -> Run:
        given.append(scores)
        return Run()

    estimate = price("ai.onnx.preview.FlexAttention.1", *qkv(1, 2, 8, 16), score_mod=mod)
    assert given == [t(1, 2, 8, 8)]
    assert (estimate.vector_flops, estimate.transcendentals) == (8 * 128, 2 * 128)
    assert estimate.cost.read_bytes == 3 * 4 * 256


@pytest.mark.parametrize("settings, rotated", [({}, 64), ({"rotary_embedding_dim": 32}, 32)])
def test_rotary_embedding(settings: dict[str, Any], rotated: int) -> None:
    b, s = symbol("b"), symbol("s")
    table, places = t(2048, rotated // 2), t("b", "s", dtype=INT64)
    apart = price("onnx.RotaryEmbedding.23", t("b", 8, "s", 64), table, table, places, **settings)
    joined = price("onnx.RotaryEmbedding.23", t("b", "s", 512), table, table, places, num_heads=8, **settings)
    assert apart.vector_flops == joined.vector_flops == 3 * 8 * rotated * b * s
    assert apart.cost.read_bytes == (4 * 512 + 2 * 4 * rotated // 2 + 8) * b * s  # of the tables, rows


@pytest.mark.parametrize(
    "rule, products, vector, functions",
    [
        ("linear", 2, 32, 0),
        ("gated", 2, 32 + 128, 2),
        ("delta", 3, 32 + 64, 0),
        ("gated_delta", 3, 32 + 128 + 64, 2),
    ],
)
def test_linear_attention(rule: str, products: int, vector: int, functions: int) -> None:
    # two heads of width 4 and depth 16 over three rows
    q, v, decay = t(1, 3, 8, dtype=FLOAT16), t(1, 3, 32, dtype=FLOAT16), t(1, 3, 2, dtype=FLOAT16)
    state = t(1, 2, 4, 16, dtype=FLOAT32)
    estimate = price(
        *("onnx.LinearAttention.27", q, q, v, state, decay, decay),
        q_num_heads=2,
        kv_num_heads=2,
        update_rule=rule,
    )
    assert estimate.out == (t(1, 3, 32, dtype=FLOAT16), state)
    assert estimate.matrix_flops == 2 * products * (3 * 2 * 4 * 16)
    assert (estimate.vector_flops, estimate.transcendentals) == (3 * vector, 3 * functions)


def test_backward_computes_the_scores_again() -> None:
    q, k, v = (t(1, 16, 4 * 8, requires_grad=True) for _ in "qkv")
    given = {"query": q, "key": k, "value": v, "q_num_heads": 4, "kv_num_heads": 4}
    forward = price(ATTENTION, **given, outputs=(True,))
    back = find_backward(ATTENTION)
    assert back is not None
    estimate = back(ForwardCall(forward, given, frozenset({"query", "key", "value"})))
    assert shapes(estimate) == [(1, 16, 32)] * 3
    assert 2 * estimate.matrix_flops == 5 * forward.matrix_flops


@pytest.mark.parametrize("covered", [1, 2, 3, 6])
def test_a_mask_may_be_shorter_than_the_keys(covered: int) -> None:
    """The keys behind its end are hidden by the operator; the two products are over all 6 of them."""
    q, k = t(1, 2, 4, 8), t(1, 2, 6, 8)
    estimate = price("onnx.Attention.24", q, k, k, t(4, covered))
    assert estimate.matrix_flops == 2 * 2 * (2 * 4 * 6) * 8
    assert estimate.cost.read_bytes == 4 * (2 * 4 * 8 + 2 * 2 * 6 * 8 + 4 * covered)
