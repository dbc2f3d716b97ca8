"""A device of round numbers, whose times are sums that a reader can work out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.devices import Device
from graphflops.time.predict import predict

if TYPE_CHECKING:
    from graphflops.kernels.kernel import Kernel

# Four multiprocessors, 1 GB/s, 4 GFLOP/s of bfloat16; products are sums of their parts (`mix` 1), of which each test
# leaves those apart that it is not about.
FAST = 1e9  # of anything
MATMUL = {
    "floor": 1e-9,
    "matrix": 1.0,
    "half": 1e-9,
    "memory": FAST,
    "latency": 1e-9,
    "epilogue": 1e-9,
    "split": FAST,
    "mix": 1.0,
    "unaligned_8": 2.0,
    "unaligned_4": 3.0,
    "unaligned_2": 5.0,
    "spread": 2.0,
}
TRAFFIC = {"floor": 1e-9, "memory": FAST, "cache": 1.0, "reached": 1.0, "spread": 2.0}


def device(**more: Any) -> Device:
    known = {
        "name": "toy",
        "aliases": (),
        "memory_bytes": 2**30,
        "bandwidth": 1e9,
        "matrix": {"bfloat16": 4e9, "float32": 2e9, "tfloat32": 1e9},
        "sources": {},
        "multiprocessors": 4,
    }
    return Device(**{**known, **more})


def with_rates(family: str, rates: dict[str, float], **more: Any) -> Device:
    return device(rates={family: rates}, **more)


def seconds(kernel: Kernel, known: Device) -> float:
    return predict(kernel, known).seconds
