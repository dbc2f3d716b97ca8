"""Attention as one operator of a whole module, and attention with the program's own functions."""

from __future__ import annotations

from dataclasses import dataclass

from graphflops.cost import Cost, Estimate, Value
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.rules.shapes import doubled_pairs
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

WIDTH, HEADS, HIDDEN = 64, 4, 256
PROJECTIONS = (t(3 * WIDTH, WIDTH), t(3 * WIDTH), t(WIDTH, WIDTH), t(WIDTH))
QKV = 2 * 32 * 64 * 192
PRODUCTS = 4 * 2 * 4 * 16 * 16 * 16
PROJECTED = 2 * 32 * 64 * 64


def multi_head(need_weights: bool, average: bool) -> Estimate:
    """Self-attention over (2, 16, 64)."""
    x = t(2, 16, WIDTH)
    return price(
        "aten._native_multi_head_attention.default",
        *(x, x, x, WIDTH, HEADS, *PROJECTIONS, None, need_weights, average),
    )


def test_encoder_layer_counts_attention_and_feed_forward() -> None:
    vector = t(WIDTH)
    estimate = price(
        "aten._transformer_encoder_layer_fwd.default",
        *(t(2, 16, WIDTH), WIDTH, HEADS, *PROJECTIONS, False, False, 1e-5, vector, vector, vector, vector),
        *(t(HIDDEN, WIDTH), t(HIDDEN), t(WIDTH, HIDDEN), vector),
    )
    feed_forward = 2 * 2 * 32 * 64 * 256
    assert estimate.matrix_flops == QKV + PRODUCTS + PROJECTED + feed_forward == 3_276_800
    assert shapes(estimate) == [(2, 16, WIDTH)]
    scores, tokens = 2 * HEADS * 16 * 16, 2 * 16
    norms, residuals, biases = 2 * 7 * tokens * 64, 2 * tokens * 64, tokens * (3 * 64 + 64 + 256 + 64)
    assert estimate.vector_flops == scores * (1 + 4) + norms + residuals + biases + tokens * 256
    assert estimate.transcendentals == scores + 2 * tokens


def test_multi_head_attention_counts_its_projections() -> None:
    estimate = multi_head(need_weights=False, average=True)
    assert estimate.matrix_flops == QKV + PRODUCTS + PROJECTED == 1_179_648
    assert shapes(estimate) == [(2, 16, WIDTH)]


def test_weights_are_returned_for_each_head_or_averaged() -> None:
    assert shapes(multi_head(need_weights=True, average=True)) == [(2, 16, WIDTH), (2, 16, 16)]
    assert shapes(multi_head(need_weights=True, average=False)) == [(2, 16, WIDTH), (2, HEADS, 16, 16)]


def test_projections_are_split_into_heads() -> None:
    estimate = price("aten._transform_bias_rescale_qkv.default", t(2, 16, 192), t(192), HEADS)
    assert shapes(estimate) == [(2, HEADS, 16, 16)] * 3
    assert estimate.vector_flops == 2 * 16 * 192 + 2 * 16 * 64


@dataclass(frozen=True)
class Run:
    """What a nested graph returned and cost."""

    name: str
    out: tuple[Value, ...]
    cost: Cost


def function(vector_flops: int, transcendentals: int = 0) -> object:
    """A score or mask function of so much work, moving 100 bytes a time."""

    def region(*operands: Value) -> Run:
        assert all(isinstance(x, TensorType) for x in operands[:4])
        return Run("function", operands[:1], Cost(0, vector_flops, transcendentals, 0, 100, 100))

    return region


def block_mask(
    rows: int, columns: int, partial: TensorType, full: TensorType | None = None
) -> tuple[object, ...]:
    """The first and last entries of a block mask that this project looks at."""
    unused = (None,) * 8
    return (rows, columns, partial, t(1, 1, 2, 2, dtype="int32"), full, None, *unused, 128, 128, function(3))


def flex(mask: tuple[object, ...], score: object, *buffers: TensorType) -> Estimate:
    """Two query heads over one key head, 256 rows of width 16."""
    q, kv = t(1, 2, 256, 16), t(1, 1, 256, 16)
    return price("higher_order.flex_attention", q, kv, kv, score, mask, 0.25, {}, buffers, ())


def test_flexible_attention_runs_whole_blocks() -> None:
    counts = t(1, 1, 2, dtype="int32", value=((((1, 1)),),))
    diagonal = t(1, 1, 2, dtype="int32", value=((((0, 1)),),))
    estimate = flex(block_mask(256, 256, counts, diagonal), function(0))
    dense = 4 * 2 * 256 * 256 * 16
    assert estimate.matrix_flops == dense
    assert estimate.matrix_flops - estimate.masked_flops == dense * 3 // 4  # of four blocks three run
    assert doubled_pairs(256, 256, right=0) == 256 * 257  # 50.2 % of the elements


def test_functions_work_once_per_score_and_move_nothing() -> None:
    scores = 2 * 256 * 256
    counts, bias = t(1, 1, 2, dtype="int32"), t(2)
    estimate = flex(block_mask(256, 256, counts), function(5, 1), bias)
    assert estimate.vector_flops == scores * (1 + 4 + 5 + 3 + 1)  # scale, softmax, both functions, selection
    assert estimate.transcendentals == scores * (1 + 1)
    assert estimate.masked_flops == 0
    assert estimate.cost.read_bytes == 4 * ((2 + 1 + 1) * 256 * 16 + 2 + 4 + 2)
    assert [str(value) for value in estimate.out] == [
        "float32[1, 2, 256, 16]",
        "float32[1, 2, 256]",
        "float32[1, 2, 256]",
    ]
    assert [times for _, times in estimate.regions] == [0, 0]


def test_flexible_backward_is_five_products() -> None:
    q, kv, row_sums, bias = t(1, 2, 256, 16), t(1, 1, 256, 16), t(1, 2, 256), t(2)
    mask = block_mask(256, 256, t(1, 1, 2, dtype="int32"))
    estimate = price(
        "higher_order.flex_attention_backward",
        *(q, kv, kv, q, row_sums, q, row_sums, function(5), function(9), mask, 0.25, {}, (bias,), ()),
    )
    assert estimate.matrix_flops == 5 * 2 * 2 * 256 * 256 * 16
    assert shapes(estimate) == [q.shape, kv.shape, kv.shape, bias.shape]
    scores = 2 * 256 * 256
    # scale, subtract, softmax' gradient 2 and its scale; three functions, selection; row sums of the result
    assert estimate.vector_flops == scores * (2 + 3 + 5 + 9 + 3 + 1) + 2 * 2 * 256 * 16


def test_gradients_of_a_flexible_forward_call() -> None:
    q, kv = t(1, 2, 256, 16), t(1, 1, 256, 16)
    arguments = {
        "query": q,
        "key": kv,
        "value": kv,
        "score_mod": function(5),
        "block_mask": block_mask(256, 256, t(1, 1, 2, dtype="int32")),
        "scale": 0.25,
        "kernel_options": {},
    }
    forward = price("higher_order.flex_attention", **arguments)
    rule = find_backward("higher_order.flex_attention")
    assert rule is not None
    estimate = rule(ForwardCall(forward, arguments, frozenset({"query", "key", "value"})))
    assert estimate.matrix_flops == forward.matrix_flops * 5 // 2
    assert shapes(estimate) == [q.shape, kv.shape, kv.shape]
