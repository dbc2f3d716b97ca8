"""Sequences are aligned as difflib does it, and in bounded time."""

from __future__ import annotations

from graphflops.base.aligned import matching_blocks


def test_equal_runs() -> None:
    assert matching_blocks("abcd", "abxcd") == [(0, 0, 2), (2, 3, 2)]
    assert matching_blocks("axbxc", "aybyc") == [(0, 0, 1), (2, 2, 1), (4, 4, 1)]
    assert matching_blocks("ab", "cd") == []
    assert matching_blocks("aaa", "aa") == [(0, 0, 2)]
    assert matching_blocks([], []) == []


def test_too_many_equal_elements_leave_the_middle_out() -> None:
    old, new = [1] + [2, 3] * 10 + [9], [1] + [3, 2] * 10 + [9]
    assert matching_blocks(old, new) == [(0, 0, 1), (1, 2, 19), (21, 21, 1)]
    assert matching_blocks(old, new, most=2 * (10 * 10) - 1) == [(0, 0, 1), (21, 21, 1)]
