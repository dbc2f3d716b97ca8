"""Times of programs with sizes that only data tell, and with sizes that no device holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphflops
from graphflops.time.program_time import interval
from tests.exporters.build import call, meta, program, save, tensor

torch = pytest.importorskip("torch")


class Chosen(torch.nn.Module):
    """A product of the rows that a mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(64, 64, device="meta"))

    def forward(self, x: Any) -> Any:
        return (x @ self.weight)[x[:, 0] > 0].relu().sum()


class Vast(torch.nn.Module):
    """A table of 2 ** 48 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.empty(2**40, 2**8, device="meta"))

    def forward(self, ids: Any) -> Any:
        return torch.nn.functional.embedding(ids, self.table)


@pytest.mark.parametrize("training", [False, True])
def test_a_size_that_data_tell_makes_a_compiled_time_a_lower_bound(training: bool) -> None:
    program = graphflops.capture(Chosen(), (torch.zeros(128, 64, device="meta"),))
    given: Any = {"device": "h200", "execution": "compiled", "training": training, "assume": False}
    time = graphflops.analyze(program, **given).totals.time
    assert time is not None
    assert time.is_lower_bound
    assert time.seconds > 0


def test_an_optimizer_over_more_than_any_device_holds_is_a_lower_bound() -> None:
    program = graphflops.capture(Vast(), (torch.zeros(16, dtype=torch.long, device="meta"),))
    report = graphflops.analyze(program, device="h200", training=True)
    assert report.step_time is not None
    assert report.step_time.is_lower_bound


@pytest.mark.parametrize("execution", ["eager", "graph", "compiled"])
@pytest.mark.parametrize("training", [False, True])
def test_tensors_that_no_device_holds_are_not_timed(training: bool, execution: Any, tmp_path: Path) -> None:
    """A product of square matrices, then a softmax; of weight, operand and two results 4 x 4 x 2 ** 124 bytes."""
    side = 2**62
    nodes = [
        call("torch.ops.aten.mm.default", tensor("x"), tensor("w"), out="h"),
        call("torch.ops.aten.softmax.int", tensor("h"), {"as_int": -1}),
    ]
    values = {name: meta(side, side, requires_grad=name == "w") for name in "xwhy"}
    weight = {"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}}
    inputs = [weight, {"user_input": {"arg": tensor("x")}}]
    path = save(tmp_path / "m.pt2", program(nodes, values, inputs, [{"user_output": {"arg": tensor("y")}}]))
    report = graphflops.analyze(path, device="h200", training=training, execution=execution)
    assert report.totals.time is not None
    assert report.totals.time.is_lower_bound
    needed = report.memory_use[0].requested_peak
    assert isinstance(needed, int)
    assert needed >= 3 * 4 * 2**124


def test_a_program_that_takes_no_time_beside_a_fast_cpu_has_an_interval() -> None:
    low, high = interval([], 1.0, 0.0, 2.0)
    assert 0 < low < 1.0 < high
