"""Gradients of attention by every fused operator: five products, of which one makes the scores again."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.cost import Estimate
from graphflops.rules.registry import ForwardCall, find_backward
from tests.support import price, shapes, t

# One batch entry, 2 heads of width 8, 4 queries and 4 keys: 32 pairs of which a causal mask hides 2 * 6.
DENSE = t(1, 2, 4, 8)
ROWS_FIRST = t(1, 4, 2, 8)
TOKENS = t(4, 2, 8)  # packed: all rows, heads, width
SUMS = t(1, 2, 4)
OFFSETS = t(2, dtype="int32", value=(0, 4))
FIVE_PRODUCTS, HIDDEN = 5 * 2 * 32 * 8, 5 * 2 * 12 * 8
SEEDS = (t(dtype="int64"), t(dtype="int64"))
THREE = (DENSE, DENSE, DENSE)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        (
            "aten._scaled_dot_product_flash_attention_backward.default",
            (DENSE, *THREE, DENSE, SUMS, None, None, 4, 4, 0.0, True, *SEEDS),
        ),
        (
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            (DENSE, *THREE, DENSE, SUMS, 0.0, True),
        ),
        (
            "aten._scaled_dot_product_cudnn_attention_backward.default",
            (DENSE, *THREE, DENSE, SUMS, *SEEDS, None, None, None, 4, 4, 0.0, True),
        ),
        (
            "aten._scaled_dot_product_efficient_attention_backward.default",
            (DENSE, *THREE, None, DENSE, SUMS, *SEEDS, 0.0, (True, True, True, False), True),
        ),
        (
            "aten._scaled_dot_product_fused_attention_overrideable_backward.default",
            (DENSE, *THREE, None, (True,) * 4, DENSE, SUMS, None, None, 4, 4, 0.0, True, *SEEDS),
        ),
        (
            "aten._flash_attention_backward.default",
            (ROWS_FIRST, *(ROWS_FIRST,) * 4, SUMS, None, None, 4, 4, 0.0, True, *SEEDS),
        ),
        (
            "aten._flash_attention_backward.default",
            (TOKENS, *(TOKENS,) * 4, SUMS, OFFSETS, OFFSETS, 4, 4, 0.0, True, *SEEDS),
        ),
        (
            "torch_attn._varlen_attn_backward.default",
            (TOKENS, *(TOKENS,) * 4, SUMS, OFFSETS, OFFSETS, 4, 4, True, SEEDS[0]),
        ),
        (
            "aten._efficient_attention_backward.default",
            (ROWS_FIRST, *(ROWS_FIRST,) * 3, None, ROWS_FIRST, None, None, 4, 4, SUMS, 0.0, *SEEDS, 1, False),
        ),
        (
            "aten._cudnn_attention_backward.default",
            (TOKENS, *(TOKENS,) * 4, SUMS, *SEEDS, None, OFFSETS, OFFSETS, 4, 4, 0.0, True),
        ),
    ],
)
def test_all_three_gradients_are_five_products(op: str, operands: tuple[Any, ...]) -> None:
    estimate = price(op, *operands)
    assert (estimate.matrix_flops, estimate.masked_flops) == (FIVE_PRODUCTS, HIDDEN)
    assert estimate.transcendentals == 32  # the exponentials of the scores again
    assert shapes(estimate)[:3] == [operands[1].shape] * 3


def gradients(op: str, **arguments: Any) -> Estimate:
    """What the gradients of query, key and value of a forward call cost."""
    rule = find_backward(op)
    assert rule is not None
    return rule(ForwardCall(price(op, **arguments), arguments, frozenset(("query", "key", "value"))))


PACKED = {"query": TOKENS, "key": TOKENS, "value": TOKENS, "is_causal": True}


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (
            "aten._flash_attention_forward",
            PACKED
            | {
                "offsets_q": OFFSETS,
                "offsets_k": OFFSETS,
                "max_q": 4,
                "max_k": 4,
                "dropout_p": 0.0,
                "return_debug_mask": False,
            },
        ),
        (
            "aten._cudnn_attention_forward",
            PACKED
            | {"mask": None, "offsets_q": OFFSETS, "offsets_k": OFFSETS, "max_q": 4, "max_k": 4}
            | {"compute_log_sumexp": True, "dropout_p": 0.0},
        ),
        (
            "torch_attn._varlen_attn",
            PACKED | {"offsets_q": OFFSETS, "offsets_k": OFFSETS, "max_q": 4, "max_k": 4},
        ),
        (
            "aten._efficient_attention_forward",
            {"query": ROWS_FIRST, "key": ROWS_FIRST, "value": ROWS_FIRST, "mask": None, "offsets_q": None}
            | {
                "offsets_k": None,
                "max_q": 4,
                "max_k": 4,
                "dropout_p": 0.0,
                "custom_mask_type": 1,
            },
        ),
    ],
)
def test_a_forward_call_and_its_gradients_are_seven_products(op: str, arguments: dict[str, Any]) -> None:
    forward, backward = price(op, **arguments), gradients(op, **arguments)
    assert (forward.matrix_flops, forward.masked_flops) == (2 * 2 * 32 * 8, 2 * 2 * 12 * 8)
    assert (backward.matrix_flops, backward.masked_flops) == (FIVE_PRODUCTS, HIDDEN)
    assert shapes(backward) == [arguments["query"].shape] * 3


def test_stored_probabilities_make_it_four_products() -> None:
    backward = gradients("aten._scaled_dot_product_attention_math", query=DENSE, key=DENSE, value=DENSE)
    assert (backward.matrix_flops, backward.transcendentals) == (4 * 2 * 32 * 8, 0)


def test_operators_that_write_into_a_given_result_return_the_row_sums_only() -> None:
    arguments = (TOKENS, TOKENS, TOKENS, OFFSETS, OFFSETS, 4, 4)
    into = price(
        "aten._flash_attention_forward_no_dropout_inplace.default", TOKENS, *arguments, 0.0, True, False
    )
    assert shapes(into) == [(2, 4)]
    assert into.matrix_flops == 2 * 2 * 32 * 8
    assert into.cost.written_bytes == 4 * (4 * 2 * 8) + 4 * (2 * 4)
    into = price("torch_attn._varlen_attn_out.default", TOKENS, *arguments, True)
    assert shapes(into) == [(2, 4)]
    assert into.matrix_flops == 2 * 2 * 32 * 8


def test_scales_of_eight_bit_operands_are_read_too() -> None:
    eight, scale = t(1, 4, 2, 8, dtype="float8_e4m3fn"), t(1, 2)
    common = (eight, eight, eight, None, None, 4, 4, 0.0, True, False)
    plain = price("aten._flash_attention_forward.default", *common)
    scaled = price("aten._flash_attention_forward.quantized", *common, scale, scale, scale)
    assert scaled.matrix_flops == plain.matrix_flops == 2 * 2 * 32 * 8
    assert scaled.cost.read_bytes == 3 * (4 * 2 * 8) + 3 * 4 * 2


def test_attention_that_triton_runs() -> None:
    estimate = price("aten._triton_scaled_dot_attention.default", DENSE, DENSE, DENSE)
    assert (estimate.matrix_flops, shapes(estimate)) == (2 * 2 * 32 * 8, [(1, 2, 4, 8)])
    x, width = t(2, 16, 64), 64
    estimate = price(
        *("aten._triton_multi_head_attention.default", x, x, x, width, 4, t(192, width), t(192)),
        *(t(width, width), t(width)),
    )
    assert shapes(estimate) == [(2, 16, 64)]
    assert estimate.matrix_flops == 2 * 32 * 64 * 192 + 2 * 2 * (2 * 16 * 16) * 64 + 2 * 32 * 64 * 64
