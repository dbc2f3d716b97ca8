"""How long the collectives of a recorded step run by axis, operator and module, and how long nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from graphflops import analyze, record
from graphflops.render import render
from graphflops.render.text import operator_name
from graphflops.report import Report
from tests.capturing import steps


@pytest.mark.parametrize(
    ("factory", "mesh"), [(steps.sharded_and_split, {"dp": 2, "tp": 2}), (steps.pipelined, {"pp": 2})]
)
def test_they_add_up_to_the_communication_of_the_step(factory: Any, mesh: dict[str, int]) -> None:
    report = analyze(steps.recorded(factory, mesh), device="h100")
    time = report.totals.time
    assert time is not None
    assert sum(one.seconds for one in report.exchanges) == pytest.approx(time.communication)
    assert 0 < sum(one.exposed for one in report.exchanges) == pytest.approx(time.exposed)
    assert all(0 <= one.exposed <= one.seconds * (1 + 1e-9) for one in report.exchanges)
    assert Report.from_json(report.to_json()).exchanges == report.exchanges


def test_what_runs_beside_products_is_not_exposed() -> None:
    """A sum along each axis: the first beside products, once the CPU has launched one; the second is read at once."""

    def factory(mesh: Any) -> Any:
        x, y = (torch.zeros(4096, 4096, dtype=torch.bfloat16) for _ in range(2))

        def step() -> torch.Tensor:
            dist.all_reduce(y, group=mesh.get_group("dp"))
            z = x
            for _ in range(8):
                z = x @ z
            z = z + y
            dist.all_reduce(z, group=mesh.get_group("tp"))
            return z * 2

        return step

    report = analyze(record(factory, mesh={"dp": 2, "tp": 2}), device="h100")
    hidden, waited = report.exchanges
    assert (hidden.axis, waited.axis) == ("dp", "tp")
    assert hidden.exposed < 0.5 * hidden.seconds
    events = json.loads(str(render(report, "chrome-trace")))["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    sums = [tracks[event["tid"]] for event in events if event["name"] == operator_name(hidden.op)]
    assert [name for name in sums if name != "calls"] == ["collectives dp", "collectives tp"]
    assert waited.exposed == pytest.approx(waited.seconds)
    text = str(render(report, "table", width=160))
    (line,) = [line for line in text.splitlines() if "collectives by axis" in line]
    assert line.count("exposed") == 2
    assert line.split("; ")[1].startswith("tp ")
    (heads,) = [line for line in text.splitlines() if line.split()[:2] == ["axis", "collective"]]
    assert heads.split()[-3:] == ["sent", "time", "exposed"]


def test_without_a_device_there_are_no_times() -> None:
    report = analyze(steps.recorded(steps.fully_sharded, {"dp": 2}))
    assert {(one.seconds, one.exposed) for one in report.exchanges} == {(0, 0)}
    text = str(render(report, "table", width=160))
    (heads,) = [line for line in text.splitlines() if line.split()[:2] == ["axis", "collective"]]
    assert heads.split()[-1] == "sent"
