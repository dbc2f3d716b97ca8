"""Numbers as they are printed."""

from __future__ import annotations

import pytest

from graphflops.base.units import exact, interval, measured
from graphflops.budget.baseline import with_headroom
from graphflops.comparison.result import Figure
from graphflops.render.diff.words import before_after


def test_a_number_that_python_refuses_to_print_has_its_power_of_ten() -> None:
    assert exact(1_234_567) == "1,234,567"
    assert exact(10**5000) == "10^5000"


@pytest.mark.parametrize(
    "quantity, count, unit, text",
    [
        ("parameters", 8_674_000_000, "", "8.674 B"),
        ("transcendentals", 8_674_000_000, "", "8.674 G"),
        ("matrix_flops", 8_674_000_000, "FLOP", "8.674 GFLOP"),
        ("parameter_bytes", 8_674, "B", "8,674 B"),
        ("max_seconds", 1_200_000, "ns", "1.20 ms"),
    ],
)
def test_a_quantity_has_one_unit_everywhere(quantity: str, count: int, unit: str, text: str) -> None:
    assert measured(quantity, count, unit) == text


def test_billions_of_parameters_are_b_in_comparisons_and_budgets() -> None:
    assert before_after("parameters", Figure(*[2 * 10**10, 3 * 10**10] * 2)) == ("20.00 B", "30.00 B")
    assert with_headroom("parameters", 2 * 10**10) == "22 B"
    assert with_headroom("matrix_flops", 2 * 10**10) == "22 GFLOP"


def test_a_time_of_which_nothing_is_known_has_no_interval() -> None:
    assert interval(0.00158, 0.0034) == "1.58 to 3.40 ms"
    assert interval(0.0, 0.0034) == "0 to 3.40 ms"
    assert interval(0.0, 0.0) == ""
