"""Recorded steps that two processes run: what they compute, send, and compare."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import distributed as dist, nn

import graphflops
from graphflops.cli import main
from graphflops.errors import ModelError
from graphflops.exporters import load
from graphflops.exporters.meshes import ranks_along
from graphflops.exporters.recorded import graph_of, read_step
from graphflops.graph import Mesh, Node, Origin
from graphflops.runtime.isolated import refuse
from graphflops.runtime.rank import Replay, groups_of
from tests.children import START

pytestmark = pytest.mark.usefixtures("copied_children")
WIDTH, HIDDEN, BATCH, RATE = 16, 32, 8, 0.5
WEIGHTS = 2 * WIDTH * HIDDEN
SAMPLES = Path(__file__).parents[2] / "samples"
NONE: dict[str, Any] = dict.fromkeys(("dims", "names", "inputs", "random_weights"))


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN, bias=False), nn.Tanh(), nn.Linear(HIDDEN, WIDTH, bias=False)
    )


def loss(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def stepped(module: nn.Module, rows: int) -> tuple[Any, ...]:
    return module, torch.zeros(rows, WIDTH), torch.optim.SGD(module.parameters(), lr=RATE), loss


def replicated(mesh: Any) -> tuple[Any, ...]:
    return stepped(
        nn.parallel.DistributedDataParallel(model(), process_group=mesh.get_group("dp")), BATCH // 2
    )


def sharded(mesh: Any) -> tuple[Any, ...]:
    from torch.distributed.fsdp import fully_shard

    made = model()
    for layer in (made[0], made[2]):
        fully_shard(layer, mesh=mesh)
    return stepped(fully_shard(made, mesh=mesh), BATCH // 2)


def split(mesh: Any) -> tuple[Any, ...]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    made = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return stepped(made, BATCH)


STEPS: dict[str, Any] = {"dp": replicated, "fsdp": sharded, "tp": split}
AXES = {"dp": "dp", "fsdp": "dp", "tp": "tp"}


def parts(kind: str, tensors: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """What a rank holds of whole tensors."""
    found = dict(tensors)
    if kind != "tp":
        found["inputs[0]"] = tensors["inputs[0]"].chunk(2)[rank]
    axes = {"dp": {}, "fsdp": {"0.weight": 0, "2.weight": 0}, "tp": {"0.weight": 0, "2.weight": 1}}[kind]
    return found | {name: tensors[name].chunk(2, axis)[rank] for name, axis in axes.items()}


def replayed(rank: int, folder: str, port: int) -> None:
    """One of two processes: the parameters after each step."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {}
    for kind in STEPS:
        step, _ = read_step(f"{folder}/{kind}.recorded")
        graph = graph_of(step, Origin("", "recorded", step.producer))
        assert graph.step is not None
        replay = Replay(step, graph, torch.device("cpu"), groups_of(graph.step.mesh, rank), 0)
        given = parts(kind, torch.load(f"{folder}/given"), rank)
        values = replay.inputs({f"module.{name}": one for name, one in given.items()} | given)
        replay.play(values)
        found[kind] = {
            entry.target.removeprefix("module."): values[f"v{entry.value}"]
            for entry in step.inputs
            if entry.role == "parameter"
        }
    torch.save(found, f"{folder}/{rank}")
    dist.destroy_process_group()


def test_two_processes_compute_what_one_does(tmp_path: Path, port: int) -> None:
    for kind, factory in STEPS.items():
        graphflops.record(factory, mesh={AXES[kind]: 2}, file=tmp_path / f"{kind}.recorded")
    torch.manual_seed(0)
    whole, x = model(), torch.randn(BATCH, WIDTH)
    given = {name: one.detach().clone() for name, one in whole.named_parameters()} | {"inputs[0]": x}
    torch.save(given, tmp_path / "given")
    loss(whole(x)).backward()
    torch.optim.SGD(whole.parameters(), lr=RATE).step()
    updated = {name: one.detach() for name, one in whole.named_parameters()}
    torch.multiprocessing.start_processes(replayed, (str(tmp_path), port), 2, start_method=START)
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        for kind in STEPS:
            wanted = parts(kind, updated | {"inputs[0]": x}, rank)
            assert found[kind].keys() == updated.keys()
            for name, tensor in found[kind].items():
                torch.testing.assert_close(tensor, wanted[name])
                assert not torch.equal(tensor, parts(kind, given, rank)[name])


def test_every_call_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "step.recorded"
    graphflops.record(sharded, mesh={"dp": 2}, file=file)
    found = graphflops.validate(str(file), nproc=2, repeats=1)
    assert found.holds
    assert [one.rank for one in found.ranks] == [0, 1]
    assert all(one.seconds for one in found.ranks)
    checks = [check for node in found.nodes for check in node.checks]
    sent = [int(check.measured) for check in checks if check.what == "sent"]
    # Both weights are gathered for the forward and for the backward, their gradients scattered: half of 4 bytes each.
    assert sum(sent) == 3 * WEIGHTS * 4 // 2
    assert (
        sum(int(check.measured) for check in checks if check.what == "flops")
        == 5 * 2 * BATCH // 2 * WEIGHTS // 2
    )


def test_counters_stay_on_the_host_and_memory_is_taken_on_the_device(tmp_path: Path) -> None:
    def factory() -> tuple[Any, ...]:
        made = model()
        return made, torch.zeros(BATCH, WIDTH), torch.optim.AdamW(made.parameters(), foreach=True), loss

    graphflops.record(factory, file=tmp_path / "step.recorded")
    step, _ = read_step(tmp_path / "step.recorded")
    graph = graph_of(step, Origin("", "recorded", step.producer))
    replay = Replay(step, graph, torch.device("meta"), {}, 0)
    values = replay.inputs()
    (added,) = (
        node
        for node in graph.nodes
        if node.op == "aten._foreach_add_.Tensor" and "alpha" in dict(node.kwargs)
    )
    counters, one = added.args[:2]
    memory = Node("memory", "aten.empty.memory_format", ([2, 3],), outputs=("memory",))
    assert {values[each.name].device.type for each in (*counters, one)} == {"cpu"}
    assert {values[f"v{entry.value}"].device.type for entry in step.inputs if entry.role == "parameter"} == {
        "meta"
    }
    assert replay.function(memory.operator)([2, 3])[0].device.type == "meta"


def test_memory_is_there_as_long_as_the_file_says(tmp_path: Path) -> None:
    graphflops.record(lambda: stepped(model(), BATCH), file=tmp_path / "step.recorded")
    step, _ = read_step(tmp_path / "step.recorded")
    graph = graph_of(step, Origin("", "recorded", step.producer))
    replay, held = Replay(step, graph, torch.device("cpu"), {}, 0), []
    values = replay.inputs()

    def after(_: Any, results: tuple[Any, ...]) -> None:
        tensors = (one for one in (*values.values(), *results) if isinstance(one, torch.Tensor))
        held.append(
            sum(
                {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values()
            )
        )

    replay.after = after
    replay.play(values)
    spans = [(one.first, one.last, one.bytes) for one in step.storages]
    assert held == [
        sum(size for first, last, size in spans if first <= place <= last)
        for place in range(len(graph.nodes))
    ]
    assert max(held) > 2 * WEIGHTS * 4


def test_wrong_numbers_of_processes(tmp_path: Path) -> None:
    file = tmp_path / "step.recorded"
    graphflops.record(replicated, mesh={"dp": 2}, file=file)
    for given, line in (
        (["--nproc", "4"], "a step of 2 devices (dp=2): give --nproc 2"),
        ([], "a step of 2 devices (dp=2): give --nproc 2"),
        (["--nproc", "2", "--random-weights"], "leave --dim, --inputs and such out"),
        (["--nproc", "2", "--device", "cuda"], "--device cuda: "),
        (["--counters", "hardware"], "--counters hardware runs programs, not recorded steps"),
    ):
        result = CliRunner().invoke(main, ["validate", str(file), *given])
        assert (result.exit_code, result.stdout) == (1, "")
        assert line in result.stderr
        assert result.stderr.count("\n") == 1


def test_processes_are_of_recorded_steps() -> None:
    with pytest.raises(ModelError, match="--nproc is of the file of a recorded step"):
        graphflops.validate(SAMPLES / "all_heads.pt2", nproc=2)


def sends(mesh: Any) -> Any:
    module = nn.Linear(4, 4)

    def step() -> None:
        dist.send(module(torch.zeros(2, 4)), 1, mesh.get_group("pp"))

    return step


def unequal(mesh: Any) -> Any:
    module = nn.Linear(4, 4)

    def step() -> None:
        y = module(torch.zeros(4, 4)).detach()
        dist.all_to_all_single(torch.empty(4, 4), y, [2, 2], [1, 3], group=mesh.get_group("pp"))

    return step


@pytest.mark.parametrize(
    ("factory", "line"),
    [(sends, "ranks of a pipeline: other ranks have"), (unequal, "unequal sizes")],
)
def test_programs_that_only_one_rank_has(factory: Any, line: str, tmp_path: Path) -> None:
    graphflops.record(factory, mesh={"pp": 2}, file=tmp_path / "step.recorded")
    with pytest.raises(ModelError, match=line):
        refuse(load(tmp_path / "step.recorded"), 2, NONE)


def test_groups_along_axes() -> None:
    mesh = Mesh({"dp": 2, "cp": 3, "tp": 4}, {})
    assert ranks_along(mesh.axes, "tp", 6) == [4, 5, 6, 7]
    assert ranks_along(mesh.axes, "cp", 6) == [2, 6, 10]
    assert ranks_along(mesh.axes, "dp+tp", 0) == [0, 1, 2, 3, 12, 13, 14, 15]
    groups = {tuple(ranks_along(mesh.axes, "dp", rank)) for rank in range(24)}
    assert sorted(chain(*groups)) == [*range(24)]


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        chosen: int = one.getsockname()[1]
    return chosen
