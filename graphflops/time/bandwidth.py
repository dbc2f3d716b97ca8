"""How fast a kernel's bytes move: through memory, the L2 cache, and the multiprocessors."""

from collections.abc import Mapping

from graphflops.devices import Device

Rates = Mapping[str, float]  # constants of a model of kernels, by name
Times = tuple[float, float, float]  # seconds of a kernel, of its arithmetic, and of its traffic

REACHED = 0.905  # share of the published bandwidth, from copies and additions on an H100 and an H200
_IN_CACHE = 0.6  # share of the L2 cache that holds what earlier kernels have just written
# Published bandwidth of the H200 in bytes per multiprocessor and cycle; constants are shares of it.
_BYTES_PER_CYCLE = 18.4


def through(device: Device) -> float:
    """Bytes per second that constants are shares of: below the bandwidth, multiprocessors limit a kernel."""
    if not device.clock_hz:
        return device.bandwidth
    return _BYTES_PER_CYCLE * device.cores * device.clock_hz


def cached(nbytes: float, device: Device) -> float:
    """How many bytes, just written or soon read, the cache holds."""
    return min(nbytes, _IN_CACHE * (device.l2_bytes or 0))


def seconds(moved: float, recent: float, share: float, device: Device) -> float:
    """Seconds to move a kernel's bytes at a share of the bandwidth. recent: those of the bytes that may be in the cache."""
    own = through(device) * share
    held = cached(recent, device)
    return held / own + (moved - held) / min(own, device.bandwidth * max(share, REACHED))
