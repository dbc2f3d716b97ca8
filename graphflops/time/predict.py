"""Predicts how long a kernel runs on a device, with a 90 % interval and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from graphflops.devices import Device
    from graphflops.time.kernel import Kernel

Bound = Literal["matrix", "vector", "memory", "latency"]

# What kernels reach of published peaks where nothing was measured, and the shortest time of a kernel.
_MATRIX_SHARE = 0.75
_MEMORY_SHARE = 0.8
_SHORTEST = 2e-6  # seconds
_UNMEASURED = 2.0  # the interval is from half of the prediction to twice of it


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of one kernel, without launch. low, high: 90 % interval. bound: what limits the kernel."""

    seconds: float
    low: float
    high: float
    bound: Bound


def predict(kernel: Kernel, device: Device) -> Time:
    """The time of a kernel: the longest of its arithmetic, its traffic and the shortest time of any kernel."""
    limits: dict[Bound, float] = {
        "matrix": _seconds(kernel.flops, matrix_peak(kernel.dtype, device), _MATRIX_SHARE),
        "vector": _seconds(kernel.vector_flops, device.vector, _MATRIX_SHARE),
        "memory": (kernel.read_bytes + kernel.written_bytes) / (device.bandwidth * _MEMORY_SHARE),
        "latency": _SHORTEST,
    }
    bound = max(limits, key=lambda name: limits[name])
    seconds = max(limits["latency"], 0.0) + max(limits["matrix"], limits["vector"], limits["memory"])
    return Time(seconds, seconds / _UNMEASURED, seconds * _UNMEASURED, bound)


def matrix_peak(dtype: str, device: Device) -> float | None:
    """Peak rate of matrix products in an element type; None if it is not published."""
    name = (
        "float8"
        if dtype.startswith("float8")
        else {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    )
    return device.matrix.get("int8" if name == "uint8" else name)


def _seconds(flops: int, peak: float | None, share: float) -> float:
    return flops / (peak * share) if peak else 0.0
