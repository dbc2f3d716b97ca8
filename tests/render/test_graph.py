"""Graphs as files for other programs, and answers as tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

import networkx
import pytest
from networkx.utils import graphs_equal

from graphflops import analyze
from graphflops.errors import OptionError
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.render import render
from graphflops.structure.answer import ask
from tests.support import t
from tests.test_cli import failed, misused, ok

SAMPLES = Path(__file__).parents[2] / "samples"
FILES = sorted(path.name for path in SAMPLES.iterdir() if path.suffix in (".pt2", ".onnx"))
MODEL = SAMPLES / "gqa_transformer.pt2"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("level", ["call", "module"])
def test_graphml_and_json_read_back_equal(file, level):
    report = analyze(SAMPLES / file, device="h200")
    answer, graph = ask(report, level=level, depth=2), report.graph(level, 2)
    assert graphs_equal(answer.graph, graph)
    text = render(answer, "graphml")
    read = networkx.read_graphml(io.BytesIO(text.encode()), force_multigraph=True)
    assert (read.graph.pop("node_default"), read.graph.pop("edge_default")) == ({}, {})  # networkx's own
    assert graphs_equal(read, graph)
    data = json.loads(render(answer, "json"))
    assert graphs_equal(networkx.node_link_graph(data, edges="edges"), graph)
    keys = [part.split('"')[1] for part in text.split("<key id=")[1:]]
    assert len(keys) == len(set(keys)), "yEd and Gephi know a key by its id"


def test_names_that_xml_cannot_hold_are_spelled_out():
    nodes = (Node("a\x1b[1m", "aten.relu.default", (Ref("x"),), (), ("a\x1b[1m",)),)
    graph = Graph(nodes, {"x": t(4), "a\x1b[1m": t(4)}, (Input("x", "user"),), (Output(Ref("a\x1b[1m")),))
    answer = ask(analyze(graph), level="call")
    read = networkx.read_graphml(io.BytesIO(render(answer, "graphml").encode()), force_multigraph=True)
    assert "a\\x1b[1m" in read
    for form in ("mermaid", "dot", "table", "markdown"):
        assert "\x1b" not in render(answer, form)


def test_mermaid_escapes_what_it_would_read_as_markup():
    nodes = (
        Node("a", "aten.relu.default", (Ref("x"),), (), ("a",), module='b"]<script>|.end', module_type="T"),
    )
    graph = Graph(nodes, {"x": t(4), "a": t(4)}, (Input("x", "user"),), (Output(Ref("a")),))
    text = render(ask(analyze(graph), level="call", only=None), "mermaid")
    assert "script>" not in text
    assert text.startswith("flowchart TB\n")


def test_mermaid_refuses_what_github_does_not_draw(tmp_path):
    nodes = tuple(
        Node(f"n{i}", "aten.relu.default", (Ref(f"n{i - 1}"),), (), (f"n{i}",)) for i in range(1, 601)
    )
    graph = Graph(nodes, {f"n{i}": t(4) for i in range(601)}, (Input("n0", "user"),), (Output(Ref("n600")),))
    with pytest.raises(OptionError, match="at most 500 edges, and this graph has 601"):
        render(ask(analyze(graph), level="call"), "mermaid")


def test_suffixes_name_formats(tmp_path):
    starts = {
        ".graphml": "<?xml",
        ".dot": "digraph",
        ".mmd": "flowchart",
        ".json": "{",
        ".csv": "node,",
        ".md": "**gqa",
    }
    for suffix, start in starts.items():
        ok("graph", MODEL, "--output", tmp_path / f"g{suffix}")
        assert (tmp_path / f"g{suffix}").read_text(encoding="utf-8").startswith(start)


def test_answers_on_the_command_line():
    assert "on every way from ids to output 0" in ok("graph", MODEL, "--bottlenecks")
    assert "what lies between embedding and head: 81 calls" in ok(
        "graph", MODEL, "--from", "embedding", "--to", "head"
    )
    assert "every weight and input is read" in ok("graph", MODEL, "--unused")
    cut = json.loads(ok("graph", MODEL, "--cuts", "2", "--tolerance", "25", "--format", "json"))
    assert [row["stage"] for row in cut["answer"]["rows"]] == [1, 2]
    assert {node.get("stage") for node in cut["nodes"] if node["kind"] == "module"} == {1, 2}


def test_what_is_wrong_is_one_line():
    assert "did you mean blocks" in failed("graph", MODEL, "--only", "block")
    assert "name one with --device" in misused("graph", MODEL, "--by", "time")
    assert "--top: not an option of --format dot for a graph" in misused(
        "graph", MODEL, "--format", "dot", "--top", "3"
    )
