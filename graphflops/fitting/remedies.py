"""What would make a program fit: changes of its training and of the allocator, each with the memory that it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphflops.devices import Device
from graphflops.errors import GraphflopsError
from graphflops.fitting.varied_size import VariedSize
from graphflops.memory.allocator import ExpandableAllocator
from graphflops.memory.ledger import at_sizes, on_device
from graphflops.open_sizes import of_report
from graphflops.report import Report
from graphflops.training import Training

_ADAM = ("adam", "adamw")
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that takes less memory. option: how to say it. needed: bytes with it; fits: whether that is enough."""

    change: str
    option: str
    needed: int
    fits: bool


def remedies(
    report: Report, report_of: Callable[..., Report], step: Training | None, device: Device
) -> Iterator[Remedy]:
    """Changes that take less memory, the simplest first.

    report_of: analyzes the model with another training step, or with other sizes.
    """
    now, _ = VariedSize(report).needed(device)
    yield from _less(_with_allocator(report, device), now)

    def tried(change: str, option: str, changed: Training | None, **more: Any) -> list[Remedy]:
        try:
            found = report_of(changed, **more)
        except GraphflopsError:  # a change that this program does not take
            return []
        return _less(_remedy(change, option, found, device), now)

    if report.execution == "eager":
        yield from tried("torch.compile", "--execution compiled", step, execution="compiled")
    yield from _less(_half(report, report_of, step, device), now)
    for change, option, changed in () if step is None else _steps(report, step):
        yield from tried(change, option, changed)
    if step is not None:
        yield from _less(_together(report, report_of, step, device), now)


def _steps(report: Report, step: Training) -> Iterator[tuple[str, str, Training]]:
    """Training steps that take less memory: what changes, how to say it, and the step."""
    if step.optimizer in _ADAM and step.implementation == "foreach":
        yield "fused optimizer", f"--optimizer {step.optimizer}:fused", replace(step, implementation="fused")
    blocks = () if step.recompute else tuple(repeated_modules(report.modules))
    if blocks:
        option = " ".join(f"--recompute '{pattern}'" for pattern in blocks)
        yield "recompute activations", option, replace(step, recompute=blocks)
    if step.precision is None and "float32" in report.parameter_dtypes:
        yield "autocast to bfloat16", "--precision bf16-mixed", replace(step, precision="bf16-mixed")
        yield "all in bfloat16", "--precision bf16", replace(step, precision="bf16")
    if step.optimizer in _ADAM:
        single = replace(step, optimizer="adafactor", implementation=None)
        yield "an optimizer with factored state", "--optimizer adafactor", single
    if not step.lora_rank:
        yield "adapters of rank 16", "--lora 16", replace(step, lora_rank=16)


def repeated_modules(modules: Mapping[str, str]) -> list[str]:
    """Patterns of the outermost lists of modules of one type: `model.layers.*`."""
    lists: dict[str, set[str]] = defaultdict(set)
    sizes: dict[str, int] = defaultdict(int)
    for path, kind in modules.items():
        parent, _, name = path.rpartition(".")
        if name.isdecimal():
            lists[parent].add(kind)
            sizes[parent] += 1
    alike = [path for path, kinds in lists.items() if len(kinds) == 1 and sizes[path] > 1]
    inside = tuple(f"{path}." for path in alike)
    return [f"{path}.*".removeprefix(".") for path in alike if not path.startswith(inside)]


def _half(
    report: Report, report_of: Callable[..., Report], step: Training | None, device: Device
) -> Remedy | None:
    """Half the batch, in training in each of two micro-steps; None where the first axis of the inputs is not open, or 1."""
    sizes, infos = of_report(report), report.symbols
    symbol = next((name for name in infos if sizes.at_axis(name).name.endswith("[0]")), "")
    name, size = sizes.stated[symbol] if symbol else ("", 0)
    batch = report.value(size) or 0
    if batch < 2:
        return None
    half = -(-batch // 2)
    given = {one: info.value for one, info in infos.items() if info.given_by == "user" and one != symbol}
    changed = None if step is None else replace(step, accumulate=2 * step.accumulate)
    try:
        found = report_of(changed, dims={**given, name: half}, inputs=None)
    except GraphflopsError:
        return None
    option = f"--dim '{name}={half}'"
    if changed is None:
        return _remedy("half the batch", option, found, device)
    return _remedy("half the batch, twice", f"--accumulate {changed.accumulate} {option}", found, device)


def _together(
    report: Report, report_of: Callable[..., Report], step: Training, device: Device
) -> Remedy | None:
    """Recomputed activations under autocast with a fused optimizer; None where the program does not take that."""
    blocks = step.recompute or tuple(repeated_modules(report.modules))
    if not blocks or step.precision is not None or "float32" not in report.parameter_dtypes:
        return None
    how = "fused" if step.optimizer in _ADAM else step.implementation
    changed = replace(step, recompute=blocks, precision="bf16-mixed", implementation=how)
    try:
        found = report_of(changed)
    except GraphflopsError:
        return None
    return _remedy("recompute, bfloat16, fused", "three of these options together", found, device)


def _with_allocator(report: Report, device: Device) -> Remedy:
    """The same with segments that grow, in which fewer gaps stay."""
    entry = on_device(report.memory_use[-1], device)
    needed = report.value(at_sizes(entry, report.values, ExpandableAllocator(), report.rows).taken) or 0
    return Remedy("segments that grow", _EXPANDABLE, needed, needed <= device.memory_bytes)


def _remedy(change: str, option: str, report: Report, device: Device) -> Remedy:
    return Remedy(change, option, *VariedSize(report).needed(device))


def _less(remedy: Remedy | None, now: int) -> list[Remedy]:
    """The remedy, if it takes less than is needed now."""
    return [remedy] if remedy is not None and remedy.needed < now else []
