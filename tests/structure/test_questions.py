"""Paths, dominators and cuts against brute force on random graphs; questions by name."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import networkx
import pytest

from graphflops import analyze
from graphflops.errors import ModelError, OptionError
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.render import render
from graphflops.report import Report
from graphflops.structure import queries
from graphflops.structure.answer import ask, cuts
from graphflops.structure.queries import bottlenecks, critical_path, data_flow
from tests.support import t

SAMPLES = Path(__file__).parents[2] / "samples"


def random_graph(seed: int) -> networkx.MultiDiGraph:
    """Up to nine calls between an input and a result; each call makes one value of a size of its own."""
    chance = random.Random(seed)
    graph = networkx.MultiDiGraph(total_flops=1)
    graph.add_node("x", kind="input", role="user", label="x")
    calls = [f"c{number}" for number in range(chance.randint(2, 9))]
    size = {name: chance.randint(1, 9) for name in ("x", *calls)}
    for number, name in enumerate(calls):
        graph.add_node(
            name,
            kind="call",
            op="aten.cat.default",
            flops=chance.randint(0, 9),
            bytes=1,
            exact="exact",
            label="cat",
        )
        earlier = ["x", *calls[:number]]
        for maker in chance.sample(earlier, min(len(earlier), chance.randint(1, 2))):
            graph.add_edge(maker, name, value=maker, bytes=size[maker], weight=False)
    graph.add_node("y", kind="output", role="user", label="y")
    for maker in {calls[-1], chance.choice(calls)}:
        graph.add_edge(maker, "y", value=maker, bytes=size[maker], weight=False)
    return graph


def calls_of(graph: networkx.MultiDiGraph) -> list[str]:
    return [name for name, data in graph.nodes(data=True) if data["kind"] == "call"]


def all_paths(graph: networkx.MultiDiGraph) -> list[list[str]]:
    return [path[1:-1] for path in networkx.all_simple_paths(networkx.DiGraph(graph), "x", "y")]


SEEDS = range(1000)


def test_the_critical_path_is_the_costliest_of_all_chains():
    for seed in SEEDS:
        graph = random_graph(seed)
        flops = networkx.get_node_attributes(graph, "flops")
        found = critical_path(graph)
        chains = [
            path[1:]
            for end in calls_of(graph)
            for path in networkx.all_simple_paths(networkx.DiGraph(graph), "x", end)
        ]
        assert found.cost == max(sum(flops[name] for name in chain) for chain in chains)
        assert all(graph.has_edge(*pair) for pair in itertools.pairwise(found.calls))
        assert found.cost + found.branch_cost <= found.whole == sum(flops.values())


def test_of_equal_branches_the_first_is_told():
    """Not the first in the order of hashes, which is another one in each process."""
    names = [f"n{number}" for number in range(12)]
    nodes = [Node(name, "aten.relu.default", (Ref("x"),), (), (name,)) for name in names]
    outputs = tuple([Output(Ref(name)) for name in names])
    report = analyze(Graph(tuple(nodes), dict.fromkeys(["x", *names], t(4)), (Input("x", "user"),), outputs))
    found = critical_path(report.graph(), "bytes")
    assert (found.calls, found.branch) == (("n0",), ("n1",))


def test_bottlenecks_are_the_calls_on_every_path():
    for seed in SEEDS:
        graph = random_graph(seed)
        on_all = set.intersection(*map(set, all_paths(graph)))
        assert {one.call for one in bottlenecks(graph).found} == on_all


def crossing_bytes(graph: networkx.MultiDiGraph, stage: dict[str, int], cut: int) -> int:
    """Bytes of the values that a call in a stage before the cut makes and one behind it reads, each once."""
    across = {
        data["value"]: data["bytes"]
        for maker, user, data in graph.edges(data=True)
        if maker in stage and user in stage and stage[maker] < cut <= stage[user]
    }
    return sum(across.values())


def test_cuts_have_the_fewest_bytes_of_all_within_the_limit():
    for seed in SEEDS:
        graph = random_graph(seed)
        calls = calls_of(graph)
        flops = networkx.get_node_attributes(graph, "flops")
        number = min(1 + seed % 3, sum(map(bool, flops.values())))
        if number == 0:
            continue
        found = cuts(graph, number, tolerance=20)
        costs, sent = [], []
        for ends in itertools.combinations(range(1, len(calls)), number - 1):
            parts = [calls[a:b] for a, b in itertools.pairwise((0, *ends, len(calls)))]
            if all(any(flops[name] for name in part) for part in parts):
                stage = {name: place for place, part in enumerate(parts) for name in part}
                costs.append(max(sum(flops[name] for name in part) for part in parts))
                sent.append(sum(crossing_bytes(graph, stage, cut) for cut in range(1, number)))
        limit = max(min(costs), 1.2 * sum(flops.values()) / number)
        fewest = min(bytes_ for cost, bytes_ in zip(costs, sent, strict=True) if cost <= limit)
        stage = {name: place for place, part in enumerate(found.stages) for name in part.calls}
        told = sum(one.bytes for part in found.stages for one in part.crossing)
        assert sorted(stage) == sorted(calls)
        assert max(part.cost for part in found.stages) <= limit
        assert all(stage[a] <= stage[b] for a, b in graph.edges() if a in stage and b in stage)
        assert told == sum(crossing_bytes(graph, stage, cut) for cut in range(1, number))
        assert told == fewest
        best = min(cost for cost, bytes_ in zip(costs, sent, strict=True) if bytes_ == fewest)
        assert max(part.cost for part in found.stages) == best


def test_parts_are_in_program_order_where_most_nodes_are_weights():
    """networkx iterates a small subgraph in the order of hashes, which is another one in each process."""
    graph = analyze(Path("samples/convnet.pt2")).graph()
    calls = calls_of(graph)
    assert 2 * len(calls) < len(graph)
    assert [*data_flow(graph)] == [name for name in graph if name in set(data_flow(graph))]
    stages = cuts(graph, 3).stages
    assert [name for stage in stages for name in stage.calls] == calls


@pytest.fixture(scope="module")
def decoder() -> Report:
    return analyze(SAMPLES / "gqa_transformer.pt2", dims={"s23": 1, "s27": 8}, device="h200")


def test_names_are_of_modules_calls_weights_and_inputs(decoder):
    graph = decoder.graph()
    assert {graph.nodes[name]["module"].split(".")[1] for name in queries.named(graph, "blocks.2")} == {"2"}
    assert queries.named(graph, "norm.weight") == {"p_norm_weight"}
    assert queries.named(graph, "embedding.weight") == {"p_embedding_weight", "p_head_weight"}, "tied"
    assert queries.named(graph, "ids") == {"ids"}
    with pytest.raises(ModelError, match=r"called block: did you mean blocks"):
        queries.named(graph, "block")


def test_what_lies_between_depends_on_one_and_is_needed_by_the_other(decoder):
    graph = decoder.graph()
    found = queries.between(graph, queries.named(graph, "blocks.0"), queries.named(graph, "blocks.2"))
    modules = {graph.nodes[name]["module"].split(".")[1] for name in found}
    assert modules == {"1"}
    assert queries.between(graph, queries.named(graph, "head"), queries.named(graph, "embedding")) == set()


def test_the_stages_of_a_decoder_hand_on_a_hidden_state(decoder):
    found = cuts(decoder.graph(), 2, tolerance=25)
    assert [one.bytes for one in found.stages[0].crossing] == [8 * 64 * 4]
    by_time = cuts(decoder.graph(), 2, "time")
    assert sum(stage.cost for stage in by_time.stages) == pytest.approx(by_time.whole)


def test_a_graph_in_stages_has_no_layers_across_them(decoder):
    answer = ask(decoder, depth=1, stages=2, tolerance=25)
    modules = [data for _, data in answer.graph.nodes(data=True) if data["kind"] == "module"]
    for number, stage in enumerate(answer.found.stages, 1):
        assert sum(data["flops"] for data in modules if data["stage"] == number) == stage.cost
    assert answer.graph.nodes["blocks.0-1"]["stage"] == 1


def test_what_nothing_reads_is_found_and_effects_are_not_unused():
    nodes = (
        Node("used", "aten.relu.default", (Ref("x"),), (), ("used",)),
        Node("dead", "aten.neg.default", (Ref("x"),), (), ("dead",)),
        Node("kept", "aten.add_.Tensor", (Ref("state"), Ref("x")), (), ("kept",)),
    )
    inputs = (Input("x", "user"), Input("w", "parameter", "layer.weight"), Input("state", "buffer", "state"))
    types = dict.fromkeys(("x", "w", "state", "used", "dead", "kept"), t(4))
    report = analyze(Graph(nodes, types, inputs, (Output(Ref("used")),)))
    assert queries.unused(report.graph()) == {"w", "dead"}
    with pytest.raises(ModelError, match="give the model file"):
        queries.unused(Report.from_json(report.to_json()).graph())


def test_what_cannot_be_answered_is_said(decoder):
    plain = analyze(SAMPLES / "lstm.pt2")
    unsized = analyze(SAMPLES / "gqa_transformer.onnx", assume=False)
    for question in ({"path": "flops"}, {"stages": 2}):
        with pytest.raises(
            ModelError, match="flops depend on sizes that are left open: give them with --dim"
        ):
            ask(unsized, **question)
    assert "FLOPs that depend on open sizes" in render(ask(unsized), "table")
    with pytest.raises(OptionError, match="name one with --device"):
        ask(plain, path="time")
    with pytest.raises(OptionError, match="one question at a time"):
        ask(plain, narrow=True, stages=2)
    with pytest.raises(OptionError, match="takes both"):
        ask(plain, first="lstm")
    with pytest.raises(ModelError, match=r"into 99 stages: .* depend on an input: 2"):
        ask(plain, stages=99)
    with pytest.raises(OptionError, match="balanced by"):
        ask(plain, stages=2, by="memory")
