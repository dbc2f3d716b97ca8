"""Sums of times: of kernels and the CPU, collectives beside them, and intervals, worked out by hand."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

import pytest

from graphflops.devices import Host
from graphflops.graph import Node
from graphflops.kernels.kernel import Kernel, Recurrence, Rows
from graphflops.time.predict import Time
from graphflops.time.program_time import Batch, interval
from graphflops.time.schedule import (
    Clock,
    Link,
    backward_seconds,
    entering_seconds,
    forward_seconds,
    recurrent_seconds,
    start_seconds,
)
from graphflops.time.written import written_kernel


def test_a_graph_has_a_gap_between_kernels() -> None:
    clock = Clock(is_eager=False, gap=0.5)
    assert clock.run(100.0, [2.0, 3.0], waits=False) == 2 + 3 + 2 * 0.5
    assert clock.run(100.0, [4.0], waits=True) == 4.5
    assert clock.now == 10.5


def test_eager_kernels_wait_for_their_launch() -> None:
    """Two kernels of 1 s, each launched 2 s after the other: the GPU is done one second after the last launch."""
    clock = Clock(is_eager=True, gap=9.0)
    assert clock.run(4.0, [1.0, 1.0], waits=False) == 5
    assert (clock.host, clock.gpu) == (4, 5)
    assert clock.run(0.5, [], waits=False) == 0  # the CPU is ahead of the GPU
    assert clock.run(0.25, [10.0], waits=False) == 10
    assert (clock.host, clock.gpu) == (4.75, 15)
    assert clock.run(0.25, [], waits=True) == 0
    assert clock.host == 15
    assert clock.run(2.0, [], waits=False) == 2


def test_a_slow_cpu_takes_longer_for_each_call() -> None:
    clock = Clock(is_eager=True, gap=0.0, slowness=3.0)
    assert clock.run(4.0, [1.0], waits=False) == 13
    clock.run(1.0, [1.0, 1.0], waits=False)
    assert clock.host == 15


def test_kernels_beside_collectives() -> None:
    clock = Clock(is_eager=False, gap=0.5)
    assert clock.run(7.0, [2.0, 3.0], waits=False) == 6
    assert clock.host == 0
    assert clock.start(1, 10.0) == 0
    assert clock.wait(1) == 10
    eager = Clock(is_eager=True, gap=0.5)
    assert eager.run(2.0, [], waits=False) == 2
    assert eager.run(2.0, [5.0], waits=True) == 7
    assert (eager.host, eager.gpu) == (9, 9)


def test_a_collective_and_a_kernel_slow_each_other_down() -> None:
    """While both run a collective has 0.6 of its speed and a kernel 0.8."""
    link = Link()
    link.start(1, 0.0, 6.0)
    assert link.beside(0.0, 4.0) == pytest.approx(5)  # 4 / 0.8, in which 5 * 0.6 are exchanged
    assert link.end(1) == pytest.approx(5 + 3)
    link.start(2, 8.0, 0.6)
    assert link.beside(8.0, 4.0) == pytest.approx(8 + 1 + (4 - 0.8))  # alone after 1 s
    assert link.end(2) == pytest.approx(9)
    assert link.beside(20.0, 4.0) == 24


def test_collectives_run_one_after_the_other() -> None:
    link = Link()
    link.start(1, 0.0, 2.0)
    link.start(2, 1.0, 3.0)
    link.start(3, 10.0, 1.0)
    assert link.end(2) == 5
    assert link.end(1) == 2
    assert link.end(3) == 11


def test_collectives_of_two_groups_run_at_once() -> None:
    """Each in the stream of its group; a kernel beside both has 0.8 of its speed, as beside one."""
    link = Link()
    link.start(1, 0.0, 6.0, "data")
    link.start(2, 1.0, 2.0, "tensor")
    link.start(3, 0.0, 1.0, "data")
    assert link.end(2) == 3
    assert (link.alone, link.end(1), link.end(3), link.alone) == (3, 6, 7, 7)
    link.start(4, 8.0, 6.0, "data")
    link.start(5, 9.0, 0.6, "tensor")
    assert link.beside(8.0, 4.0) == pytest.approx(8 + 4 / 0.8)
    assert link.end(5) == pytest.approx(9 + 0.6 / 0.6)
    assert link.end(4) == pytest.approx(13 + (6 - 5 * 0.6))


def test_one_that_runs_ahead_waits_for_those_of_its_own_group_alone() -> None:
    """Parameters are gathered from 1 s on, when the CPU asks for them, although sums of another group are awaited at 4 s."""
    clock = Clock(is_eager=True, gap=0.0)
    clock.run(1.0, [1.0])
    clock.start(1, 2.0, "tensor")
    clock.wait(1)
    assert clock.now == 4
    clock.start(2, 30.0, "data", is_ahead=True)
    assert clock.link.queues["data"][0].ready == 1


def test_a_collective_that_is_not_ready_lets_kernels_run_alone() -> None:
    link = Link()
    link.start(1, 3.0, 6.0)
    assert link.beside(0.0, 2.0) == 2
    assert link.beside(2.0, 5.0) == pytest.approx(3 + 4 / 0.8)


def time(seconds: float, spread: float = 1.0, bound: Any = "memory") -> Time:
    return Time(seconds, seconds / spread, seconds * spread, bound)


def test_a_collective_that_runs_ahead_was_beside_kernels() -> None:
    """At 0.6 of its speed for 5 s; they ran at 0.8 of theirs, so that they take a second longer and it has 1 s left."""
    clock = Clock(is_eager=True, gap=0.0)
    clock.run(1.0, [5.0])
    assert clock.start(1, 4.0, is_ahead=True) == pytest.approx(1.0)
    assert clock.now == pytest.approx(7.0)
    assert clock.wait(1) == pytest.approx(1.0)
    assert clock.link.finished[1].alone == pytest.approx(1.0)
    clock.run(0.0, [10.0])
    assert clock.start(2, 3.0, is_ahead=True) == pytest.approx(
        1.0
    )  # from 8 on: it lasts 5 s, and is over before 18
    assert clock.wait(2) == 0.0
    assert clock.now == pytest.approx(19.0)
    assert clock.link.finished[2].lasted == pytest.approx(5.0)


def test_errors_of_parts_cancel_in_part() -> None:
    """Two parts with a factor of 2: of the variance of their logarithms 14 % is shared; 6 % are always unknown."""
    parts = [time(1.0, 2.0), time(3.0, 2.0)]
    found = interval(parts, 4.0, 4.0, 4.0)
    own = sqrt((0.14 * (4 * log(2)) ** 2 + 0.86 * 10 * log(2) ** 2) / 16 + 0.06**2)
    assert found == pytest.approx((4 * exp(-own), 4 * exp(own)))
    spread = interval(parts, 4.0, 4.0, 4.0, spread=1.5)
    own = sqrt(own**2 + log(1.5) ** 2)
    assert spread == pytest.approx((4 * exp(-own), 4 * exp(own)))


def test_a_fast_and_a_slow_cpu_widen_an_interval() -> None:
    low, high = interval([], 4.0, 2.0, 12.0)
    assert low == pytest.approx(4 * exp(-sqrt(0.06**2 + log(2) ** 2)))
    assert high == pytest.approx(4 * exp(sqrt(0.06**2 + log(3) ** 2)))
    low, _ = interval([], 4.0, 0.0, 4.0)
    assert low == pytest.approx(4 * exp(-sqrt(0.06**2 + log(100) ** 2)))
    assert interval([], 0.0, 0.0, 0.0) == (0, 0)
    _, high = interval([Time(1.0, 0.0, 2.0, "memory")], 1.0, 1.0, 1.0)
    assert high == pytest.approx(exp(sqrt(1 + 0.06**2)))


def kernel(family: Any, flops: int = 0, sizes: Any = None, dtype: str = "bfloat16") -> Kernel:
    return Kernel(family, dtype, flops, 0, 300, 200, sizes)


def test_a_batch_of_kernels() -> None:
    kernels = (
        kernel("matmul", 70),
        kernel("copy"),
        kernel("matmul", 30),
        kernel("other", 5, None, "float32"),
    )
    times = (time(1.0, 2.0, "matrix"), time(2.0, 4.0), time(1.0, 2.0), time(0.0))
    found = Batch.of(kernels, dict(zip(kernels, times, strict=True)))
    assert found.kernel_seconds == (1, 2, 1, 0)
    assert found.seconds == 4
    assert (found.low, found.high) == ((0.5 + 0.5 + 0.5) / 4, (2 + 8 + 2) / 4)
    assert (found.bound, found.families) == ("memory", "matmul, copy, other")
    assert dict(found.work) == {"": 4 * 500, "bfloat16": 100, "float32": 5}
    nothing = Batch.of((), {})
    assert (nothing.seconds, nothing.low, nothing.high, nothing.bound) == (0, 1, 1, "launch")
    layer = kernel("recurrence", 0, Recurrence(8, 1, 1, 1, 4))
    assert Batch.of((layer,), {layer: time(4.0)}).kernel_seconds == (0.5,) * 8
    twice = Batch.of(kernels[:1] * 2, {kernels[0]: times[0]})
    assert (twice.kernel_seconds, twice.seconds) == ((1, 1), 2)
    assert dict(twice.work) == {"": 2 * 500, "bfloat16": 2 * 70}


HOST = Host({}, faster=2.0, slower=3.0)


@pytest.mark.parametrize(
    ("took", "is_eager", "expected"),
    [
        (6.0, True, (6, 3, 12, "memory")),  # 1.5 x its kernels
        (6.5, True, (6.5, 3.25, 19.5, "launch")),
        (6.5, False, (6.5, 3.25, 13, "memory")),
        (0.0, True, (0, 0, 0, "memory")),
    ],
)
def test_calls_that_wait_for_the_cpu_have_its_interval(took: float, is_eager: bool, expected: Any) -> None:
    batch = Batch.of((kernel("copy"),), {kernel("copy"): time(4.0, 2.0)})
    found = batch.call_time(took, is_eager, HOST)
    assert (found.seconds, found.low, found.high, found.bound) == expected
    empty = Batch.of((), {}).call_time(6.0, False, HOST)
    assert (empty.low, empty.high, empty.bound) == (3, 18, "launch")


COSTS = {
    "forward.start": 1e3,
    "forward.start.transformers": 2e3,
    "forward.module": 7.0,
    "forward.module.torch": 5.0,
    "forward.call": 100.0,
    "forward.conv2d": 30.0,
    "forward.convolution": 40.0,
    "forward.reduction": 60.0,
    "forward.further_kernel": 3.0,
    "forward.skipped": 11.0,
    "forward.without_kernel": 13.0,
    "forward.recording": 17.0,
    "forward.inside": 19.0,
    "backward.call": 200.0,
    "backward.further_kernel": 23.0,
    "backward.without_kernel": 29.0,
    "backward.parameter": 31.0,
    "recurrent.call": 1000.0,
    "recurrent.layer": 100.0,
    "recurrent.step": 10.0,
}
COPY = kernel("copy")


def operator_of(name: str) -> Any:
    return Node("y", name, ()).operator


def test_the_cpu_takes_the_time_of_the_operator_or_its_kind() -> None:
    relu, total = operator_of("aten.relu.default"), operator_of("aten.sum.dim_IntList")
    dropout, attention = (
        operator_of("aten.dropout.default"),
        operator_of("aten.scaled_dot_product_attention.default"),
    )
    more: Any = {"records": False}
    assert forward_seconds(COSTS, relu, [COPY], **more) == 100
    assert forward_seconds(COSTS, relu, [COPY] * 3, **more) == 100 + 2 * 3
    assert forward_seconds(COSTS, total, [COPY], **more) == 60
    assert forward_seconds(COSTS, relu, [], **more) == 13
    assert forward_seconds(COSTS, dropout, [], **more) == 11
    assert forward_seconds(COSTS, relu, [COPY], records=True) == 100 + 17
    assert forward_seconds(COSTS, attention, [kernel("attention"), COPY], **more) == 100 + 3
    assert backward_seconds(COSTS, relu, [COPY] * 2, 3) == 200 + 23 + 3 * 31
    assert backward_seconds(COSTS, relu, [], 0) == 29
    assert entering_seconds(COSTS, []) == 0
    assert entering_seconds(COSTS, ["torch", "mine"]) == 5 + 7
    stacks = ["a,transformers.models.Llama;b,torch.nn.Linear", "a,transformers.models.Llama", ""]
    assert start_seconds(COSTS, stacks) == 3000


def test_the_cpu_launches_recurrent_layers_step_by_step() -> None:
    long = kernel("recurrence", 0, Recurrence(8, 1, 1, 512, 4, 3, 2))
    assert recurrent_seconds(COSTS, [long, COPY]) == 1000 + 6 * 100 + 8 * 6 * 10
    resident = Kernel("recurrence", "float32", 0, 0, 4, 4, Recurrence(8, 1, 1, 16, 4, 3, 2))
    assert recurrent_seconds(COSTS, [resident]) == 1000 + 6 * 100
    assert recurrent_seconds(COSTS, [COPY]) == 0


def test_written_kernels_count_loads() -> None:
    """An element of a loop takes as long as a quarter of a load beside its own; of rows of a power of two as long as one."""
    loop = written_kernel(100, 3, 40, 50, 7, None)
    assert (loop.vector_flops, loop.read_bytes, loop.written_bytes) == (100 * (0.25 + 3) + 7, 40, 50)
    for columns, joins, held, each in (
        (32, False, 32, 1),
        (20, False, 32, 1),
        (20, True, 32, 1),
        (1040, False, 1040, 3),  # a loop over a row takes the time of its loads
        (1040, True, 2048, 3 + 2.3),
    ):
        inner = written_kernel(100, 3, 40, 50, 7, Rows(5, columns), joins)
        assert (inner.variant, inner.vector_flops) == ("fused", int(100 * each * (held / columns) + 7))
    stored = written_kernel(100, 3, 40, 100, 7, Rows(5, 1040))  # too long to be kept: read again
    assert stored.vector_flops == int(100 * 3 * 1.85 + 7)
    outer = written_kernel(100, 3, 40, 50, 7, Rows(5, 20, is_inner=False))
    assert (outer.vector_flops, outer.variant, outer.sizes) == (
        100 * 3 * 2.2 + 7,
        "fused.outer",
        Rows(5, 20, False),
    )
