"""Which buffers a compiled graph uses again: small graphs whose answers a reader can see."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.memory.compiled import Buffer, _live, _Run, reused


def test_bytes_alive_at_each_position() -> None:
    buffers = [Buffer("a", 10, 0, 1), Buffer("b", 20, 1, 2), Buffer("out", 5, 2, 9)]
    assert _live(buffers, 3) == [10, 30, 25, 5]


def test_a_result_is_written_over_the_operand_that_nothing_else_reads() -> None:
    buffers = [Buffer("a", 10, 0, 1), Buffer("b", 10, 1, 2, over=("a",)), Buffer("c", 10, 2, 3, over=("b",))]
    assert reused(buffers, 3) == {"b": "a", "c": "a"}
    other_size = [Buffer("a", 12, 0, 1), Buffer("b", 10, 1, 2, over=("a",))]
    assert reused(other_size, 3) == {}


def test_only_one_result_is_written_over_an_operand() -> None:
    buffers = [
        Buffer("a", 10, 0, 1),
        Buffer("b", 10, 1, 3, over=("a",)),
        Buffer("c", 10, 1, 3, over=("a",)),
    ]
    assert reused(buffers, 3) == {"b": "a"}


def test_a_result_takes_the_buffer_of_its_size_that_became_free_last() -> None:
    buffers = [
        Buffer("early", 10, 0, 1),
        Buffer("late", 10, 0, 2),
        Buffer("other", 7, 0, 2),
        Buffer("x", 10, 3, 4),
        Buffer("y", 10, 4, 5),
    ]
    assert reused(buffers, 5) == {"x": "late", "y": "early"}


def test_a_buffer_is_free_only_behind_its_last_reader() -> None:
    assert reused([Buffer("a", 10, 0, 2), Buffer("b", 10, 2, 3)], 3) == {}
    assert reused([Buffer("a", 10, 0, 2), Buffer("b", 10, 3, 3)], 3) == {"b": "a"}


@pytest.mark.parametrize(("between", "expected"), [(30, {}), (20, {"b": "a"})])
def test_a_buffer_is_not_kept_where_that_raises_the_peak(between: int, expected: dict[str, str]) -> None:
    """30 bytes are alive at most; to keep the 10 of `a` beside what is between is too much, or just not."""
    buffers = [
        Buffer("most", 30, 0, 0),
        Buffer("a", 10, 1, 1),
        Buffer("between", between, 2, 2),
        Buffer("b", 10, 3, 3),
    ]
    assert reused(buffers, 3) == expected


def test_bytes_inside_of_kernels_raise_the_peak() -> None:
    buffers = [Buffer("a", 10, 0, 0), Buffer("between", 5, 1, 1), Buffer("b", 10, 2, 2)]
    assert reused(buffers, 3) == {}
    assert reused(buffers, 3, {0: 5}) == {"b": "a"}
    assert reused(buffers, 3, {0: 5, 1: 1}) == {}


def test_what_outlives_the_graph_is_taken_off_the_estimate() -> None:
    """At most 15 bytes, 7 without what is returned: the 10 of `a` are not kept beside 5 - 8, which count as none."""
    buffers = [
        Buffer("most", 15, 0, 0),
        Buffer("a", 10, 1, 1),
        Buffer("between", 5, 2, 2),
        Buffer("b", 10, 3, 3),
    ]
    assert reused(buffers, 5) == {"b": "a"}
    assert reused([*buffers, Buffer("returned", 8, 4, 5)], 5) == {}


def test_a_kept_buffer_counts_where_it_was_free() -> None:
    """After `x` has taken `a` its ten bytes are alive in between, so that `y` may not keep `b` there."""
    buffers = [
        Buffer("most", 25, 0, 0),
        Buffer("a", 10, 1, 1),
        Buffer("b", 8, 1, 1),
        Buffer("between", 9, 2, 2),
        Buffer("x", 10, 3, 3),
        Buffer("y", 8, 4, 4),
    ]
    assert reused(buffers, 4) == {"x": "a"}


def test_given_and_fresh_buffers() -> None:
    """Over what is given a result may be written, but nobody takes it later; a library allocates its own."""
    given = Buffer("a", 10, 0, 1, is_given=True)
    assert reused([given, Buffer("b", 10, 1, 2, over=("a",))], 3) == {"b": "a"}
    assert reused([given, Buffer("b", 10, 2, 3)], 3) == {}
    assert reused([Buffer("a", 10, 0, 1), Buffer("b", 10, 2, 3, is_fresh=True)], 3) == {}


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
    plan: Any = Space(joint=Space(bytes=lambda name: 4 if name == "small" else 8), channels_last=False)
    kernel: Any = Space(over=over)
    assert _Run(plan, None, {}).overwritten(kernel, "out") == expected  # type: ignore[arg-type]
