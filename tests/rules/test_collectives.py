"""What devices exchange: work and memory of one of them."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from tests.support import price, t

X, Y = t(8, 4), t(16)


@pytest.mark.parametrize(
    ("op", "arguments", "out", "flops", "read"),
    [
        ("all_reduce.default", (X, "sum", "0"), (X,), 8 * 4, 4 * 32),
        ("all_reduce.default", (X, "avg", "0"), (X,), 2 * 8 * 4, 4 * 32),
        ("all_reduce_.default", (X, "max", "0"), (X,), 8 * 4, 4 * 32),
        ("all_reduce_coalesced.default", ((X, Y), "sum", "0"), (X, Y), 8 * 4 + 16, 4 * 48),
        ("reduce_scatter_tensor.default", (X, "sum", 4, "0"), (t(2, 4),), 3 * 2 * 4, 4 * 32),
        ("reduce_scatter_tensor_coalesced.default", ((X, Y), "sum", 4, "0"), (t(2, 4), t(4)), 3 * 12, 4 * 48),
        ("all_gather_into_tensor.default", (X, 4, "0"), (t(32, 4),), 0, 4 * 32),
        ("all_gather_into_tensor_coalesced.default", ((X, Y), 4, "0"), (t(32, 4), t(64)), 0, 4 * 48),
        ("all_to_all_single.default", (X, (1, 2), (3, 5), "0"), (t(3, 4),), 0, 4 * 32),
        ("broadcast.default", (X, 0, "0"), (X,), 0, 4 * 32),
        ("wait_tensor.default", (X,), (X,), 0, 0),
        ("wait_tensors.default", ((X, Y),), (X, Y), 0, 0),
    ],
)
def test_exchanges(op: str, arguments: Any, out: Any, flops: int, read: int) -> None:
    estimate = price(f"_c10d_functional.{op}", *arguments)
    assert estimate.out == out
    assert (estimate.vector_flops, estimate.cost.read_bytes) == (flops, read)


def test_a_program_of_several_devices_is_read() -> None:
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not torch.distributed.is_available():
        pytest.skip("this torch knows no other devices")
    import torch.distributed._functional_collectives as exchange

    class Parallel(torch.nn.Module):
        """A product split over devices by columns, then by rows, its parts added up; and the other exchanges."""

        def forward(self, x: Any, up: Any, down: Any) -> Any:
            whole = exchange.all_reduce((x @ up).relu() @ down, "sum", "0")
            parts = exchange.reduce_scatter_tensor(whole, "avg", 0, "0")
            return exchange.all_gather_tensor(exchange.all_to_all_single(parts, None, None, "0"), 0, "0")

    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    try:
        exported = torch.export.export(Parallel(), (torch.zeros(16, 8), torch.zeros(8, 6), torch.zeros(6, 8)))
        report = analyze(exported)
    finally:
        torch.distributed.destroy_process_group()
    assert report.diagnostics == ()
    assert report.coverage.unknown == 0
    assert report.total().matrix_flops == 2 * 2 * 16 * 8 * 6
