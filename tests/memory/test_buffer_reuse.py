"""Which buffers a compiled graph uses again: small graphs whose answers a reader can see."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.memory.compiled import Buffer, _Run, reused


def taken(*buffers: Buffer, off: int = 0) -> dict[str, str]:
    """What takes whose place. off: bytes that the estimate leaves out."""
    live = [sum(each.size for each in buffers if each.first <= place <= each.last) for place in range(1, 8)]
    return reused(buffers, [amount - off for amount in live])


def test_a_result_is_written_over_the_operand_that_nothing_else_reads() -> None:
    buffers = [Buffer("a", 10, 1, 2), Buffer("b", 10, 2, 3, over=("a",)), Buffer("c", 10, 3, 4, over=("b",))]
    assert taken(*buffers) == {"b": "a", "c": "a"}
    other_size = [Buffer("a", 12, 1, 2), Buffer("b", 10, 2, 3, over=("a",))]
    assert taken(*other_size) == {}


def test_only_one_result_is_written_over_an_operand() -> None:
    buffers = [
        Buffer("a", 10, 1, 2),
        Buffer("b", 10, 2, 4, over=("a",)),
        Buffer("c", 10, 2, 4, over=("a",)),
    ]
    assert taken(*buffers) == {"b": "a"}


def test_a_result_takes_the_buffer_of_its_size_that_became_free_last() -> None:
    buffers = [
        Buffer("early", 10, 1, 2),
        Buffer("late", 10, 1, 3),
        Buffer("other", 7, 1, 3),
        Buffer("x", 10, 4, 5),
        Buffer("y", 10, 5, 6),
    ]
    assert taken(*buffers) == {"x": "late", "y": "early"}


def test_a_buffer_is_free_only_behind_its_last_reader() -> None:
    assert taken(Buffer("a", 10, 1, 3), Buffer("b", 10, 3, 4)) == {}
    assert taken(Buffer("a", 10, 1, 3), Buffer("b", 10, 4, 4)) == {"b": "a"}


@pytest.mark.parametrize(("between", "expected"), [(30, {}), (20, {"b": "a"})])
def test_a_buffer_is_not_kept_where_that_raises_the_peak(between: int, expected: dict[str, str]) -> None:
    """30 bytes are alive at most; to keep the 10 of `a` beside what is between is too much, or just not."""
    buffers = [
        Buffer("most", 30, 1, 1),
        Buffer("a", 10, 2, 2),
        Buffer("between", between, 3, 3),
        Buffer("b", 10, 4, 4),
    ]
    assert taken(*buffers) == expected


def test_the_estimate_may_hold_more_than_buffers() -> None:
    """As bytes that stay inside of kernels."""
    buffers = [Buffer("a", 10, 1, 1), Buffer("between", 5, 2, 2), Buffer("b", 10, 3, 3)]
    assert reused(buffers, [10, 5, 10]) == {}
    assert reused(buffers, [15, 5, 10]) == {"b": "a"}
    assert reused(buffers, [15, 6, 10]) == {}


def test_what_outlives_the_graph_is_taken_off_the_estimate() -> None:
    """At most 15 bytes, 7 without what is returned: the 10 of `a` are not kept beside 5 - 8, which count as none."""
    buffers = [
        Buffer("most", 15, 1, 1),
        Buffer("a", 10, 2, 2),
        Buffer("between", 5, 3, 3),
        Buffer("b", 10, 4, 4),
    ]
    assert taken(*buffers) == {"b": "a"}
    assert taken(*buffers, off=8) == {}


def test_a_kept_buffer_counts_where_it_was_free() -> None:
    """After `x` has taken `a` its ten bytes are alive in between, so that `y` may not keep `b` there."""
    buffers = [
        Buffer("most", 25, 1, 1),
        Buffer("a", 10, 2, 2),
        Buffer("b", 8, 2, 2),
        Buffer("between", 9, 3, 3),
        Buffer("x", 10, 4, 4),
        Buffer("y", 8, 5, 5),
    ]
    assert taken(*buffers) == {"x": "a"}


def test_given_and_fresh_buffers() -> None:
    """Over what is given a result may be written, but nobody takes it later; a library allocates its own."""
    given = Buffer("a", 10, 1, 2, is_given=True)
    assert taken(given, Buffer("b", 10, 2, 3, over=("a",))) == {"b": "a"}
    assert taken(given, Buffer("b", 10, 3, 4)) == {}
    assert taken(Buffer("a", 10, 1, 2), Buffer("b", 10, 3, 4, is_fresh=True)) == {}


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"out": ("x",)}, ["x"]),
        ({"out": ("x", "small")}, ["x", "small"]),  # sizes of what comes from outside are compared later
        ({"out": ("mid",), "mid": ("x", "y")}, ["x", "y"]),  # `mid` is never stored
        ({"out": ("small",), "small": ("x",)}, []),  # by way of another size
        ({"out": ("mid", "x"), "mid": ("x", "y")}, ["x", "y"]),
        ({"out": ("a", "b"), "a": ("mid",), "b": ("mid",), "mid": ("y",)}, ["y"]),
        ({"mid": ("x",)}, []),  # nothing that it reads lies as it does
    ],
)
def test_what_a_result_may_be_written_over_within_a_kernel(
    over: dict[str, tuple[str, ...]], expected: list[str]
) -> None:
    plan: Any = Space(joint=Space(bytes=lambda name: 4 if name == "small" else 8, channels_last=False))
    kernel: Any = Space(over=over)
    assert _Run(plan, None, {}).overwritten(kernel, "out") == expected  # type: ignore[arg-type]
