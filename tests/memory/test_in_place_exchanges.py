"""Memory of collectives that write into a given tensor."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze

MB = 2**20


def _peak(run: Any, execution: Any) -> int:
    """Peak bytes beyond the input of 4 MiB, of a program exported on the first of four devices."""
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not torch.distributed.is_available():
        pytest.skip("this torch knows no other devices")

    class Parallel(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return run(torch.distributed, x)

    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    try:
        exported = torch.export.export(Parallel(), (torch.zeros(1024, 1024, device="meta"),))
    finally:
        torch.distributed.destroy_process_group()
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
