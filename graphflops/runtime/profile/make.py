"""Makes the profile of this machine's device from measured kernels."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import torch

from graphflops.base.record import replace
from graphflops.devices import Calibration, Device, Host, Launch, complete, device, published, with_rates
from graphflops.errors import OptionError, RunError, first_line, shown
from graphflops.kernels.kernel import Kernel
from graphflops.runtime.machine import machine_bytes
from graphflops.runtime.profile.constants import fitted
from graphflops.runtime.profile.host import Others, host_benchmarks, rounded, scaled_host
from graphflops.runtime.profile.products import attentions, convolutions, products
from graphflops.runtime.profile.traffic import traffic
from graphflops.runtime.profile.trial import Clock, CpuClock, CudaClock, Trial
from graphflops.time.correction import columns_of, interpolated, names_of, variant_of
from graphflops.time.predict import modelled

Measured = list[tuple[Kernel, float]]
Progress = Callable[[int, int], None]

_LIMIT = 100.0  # seconds of measurements
_HELD_OUT = 5  # one in this many measured kernels is held out to check the others
_MOST = 300  # points of one family, variant and element type
_USEFUL = 0.3  # if the device has constants, points with a larger mean error do not replace them
_FASTER, _SLOWER = 1.4, 1.5  # of `Host`, for a CPU that runs the kernels itself
_LARGE = 2e7  # bytes; copies of more show the bandwidth
_SIMILAR = "h200"  # a GPU without constants gets those of this one
_AGAIN = "measure on an idle machine"
_SOURCES = {"bandwidth": "measured", "matrix": "measured"}
_HOST_SOURCE = "costs of calls on the host of an H200, times the ratio of the micro-benchmarks here and there"


def profile(kind: str, runtime: str, progress: Progress | None = None) -> Device:
    """Measure the device of this machine. kind: "cuda" or "cpu". runtime: "torch" or "onnxruntime"."""
    others = _others(kind)
    if runtime == "onnxruntime":
        from graphflops.runtime.profile.onnx_trials import OnnxClock

        clock: Clock = OnnxClock()
    else:
        clock = CudaClock() if kind == "cuda" else CpuClock()
    # The host comes first: once the capture of a CUDA graph has failed, torch's random numbers fail in that process.
    host = _host(kind) if runtime == "torch" else Host({})
    if kind == "cpu":
        host = replace(host, faster=_FASTER, slower=_SLOWER)
    # Seconds between two kernels of a CUDA graph, which measured times include. A CPU has no such gap.
    launch = device(_SIMILAR).launch
    gap = launch.graph_seconds if kind == "cuda" and launch else 0.0
    measured = measure(clock, _LIMIT, progress)
    _require_enough(measured, kind)
    found = [(kernel, max(seconds - gap, seconds / 2)) for kernel, seconds in measured.kernels]
    known = _gpu(found) if kind == "cuda" else _cpu(found, clock.l2_bytes)
    sources = {**known.sources, "launch": "contained in the times of kernels" if not gap else "as on an H200"}
    if host.seconds:
        sources["host"] = _HOST_SOURCE
    known = replace(known, launch=Launch(gap), host=host, sources=sources, busy=others.shares())
    has_constants = kind == "cuda" and bool(known.rates)
    version = torch.__version__ if runtime == "torch" else clock.version
    points = tuple(_calibrations(found, known, f"{runtime} {version}", has_constants=has_constants))
    if not points and not has_constants:
        raise RunError(f"--device {kind}: {_counted(measured)}, too few to predict from: {_AGAIN}")
    return replace(known, calibration=points)


def profile_of_host(kind: str, base: str | None) -> Device:
    """The profile `base` with the host section of this machine. base: by default, the profile of this machine's GPU."""
    others = _others(kind)
    name = torch.cuda.get_device_name(0) if kind == "cuda" else "cpu"
    known = device(base) if base else _published(name)
    if known is None:
        raise OptionError(f"--host-only: no profile is known for {name}: name the one to complete by --base")
    host = _host(kind)
    return replace(known, host=host, sources={**known.sources, "host": _HOST_SOURCE}, busy=others.shares())


def _others(kind: str) -> Others:
    """A watch on other processes, also on the GPU if it is measured. Raises RunError if there is no GPU to measure."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise RunError("--device cuda: torch finds no GPU on this machine; measure its CPU with --device cpu")
    number = getattr(torch.cuda.get_device_properties(0), "uuid", "") if kind == "cuda" else ""
    return Others(f"GPU-{number}" if number else "")


def _require_enough(measured: Measurement, kind: str) -> None:
    """Raises RunError if most kernels failed, or if no products or nothing but products were measured."""
    failed = measured.refused.total()
    if failed > len(measured.kernels):
        (reason, _), *_ = measured.refused.most_common(1)
        most = f"{failed:,} failed, most of them with: {shown(reason, 200)}"
        raise RunError(f"--device {kind}: {_counted(measured)}, and {most}")
    are_products = {kernel.flops > 0 for kernel, _ in measured.kernels}
    names = {"product": True, "elementwise kernel": False}
    if missing := [name for name, is_product in names.items() if is_product not in are_products]:
        raise RunError(f"--device {kind}: {_counted(measured)}, no {' and no '.join(missing)}: {_AGAIN}")


def _counted(measured: Measurement) -> str:
    return f"{len(measured.kernels):,} of {measured.trials:,} kernels were measured in {_LIMIT:g} s"


def _host(kind: str) -> Host:
    """The host section of this machine: costs of the H200's host, scaled by micro-benchmarks on both."""
    reference = complete(device(_SIMILAR)).host
    assert reference is not None
    measured = {name: rounded(seconds) for name, seconds in host_benchmarks(kind).items()}
    return scaled_host(reference, measured)


def _published(name: str) -> Device | None:
    return next((one for one in published() if name in (one.name, *one.aliases)), None)


def encoded(device: Device) -> bytes:
    """The profile as JSON, with one line for each object and no decimal point in whole numbers."""
    plain = msgspec.to_builtins(device)
    kept = {key: value for key, value in plain.items() if value not in (None, "", [], {})}
    for one in kept.get("calibration", ()):
        one["points"] = [[int(x) if x.is_integer() else x for x in point] for point in one["points"]]
    return msgspec.json.encode(kept).replace(b"},", b"},\n")


def _gpu(found: Measured) -> Device:
    """The GPU, with published figures if it is known, else with what torch reports and the rates that were reached."""
    about = torch.cuda.get_device_properties(0)
    if (known := _published(about.name)) is not None:
        return known if known.rates or known.rates_of else replace(known, rates_of=_SIMILAR)
    clock = getattr(about, "clock_rate", None)
    return Device(
        name=about.name,
        aliases=(),
        memory_bytes=about.total_memory,
        bandwidth=_bandwidth(found, about.L2_cache_size),
        matrix=_peaks(found, "cuda"),
        multiprocessors=about.multi_processor_count,
        capability=(0, 0) if torch.version.hip else (about.major, about.minor),
        clock_hz=clock * 1e3 if clock else None,
        l2_bytes=about.L2_cache_size or None,
        rates_of=_SIMILAR,
        sources={**_SOURCES, "rates_of": f"not measured: those of {_SIMILAR}"},
    )


def _cpu(found: Measured, cache: int) -> Device:
    """The CPU. The models take it for one core, because its libraries use all cores for each kernel."""
    model = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    known = Device(
        name=f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        kind="cpu",
        aliases=(),
        memory_bytes=machine_bytes(),
        bandwidth=_bandwidth(found, cache),
        matrix=_peaks(found, "cpu"),
        l2_bytes=cache,
        sources={
            **_SOURCES,
            "rates": "fitted to four fifths of the measured kernels",
            "l2_bytes": "the largest cache that the system names",
        },
    )
    return replace(known, rates=fitted(_kept(found), known))


def _bandwidth(found: Measured, cache: int) -> float:
    """The highest rate at which a kernel moved more bytes than fit in the cache."""
    moved = [(k.read_bytes + k.written_bytes, seconds) for k, seconds in found if not k.flops]
    large = [(nbytes, seconds) for nbytes, seconds in moved if nbytes > max(_LARGE, 2 * cache)]
    return rounded(max([nbytes / seconds for nbytes, seconds in large or moved] or [1e9]))


def _peaks(found: Measured, kind: str) -> dict[str, float]:
    """The highest rate of products in each element type."""
    peaks: dict[str, float] = defaultdict(float)
    for kernel, seconds in found:
        if kernel.flops and kernel.family in ("matmul", "convolution"):
            name = "float8" if kernel.dtype.startswith("float8") else kernel.dtype
            if kind == "cuda" and kernel.family == "convolution" and name == "float32":
                name = "tfloat32"
            peaks[name] = max(peaks[name], rounded(kernel.flops / seconds))
    return dict(peaks)


def _calibrations(
    found: Measured, known: Device, software: str, *, has_constants: bool
) -> Iterable[Calibration]:
    groups: dict[tuple[str, str, str], list[tuple[float, ...]]] = defaultdict(list)
    model_of = with_rates(known)
    for kernel, seconds in found:
        model = modelled(kernel, model_of)
        if model:
            point = (*columns_of(kernel), seconds * 1e6, seconds / model)
            groups[_group(kernel)].append(tuple(map(rounded, point)))
    for (family, variant, dtype), points in sorted(groups.items()):
        kept = [point for index, point in enumerate(points) if index % _HELD_OUT or len(points) < _HELD_OUT]
        one = Calibration(
            *(family, variant, dtype, names_of(family, len(points[0])), tuple(kept[:_MOST]), software),
            data="random normal numbers; weights not in the cache",
            source="measured by graphflops profile",
        )
        held_out = points[::_HELD_OUT] if len(points) >= 2 * _HELD_OUT else []
        if not held_out:
            if not has_constants:
                yield one
            continue
        # Median, mean and 90th percentile of the relative error for held-out kernels.
        errors = sorted(abs(interpolated(one, point[:-2]).factor / point[-1] - 1) for point in held_out)
        last, mean = len(errors) - 1, sum(errors) / len(errors)
        told = (errors[last // 2], mean, errors[round(0.9 * last)])
        one = replace(one, error=tuple(map(rounded, told)))
        # Keep points that predict held-out kernels better than constants do, and well if the device has its own.
        alone = sum(abs(1 / point[-1] - 1) for point in held_out) / len(held_out)
        if rounded(mean) < (min(alone, _USEFUL) if has_constants else alone):
            yield one


def _group(kernel: Kernel) -> tuple[str, str, str]:
    return kernel.family, variant_of(kernel), kernel.dtype


def _kept(found: Measured) -> Measured:
    """The kernels that are not held out, chosen in the same way as points."""
    seen: dict[tuple[str, str, str], count[int]] = defaultdict(count)
    return [(kernel, seconds) for kernel, seconds in found if next(seen[_group(kernel)]) % _HELD_OUT]


def _trials(clock: Clock) -> list[Trial]:
    """The kernels to measure, in an order that uses up all groups at the same rate."""
    if clock.runtime == "onnxruntime":
        from graphflops.runtime.profile.onnx_trials import onnx_trials

        groups = [list(onnx_trials(clock))]
    else:
        groups = [list(source(clock)) for source in (products, attentions, convolutions, traffic)]
    for group in groups:
        Random(0).shuffle(group)
    keyed = [(index / len(group), trial) for group in groups for index, trial in enumerate(group)]
    return [trial for _, trial in sorted(keyed, key=lambda pair: pair[0])]


class Measurement(msgspec.Struct):
    """Results of a number of trials: each measured kernel with its seconds, and how often each error occurred."""

    trials: int
    kernels: Measured = []
    refused: Counter[str] = msgspec.field(default_factory=Counter)


def measure(clock: Clock, limit: float, progress: Progress | None = None) -> Measurement:
    """Times every trial. Families take turns, so that a time limit cuts all of them alike."""
    ended = time.monotonic() + limit
    trials = _trials(clock)
    found = Measurement(len(trials))
    for done, trial in enumerate(trials):
        if progress is not None:
            progress(done, len(trials))
        if time.monotonic() > ended:
            break
        try:
            if seconds := _seconds(clock, trial):
                found.kernels.append((trial.kernel, seconds))
        except RuntimeError as error:  # the device, this release of torch, or its memory does not allow it
            found.refused[first_line(error)] += 1
    return found


def _seconds(clock: Clock, trial: Trial) -> float | None:
    """Seconds of a trial; None if this torch has no such kernel."""
    with torch.no_grad():
        calls = trial.prepare()
        return clock.seconds(calls) / trial.turns if calls else None
