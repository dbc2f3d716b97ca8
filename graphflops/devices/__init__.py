"""A device: ceilings, memory, launch costs and measured kernels.

Rates are per second, times are in seconds, except in calibration points. A figure that nobody published or measured is
None, never zero. A `Platform` is what decides which kernels PyTorch launches: the device's architecture, and the release
whose kernels are known. Profiles are found by name, or read from a user's own file, which must hold what the models of
kernels read.
"""

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from graphflops.base.files import content
from graphflops.base.record import replace
from graphflops.errors import FileError, OptionError, shown
from graphflops.kernels.choices import library

# No `annotations` of `__future__`: msgspec would compile the text of each annotation again.
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
    """What starting a kernel costs. graph_seconds: gap between kernels of a CUDA graph; 0 where their times include it."""

    graph_seconds: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Host(Struct, frozen=True):
    """The CPU beside the device, which runs Python and launches kernels."""

    # CPU time of one call by phase and operator or kind of operator (`forward.convolution`, `optimizer.tensor`), and of
    # each of its tensors (`recorded.sharding.tensor`): the median of the measured machines.
    seconds: Mapping[str, Positive] = {}
    benchmarks: Mapping[str, Positive] = {}  # seconds of micro-benchmarks there
    # Nine of ten programs on such machines take between 1/`faster` and `slower` times as long.
    faster: Factor = 1.5
    slower: Factor = 2.0
    disturbed: Factor = 1.0  # how many times as long a core takes beside other work
    disturbed_share: Share = 0.0  # of the time
    ratio: Factor = 1.0  # how many times as long as beside an H200 calls without a cost here take
    # Of copies between its memory and the device's: `start` in seconds; `pinned`, a share of the bus's bandwidth; of
    # pageable memory, bytes per second `to_device`, `to_host`, and `fresh`, into memory that no copy used before.
    copies: Mapping[str, Positive] = {}

    def slowness(self, ranks: int) -> float:
        """How many times as long as one rank the CPU takes for a step whose ranks wait for the slowest.

        The more ranks there are, the likelier other work disturbs one of them.
        """
        if ranks == 1:
            return 1.0
        return 1 + (self.disturbed - 1) * (1 - (1 - self.disturbed_share) ** ranks)


class Calibration(Struct, frozen=True):
    """Measured times of one family of kernels, which correct the model of the family near them."""

    family: str
    variant: str  # of the kernels, as in `Kernel`
    dtype: str
    columns: tuple[str, ...]
    # Rows of numbers as `columns` names them, the last one microseconds.
    points: Annotated[tuple[Point, ...], msgspec.Meta(min_length=1, max_length=1000)]
    software: str  # versions of the libraries that ran
    data: str  # contents of the operands, and which of them are in the cache
    source: str
    license: str = ""
    # Median, mean and 90th percentile of the relative error on measured rows that are not among the points.
    error: tuple[Error, Error, Error] | None = None

    def __hash__(self) -> int:
        """Of what tells a device's tables apart: hashing all points would take longer than any use of them."""
        return hash((self.family, self.variant, self.dtype, len(self.points)))


class Device(Struct, frozen=True, kw_only=True, dict=True):
    """One device."""

    name: str
    aliases: tuple[str, ...]
    memory_bytes: Count
    bandwidth: Positive  # of its memory
    # Peak multiply-add rate in FLOP/s by element type, dense, on matrix units where the type has them; float32 is plain
    # float32, not TF32.
    matrix: Mapping[str, Positive]
    sources: Mapping[str, str]  # the source of each figure, by field
    kind: Literal["gpu", "cpu", "tpu"] = "gpu"  # a CPU finishes each call before the next
    vector: Positive | None = None  # float32 outside of the matrix units
    context_bytes: Count | None = None  # memory that the driver and libraries of one process take
    blas_workspace_bytes: Count | None = None  # what PyTorch allocates for the matrix products of one thread
    multiprocessors: Cores | None = None  # cores with their own matrix units (SMs; AMD: compute units)
    # CUDA's compute capability, by which libraries choose kernels; 0 and 0 of a GPU that does not run CUDA.
    capability: tuple[Generation, Generation] | None = None
    clock_hz: Positive | None = None  # their highest
    power_watts: Positive | None = None  # board limit
    l2_bytes: Count | None = None
    links: tuple[Link, ...] = ()
    node: Node | None = None  # how such devices are joined in servers that are sold with them
    launch: Launch | None = None
    host: Host | None = None  # None where no CPU beside it was measured
    rates_of: str = ""  # a similar device whose constants are used, because this one was not measured
    # Nine of ten programs are within this factor, apart from errors of single kernels: all kernels of a device that was
    # not measured may be wrong in the same direction.
    spread: Factor = 1.0
    # By family and variant of kernels, or `other`: measured over predicted time in whole programs. Times are multiplied
    # by it.
    family_ratios: Mapping[str, Constant] = {}
    # Constants of the models of kernel families, by family and variant: shares of ceilings, work per multiprocessor and
    # cycle, latencies; nine of ten measured kernels are within the factor `spread`.
    rates: Mapping[str, Mapping[str, Constant]] = {}
    # Shares of the CPU and of the GPU that other processes took while a user's machine was measured, as far as the
    # system reports them.
    busy: Mapping[Literal["cpu", "gpu"], Share] = {}
    calibration: Annotated[tuple[Calibration, ...], msgspec.Meta(max_length=1000)] = ()

    @property
    def cores(self) -> int:
        """Multiprocessors; a device of which none are known, such as a CPU, is modelled as one."""
        return self.multiprocessors or 1

    @property
    def cycles(self) -> float:
        """Cycles of all of them in a second."""
        return self.cores * (self.clock_hz or 1e9)

    @cached_property
    def measured(self) -> Mapping[tuple[str, str, str], Calibration]:
        """The calibration by family, variant and element type."""
        return {(one.family, one.variant, one.dtype): one for one in self.calibration}


# Resident threads of a multiprocessor (CUDA C++ Programming Guide, technical specifications per compute capability).
_THREADS = {(7, 5): 1024, **dict.fromkeys(((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)), 1536)}
_MOST_THREADS = 2048
_TORCH = library("aten_2")


class Platform(Struct, frozen=True):
    """A device as its libraries see it."""

    capability: tuple[int, int] = (9, 0)  # CUDA's; (0, 0) of a GPU that does not run CUDA
    multiprocessors: int = 132
    torch: str = _TORCH.measured  # the release whose choices of kernels are assumed, as `2.11`
    # The release of cuDNN that its packages on PyPI require, as cuDNN numbers it: 91900 is 9.19.0.
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

    It is an H200's where a GPU's profile gives no capability, and for a device that is not a GPU.
    """
    release = HOPPER.torch if torch is None else torch
    if release not in _TORCH.releases:
        known = ", ".join(_TORCH.releases)
        raise OptionError(f"--torch {shown(release)}: choices of kernels are known of PyTorch {known}")
    platform = replace(HOPPER, torch=release, cudnn=_TORCH.releases[release]["cudnn"])
    if device is None or device.kind != "gpu":
        return platform
    own = {"capability": device.capability, "multiprocessors": device.multiprocessors}
    return replace(platform, **{name: value for name, value in own.items() if value})


_LEAST_MIX, _LARGEST_MIX = 0.2, 32  # exponent of a mean; the larger it is, the more the longest time decides


def problem(profile: Device, reference: Device) -> str:
    """One sentence that says what is wrong with the constants of a profile; "" if nothing is.

    A table must have the constants that all tables of its kind have in the profile of the reference device.
    """
    for name, table in profile.rates.items():
        kind = _kind(name)
        alike = [{*other} for known, other in reference.rates.items() if _kind(known) == kind]
        wanted = set.intersection(*alike) if alike else {*reference.rates["other"]}
        if absent := min(wanted - table.keys(), default=""):
            return f"rates[{shown(repr(name), 60)}] has no {absent}"
        if not _LEAST_MIX <= table.get("mix", 1) <= _LARGEST_MIX:
            return f"rates[{shown(repr(name), 60)}].mix is not between {_LEAST_MIX} and {_LARGEST_MIX}"
    return ""


def _kind(name: str) -> tuple[str, bool]:
    """The family of a table of constants. Depthwise convolutions, long sums and attention of one query have own models."""
    family, _, variant = name.partition(".")
    return family, variant.startswith(("depthwise", "long")) or "decoding" in variant


_FOLDER = Path(__file__).parent
_REFERENCE = "h200"
_UNDISTURBED = 0.1  # share of a machine that others may take while it is measured
_LARGEST = 1_000_000  # bytes of a profile


def device(name: str) -> Device:
    """The device of a name or alias (case is ignored), or of a profile at a path that ends in .json."""
    if name.endswith(".json"):
        found = _read(Path(name))
        if wrong := problem(found, device(_REFERENCE)):
            raise FileError(f"{shown(name)}: not a profile of a device: {wrong}")
        return with_rates(found)
    wanted = _folded(name)
    for file in sorted(_files(), key=lambda file: file.stem != wanted):
        known = _known(file)
        if wanted in map(_folded, (file.stem, known.name, *known.aliases)):
            return with_rates(known)
    listed = f"{', '.join(names())}, or a profile's path"
    raise OptionError(f"{shown(name)}: unknown device; known: {listed}")


def complete(profile: Device) -> Device:
    """The device with the driver's memory, the workspaces and the host of an H200 where its own are not known.

    A CPU has neither of the first two; of a TPU they stay unknown.
    """
    reference = device(_REFERENCE)
    host, known = profile.host or reference.host, reference.host
    if host is not None and known is not None:
        seconds = {name: cost * host.ratio for name, cost in known.seconds.items()}
        benchmarks = {name: cost * host.ratio for name, cost in known.benchmarks.items()}
        own, copies = {**seconds, **host.seconds}, {**known.copies, **host.copies}
        host = replace(host, seconds=own, benchmarks=host.benchmarks or benchmarks, copies=copies)
    context, workspace = profile.context_bytes, profile.blas_workspace_bytes
    if context is None:
        context = {"gpu": reference.context_bytes, "cpu": 0}.get(profile.kind)
    if workspace is None:
        workspace = reference.blas_workspace_bytes if profile.kind == "gpu" else 0
    return replace(profile, context_bytes=context, blas_workspace_bytes=workspace, host=host)


def substitution(profile: Device, *, has_launches: bool) -> str:
    """What predictions for a device take from others, in words; "" for nothing. has_launches: a CPU launches kernels."""
    if profile.kind == "tpu":
        own = "memory and time are those of a GPU with its bandwidth and peak, without a driver's memory"
        return f"{profile.name} does not run PyTorch's CUDA kernels: {own}"
    figures = {
        "the memory of the driver": profile.context_bytes is None and profile.kind == "gpu",
        "the generation, by which PyTorch chooses kernels,": profile.capability is None
        and profile.kind == "gpu",
        "the time in which a CPU launches kernels": has_launches and profile.host is None,
    }
    missing = " and ".join(figure for figure, is_missing in figures.items() if is_missing)
    then = "so what was measured on an H200 is used"
    return f"{missing}: not known for {profile.name}, {then}" if missing else ""


def disturbance(profile: Device) -> str:
    """What other processes took of a user's machine while it was measured, in words: "" where it is little or not known."""
    large = {part: share for part, share in profile.busy.items() if share > _UNDISTURBED}
    taken = " and ".join(f"{100 * share:.0f} % of its {part.upper()}" for part, share in large.items())
    then = "times may be predicted too long; measure it again when it is idle"
    return f"{profile.name} was measured while other processes took {taken}: {then}" if taken else ""


def names() -> tuple[str, ...]:
    """Short names of the devices whose profiles come with graphflops."""
    return tuple(file.stem for file in _files())


def published() -> list[Device]:
    """All devices whose profiles come with graphflops, the most used first."""
    return [_known(file) for file in _files()]


def with_rates(known: Device) -> Device:
    """The device with the constants of the device that it names, where it has none of its own.

    Measured kernels also correct those of another device of the same generation where it has none of their kind.
    """
    if known.rates or known.rates_of not in names():
        return known
    other = _known(_FOLDER / f"{known.rates_of}.json")
    if known.capability != other.capability:
        return replace(known, rates=other.rates)
    further = [one for key, one in other.measured.items() if key not in known.measured]
    return replace(known, rates=other.rates, calibration=(*known.calibration, *further))


def _files() -> list[Path]:
    order = ("h100", "h200", "a100")
    found = sorted(_FOLDER.glob("*.json"))
    return sorted(found, key=lambda file: order.index(file.stem) if file.stem in order else len(order))


def _read(file: Path) -> Device:
    data = content(file, "profile of a device", _LARGEST)
    try:
        return msgspec.json.decode(data, type=Device)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{shown(str(file))}: not a profile of a device: {shown(str(error))}") from None


_known = cache(_read)  # for the files of the package: a profile at a path may be written again


def _folded(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
