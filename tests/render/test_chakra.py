"""Chakra traces: as its schema reads them, of closed forms, with dependencies by which a replay takes the predicted time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import analyze
from graphflops.cli import main
from graphflops.errors import OptionError
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.render import render
from graphflops.report import Report
from graphflops.training import Training
from tests.links.test_use import PRODUCTS, summed
from tests.render.chakra_messages import COLLECTIVES, NODE_TYPES, attributes, read, replayed
from tests.support import t

SAMPLES = Path(__file__).parents[2] / "samples"
SECOND = 10**6  # microseconds


def trace(report: Report) -> tuple[Any, list[Any]]:
    return read(render(report, "chakra"))  # type: ignore[arg-type]


def of_type(nodes: list[Any], kind: str) -> list[Any]:
    return [node for node in nodes if NODE_TYPES[node.type] == kind]


def collectives(nodes: list[Any]) -> list[tuple[str, int]]:
    """Kind and bytes of each."""
    told = [attributes(node) for node in of_type(nodes, "COMM_COLL_NODE")]
    return [(COLLECTIVES[each["comm_type"]], each["comm_size"]) for each in told]


def assert_true(report: Report, unknown: int = 0) -> list[Any]:
    """A replay takes as long as the step, and the work is that of the report. unknown: calls whose time is not known."""
    _, nodes = trace(report)
    step = report.step()
    cost, time = (report.totals.cost, report.totals.time) if step is None else (step.cost, report.step_time)
    assert time is not None
    assert max(replayed(nodes).values()) == round(time.seconds * SECOND)
    told = [attributes(node) for node in nodes]
    assert sum(each.get("num_ops", 0) for each in told) == report.value(cost.matrix_flops + cost.vector_flops)
    assert sum("is_unknown" in each for each in told) == unknown
    return nodes


@pytest.mark.parametrize("execution", ["eager", "graph", "compiled"])
@pytest.mark.parametrize(
    ("name", "training"),
    [
        *product(["gqa_transformer.pt2", "convnet.onnx", "lstm.pt2", "cond.pt2"], [False, True]),
        ("training_step.pt2", False),
    ],
)
def test_a_replay_takes_the_predicted_time(name: str, execution: Any, training: bool) -> None:
    assert_true(analyze(SAMPLES / name, device="h200", execution=execution, training=training))


def test_each_micro_step_is_there() -> None:
    report = analyze(SAMPLES / "convnet.pt2", device="h200", training=Training(accumulate=3))
    counts = Counter(node.name for node in assert_true(report))
    assert counts["COMP_NODE_aten.conv2d"] % 6 == 0 < counts["COMP_NODE_aten.conv2d"]
    assert counts["COMP_NODE_optimizer"] == 1


def test_an_exported_sum_is_read_by_the_call_behind_it() -> None:
    """bfloat16[64, 2^20] are 2^27 bytes. Products run beside the sum; what doubles it waits."""
    nodes = assert_true(analyze(summed(*PRODUCTS), device="h200", execution="graph"))
    assert collectives(nodes) == [("ALL_REDUCE", 2**27)]
    (sum_,) = of_type(nodes, "COMM_COLL_NODE")
    assert attributes(sum_)["pg_name"] == "0"
    readers = [node.name for node in nodes if sum_.id in node.data_deps]
    assert readers == ["COMP_NODE_aten.mul.Tensor"]
    products = [node for node in nodes if node.name == "COMP_NODE_aten.mm"]
    assert {attributes(node)["num_ops"] for node in products} == {2 * 4096**3}
    assert {attributes(node)["tensor_size"] for node in products} == {3 * 4096 * 4096 * 2}
    assert all(node.start_time_micros < sum_.start_time_micros + sum_.duration_micros for node in products)


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "forward", "backward"),
    [
        ("all_reduce", ("sum", "7"), (8, 4), ("ALL_REDUCE", 128), ("ALL_REDUCE", 128)),
        ("all_gather_into_tensor", (2, "7"), (16, 4), ("ALL_GATHER", 128), ("REDUCE_SCATTER", 256)),
        ("reduce_scatter_tensor", ("sum", 2, "7"), (4, 4), ("REDUCE_SCATTER", 128), ("ALL_GATHER", 64)),
    ],
)
def test_gradients_go_back(op: str, arguments: Any, shape: Any, forward: Any, backward: Any) -> None:
    """Of float32[8, 4] on each of two devices: what is gathered is scattered, and the reverse."""
    x, out = t(8, 4, dtype="float32", requires_grad=True), t(*shape, dtype="float32", requires_grad=True)
    graph = Graph(
        (
            Node("sent", f"_c10d_functional.{op}.default", (Ref("x"), *arguments), outputs=("sent",)),
            Node("y", "_c10d_functional.wait_tensor.default", (Ref("sent"),), outputs=("y",)),
            Node("z", "aten.sin.default", (Ref("y"),), outputs=("z",)),
        ),
        {"x": x, "sent": out, "y": out, "z": out},
        (Input("x", "parameter"),),
        (Output(Ref("z")),),
    )
    nodes = assert_true(analyze(graph, device="h200", execution="graph", training=True))
    assert collectives(nodes) == [forward, backward]
    assert {attributes(node)["pg_name"] for node in of_type(nodes, "COMM_COLL_NODE")} == {"7"}


def test_unknown_is_not_zero() -> None:
    graph = Graph(
        (
            Node("a", "mine.secret.default", (Ref("x"),), outputs=("a",)),
            Node("b", "aten.relu.default", (Ref("a"),), outputs=("b",)),
        ),
        {name: t(4, 4) for name in "xab"},
        (Input("x", "user"),),
        (Output(Ref("b")),),
    )
    meta, nodes = trace(analyze(graph, device="h200", execution="graph"))
    assert attributes(meta)["unknown_calls"] == 1
    first, second = (attributes(node) for node in nodes)
    assert first["is_unknown"] is True
    assert not {"num_ops", "tensor_size", "predicted_seconds"} & first.keys()
    assert second["num_ops"] == 16
    assert [*nodes[1].data_deps] == [0]


def test_what_cannot_be_told_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="name a device with --device"):
        render(analyze(SAMPLES / "convnet.pt2"), "chakra")
    saved = Report.from_json(analyze(summed(), device="h200").to_json())
    with pytest.raises(OptionError, match="a saved report does not say what collectives send: give a model"):
        render(saved, "chakra")
    with pytest.raises(OptionError, match="take a smaller --accumulate"):
        render(analyze(SAMPLES / "convnet.pt2", device="h200", training=Training(accumulate=10**6)), "chakra")
    lstm = analyze(SAMPLES / "lstm.pt2", device="h200")
    ages = [row._replace(time=row.time and row.time._replace(seconds=1e13)) for row in lstm.rows]
    with pytest.raises(OptionError, match="take smaller sizes"):
        render(replace(lstm, rows=tuple(ages)), "chakra")
    given = ["analyze", str(SAMPLES / "convnet.pt2"), "--output", str(tmp_path / "step.0.et")]
    done = CliRunner().invoke(main, given)
    assert (done.exit_code, done.stderr.count("\n"), [*tmp_path.iterdir()]) == (2, 1, [])


def test_a_saved_report_without_collectives_has_the_same_trace() -> None:
    report = analyze(SAMPLES / "gqa_transformer.pt2", device="h200", training=True)
    assert render(Report.from_json(report.to_json()), "chakra") == render(report, "chakra")


def test_the_suffix_chooses_the_format(tmp_path: Path) -> None:
    path = tmp_path / "step.0.et"
    given = ["analyze", str(SAMPLES / "lstm.pt2"), "--device", "h100", "--output", str(path)]
    assert CliRunner().invoke(main, given).exit_code == 0
    meta, nodes = read(path.read_bytes())
    assert (meta.version, attributes(meta)["device"]) == ("1.0.0", "NVIDIA H100 SXM")
    assert "rank" not in attributes(meta)
    assert not of_type(nodes, "METADATA_NODE")
