"""A device: ceilings, memory, launch costs and measured kernels.

Rates are per second, times are in seconds, except in calibration points. A figure that nobody published or measured is
None, never zero. A `Platform` is what decides which kernels PyTorch launches: the device's architecture, and the release
whose kernels are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from graphflops.errors import OptionError, shown
from graphflops.kernels.choices import library

# Bounds that no device comes near, within which no formula overflows.
Factor = Annotated[float, msgspec.Meta(ge=1, le=1e6)]
Positive = Annotated[float, msgspec.Meta(ge=1e-18, le=1e24)]
Constant = Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**60)]
Cores = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
Generation = Annotated[int, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Part = Literal["cpu", "gpu"]
Error = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Point = Annotated[tuple[float, ...], msgspec.Meta(min_length=2, max_length=12)]


class Link(Struct, frozen=True):
    """A connection to other devices or to the host. bandwidth: bytes per second in one direction."""

    name: str
    bandwidth: Positive


class Node(Struct, frozen=True):
    """Devices that the fastest link joins. links: to other nodes, each of `bandwidth` bytes per second in one direction."""

    devices: Cores
    links: Cores
    bandwidth: Positive


class Launch(Struct, frozen=True):
    """What starting a kernel costs. graph_seconds: gap between two kernels of a CUDA graph; 0 where their times hold it."""

    graph_seconds: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Host(Struct, frozen=True):
    """The CPU beside the device, which runs Python and launches kernels.

    seconds: CPU time of one call by phase and operator, or kind of operator (`forward.convolution`, `optimizer.tensor`).
    Both are of a core that no other work slows. benchmarks: seconds of micro-benchmarks on the CPU that `seconds` are of.
    faster, slower: nine of ten programs on such machines, at any moment, take less than `slower` times as long, and more
    than a `faster`th. disturbed: how many times as long a core takes beside other work; disturbed_share: of the time.
    ratio: how many times as long the calls of which it has no cost take as beside an H200.
    copies: between its memory and the device's: `start` in seconds, `pinned` as a share of the bus's bandwidth, and bytes
    per second of pageable memory, `to_device`, `to_host`, and `fresh`, which is memory that no copy used before.
    """

    seconds: Mapping[str, Positive] = field(default_factory=dict)
    benchmarks: Mapping[str, Positive] = field(default_factory=dict)
    faster: Factor = 1.5
    slower: Factor = 2.0
    disturbed: Factor = 1.0
    disturbed_share: Share = 0.0
    ratio: Factor = 1.0
    copies: Mapping[str, Positive] = field(default_factory=dict)

    def slowness(self, ranks: int) -> float:
        """How many times as long the CPU's part of a step takes whose ranks wait for one another: that of the slowest.

        One rank is timed while nothing disturbs it. Of several, hardly ever none is disturbed.
        """
        if ranks == 1:
            return 1.0
        return 1 + (self.disturbed - 1) * (1 - (1 - self.disturbed_share) ** ranks)


class Calibration(Struct, frozen=True):
    """Measured times of one family of kernels, which correct the model of the family near them.

    variant: of the kernels, as in `Kernel`. points: rows of numbers as `columns` names them, the last one microseconds.
    software: versions of the libraries that ran. data: contents of the operands, and what of them is in the cache.
    error: median, mean and 90th percentile of the relative error on measured rows that are not among the points.
    """

    family: str
    variant: str
    dtype: str
    columns: tuple[str, ...]
    points: Annotated[tuple[Point, ...], msgspec.Meta(min_length=1, max_length=1000)]
    software: str
    data: str
    source: str
    license: str = ""
    error: tuple[Error, Error, Error] | None = None

    def __hash__(self) -> int:
        """Of what tells the tables of a device apart: all points would take longer than what is found from them."""
        return hash((self.family, self.variant, self.dtype, len(self.points)))


class Device(Struct, frozen=True, kw_only=True):
    """One device.

    bandwidth: of its memory. matrix: peak multiply-add rate in FLOP/s by element type, dense, on matrix units where the type
    has them; float32 is plain float32, not TF32. vector: float32 outside of the matrix units.
    kind: a CPU computes what the calls of a program ask of it before it goes on to the next.
    context_bytes: memory that the driver and libraries of one process take. blas_workspace_bytes: what PyTorch allocates for
    the matrix products of one thread. multiprocessors: independent cores with their own matrix units (NVIDIA: SMs, AMD:
    compute units). capability: CUDA's compute capability, by which libraries choose kernels; 0 and 0 of a GPU that does not
    run CUDA. clock_hz: the highest they run at. power_watts: board limit.
    node: how such devices are joined in servers that are sold with them.
    rates: constants of the models of kernel families, by family and variant: shares of ceilings, work per multiprocessor and
    cycle, latencies; nine of ten measured kernels are within the factor `spread`. rates_of: a similar device
    whose constants are used, because this one was not measured.
    host: None where no CPU beside it was measured. family_ratios: by family and variant of kernels, and `other`, measured
    over predicted time in whole programs, by which times are multiplied. spread: nine of ten programs are within this factor
    beside errors of single kernels; all kernels of a device that was not measured may err alike.
    sources: where each figure is from, by field. busy: share of the processor (`cpu`) and of the GPU (`gpu`) that other
    processes took while a user's machine was measured, as far as its system tells.
    """

    name: str
    aliases: tuple[str, ...]
    memory_bytes: Count
    bandwidth: Positive
    matrix: Mapping[str, Positive]
    sources: Mapping[str, str]
    kind: Literal["gpu", "cpu", "tpu"] = "gpu"
    vector: Positive | None = None
    context_bytes: Count | None = None
    blas_workspace_bytes: Count | None = None
    multiprocessors: Cores | None = None
    capability: tuple[Generation, Generation] | None = None
    clock_hz: Positive | None = None
    power_watts: Positive | None = None
    l2_bytes: Count | None = None
    links: tuple[Link, ...] = ()
    node: Node | None = None
    launch: Launch | None = None
    host: Host | None = None
    rates_of: str = ""
    spread: Factor = 1.0
    family_ratios: Mapping[str, Constant] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, Constant]] = field(default_factory=dict)
    busy: Mapping[Literal["cpu", "gpu"], Annotated[float, msgspec.Meta(ge=0, le=1)]] = field(
        default_factory=dict
    )
    calibration: Annotated[tuple[Calibration, ...], msgspec.Meta(max_length=1000)] = ()


Capability = tuple[int, int]  # CUDA's compute capability; (0, 0) of a GPU that does not run CUDA

# Resident threads of a multiprocessor (CUDA C++ Programming Guide, technical specifications per compute capability).
_THREADS = {(7, 5): 1024, **dict.fromkeys(((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)), 1536)}
_MOST_THREADS = 2048


_TORCH = library("aten_2")


class Platform(NamedTuple):
    """A device as its libraries see it. torch: the release of PyTorch whose choices of kernels are assumed, as `2.11`;
    cudnn: the release of cuDNN that its packages on PyPI require, as cuDNN numbers it: 91900 is 9.19.0.
    """

    capability: Capability = (9, 0)
    multiprocessors: int = 132
    torch: str = _TORCH.measured
    cudnn: int = _TORCH.releases[_TORCH.measured]["cudnn"]

    @property
    def threads(self) -> int:
        """Threads that the device holds at once."""
        return self.multiprocessors * self.threads_each

    @property
    def threads_each(self) -> int:
        """Threads that one multiprocessor holds at once."""
        return _THREADS.get(self.capability, _MOST_THREADS)


HOPPER = Platform()  # an H200, and what is assumed where no device is named


def platform_of(device: Device | None, torch: str | None = None) -> Platform:
    """The platform of a device under a release of PyTorch, by default the one that was measured.

    Where a GPU's profile does not say what it is, and of what is no GPU, the device is an H200.
    """
    release = HOPPER.torch if torch is None else torch
    if release not in _TORCH.releases:
        known = ", ".join(_TORCH.releases)
        raise OptionError(f"--torch {shown(release)}: choices of kernels are known of PyTorch {known}")
    platform = HOPPER._replace(torch=release, cudnn=_TORCH.releases[release]["cudnn"])
    if device is None or device.kind != "gpu":
        return platform
    return platform._replace(
        capability=device.capability or HOPPER.capability,
        multiprocessors=device.multiprocessors or HOPPER.multiprocessors,
    )
