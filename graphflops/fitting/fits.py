"""Whether a program fits on a device, the largest size that does, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from graphflops.analysis import analyze
from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.budget.amounts import asked
from graphflops.derived.resize import values_at
from graphflops.devices import Device, complete, device as device_named, published
from graphflops.dims.solving import first_from
from graphflops.errors import FileError, GraphflopsError, OptionError
from graphflops.fitting.cells import LENGTHS, Cell, KvCache, cell_of, is_open_for, kv_cache, most_requests
from graphflops.fitting.varied_size import SPARE, VariedSize, room
from graphflops.loading import Model, opened, phases
from graphflops.memory.allocator import ExpandableAllocator
from graphflops.memory.ledger import at_sizes, on_device
from graphflops.open_sizes import of_report
from graphflops.report import PhaseMemory, Report
from graphflops.report.contradictions import contradicted
from graphflops.tensor import grouped
from graphflops.training import Training, training_of

_READING = ("args", "kwargs", "dynamic_shapes", "model_name")  # options of how a model is read
_REFERENCE = "h200"  # the profile that is assumed if the device is only a number of bytes


class Verdict(Record, frozen=True):
    """Whether a phase fits on one device."""

    device: str
    memory: int  # bytes of the device
    needed: int  # bytes that the phase takes on it, including the driver's
    fits: bool
    largest: int | None = None  # the largest varied size that fits: None if none is varied, 0 if none fits
    is_bounded: bool = False  # whether `largest` is the end of the model's own range

    @property
    def margin(self) -> int:
        """Bytes that are left; negative where they are missing."""
        return self.memory - self.needed


class Fits(Rendered, Record, frozen=True):
    """Whether a program fits."""

    report: Report  # of the model, with its phases on the first device
    entry: PhaseMemory
    verdicts: tuple[Verdict, ...]
    varied: str = ""  # the size that is varied, as it was named; "" for none
    at_size: int = 0  # its largest value that fits on the first device, the least one where none does
    step: int = 1  # from there to the next
    # The phase there, and one step further, None where the range ends.
    at_largest: tuple[PhaseMemory, PhaseMemory | None] | None = None
    remedies: tuple[Remedy, ...] = ()
    cache: KvCache | None = None  # of a decoder, with its requests
    requests: tuple[tuple[int, int], ...] = ()  # by length of the cache the most that fit on the first device
    cell: Cell | None = None  # of a decoder, a step at the largest size
    # Of a file with both phases of a decoder, by name: this is then the one that needs more, with the step's requests.
    phases: Mapping[str, Fits] = {}

    @property
    def fits(self) -> bool:
        """True where one of the devices suffices; of a varied size, at some value."""
        return any(verdict.largest if self.varied else verdict.fits for verdict in self.verdicts)

    @property
    def is_lower_bound(self) -> bool:
        """Whether calls of unknown cost, or a driver that is not known, may need more, so that a yes is not certain."""
        return self.report.coverage.unknown > 0 or self.entry.context is None

    @property
    def doubt(self) -> str:
        """Where the file contradicts itself, so that no answer can be relied on; "" where it does not."""
        return contradicted(self.report)


def fits(
    model: Model,
    *,
    device: str | None = None,
    memory: str | int | None = None,
    all_devices: bool = False,
    vary: str | None = None,
    training: bool | Training = False,
    **options: Any,
) -> Fits:
    """Whether a model fits on a device.

    device: its name, or the path of a profile. memory: bytes, or text such as `24GB`, of the device, or of any.
    all_devices: on each device that is known. vary: a size (`ids[0]`) whose largest value that fits is looked for.
    training, options: as for `analyze`. A file with both phases of a decoder fits if both do, at the sizes of the export.
    Raises OptionError where no device is named, ModelError for a size without a value.
    """
    devices = _devices(device, memory, all_devices)
    step = training_of(training) if training else None
    reading = {name: options.pop(name) for name in _READING if name in options}
    try:
        program = opened(model, **reading)
    except FileError:  # sizes, names and steps of training are those of one program
        if step or vary or any({**options, **reading, "execution": None}.values()):
            raise
        run = partial(fits, device=device, memory=memory, all_devices=all_devices, **options)
        return _worse(dict(zip(("decode", "prefill"), map(run, phases(model)), strict=True)))
    saved = program if isinstance(program, Report) else None
    report_of = partial(analyze, program, device=device or _REFERENCE, times=False, **options)
    report = saved or report_of(training=step or False, times=True)
    if not report.memory_use:
        raise OptionError("the saved report lacks the memory of a device: save it with --device")

    def report_at(shapes: Mapping[str, Sequence[int]]) -> Report:
        return report_of(training=step or False, inputs={**(options.get("inputs") or {}), **shapes})

    size = VariedSize.of(report, vary, None if saved else report_at)
    verdicts = tuple([verdict(size, one) for one in devices])
    found = Fits(report, size.at(None, devices[0]), verdicts, vary or "")
    return _detailed(found, size, devices, None if saved else report_of, step, options.get("dims") or {})


def _worse(found: Mapping[str, Fits]) -> Fits:
    """The phase that needs more, with what each device has for both."""
    pairs = zip(*(one.verdicts for one in found.values()), strict=True)
    verdicts = tuple([min(pair, key=lambda one: (one.fits, one.margin)) for pair in pairs])
    more = min(found.values(), key=lambda one: (one.verdicts[0].fits, one.verdicts[0].margin))
    step = found["decode"]
    return replace(more, verdicts=verdicts, cache=step.cache, requests=step.requests, phases=found)


def _detailed(
    found: Fits, size: VariedSize, devices: Sequence[Device], report_of: Callable[..., Report] | None,
    step: Training | None, dims: Mapping[str, int],
) -> Fits:  # fmt: skip
    """With the requests of a decoder, what the largest size takes, and remedies. report_of: None for a saved report."""
    report, of_first, first = found.report, found.verdicts[0], devices[0]
    if (cache := kv_cache(report)) is not None:
        free = int((1 - SPARE) * room(first))
        entry = on_device(report.memory_use[-1], first)
        lengths = LENGTHS if cache.batch and cache.lengths else ()
        known = [length for length in lengths if is_open_for(report, cache, length)]
        requests = [(length, most_requests(report, entry, cache, length, free)) for length in known]
        found = replace(found, cache=cache, requests=tuple(requests))
    if found.varied:
        largest = of_first.largest or size.sizes.start
        at = size.at(largest, first, room(first) if of_first.largest else None)
        more = None if of_first.is_bounded else size.at(largest + size.sizes.step, first)
        found = replace(found, at_size=largest, step=size.sizes.step, at_largest=(at, more))
        if cache is None or report_of is None or step or size.axes:
            return found
        chosen = values_at(report, {found.varied: largest})
        timed = report_of(times=True, dims={**dims, **chosen})
        return replace(found, cell=cell_of(report, chosen, timed.totals.time))
    if found.fits or report_of is None or len(devices) > 1:
        return found
    tried = remedies(report, report_of, step, first)
    return replace(found, remedies=tuple([one for one in tried if one.needed < of_first.needed]))


def _devices(name: str | None, memory: str | int | None, is_all: bool) -> list[Device]:
    if is_all:
        if name is not None or memory is not None:
            raise OptionError("--all-devices takes every known device: leave out --device and --memory")
        run_pytorch = [one for one in published() if one.blas_workspace_bytes is not None]
        return [complete(one) for one in sorted(run_pytorch, key=lambda one: -one.memory_bytes)]
    if name is None and memory is None:
        raise OptionError("name a device, or its memory: --device h200, --memory 24GB, or --all-devices")
    profile = complete(device_named(name or _REFERENCE))
    if memory is None:
        return [profile]
    size = memory if isinstance(memory, int) else asked("--memory", memory, "B")
    return [structs.replace(profile, name=profile.name if name else "a device", memory_bytes=size)]


def verdict(size: VariedSize, device: Device) -> Verdict:
    """Whether the last phase fits on a device, and the largest value of the size at which it does."""
    found = Verdict(device.name, device.memory_bytes, *size.needed(device))
    if not size.name:
        return found
    # How many of the sizes, from the least one on, the phase fits with.
    most = len(size.sizes)
    low, high = 0, min(size.start(device), most)
    while high <= most and size.is_within(size.sizes[high - 1], device):
        low, high = high, 2 * high
    ends = low + 1, min(high, most + 1)
    count = first_from(*ends, lambda count: not size.is_within(size.sizes[count - 1], device)) - 1
    return replace(found, largest=size.sizes[count - 1] if count else 0, is_bounded=count == most)


_ADAM = ("adam", "adamw")
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
# What changes, the option that asks for it, the training step, and other options of the analysis.
_Change = tuple[str, str, Training | None, dict[str, Any]]


class Remedy(Record, frozen=True):
    """A change that saves memory. option: how to ask for it. needed: bytes with it; fits: whether that is enough."""

    change: str
    option: str
    needed: int
    fits: bool


def remedies(
    report: Report, report_of: Callable[..., Report], step: Training | None, device: Device
) -> Iterator[Remedy]:
    """Changes that may save memory, the simplest first. report_of: analyzes the model with another step or options."""
    # The same program with expandable segments, which leave fewer gaps.
    entry = on_device(report.memory_use[-1], device)
    needed = report.value(at_sizes(entry, report.values, ExpandableAllocator(), report.rows).taken) or 0
    yield Remedy("segments that grow", _EXPANDABLE, needed, needed <= device.memory_bytes)

    for change, option, changed, more in _changes(report, step):
        try:
            found = report_of(training=changed or False, **more)
        except GraphflopsError:  # the program does not allow this change
            continue
        yield Remedy(change, option, *VariedSize(found).needed(device))


def _changes(report: Report, step: Training | None) -> Iterator[_Change]:
    if report.execution == "eager":
        yield "torch.compile", "--execution compiled", step, {"execution": "compiled"}
    yield from _half(report, step)
    if step is not None:
        yield from ((*change, {}) for change in _steps(report, step))


def _steps(report: Report, step: Training) -> Iterator[tuple[str, str, Training]]:
    """Training steps that save memory."""
    is_single = step.precision is None and "float32" in report.parameter_dtypes
    blocks = step.recompute or tuple(repeated_modules(report.modules))
    if step.optimizer in _ADAM and step.implementation == "foreach":
        yield "fused optimizer", f"--optimizer {step.optimizer}:fused", replace(step, implementation="fused")
    if blocks and not step.recompute:
        option = " ".join(f"--recompute '{pattern}'" for pattern in blocks)
        yield "recompute activations", option, replace(step, recompute=blocks)
    if is_single:
        yield "autocast to bfloat16", "--precision bf16-mixed", replace(step, precision="bf16-mixed")
        yield "all in bfloat16", "--precision bf16", replace(step, precision="bf16")
    if step.optimizer in _ADAM:
        single = replace(step, optimizer="adafactor", implementation=None)
        yield "an optimizer with factored state", "--optimizer adafactor", single
    if not step.lora_rank:
        yield "adapters of rank 16", "--lora 16", replace(step, lora_rank=16)
    if blocks and is_single:
        how = "fused" if step.optimizer in _ADAM else step.implementation
        every = replace(step, recompute=blocks, precision="bf16-mixed", implementation=how)
        yield "recompute, bfloat16, fused", "three of these options together", every


def repeated_modules(modules: Mapping[str, str]) -> list[str]:
    """Patterns of the outermost lists of modules of one type: `model.layers.*`."""
    paths = ((path.rpartition("."), kind) for path, kind in modules.items())
    lists = grouped((parent, kind) for (parent, _, name), kind in paths if name.isdecimal())
    alike = [path for path, kinds in lists.items() if len(kinds) > 1 and len({*kinds}) == 1]
    inside = tuple(f"{path}." for path in alike)
    return [f"{path}.*".removeprefix(".") for path in alike if not path.startswith(inside)]


def _half(report: Report, step: Training | None) -> Iterator[_Change]:
    """Half the batch; in training, as two micro-steps. Nothing if the first axis of the inputs is not open, or is 1."""
    sizes, infos = of_report(report), report.symbols
    symbol = next((name for name in infos if sizes.at_axis(name).name.endswith("[0]")), "")
    name, size = sizes.stated[symbol] if symbol else ("", 0)
    batch = report.value(size) or 0
    if batch < 2:
        return
    half = -(-batch // 2)
    given = {one: info.value for one, info in infos.items() if info.given_by == "user" and one != symbol}
    halved, option = {"dims": {**given, name: half}, "inputs": None}, f"--dim '{name}={half}'"
    if step is None:
        yield "half the batch", option, None, halved
        return
    changed = replace(step, accumulate=2 * step.accumulate)
    yield "half the batch, twice", f"--accumulate {changed.accumulate} {option}", changed, halved
