"""Minimum cuts."""

from __future__ import annotations

from math import inf

from graphflops.inductor.partition import SINK, SOURCE, beyond_cut


def test_of_equal_cuts_it_is_the_one_nearest_to_the_sink() -> None:
    assert beyond_cut([(SOURCE, ("middle", 0), 3), (("middle", 0), SINK, 3)]) == {SINK}


def test_the_cut_is_where_it_is_narrowest() -> None:
    a, b, c = ((name, 0) for name in "abc")
    edges = [(SOURCE, a, inf), (a, b, 7), (a, c, 2), (b, c, 3), (c, SINK, 9), (b, SINK, 1)]
    assert beyond_cut(edges) == {c, SINK}  # 2 + 3 + 1


def test_nothing_is_beyond_an_empty_graph() -> None:
    assert beyond_cut([]) == {SINK}
