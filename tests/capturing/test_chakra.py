"""Chakra traces of recorded steps: collectives of closed forms with their groups, messages, memory written in place."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from graphflops import analyze
from tests.capturing import steps
from tests.capturing.steps import BYTES, LAYER, LAYERS, OUTER, PARAMETERS
from tests.render.chakra_messages import attributes
from tests.render.test_chakra import assert_true, collectives, of_type, trace

GROUPS = "## process_group:init ##"


def nodes_of(factory: Any, unknown: int = 0, **options: Any) -> list[Any]:
    return assert_true(analyze(steps.recorded(factory, **options), device="h100"), unknown)


def test_gradients_are_summed_once() -> None:
    """Data parallel: one bucket of all gradients, among all ranks, of which ASTRA-sim needs no list."""
    report = analyze(steps.recorded(steps.data_parallel, {"dp": 4}, rank=3), device="h100")
    meta, _ = trace(report)
    assert [attributes(meta)[name] for name in ("rank", "world_size")] == [3, 4]
    nodes = assert_true(report)
    assert collectives(nodes) == [("ALL_REDUCE", PARAMETERS * BYTES)]
    (sum_,) = of_type(nodes, "COMM_COLL_NODE")
    assert attributes(sum_)["pg_name"] == "0"
    assert not of_type(nodes, "METADATA_NODE")
    (scale,) = [node for node in nodes if node.name == "COMP_NODE_aten.div_.Tensor"]  # of the bucket, by 4
    assert scale.id in sum_.data_deps
    copies = [node.name for node in nodes if node.id in scale.data_deps]
    assert Counter(copies)["COMP_NODE_aten.copy_"] == len(copies) == len([*steps.Decoder().parameters()])


def test_shards_are_gathered_and_gradients_scattered() -> None:
    """Each gather has a rank's part of a layer, each scatter a whole layer; the last layer is not let go in between."""
    nodes = nodes_of(steps.fully_sharded, mesh={"dp": 4})
    layer, outer = LAYER * BYTES, OUTER * BYTES
    gathers = {("ALL_GATHER", outer // 4): 1, ("ALL_GATHER", layer // 4): 2 * LAYERS}
    scatters = {("REDUCE_SCATTER", outer): 1, ("REDUCE_SCATTER", layer): LAYERS}
    assert Counter(collectives(nodes)) == gathers | scatters
    exchanges = {node.id for node in of_type(nodes, "COMM_COLL_NODE")}
    read = {node for each in nodes for node in each.data_deps if each.id not in exchanges}
    assert exchanges <= read  # each has a result that a later call reads


def test_each_collective_has_its_group() -> None:
    # A mask says which rows of the embedding it writes, and its gradient: how many hangs on the data.
    nodes = nodes_of(steps.sharded_and_split, unknown=2, mesh={"dp": 2, "tp": 2})
    (first,) = of_type(nodes, "METADATA_NODE")
    assert (first.id, first.name) == (0, GROUPS)
    assert not any(0 in (*node.ctrl_deps, *node.data_deps) for node in nodes)
    told = json.loads(first.inputs.values[2:-2])  # between `['` and `']`, as ASTRA-sim takes it
    ranks = {group["pg_name"]: group["ranks"] for group in told}
    assert sorted(ranks.values()) == [[0, 1], [0, 1, 2, 3], [0, 2]]
    axes = {group["pg_name"]: group["pg_desc"] for group in told}
    kinds: dict[str, set[str]] = {}
    streams = {0: ""}  # 0 is that of calls
    for node, (kind, _) in zip(of_type(nodes, "COMM_COLL_NODE"), collectives(nodes), strict=True):
        axis = axes[attributes(node)["pg_name"]]
        kinds.setdefault(axis, set()).add(kind)
        assert streams.setdefault(attributes(node)["stream"], axis) == axis
    assert sorted(streams.items()) in ([(0, ""), (1, "dp"), (2, "tp")], [(0, ""), (1, "tp"), (2, "dp")])
    assert kinds == {
        "dp": {"ALL_GATHER", "REDUCE_SCATTER"},
        "tp": {"ALL_GATHER", "ALL_REDUCE", "REDUCE_SCATTER"},
    }


def test_messages_of_a_pipeline_name_both_ends() -> None:
    nodes = nodes_of(steps.pipelined, mesh={"pp": 2}, rank=1)
    hidden = steps.BATCH * steps.LENGTH * steps.WIDTH * BYTES
    for kind, ends in (("COMM_RECV_NODE", (0, 1)), ("COMM_SEND_NODE", (1, 0))):
        told = [attributes(node) for node in of_type(nodes, kind)]
        assert {(each["comm_src"], each["comm_dst"]) for each in told} == {ends}
        assert {each["comm_size"] for each in told} == {hidden}
        assert {each["comm_tag"] for each in told} == {0}


def test_ranks_of_a_group_are_those_of_the_mesh() -> None:
    def factory(mesh: Any) -> Any:
        def step() -> torch.Tensor:
            x, group = torch.ones(6), mesh.get_group("pp")
            dist.send(x, 3, group=group)
            return x * 2

        return step

    nodes = nodes_of(factory, mesh={"pp": 2, "dp": 2}, rank=1)
    (sent,) = of_type(nodes, "COMM_SEND_NODE")
    told = attributes(sent)
    assert [told[name] for name in ("comm_src", "comm_dst", "comm_size")] == [1, 3, 6 * BYTES]
    (double,) = [node for node in nodes if node.name == "COMP_NODE_aten.mul.Tensor"]
    assert sent.id not in (*double.data_deps, *double.ctrl_deps)  # nobody waits for what is sent


def test_what_is_written_in_place_is_read_through_memory() -> None:
    """Halves of a buffer are filled through views and the whole is summed; a buffer beside it has no part in that."""

    def factory(mesh: Any) -> Any:
        def step() -> torch.Tensor:
            buffer, beside = torch.empty(8), torch.zeros(8)
            low, high = buffer[:4], buffer[4:]
            low.fill_(1.0)
            high.fill_(2.0)
            dist.all_reduce(buffer, group=mesh.get_group("dp"))
            beside.add_(1.0)
            low.mul_(3.0)
            return high.exp()

        return step

    nodes = nodes_of(factory, mesh={"dp": 2})
    named = {node.name.split("_NODE_")[-1]: node for node in nodes if node.type != 1}
    fills = {node.id for node in nodes if node.name.startswith("COMP_NODE_aten.fill_")}
    (sum_,) = of_type(nodes, "COMM_COLL_NODE")
    assert len(fills) == 2
    assert fills <= {*sum_.data_deps}
    assert sum_.id in named["aten.mul_.Tensor"].data_deps
    assert sum_.id in named["aten.exp"].data_deps
    assert named["aten.mul_.Tensor"].id not in named["aten.exp"].data_deps  # it has the other half
    assert sum_.id not in (*named["aten.add_.Tensor"].data_deps, *named["aten.add_.Tensor"].ctrl_deps)


def test_what_is_kept_on_the_host_is_stored_and_loaded() -> None:
    """The operand of sin is saved for its gradient, cos of it: 1024 float32 go to the host and come back."""

    def factory() -> Any:
        x = torch.zeros(1024, requires_grad=True)

        def step() -> None:
            with torch.autograd.graph.save_on_cpu():
                y = (x * 2).sin()
            y.sum().backward()

        return step

    nodes = nodes_of(factory)
    (store,), (load,) = (of_type(nodes, f"MEM_{kind}_NODE") for kind in ("STORE", "LOAD"))
    assert {attributes(node)["tensor_size"] for node in (store, load)} == {1024 * BYTES}
    assert store.id in load.data_deps
    (cos,) = [node for node in nodes if node.name == "COMP_NODE_aten.cos"]
    assert load.id in cos.data_deps


@pytest.mark.parametrize(
    "factory", [steps.single, steps.inference, steps.checkpointed, steps.mixed_precision]
)
def test_a_step_on_one_device(factory: Any) -> None:
    mesh = {"mesh": {"dp": 2}} if factory is steps.mixed_precision else {}
    assert nodes_of(factory, **mesh)
