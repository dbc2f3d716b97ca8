"""Traces of planned layouts: all ranks of a pipeline for Perfetto, each rank of the mesh for simulators."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import analyze, plan
from graphflops.cli import main
from graphflops.errors import ModelError, OptionError
from graphflops.planning.layouts import UPDATE_FLOPS
from graphflops.planning.plan import Plan
from graphflops.render import render
from graphflops.training import Training
from tests.planning.test_plan import DECODER, EACH, LAYERS
from tests.render.chakra_messages import COLLECTIVES, NODE_TYPES, attributes, read

SECOND = 10**6  # microseconds
HEADS = 8
GROUPS = "METADATA_NODE"


def planned(mesh: dict[str, int], **options: Any) -> Plan:
    return plan(DECODER, devices=8, device="h100", batch_tokens=4096, mesh=mesh, **options)


def ranks_of(found: Plan) -> list[list[Any]]:
    """The nodes of each rank."""
    told = [read(render(found, "chakra", rank=rank)) for rank in range(found.devices)]  # type: ignore[arg-type]
    metas = [attributes(meta) for meta, _ in told]
    assert [meta.get("rank", 0) for meta in metas] == [*range(found.devices)]
    assert {meta["world_size"] for meta in metas} == {found.devices}
    assert not any("is_unknown" in attributes(node) for _, nodes in told for node in nodes)
    return [nodes for _, nodes in told]


def kind_of(node: Any) -> str:
    return NODE_TYPES[node.type]


def replayed(ranks: list[list[Any]]) -> int:
    """When the last node of all ranks ends: each runs once what it depends on has ended, a receive once its sender sends."""
    sent: dict[Any, list[int]] = {}
    ends: list[dict[int, int]] = [{} for _ in ranks]
    while any(len(done) < len(nodes) for done, nodes in zip(ends, ranks, strict=True)):
        before = sum(map(len, ends))
        for done, nodes in zip(ends, ranks, strict=True):
            for node in nodes[len(done) :]:
                told = attributes(node)
                assert {*node.data_deps, *node.ctrl_deps} <= done.keys()
                start = max((done[each] for each in (*node.data_deps, *node.ctrl_deps)), default=0)
                key = [told.get(name) for name in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
                if kind_of(node) == "COMM_SEND_NODE":
                    sent.setdefault(tuple(key), []).append(start)
                if kind_of(node) == "COMM_RECV_NODE":
                    if not sent.get(tuple(key)):
                        break
                    start = sent[tuple(key)].pop(0)
                assert kind_of(node) == GROUPS or abs(start - node.start_time_micros) <= 2
                done[node.id] = start + node.duration_micros
        assert sum(map(len, ends)) > before, "ranks that wait for one another"
    assert not any(sent.values())
    return max(max(done.values()) for done in ends)


def groups_of(nodes: list[Any]) -> dict[str, tuple[str, list[int]]]:
    """Axes and ranks of the groups of a rank."""
    told = [json.loads(node.inputs.values[2:-2]) for node in nodes if kind_of(node) == GROUPS]
    return {one["pg_name"]: (one["pg_desc"], one["ranks"]) for each in told for one in each}


@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ({"dp": 8}, {}),
        ({"dp": 8}, {"sharding": ("full",)}),
        ({"pp": 4, "tp": 2}, {}),
        ({"pp": 2, "tp": 2}, {"sharding": ("optimizer",), "recompute": ("full",)}),
        ({"pp": 4, "tp": 1}, {"sharding": ("full",)}),
    ],
)
def test_a_replay_of_all_ranks_takes_as_long_as_the_step(mesh: Any, options: Any) -> None:
    found = planned(mesh, **options)
    ranks = ranks_of(found)
    assert replayed(ranks) == pytest.approx(found.steps[0].seconds * SECOND, abs=10)
    for rank, nodes in enumerate(ranks):
        groups = groups_of(nodes)
        for node in nodes:
            told = attributes(node)
            if kind_of(node) == "COMM_COLL_NODE":
                members = groups.get(told["pg_name"], ("", [*range(8)]))[1]
                assert rank in members
                same = [one for one in ranks[members[0]] if one.id == node.id]
                assert [attributes(one) for one in same] == [told]


def test_each_axis_has_its_groups() -> None:
    """Outermost first: stages of four ranks, in them two copies, each of two ranks that share the products."""
    ranks = ranks_of(planned({"pp": 2, "tp": 2}, sharding=("full",)))
    told = [dict(groups_of(nodes).values()) for nodes in ranks]
    assert [one["tp"] for one in told] == [[2 * (rank // 2), 2 * (rank // 2) + 1] for rank in range(8)]
    assert [one["dp"] for one in told] == [
        [4 * (rank // 4) + rank % 2, 4 * (rank // 4) + rank % 2 + 2] for rank in range(8)
    ]
    names = {(name, *members) for nodes in ranks for name, (_, members) in groups_of(nodes).items()}
    assert len({name for name, *_ in names}) == len(names) == 4 + 4
    sent = {
        (told["comm_src"], told["comm_dst"])
        for nodes in ranks
        for told in map(attributes, nodes)
        if "comm_src" in told
    }
    assert sent == {(rank, (rank + 4) % 8) for rank in range(8)}


def test_what_a_sharded_layer_sends() -> None:
    """4 layers of 34,944 parameters: bfloat16 is gathered twice, float32 gradients are scattered, in each micro-batch."""
    found = planned({"dp": 8}, sharding=("full",), recompute=("none",))
    (step,) = found.steps
    nodes = ranks_of(found)[3]
    told = [attributes(node) for node in nodes if kind_of(node) == "COMM_COLL_NODE"]
    layer = next(part for part, times in step.costs.of(0, step.costs.counts) if times == 4).parameters
    sizes = [(COLLECTIVES[one["comm_type"]], one["comm_size"]) for one in told]
    assert sizes.count(("ALL_GATHER", 2 * layer // 8)) == 2 * 4 * step.costs.batches
    assert sizes.count(("REDUCE_SCATTER", 4 * layer)) == 4 * step.costs.batches
    assert {one["pg_name"] for one in told} == {"0"}
    assert not groups_of(nodes)


def worked(found: Plan) -> tuple[int, int]:
    """FLOPs of all ranks, and bytes that their kernels read and write."""
    kernels = [
        attributes(node) for nodes in ranks_of(found) for node in nodes if kind_of(node) == "COMP_NODE"
    ]
    return sum(one["num_ops"] for one in kernels), sum(one["tensor_size"] for one in kernels)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
@pytest.mark.parametrize("mesh", [{"dp": 8}, {"dp": 4, "pp": 2}])
def test_kernels_have_the_work_of_the_plan(mesh: dict[str, int], schedule: str) -> None:
    """Products of the plan; an attention finds its scores again for gradients; 13 FLOPs and 30 bytes update an element."""
    found = planned(mesh, recompute=("none",), sharding=("optimizer",))
    costs = found.steps[0].costs
    if "pp" in mesh:
        layout = replace(costs.layout, schedule=schedule, virtual=2 if schedule == "interleaved" else 1)  # type: ignore[arg-type]
        found = replace(found, steps=(replace(costs, layout=layout).step(runs=True),))
    training = Training(precision="bf16", loss="cross-entropy")
    whole = analyze(DECODER, training=training, dims={"ids[0]": costs.layout.micro})
    assert whole.backward is not None
    batches = found.samples // costs.layout.micro
    cost = whole.totals.cost + whole.backward.cost
    listed = (cost.matrix_flops, cost.vector_flops, cost.read_bytes + cost.written_bytes)
    products, others, moved = (batches * (whole.value(one) or 0) for one in listed)
    again = 4 * HEADS * found.length**2 * EACH // 2 * LAYERS
    assert products == found.flops + again * found.samples
    flops, nbytes = worked(found)
    assert flops == found.flops + again * found.samples + others + 13 * found.parameters
    assert nbytes == pytest.approx(moved + 30 * found.parameters, abs=found.devices * batches)
    optimizer = analyze(DECODER, training=Training(optimizer="adamw")).optimizer
    assert optimizer is not None
    assert optimizer.cost.vector_flops == UPDATE_FLOPS * found.parameters


def test_what_runs_again_has_its_work() -> None:
    less, more = (planned({"dp": 8}, recompute=(name,), sharding=("optimizer",)) for name in ("none", "full"))
    costs = more.steps[0].costs
    again = costs.recompute.done.flops * LAYERS * more.samples / costs.layout.micro
    assert worked(more)[0] - worked(less)[0] == again > 0


def test_a_ring_sends_to_the_next_and_receives_from_the_one_before() -> None:
    found = plan(
        DECODER, devices=4, device="h100", batch_tokens=4 * 8192, dims={"ids[1]": 8192}, mesh={"cp": 4}
    )
    ranks = ranks_of(found)
    assert replayed(ranks) == pytest.approx(found.steps[0].seconds * SECOND, abs=10)
    for rank, nodes in enumerate(ranks):
        told = [attributes(node) for node in nodes if kind_of(node) == "COMM_SEND_NODE"]
        assert {(one["comm_src"], one["comm_dst"]) for one in told} == {(rank, (rank + 1) % 4)}


def test_a_picture_of_all_stages() -> None:
    found = planned({"pp": 4, "tp": 2})
    (step,) = found.steps
    whole = json.loads(render(found, "chrome-trace"))
    events = [one for one in whole["traceEvents"] if one["ph"] == "X"]
    assert max(one["ts"] + one["dur"] for one in events) == pytest.approx(step.seconds * SECOND)
    assert whole["otherData"]["exposed"] == step.exposed
    names = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in whole["traceEvents"]
        if one["name"] == "thread_name"
    }
    assert {pid for pid, _ in names} == {1, 2, 3, 4}
    passed = {f"{what} {way}" for what in ("activations", "gradients") for way in ("sent", "received")}
    assert {*names.values()} == {"micro-batches", "kernels", "collectives, tp", *passed}
    for track in names:
        own = sorted((one["ts"], one["dur"]) for one in events if (one["pid"], one["tid"]) == track)
        assert all(start + lasts <= after + 1e-3 for (start, lasts), (after, _) in pairwise(own))
    turns = [one for one in events if names[one["pid"], one["tid"]] == "micro-batches"]
    works = 3 if step.layout.schedule == "zero-bubble" else 2
    assert len(turns) == 4 * step.layout.virtual * step.costs.batches * works
    for turn in turns:
        inside = [
            one
            for one in events
            if one["pid"] == turn["pid"]
            and names[one["pid"], one["tid"]] == "kernels"
            and turn["ts"] - 1e-6 <= one["ts"] < turn["ts"] + turn["dur"] - 1e-6
        ]
        assert inside
        assert max(one["ts"] + one["dur"] for one in inside) <= turn["ts"] + turn["dur"] + 1e-3


def test_wrong_requests_are_one_line(tmp_path: Path) -> None:
    def run(*more: object) -> str:
        given = ["plan", DECODER, "--devices", 8, "--device", "h100", *more]
        done = CliRunner().invoke(main, [*map(str, given)])
        assert done.exit_code in (1, 2)
        assert not [*tmp_path.iterdir()]
        return done.output

    path = tmp_path / "step.et"
    assert "--rank 8: the mesh has the ranks 0 to 7" in run("--rank", 8, "--output", path)
    assert "--rank: not an option of --format html" in run("--rank", 0, "--output", tmp_path / "step.html")
    assert "--mesh tp=3: there is no such mesh of 8 devices" in run("--mesh", "tp=3")
    assert "--mesh sp: the axes are dp, tp, pp, ep, cp" in run("--mesh", "sp=2")
    assert "give the devices by axis" in run("--mesh", "tp")
    assert "--mesh is of a training step" in run("--mesh", "tp=2", "--serve")
    none = replace(planned({"dp": 8}), steps=())
    with pytest.raises(OptionError, match="a trace is of a layout that fits: none does on 8 devices"):
        render(none, "chrome-trace")
    with pytest.raises(ModelError, match="no such mesh"):
        planned({"dp": 3})


def test_the_suffix_chooses_the_format(tmp_path: Path) -> None:
    path = tmp_path / "step.3.et"
    given = ["plan", DECODER, "--devices", 4, "--device", "h100", "--mesh", "pp=4", "--rank", 3, "-o", path]
    done = CliRunner().invoke(main, [*map(str, given)])
    assert (done.exit_code, done.output) == (0, "")
    meta, _ = read(path.read_bytes())
    told = attributes(meta)
    assert [told[name] for name in ("rank", "world_size", "layout")] == [3, 4, "dp=1 tp=1 pp=4"]
