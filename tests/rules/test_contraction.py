"""Einsum, tensordot, bilinear, outer products, distances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops.cost import Estimate
from graphflops.dims import evaluate, floor_div, parse_dim, symbol
from graphflops.errors import ShapeError
from graphflops.passes.gradients import gradient
from graphflops.rules import find
from graphflops.rules.registry import ForwardCall, find_backward
from tests.support import price, shapes, t

EINSUM = "aten.einsum.default"


def einsum(equation: str, *operands: tuple[int | str, ...], path: tuple[int, ...] | None = None) -> Estimate:
    return price(EINSUM, equation, tuple(t(*shape) for shape in operands), path=path)


@pytest.mark.parametrize(
    "equation, operands, out, matrix, vector",
    [
        ("ij,jk->ik", ((3, 4), (4, 5)), (3, 5), 2 * 3 * 4 * 5, 0),
        ("ij,jk", ((3, 4), (4, 5)), (3, 5), 2 * 3 * 4 * 5, 0),
        (" i j , j k -> k i ", ((3, 4), (4, 5)), (5, 3), 2 * 3 * 4 * 5, 0),
        ("ba,Ac", ((3, 4), (5, 2)), (5, 4, 3, 2), 0, 5 * 4 * 3 * 2),  # implicit order: capitals first
        ("...ij,...jk->...ik", ((7, 1, 3, 4), (2, 4, 5)), (7, 2, 3, 5), 2 * 7 * 2 * 3 * 4 * 5, 0),
        ("...ij,jk", ((7, 3, 4), (4, 5)), (7, 3, 5), 2 * 7 * 3 * 4 * 5, 0),
        ("i...,i...->...", ((3, 4, 5), (3, 4, 5)), (4, 5), 2 * 3 * 4 * 5, 0),
        ("i...->i", ((3, 4, 5),), (3,), 0, 3 * 4 * 5),
        ("i,j->ij", ((3,), (4,)), (3, 4), 0, 12),
        ("ij,ij->ij", ((3, 4), (3, 4)), (3, 4), 0, 12),
        ("ij->", ((3, 4),), (), 0, 12),
        ("ii->", ((4, 4),), (), 0, 4),
        ("iij,jk->ik", ((8, 8, 6), (6, 4)), (8, 4), 2 * 8 * 6 * 4, 0),
        # i stands alone and is summed first
        ("ijk,jl->kl", ((8, 3, 6), (3, 4)), (6, 4), 2 * 6 * 3 * 4, 8 * 3 * 6),
        # size 1 broadcasts: j is summed first
        ("ij,jk->ik", ((3, 1), (4, 5)), (3, 5), 0, 4 * 5 + 3 * 5),
    ],
)
def test_einsum(
    equation: str, operands: tuple[tuple[int, ...], ...], out: tuple[int, ...], matrix: int, vector: int
) -> None:
    estimate = einsum(equation, *operands)
    assert (shapes(estimate), estimate.matrix_flops, estimate.vector_flops) == ([out], matrix, vector)


def test_einsum_of_attention_scores_counts_every_head() -> None:
    estimate = einsum("bhid,bhjd->bhij", (2, 4, 8, 16), (2, 4, 8, 16))
    assert estimate.matrix_flops == 2 * 2 * 4 * 8 * 8 * 16 == 16_384


def test_einsum_counts_the_path_that_is_executed() -> None:
    operands = ((8, 64), (64, 64), (64, 4))
    left_to_right = einsum("ij,jk,kl->il", *operands)
    assert left_to_right.matrix_flops == 2 * (8 * 64 * 64 + 8 * 64 * 4) == 69_632
    best = einsum("ij,jk,kl->il", *operands, path=(1, 2, 0, 1))
    assert best.matrix_flops == 2 * (64 * 64 * 4 + 8 * 64 * 4) == 36_864
    assert left_to_right.hint[1].startswith(
        "executed order: 69632 FLOPs; 36864 in the order [[1, 2], [0, 1]]"
    )
    assert best.hint is None


def test_an_einsum_that_only_renames_axes_is_free() -> None:
    for equation, shape in (("ij->ji", (3, 4)), ("ii->i", (3, 3)), ("b...->...b", (2, 3))):
        estimate = einsum(equation, shape)
        assert estimate.alias
        assert not estimate.cost


def test_einsum_keeps_symbols() -> None:
    estimate = einsum("bid,bjd->bij", ("b", "n", 64), ("b", "n", 64))
    assert estimate.matrix_flops == parse_dim("128*b*n**2")
    assert shapes(estimate) == [(symbol("b"), symbol("n"), symbol("n"))]


def test_einsum_of_complex_numbers() -> None:
    square = t(8, 8, dtype="complex64")
    assert price(EINSUM, "ij,jk->ik", (square, square)).matrix_flops == 8 * 8**3


@pytest.mark.parametrize(
    "wants, flops",
    [("abc", 2 * 2 * (8 * 6 * 7 + 8 * 7 * 4)), ("a", 2 * (8 * 6 * 7 + 8 * 7 * 4)), ("c", 2 * 8 * 7 * 4)],
)
def test_einsum_backward_follows_what_leads_to_a_wanted_operand(wants: str, flops: int) -> None:
    shape = {"a": (8, 6), "b": (6, 7), "c": (7, 4)}
    tensors = tuple(t(*size, requires_grad=name in wants) for name, size in shape.items())
    rule = find(EINSUM)
    assert rule is not None
    arguments = {"equation": "ij,jk,kl->il", "tensors": tensors, "path": None}
    backward = gradient(rule, arguments, rule.function(**arguments))
    assert backward is not None
    assert (shapes(backward), backward.matrix_flops) == ([shape[name] for name in wants], flops)


@pytest.mark.parametrize(
    "equation, operands, both",
    [
        ("ij,jk", ((3, 4), (5, 6)), "4 and 5"),
        ("ij,jk", ((3, 4),), "got 1 operands"),
        ("ijk->i", ((3, 4),), "does not fit"),
    ],
)
def test_einsum_that_cannot_be(equation: str, operands: tuple[tuple[int, ...], ...], both: str) -> None:
    with pytest.raises(ShapeError, match=both):
        einsum(equation, *operands)


@pytest.mark.parametrize(
    "a, b, dims, out, matrix, vector",
    [
        ((3, 4, 5), (4, 3, 2), ((1, 0), (0, 1)), (5, 2), 2 * 5 * 2 * 12, 0),
        ((3, 4), (4, 5), ((-1,), (-2,)), (3, 5), 2 * 3 * 4 * 5, 0),
        ((3, 4), (5,), ((), ()), (3, 4, 5), 2 * 60, 0),
        ((3, 1, 5), (4, 3, 2), ((1, 0), (0, 1)), (5, 2), 2 * 5 * 2 * 3, 4 * 3 * 2),
    ],
)
def test_tensordot(a: tuple, b: tuple, dims: tuple, out: tuple, matrix: int, vector: int) -> None:
    estimate = price("aten.tensordot.default", t(*a), t(*b), *dims)
    assert (shapes(estimate), estimate.matrix_flops, estimate.vector_flops) == ([out], matrix, vector)


def test_inner_products_are_matrix_work_and_outer_products_are_not() -> None:
    inner = price("aten.inner.default", t(2, 3, 4), t(5, 4))
    assert (shapes(inner), inner.matrix_flops) == ([(2, 3, 5)], 2 * 6 * 5 * 4)
    scaled = price("aten.inner.default", t(), t(4))
    assert (shapes(scaled), scaled.matrix_flops, scaled.vector_flops) == ([(4,)], 0, 4)
    outer = price("aten.outer.default", t(3, dtype="int64"), t("n"))
    assert (str(outer.out[0]), outer.matrix_flops) == ("float32[3, n]", 0)
    assert outer.vector_flops == 3 * symbol("n")
    assert price("aten.ger.default", t(3, dtype="complex64"), t(4)).vector_flops == 6 * 12


def test_kron_multiplies_every_pair() -> None:
    estimate = price("aten.kron.default", t(2, 3), t(4))
    assert (shapes(estimate), estimate.vector_flops) == ([(2, 12)], 6 * 4)


def test_bilinear_contracts_the_first_operand_first() -> None:
    estimate = price("aten.bilinear.default", t(4, 8), t(4, 16), t(32, 8, 16), t(32))
    assert estimate.matrix_flops == 2 * 4 * 8 * 16 * 32 + 2 * 4 * 16 * 32 == 36_864
    assert (shapes(estimate), estimate.vector_flops) == ([(4, 32)], 4 * 32)
    core = price("aten._trilinear.default", t(4, 8), t(32, 8, 16), t(4, 16), (1, 3), (0,), (1, 2), (2, 3))
    assert (shapes(core), core.matrix_flops) == ([(4, 32)], 36_864)


@pytest.mark.parametrize(
    "wants, matrix, vector",
    [
        # for every row the outer product of a and the result's gradient, contracted with b over the rows
        ("weight", 2 * 4 * 8 * 16 * 32, 4 * 8 * 32),
        # one output feature after the other: its gradient times the weight, contracted with b, added up
        ("a", 2 * 4 * 16 * 32 * 8, 4 * 32 * 8 * 16 + 4 * 32 * 8),
    ],
)
def test_bilinear_gradients_are_contractions_with_the_results(wants: str, matrix: int, vector: int) -> None:
    rule = find("aten.bilinear.default")
    assert rule is not None
    given = {"a": t(4, 8), "b": t(4, 16), "weight": t(32, 8, 16)}
    given = {name: replace(x, requires_grad=name == wants) for name, x in given.items()}
    backward = gradient(rule, given, rule.function(**given))
    assert backward is not None
    assert (backward.matrix_flops, backward.vector_flops) == (matrix, vector)


def test_bilinear_of_other_features() -> None:
    with pytest.raises(ShapeError, match="9 features, weight takes 8"):
        price("aten.bilinear.default", t(4, 9), t(4, 16), t(32, 8, 16))


def test_cdist_past_25_rows_is_a_product() -> None:
    x1, x2 = t(100, 32), t(200, 32)
    product = price("aten.cdist.default", x1, x2)
    assert product.matrix_flops == 2 * 100 * 200 * 32 == 1_280_000
    assert product.vector_flops == 2 * (100 + 200) * 32 + 3 * 100 * 200
    direct = price("aten.cdist.default", x1, x2, 2.0, 2)
    assert (direct.matrix_flops, direct.vector_flops) == (0, 3 * 100 * 200 * 32)
    assert direct.vector_flops == 1_920_000


@pytest.mark.parametrize(
    "rows, p, mode, is_product",
    [
        (25, 2.0, None, False),
        (26, 2.0, None, True),
        (26, 2.0, 0, True),
        (3, 2.0, 1, True),
        (3, 1.0, 1, False),
        (99, float("inf"), None, False),
    ],
)
def test_how_distances_are_computed(rows: int, p: float, mode: int | None, is_product: bool) -> None:
    estimate = price("aten._cdist_forward.default", t(5, rows, 8), t(rows, 8), p, mode)
    assert shapes(estimate) == [(5, rows, rows)]
    assert estimate.matrix_flops == (2 * 5 * rows * rows * 8 if is_product else 0)


@pytest.mark.parametrize(("rows", "matrix"), [(100, 2 * (2 * 100 * 200 * 32)), (20, 0)])
def test_gradients_of_distances_by_a_product_are_both_computed(rows: int, matrix: int) -> None:
    given = {"x1": t(rows, 32), "x2": t(200 if rows > 25 else 25, 32, requires_grad=True)}
    rule = find_backward("aten.cdist")
    assert rule is not None
    back = rule(ForwardCall(price("aten.cdist.default", **given), given, frozenset({"x2"})))
    assert (back.out, back.matrix_flops) == ((given["x2"].like(),), matrix)


def test_cdist_of_an_unknown_number_of_rows_is_decided_later() -> None:
    flops = price("aten.cdist.default", t("n", 32), t(10, 32)).matrix_flops
    assert [evaluate(flops, {"n": n}) for n in (25, 26)] == [0, 2 * 26 * 10 * 32]


@pytest.mark.parametrize("p, functions, roots", [(1.0, 0, 0), (2.0, 0, 1), (3.0, 1, 1), (0.0, 0, 0)])
def test_powers_in_distances(p: float, functions: int, roots: int) -> None:
    pairs, size = 5 * 4 // 2, 7
    estimate = price("aten.pdist.default", t(5, size), p)
    assert (shapes(estimate), estimate.vector_flops) == ([(pairs,)], 3 * pairs * size)
    assert estimate.transcendentals == functions * pairs * size + roots * pairs
    rows = price("aten.pairwise_distance.default", t(5, size), t(size), p, keepdim=True)
    assert (shapes(rows), rows.vector_flops) == ([(5, 1)], 4 * 5 * size)


def test_pairs_of_an_unknown_number_of_rows() -> None:
    n = symbol("n")
    assert shapes(price("aten._pdist_forward.default", t("n", 3))) == [(floor_div(n * (n - 1), 2),)]


def test_the_gradient_of_no_distances_is_not_broadcast() -> None:
    estimate = price("aten._cdist_backward.default", t(0, 4, 3), t(4, 5), t(0, 3, 5), 2.0, t(0, 4, 3))
    assert (shapes(estimate), estimate.vector_flops) == ([(4, 5)], 0)


def test_distance_gradients() -> None:
    grad, x1, x2 = t(5, 30, 20), t(30, 4), t(5, 20, 4)
    estimate = price("aten._cdist_backward.default", grad, x1, x2, 2.0, grad)
    assert (shapes(estimate), estimate.vector_flops) == ([(5, 30, 4)], 3 * 5 * 30 * 20 * 4 + 5 * 30 * 20)
    pairs = t(10)
    estimate = price("aten._pdist_backward.default", pairs, t(5, 4), 2.0, pairs)
    assert (shapes(estimate), estimate.vector_flops) == ([(5, 4)], 4 * 10 * 4 + 10)


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    cases = (
        "abc,cd,dbe->ae",
        "ij,jk,ki->",
        "abij,abjk,kl->bil",
        "ab,bc->ac",
        "i,ij,j->",
        "...i,ij,...j->...",
    )
    sizes = dict(zip("abcdeijkl", (2, 3, 4, 5, 6, 7, 8, 9, 10), strict=True))
    for equation in cases:
        terms = equation.split("->")[0].replace("...", "ab").split(",")
        operands = [tuple(sizes[label] for label in term) for term in terms]
        with FlopCounterMode(display=False) as counter:
            torch.ops.aten.einsum.default(equation, [torch.empty(shape, device="meta") for shape in operands])
        assert einsum(equation, *operands).matrix_flops == counter.get_total_flops(), equation
