"""Which sizes of two programs count as the same one, and what both are compared at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops.comparison.compare import compared
from graphflops.comparison.result import Comparison
from graphflops.cost import Cost
from graphflops.dims import symbol
from graphflops.render.diff.texts import notes
from graphflops.render.diff.words import headlines
from graphflops.report import Named, Report, Row, SymbolInfo, Totals
from graphflops.tensor import FLOAT32, TensorType
from tests.render.reports import made

WIDE = 10


def product(
    name: str | int, value: int | None = 4, *, given: str = "hint", axis: str = "x[0]", power: int = 1
) -> Report:
    """A report of one product of (size x 10) and (10 x 10), done `size` times over for `power` 2."""
    size = symbol(name) if isinstance(name, str) else name
    bound = value if given == "user" and value is not None else size
    cost = Cost(2 * bound**power * WIDE * WIDE, read_bytes=4 * bound, written_bytes=4 * bound)
    symbols = {}
    if isinstance(name, str):
        symbols[name] = SymbolInfo(value, None if value is None else given, 1, 64, (axis,) if axis else ())  # type: ignore[arg-type]
    x = Named(axis.partition("[")[0] or "x", TensorType((bound, WIDE), FLOAT32))
    row = Row("mm", "aten.mm.default", "fc", "Linear", "m.py:1", "counted", cost=cost, inputs=(x,))
    return made([row], symbols=symbols, inputs=(x,) if axis else (), totals=Totals(cost))


def flops(comparison: Comparison) -> tuple[int | None, int | None, str]:
    figure = comparison.totals["forward"]["matrix_flops"]
    return figure.before_value, figure.after_value, str(figure.formula)


def test_one_axis_is_one_size_whatever_its_names() -> None:
    comparison = compared(product("s27"), product("s77"))
    assert comparison.same
    assert [(size.name, size.before, size.after, size.value) for size in comparison.sizes] == [
        ("x[0]", "s27", "s77", 4)
    ]


def test_a_name_of_the_users_own_is_kept() -> None:
    comparison = compared(product("s27"), product("tokens", None))
    assert [size.name for size in comparison.sizes] == ["tokens"]
    assert flops(comparison) == (800, 800, "0")  # 2 * 4 * 10 * 10


def test_one_name_at_two_axes_is_two_sizes() -> None:
    old, new = product("s0", axis="x[0]"), product("s0", axis="x[0]")
    other = SymbolInfo(7, "hint", 1, 64, ("x[0]",))
    shifted = replace(new, symbols={"s1": other, "s0": replace(other, value=5, where=("y[0]",))})
    x = Named("x", TensorType((symbol("s1"), WIDE), FLOAT32))
    y = Named("y", TensorType((symbol("s0"),), FLOAT32))
    comparison = compared(
        replace(old, inputs=(x._replace(type=TensorType((symbol("s0"), WIDE), FLOAT32)),)),
        replace(shifted, inputs=(x, y)),
    )
    assert {(size.name, size.before, size.after) for size in comparison.sizes} == {
        ("x[0]", "s0", "s1"),
        ("y[0]", None, "s0"),
    }


def test_sizes_that_only_data_tell_are_joined_by_name() -> None:
    comparison = compared(product("nonzero_0", None, axis=""), product("nonzero_0", None, axis="", power=2))
    assert flops(comparison) == (None, None, "-200*nonzero_0 + 200*nonzero_0**2")
    assert "FLOPs: linear in nonzero_0 before, quadratic in nonzero_0 now" in headlines(comparison)[1]


def test_growth_is_said_though_the_numbers_are_equal() -> None:
    comparison = compared(product("s27", 1), product("s77", 1, power=2))
    assert flops(comparison) == (200, 200, "-200*Symbol('x[0]') + 200*Symbol('x[0]')**2")
    assert not comparison.same
    assert headlines(comparison)[0].endswith("FLOPs 200 at these sizes, by another formula")
    assert headlines(comparison)[1] == "FLOPs: linear in x[0] before, quadratic in x[0] now (fc)"


def test_examples_that_differ_are_said_and_the_old_one_counts() -> None:
    comparison = compared(product("s27", 4), product("s27", 8))
    assert flops(comparison) == (800, 800, "0")
    assert [remark.name for remark in comparison.remarks] == ["examples-differ"]
    assert "x[0] was exported at 4 and is at 8 in the new: both are compared at 4" in headlines(comparison)[1]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (product("s27", 4), product(8, axis="x[0]"), (1600, 1600, "0")),  # what is fixed counts
        (product(8, axis="x[0]"), product("s27", 4), (1600, 1600, "0")),
        (product("s27", 8, given="user"), product("s27", 4), (1600, 1600, "0")),  # and what is given
        (product("s27", 4), product("s77", 8, given="user"), (1600, 1600, "0")),
        (product("s27", None), product("s27", 6), (1200, 1200, "0")),  # one example does for both
        (
            product("s27", None),
            product("s27", None, power=2),
            (None, None, "-200*Symbol('x[0]') + 200*Symbol('x[0]')**2"),
        ),
    ],
)
def test_compared_at(old: Report, new: Report, expected: tuple[int | None, int | None, str]) -> None:
    assert flops(compared(old, new)) == expected


@pytest.mark.parametrize(
    "old, new",
    [
        (product("s27", 4, given="user"), product("s27", 8, given="user")),
        (product("s27", 4, given="user"), product(8, axis="x[0]")),
    ],
)
def test_sizes_that_cannot_be_made_equal_are_said(old: Report, new: Report) -> None:
    comparison = compared(old, new)
    assert flops(comparison) == (800, 1600, "800")
    assert [remark.name for remark in comparison.remarks] == ["sizes-differ"]
    assert "x[0] is 4 in the old and 8 in the new: give both one size" in "\n".join(headlines(comparison))


def test_fixed_sizes_that_differ_are_another_input() -> None:
    comparison = compared(product(4, axis="x[0]"), product(8, axis="x[0]"))
    assert [(entry.name, entry.before, entry.after) for entry in comparison.inputs] == [
        ("x", "float32[4, 10]", "float32[8, 10]")
    ]
    assert "input x float32[4, 10] → float32[8, 10]" in headlines(comparison)[1]


def test_the_sizes_compared_at_are_named() -> None:
    assert "compared at x[0] = 4" in notes(compared(product("s27"), product("s27", power=2)))
    assert "without one value for both: x[0]" in notes(compared(product("s27", None), product("s77", None)))


@pytest.mark.parametrize(
    "old, new, expected",
    [
        # 200 n + 20000 before, 200 n**2 now: 200 (n**2 - n - 100) is negative up to n = 10, 10 * 11 = 110 is past 100
        ((200, 20_000, 0), (0, 0, 200), (11, True)),
        ((0, 0, 200), (200, 20_000, 0), (11, False)),
        ((200, 0, 0), (0, 0, 200), None),  # nowhere less
        ((0, 0, 1), (0, 20_000, 0), None),  # only past the 64 that both were exported for
    ],
)
def test_where_less_becomes_more(
    old: tuple[int, int, int], new: tuple[int, int, int], expected: tuple[int, bool] | None
) -> None:
    size = symbol("s27")

    def sized(linear: int, constant: int, square: int) -> Report:
        base = product("s27")
        cost = Cost(linear * size + constant + square * size * size)
        return replace(made([base.rows[0]._replace(cost=cost)]), symbols=base.symbols, inputs=base.inputs)

    comparison = compared(sized(*old), sized(*new))
    found = [(entry.at, entry.more) for entry in comparison.crossings if entry.quantity == "matrix_flops"]
    assert found == ([] if expected is None else [expected])
    if expected == (11, True):
        assert "FLOPs: less than before below x[0] = 11, more from there on" in notes(comparison)


def test_an_example_counts_before_an_assumption() -> None:
    comparison = compared(product("batch", 1, given="assumption"), product("s77", 5))
    (size,) = comparison.sizes
    assert (size.value, size.assumed) == (5, False)
    assert flops(comparison) == (1000, 1000, "0")  # 2 * 5 * 10 * 10


def test_what_is_assumed_of_both_is_said() -> None:
    comparison = compared(product("batch", 1, given="assumption"), product("s77", 1, given="assumption"))
    assert "compared at batch = 1 (assumed)" in notes(comparison)
    assert flops(comparison) == (200, 200, "0")  # 2 * 1 * 10 * 10


def test_a_number_that_one_program_fixes_counts_before_an_assumption() -> None:
    comparison = compared(product(4), product("batch", 1, given="assumption"))
    (size,) = comparison.sizes
    assert (size.value, size.assumed) == (4, False)
    assert flops(comparison) == (800, 800, "0")  # 2 * 4 * 10 * 10
