"""When a program waits for its collectives: which waits stand right behind them, and what each call waits for."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.ops import operator
from graphflops.time.exchanges import Exchanges, Launches, awaited_later


def call(name: str, uses: str = "", *, op: str = "aten.add.Tensor", regions: Any = ()) -> Any:
    node = Space(name=name, outputs=(name,), operator=operator(op))
    return Space(node=node, uses=tuple(uses.split()), estimate=Space(regions=regions))


def start(name: str, uses: str = "x") -> Any:
    return call(name, uses, op="_c10d_functional.all_reduce.default")


def wait(name: str, uses: str) -> Any:
    return call(name, uses, op="_c10d_functional.wait_tensor.default")


@pytest.mark.parametrize(
    ("calls", "late"),
    [
        ((start("a"), wait("b", "a")), set()),
        ((start("a"), call("c", "x"), wait("b", "a")), {"a"}),
        ((start("a"), start("c"), wait("b", "a"), wait("d", "c")), {"a"}),  # the second is waited for at once
        ((start("a"), wait("b", "a"), call("c", "b"), start("d"), call("e"), wait("f", "d")), {"d"}),
        ((call("c", "x"), wait("b", "x")), set()),  # what no collective has made
        ((), set()),
    ],
)
def test_waits_that_do_not_stand_right_behind(calls: Any, late: set[str]) -> None:
    assert awaited_later(calls) == late


COPY = Kernel("copy", "float32")
EXCHANGE = Kernel("collective", "float32", sizes=Exchange(8))
LAUNCH = Launches(3, (COPY, EXCHANGE), 0.5)


def begun(*names: str) -> Exchanges:
    found = Exchanges()
    for name in names:
        assert len([*found.started(LAUNCH, (name, None))]) == 2
    return found


def test_a_collective_starts_behind_its_copies() -> None:
    found = Exchanges()
    copies, first = found.started(LAUNCH, ("a", None))
    assert copies == Launches(3, (COPY,), 0.25)
    assert first == Launches(
        3, (EXCHANGE,), 0.25, part="start", ticket=1
    )  # half of the CPU's time comes after it
    assert found.pending == {"a": first}
    _, second = found.started(LAUNCH, ("b",))
    assert second.ticket == 2
    bare = [*found.started(Launches(4, None, 0.5), ("c",))]
    assert [each.kernels for each in bare] == [(), ()]


def tickets(launches: Any) -> list[int]:
    found = [*launches]
    assert all(each.part == "wait" for each in found)
    return [each.ticket for each in found]


def test_a_call_that_reads_a_value_waits_for_it() -> None:
    found = begun("a", "b")
    assert tickets(found.waited(call("c", "x"), is_view=False)) == []
    assert tickets(found.waited(call("d", "x b"), is_view=False)) == [2]
    assert [*found.pending] == ["a"]
    assert tickets(found.waited(call("e", "a a"), is_view=False)) == [1]
    assert tickets(found.ends(found.pending)) == []


def test_a_view_is_pending_as_what_it_shows() -> None:
    found = begun("a")
    assert tickets(found.waited(call("v", "a"), is_view=True)) == []
    assert set(found.pending) == {"a", "v"}
    assert tickets(found.waited(call("c", "v"), is_view=False)) == [1]
    assert not found.pending


def test_a_wait_right_behind_its_collective_is_none_yet() -> None:
    """Exporting writes it there; eager execution waits where the tensor is read. Later waits are waits."""
    found = begun("a")
    assert tickets(found.waited(wait("w", "a"), is_view=True)) == []
    assert set(found.pending) == {"a", "w"}
    late = begun("a")
    assert tickets(late.waited(call("c", "x"), is_view=False)) == []
    assert tickets(late.waited(wait("w", "a"), is_view=True)) == [1]


def test_a_graph_inside_of_a_call_begins_when_all_have_ended() -> None:
    found = begun("a", "b")
    assert tickets(found.waited(call("c", "x", regions=(1,)), is_view=False)) == [1, 2]
    assert not found.pending


def test_what_is_still_running_ends_with_the_program() -> None:
    found = begun("a", "b")
    assert tickets(found.ends(found.pending)) == [1, 2]
    assert not found.pending
    assert tickets(begun("a", "b").ends(["b", "missing"])) == [2]


GATHER, SHARE, SUM = (
    Kernel("collective", "float32", variant=name) for name in ("all_gather", "reduce_scatter", "all_reduce")
)


def test_fully_shard_gathers_parameters_ahead_of_the_kernels_before() -> None:
    found = Exchanges()
    for copies in ("fsdp.all_gather_copy_in.default", "aten.copy_.default"):
        assert not [*found.waited(call("c", "x", op=copies), is_view=False)]
        *_, start = found.started(Launches(3, (GATHER,), 0.5), ("g",))
        assert start.is_ahead == copies.startswith("fsdp")


def test_fully_shard_goes_on_with_sums_of_gradients_in_their_stream() -> None:
    """The backward waits for a sum where the next one is copied together, as one at most is under way."""
    found = Exchanges()

    def read(name: str, uses: str, op: str) -> list[int]:
        return tickets(found.waited(call(name, uses, op=op), is_view=False, is_gradient=True))

    def sends(name: str, kernel: Kernel) -> None:
        *_, start = found.started(Launches(3, (kernel,), 0.5), (name,))
        assert not start.is_ahead

    assert not read("c", "x", "fsdp.chunk_cat.default")
    sends("s", SHARE)
    assert not read("r", "s", "c10d.allreduce_.default")  # of hybrid shards
    sends("r", SUM)
    assert not read("d", "r", "aten.div_.Tensor")
    assert not read("h", "d", "aten._to_copy.default")
    assert not read("y", "x", "aten.add.Tensor")  # of the backward
    assert read("c", "y", "fsdp.chunk_cat.default") == [1]
    sends("t", SHARE)
    assert read("n", "t", "aten.mul.Tensor") == [3]  # PyTorch has no product there: it is of the program
    assert read("o", "h", "aten._to_copy.default") == [2]
    assert not read("c", "x", "fsdp.chunk_cat.default")
    sends("u", SHARE)
    assert read("c", "u", "fsdp.chunk_cat.default") == [4]


def test_what_is_gathered_in_a_backward_is_waited_for_where_it_is_cast() -> None:
    found = Exchanges()
    [*_, start] = found.started(Launches(3, (GATHER,), 0.5), ("g",))
    for name, uses, expected in (("y", "x", []), ("h", "g", [start.ticket])):
        cast = call(name, uses, op="aten._to_copy.default")
        assert tickets(found.waited(cast, is_view=False, is_gradient=True)) == expected
