"""Memory of compiled programs with collectives, against what two H200s allocated with torch 2.11."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import Training
from graphflops.analysis import analyze
from graphflops.graph import Graph, Input, Node, Output, Ref
from tests.process_group import first_of
from tests.support import t


def _layers(torch: Any, exchange: Any) -> Any:
    """Layers of a decoder with half of the hidden units on each of two devices, and their input."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            up = [torch.nn.Linear(4096, 8192, bias=False) for _ in range(3)]
            down = [torch.nn.Linear(8192, 4096, bias=False) for _ in range(3)]
            self.up, self.down = torch.nn.ModuleList(up), torch.nn.ModuleList(down)
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(4096) for _ in range(3))

        def forward(self, x: Any) -> Any:
            for up, down, norm in zip(self.up, self.down, self.norms, strict=True):
                whole = exchange.all_gather_tensor_autograd(norm(x), 0, "0")
                part = down(torch.nn.functional.gelu(up(whole)))
                x = x + exchange.reduce_scatter_tensor_autograd(part, "sum", 0, "0")
            return x

    with torch.device("meta"):
        return Layers().to(torch.bfloat16), torch.empty(2048, 4096, dtype=torch.bfloat16)


def test_sequence_parallel_layers() -> None:
    with first_of(2) as (torch, exchange):
        model, x = _layers(torch, exchange)
        exported = torch.export.export(model, (x,), strict=False)
    report = analyze(exported, device="h200", execution="compiled", training=Training(optimizer="none"))
    step = report.step()
    assert step is not None
    peaks = [(report.value(peak) or 0) - x.nbytes for peak in (report.totals.peak_bytes, step.peak_bytes)]
    assert peaks == pytest.approx([150_994_944, 671_137_796], rel=1e-4)


def test_nothing_is_written_over_the_result_of_a_collective() -> None:
    x, y = t(4096, 4096, dtype="bfloat16"), t(64, 2**20, dtype="bfloat16")
    nodes = (
        Node("started", "_c10d_functional.all_reduce.default", (Ref("y"), "sum", "0"), outputs=("started",)),
        Node("product", "aten.mm.default", (Ref("x"), Ref("x")), outputs=("product",)),
        Node("sum", "_c10d_functional.wait_tensor.default", (Ref("started"),), outputs=("sum",)),
        Node("twice", "aten.mul.Tensor", (Ref("sum"), 2), outputs=("twice",)),
    )
    types = {"x": x, "y": y, "started": y, "product": x, "sum": y, "twice": y}
    outputs = (Output(Ref("product")), Output(Ref("twice")))
    graph = Graph(nodes, types, (Input("x", "user"), Input("y", "user")), outputs)
    report = analyze(graph, device="h200", execution="compiled")
    # beside the inputs: the copy that is summed, twice of it, and the product
    assert report.value(report.totals.peak_bytes) == (2 * y.nbytes + x.nbytes) + y.nbytes + x.nbytes
