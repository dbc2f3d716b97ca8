"""What is computed once for all calls of one form, and what strides are after axes change places or are repeated."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.execution.strides import (
    Forms,
    Laid,
    by_form,
    has_channels_last,
    is_contiguous,
    order_of,
    regrouped,
    repeated,
    row_major,
    size_hint,
)
from graphflops.ops import operator
from tests.support import t


def call(name: str, uses: str, outputs: str, form: int | None = 0, gradient: Any = None) -> Any:
    node = Space(name=name, outputs=tuple(outputs.split()))
    return Space(node=node, uses=tuple(uses.split()), form=form, gradient=gradient)


class Computed:
    """Something computed of calls, with how often."""

    def __init__(self, forms: dict[str, int | None]) -> None:
        self.forms: Any = Space(of=lambda call: forms[call.node.name])
        self.found: dict[Any, Any] = {}
        self.times = 0

    @by_form
    def doubled(self, call: Any, number: int = 1) -> tuple[str, int]:
        self.times += 1
        return call.node.name, 2 * number


def test_calls_of_one_form_are_computed_once() -> None:
    one = Computed({"a": 7, "b": 7, "c": 8, "d": None})
    a, b, c, d = (call(name, "x", "y") for name in "abcd")
    assert one.doubled(a, 3) == ("a", 6)
    assert one.doubled(b, 3) == ("a", 6)  # what the first of the form gave
    assert one.times == 1
    assert one.doubled(b, 4) == ("b", 8)  # with another argument
    assert one.doubled(c, 3) == ("c", 6)
    assert one.times == 3
    for times in (4, 5):  # a call without a form, each time
        assert one.doubled(d, 3) == ("d", 6)
        assert one.times == times


X, Y = t(2, 3), t(4, 5)


def test_forms_of_calls_are_their_operator_and_how_operands_lie() -> None:
    """Numbers of types: equal ones share one; calls of the same form whose operands lie otherwise have another number."""
    forms = Forms({"a": X, "b": t(2, 3), "c": Y, "n": 3, "y": X, "z": X, "w": Y})  # type: ignore[dict-item]
    assert forms.types["a"] == forms.types["b"] != forms.types["c"]
    assert "n" not in forms.types
    seen: list[str] = []

    def results(one: Any) -> list[Laid | None]:
        seen.append(one.node.name)
        return [Laid((3, 1), 0, None)]

    first, same = call("f", "a", "y"), call("g", "b", "z")
    assert forms.results(first, results) == [Laid((3, 1), 0, None)]
    forms.results(same, results)
    assert seen == ["f"]
    assert forms.of(first) == forms.of(same) == 0
    forms.results(call("h", "c", "y"), results)  # an operand of another type
    forms.results(call("i", "a", "w"), results)  # a result of another type
    forms.results(call("j", "a", "y", form=5), results)  # another operator
    forms.results(call("k", "a", "y", gradient=object()), results)
    forms.kinds["b"] = forms.kind("b", (1, 2))
    forms.results(call("l", "b", "y"), results)  # an operand that lies otherwise
    assert seen == ["f", "h", "i", "j", "k", "l"]
    numbers = {forms.of(call(name, "", "", form=0)) for name in "fhijkl"}
    assert len(numbers) == 6
    for _ in range(2):
        bare = call("m", "a", "y", form=None)
        forms.results(bare, results)
        assert forms.of(bare) is None
    assert seen[-2:] == ["m", "m"]


def test_kinds_of_tensors_that_do_not_lie_in_order() -> None:
    forms = Forms({"a": X, "b": t(2, 3), "c": Y})
    one, same, other, wide = (
        forms.kind("a", (1, 2)),
        forms.kind("b", (1, 2)),
        forms.kind("a", (1, 3)),
        forms.kind("c", (1, 2)),
    )
    assert one == same
    assert len({one, other, wide}) == 3
    assert all(number < 0 for number in (one, other, wide))


@pytest.mark.parametrize(
    ("shape", "strides", "wide", "expected"),
    [
        ((3, 1), (1, 1), (2, 3, 4), (0, 1, 0)),
        ((3, 4), (4, 1), (2, 3, 4), (0, 4, 1)),
        ((1, 4), (4, 1), (1, 4), (4, 1)),  # one element stays one
        ((1, 4), (4, 1), (2, 4), (0, 1)),
        ((), (), (2, 3), (0, 0)),
    ],
)
def test_strides_of_what_is_repeated(shape: Any, strides: Any, wide: Any, expected: tuple[int, ...]) -> None:
    assert repeated(shape, strides, wide) == expected


@pytest.mark.parametrize(
    ("shape", "strides", "last"),
    [
        ((2, 3, 4, 5), (60, 1, 15, 3), True),
        ((2, 3, 4, 5), (60, 20, 5, 1), False),
        ((2, 1, 4, 5), (20, 1, 5, 1), False),
        ((2, 3, 4, 5), (120, 2, 30, 6), False),  # of every second element
        ((2, 3, 4), (12, 1, 3), True),
        ((3, 4), (1, 1), False),
        ((2, 3, 4, 1), (12, 1, 3, 1), False),  # the last axis could be innermost as well
    ],
)
def test_channels_that_are_innermost(shape: Any, strides: Any, last: bool) -> None:
    assert has_channels_last(shape, strides) is last


@pytest.mark.parametrize(
    ("op", "arguments", "rank", "axes"),
    [
        ("permute", {"order": (2, 0, -2)}, 3, [2, 0, 1]),
        ("permute", {}, 3, [2, 1, 0]),
        ("t", {}, 2, [1, 0]),
        ("t", {}, 1, [0]),
        ("transpose", {"axis0": 0, "axis1": 2}, 3, [2, 1, 0]),
        ("transpose", {"axis0": -1, "axis1": -3}, 3, [2, 1, 0]),
        ("movedim", {"source": -1, "destination": 0}, 3, [2, 0, 1]),
        ("movedim", {"source": (0, 1), "destination": (-1, 0)}, 4, [1, 2, 3, 0]),
        ("flatten", {}, 3, None),
    ],
)
def test_axes_that_change_places(op: str, arguments: Any, rank: int, axes: list[int] | None) -> None:
    found = operator(f"aten.{op}.{'int' if op == 'transpose' else 'default'}")
    assert found.turned(arguments, rank) == axes


@pytest.mark.parametrize(
    ("old", "strides", "new", "expected"),
    [
        ((2, 3, 4), (12, 4, 1), (6, 4), (4, 1)),
        ((2, 3, 4), (12, 1, 3), (6, 4), None),
        ((2, 3, 4), (12, 1, 3), (2, 3, 4), (12, 1, 3)),
        ((2, 3, 4), (12, 1, 3), (2, 12), None),
        ((2, 3, 4), (24, 8, 2), (2, 12), (24, 2)),
        ((2, 12), (24, 2), (2, 3, 4), (24, 8, 2)),
        ((2, 1, 4), (8, 5, 2), (2, 4), (8, 2)),
        ((2, 4), (8, 2), (2, 1, 4, 1), (8, 8, 2, 1)),
        ((6,), (3,), (2, 3), (9, 3)),
        ((4, 6), (12, 2), (3, 8), (16, 2)),
        ((4, 6), (13, 2), (3, 8), None),
        ((1, 1), (5, 7), (1,), (1,)),
        ((0, 3), (7, 2), (3, 0), (0, 1)),
    ],
)
def test_strides_after_axes_are_merged_and_split(old: Any, strides: Any, new: Any, expected: Any) -> None:
    found = regrouped(old, strides, new)
    wide = [axis for axis, size in enumerate(new) if size != 1]
    assert (found is None) is (expected is None)
    if found is not None:
        assert [found[axis] for axis in wide] == [expected[axis] for axis in wide]


def test_numbers_for_open_sizes() -> None:
    n = symbol("n")
    assert (size_hint(n), size_hint(n, 5), size_hint(3), size_hint(n - 97)) == (97, 5, 3, 97)
    assert order_of((n, 1, 200)) == [2, 0, 1]
    assert row_major((2, n, 3)) == (3 * n, 3, 1)
    assert not is_contiguous((2, 3), (3, 1, 1))
