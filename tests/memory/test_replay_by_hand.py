"""Timelines run through the allocator: what each moment takes and gives back, and what is reserved then."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.memory.allocator import MIB, Allocator, OutOfMemory, moments, repeat, replay, without_value
from graphflops.report import Held, Timeline


def timeline(*held: tuple[str, int, int, Any], rows: int = 3) -> Timeline:
    """Entries as kind, first and last moment, and MiB."""
    entries = [
        Held(f"{kind} {place}", kind, first, last, size * MIB)  # type: ignore[arg-type]
        for place, (kind, first, last, size) in enumerate(held)
    ]
    return Timeline(tuple(range(rows)), tuple(entries), None)


def sizes(given: Timeline) -> list[int]:
    return [held.bytes for held in given.held]  # type: ignore[misc]


def test_what_each_moment_takes_and_gives_back() -> None:
    """Results come before buffers, what lives for one moment goes first, and what is there before is left out."""
    given = timeline(
        ("weight", 0, 2, 1),
        ("library", 1, 2, 1),
        ("value", 0, 1, 1),
        ("workspace", 0, 0, 1),
        ("value", 0, 0, 1),
        ("nested", 1, 2, 1),
        ("value", 1, 2, 1),
        ("temporary", 2, 2, 1),
        ("optimizer", 0, 2, 1),
        ("value", 1, 1, 0),
        ("input", 0, 1, 1),
        ("buffer", 0, 2, 1),
    )
    found = moments(given, sizes(given))
    assert [moment.kept for moment in found] == [[], [1], [8]]
    assert [moment.taken for moment in found] == [[2, 4, 3], [6, 5], [7]]
    assert [moment.freed for moment in found] == [[3, 4], [2], [7, 5, 6]]


@pytest.mark.parametrize(
    ("held", "reserved", "allocated"),
    [
        # The second value gets a part of what the first one had.
        ([("weight", 0, 2, 20), ("value", 0, 0, 40), ("value", 1, 2, 30)], [60, 60, 60], 60),
        ([("weight", 0, 2, 20), ("value", 0, 0, 30), ("value", 1, 2, 40)], [50, 90, 90], 60),
        # A workspace of a library is there from the first run on.
        ([("weight", 0, 2, 20), ("value", 0, 1, 40), ("library", 1, 2, 30)], [90, 90, 90], 90),
        # It lies where a value was freed in that run, so that this needs memory of its own from then on.
        ([("input", 0, 2, 20), ("value", 0, 0, 60), ("library", 1, 2, 20)], [140, 140, 140], 100),
        ([("buffer", 0, 2, 20), ("value", 0, 1, 60), ("optimizer", 0, 2, 20)], [140, 140, 140], 100),
        # What is still alive then is freed before the next run.
        ([("library", 0, 2, 20), ("value", 0, 2, 60)], [80, 80, 80], 80),
        ([("value", 1, 1, 60), ("library", 0, 2, 20)], [20, 80, 80], 80),
    ],
)
def test_what_is_reserved_up_to_each_moment(held: Any, reserved: list[int], allocated: int) -> None:
    given, allocator = timeline(*held), Allocator()
    assert [size // MIB for size in replay(given, sizes(given), allocator)] == reserved
    assert (allocator.peak_reserved // MIB, allocator.peak_allocated // MIB) == (reserved[-1], allocated)


def test_peaks_are_those_of_the_last_run() -> None:
    """A buffer of the first run, whose segment the cache returns before the second."""
    given = timeline(("value", 0, 0, 40), ("value", 1, 1, 60), ("optimizer", 0, 2, 2))
    allocator = Allocator()
    # Of 40 and 60, which are free, the state takes 2 from the smaller one: then 38 do not hold 40.
    assert [size // MIB for size in replay(given, sizes(given), allocator)] == [80, 140, 140]
    assert allocator.peak_reserved == 140 * MIB


def test_a_kernel_that_can_do_without_memory_runs_without_it() -> None:
    given = timeline(("weight", 0, 2, 20), ("value", 0, 2, 40), ("workspace", 1, 1, 60))
    assert repeat(given, sizes(given), Allocator(120 * MIB)) == set()
    assert repeat(given, sizes(given), Allocator(119 * MIB), spared={2}) == {2}
    for spared in ({1}, ()):
        with pytest.raises(OutOfMemory):
            repeat(given, sizes(given), Allocator(119 * MIB), spared=spared)


def test_runs_are_repeated_until_they_are_alike() -> None:
    """A library's workspace lies in what a value had in the first run: the second run needs 60 more."""
    given = timeline(("value", 0, 0, 60), ("library", 1, 2, 20))
    allocator = Allocator()
    repeat(given, sizes(given), allocator)
    assert allocator.peak_reserved == (60 + 60) * MIB
    assert allocator.allocated == 20 * MIB
    repeat(given, sizes(given), allocator := Allocator(60 * MIB), spared={0})
    assert allocator.reserved == 60 * MIB


def test_names_of_sizes_without_a_value() -> None:
    n, m = symbol("n"), symbol("m")
    held = (
        Held("a", "value", 0, 0, n * 4),
        Held("b", "value", 0, 0, m * n),
        Held("c", "value", 0, 0, 4),
    )
    given = Timeline((0,), held, None)
    assert without_value(given, {}) == "the size m"
    assert without_value(given, {"m": 2}) == "the size n"
    assert without_value(given, {"m": 2, "n": 3}) == "a size"
