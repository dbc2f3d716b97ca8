"""Finds the profile of a device by name, or reads a user's own, which must hold what the models of kernels read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from graphflops.base.files import opened
from graphflops.devices.device import Device
from graphflops.errors import FileError, OptionError, shown

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
    """The family of a table of constants; depthwise convolutions have a model of their own."""
    family, _, variant = name.partition(".")
    return family, variant.startswith("depthwise")


_FOLDER = Path(__file__).parent
_REFERENCE = "h200"
_UNDISTURBED = 0.1  # share of a machine that others may take while it is measured
_LARGEST = 1_000_000  # bytes of a profile


def device(name: str) -> Device:
    """The device of a name or alias (case is ignored), or of a profile at a path that ends in .json."""
    if name.endswith(".json"):
        return with_rates(_checked(Path(name)))
    wanted = _folded(name)
    for file in sorted(_files(), key=lambda file: file.stem != wanted):
        known = _read(file)
        if wanted in map(_folded, (file.stem, known.name, *known.aliases)):
            return with_rates(known)
    listed = f"{', '.join(names())}, or a profile's path"
    raise OptionError(f"--device {shown(name)}: unknown device; known: {listed}")


def complete(profile: Device) -> Device:
    """The device with the driver's memory, the workspaces and the host of an H200 where its own are not known.

    A CPU has neither of the first two; of a TPU they stay unknown.
    """
    reference = device(_REFERENCE)
    host, known = profile.host or reference.host, reference.host
    if host is not None and known is not None:
        seconds, benchmarks = (
            {name: cost * host.ratio for name, cost in costs.items()}
            for costs in (known.seconds, known.benchmarks)
        )
        host = replace(
            host,
            seconds={**seconds, **host.seconds},
            benchmarks=host.benchmarks or benchmarks,
            copies={**known.copies, **host.copies},
        )
    context: int | None = None
    workspace: int | None = 0
    if profile.kind == "gpu":
        context, workspace = reference.context_bytes, reference.blas_workspace_bytes
    elif profile.kind == "cpu":
        context = 0
    return replace(
        profile,
        context_bytes=context if profile.context_bytes is None else profile.context_bytes,
        blas_workspace_bytes=workspace
        if profile.blas_workspace_bytes is None
        else profile.blas_workspace_bytes,
        host=host,
    )


def substitution(profile: Device, *, has_launches: bool) -> str:
    """What predictions for a device take from others, in words: "" where its own profile has all that they need.

    has_launches: whether a CPU launches kernel by kernel, as in eager execution.
    """
    if profile.kind == "tpu":
        return (
            f"{profile.name} does not run PyTorch's CUDA kernels: memory and time are those of a GPU of its "
            "bandwidth and peak, without the memory of a driver"
        )
    figures = {
        "the memory of the driver": profile.context_bytes is None and profile.kind == "gpu",
        "the generation, by which PyTorch chooses kernels,": profile.capability is None
        and profile.kind == "gpu",
        "the time in which a CPU launches kernels": has_launches and profile.host is None,
    }
    missing = " and ".join(figure for figure, is_missing in figures.items() if is_missing)
    return (
        f"{missing}: not known for {profile.name}, so those measured on an H200 are used" if missing else ""
    )


def disturbance(profile: Device) -> str:
    """What other processes took of a user's machine while it was measured, in words: "" where it is little or not known."""
    taken = [
        f"{100 * share:.0f} % of its {part.upper()}"
        for part, share in profile.busy.items()
        if share > _UNDISTURBED
    ]
    if not taken:
        return ""
    return (
        f"{profile.name} was measured while other processes took {' and '.join(taken)}: times may be predicted too long; "
        "measure it again when it is idle"
    )


def names() -> tuple[str, ...]:
    """Short names of the devices whose profiles come with graphflops."""
    return tuple(file.stem for file in _files())


def published() -> list[Device]:
    """All devices whose profiles come with graphflops, the most used first."""
    return [_read(file) for file in _files()]


def with_rates(known: Device) -> Device:
    """The device with the constants of the device that it names, where it has none of its own.

    Measured kernels also correct those of another device of the same generation where it has none of their kind.
    """
    if known.rates or known.rates_of not in names():
        return known
    other = _read(_FOLDER / f"{known.rates_of}.json")
    if known.capability != other.capability:
        return replace(known, rates=other.rates)
    own = {(one.family, one.variant, one.dtype) for one in known.calibration}
    further = [one for one in other.calibration if (one.family, one.variant, one.dtype) not in own]
    points = (*known.calibration, *further)
    return replace(known, rates=other.rates, calibration=points)


def _files() -> list[Path]:
    order = ("h100", "h200", "a100")
    found = sorted(_FOLDER.glob("*.json"))
    return sorted(found, key=lambda file: order.index(file.stem) if file.stem in order else len(order))


@cache
def _read(file: Path) -> Device:
    try:
        with opened(file) as profile:
            data = profile.read(_LARGEST + 1)
    except OSError as error:
        raise FileError(f"{shown(str(file))}: cannot be read: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise FileError(f"{shown(str(file))}: larger than {_LARGEST:,} bytes; not a profile of a device")
    try:
        return msgspec.json.decode(data, type=Device)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{shown(str(file))}: not a profile of a device: {shown(str(error))}") from None


def _checked(file: Path) -> Device:
    """A user's own profile; FileError where the models of kernels cannot compute with it."""
    from graphflops.devices.load import problem

    found = _read(file)
    if wrong := problem(found, device(_REFERENCE)):
        raise FileError(f"{shown(str(file))}: not a profile of a device: {wrong}")
    return found


def _folded(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
