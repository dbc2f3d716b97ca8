"""Which operators share a kernel, and what is stored: limits and exceptions, one small graph each."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.base.record import replace
from graphflops.devices import HOPPER
from graphflops.inductor.fusing import fused, in_steps, split_lengths
from graphflops.inductor.lowering import Extern, JointGraph, Loop, Op, Reduction
from graphflops.inductor.storing import realized
from tests.inductor.one_call import op


def nodes(*ops: Op, outputs: set[str]) -> list[list[str]]:
    return [[each.node for each in kernel.members] for kernel in fused(ops, outputs, lambda _: 1)]


def library(count: int, name: str = "e") -> list[Op]:
    return [op("extern", f"{name}{place}", f"{name}y{place}") for place in range(count)]


def test_what_reads_a_sum_that_others_add_to_waits_for_all_of_it() -> None:
    read = op("pointwise", "out", "sum")
    assert nodes(op("pointwise", "sum", "zeros", "x", role="adding"), read, outputs={"out"}) == [
        ["sum"],
        ["out"],
    ]
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
    found = fused([*chain, op("pointwise", "other", "x")], {"t63", "other"}, lambda _: 1)
    assert sorted(len(kernel.members) for kernel in found) == [1, 64]
    found = fused([*chain[:63], op("pointwise", "other", "x")], {"t62", "other"}, lambda _: 1)
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
    kernels = fused([*chain, op("extern", "e", "y"), reader], {"out"}, lambda _: 1)
    assert sorted(len(kernel.members) for kernel in kernels) == expected


def test_a_chain_with_two_readers_is_a_kernel_of_its_own() -> None:
    first = op("pointwise", "a", "x")
    libraries = op("extern", "e", "y"), op("extern", "f", "b")
    readers = op("pointwise", "b", "a", "e"), op("pointwise", "c", "a", "f")
    one, other = libraries
    found = nodes(first, one, readers[0], other, readers[1], outputs={"c"})
    assert found == [["a"], ["e"], ["b"], ["f"], ["c"]]


def test_what_a_library_makes_is_stored_though_nothing_reads_it() -> None:
    (kernel,) = fused([Extern(("a", "b"), ("x",), 100, 0, "a")], {"a"}, lambda _: 1)
    assert (kernel.outputs, kernel.inside, kernel.reads) == (("a", "b"), (), ("x",))
    (kernel,) = fused([Loop(("a", "b"), ("x",), 100, 0, "a")], {"a"}, lambda _: 1)
    assert (kernel.outputs, kernel.inside) == (("a",), ("b",))


def test_what_only_its_own_kernel_reads_stays_inside() -> None:
    (kernel,) = fused([op("pointwise", "a", "x", "y"), op("pointwise", "b", "a", "y")], {"b"}, lambda _: 1)
    assert (kernel.outputs, kernel.inside, kernel.reads) == (("b",), ("a",), ("x", "y"))
    both = fused(
        [op("pointwise", "a", "x"), op("extern", "e", "a"), op("pointwise", "b", "a")], {"b", "e"}, len
    )
    assert [(kernel.outputs, kernel.inside) for kernel in both] == [(("a", "b"), ()), (("e",), ())]


def stored(*ops: Op, outputs: set[str]) -> list[str]:
    return [each.node for each in realized(ops, outputs, JointGraph({}, HOPPER))]


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
    (found,) = realized(ops, {"b"}, JointGraph({}, HOPPER))
    assert (found.parts, found.reads) == ({"x": {"p": 40}}, ("x", "y"))  # all of `y` is read too
    assert found.computes == ops[:1]


def test_ways_in_which_the_sources_are_read() -> None:
    first = op("pointwise", "a", "x", "y", moved=frozenset({"y"}))
    for own, moved in (((), {"y"}), (("a",), {"x", "y"}), (("z",), {"y", "z"})):
        (found,) = realized(
            (first, op("pointwise", "b", "a", "z", moved=frozenset(own))), {"b"}, JointGraph({}, HOPPER)
        )
        assert found.moved == moved


def joint(**sizes: int) -> JointGraph:
    return JointGraph({}, HOPPER, sizes=dict(sizes), inputs={})


def test_last_steps_of_many_results_have_wide_blocks() -> None:
    """A block has 128 columns if more than 512 results are sums along outer axes."""
    for kept, length, is_inner, role, expected in (
        (640, 1568, False, "", "parts.wide"),  # of 13 parts
        (640, 1568, False, "moments", "parts.moments.wide"),
        (512, 1568, False, "", "parts"),
        (64, 2**20, True, "", "parts"),
    ):
        made = op("reduction", "out", "x", elements=kept * length, kept=kept, is_inner=is_inner)
        *_, last = in_steps(replace(made, role=role), joint(x=4, out=4))
        assert last.role == expected


def test_steps_of_a_long_sum_have_tensors_of_their_own() -> None:
    """Of 2 ** 24 elements to one each of the blocks leaves a sum: in the first step as many as it has parts."""
    graph = joint(x=4 * 2**24, out=4)
    first, last = in_steps(op("reduction", "out", "x", elements=2**24, kept=1), graph)
    assert isinstance(first, Reduction)
    assert isinstance(last, Reduction)
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


@pytest.mark.parametrize(
    ("results", "length", "is_inner", "of_moments", "steps"),
    [
        # 125 elements for each thread of 132 x 2048 with 256 in a block; 128 divide the length: 512 blocks.
        (1, 2**24, True, False, [(512, 2**15), (1, 512)]),
        # 512 elements of a thread at most are 16,384 blocks; of moments two blocks share what these leave.
        (1, 2**31, True, False, [(2**14, 2**17), (1, 2**14)]),
        (1, 2**31, True, True, [(2**14, 2**17), (2, 2**13), (1, 2)]),
        (1, 8192, True, False, [(1, 8192)]),
        (264, 100_000, True, False, [(264, 100_000)]),  # two for each multiprocessor
        (8448, 100_000, False, False, [(8448, 100_000)]),  # 64 for each
        # One fewer: 500 elements for each of four rows of threads, as they divide the length.
        (8447, 100_000, False, False, [(8447 * 50, 2000), (8447, 50)]),
    ],
)
def test_steps_of_reductions(
    results: int, length: int, is_inner: bool, of_moments: bool, steps: list[tuple[int, int]]
) -> None:
    assert split_lengths(results, length, HOPPER, is_inner=is_inner, of_moments=of_moments) == steps


@pytest.mark.parametrize(("size", "count"), [(128, 1), (129, 2)])
def test_losses_stay_apart_where_the_later_takes_the_memory_of_the_earlier(size: int, count: int) -> None:
    """Both read a tensor that nothing else reads; together they save 4 bytes, which are worth 128 bytes of memory."""
    scores = [op("extern", name, "x") for name in ("a", "b")]
    losses = [op("reduction", f"loss of {name}", name, kept=1) for name in ("a", "b")]
    total = op("pointwise", "total", *(each.outputs[0] for each in losses), elements=1)
    kernels = fused([*scores, *losses, total], {"total"}, lambda name: size if name in ("a", "b") else 4)
    assert (
        len(
            [
                kernel
                for kernel in kernels
                if not isinstance(kernel.last, Extern) and "loss" in str(kernel.members)
            ]
        )
        == count
    )
