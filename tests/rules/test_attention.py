"""Attention: products, what masks make needless, and traffic."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.rules.shapes import doubled_pairs
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

SDPA = "aten.scaled_dot_product_attention.default"
SOFTMAX = 4


def heads(batch: int, count: int, rows: int, width: int, dtype: str = "float32") -> TensorType:
    """An operand (batch, heads, rows, width)."""
    return t(batch, count, rows, width, dtype=dtype)


def offsets(*edges: int) -> TensorType:
    """Where packed sequences begin and end, known."""
    return t(len(edges), dtype="int32", value=edges)


def gradient(op: str, wants: str, **arguments: object) -> Estimate:
    """What the backward rule says of this forward call."""
    rule = find_backward(op)
    assert rule is not None
    return rule(ForwardCall(price(op, **arguments), arguments, frozenset(wants.split())))


def visible(estimate: Estimate) -> object:
    """Matrix FLOPs that are not masked away."""
    return estimate.matrix_flops - estimate.masked_flops


def test_attention_is_two_products() -> None:
    x = heads(1, 12, 64, 64)
    assert price(SDPA, x, x, x).matrix_flops == 4 * 12 * 64 * 64 * 64 == 12_582_912


def test_grouped_queries_count_by_query_heads_and_read_by_key_heads() -> None:
    q, kv = heads(1, 32, 128, 64, "float16"), heads(1, 8, 128, 64, "float16")
    estimate = price(SDPA, q, kv, kv, enable_gqa=True)
    assert estimate.matrix_flops == 4 * 32 * 128 * 128 * 64 == 134_217_728
    assert estimate.cost.read_bytes == 2 * (32 + 8 + 8) * 128 * 64
    by_counts = price("aten._scaled_dot_product_flash_attention.default", q, kv, kv)
    assert by_counts.matrix_flops == estimate.matrix_flops


def test_values_may_be_narrower_than_keys() -> None:
    qk, v = heads(1, 4, 16, 64), heads(1, 4, 16, 32)
    estimate = price(SDPA, qk, qk, v)
    assert estimate.matrix_flops == 2 * 4 * 16 * 16 * (64 + 32) == 196_608
    assert shapes(estimate) == [(1, 4, 16, 32)]


def test_causal_square_includes_the_diagonal() -> None:
    x = heads(2, 3, 10, 8)
    estimate = price(SDPA, x, x, x, is_causal=True)
    assert estimate.matrix_flops == 2 * 2 * 3 * 100 * (8 + 8)
    assert visible(estimate) == 2 * 2 * 3 * 55 * (8 + 8)


def test_is_causal_aligns_top_left_and_flash_bottom_right() -> None:
    q, kv = heads(1, 1, 128, 1), heads(1, 1, 1024, 1)
    assert visible(price(SDPA, q, kv, kv, is_causal=True)) == 2 * 8_256 * (1 + 1)
    q, kv = t(1, 128, 1, 1), t(1, 1024, 1, 1)
    flash = price("aten._flash_attention_forward.default", q, kv, kv, None, None, 128, 1024, 0.0, True, False)
    assert visible(flash) == 2 * 122_944 * (1 + 1)


def test_decoding_sees_every_key_only_from_the_bottom_right() -> None:
    assert doubled_pairs(1, 1024, right=0, offset=1023) == 2 * 1024
    assert doubled_pairs(1, 1024, right=0) == 2 * 1


def test_a_small_causal_rectangle_is_exact() -> None:
    q, k, v = t(1, 4, 1, 8), t(1, 10, 1, 8), t(1, 10, 1, 16)
    operands = (q, k, v, None, None, None, None, None, 0.0)
    estimate = price("aten._efficient_attention_forward.default", *operands, 2)
    assert visible(estimate) == 2 * 34 * (8 + 16) == 1_632
    assert visible(price("aten._efficient_attention_forward.default", *operands, 1)) == 2 * 10 * (8 + 16)


@pytest.mark.parametrize(
    ("size", "window", "pairs"), [(8, 4, 26), (4096, 1024, 3_670_528), (4096, 4096, 8_390_656), (3, 9, 6)]
)
def test_a_sliding_window_counts_the_row_itself(size: int, window: int, pairs: int) -> None:
    assert doubled_pairs(size, size, left=window - 1, right=0) == 2 * pairs


def test_packed_sequences_attend_within_themselves() -> None:
    x = t(8, 2, 64)
    edges = offsets(0, 3, 8)
    operands = (x, x, x, edges, edges, 5, 5)
    known = price("aten._flash_attention_forward.default", *operands, 0.0, False, False)
    assert known.matrix_flops == 4 * 2 * 64 * (3 * 3 + 5 * 5) == 17_408
    causal = price("aten._flash_attention_forward.default", *operands, 0.0, True, False)
    assert visible(causal) == 4 * 2 * 64 * (6 + 15)
    unknown = t(3, dtype="int32")
    bound = price("aten._flash_attention_forward.default", x, x, x, unknown, unknown, 5, 5, 0.0, True, False)
    assert (bound.matrix_flops, bound.masked_flops) == (4 * 2 * 64 * (8 * 5), 0)


def test_backward_of_fused_attention_recomputes_the_scores() -> None:
    x = heads(1, 2, 32, 32)
    operands = {"query": x, "key": x, "value": x}
    forward = price(SDPA, x, x, x).matrix_flops
    assert forward == 262_144
    assert forward + gradient(SDPA, "query key value", **operands).matrix_flops == 917_504
    stored = gradient("aten._scaled_dot_product_attention_math.default", "query key value", **operands)
    assert forward + stored.matrix_flops == 786_432


@pytest.mark.parametrize(
    ("wants", "products"),
    [
        ("query key value", 5),  # scores, probabilities' gradient, and the three
        ("query", 3),
        ("value", 2),
        ("key value", 4),
        ("mask", 2),
    ],
)
def test_only_wanted_gradients_are_counted(wants: str, products: int) -> None:
    x, mask = heads(1, 2, 8, 16), t(8, 8)
    estimate = gradient(SDPA, wants, query=x, key=x, value=x, mask=mask)
    assert estimate.matrix_flops == products * 2 * 2 * 8 * 8 * 16
    assert len(estimate.out) == len(wants.split())


def test_causal_backward_masks_every_product() -> None:
    x = heads(1, 1, 10, 8)
    estimate = gradient(SDPA, "query key value", query=x, key=x, value=x, is_causal=True)
    assert estimate.matrix_flops == 5 * 2 * 100 * 8
    assert visible(estimate) == 5 * 2 * 55 * 8


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("flash_attention", (None, None, 10, 10, 0.0, True, None, None)),
        ("flash_attention_for_cpu", (0.0, True)),
        ("cudnn_attention", (None, None, None, None, None, 10, 10, 0.0, True)),
    ],
)
def test_operators_of_a_joint_graph_count_as_the_backward_of_a_forward(
    op: str, arguments: tuple[object, ...]
) -> None:
    x, row_sums = heads(1, 3, 10, 8), t(1, 3, 10)
    estimate = price(f"aten._scaled_dot_product_{op}_backward.default", x, x, x, x, x, row_sums, *arguments)
    expected = gradient(SDPA, "query key value", query=x, key=x, value=x, is_causal=True)
    assert estimate.matrix_flops == expected.matrix_flops == 3 * 5 * 2 * 100 * 8
    assert estimate.masked_flops == 3 * 5 * 2 * 45 * 8
    assert shapes(estimate) == [x.shape] * 3


def test_causal_work_is_a_polynomial_of_a_symbolic_length() -> None:
    s = symbol("s")
    x = t(1, 4, "s", 64)
    estimate = price(SDPA, x, x, x, is_causal=True)
    assert estimate.matrix_flops == 4 * 4 * 64 * s * s
    assert visible(estimate) == 2 * 4 * 64 * (s * s + s)


def test_symbolic_window_and_rectangle() -> None:
    s, k = symbol("s"), symbol("k")
    pairs = doubled_pairs(s, s + k, right=0, offset=k)
    assert pairs == 2 * s * k + s * (s + 1)
    assert doubled_pairs(s, s + 8, left=7, right=0, offset=8) == 2 * 8 * s


def test_work_on_scores_and_traffic_of_a_fused_call() -> None:
    x = heads(1, 2, 8, 16)
    estimate = price(SDPA, x, x, x, t(8, 8, dtype="bool"), 0.1)
    assert estimate.vector_flops == 2 * 8 * 8 * (1 + 1 + SOFTMAX + 3)  # scale, mask, softmax, dropout
    assert estimate.transcendentals == 2 * 8 * 8
    assert estimate.cost.read_bytes == 3 * 2 * 8 * 16 * 4 + 8 * 8
    assert estimate.cost.written_bytes == 2 * 8 * 16 * 4


def test_stored_scores_are_written_and_read() -> None:
    x = heads(1, 2, 8, 16)
    estimate = price("aten._scaled_dot_product_attention_math.default", x, x, x)
    assert shapes(estimate) == [(1, 2, 8, 16), (1, 2, 8, 8)]
    assert estimate.cost.read_bytes == 4 * (3 * 2 * 8 * 16 + 2 * 8 * 8)
    assert estimate.cost.written_bytes == 4 * (2 * 8 * 16 + 2 * 8 * 8)


@pytest.mark.parametrize(
    ("q", "k", "v", "shape"),
    [
        (t(4, 8), t(6, 8), t(6, 3), (4, 3)),
        (t(2, 4, 8), t(2, 6, 8), t(2, 6, 3), (2, 4, 3)),
        (t(5, 2, 4, 8), t(1, 2, 6, 8), t(5, 1, 6, 3), (5, 2, 4, 3)),
        (t("b", 2, "s", 8), t("b", 2, "t", 8), t("b", 2, "t", 3), (symbol("b"), 2, symbol("s"), 3)),
    ],
)
def test_result_shapes(q: TensorType, k: TensorType, v: TensorType, shape: tuple[object, ...]) -> None:
    assert shapes(price(SDPA, q, k, v)) == [shape]


@pytest.mark.parametrize(
    ("q", "k", "v", "says"),
    [
        (t(4, 8), t(6, 7), t(6, 3), "widths differ: 8 and 7"),
        (t(4, 8), t(6, 8), t(5, 3), "6 keys but 5 values"),
        (t(1, 8, 4, 8), t(1, 3, 4, 8), t(1, 3, 4, 8), "8 query heads do not share 3"),
    ],
)
def test_operands_that_cannot_meet(q: TensorType, k: TensorType, v: TensorType, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        price(SDPA, q, k, v, enable_gqa=q.rank > 2)


def test_mask_that_does_not_fit() -> None:
    x = heads(1, 2, 8, 16)
    with pytest.raises(ShapeError):
        price(SDPA, x, x, x, t(7, 8))


def test_row_sums_are_padded_by_memory_efficient_attention() -> None:
    x = heads(2, 4, 40, 16)
    estimate = price("aten._scaled_dot_product_efficient_attention.default", x, x, x, None, True)
    assert shapes(estimate) == [x.shape, (2, 4, 64), (), ()]
    assert shapes(price("aten._scaled_dot_product_efficient_attention.default", x, x, x, None, False))[1] == (
        2,
        4,
        0,
    )


def test_pages_of_keys_are_read_as_far_as_sequences_reach() -> None:
    q, pool = t(3, 8, 16), t(100, 128, 2, 16)
    edges, table, used = t(4, dtype="int32"), t(3, 2, dtype="int32"), t(3, dtype="int32")
    op = "torch_attn._varlen_attn.default"
    estimate = price(op, q, pool, pool, edges, None, 1, 256, False, None, (-1, 0), True, used, table)
    assert estimate.matrix_flops == 2 * 8 * 3 * 256 * (16 + 16)
    pages = 2 * (3 * 256 * 2 * 16)
    assert estimate.cost.read_bytes == 4 * (3 * 8 * 16 + pages + 4 + 3 * 2 + 3)


def test_packed_attention_written_into_a_result_returns_the_row_sums_of_the_other() -> None:
    q, edges = t(8, 2, 64), offsets(0, 3, 8)
    into = price(
        "aten._cudnn_attention_forward_no_dropout_inplace.default",
        q.like(),
        *(q, q, q, edges, edges, 5, 5, True),
    )
    whole = price(
        "aten._cudnn_attention_forward.default", *(q, q, q, None, edges, edges, 5, 5, True, 0.0, True)
    )
    assert into.matrix_flops == whole.matrix_flops == 2 * 2 * 2 * 64 * (3 * 3 + 5 * 5)
    assert visible(into) == 2 * 2 * 2 * 64 * (1 + 2 + 3 + 1 + 2 + 3 + 4 + 5)
    assert into.out == (t(8, 2, 1),)
    assert into.cost.written_bytes == whole.cost.written_bytes


def test_types_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x, row = heads(2, 4, 40, 16), heads(2, 4, 24, 16)
    meta = [torch.empty(tuple(y.shape), device="meta") for y in (x, row, row)]
    calls = {
        "_scaled_dot_product_flash_attention": (0.0, True, True),
        "_scaled_dot_product_flash_attention_for_cpu": (0.0, True),
        "_scaled_dot_product_efficient_attention": (None, True),
        "_scaled_dot_product_cudnn_attention": (None, True),
        "_scaled_dot_product_fused_attention_overrideable": (),
        "_scaled_dot_product_attention_math": (),
    }
    for name, rest in calls.items():
        recorded = getattr(torch.ops.aten, name)(*meta, *rest)
        derived = price(f"aten.{name}.default", x, row, row, *rest).out
        assert len(recorded) == len(derived)
        for theirs, ours in zip(recorded, derived, strict=True):
            if isinstance(theirs, torch.Tensor):
                assert isinstance(ours, TensorType), name
                assert (tuple(theirs.shape), str(theirs.dtype)[6:]) == (ours.shape, ours.dtype.name), name
            else:
                assert theirs == ours, name


def test_eight_bit_attention_gives_sixteen_bits() -> None:
    x, scale = heads(1, 2, 8, 16, "float8_e4m3fn"), t(1, 2)
    op = "aten._scaled_dot_product_flash_attention.quantized"
    estimate = price(op, x, x, x, scale, scale, scale)
    assert [str(value) for value in estimate.out[:2]] == ["bfloat16[1, 2, 8, 16]", "float32[1, 2, 8]"]
    assert estimate.matrix_flops == 4 * 2 * 8 * 8 * 16
    assert estimate.cost.read_bytes == 3 * 2 * 8 * 16 + 3 * 2 * 4


def test_choice_of_an_implementation_is_free() -> None:
    x = heads(1, 2, 8, 16)
    assert not price("aten._fused_sdp_choice.default", x, x, x).cost
