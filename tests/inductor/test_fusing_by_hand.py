"""Which operators share a kernel, and what is stored: limits and exceptions, one small graph each."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.inductor.fusing import fused, in_steps, oriented, realized
from graphflops.inductor.lowering import JointGraph, Op
from tests.inductor.test_kernels import op


def nodes(*ops: Op, outputs: set[str]) -> list[list[str]]:
    return [[each.node for each in kernel.members] for kernel in fused(ops, outputs)]


def library(count: int, name: str = "e") -> list[Op]:
    return [op("extern", f"{name}{place}", f"{name}y{place}") for place in range(count)]


def test_what_reads_a_sum_that_others_add_to_waits_for_all_of_it() -> None:
    read = op("pointwise", "out", "sum")
    assert nodes(op("pointwise", "sum", "zeros", "x", adds=True), read, outputs={"out"}) == [["sum"], ["out"]]
    assert nodes(op("pointwise", "sum", "zeros", "x"), read, outputs={"out"}) == [["sum", "out"]]


def test_operators_before_and_behind_a_library_stay_apart() -> None:
    """Though both read `t`: joined they would read what a kernel makes that reads them."""
    chain = [op("extern", "e1", "x"), op("pointwise", "p1", "e1", "t"), op("extern", "e2", "p1")]
    chain += [op("pointwise", "p2", "e2", "t"), op("extern", "e3", "p2"), op("pointwise", "p3", "e3", "t")]
    assert nodes(*chain, outputs={"p3"}) == [["e1"], ["p1"], ["e2"], ["p2"], ["e3"], ["p3"]]


@pytest.mark.parametrize(("between", "are_joined"), [(63, True), (64, False)])
@pytest.mark.parametrize("before", [0, 10])
def test_readers_of_one_tensor_join_over_64_operators_at_most(
    between: int, before: int, are_joined: bool
) -> None:
    one, two = op("pointwise", "one", "x"), op("pointwise", "two", "x")
    found = nodes(*library(before, "b"), one, *library(between), two, outputs={"one", "two"})
    assert (["one"] not in found) is are_joined


def test_a_full_kernel_gets_no_more_readers_of_what_it_reads() -> None:
    chain = [op("pointwise", f"t{place}", f"t{place - 1}" if place else "x") for place in range(64)]
    found = fused([*chain, op("pointwise", "other", "x")], {"t63", "other"})
    assert sorted(len(kernel.members) for kernel in found) == [1, 64]
    found = fused([*chain[:63], op("pointwise", "other", "x")], {"t62", "other"})
    assert [len(kernel.members) for kernel in found] == [64]


def test_two_reductions_of_other_rows_stay_apart_though_a_loop_fits_both() -> None:
    one = op("reduction", "one", "x", kept=10)
    two = op("reduction", "two", "t", kept=20)
    loop = op("pointwise", "loop", "one", "t")
    assert nodes(one, two, loop, outputs={"two", "loop"}) == [["one", "loop"], ["two"]]


@pytest.mark.parametrize(("count", "expected"), [(63, [1, 64]), (64, [1, 1, 64])])
def test_a_chain_joins_its_only_reader_up_to_64_operators(count: int, expected: list[int]) -> None:
    """The reader also reads what a library makes, so that it comes behind that."""
    chain = [op("pointwise", f"t{place}", f"t{place - 1}" if place else "x") for place in range(count)]
    reader = op("pointwise", "out", f"t{count - 1}", "e")
    kernels = fused([*chain, op("extern", "e", "y"), reader], {"out"})
    assert sorted(len(kernel.members) for kernel in kernels) == expected


def test_a_chain_with_two_readers_is_a_kernel_of_its_own() -> None:
    first = op("pointwise", "a", "x")
    libraries = op("extern", "e", "y"), op("extern", "f", "b")
    readers = op("pointwise", "b", "a", "e"), op("pointwise", "c", "a", "f")
    one, other = libraries
    found = nodes(first, one, readers[0], other, readers[1], outputs={"c"})
    assert found == [["a"], ["e"], ["b"], ["f"], ["c"]]


def test_what_a_library_makes_is_stored_though_nothing_reads_it() -> None:
    (kernel,) = fused([Op("extern", ("a", "b"), ("x",), 100, 0, "a")], {"a"})
    assert (kernel.outputs, kernel.inside, kernel.reads) == (("a", "b"), (), ("x",))
    (kernel,) = fused([Op("pointwise", ("a", "b"), ("x",), 100, 0, "a")], {"a"})
    assert (kernel.outputs, kernel.inside) == (("a",), ("b",))


def test_what_only_its_own_kernel_reads_stays_inside() -> None:
    (kernel,) = fused([op("pointwise", "a", "x", "y"), op("pointwise", "b", "a", "y")], {"b"})
    assert (kernel.outputs, kernel.inside, kernel.reads) == (("b",), ("a",), ("x", "y"))
    both = fused([op("pointwise", "a", "x"), op("extern", "e", "a"), op("pointwise", "b", "a")], {"b", "e"})
    assert [(kernel.outputs, kernel.inside) for kernel in both] == [(("a", "b"), ()), (("e",), ())]


def stored(*ops: Op, outputs: set[str]) -> list[str]:
    return [each.node for each in realized(ops, outputs)[0]]


@pytest.mark.parametrize(("window", "expected"), [(8, ["c"]), (9, ["b", "c"])])
def test_a_window_of_what_is_computed_inside_is_so_many_loads(window: int, expected: list[str]) -> None:
    chain = op("pointwise", "a", "x"), op("pointwise", "b", "a", window=window), op("pointwise", "c", "b")
    assert stored(*chain, outputs={"c"}) == expected


@pytest.mark.parametrize(("others", "expected"), [(3, ["c"]), (4, ["b", "c"])])
def test_each_part_of_a_tensor_that_is_computed_inside_is_a_load(others: int, expected: list[str]) -> None:
    """Five parts of one tensor and three others are eight loads."""
    parts = {"x": {f"part {place}": 40 for place in range(5)}}
    first = op("pointwise", "a", "x", parts=parts)
    second = op("pointwise", "b", "a", *(f"y{place}" for place in range(others)))
    assert stored(first, second, op("pointwise", "c", "b"), outputs={"c"}) == expected


@pytest.mark.parametrize(
    ("reads", "window", "expected"),
    [(("x", "y"), 2, ["a", "b"]), (("x",), 2, ["b"]), (("x", "y"), 1, ["b"])],
)
def test_what_a_window_reads_is_computed_from_one_tensor_or_stored(
    reads: tuple[str, ...], window: int, expected: list[str]
) -> None:
    ops = op("pointwise", "a", *reads), op("pointwise", "b", "a", window=window)
    assert stored(*ops, outputs={"b"}) == expected


def test_a_part_of_what_is_computed_inside_is_a_part_of_its_sources() -> None:
    ops = op("pointwise", "a", "x", "y"), op("pointwise", "b", "a", "y", parts={"a": {"p": 40}})
    (found,), again = realized(ops, {"b"})
    assert (found.parts, found.reads) == ({"x": {"p": 40}}, ("x", "y"))  # all of `y` is read too
    assert (found.computes, [*again]) == (("a",), ["a"])


def test_ways_in_which_the_sources_are_read() -> None:
    first = op("pointwise", "a", "x", "y", outer=frozenset({"x"}), moved=frozenset({"y"}))
    (found,), _ = realized((first, op("pointwise", "b", "a", "z")), {"b"})
    assert (found.outer, found.moved) == ({"x"}, {"y"})
    (found,), _ = realized((first, op("pointwise", "b", "a", "z", outer=frozenset({"a"}))), {"b"})
    assert (found.outer, found.moved) == ({"x", "y"}, {"y"})
    (found,), _ = realized((first, op("pointwise", "b", "a", "z", moved=frozenset({"z"}))), {"b"})
    assert (found.outer, found.moved) == ({"x"}, {"y", "z"})


def joint(**sizes: int) -> JointGraph:
    return JointGraph({}, HOPPER, sizes=dict(sizes), inputs={})


FULL = {"x": 400, "y": 400, "z": 400, "b": 40}


@pytest.mark.parametrize(
    ("reads", "outer", "is_turned", "is_inner"),
    [
        (("x",), {"x"}, True, False),
        (("x", "y"), {"x"}, False, False),  # half of what it reads is not most of it
        (("x", "y", "z"), {"x", "y"}, True, False),
        (("x", "y", "z"), {"x"}, False, True),
        (("x", "b"), {"x"}, True, False),  # what is smaller does not count
        (("x", "b"), {"b"}, False, True),
        (("x",), set(), False, True),
    ],
)
def test_a_result_lies_as_most_of_what_it_is_computed_from(
    reads: tuple[str, ...], outer: set[str], is_turned: bool, is_inner: bool
) -> None:
    graph = joint(**FULL)
    oriented([op("pointwise", "out", *reads, outer=frozenset(outer))], graph)
    assert graph.turned == ({"out"} if is_turned else set())
    (found,) = oriented([op("reduction", "sum", *reads, kept=10, outer=frozenset(outer))], joint(**FULL))
    assert found.is_inner is is_inner


def test_what_lies_turned_turns_what_reads_it() -> None:
    graph = joint(**FULL, out=400)
    ops = [
        op("pointwise", "out", "x", outer=frozenset({"x"})),
        op("reduction", "sum", "out", kept=10),
        op("reduction", "other", "out", kept=10, outer=frozenset({"out"})),  # read along what is innermost
        op("pointwise", "back", "out", outer=frozenset({"out"})),
    ]
    found = oriented(ops, graph)
    assert [each.is_inner for each in found] == [True, False, True, True]
    assert graph.turned == {"out"}


def test_what_a_library_reads_lies_in_order() -> None:
    graph = joint(**FULL)
    ops = [op("pointwise", "out", "x", outer=frozenset({"x"})), op("extern", "product", "out")]
    oriented(ops, graph)
    assert graph.turned == set()


@pytest.mark.parametrize(("elements", "is_full"), [(400, True), (401, False)])
def test_a_tensor_is_read_in_full_if_it_has_a_byte_for_each_element(elements: int, is_full: bool) -> None:
    graph = joint(**FULL)
    oriented([op("pointwise", "out", "x", elements=elements, outer=frozenset({"x"}))], graph)
    assert graph.turned == ({"out"} if is_full else set())


def test_steps_of_a_long_sum_have_tensors_of_their_own() -> None:
    """Of 2 ** 24 elements to one each of the blocks leaves a sum: in the first step as many as it has parts."""
    graph = joint(x=4 * 2**24, out=4)
    first, last = in_steps(op("reduction", "out", "x", elements=2**24, kept=1), graph)
    parts = first.kept
    assert (first.outputs, first.reads, first.elements, first.in_order) == (
        ("out, step 1",),
        ("x",),
        2**24,
        False,
    )
    assert (last.outputs, last.reads, last.elements, last.kept) == (("out",), ("out, step 1",), parts, 1)
    assert graph.sizes["out, step 1"] == 4 * parts
    assert parts > 1
    short = op("reduction", "out", "x", elements=8192, kept=1)
    assert in_steps(short, graph) == [short]
    loop: Any = op("pointwise", "out", "x", elements=2**24)
    assert in_steps(loop, graph) == [loop]
