"""Predicts how long kernels and calls run on a device, with a 90 % interval, and how much unfused attention costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import exp
from typing import Literal

from msgspec import Struct

from graphflops.attention.attention_use import AttentionUse
from graphflops.attention.kernel import last_refusal, preferred
from graphflops.base.lazy import imported
from graphflops.base.record import replace
from graphflops.devices import Device, Host, platform_of
from graphflops.dims import Dim, evaluate
from graphflops.kernels.kernel import (
    Attention,
    Convolution,
    Exchange,
    Kernel,
    Product,
    Recurrence,
    Rows,
    Transfer,
    bytes_of,
)
from graphflops.report import Row
from graphflops.report.timeline import CallTime, TimeBound
from graphflops.time import predict_products, predict_traffic
from graphflops.time.bandwidth import Rates, Times
from graphflops.time.correction import NINE_OF_TEN, OTHER_DEVICE, correction

_SEQUENCES = "graphflops.time.predict_sequences"  # imported where attention or recurrent layers run
Bound = Literal["matrix", "vector", "memory", "link", "latency"]

# For what was not measured: shares of published peaks, the shortest time of a kernel, and a wide interval.
_MATRIX_SHARE = 0.75
_MEMORY_SHARE = 0.8
_SHORTEST = 2e-6
_UNMEASURED = 2.0
_BUS = "PCIe"  # the link between host and device
_MAPPED = 2**25  # bytes from which the C library maps each block anew (M_MMAP_THRESHOLD, at most 32 MiB)
_GROUPS = 2.0  # the interval of groups that run in streams, as a factor
_OF_GROUPS = ("one_by_one", "transposed", "direct", "grouped_direct")  # algorithms of convolutions
_RECURRENCE = 1.3  # nine of ten recurrent layers are within this factor
_NARROW, _WIDE = 64, 128  # widths of heads at which attention kernels change their tiles
_OF_MATRIX_UNITS = frozenset({"matmul", "convolution", "attention"})
# Types that devices multiply as another type: complex numbers by parts, others as signed or as the next wider type.
_OF_PARTS = {"complex64": "float32", "complex128": "float64"}
_AS = {"uint8": "int8", "int4": "int8", "uint4": "int8", "int16": "float32", "uint16": "float32"}


class Time(Struct, frozen=True):
    """Seconds of one kernel, without its launch. low, high: 90 % interval. bound: what limits the kernel."""

    seconds: float
    low: float
    high: float
    bound: Bound


def predict(kernel: Kernel, device: Device) -> Time:
    """A kernel's time by the model of its family, with constants measured on the device or on a similar one."""
    if isinstance(kernel.sizes, Recurrence):
        # All steps of all layers, in sequence except for those that overlap.
        taken = imported(f"{_SEQUENCES}:{'on_cpu' if device.kind == 'cpu' else 'recurrence'}")
        found = taken(kernel.sizes, kernel.dtype, device, lambda product: predict(product, device).seconds)
        return Time(found, found / _RECURRENCE, found * _RECURRENCE, "latency")
    if isinstance(kernel.sizes, Exchange):
        return _exchange(kernel, kernel.sizes, device)
    if isinstance(kernel.sizes, Product) and kernel.sizes.n == 1 < kernel.sizes.m:
        kernel = replace(kernel, sizes=predict_products.of_row(kernel.sizes))
    if isinstance(kernel.sizes, Transfer):
        return _transfer(kernel, kernel.sizes, device)
    if isinstance(sizes := kernel.sizes, Convolution) and sizes.algorithm in _OF_GROUPS:
        found = predict_products.group_seconds(
            kernel, sizes, device, lambda part: predict(part, device).seconds
        )
        return Time(found, found / _GROUPS, found * _GROUPS, "latency")
    width = bytes_of(kernel.dtype)
    rates = _rates(kernel, width, device)
    if rates is None:
        return _by_ceilings(kernel, device)
    seconds, arithmetic, traffic = _modelled(kernel, width, rates, device)
    # If the device has another's constants: measured over predicted time of such kernels in whole programs.
    ratios = device.family_ratios
    names = (*names_of_constants(kernel, width), "other") if ratios else ()
    ratio = next((ratios[name] for name in names if name in ratios), 1.0)
    seconds = max(seconds * ratio, kernel.flops and kernel.flops / (_peak(kernel, device) or 1e30))
    spread = rates["spread"] * (OTHER_DEVICE if device.rates_of else 1)
    corrected = correction(kernel, device)
    if corrected is not None:
        seconds *= corrected.factor
        spread = exp(NINE_OF_TEN * corrected.deviation)
    bound: Bound = "memory" if arithmetic <= traffic else "matrix" if kernel.flops else "vector"
    if max(arithmetic, traffic) < seconds / 3:
        bound = "latency"
    return Time(seconds, seconds / spread, seconds * spread, bound)


def modelled(kernel: Kernel, device: Device) -> float | None:
    """Seconds by the model of the family, without corrections; None if the device has no constants for it."""
    width = bytes_of(kernel.dtype)
    rates = _rates(kernel, width, device)
    return None if rates is None else _modelled(kernel, width, rates, device)[0]


def _exchange(kernel: Kernel, sizes: Exchange, device: Device) -> Time:
    """The time of a collective, with what PyTorch takes to start and end it."""
    from graphflops.links.cost import NO_LINK, kind_of, network_of, of_exchange  # no other program needs it

    found = of_exchange(kernel.variant, sizes, network_of(device))
    rates = device.rates.get(f"collective.{kind_of(kernel.variant)}")
    enter = rates["enter"] * 1e-6 if rates and sizes.devices > 1 else 0.0
    bandwidth = device.links[0].bandwidth if device.links else NO_LINK
    is_long = sizes.sent_bytes / bandwidth > found.seconds / 3
    bound: Bound = "link" if is_long else "latency"
    return Time(found.seconds + enter, found.low + enter, found.high + enter, bound)


def pinned_rate(device: Device) -> float | None:
    """Bytes per second of a copy from or to pinned host memory; None if the device's bus is not known."""
    copies = device.host.copies if device.host else {}
    bus = max((link.bandwidth for link in device.links if link.name.startswith(_BUS)), default=None)
    return None if bus is None or not copies else bus * copies["pinned"]


def _transfer(kernel: Kernel, sizes: Transfer, device: Device) -> Time:
    """A copy from or to the host. Pinned memory reaches the speed of the bus; pageable memory at most that of CPU copies.

    If a copy to the host allocates a large block, it is new memory each time, whose pages the system first clears.
    """
    copies, rate = device.host.copies if device.host else {}, pinned_rate(device)
    if rate is None:
        return _by_ceilings(kernel, device)
    if not sizes.is_pinned:
        is_new = sizes.to_host and kernel.read_bytes >= _MAPPED
        rate = min(rate, copies["fresh" if is_new else "to_host" if sizes.to_host else "to_device"])
    found = copies["start"] + kernel.read_bytes / rate
    return Time(found, found / _UNMEASURED, found * _UNMEASURED, "link")


def _modelled(kernel: Kernel, width: float, rates: Rates, device: Device) -> Times:
    moved, sizes = kernel.read_bytes + kernel.written_bytes, kernel.sizes
    peak = _peak(kernel, device) if isinstance(sizes, (Product, Convolution, Attention)) else None
    match sizes:
        case Rows() as sizes if kernel.family == "decomposition":
            return predict_traffic.decomposition_seconds(sizes, rates)
        case Product() as sizes if peak and "step" in rates:
            # Few blocks process k step by step, in more parts if it is longer.
            arithmetic = 2 * sizes.m * sizes.n * sizes.k / peak
            serial = sizes.k ** rates.get("power", 1.0) * rates["step"] * 1e-9
            return rates["floor"] * 1e-6 + serial + arithmetic / rates["matrix"], arithmetic, 0.0
        case Product() as sizes if peak:
            problem = predict_products.of_product(sizes, width, peak, moved)
            problem = replace(problem, is_whole=predict_products.is_whole(kernel, sizes))
        case Convolution() as sizes if sizes.algorithm == "tiled" and "step" in rates:
            return predict_traffic.tiled_seconds(sizes, width, moved, rates, device)
        case Convolution() as sizes if peak and _on_matrix_units(kernel):
            problem = predict_products.of_convolution(sizes, width, peak, moved)
        case Attention() as sizes if peak:
            taken: Callable[..., Times] = imported(f"{_SEQUENCES}:attention_seconds")
            return taken(sizes, width, moved, peak, rates, device)
        case _:
            return predict_traffic.seconds(kernel, width, rates, device)
    found, arithmetic, traffic = predict_products.seconds(problem, rates, device)
    # A bias is loaded after the product, which matters if the product is short.
    bias = rates.get("bias", 0.0) * 1e-6 * (kernel.vector_flops > 0)
    return found + bias, arithmetic, traffic


def _rates(kernel: Kernel, width: float, device: Device) -> Rates | None:
    """A kernel's constants: those of its variant and element width if measured, or else of its family.

    None for matrix work in an element type without a published peak, because the constants are shares of the peak.
    """
    if _on_matrix_units(kernel) and _peak(kernel, device) is None:
        return None
    if kernel.sizes is None and kernel.family in _OF_MATRIX_UNITS:
        return None  # the model reads the sizes
    names = names_of_constants(kernel, width)
    return next((device.rates[name] for name in names if name in device.rates), None)


def names_of_constants(kernel: Kernel, width: float) -> list[str]:
    """Names of tables that may hold a kernel's constants, most specific first. width: bytes of an element."""
    if kernel.family not in _OF_MATRIX_UNITS:  # complex numbers are processed as their parts
        width = bytes_of(_OF_PARTS.get(kernel.dtype, kernel.dtype))
    parts = kernel.variant.split(".")  # a variant of a variant has its constants unless it has its own
    of_variants: Iterable[tuple[str, ...]] = [tuple(parts[:n]) for n in range(len(parts), -1, -1)]
    match kernel.sizes:
        case Convolution() as sizes:
            kind = predict_products.convolution_kind(sizes, bytes_of(kernel.dtype))
            kinds = (kind, kind.split("_")[0], *["dense"] * (not kind.startswith("depthwise")))
            names = (*filter(None, (sizes.algorithm,)), *kinds)
            of_variants = [parts for each in names for parts in ((each, sizes.phase), (each,))]
        case Attention() as sizes:
            phase = "decoding" if sizes.queries == 1 else sizes.phase
            heads = "narrow" if sizes.width <= _NARROW else "wide" if sizes.width > _WIDE else ""
            both = f"{sizes.masking}.{heads}" if sizes.masking and heads else ""
            phases = [f"{kind}.{phase}" for kind in (both, sizes.masking, heads) if kind]
            of_variants = (*[(sizes.kernel, each) for each in (*phases, phase, "")], ())
        case Product(is_alone=True):
            of_variants = (("alone",), ())
        case Product() as sizes:
            kind = predict_products.product_kind(sizes, bytes_of(kernel.dtype))
            few = {"gemv": (("few",), ("skinny",)), "few": (("skinny",),)}.get(kind, ())
            own = [(kind, sizes.layout)] * kind.startswith("by_")
            first = [(sizes.algorithm,)] if sizes.algorithm else own
            of_variants = (*first, (kind,), *few, ("batched" if sizes.batch > 1 else sizes.layout,), ())
        # All blocks share one result.
        case Rows(rows=1) if kernel.family == "reduction" and not kernel.variant:
            of_variants = (("whole",), ())
    variants = [".".join(filter(None, (kernel.family, *parts))) for parts in of_variants]
    return [name for variant in variants for name in (f"{variant}.{int(8 * width)}", variant)]


def _on_matrix_units(kernel: Kernel) -> bool:
    """Whether matrix units do the work; depthwise convolutions have one thread for each result."""
    if isinstance(kernel.sizes, Convolution):
        return not predict_products.convolution_kind(kernel.sizes).startswith("depthwise")
    return isinstance(kernel.sizes, (Product, Attention))


def _peak(kernel: Kernel, device: Device) -> float | None:
    peak = matrix_peak(kernel.dtype, device)
    is_tf32 = kernel.family == "convolution" and kernel.dtype == "float32"  # cuDNN's default, not cuBLAS's
    return matrix_peak("tfloat32", device) or peak if is_tf32 else peak


def _by_ceilings(kernel: Kernel, device: Device) -> Time:
    """The longest of arithmetic and traffic, plus the shortest time of any kernel."""
    peak = _peak(kernel, device)
    limits: dict[Bound, float] = {
        "matrix": kernel.flops / (peak * _MATRIX_SHARE) if peak else 0.0,
        "vector": kernel.vector_flops / (device.vector * _MATRIX_SHARE) if device.vector else 0.0,
        "memory": (kernel.read_bytes + kernel.written_bytes) / (device.bandwidth * _MEMORY_SHARE),
        "latency": _SHORTEST,
    }
    bound = max(limits, key=lambda name: limits[name])
    seconds = _SHORTEST + max(limits["matrix"], limits["vector"], limits["memory"])
    return Time(seconds, seconds / _UNMEASURED, seconds * _UNMEASURED, bound)


def matrix_peak(dtype: str, device: Device) -> float | None:
    """The peak rate of matrix products in an element type; None if none is published."""
    name = "float8" if dtype.startswith("float8") else _OF_PARTS.get(dtype, dtype)
    return device.matrix.get(name, device.matrix.get(_AS.get(name, "")))


_PARTS = 8  # of a recurrent layer: the GPU runs its first steps while the CPU launches later ones


class Batch(Struct, frozen=True, eq=False):
    """The kernels of one call."""

    kernels: tuple[Kernel, ...]
    kernel_seconds: tuple[float, ...]  # of each kernel, or of parts of a kernel that stands for many
    seconds: float  # sum over all kernels
    low: float  # ends of the interval, as factors
    high: float
    bound: TimeBound  # that of the longest kernel
    families: str
    work: tuple[tuple[str, int], ...]  # bytes under "", FLOPs by element type
    collective: float = 0.0  # seconds of exchanges with other devices, among these

    @staticmethod
    def of(kernels: tuple[Kernel, ...], known: Mapping[Kernel, Time]) -> Batch:
        """The batch of these kernels. known: the time of each."""
        times = [known[kernel] for kernel in kernels]
        each = [time.seconds for time in times]
        seconds, families = sum(each), dict.fromkeys([kernel.family for kernel in kernels])
        longest = max(times, key=lambda time: time.seconds, default=None)
        if "recurrence" in families:
            counts = [_PARTS if isinstance(kernel.sizes, Recurrence) else 1 for kernel in kernels]
            each = [time.seconds / n for time, n in zip(times, counts, strict=True) for _ in range(n)]
        work: dict[str, int] = {}
        for kernel in kernels:
            work[""] = work.get("", 0) + kernel.read_bytes + kernel.written_bytes
            if kernel.flops:
                work[kernel.dtype] = work.get(kernel.dtype, 0) + kernel.flops
        pairs = zip(kernels, times, strict=True)
        return Batch(
            *(kernels, tuple(each), seconds),
            low=sum([time.low for time in times]) / seconds if seconds else 1.0,
            high=sum([time.high for time in times]) / seconds if seconds else 1.0,
            bound="launch" if longest is None else longest.bound,
            families=", ".join(families),
            work=tuple(work.items()),
            collective=sum([time.seconds for kernel, time in pairs if kernel.family == "collective"]),
        )

    def call_time(self, took: float, is_eager: bool, host: Host, times: int = 1) -> CallTime:
        """A call's time and interval: those of its kernels, or of the CPU if the kernels wait for it.

        took: how much longer the program is for `times` calls. host: how much other CPUs differ.
        """
        is_launch = is_eager and took > 0 and (took > 1.5 * times * self.seconds or not self.kernels)
        if is_launch or not self.seconds:
            return CallTime(took, took / host.faster, took * host.slower, "launch", self.families)
        return CallTime(took, took * self.low, took * self.high, self.bound, self.families)


_HALF = ("bfloat16", "float16")


def fused_instead(
    uses: Collection[AttentionUse], timed: Iterable[Row], values: Mapping[str, int], device: Device
) -> Iterator[tuple[AttentionUse, Row, float, float]]:
    """For each attention: its first row, the forward time of its calls, and that of a fused kernel on the same operands.

    A fused kernel takes at least as long as the program's shortest call.
    """

    def number(size: Dim) -> int:
        return evaluate(size, values) or 0

    rows = {row.node: row for row in timed} if uses else {}
    times = {name: row.time.seconds for name, row in rows.items() if row.time is not None}
    shortest = min(filter(None, times.values()), default=0.0)
    for use in [use for use in uses if use.calls[0] in rows]:
        row = rows[use.calls[0]]
        batch, heads, queries, width = map(number, (use.batch, use.heads, use.queries, use.width))
        width, flops = max(width, number(use.value_width)), number(use.flops)
        hidden = number(use.masked_flops)
        dtype = row.matrix_dtype or "float32"
        best = preferred(platform_of(device), is_half=dtype in _HALF)
        sizes = Attention(batch, heads, number(use.kv_heads), queries, number(use.keys), width, kernel=best)
        sizes = replace(sizes, computed=1 - hidden / flops if flops else 1.0)
        moved = int(bytes_of(dtype)) * batch * heads * queries * width
        kernel = Kernel("attention", dtype, flops - hidden, 0, moved + number(use.kv_bytes), moved, sizes)
        fused = max(predict(kernel, device).seconds, shortest) * number(use.times)
        yield use, row, sum(times.get(name, 0.0) for name in use.calls), fused


def slowdowns(
    attentions: Iterable[AttentionUse], timed: Sequence[Row], values: Mapping[str, int], device: Device
) -> dict[str, float]:
    """How many times longer than fused unfused attention takes, by the reason of the last kernel that refused."""
    taken: dict[str, tuple[float, float]] = {}  # seconds unfused and fused
    uses = [use for use in attentions if use.kernel == "math"]
    for use, _, own, instead in fused_instead(uses, timed, values, device):
        why = last_refusal(use.kernel_reason)
        unfused, fused = taken.get(why, (0.0, 0.0))
        taken[why] = unfused + own, fused + instead
    return {why: unfused / fused for why, (unfused, fused) in taken.items() if unfused > fused > 0}
