"""Products of matrices: work, shapes, traffic and gradients."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import dim_min, parse_dim, symbol
from graphflops.errors import ShapeError
from graphflops.passes.gradients import gradient
from graphflops.rules import find
from graphflops.rules.matmul import cheapest_chain
from tests.support import price, shapes, t


def trained(op: str, **arguments: object) -> Estimate:
    """The backward of a call whose wanted operands say so."""
    rule = find(op)
    assert rule is not None
    result = gradient(rule, arguments, rule.function(**arguments))
    assert result is not None
    return result


@pytest.mark.parametrize(
    "op, operands, out, flops",
    [
        ("aten.mm.default", ((3, 4), (4, 5)), (3, 5), 2 * 3 * 4 * 5),
        ("aten.bmm.default", ((7, 3, 4), (7, 4, 5)), (7, 3, 5), 2 * 7 * 3 * 4 * 5),
        ("aten.matmul.default", ((4,), (4,)), (), 2 * 4),
        ("aten.matmul.default", ((4,), (6, 4, 5)), (6, 5), 2 * 6 * 4 * 5),
        ("aten.matmul.default", ((6, 3, 4), (4,)), (6, 3), 2 * 6 * 3 * 4),
        ("aten.matmul.default", ((2, 1, 3, 4), (6, 4, 5)), (2, 6, 3, 5), 2 * 12 * 3 * 4 * 5),
        ("aten.linalg_matmul.default", ((3, 0), (0, 5)), (3, 5), 0),
        ("aten.vdot.default", ((9,), (9,)), (), 18),
        ("aten.linalg_vecdot.default", ((3, 4), (4,)), (3,), 2 * 3 * 4),
        ("aten.linear.default", ((2, 8, 6), (7, 6)), (2, 8, 7), 2 * 16 * 6 * 7),
        ("aten.linear.default", ((6,), (7, 6)), (7,), 2 * 6 * 7),
        ("aten.linear.default", ((2, 6), (6,)), (2,), 2 * 2 * 6),
    ],
)
def test_a_product_is_two_operations_per_multiply_add(
    op: str, operands: tuple[tuple[int, ...], tuple[int, ...]], out: tuple[int, ...], flops: int
) -> None:
    a, b = (t(*shape) for shape in operands)
    estimate = price(op, a, b)
    assert (shapes(estimate), estimate.matrix_flops, estimate.vector_flops) == ([out], flops, 0)
    assert estimate.cost.read_bytes == 4 * (a.numel + b.numel)


def test_linear_counts_the_whole_batch_and_the_bias_apart() -> None:
    estimate = price("aten.linear.default", t(4, 64), t(128, 64), t(128))
    assert estimate.matrix_flops == 2 * 4 * 64 * 128 == 65_536
    assert estimate.vector_flops == 4 * 128


def test_a_product_of_inner_size_k_counts_k_additions() -> None:
    assert price("aten.mm.default", t("m", "k"), t("k", "n")).matrix_flops == parse_dim("2*k*m*n")


def test_broadcast_product_counts_the_batch_of_the_result() -> None:
    assert price("aten.matmul.default", t(1, 8, 16), t(5, 16, 4)).matrix_flops == 2 * 5 * 8 * 16 * 4 == 5_120


def test_products_with_a_vector_count() -> None:
    assert price("aten.mv.default", t(128, 64), t(64)).matrix_flops == 2 * 128 * 64 == 16_384
    assert price("aten.dot.default", t(64), t(64)).matrix_flops == 128


def test_addbmm_and_addr_count_their_products() -> None:
    addbmm = price("aten.addbmm.default", t(8, 9), t(3, 8, 5), t(3, 5, 9))
    assert (shapes(addbmm), addbmm.matrix_flops) == ([(8, 9)], 2 * 3 * 8 * 5 * 9)
    addr = price("aten.addr.default", t(8, 9), t(8), t(9))
    assert (shapes(addr), addr.matrix_flops) == ([(8, 9)], 2 * 8 * 9)


def test_grouped_mm_counts_all_rows_once() -> None:
    a, b = t(32, 64, dtype="bfloat16"), t(4, 64, 32, dtype="bfloat16")
    estimate = price("aten._grouped_mm.default", a, b, t(4, dtype="int32"))
    assert estimate.matrix_flops == 2 * 32 * 64 * 32 == 131_072
    assert shapes(estimate) == [(32, 32)]


def test_complex_products_count_in_real_arithmetic() -> None:
    square = t(8, 8, dtype="complex64")
    assert price("aten.mm.default", square, square).matrix_flops == 8 * 8 * 8 * 8
    assert price("aten.linear.default", square, square, t(8, dtype="complex64")).vector_flops == 2 * 64


def test_a_frozen_first_layer_needs_no_weight_gradient() -> None:
    x, hidden = t(4, 64), t(4, 64, requires_grad=True)
    first = price("aten.linear.default", x, t(64, 64))
    second = trained("aten.linear.default", x=x, weight=t(64, 64, requires_grad=True))
    assert 2 * first.matrix_flops + second.matrix_flops == 98_304
    both = trained("aten.linear.default", x=hidden, weight=t(64, 64, requires_grad=True))
    assert both.matrix_flops == 2 * 2 * 4 * 64 * 64


def test_recomputing_costs_one_forward_more() -> None:
    operands = {"x": t(4, 64, requires_grad=True), "weight": t(64, 64, requires_grad=True)}
    forward = price("aten.linear.default", **operands).matrix_flops
    step = 2 * (forward + trained("aten.linear.default", **operands).matrix_flops)
    assert step == 196_608
    assert step + forward == 229_376


@pytest.mark.parametrize("a_rank, b_rank, out", [(3, 2, (32, 8)), (2, 2, (4, 32, 8)), (3, 3, (4, 32, 8))])
def test_groups_split_rows_columns_or_the_inner_axis(a_rank: int, b_rank: int, out: tuple[int, ...]) -> None:
    a = t(*(4, 32, 64)[3 - a_rank :])
    b = t(*(4, 64, 8)[3 - b_rank :])
    estimate = price("aten._grouped_mm.default", a, b, None if a_rank == b_rank == 3 else t(4, dtype="int32"))
    per_group = 2 * 32 * 64 * 8
    assert shapes(estimate) == [out]
    assert estimate.matrix_flops == (4 * per_group if a_rank == b_rank == 3 else per_group)


def test_few_rows_read_few_of_the_grouped_matrices() -> None:
    decode = price("aten._grouped_mm.default", t(2, 64), t(16, 64, 8), t(16, dtype="int32"))
    assert decode.cost.read_bytes == 4 * (2 * 64 + 2 * 64 * 8 + 16)


@pytest.mark.parametrize(
    "beta, alpha, additions, reads_base",
    [(1, 1, 1, True), (0, 1, 0, False), (0.5, 1, 2, True), (2, 3.0, 3, True)],
)
def test_scaling_and_addition_are_vector_work(
    beta: float, alpha: float, additions: int, reads_base: bool
) -> None:
    estimate = price("aten.addmm.default", t(5), t(3, 4), t(4, 5), beta=beta, alpha=alpha)
    assert (estimate.matrix_flops, estimate.vector_flops) == (2 * 3 * 4 * 5, additions * 15)
    assert estimate.cost.read_bytes == 4 * (12 + 20 + 5 * reads_base)


def test_the_base_does_not_set_the_type_of_the_product() -> None:
    estimate = price(
        "aten.addmm.dtype", t(5), *(t(*s, dtype="bfloat16") for s in ((3, 4), (4, 5))), t().dtype
    )
    assert str(estimate.out[0]) == "float32[3, 5]"
    assert str(estimate.matrix_dtype) == "bfloat16"


def test_an_activation_follows_the_sum() -> None:
    relu = price("aten._addmm_activation.default", t(5), t(3, 4), t(4, 5))
    assert (relu.vector_flops, relu.transcendentals) == (15 + 15, 0)
    gelu = price("aten._addmm_activation.default", t(5), t(3, 4), t(4, 5), use_gelu=True)
    assert (gelu.vector_flops, gelu.transcendentals) == (15 + 4 * 15, 15)


def test_the_cheapest_order_of_a_chain_is_executed() -> None:
    estimate = price("aten.linalg_multi_dot.default", (t(8, 64), t(64, 64), t(64, 4)))
    assert estimate.matrix_flops == 2 * (64 * 64 * 4 + 8 * 64 * 4) == 36_864
    ends = price("aten.linalg_multi_dot.default", (t(5), t(5, 3), t(3, 4), t(4)))
    assert (shapes(ends), ends.matrix_flops) == ([()], 2 * (5 * 3 + 3 * 4 + 3))


def test_a_chain_of_unknown_length_keeps_both_orders() -> None:
    n = symbol("n")
    assert cheapest_chain([n, 64, 64, 4]) == dim_min(64 * 64 * n + 64 * 4 * n, 64 * 64 * 4 + 64 * 4 * n)


@pytest.mark.parametrize("n, products", [(0, 0), (1, 0), (2, 1), (3, 2), (5, 3), (8, 3), (15, 6), (-2, 1)])
def test_powers_by_repeated_squaring(n: int, products: int) -> None:
    estimate = price("aten.linalg_matrix_power.default", t(2, 6, 6), n)
    assert estimate.matrix_flops == products * 2 * 2 * 6**3
    assert estimate.vector_flops == (2 * 2 * 6**3 if n < 0 else 0)


def test_gradients_of_powers_and_chains_are_two_products_each() -> None:
    power = trained("aten.matrix_power.default", x=t(6, 6, requires_grad=True), n=5)
    assert power.matrix_flops == 2 * 3 * 2 * 6**3
    matrices = (t(8, 6, requires_grad=True), t(6, 7, requires_grad=True), t(7, 4, requires_grad=True))
    chain = trained("aten.linalg_multi_dot.default", matrices=matrices)
    assert chain.matrix_flops == 2 * 2 * (6 * 7 * 4 + 8 * 6 * 4)
    assert shapes(chain) == [(8, 6), (6, 7), (7, 4)]


@pytest.mark.parametrize(
    "op, a, b, wants, matrix, vector",
    [
        ("aten.mv.default", (6, 4), (4,), "a", 0, 6 * 4),
        ("aten.mv.default", (6, 4), (4,), "b", 2 * 6 * 4, 0),
        ("aten.mv.default", (6, 4), (4,), "ab", 2 * 6 * 4, 6 * 4),
        ("aten.dot.default", (4,), (4,), "ab", 0, 2 * 4),
        ("aten.inner.default", (4,), (4,), "ab", 0, 2 * 4),
        ("aten.inner.default", (3, 4), (5, 4), "ab", 2 * 2 * 3 * 4 * 5, 0),
        ("aten.inner.default", (), (5,), "a", 0, 5),
        ("aten.matmul.default", (6, 3, 4), (4,), "ab", 2 * 6 * 3 * 4, 6 * 3 * 4),
        ("aten.matmul.default", (4,), (6, 4, 5), "ab", 2 * 6 * 4 * 5, 6 * 4 * 5),
        ("aten.matmul.default", (4,), (4, 5), "ab", 2 * (2 * 4 * 5), 0),  # torch runs it as (1, 4) by (4, 5)
        ("aten.matmul.default", (6, 3, 4), (4, 5), "ab", 2 * 2 * 6 * 3 * 4 * 5, 0),
    ],
)
def test_a_gradient_beside_a_vector_is_an_outer_product(
    op: str, a: tuple[int, ...], b: tuple[int, ...], wants: str, matrix: int, vector: int
) -> None:
    estimate = trained(op, a=t(*a, requires_grad="a" in wants), b=t(*b, requires_grad="b" in wants))
    assert (estimate.matrix_flops, estimate.vector_flops) == (matrix, vector)
    assert shapes(estimate) == [shape for name, shape in (("a", a), ("b", b)) if name in wants]


def test_a_complex_outer_product_is_six_operations_per_pair() -> None:
    vector = t(4, dtype="complex64", requires_grad=True)
    assert trained("aten.vdot.default", a=vector, b=vector).vector_flops == 2 * 6 * 4


def test_vecdot_gradients_are_the_operands_scaled() -> None:
    estimate = trained(
        "aten.linalg_vecdot.default", x=t(3, 4, requires_grad=True), y=t(4, requires_grad=True)
    )
    assert (estimate.matrix_flops, estimate.vector_flops) == (0, 2 * 3 * 4)


def test_a_factor_is_read_for_the_other_factors_gradient_only() -> None:
    x, weight = t(16, 8), t(4, 8, requires_grad=True)
    assert trained("aten.linear.default", x=x, weight=weight).cost.read_bytes == 4 * (16 * 4 + 16 * 8)
    x, weight, bias = t(16, 8, requires_grad=True), t(4, 8), t(4)
    frozen = trained("aten.linear.default", x=x, weight=weight, bias=bias)
    assert (frozen.cost.read_bytes, frozen.vector_flops) == (4 * (16 * 4 + 4 * 8), 0)


def test_backward_operators() -> None:
    x, grad, weight = t(4, 5, 64), t(4, 5, 128), t(128, 64)
    product = 2 * 20 * 64 * 128
    both = price("aten.linear_backward.default", x, grad, weight, (True, True, True))
    assert (shapes(both), both.matrix_flops) == ([(4, 5, 64), (128, 64), (128,)], 2 * product)
    assert both.vector_flops == 20 * 128
    only = price("aten.linear_backward.default", x, grad, weight, (True, False, False))
    assert (only.out[1:], only.matrix_flops) == ((None, None), product)
    pair = price("aten.matmul_backward.default", t(3, 5), t(3, 4), t(4, 5), (False, True))
    assert (shapes(pair), pair.matrix_flops) == ([(4, 5)], 2 * 3 * 4 * 5)


@pytest.mark.parametrize(
    "op, operands, both",
    [
        ("aten.mm.default", ((3, 4), (5, 6)), "4 and 5"),
        ("aten.matmul.default", ((2, 3, 4), (3, 4, 5)), "2 and 3"),
        ("aten.linear.default", ((3, 4), (6, 5)), "the input has 4 features, the weight takes 5"),
        ("aten.linalg_matrix_power.default", ((3, 4),), "3 by 4"),
    ],
)
def test_products_that_cannot_meet(op: str, operands: tuple[tuple[int, ...], ...], both: str) -> None:
    with pytest.raises(ShapeError, match=both):
        price(op, *(t(*shape) for shape in operands), *((2,) if "power" in op else ()))


def test_unknown_sizes_get_the_benefit_of_the_doubt() -> None:
    estimate = price("aten.mm.default", t("batch", "features"), t(64, 128))
    assert shapes(estimate) == [(symbol("batch"), 128)]
