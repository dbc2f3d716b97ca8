"""A step recorded with open axes, at other sizes of these: the same as a recording there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from graphflops import analyze, record
from graphflops.errors import GraphflopsError
from tests.capturing import steps

if TYPE_CHECKING:
    from pathlib import Path

    from graphflops.report import Report

WIDTH, HIDDEN, TOKENS, BYTES = 128, 512, 16, 4


def split_and_sharded(mesh: Any) -> tuple[Any, ...]:
    """A feed-forward split along tp, its input gathered and its result scattered, its weights sharded along dp."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN, bias=False), torch.nn.Linear(HIDDEN, WIDTH, bias=False)
    )
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel(output_layouts=Shard(1))}
    fully_shard(parallelize_module(model, mesh["tp"], plan), mesh=mesh["dp"])
    x = torch.zeros(TOKENS, WIDTH)
    return model, x, torch.optim.AdamW(model.parameters()), torch.sum


def compared(report: Report) -> tuple[Any, ...]:
    """All of a report but the names of values and of process groups, which are numbers that torch counts up."""
    (memory,) = report.memory_use
    held = [entry._replace(name="") for entry in memory.timeline.held]
    sizes = (memory.requested_peak, memory.allocated_peak, memory.weights, memory.gradients, memory.optimizer)
    assert report.mesh is not None
    groups = (report.mesh.axes, [*report.mesh.groups.values()])
    return report.rows, report.totals, report.exchanges, groups, report.parameters, sizes, held


@pytest.mark.parametrize(
    ("factory", "recorded", "wanted"),
    [
        (steps.fully_sharded, {"dp": 4}, {"dp": 16}),
        (steps.mixed_precision, {"dp": 8}, {"dp": 16}),
        (steps.data_parallel, {"dp": 2}, {"dp": 6}),
        (steps.expert_parallel, {"ep": 4}, {"ep": 16}),
        (split_and_sharded, {"dp": 8, "tp": 4}, {"dp": 32, "tp": 2}),
        (split_and_sharded, {"dp": 8, "tp": 4}, {"tp": 8}),
    ],
)
def test_it_equals_a_recording_there(
    tmp_path: Path, factory: Any, recorded: dict[str, int], wanted: dict[str, int]
) -> None:
    file = tmp_path / "step.recorded"
    record(factory, mesh=recorded, open_axes=[*recorded], file=file)
    there = analyze(record(factory, mesh={**recorded, **wanted}))
    assert compared(analyze(file, mesh=wanted)) == compared(there)


def clipped(mesh: Any) -> Any:
    """A step whose gradients' norm, of partial norms over both axes, is held down."""
    model = steps.shard(steps.split(steps.Decoder(), mesh["tp"]), mesh["dp"])
    ids, optimizer = (
        torch.zeros(steps.BATCH, steps.LENGTH, dtype=torch.long),
        torch.optim.AdamW(model.parameters()),
    )

    def step() -> None:
        steps.loss(model(ids)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("factory", "recorded", "wanted"),
    [
        (steps.tensor_parallel, {"tp": 8}, {"tp": 4}),
        (steps.sharded_and_split, {"dp": 8, "tp": 4}, {"dp": 64}),
        (clipped, {"dp": 4, "tp": 4}, {"dp": 8, "tp": 8}),
    ],
)
def test_a_wider_decoder_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factory: Any,
    recorded: dict[str, int],
    wanted: dict[str, int],
) -> None:
    sizes = {"LAYERS": 1, "WIDTH": 512, "HEADS": 16, "HIDDEN": 1024, "VOCABULARY": 1024}
    for name, size in sizes.items():
        monkeypatch.setattr(steps, name, size)
    test_it_equals_a_recording_there(tmp_path, factory, recorded, wanted)


def test_sums_over_more_devices(tmp_path: Path) -> None:
    file = tmp_path / "step.recorded"
    record(split_and_sharded, mesh={"dp": 8, "tp": 4}, open_axes=["dp", "tp"], file=file)
    report = analyze(file, mesh={"dp": 16, "tp": 8})
    assert report.totals.cost.matrix_flops == 5 * 2 * TOKENS * WIDTH * HIDDEN // 8  # x wants no gradient
    assert report.parameters == 2 * WIDTH * HIDDEN // (16 * 8)
    assert report.mesh is not None
    assert {group.axis: group.ranks for group in report.mesh.groups.values()} == {
        "dp": tuple(range(0, 128, 8)),
        "tp": tuple(range(8)),
        "dp+tp": tuple(range(128)),
    }
    gathers = {one.axis: int(one.bytes) for one in report.exchanges if "scatter_base" in one.op}
    assert gathers == {"dp": 15 * 2 * WIDTH * HIDDEN // 8 * BYTES // 16}


@pytest.fixture(scope="module")
def sharded_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sharded") / "step.recorded"
    record(steps.fully_sharded, mesh={"dp": 4}, open_axes=["dp"], file=file)
    return file


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"dp": 3}, r"before.weight does not divide: 8 at dp=4 would be 10.6667 at dp=3"),
        ({"dp": 1}, "other calls run there"),
        ({"tp": 2}, "the mesh has dp"),
    ],
)
def test_a_mesh_that_is_refused(sharded_step: Path, wanted: dict[str, int], said: str) -> None:
    with pytest.raises(GraphflopsError, match=said):
        analyze(sharded_step, mesh=wanted)


def test_an_axis_that_was_not_left_open(tmp_path: Path) -> None:
    file = tmp_path / "step.recorded"
    graph = record(steps.expert_parallel, mesh={"ep": 4}, file=file)
    assert analyze(file, mesh={"ep": 4}).totals == analyze(graph).totals
    with pytest.raises(GraphflopsError, match="recorded at ep=4 alone: record it with --open-axis ep"):
        analyze(file, mesh={"ep": 8})
    with pytest.raises(GraphflopsError, match="give its path"):
        analyze(graph, mesh={"ep": 8})


def test_calls_that_depend_on_the_mesh() -> None:
    with pytest.raises(GraphflopsError, match="its calls depend on the mesh"):
        record(steps.context_parallel, mesh={"cp": 2}, open_axes=["cp"])


def test_from_the_command_line(tmp_path: Path) -> None:
    import json

    from click.testing import CliRunner

    from graphflops import cli

    file = str(tmp_path / "step.recorded")
    given = ["capture", "tests.capturing.steps:expert_parallel", "--step", "--mesh", "ep=4"]
    done = CliRunner().invoke(cli.main, [*given, "--open-axis", "ep", "--output", file])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli.main, ["analyze", file, "--mesh", "ep=16", "--format", "json"])
    sent = json.loads(done.output)["totals"]["link_bytes"]
    assert sent == 2 * 2 * 15 * steps.TOKENS * steps.WIDTH * BYTES // 16
