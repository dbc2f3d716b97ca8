"""Primitives that decompositions leave behind."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from tests.support import price, shapes, t

INTEGERS = t(8, dtype="int64")


@pytest.mark.parametrize(
    ("op", "operands", "out", "flops", "evaluations"),
    [
        ("prims.add", (t(8), t(8)), t(8), 8, 0),
        ("prims.div", (INTEGERS, INTEGERS), INTEGERS, 8, 0),
        ("prims.mul", (t(8, dtype="complex64"), t(8, dtype="complex64")), t(8, dtype="complex64"), 48, 0),
        ("prims.lt", (t(8), t(8)), t(8, dtype="bool"), 8, 0),
        ("prims.exp", (t(8),), t(8), 0, 8),
        ("prims.fma", (t(8), t(8), t(8)), t(8), 2 * 8, 0),
        ("prims.abs", (t(8, dtype="complex64"),), t(8), 24, 8),
        ("prims.where", (t(8, dtype="bool"), t(8), t(8)), t(8), 8, 0),
        ("prims.convert_element_type", (t(8), t(dtype="bfloat16").dtype), t(8, dtype="bfloat16"), 8, 0),
        ("prims.convert_element_type", (t(8), t().dtype), t(8), 0, 0),
        ("prims.device_put", (t(8), "cuda"), t(8), 0, 0),
        ("prims.fill", (t(8), 0.0), t(8), 0, 0),
    ],
)
def test_elementwise_primitives(op, operands, out, flops, evaluations) -> None:
    estimate = price(op, *operands)
    (result,) = estimate.out
    assert (result.shape, result.dtype) == (out.shape, out.dtype)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)
    assert estimate.cost.written_bytes == out.nbytes


@pytest.mark.parametrize(
    ("op", "arguments", "shape"),
    [
        ("prims.broadcast_in_dim", (t(3), (2, 3, 4), (1,)), (2, 3, 4)),
        ("prims.transpose", (t(2, 3, 4), (2, 0, 1)), (4, 2, 3)),
        ("prims.squeeze", (t(1, 3, 1), (0, 2)), (3,)),
        ("prims.split_dim", (t("s", 6), 1, 2), (symbol("s"), 2, 3)),
        ("prims.collapse_view", (t(2, "s", 4), 0, 1), (2 * symbol("s"), 4)),
        ("prims.view_of", (t(2, 3),), (2, 3)),
        ("prims.real", (t(2, dtype="complex64"),), (2,)),
    ],
)
def test_views_are_free(op, arguments, shape) -> None:
    estimate = price(op, *arguments)
    assert shapes(estimate) == [shape]
    assert not estimate.cost
    assert estimate.alias


def test_a_reversal_moves_every_element() -> None:
    estimate = price("prims.rev", t(2, 3), (1,))
    assert shapes(estimate) == [(2, 3)]
    cost = estimate.cost
    assert (cost.read_bytes, cost.written_bytes) == (2 * 3 * 4, 2 * 3 * 4)


def test_broadcast_stores_only_its_operand() -> None:
    (out,) = price("prims.broadcast_in_dim", t(3), (2, 3, 4), (1,)).out
    assert (out.numel, out.nbytes) == (24, 4 * 3)


def test_fresh_tensors_are_written_not_read() -> None:
    for estimate in (
        price("prims.full", (2, 4), 1.0, dtype=t().dtype, requires_grad=False),
        price("prims.full_like", t(2, 4), 1.0, dtype=t().dtype, requires_grad=False),
        price("prims.iota", 8, start=0, step=1, dtype=t().dtype, requires_grad=False),
    ):
        assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (0, 32)
    assert not price("prims.empty", (2, 4), dtype=t().dtype, requires_grad=False).cost


def test_tokens_and_items() -> None:
    assert shapes(price("prims._make_token")) == [(0,)]
    assert price("prims.item", t(dtype="int64", value=7)).out == (7,)
    assert price("prims.item", t(dtype="int64")).out == (symbol("item?"),)


ONE_FLOP = "neg ceil floor round trunc sign reciprocal"
ONE_EVALUATION = """sqrt rsqrt exp2 expm1 log log10 log1p log2
acos acosh asin asinh atan atanh cbrt cos cosh sin sinh tan tanh erf erfc erfcx erf_inv ndtri digamma
lgamma bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 spherical_bessel_j0"""


@pytest.mark.parametrize(
    ("name", "flops", "evaluations"),
    [*((name, 1, 0) for name in ONE_FLOP.split()), *((name, 0, 1) for name in ONE_EVALUATION.split())],
)
def test_functions_of_one_operand(name, flops, evaluations) -> None:
    estimate = price(f"prims.{name}", t(8))
    assert estimate.out == (t(8),)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 8, evaluations * 8)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name) -> None:
    estimate = price(f"prims.{name}", t(8), t(8))
    assert (estimate.out, estimate.vector_flops) == ((t(8, dtype="bool"),), 8)


@pytest.mark.parametrize("name", ["isfinite", "signbit"])
def test_questions_of_each_element(name) -> None:
    estimate = price(f"prims.{name}", t(8))
    assert (estimate.out, estimate.vector_flops) == ((t(8, dtype="bool"),), 8)


@pytest.mark.parametrize(
    ("name", "flops", "evaluations"),
    [
        ("sub", 1, 0),
        ("maximum", 1, 0),
        ("minimum", 1, 0),
        ("fmax", 1, 0),
        ("fmin", 1, 0),
        ("nextafter", 1, 0),
        ("fmod", 4, 0),  # divide, truncate, multiply, subtract
        ("remainder", 4, 0),  # divide, floor, multiply, subtract
        ("hypot", 3, 1),  # two squares and their sum, a root
        ("atan2", 0, 1),
        ("igamma", 0, 1),
        ("igammac", 0, 1),
        ("pow", 0, 1),
        ("zeta", 0, 1),
    ],
)
def test_functions_of_two_operands(name, flops, evaluations) -> None:
    estimate = price(f"prims.{name}", t(8), t(8))
    assert estimate.out == (t(8),)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 8, evaluations * 8)


def test_functions_of_integers() -> None:
    for name in ("shift_left", "shift_right_arithmetic", "bitwise_and", "bitwise_or", "bitwise_xor"):
        assert price(f"prims.{name}", INTEGERS, INTEGERS).vector_flops == 8
    assert price("prims.bitwise_not", INTEGERS).vector_flops == 8
    assert price("prims.gcd", INTEGERS, INTEGERS).transcendentals == 8


def test_a_split_into_mantissa_and_exponent() -> None:
    estimate = price("prims.frexp", t(8))
    assert estimate.out == (t(8), t(8, dtype="int32"))
    assert (estimate.vector_flops, estimate.cost.written_bytes) == (8, 2 * 32)


def test_a_conjugate_of_real_numbers_takes_no_arithmetic() -> None:
    assert price("prims.conj_physical", t(8)).vector_flops == 0
    assert price("prims.conj_physical", t(8, dtype="complex64")).vector_flops == 8


@pytest.mark.parametrize(
    ("name", "settings"), [("uniform", {"low": 0.0, "high": 1.0}), ("normal", {"mean": 0.0, "std": 1.0})]
)
def test_random_numbers_are_scaled_and_shifted(name, settings) -> None:
    estimate = price(f"prims.{name}", (2, 4), dtype=t().dtype, **settings)
    assert (shapes(estimate), estimate.vector_flops) == ([(2, 4)], 2 * 8)


def test_one_number_as_a_tensor_is_written() -> None:
    estimate = price("prims.scalar_tensor", 3.0, dtype=t().dtype)
    assert (shapes(estimate), estimate.cost.written_bytes) == ([()], 4)


def test_tokens_that_are_kept_alive_cost_nothing() -> None:
    assert not price("prims._sink_tokens", (t(0),)).cost


@pytest.mark.parametrize(
    ("full_matrices", "results"),
    [(False, [(6, 4), (4,), (4, 4)]), (True, [(6, 6), (4,), (4, 4)])],
)
def test_singular_values(full_matrices, results) -> None:
    assert shapes(price("prims.svd", t(6, 4), full_matrices=full_matrices)) == results
