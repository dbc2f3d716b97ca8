"""Gradients of elementwise functions, by the formula of each derivative: g is the gradient of the result y of x."""

from __future__ import annotations

import pytest

from graphflops.rules.registry import ForwardCall, find_backward
from tests.support import price, t


@pytest.mark.parametrize(
    ("name", "flops", "evaluations", "read"),
    [
        ("neg", 1, 0, "g"),  # -g
        ("deg2rad", 1, 0, "g"),  # g * c
        ("rad2deg", 1, 0, "g"),  # g * c
        ("exp2", 2, 0, "g y"),  # g * y * c
        ("expm1", 2, 0, "g y"),  # g * (y + 1)
        ("log2", 2, 0, "g x"),  # g / (x * c)
        ("log10", 2, 0, "g x"),  # g / (x * c)
        ("tan", 3, 0, "g y"),  # g * (1 + y * y)
        ("asin", 3, 1, "g x"),  # g / sqrt(1 - x * x)
        ("acos", 4, 1, "g x"),  # -g / sqrt(1 - x * x)
        ("asinh", 3, 1, "g x"),  # g / sqrt(x * x + 1)
        ("acosh", 3, 1, "g x"),  # g / sqrt(x * x - 1)
        ("atan", 3, 0, "g x"),  # g / (1 + x * x)
        ("atanh", 3, 0, "g x"),  # g / (1 - x * x)
        ("sinh", 1, 1, "g x"),  # g * cosh(x)
        ("cosh", 1, 1, "g x"),  # g * sinh(x)
        ("erfc", 4, 1, "g x"),  # g * c * exp(-(x * x))
        ("erfinv", 3, 1, "g y"),  # g * c * exp(y * y)
        ("special_erfcx", 4, 0, "g x y"),  # g * (c * x * y - d)
        ("special_ndtr", 4, 1, "g x"),  # g * c * exp(x * x * d)
        ("special_ndtri", 4, 1, "g y"),  # g * c * exp(y * y * d)
        ("special_entr", 3, 1, "g x"),  # g * (-log(x) - 1)
        ("digamma", 1, 1, "g x"),  # g * trigamma(x)
        ("special_i0", 1, 1, "g x"),  # g * i1(x)
        ("special_i0e", 3, 1, "g x y"),  # g * (i1e(x) - sign(x) * y)
        ("special_i1", 3, 1, "g x y"),  # g * (i0(x) - y / x)
        ("elu", 3, 1, "g x"),  # x > 0 ? g : g * c * exp(x)
        ("hardshrink", 2, 0, "g x"),  # -c <= x <= c ? 0 : g
        ("softshrink", 2, 0, "g x"),  # -c <= x <= c ? 0 : g
    ],
)
def test_derivatives(name: str, flops: int, evaluations: int, read: str) -> None:
    x = t(8)
    rule = find_backward(f"aten.{name}")
    assert rule is not None
    estimate = rule(ForwardCall(price(f"aten.{name}", x), {"a": x}, frozenset("a")))
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 8, evaluations * 8)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (32 * len(read.split()), 32)
    assert estimate.out == (x,)


@pytest.mark.parametrize("name", ["ceil", "floor", "round", "trunc", "sign", "sgn"])
def test_steps_have_a_gradient_of_zeros(name: str) -> None:
    x = t(8)
    rule = find_backward(f"aten.{name}")
    assert rule is not None
    estimate = rule(ForwardCall(price(f"aten.{name}", x), {"a": x}, frozenset("a")))
    assert (estimate.vector_flops, estimate.cost.read_bytes, estimate.cost.written_bytes) == (0, 0, 32)


@pytest.mark.parametrize("name", ["minimum", "maximum", "fmin", "fmax"])
def test_the_gradient_of_a_choice_is_chosen_again_for_each_operand(name: str) -> None:
    arguments = {"a": t(8), "b": t(8)}
    rule = find_backward(f"aten.{name}")
    assert rule is not None
    estimate = rule(ForwardCall(price(f"aten.{name}", **arguments), arguments, frozenset("ab")))
    assert (estimate.vector_flops, estimate.cost.read_bytes) == (2 * 8, 3 * 32)
