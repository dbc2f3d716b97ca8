"""When a program waits for its collectives: which waits stand right behind them, and what each call waits for."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.time.schedule import Exchanges, Launches, awaited_later


def call(name: str, uses: str = "", *, is_exchange: bool = False, op: str = "add", regions: Any = ()) -> Any:
    operator = Space(name=op, is_exchange=is_exchange)
    node = Space(name=name, outputs=(name,), operator=operator)
    return Space(node=node, uses=tuple(uses.split()), estimate=Space(regions=regions))


def start(name: str, uses: str = "x") -> Any:
    return call(name, uses, is_exchange=True, op="all_reduce")


def wait(name: str, uses: str) -> Any:
    return call(name, uses, op="wait_tensor")


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
    assert copies == Launches(3, (COPY,), 0.5)
    assert first == Launches(3, (EXCHANGE,), 0.0, part="start", ticket=1)
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
    assert tickets(found.all_ends()) == []


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
    assert tickets(found.all_ends()) == [1, 2]
    assert not found.pending
    assert tickets(begun("a", "b").ends(["b", "missing"])) == [2]
