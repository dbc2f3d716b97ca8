"""Memory of collectives that write into a given tensor."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.graph import Graph, Input, Node, Opaque, Output, Ref
from tests.process_group import first_of
from tests.support import t

MB = 2**20


def _peak(run: Any, execution: Any) -> int:
    """Peak bytes beyond the input of 4 MiB, of a program exported on the first of four devices."""
    with first_of(4) as (torch, _):

        class Parallel(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return run(torch.distributed, x)

        exported = torch.export.export(Parallel(), (torch.zeros(1024, 1024, device="meta"),))
    report = analyze(exported, device="h200", execution=execution)
    return (report.value(report.totals.peak_bytes) or 0) - 4 * MB


def _summed(distributed: Any, x: Any) -> Any:
    y = x * 2
    distributed.all_reduce(y)
    return y


def _gathered(distributed: Any, x: Any) -> Any:
    whole = x.new_empty(4096, 1024)
    distributed.all_gather_into_tensor(whole, x)
    return whole


@pytest.mark.parametrize(("run", "eager", "graph"), [(_summed, 4, 8), (_gathered, 16, 32)])
def test_only_the_exported_graph_makes_a_copy(run: Any, eager: int, graph: int) -> None:
    assert _peak(run, "eager") == eager * MB
    assert _peak(run, "graph") == graph * MB


_ODD = [
    ("_c10d_functional.all_reduce.default", (Ref("x"), "sum", Opaque("group"))),
    ("_c10d_functional.all_reduce_coalesced.default", ((), "sum", "0")),
    ("_c10d_functional.all_gather_into_tensor.default", (Ref("x"), 0, "0")),
    ("_c10d_functional.reduce_scatter_tensor.default", (Ref("x"), "sum", -1, "0")),
    ("_c10d_functional.all_to_all_single.default", (Ref("x"), (-5,), (2**70,), "0")),
    ("_dtensor.shard_dim_alltoall.default", (Ref("x"), 7, -9, "0")),
    ("symm_mem.fused_all_gather_matmul.default", (Ref("x"), (Ref("x"),), 0, "0")),
    ("symm_mem.fused_matmul_reduce_scatter.default", (Ref("x"), Ref("x"), "sum", -7, None)),
]


@pytest.mark.parametrize(("op", "args"), _ODD)
@pytest.mark.parametrize("execution", ["eager", "graph", "compiled"])
def test_collectives_that_cannot_run_are_analyzed(op: str, args: Any, execution: Any) -> None:
    for x, out in itertools.product((t(8, 4), t(), t(0, 3), t(2**40, 2**40)), (t(8, 4), t(16, 4))):
        nodes = (
            Node("call", op, args, outputs=("y",)),
            Node("wait", "_c10d_functional.wait_tensor.default", (Ref("y"),), outputs=("z",)),
            Node("copy", "aten.copy_.default", (Ref("x"), Ref("z")), outputs=("c",)),
        )
        types = {"x": x, "y": out, "z": out, "c": x}
        graph = Graph(nodes, types, (Input("x", "parameter"),), (Output(Ref("c")),))
        report = analyze(graph, device="h200", execution=execution, training=True)
        assert report.totals.time is not None
