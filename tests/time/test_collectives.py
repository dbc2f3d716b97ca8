"""Time of collectives: what each device sends, over the link of the device, against NCCL on two H200."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.devices import device
from graphflops.time.kernel import Exchange, Kernel
from graphflops.time.lowering.collectives import sent_bytes
from graphflops.time.predict import predict

MB = 2**20


@pytest.mark.parametrize(
    ("name", "devices", "sent"),
    [
        ("all_reduce", 2, 2 * 1 * 64 // 2),
        ("all_reduce", 8, 2 * 7 * 64 // 8),
        ("all_gather", 8, 7 * 64),
        ("reduce_scatter", 8, 7 * 64 // 8),
        ("all_to_all", 4, 3 * 64 // 4),
        ("broadcast", 4, 64),
    ],
)
def test_bytes_that_each_device_sends(name: str, devices: int, sent: int) -> None:
    assert sent_bytes(name, 64, devices) == sent


@pytest.mark.parametrize(
    ("name", "operand", "microseconds"),
    [
        # kernels of NCCL in torch 2.11 between two H200, by the profiler
        ("all_reduce", 64 * MB, 241.1),
        ("all_reduce", 256 * MB, 886.9),
        ("all_gather", 64 * MB, 285.8),
        ("all_gather", 256 * MB, 1051.5),
        ("reduce_scatter", 64 * MB, 163.3),
        ("reduce_scatter", 256 * MB, 581.4),
        ("all_to_all", 64 * MB, 121.1),
        ("all_to_all", 256 * MB, 465.7),
        ("broadcast", 64 * MB, 195.9),
        ("broadcast", 256 * MB, 736.3),
    ],
)
def test_two_h200(name: str, operand: int, microseconds: float) -> None:
    sizes = Exchange(sent_bytes(name, operand, 2), 2)
    found = predict(Kernel("collective", "bfloat16", sizes=sizes, variant=name), device("h200"))
    assert found.seconds == pytest.approx(microseconds * 1e-6, rel=0.1)
    assert found.bound == "link"


@pytest.mark.parametrize("profile", ["h100", "a100", "l40s", "rtx4090", "l4", "mi300x"])
def test_every_device_has_a_time_for_them(profile: str) -> None:
    sizes = Exchange(256 * MB, 2)
    found = predict(Kernel("collective", "bfloat16", sizes=sizes, variant="all_reduce"), device(profile))
    assert found.seconds > 256 * MB / device(profile).links[0].bandwidth


def _time(devices: int, *, gathers: bool) -> Any:
    """The predicted time of an exported program that adds up a tensor over devices, and may gather it."""
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not torch.distributed.is_available():
        pytest.skip("this torch knows no other devices")
    import torch.distributed._functional_collectives as exchange

    class Parallel(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            whole = exchange.all_reduce(x, "sum", "0")
            return exchange.all_gather_tensor(whole, 0, "0") if gathers else whole

    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=devices)
    try:
        exported = torch.export.export(Parallel(), (torch.zeros(8192, 8192, device="meta"),))
        return analyze(exported, device="h200", execution="graph").totals.time
    finally:
        torch.distributed.destroy_process_group()


def test_without_the_number_of_devices_the_time_is_that_of_two_at_least() -> None:
    assert _time(8, gathers=False).is_lower_bound
    assert _time(8, gathers=False).seconds == _time(2, gathers=False).seconds


def test_another_collective_of_the_group_tells_the_number_of_devices() -> None:
    two, eight = _time(2, gathers=True), _time(8, gathers=True)
    assert not two.is_lower_bound
    assert not eight.is_lower_bound
    # Of 268,435,456 bytes each of 8 sends 7 / 4 in the sum and 7 in the gathering, each of 2 once and once.
    assert eight.seconds - two.seconds > (7 / 4 + 7 - 2) * 8192 * 8192 * 4 / 450e9
