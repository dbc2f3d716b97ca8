"""The graph of a report: its sums are the report's totals, its wiring that of the program, repeated layers one node."""

from __future__ import annotations

from pathlib import Path

import networkx
import pytest
from onnx import parser

from graphflops import analyze
from graphflops.errors import OptionError
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.report import Report
from graphflops.structure.build import Program
from graphflops.structure.wiring import cut
from tests.support import t

SAMPLES = Path(__file__).parents[2] / "samples"
FILES = sorted(path.name for path in SAMPLES.iterdir() if path.suffix in (".pt2", ".onnx"))


def summed(graph: networkx.MultiDiGraph, name: str) -> int:
    return sum(node.get(name, 0) for _, node in graph.nodes(data=True))


@pytest.mark.parametrize("file", FILES)
def test_sums_over_nodes_are_the_totals_at_every_level(file):
    report = analyze(SAMPLES / file)
    total = report.total()
    traffic = report.value(total.read_bytes + total.written_bytes)
    for graph in (report.graph(), *(report.graph("module", depth) for depth in (1, 2, 3, None))):
        assert networkx.is_directed_acyclic_graph(graph)
        assert summed(graph, "flops") == report.value(total.matrix_flops) == graph.graph["total_flops"]
        assert summed(graph, "bytes") == traffic == graph.graph["total_bytes"]
        assert summed(graph, "parameters") == report.parameters
        peaks = [
            node.get("memory", 0) for _, node in graph.nodes(data=True) if node["kind"] in ("call", "module")
        ]
        assert max(peaks) == report.value(report.totals.peak_bytes)


def test_nodes_carry_costs_and_edges_bytes():
    graph = analyze(SAMPLES / "gqa_transformer.pt2", dims={"s23": 2, "s27": 8}).graph()
    head = graph.nodes["linear_24"]
    assert (head["label"], head["kind"], head["module"], head["exact"]) == ("linear", "call", "head", "exact")
    assert head["flops"] == 2 * 2 * 8 * 64 * 256
    assert head["bytes"] == 4 * (2 * 8 * 64 + 64 * 256 + 2 * 8 * 256)
    assert "flops_formula" not in head  # no size is open
    weight = graph.nodes["p_head_weight"]
    assert (weight["kind"], weight["role"], weight["memory"]) == ("weight", "parameter", 4 * 64 * 256)
    (edge,) = graph["p_head_weight"]["linear_24"].values()
    assert (edge["shape"], edge["dtype"], edge["bytes"], edge["weight"]) == (
        "[256, 64]",
        "float32",
        65536,
        True,
    )


def test_open_sizes_are_formulas_beside_their_values_and_have_the_names_of_the_report():
    graph = analyze(SAMPLES / "gqa_transformer.pt2").graph()
    assert graph.nodes["linear_24"]["flops_formula"] == "32768*ids[0]*ids[1]"
    assert graph.nodes["ids"]["shape"] == "[ids[0], ids[1]]"


def test_what_is_unknown_is_left_out_and_not_zero():
    nodes = (
        Node("a", "aten.relu.default", (Ref("x"),), (), ("a",)),
        Node("b", "own.magic", (Ref("a"),), (), ("b",)),
    )
    graph = Graph(nodes, {"x": t(4), "a": t(4), "b": t(4)}, (Input("x", "user"),), (Output(Ref("b")),))
    found = analyze(graph).graph()
    assert found.nodes["b"]["exact"] == "unknown"
    assert not {"flops", "bytes"} & found.nodes["b"].keys()
    assert found.graph["total_exact"] == "at least"


def test_repeated_layers_are_one_node_with_what_goes_round():
    report = analyze(SAMPLES / "gqa_transformer.pt2", dims={"s23": 1, "s27": 4})
    graph = report.graph("module", depth=1)
    blocks = graph.nodes["blocks.0-3"]
    assert (blocks["count"], blocks["first_call"]) == (4, "rms_norm")
    assert (
        blocks["passed_bytes"] == 3 * 4 * 64 * 4
    )  # from each of the first three blocks, a hidden state of 4 tokens
    within = report.graph("module", depth=2)
    (edge,) = within["blocks.0-3.attention"]["blocks.0-3: add"].values()
    assert (edge["count"], edge["bytes"]) == (4, 4 * 4 * 64 * 4)


def program(*calls: tuple[str, str, str, tuple[str, ...]]) -> Graph:
    """Calls by name, module, operator and what they read; the last is the result."""
    nodes = [
        Node(name, f"aten.{op}.default", tuple(map(Ref, reads)), (), (name,), module)
        for name, module, op, reads in calls
    ]
    types = dict.fromkeys(["x", *(node.name for node in nodes)], t(4, 4))
    return Graph(tuple(nodes), types, (Input("x", "user"),), (Output(Ref(nodes[-1].name)),))


def counts(graph: Graph) -> dict[str, int]:
    found = analyze(graph).graph("module", depth=1)
    return {name: data["count"] for name, data in found.nodes(data=True) if data["kind"] == "module"}


def test_the_first_of_equal_layers_may_read_an_input():
    layers = [(f"r{n}", f"layers.{n}", "relu", (f"r{n - 1}" if n else "x",)) for n in range(4)]
    assert counts(program(*layers, ("end", "", "neg", ("r3",)))) == {"layers.0-3": 4, "(model): neg": 1}


def test_equal_modules_among_calls_that_they_do_not_depend_on_are_one_node():
    """Experts: what weighs the result of one stands between it and the next."""
    first = [
        ("g", "router", "neg", ("x",)),
        ("e0", "experts.0", "mm", ("x", "x")),
        ("w0", "", "mul", ("e0", "g")),
    ]
    more = [
        ("e1", "experts.1", "mm", ("x", "x")),
        ("w1", "", "mul", ("e1", "g")),
        ("s", "", "add", ("w0", "w1")),
    ]
    assert counts(program(*first, *more)) == {"router": 1, "experts.0-1": 2, "(model): mul, add": 1}


def test_a_module_that_is_used_again_after_what_depends_on_it_is_another_node():
    again = [("a", "act", "relu", ("x",)), ("m", "mid", "mm", ("a", "a")), ("b", "act", "relu", ("m",))]
    assert counts(program(*again)) == {"act": 1, "mid": 1, "act (2)": 1}


def test_a_nested_graph_reads_operands_and_gives_results():
    graph = analyze(SAMPLES / "cond.pt2").graph()
    assert set(graph.predecessors("cond")) == {"gt", "cond/linear_1", "cond/linear (2)"}
    assert set(graph.predecessors("cond/linear")) == {"x", "p_large_0_weight", "p_large_0_bias"}
    assert "x" not in set(graph.predecessors("cond"))


NESTED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[4,8] x, float[8,8] w, bool c) => (float[4,8] y) {
  a = MatMul(x, w)
  b = If (c) <then_branch = t () => (float[4,8] r) { r = MatMul(a, w) },
              else_branch = e () => (float[4,8] s) { q = Relu(a) s = MatMul(q, w) }>
  n = Constant <value = int64 {5}> ()
  k = Constant <value = bool {1}> ()
  y = Loop (n, k, b) <body = l (int64 i, bool on, float[4,8] v) => (bool go, float[4,8] z) {
    go = Identity(on) u = MatMul(v, w) z = Add(u, a) }>
}"""


def test_branches_and_loops_of_onnx_are_wired_through(tmp_path):
    path = tmp_path / "nested.onnx"
    path.write_bytes(parser.parse_model(NESTED).SerializeToString())
    report = analyze(path)
    graph = report.graph()
    products = 2 * 4 * 8 * 8 * (1 + 1 + 5)  # before the branch, in a branch, in five turns
    assert summed(graph, "flops") == summed(report.graph("module"), "flops") == products
    tensors = {(maker, user) for maker, user in graph.edges() if graph.nodes[maker]["kind"] == "call"}
    branch = {("MatMul", "If/MatMul_1"), ("MatMul", "If/Relu"), ("If/Relu", "If/MatMul_2")}
    assert tensors >= branch | {("If/MatMul_1", "If"), ("If/MatMul_2", "If"), ("If", "Loop/MatMul_3")}
    assert tensors >= {("MatMul", "Loop/Add"), ("Loop/MatMul_3", "Loop/Add"), ("Loop/Add", "Loop")}
    assert ("MatMul", "Loop") not in tensors


def test_an_operator_that_writes_its_operand_is_read_from_then_on():
    nodes = (
        Node("a", "aten.mul.Tensor", (Ref("x"), 2), (), ("a",)),
        Node("b", "aten.relu_.default", (Ref("a"),), (), ("b",)),
        Node("c", "aten.neg.default", (Ref("a"),), (), ("c",)),
    )
    graph = Graph(nodes, dict.fromkeys("xabc", t(4)), (Input("x", "user"),), (Output(Ref("c")),))
    assert set(analyze(graph).graph().predecessors("c")) == {"b"}


def test_a_saved_report_has_the_wiring_of_its_tensors():
    report = analyze(SAMPLES / "convnet.onnx")
    saved = Report.from_json(report.to_json())
    assert saved.program is None
    assert set(saved.graph("module").edges()) >= {("stem", "(model): Relu"), ("pool", "(model): Reshape")}
    assert summed(saved.graph(), "flops") == 2261152
    assert not any("parameters" in node for _, node in saved.graph("module").nodes(data=True)), "not known"


@pytest.mark.parametrize(
    "path, depth, expected",
    [
        ("model.layers.3.mlp.up", 1, "model"),
        ("model.layers.3.mlp.up", 2, "model.layers.3"),
        ("model.layers.3.mlp.up", 3, "model.layers.3.mlp"),
        ("0.1.2", 2, "0.1"),
        ("", 2, ""),
    ],
)
def test_the_number_of_a_layer_is_on_the_level_of_its_list(path, depth, expected):
    names = path.split(".") if path else []
    assert ".".join(names[: cut(tuple(names), depth)]) == expected


def test_levels_and_depths_that_do_not_exist_are_refused():
    report = analyze(SAMPLES / "lstm.pt2")
    with pytest.raises(OptionError, match="level"):
        report.graph("layer")
    with pytest.raises(OptionError, match="depth is 0"):
        report.graph("module", 0)


def test_a_program_without_calls_and_a_part_without_any():
    empty = analyze(
        Graph(nodes=(), types={"x": t(2)}, inputs=(Input("x", "user"),), outputs=(Output(Ref("x")),))
    )
    assert {node["kind"] for _, node in empty.graph("module").nodes(data=True)} == {"input", "output"}
    program = Program(analyze(SAMPLES / "cond.pt2"))
    assert [*program.modules(2, ["x"])] == ["x"]
