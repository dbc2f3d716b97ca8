"""What the calls of a recorded step launch, and what the CPU does around them: sums that a reader can work out."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.graph import Graph, Input, Node, Output, Ref, Step, Storage
from graphflops.kernels.kernel import Transfer
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.exchanges import Launches
from tests.support import t
from tests.time.test_launches_by_hand import COSTS, X, hosts, launcher, node

RECORDED = {
    "recorded.call": 100.0,
    "recorded.further_kernel": 7.0,
    "recorded.without_kernel": 3.0,
    "recorded.backward.start": 2000.0,
    "recorded.backward.parameter": 5.0,
    "recorded.optimizer.start": 3000.0,
    "recorded.optimizer.parameter": 6.0,
    "forward.collective": 500.0,
    "optimizer.tensor": 0.5,
}


def relu(out: str, x: str) -> Node:
    return node(out, "relu.default", x)


def steps(
    *nodes: Node, phases: Any, given: Any, parameters: tuple[str, ...] = (), **more: Any
) -> list[Launches]:
    """What a recorded step launches after its start."""
    roles = {name: "parameter" if name in parameters else "user" for name in given}
    inputs = tuple(Input(name, role, target=name) for name, role in roles.items())  # type: ignore[arg-type]
    step = Step(phases, more.pop("storages", ()), **more)
    graph = Graph(nodes, given, inputs, (Output(Ref(nodes[-1].name)),), step=step)
    priced = price(graph, bind(graph, {}, {}), facts_of)
    return launcher(priced, **RECORDED).forward(records=False)[1:]


CHAIN = [relu(out, x) for x, out in zip("xabc", "abcd", strict=True)]


@pytest.mark.parametrize(
    ("phases", "parameters", "expected"),
    [
        (("forward",) * 4, (), [100] * 4),
        (("forward", "forward", "backward", "optimizer"), (), [100, 100, 2000, 100, 3000, 100]),
        (("forward", "backward", "backward", "optimizer"), (), [100, 2000, 100, 100, 3000, 100]),
        (("forward", "backward", "forward", "backward"), (), [100, 2000, 100, 0, 100, 2000, 100]),
        (("forward", "backward", "optimizer", "optimizer"), ("w", "v"), [100, 2010, 100, 3012, 100, 100]),
        (("backward",) * 4, (), [100] * 4),  # the start of the program holds that of its first phase
    ],
)
def test_phases_begin_with_what_is_of_no_call(phases: Any, parameters: Any, expected: list[float]) -> None:
    given = {"x": X} | {name: t(2) for name in parameters}
    found = steps(*CHAIN, phases=phases, given=given, parameters=parameters)
    assert hosts(found) == expected
    rows = [launch.row for launch in found if launch.host_seconds == 100]
    assert rows == [0, 1, 2, 3]
    assert all(launch.row == -1 and launch.kernels == () for launch in found if launch.host_seconds != 100)


def test_what_python_dispatches_and_hooks_around_calls() -> None:
    """17 for each call of a subclass and 19 for each hook."""
    found = steps(
        relu("a", "x"),
        relu("b", "a"),
        phases=("forward",) * 2,
        given={"x": X},
        wrapped=(2, 1),
        hooked=(0, 3),
    )
    assert (COSTS["recorded.subclass"], COSTS["recorded.hook"]) == (17, 19)
    assert hosts(found) == [100 + 2 * 17, 100 + 17 + 3 * 19]


def test_steps_that_an_optimizer_counts_are_numbers_of_the_cpu() -> None:
    def add(out: str, op: str, x: str) -> Node:
        return Node(out, f"aten.{op}.Tensor", (Ref(x), 1), (), outputs=(out,))

    calls = relu("a", "x"), add("n", "add_", "c"), add("m", "add", "n"), add("b", "add", "a")
    found = steps(
        *calls,
        phases=("forward", "optimizer", "optimizer", "optimizer"),
        given={"x": X, "c": t()},
        counters=frozenset({"c", "n"}),
    )
    assert [(launch.row, launch.host_seconds, len(launch.kernels or ())) for launch in found] == [
        (0, 100, 1),
        (-1, 3000, 0),
        (1, 0.5, 0),  # of a counter, into a counter
        (2, 100, 1),  # into something else
        (3, 100, 1),
    ]
    assert not any(launch.waits for launch in found)


STORAGES = (
    Storage("x", "input", -1, 9, 128),
    Storage("h", "pinned", -1, 9, 128),
    Storage("p", "host", -1, 9, 128),
    Storage("y", "value", 0, 9, 128),
)
PLACES = {"x": (0, 0, 128), "h": (1, 0, 128), "p": (2, 0, 128), "y": (3, 0, 128)}


def moved(source: str, *, to: str = "y", aside: bool = False, **named: Any) -> list[Launches]:
    call = Node(to, "aten._to_copy.default", (Ref(source),), tuple(named.items()), outputs=(to,))
    return steps(
        call,
        relu("z", source if to in "hp" else to),  # what is on the device
        phases=("forward",) * 2,
        given={source: X},
        storages=STORAGES,
        places={name: place for name, place in PLACES.items() if name in (source, to)},
        aside=frozenset({to} if aside else ()),
    )


@pytest.mark.parametrize(
    ("source", "to", "sizes"),
    [
        ("h", "y", Transfer(to_host=False, is_pinned=True)),
        ("p", "y", Transfer(to_host=False)),
        ("x", "h", Transfer(to_host=True, is_pinned=True)),
        ("x", "p", Transfer(to_host=True)),
    ],
)
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_the_memories(source: str, to: str, sizes: Transfer, non_blocking: bool) -> None:
    """The CPU waits for them but where it need not, and the memory of the host is pinned."""
    first, second = moved(source, to=to, non_blocking=non_blocking)
    (kernel,) = first.kernels or ()
    assert (kernel.family, kernel.sizes, kernel.read_bytes, kernel.written_bytes) == (
        "transfer",
        sizes,
        128,
        128,
    )
    assert first.waits is not (non_blocking and sizes.is_pinned)
    assert (first.part, first.row, second.row, second.waits) == ("all", 0, 1, False)


@pytest.mark.parametrize(("source", "to"), [("x", "y"), ("h", "p")])
def test_copies_within_a_memory_are_kernels(source: str, to: str) -> None:
    first, _ = moved(source, to=to)
    assert all(kernel.family != "transfer" for kernel in first.kernels or ())
    assert not first.waits


def test_a_copy_in_a_stream_of_its_own_is_waited_for_where_it_is_read() -> None:
    found = moved("h", aside=True, non_blocking=True)
    assert [(launch.row, launch.part, len(launch.kernels or ())) for launch in found] == [
        (0, "all", 0),
        (0, "start", 1),
        (0, "wait", 1),
        (1, "all", 1),
    ]
    assert {launch.ticket for launch in found if launch.part != "all"} == {1}
    assert [launch.part for launch in moved("h", aside=True)] == ["all", "all"]  # for which the CPU waits
    assert [launch.part for launch in moved("h", non_blocking=True)] == ["all", "all"]


def test_a_copy_into_a_tensor_of_the_host() -> None:
    """Its first operand is what it writes to."""
    call = Node("y", "aten.copy_.default", (Ref("h"), Ref("x")), (), outputs=("y",))
    found = steps(
        call,
        phases=("forward",),
        given={"x": X, "h": X},
        storages=STORAGES,
        places={"x": (0, 0, 128), "h": (1, 0, 128), "y": (1, 0, 128)},
    )
    assert [kernel.sizes for kernel in found[0].kernels or ()] == [Transfer(to_host=True, is_pinned=True)]
    assert found[0].waits


@pytest.mark.parametrize(("source", "to"), [("x", "y"), ("p", "h")])
def test_the_cpu_waits_for_no_count_of_its_own(source: str, to: str) -> None:
    """How many elements are not zero decides how large the result is."""
    call = Node(to, "aten.nonzero.default", (Ref(source),), (), outputs=(to,))
    first, _ = steps(
        call,
        relu("z", "x"),
        phases=("forward",) * 2,
        given={"x": X, "p": X},
        storages=STORAGES,
        places={name: PLACES[name] for name in {"x", "p", to}},
    )
    assert first.waits == (source == "x")
