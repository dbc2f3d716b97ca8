"""Orders of kernels, what is stored and what is joined: small graphs whose answers a reader can see."""

from __future__ import annotations

import random
from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.inductor.fusing import Kernel, fused, run_together
from graphflops.inductor.lowering import JointGraph, Op
from graphflops.inductor.plan import _Order, lowest_peak
from graphflops.inductor.storing import realized
from tests.inductor.one_call import op


def kernel(out: str, *reads: str, inside: tuple[str, ...] = ()) -> Kernel:
    return Kernel((op("pointwise", out, *reads),), (out,), inside, reads)


def at_random(choose: random.Random) -> tuple[list[Kernel], dict[str, int]]:
    """Kernels that each read up to three tensors made before them, or given."""
    names = ["given 0", "given 1"]
    kernels = []
    for place in range(choose.randrange(2, 9)):
        reads = tuple(choose.sample(names, min(len(names), choose.randrange(1, 4))))
        kernels.append(kernel(f"t{place}", *reads))
        names.append(f"t{place}")
    return kernels, {name: choose.randrange(1, 100) for name in names}


def simulated(kernels: list[Kernel], sizes: dict[str, int], outputs: set[str]) -> int:
    """The peak step by step: a tensor dies after the last kernel that reads it, and what is returned never counts."""
    lasting = sum(sizes[name] for name in outputs)
    live = {name for kernel in kernels for name in kernel.reads if name.startswith("given")}
    most = 0
    for place, each in enumerate(kernels):
        live.update(each.outputs)
        most = max(most, sum(sizes[name] for name in live) - lasting)
        later = {name for other in kernels[place + 1 :] for name in other.reads}
        live = {name for name in live if name in later or name in outputs}
    return most


@pytest.mark.parametrize("seed", range(4))
def test_peaks_and_orders_of_random_graphs(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(60):
        kernels, sizes = at_random(choose)
        outputs = {each.outputs[0] for each in kernels if choose.random() < 0.3} | {kernels[-1].outputs[0]}
        plan = _Order(kernels, sizes.__getitem__, {"given 0", "given 1"}, outputs)
        count = len(kernels)
        orders = [plan.as_written(), plan.least_memory(), plan.smallest_first()]
        assert orders[0] == list(range(count))
        for order in orders:
            assert sorted(order) == list(range(count))
            turn = {index: place for place, index in enumerate(order)}
            for index, makers in enumerate(plan.before):
                assert all(turn[maker] < turn[index] for maker in makers)
            assert max(0, *plan.live(order)) == simulated([kernels[index] for index in order], sizes, outputs)
        found = lowest_peak(kernels, sizes.__getitem__, {"given 0", "given 1"}, outputs)
        best = min(simulated([kernels[index] for index in order], sizes, outputs) for order in orders)
        assert simulated([kernel for kernel, _ in found], sizes, outputs) == best


def test_what_frees_memory_runs_before_what_takes_it() -> None:
    sizes = {"x": 100, "y": 100, "small": 1, "large": 90, "end": 1}
    kernels = [kernel("large", "y"), kernel("small", "x"), kernel("end", "large", "small")]
    plan = _Order(kernels, sizes.__getitem__, {"x", "y"}, {"end"})
    assert plan.least_memory() == [1, 0, 2]


def test_tensors_inside_of_a_kernel_count() -> None:
    sizes = {"x": 1, "a": 10, "hidden": 100}
    plan = _Order([kernel("a", "x", inside=("hidden",))], sizes.__getitem__, {"x"}, set())
    assert plan.live([0]) == [1 + 10 + 100, 0]


@pytest.mark.parametrize(("loads", "is_stored"), [(8, False), (9, True)])
def test_results_of_more_than_eight_loads_are_stored(loads: int, is_stored: bool) -> None:
    made = op("pointwise", "made", *(f"x{place}" for place in range(loads)))
    stored = realized([made, op("pointwise", "out", "made")], {"out"}, JointGraph({}, HOPPER))
    assert [each.outputs[0] for each in stored] == ["made"] * is_stored + ["out"]
    assert stored[-1].computes == (() if is_stored else (made,))


@pytest.mark.parametrize(("loads", "is_stored"), [(4, False), (5, True)])
@pytest.mark.parametrize("way", ["two readers", "read twice"])
def test_results_that_are_read_twice_are_stored_from_five_loads(
    loads: int, is_stored: bool, way: str
) -> None:
    made = op("pointwise", "made", *(f"x{place}" for place in range(loads)))
    if way == "two readers":
        readers = [op("pointwise", "one", "made"), op("pointwise", "two", "made")]
    else:
        readers = [op("pointwise", "one", "made", reads_twice=True)]
    stored = realized([made, *readers], {"one", "two"}, JointGraph({}, HOPPER))
    assert ("made" in [each.outputs[0] for each in stored]) is is_stored


@pytest.mark.parametrize(
    ("count", "loads", "shared", "is_stored"),
    [
        (28, 2, False, False),
        (29, 2, False, True),
        (30, 1, False, False),
        (29, 1, True, False),
        (30, 1, True, True),
    ],
)
def test_results_of_more_than_thirty_instructions_are_stored(
    count: int, loads: int, shared: bool, is_stored: bool
) -> None:
    made = op("pointwise", "made", *("x", "y")[:loads], instructions=count)
    readers = [op("pointwise", f"out{place}", "made") for place in range(1 + shared)]
    stored = realized([made, *readers], {"out0", "out1"}, JointGraph({}, HOPPER))
    assert ("made" in [each.outputs[0] for each in stored]) is is_stored


def test_constants_are_instructions_once() -> None:
    first = op("pointwise", "first", "x", "y", instructions=13, numbers=(2.0,))
    second = op("pointwise", "second", "first", instructions=13, numbers=(2.0,))
    out = op("pointwise", "out", "second")
    stored = realized([first, second, out], {"out"}, JointGraph({}, HOPPER))
    assert [each.outputs[0] for each in stored] == ["out"]  # 2 + 13 + 13 + 1 instructions
    third = op("pointwise", "second", "first", instructions=15, numbers=(3.0,))
    stored = realized([first, third, out], {"out"}, JointGraph({}, HOPPER))
    assert [each.outputs[0] for each in stored] == ["second", "out"]  # 2 + 13 + 15 + 2


def test_windows_store_what_is_computed_from_several_tensors() -> None:
    for loads, expected in ((1, ["out"]), (2, ["made", "out"])):
        made = op("pointwise", "made", *("x", "y")[:loads])
        stored = realized([made, op("pointwise", "out", "made", window=4)], {"out"}, JointGraph({}, HOPPER))
        assert [each.outputs[0] for each in stored] == expected
    pooled = op("pointwise", "pooled", "x", window=9)
    stored = realized([pooled, op("pointwise", "out", "pooled")], {"out"}, JointGraph({}, HOPPER))
    assert [each.outputs[0] for each in stored] == ["pooled", "out"]  # nine loads


@pytest.mark.parametrize(
    "more", [{"is_alone": True}, {"role": "random"}, {"part_bytes": 4}], ids=["alone", "random", "part"]
)
def test_what_is_never_computed_again_inside_of_kernels(more: dict[str, Any]) -> None:
    stored = realized(
        [op("pointwise", "made", "x", **more), op("pointwise", "out", "made")],
        {"out"},
        JointGraph({}, HOPPER),
    )
    assert [each.outputs[0] for each in stored] == ["made", "out"]


@pytest.mark.parametrize(
    "reader",
    [
        op("extern", "out", "made"),
        op("pointwise", "out", "made", is_alone=True),
        op("pointwise", "out", "made", part_bytes=4),
    ],
    ids=["library", "alone", "part"],
)
def test_what_kernels_of_libraries_read_is_stored(reader: Op) -> None:
    stored = realized([op("pointwise", "made", "x"), reader], {"out"}, JointGraph({}, HOPPER))
    assert [each.outputs[0] for each in stored] == ["made", "out"]


def test_sources_of_what_is_not_stored_are_read_instead() -> None:
    """Also the parts and the moved elements of the sources."""
    made = op(
        "pointwise",
        "made",
        "x",
        "y",
        moved=frozenset({"y"}),
        parts={"x": {"half": 50}},
    )
    stored = realized(
        [made, op("pointwise", "out", "made", "z", moved=frozenset({"z"}))], {"out"}, JointGraph({}, HOPPER)
    )
    (found,) = stored
    assert found.reads == ("x", "y", "z")
    assert found.moved == {"y", "z"}
    assert found.parts == {"x": {"half": 50}}
    assert found.computes == (made,)
    whole = op("pointwise", "out", "made", "x")
    (again,) = realized([made, whole], {"out"}, JointGraph({}, HOPPER))
    assert again.parts == {}


ROWS = op("reduction", "rows", "x", kept=10)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (op("pointwise", "a"), op("pointwise", "b"), True),
        (op("pointwise", "a"), op("pointwise", "b", elements=99), False),
        (ROWS, op("reduction", "b", kept=10), True),
        (ROWS, op("reduction", "b", kept=20), False),
        (ROWS, op("pointwise", "b"), True),  # over what it reads
        (ROWS, op("pointwise", "b", elements=10), True),  # over what it leaves
        (ROWS, op("pointwise", "b", elements=20), False),
        (op("pointwise", "b"), ROWS, True),
        (op("reduction", "a", kept=10, is_inner=False), op("pointwise", "b"), False),
        (op("reduction", "a", kept=10, in_order=False), op("pointwise", "b"), False),
        (op("reduction", "a", kept=10, in_order=False), op("pointwise", "b", elements=10), True),
        (op("extern", "a"), op("pointwise", "b"), False),
        (op("pointwise", "a"), op("pointwise", "b", is_alone=True), False),
    ],
)
def test_which_operators_run_together(one: Op, other: Op, expected: bool) -> None:
    assert run_together(one, other) is expected
    assert run_together(other, one) is expected


def outputs_of(*ops: Op, outputs: set[str]) -> list[tuple[str, ...]]:
    return [each.outputs for each in fused(ops, outputs, lambda _: 1)]


def test_a_kernel_between_two_others_keeps_them_apart() -> None:
    one, library = op("pointwise", "one", "x"), op("extern", "between", "one")
    last = op("pointwise", "last", "one", "between")
    assert outputs_of(one, library, last, outputs={"last"}) == [("one",), ("between",), ("last",)]
    assert outputs_of(one, op("pointwise", "last", "one"), outputs={"last"}) == [("last",)]
    assert outputs_of(one, op("pointwise", "last", "one"), outputs={"one", "last"}) == [("one", "last")]


def test_readers_of_one_tensor_are_one_kernel_unless_64_lie_between() -> None:
    apart = [op("extern", f"e{place}", f"y{place}") for place in range(62)]
    one, two = op("pointwise", "one", "x"), op("pointwise", "two", "x")
    outputs = {"one", "two", *(each.outputs[0] for each in apart)}
    assert ("one", "two") in outputs_of(one, *apart, two, outputs=outputs) or ("two", "one") in outputs_of(
        one, *apart, two, outputs=outputs
    )
    more = [*apart, *(op("extern", f"f{place}", f"z{place}") for place in range(3))]
    outputs |= {each.outputs[0] for each in more}
    assert ("one",) in outputs_of(one, *more, two, outputs=outputs)


def test_operators_that_join_one_after_the_other_run_once() -> None:
    """A sum over rows joins what reads its first operand; then what reads its second, of which that is one, joins both."""
    one, two = op("pointwise", "one", "x", "t"), op("pointwise", "two", "u", "t", elements=10)
    rows = op("reduction", "rows", "z", "u", "t", kept=10)
    kernels = fused([one, two, rows], {"one", "two", "rows"}, lambda _: 1)
    assert [[each.node for each in kernel.members] for kernel in kernels] == [["one", "two", "rows"]]


def test_a_kernel_has_64_operators_at_most() -> None:
    chain = [op("pointwise", f"t{place}", f"t{place - 1}" if place else "x") for place in range(70)]
    kernels = fused(chain, {"t69"}, lambda _: 1)
    assert [len(each.members) for each in kernels] == [64, 6]
    assert kernels[0].outputs == ("t63",)


def test_what_may_be_written_over() -> None:
    loop = Kernel((op("pointwise", "out", "x", "y", moved=frozenset({"y"})),), ("out",), (), ("x", "y"))
    assert loop.over == {"out": ("x",)}
    library = Kernel((op("extern", "out", "x"),), ("out",), (), ("x",))
    assert library.over == {}
    assert Kernel((op("extern", "out", "x", into="operand"),), ("out",), (), ("x",)).over == {"out": ("x",)}


@pytest.mark.parametrize(
    ("views", "roles"),
    [({}, ["placing", "joined"]), ({"made": "view"}, ["join"])],
    ids=["as it is", "a view"],
)
def test_what_is_joined_by_way_of_a_view_is_copied_there(views: dict[str, str], roles: list[str]) -> None:
    """A stored tensor is written where it goes, unless a view of it has fixed its place: then one kernel joins all."""
    made, given = op("pointwise", "made", "x", role="base"), op("extern", "given", "x")
    join = op("pointwise", "out", "given", "made", role="join", views=views)
    stored = realized([made, given, join, op("extern", "end", "out")], {"end"}, JointGraph({}, HOPPER))
    assert [each.role for each in stored if each.node == "out"] == roles
