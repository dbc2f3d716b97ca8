"""Numbers as they are printed."""

from __future__ import annotations

from graphflops.units import exact


def test_a_number_that_python_refuses_to_print_has_its_power_of_ten() -> None:
    assert exact(1_234_567) == "1,234,567"
    assert exact(10**5000) == "10^5000"
