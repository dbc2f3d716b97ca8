"""Functions evaluated per element."""

from __future__ import annotations

import pytest

from graphflops.rules.registry import ForwardCall, find_backward
from tests.support import price, t


@pytest.mark.parametrize(
    ("op", "flops", "evaluations"),
    [
        ("aten.exp.default", 0, 1),
        ("aten.rsqrt.default", 0, 1),
        ("aten.sigmoid.default", 0, 1),
        ("aten.tanh.default", 0, 1),
        ("aten.sinc.default", 2, 1),
        ("aten.logit.default", 2, 1),
        ("aten.special_entr.default", 2, 1),
        ("aten.special_log_ndtr.default", 2, 2),
        ("aten.special_bessel_j0.default", 0, 1),
        ("aten.lgamma.default", 0, 1),
        ("aten.special_expit.default", 0, 1),
    ],
)
def test_functions(op, flops, evaluations) -> None:
    for operand, result in ((t(8, dtype="int64"), t(8)), (t(8, dtype="float16"), t(8, dtype="float16"))):
        estimate = price(op, operand)
        assert estimate.out == (result,)
        assert (estimate.vector_flops, estimate.transcendentals) == (flops * 8, evaluations * 8)


@pytest.mark.parametrize(
    ("op", "operands", "flops", "evaluations"),
    [
        ("aten.xlogy.Tensor", (t(4, 1), t(8)), 32, 32),
        ("aten.xlogy.Scalar_Self", (2, t(4, 8)), 32, 32),
        ("aten.special_zeta.other_scalar", (t(4, 8), 2.0), 0, 32),
        ("aten.special_chebyshev_polynomial_t.n_scalar", (t(4, 8), 5), 0, 32),
        ("aten.logaddexp.default", (t(4, 8), t(4, 8)), 5 * 32, 2 * 32),
        ("aten.polygamma.default", (2, t(4, 8)), 0, 32),
        ("aten.mvlgamma.default", (t(4, 8), 3), 6 * 32, 3 * 32),
    ],
)
def test_functions_of_more_operands(op, operands, flops, evaluations) -> None:
    estimate = price(op, *operands)
    assert estimate.out == (t(4, 8),)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)


@pytest.mark.parametrize(
    ("op", "flops", "evaluations"),
    [
        ("aten.exp.default", 1, 0),  # grad * y
        ("aten.log.default", 1, 0),  # grad / x
        ("aten.sqrt.default", 2, 0),  # grad / (2 * y)
        ("aten.rsqrt.default", 4, 0),  # -0.5 * grad * y * y * y
        ("aten.tanh.default", 3, 0),  # grad * (1 - y * y)
        ("aten.sigmoid.default", 3, 0),  # grad * y * (1 - y)
        ("aten.sin.default", 1, 1),  # grad * cos(x)
        ("aten.cos.default", 2, 1),  # -grad * sin(x)
        ("aten.erf.default", 4, 1),  # grad * c * exp(-x * x)
    ],
)
def test_gradients(op, flops, evaluations) -> None:
    x = t(8)
    rule = find_backward(op)
    assert rule is not None
    estimate = rule(ForwardCall(price(op, x), {"a": x}, frozenset("a")))
    assert estimate.out == (x,)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 8, evaluations * 8)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (2 * 32, 32)


def test_complex_functions_count_both_parts() -> None:
    estimate = price("aten.exp.default", t(8, dtype="complex64"))
    assert estimate.out == (t(8, dtype="complex64"),)
    assert estimate.transcendentals == 2 * 8
