"""Times of programs of one call on a device of round numbers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from graphflops.devices import Calibration, Host, Launch, platform_of
from graphflops.execution.runs import Runs
from graphflops.report.timeline import CallTime
from graphflops.time.launches import _entered
from graphflops.time.program_time import _sum, program_time
from tests.one_call import g, program_of
from tests.support import t
from tests.time.toy_device import TRAFFIC, device

COSTS: Any = defaultdict(float, {"forward.call": 0.5, "backward.call": 0.25})  # seconds of the CPU
# 1 GB/s: a tensor of 250 MB takes a quarter of a second to read, and as long to write.
SIZE = (62_500, 1000)
TOY = device(
    host=Host(COSTS, faster=2.0, slower=3.0),
    launch=Launch(0.125),
    rates={"elementwise": {**TRAFFIC, "memory": 1.0, "spread": 2.0}},
    power_watts=100.0,
)


def timed(op: str, *args: Any, execution: Any = "eager", toy: Any = TOY, **changes: Any) -> Any:
    program = program_of(op, *args)
    if changes:
        program = replace(program, training=replace(program.training, **changes))
    runs = Runs((), platform_of(toy), is_eager=execution == "eager")
    return program_time(program, toy, execution, runs)


def test_a_call_that_waits_for_the_cpu() -> None:
    """Half a second of the CPU, then half a second of the GPU."""
    found = timed("aten.relu.default", t(*SIZE))
    assert found.forward.seconds == pytest.approx(1)
    (row,) = found.rows
    assert (row.time.seconds, row.time.kernel) == (pytest.approx(1), "elementwise")
    assert row.backward_time is None
    assert found.forward.energy_joules == pytest.approx(100)
    assert found.forward.bandwidth_utilization == pytest.approx(0.5)
    assert found.forward.matrix_utilization == 0
    assert found.step is None
    assert not found.forward.is_lower_bound


def test_a_graph_has_a_gap_after_each_kernel() -> None:
    found = timed("aten.relu.default", t(*SIZE), execution="graph")
    assert found.forward.seconds == pytest.approx(0.5 + 0.125)
    without = timed("aten.relu.default", t(*SIZE), execution="graph", toy=structs.replace(TOY, launch=None))
    assert without.forward.seconds == pytest.approx(0.5 + 0.9e-6)


def test_intervals_are_those_of_a_fast_and_a_slow_cpu() -> None:
    """Of 1 s half is the CPU's: 0.75 s beside one twice as fast, 2 s beside one three times as slow."""
    found = timed("aten.relu.default", t(*SIZE)).forward
    assert found.low < 0.75
    assert found.high > 2


def test_micro_steps_are_counted_and_the_optimizer_runs_once() -> None:
    one = timed("aten.relu.default", g(*SIZE), execution="graph")
    three = timed("aten.relu.default", g(*SIZE), execution="graph", accumulate=3)
    assert one.step.seconds == pytest.approx(one.forward.seconds + one.backward.seconds)
    assert three.step.seconds == pytest.approx(3 * one.step.seconds)
    assert three.forward.seconds == one.forward.seconds
    assert three.step.high == pytest.approx(3 * one.step.high)
    assert three.step.bandwidth_utilization == pytest.approx(one.step.bandwidth_utilization)


def test_gradients_of_a_call() -> None:
    """The gradient of a relu reads two tensors and writes one."""
    found = timed("aten.relu.default", g(*SIZE), execution="graph", loss="given")
    (row,) = found.rows
    assert row.backward_time.seconds == pytest.approx(0.75 + 0.125)
    assert found.backward.seconds == pytest.approx(0.75 + 0.125)
    eager = timed("aten.relu.default", g(*SIZE), loss="given")
    assert eager.backward.seconds == pytest.approx(0.75)  # launched while the forward runs


def test_a_loss_is_a_sum_and_its_gradient_one_number() -> None:
    """The sum reads the result; what is left of both takes no time on this device but for its launches."""
    toy = structs.replace(TOY, rates={**TOY.rates, "reduction": {**TRAFFIC, "memory": 1.0}})
    given = timed("aten.relu.default", g(*SIZE), execution="graph", toy=toy, loss="given")
    summed = timed("aten.relu.default", g(*SIZE), execution="graph", toy=toy, loss="sum")
    assert summed.backward.seconds - given.backward.seconds == pytest.approx(0.25 + 2 * 0.125, rel=1e-3)


def test_calls_of_unknown_cost_make_a_lower_bound() -> None:
    found = timed("mine.unknown.default", t(4, 64))
    assert found.forward.is_lower_bound
    assert found.forward.seconds == 0


def test_errors_on_kernels_held_out_are_those_of_the_worst_variant() -> None:
    fields: dict[str, Any] = dict.fromkeys(("software", "data", "source"), "")
    fields |= {"points": ((1.0, 1.0),), "columns": ("bytes", "ratio")}
    known = tuple(
        Calibration(family, variant, "float32", error=error, **fields)
        for family, variant, error in (
            ("matmul", "tn", (0.1, 0.2, 0.3)),
            ("matmul", "nn", (0.2, 0.2, 0.3)),
            ("matmul", "nt", (0.15, 0.9, 0.9)),
            ("softmax", "", None),
        )
    )
    found = timed("aten.relu.default", t(*SIZE), toy=structs.replace(TOY, calibration=known))
    assert dict(found.profile_errors) == {"matmul": 0.2}


@pytest.mark.parametrize(
    ("before", "now", "entered"),
    [
        ("", "a,mine.A;b,torch.nn.Linear", ["mine", "torch"]),
        ("a,mine.A;b,torch.nn.Linear", "a,mine.A;c,timm.C", ["timm"]),
        ("a,mine.A;b,torch.nn.Linear", "a,mine.A", []),
        ("a,mine.A", "z,mine.A;b,torch.B", ["mine", "torch"]),
        ("a,mine.A;b,x.B;c,x.C", "a,mine.A;d,y.B;c,x.C", ["y", "x"]),
    ],
)
def test_modules_that_a_call_enters(before: str, now: str, entered: list[str]) -> None:
    assert _entered(before, now) == entered


def test_times_of_two_calls_are_added() -> None:
    """The bound is that of the longer one; each kernel is named once."""
    one = CallTime(1.0, 0.5, 2.0, "memory", "copy, matmul", 0.25)
    other = CallTime(3.0, 1.5, 5.0, "matrix", "matmul, scan", 0.5)
    expected = CallTime(4.0, 2.0, 7.0, "matrix", "copy, matmul, scan", 0.75)
    assert _sum(one, other) == expected
    assert _sum(other, one) == expected._replace(kernel="matmul, scan, copy")
    early, late = one._replace(ahead=0.125), other._replace(ahead=0.5)
    assert _sum(early, late) == expected._replace(ahead=0.625)
    nothing = CallTime(0.0, 0.0, 0.0, "host")
    assert _sum(nothing, one) == _sum(one, nothing) == one
