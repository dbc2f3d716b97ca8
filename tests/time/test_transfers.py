"""Copies between the memories of host and device: which way they go, who waits for them, and how long they take."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import analyze, record
from graphflops.devices import Host, Link, complete, device
from graphflops.kernels.kernel import Kernel, Transfer
from graphflops.time.predict import predict
from tests.time import toy_device

MIB = 2**20
COPIES = {"start": 1e-5, "pinned": 0.5, "to_device": 2e8, "to_host": 4e8, "fresh": 1e8}
BUS = Link("PCIe 5.0 x16", 1e9)


TO_HOST, TO_DEVICE = Transfer(to_host=True), Transfer(to_host=False)


def seconds(sizes: Transfer, size: int, **more: Any) -> float:
    known = toy_device.device(**{"links": (BUS,), "host": Host({}, copies=COPIES), **more})
    return predict(Kernel("transfer", "bfloat16", 0, 0, size, size, sizes), known).seconds


@pytest.mark.parametrize(
    ("sizes", "size", "rate"),
    [
        (Transfer(to_host=True, is_pinned=True), MIB, 0.5 * 1e9),  # half of the bus, either way
        (Transfer(to_host=False, is_pinned=True), 64 * MIB, 0.5 * 1e9),
        (TO_HOST, MIB, 4e8),
        (TO_HOST, 32 * MIB - 1, 4e8),
        (TO_HOST, 32 * MIB, 1e8),  # a block that the C library maps anew
        (TO_DEVICE, 64 * MIB, 2e8),
    ],
)
def test_a_copy_takes_the_time_of_the_bus_or_of_the_cpu(sizes: Transfer, size: int, rate: float) -> None:
    assert seconds(sizes, size) == pytest.approx(1e-5 + size / rate)


def test_no_copy_is_faster_than_the_bus() -> None:
    slow = (Link("NVLink 4", 1e12), Link("PCIe 4.0 x16", 1e8))
    assert seconds(TO_HOST, MIB, links=slow) == pytest.approx(1e-5 + MIB / (0.5 * 1e8))


def test_where_nothing_is_known_of_the_bus_a_copy_is_one_in_memory() -> None:
    """2 MiB at 0.8 of 1 GB/s, and 2 us: a guess with a wide interval."""
    assert seconds(TO_HOST, MIB, links=()) == pytest.approx(2e-6 + 2 * MIB / 0.8e9)


@pytest.mark.parametrize("pins", [False, True])
def test_a_step_that_offloads_takes_as_much_longer_as_its_copies(pins: bool) -> None:
    """Four results of 4 MiB go to the host and come back."""
    import torch

    def factory() -> Any:
        x = torch.zeros(MIB, requires_grad=True)

        def step() -> None:
            with torch.autograd.graph.save_on_cpu(pin_memory=pins):
                y = x.exp().exp().exp().exp()
            y.backward(y.detach())
            x.grad = None

        return step

    report = analyze(record(factory), device="h200")
    host = complete(device("h200")).host
    assert host is not None
    bus = 64e9 * host.copies["pinned"]
    to_host, to_device = (bus, bus) if pins else (host.copies["to_host"], host.copies["to_device"])
    rows = [row for row in report.rows if row.time is not None and row.time.bound == "link"]
    assert [row.phase for row in rows] == ["forward"] * 4 + ["backward"] * 4
    copies = 4 * (4 * MIB / to_host + 4 * MIB / to_device + 2e-5)
    assert report.totals.time is not None
    assert report.totals.time.seconds >= copies
    own = sum(row.time.seconds for row in rows if row.time is not None)
    assert own == pytest.approx(copies, rel=0.4)  # and the CPU's calls, while nothing runs
