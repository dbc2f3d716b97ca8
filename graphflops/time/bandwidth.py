"""How fast a kernel's bytes move: from the memory, from the L2 cache, and through the multiprocessors."""

from __future__ import annotations

from collections.abc import Mapping

from graphflops.devices import Device

Rates = Mapping[str, float]  # constants of a model of kernels, by name
Times = tuple[float, float, float]  # seconds of a kernel, of its arithmetic, and of its traffic

REACHED = 0.905  # of the published bandwidth, by copies and additions on an H100 and an H200
_IN_CACHE = 0.6  # of the L2 cache holds what the kernels before have just written
# Published bandwidth of the H200 per multiprocessor and cycle, of which the constants are shares.
_BYTES_PER_CYCLE = 18.4


def through(device: Device) -> float:
    """Bytes a second of which constants are shares: what limits a kernel below the bandwidth are its multiprocessors."""
    if not device.clock_hz:
        return device.bandwidth
    return _BYTES_PER_CYCLE * (device.multiprocessors or 1) * device.clock_hz


def cached(nbytes: float, device: Device) -> float:
    """How many of the bytes that were just written, or will soon be read, the cache holds."""
    return min(nbytes, _IN_CACHE * (device.l2_bytes or 0))


def seconds(moved: float, recent: float, share: float, device: Device) -> float:
    """Seconds of the bytes of a kernel that reaches a share of the bandwidth. recent: of these, what may be in the cache."""
    own = through(device) * share
    held = cached(recent, device)
    return held / own + (moved - held) / min(own, device.bandwidth * max(share, REACHED))
