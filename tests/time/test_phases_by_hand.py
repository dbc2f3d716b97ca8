"""Times of phases from what their calls launch, on a device of round numbers: sums that a reader can work out."""

from __future__ import annotations

from collections import Counter
from math import exp, hypot, log
from typing import Any, NamedTuple

import pytest
from msgspec import structs
from msgspec.structs import replace

from graphflops.devices import Host, Launch
from graphflops.kernels.kernel import Exchange, Kernel, Product, Recurrence
from graphflops.report.timeline import CallTime
from graphflops.time.exchanges import Launches
from graphflops.time.predict import Time
from graphflops.time.program_time import Batch, _matrix_utilization, _ranks, _sum, _Tally, _Timer
from graphflops.time.schedule import Clock, Running, exchange_ends, kernels_end
from tests.time.toy_device import device

HOST = Host({}, faster=2.0, slower=3.0)
TOY = device(host=HOST, launch=Launch(0.125), power_watts=100.0, bandwidth=1000.0, matrix={"bfloat16": 200.0})
CPU = structs.replace(TOY, kind="cpu")
COPY = Kernel("copy", "float32", 0, 0, 300, 200)
PRODUCT = Kernel("matmul", "bfloat16", 600, 0, 300, 200, Product(1, 1, 1))
EXCHANGE = Kernel("collective", "float32", 0, 0, 300, 200, Exchange(100))
TIMES = {
    COPY: Time(4.0, 2.0, 8.0, "memory"),
    PRODUCT: Time(6.0, 3.0, 12.0, "matrix"),
    EXCHANGE: Time(10.0, 5.0, 20.0, "link"),
}


def timer(is_launched: bool = True, toy: Any = TOY) -> _Timer:
    """One that knows how long these kernels take."""
    found = _Timer(toy, is_launched)
    found.known = dict(TIMES)
    return found


def batch_of(*kernels: Kernel) -> Batch:
    return Batch.of(kernels, {each: TIMES[each] for each in kernels})


def launch(row: int, *kernels: Kernel, host: float = 1.0, **more: Any) -> Launches:
    return Launches(row, kernels, host, **more)


def test_kernels_that_wait_for_their_launch() -> None:
    """A second of the CPU before each; the second is launched while the first runs."""
    phase, rows = timer().phase([launch(0, COPY), launch(1, PRODUCT)])
    assert (rows[0].seconds, rows[1].seconds) == (5, 6)
    assert (phase.seconds, phase.communication, phase.exposed) == (11, 0, 0)
    assert (rows[1].bound, rows[1].kernel, rows[1].collective) == ("matrix", "matmul", 0)
    assert dict(phase.shares) == {"matrix": 6 / 11, "memory": 5 / 11}
    assert phase.bound == "matrix"


def test_a_graph_has_its_gap_and_no_other_cpu() -> None:
    phase, rows = timer(is_launched=False).phase([launch(0, COPY), launch(1), launch(2, COPY, COPY)])
    assert [rows[row].seconds for row in (0, 1, 2)] == [4.125, 0, 8.25]
    assert rows[1] == CallTime(0.0, 0.0, 0.0, "launch")
    assert phase.seconds == 12.375
    one = timer(is_launched=False)
    assert (len(one.clocks), one.clocks[0].gap) == (1, 0.125)
    assert _Timer(structs.replace(TOY, launch=None), False).clocks[0].gap == 0.9e-6


@pytest.mark.parametrize(
    ("is_launched", "toy", "slowness"),
    [
        (True, TOY, (1, 1 / 2, 3)),
        (False, TOY, (1,)),
        (True, CPU, (1, 1 / 2, 3)),
        (False, CPU, (1, 1 / 2, 3)),  # kernels of a CPU are its own
    ],
)
def test_clocks_of_a_fast_and_a_slow_cpu(is_launched: bool, toy: Any, slowness: tuple[float, ...]) -> None:
    assert tuple(clock.slowness for clock in _Timer(toy, is_launched).clocks) == slowness


def test_a_row_that_runs_several_times_has_the_sum() -> None:
    launches = [launch(0, COPY, times=3), launch(0, PRODUCT, host=0.0)]
    phase, rows = timer(is_launched=False).phase(launches)
    assert rows[0].seconds == phase.seconds == 3 * 4.125 + 6.125
    assert (rows[0].kernel, rows[0].bound) == ("copy, matmul", "memory")
    phase, rows = timer().phase([launch(0, COPY, times=3)])
    assert rows[0].seconds == phase.seconds == 3 * 5
    assert phase.bandwidth_utilization == pytest.approx(3 * 500 / 1000 / 15)
    assert (phase.low, phase.high) == pytest.approx(
        # beside a CPU twice as fast each takes 4.5 s, beside one three times as slow 7 s
        tuple(
            15 * exp(sign * hypot(hypot(log(2), 0.06), log(end / 15)))
            for sign, end in ((-1, 3 * 4.5), (1, 3 * 7))
        )
    )


def test_unknown_kernels_make_a_lower_bound() -> None:
    phase, rows = timer().phase([Launches(0, None, 5.0), launch(1, COPY)])
    assert phase.is_lower_bound
    assert (phase.seconds, [*rows]) == (5, [1])
    known, _ = timer().phase([launch(1, COPY)])
    assert not known.is_lower_bound


def test_a_collective_that_is_waited_for_at_once() -> None:
    """All of it is communication, and exposed; of several times all of them."""
    phase, rows = timer(is_launched=False).phase([launch(0, COPY, EXCHANGE, times=2)])
    assert (phase.communication, phase.exposed) == (20, 20)
    assert (rows[0].collective, rows[0].bound) == (20, "link")
    assert phase.seconds == 2 * (4.125 + 10.125)


def started(times: int = 1) -> list[Launches]:
    return [
        launch(0, EXCHANGE, part="start", ticket=1, times=times),
        launch(1, PRODUCT, times=times),
        launch(0, EXCHANGE, part="wait", ticket=1, times=times),
    ]


def test_a_product_of_a_graph_starts_with_the_collective() -> None:
    """At 0.8 of its speed it takes 7.5 s, in which 4.5 s of the exchange pass; the rest of its ten seconds is exposed."""
    phase, rows = timer(is_launched=False).phase(started())
    assert (phase.communication, rows[0].collective) == (10, 10)
    assert phase.exposed == pytest.approx(10 - 4.5)
    assert phase.seconds == pytest.approx(7.5 + 10 - 4.5)


def test_a_product_that_is_launched_later_runs_beside_a_collective() -> None:
    """The CPU has a second left for the start, and one for the product: 2 s alone.

    At 0.8 of its speed the product takes 7.5 s, in which 4.5 s of the exchange pass; 3.5 s remain.
    """
    phase, _ = timer().phase(started())
    assert phase.exposed == pytest.approx(2 + 3.5)
    assert phase.seconds == pytest.approx(2 + 7.5 + 3.5)


def test_exposed_exchanges_of_a_graph() -> None:
    """One that starts with a copy runs beside it, at 0.6 of its speed for 4 / 0.8 = 5 seconds; 7 seconds remain."""
    launches = [
        launch(0, EXCHANGE, part="start", ticket=1),
        launch(1, COPY),
        launch(0, EXCHANGE, part="wait", ticket=1),
    ]
    phase, rows = timer(is_launched=False).phase(launches)
    assert phase.exposed == pytest.approx(7)
    assert rows[1].seconds == pytest.approx(5 + 0.125)
    assert phase.seconds == pytest.approx(5 + 7)
    assert phase.communication == 10
    twice = [replace(each, times=2) for each in launches]
    both, _ = timer(is_launched=False).phase(twice)
    assert (both.exposed, both.communication) == (pytest.approx(14), 20)
    assert both.seconds == pytest.approx(2 * 12)
    assert both.bandwidth_utilization == pytest.approx(2 * (500 + 500) / 1000 / 24)  # the wait moves nothing


def test_a_collective_of_the_phase_before_is_still_running() -> None:
    one = timer(is_launched=False)
    one.phase([launch(0, EXCHANGE, part="start", ticket=1)])
    phase, rows = one.phase([launch(1, COPY), launch(0, EXCHANGE, part="wait", ticket=1)])
    assert rows[1].seconds == pytest.approx(5 + 0.125)
    assert (phase.exposed, phase.communication) == (pytest.approx(7), 0)
    whole = one.whole()
    assert (whole.exposed, whole.communication) == (pytest.approx(7), 10)


def test_a_step_of_several_micro_steps() -> None:
    """All that is counted before it is repeated, three times."""
    one = timer()
    first, _ = one.phase([launch(0, COPY), launch(1, EXCHANGE, PRODUCT)], 3)
    second, _ = one.phase([launch(2, COPY)])
    whole = one.whole()
    assert whole.seconds == pytest.approx(3 * first.seconds + second.seconds)
    assert whole.communication == 3 * first.communication == 30
    assert whole.exposed == 30
    assert whole.energy_joules == pytest.approx(100 * whole.seconds)
    assert whole.bandwidth_utilization == pytest.approx((3 * 1500 + 500) / 1000 / whole.seconds)
    assert whole.matrix_utilization == pytest.approx(3 * 600 / 200 / whole.seconds)
    assert not whole.is_lower_bound


def tally(**fields: Any) -> _Tally:
    return _Tally(**fields)


def test_sums_over_phases() -> None:
    part = CallTime(4.0, 2.0, 8.0, "memory", "copy")
    batch = batch_of(COPY)
    one, other = (
        tally(
            parts=[part],
            fast=1.0 * n,
            slow=2.0 * n,
            runs=Counter({batch: n}),
            communication=3.0 * n,
            exposed=4.0 * n,
        )
        for n in (1, 10)
    )
    other.is_lower_bound = True
    whole = tally()
    whole.count(one)
    whole.count(other)
    assert whole.parts == [part, part]
    assert (whole.fast, whole.slow, whole.communication, whole.exposed) == (11, 22, 33, 44)
    assert (whole.runs, whole.is_lower_bound) == (Counter({batch: 11}), True)
    assert (one.parts, one.fast) == ([part], 1)
    steps = tally()
    steps.count(one, 3)
    assert steps.parts == [part._replace(seconds=12.0, low=6.0, high=24.0)]
    assert (steps.fast, steps.slow, steps.communication, steps.exposed) == (3, 6, 9, 12)
    assert steps.runs == Counter({batch: 3})
    assert steps.work() == Counter({"": 3 * 500})
    steps.count(other, 3)
    assert steps.runs == Counter({batch: 33})
    assert tally() == tally(parts=[], fast=0.0, slow=0.0, communication=0.0, exposed=0.0)


@pytest.mark.parametrize(
    ("part", "communication", "exposed", "of_call"),
    [("all", 5, 5, (5, 5, 5, 5)), ("start", 5, 0, (5, 0, 0, 0)), ("wait", 0, 0, (0, 6, 9, 7))],
)
def test_where_an_exchange_is_counted(
    part: Any, communication: float, exposed: float, of_call: tuple[float, ...]
) -> None:
    """A call that waits takes as long as it waits, for a collective that lasted 7 s, 6 of them alone."""
    found, time, clock = tally(), CallTime(9.0, 9.0, 9.0, "link"), Clock(True, 0.125)
    clock.link.finished[4] = Running(4, 1.0, 0.0, 6.0, 7.0)
    counted = found.exchanged(time, 5.0, launch(2, part=part, ticket=4), clock)
    assert (counted.collective, counted.exposed, counted.waited, counted.elapsed) == of_call
    assert counted.awaited_at == (2 if part == "all" else None)
    assert (counted.seconds, found.communication, found.exposed) == (9, communication, exposed)


def test_who_waits_for_a_collective() -> None:
    """It starts at 5 s, once the copy has run, and has 0.6 of its speed beside the next one, which takes 4 / 0.8 s."""
    start, wait = (
        launch(1, EXCHANGE, host=0.0, part="start", ticket=1),
        launch(1, EXCHANGE, part="wait", ticket=1),
    )
    before, beside, after = launch(0, COPY), launch(2, COPY, host=0.0), launch(3, COPY, host=0.0)
    _, rows = timer().phase([before, start, beside, wait, after])
    assert (rows[1].awaited_at, rows[1].collective) == (3, 10)
    assert rows[1].waited == rows[1].seconds == rows[1].exposed == pytest.approx(10 - 0.6 * 5)
    assert rows[1].elapsed == pytest.approx(5 + 7)
    _, rows = timer().phase([before, start, beside, wait])
    assert rows[1].awaited_at == -1
    assert all(rows[row].awaited_at is None for row in (0, 2))
    _, rows = timer().phase([before, start, beside])  # a message to one device, which nothing reads
    assert (rows[1].awaited_at, rows[1].exposed, rows[1].elapsed) == (None, 0, 10)


def test_calls_that_take_no_time_are_no_parts() -> None:
    own = timer()
    _, rows = own.phase([launch(0, COPY), launch(1, host=0.0), launch(2, COPY, times=2)])
    [(found, _)] = own.tallies
    assert found.parts == [rows[0], rows[2]]
    assert [*found.runs.values()] == [1, 1, 2]


def test_a_phase_without_calls() -> None:
    phase = tally().phase(TOY)
    assert (phase.seconds, phase.low, phase.high, phase.bound) == (0, 0, 0, "launch")
    assert (dict(phase.shares), phase.bandwidth_utilization, phase.matrix_utilization) == ({}, None, None)
    assert phase.energy_joules == 0
    assert tally().phase(structs.replace(TOY, power_watts=None)).energy_joules is None


def test_intervals_of_a_phase_are_those_of_its_kernels() -> None:
    """What waits for the CPU has the interval of a faster or slower one instead."""
    waits = CallTime(4.0, 2.0, 8.0, "launch")
    phase = tally(parts=[waits], fast=4.0, slow=4.0).phase(TOY)
    assert (phase.low, phase.high) == pytest.approx((4 * exp(-0.06), 4 * exp(0.06)))
    busy = tally(parts=[waits._replace(bound="memory")], fast=4.0, slow=4.0).phase(TOY)
    own = hypot(log(2), 0.06)
    assert (busy.low, busy.high) == pytest.approx((4 * exp(-own), 4 * exp(own)))


@pytest.mark.parametrize(
    ("work", "seconds", "expected"),
    [
        ({"": 10**9, "bfloat16": 600}, 6.0, 0.5),
        ({"": 10**9, "bfloat16": 600, "float64": 7}, 6.0, 0.5),  # of one type no peak is known
        ({"": 10**9, "float64": 7}, 6.0, None),
        ({"": 10**9, "float64": 0}, 6.0, 0),
        ({"": 10**9}, 6.0, 0),
        ({"bfloat16": 600}, 0.0, None),
    ],
)
def test_how_much_of_the_peaks_is_used(work: dict[str, int], seconds: float, expected: float | None) -> None:
    assert _matrix_utilization(Counter(work), TOY, seconds) == expected


def test_batches_of_kernels_are_looked_up_by_their_tuple() -> None:
    one = timer()
    kernels = (COPY, PRODUCT)
    first = one._batch(kernels)
    assert one._batch(kernels) is first
    assert one._batch((COPY, COPY)).seconds == 8
    assert first.collective == 0
    assert batch_of(EXCHANGE, COPY, EXCHANGE).collective == 20


@pytest.mark.parametrize(
    ("took", "is_eager", "bound"),
    [
        (15.0, True, "memory"),  # half as long again as its kernels
        (15.1, True, "launch"),
        (15.1, False, "memory"),
        (0.0, True, "memory"),
    ],
)
def test_what_bounds_a_call(took: float, is_eager: bool, bound: str) -> None:
    batch = Batch.of(
        (PRODUCT, COPY), {COPY: Time(7.0, 1.0, 9.0, "memory"), PRODUCT: Time(3.0, 1.0, 9.0, "matrix")}
    )
    assert batch.call_time(took, is_eager, HOST).bound == bound


def test_a_call_that_runs_often_is_compared_with_all_of_its_kernels() -> None:
    batch = batch_of(COPY)
    assert batch.call_time(3 * 6.0, True, HOST, 3).bound == "memory"
    assert batch.call_time(3 * 6.1, True, HOST, 3).bound == "launch"


def test_a_call_without_kernels_waits_for_the_cpu() -> None:
    empty = Batch.of((), {})
    assert empty.call_time(0.5, True, HOST) == CallTime(0.5, 0.25, 1.5, "launch", "")


def test_one_recurrent_kernel_stands_for_eight_launches() -> None:
    layer = Kernel("recurrence", "float32", 0, 0, 4, 4, Recurrence(8, 1, 1, 1, 4))
    found = Batch.of((COPY, layer), {COPY: TIMES[COPY], layer: Time(16.0, 8.0, 32.0, "memory")})
    assert found.kernel_seconds == (4, *(2,) * 8)


def test_equal_times_have_the_bound_of_the_first() -> None:
    one, other = (CallTime(1.0, 1.0, 1.0, bound) for bound in ("memory", "matrix"))  # type: ignore[arg-type]
    assert (_sum(one, other).bound, _sum(other, one).bound) == ("memory", "matrix")


class Axes(NamedTuple):
    axes: dict[str, int]


class Step(NamedTuple):
    mesh: Axes | None


@pytest.mark.parametrize(
    ("step", "ranks"), [(None, 1), (Step(None), 1), (Step(Axes({"data": 2, "model": 3})), 6)]
)
def test_processes_of_a_recorded_step(step: Any, ranks: int) -> None:
    class Graph(NamedTuple):
        step: Any

    class Program(NamedTuple):
        graph: Any

    assert _ranks(Program(Graph(step))) == ranks  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernels", "exchange", "ends"),
    [
        (8.0, 6.0, (10.0, 10.0)),  # both as long beside one another
        (4.0, 6.0, (5.0, 8.0)),  # after five seconds the exchange has done three, and goes on alone
        (16.0, 6.0, (18.0, 10.0)),  # after ten the kernels have done eight
        (0.0, 6.0, (0.0, 6.0)),
        (8.0, 0.0, (8.0, 0.0)),
    ],
)
def test_kernels_run_at_eight_tenths_beside_an_exchange_at_six(
    kernels: float, exchange: float, ends: tuple[float, float]
) -> None:
    found = kernels_end(kernels, exchange), exchange_ends(exchange, kernels)
    assert found == pytest.approx(ends)
