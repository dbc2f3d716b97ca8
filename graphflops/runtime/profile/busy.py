"""How much of this machine other processes take while it is measured."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from graphflops.devices.device import Part

_WAIT = 1.5  # seconds until a GPU's utilisation is that of others alone
_ASKED = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i")


class Others:
    """Other processes from now on. gpu: identifier of the GPU that is measured; "" for none."""

    def __init__(self, gpu: str = "") -> None:
        self.gpu = gpu
        self.before = _gpu_share(gpu)
        self.begun = _processor_seconds()

    def shares(self) -> dict[Part, float]:
        """The share of the processor (`cpu`) and of the GPU (`gpu`) that they took; without what the system does not tell.

        The processor's is the mean since this object was made. The GPU's is the larger of before and after: in between it is
        ours.
        """
        ended = _processor_seconds()
        found: dict[Part, float] = {}
        if self.begun is not None and ended is not None and ended[1] > self.begun[1]:
            used, passed = (late - early for late, early in zip(ended, self.begun, strict=True))
            found["cpu"] = min(max(used / passed, 0.0), 1.0)
        if self.before is not None:
            time.sleep(_WAIT)
            found["gpu"] = max(self.before, _gpu_share(self.gpu) or 0.0)
        return {name: round(share, 3) for name, share in found.items()}


def _processor_seconds() -> tuple[float, float] | None:
    """Seconds that other processes ran on the cores which this one may use, and all seconds of these cores, since boot."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    rows = [[int(part) for part in line.split()[1:9]] for line in lines if line.partition(" ")[0] in cores]
    total, own = sum(map(sum, rows)), os.times()
    idle = sum(row[3] + row[4] for row in rows)  # the fourth and fifth: idle, and waiting for a disk
    tick = os.sysconf("SC_CLK_TCK")
    return (total - idle) / tick - sum(own[:4]), total / tick


def _gpu_share(gpu: str) -> float | None:
    """The share of the last moments in which kernels ran on a GPU; None where NVIDIA's tool does not tell."""
    if not gpu:
        return None
    try:
        told = subprocess.run([*_ASKED, gpu], capture_output=True, text=True, timeout=10, check=True).stdout
        return int(told) / 100
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
