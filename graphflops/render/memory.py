"""Memory on a device, options of training and the mesh, as text; for pages, and for pytorch.org/memory_viz."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any

from graphflops.base.units import numbered, seconds, unnumbered
from graphflops.derived.items import outside_of_calls
from graphflops.dims import Dim, total
from graphflops.errors import ModelError, OptionError
from graphflops.memory.allocator import BEFORE, OPTIMIZER, Allocator, Block, moments, replay, without_value
from graphflops.memory.ledger import is_alive, peak_moment
from graphflops.render import summary
from graphflops.render.text import Entry, Numbers, TextTable, count_of, listed, operator_name, safe
from graphflops.render.time import LEAST_SHARE, communication, limits, rates
from graphflops.report import Exchange, PhaseMemory, Report, phases_of
from graphflops.report.timeline import ENTRIES, LASTING, Held, HeldKind, Timeline
from graphflops.tensor import grouped
from graphflops.training import Training

_LARGEST = 10
_TOTALS = ("requested_peak", "allocated_peak", "reserved_peak", "context", "device_total")
PARTS = (*dict.fromkeys(ENTRIES.values()), *_TOTALS)
_EXACT = ("weights", "buffers", "inputs", "optimizer", "context")  # calls of unknown cost add nothing to them
_VERBS = {"inference": "runs", "training": "trains"}
_KINDS = {
    "input": "input", "value": "result", "saved": "saved", "workspace": "temporary", "nested": "nested graph",
    "gradient": "gradient", "library": "workspace",
}  # fmt: skip
# Kinds of memory that are shown as one entry each: alive throughout, or in the optimizer's step.
_TOGETHER: dict[HeldKind, str] = {
    "weight": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
    "temporary": "optimizer step",
}


def need(report: Report, numbers: Numbers) -> str:
    """`runs in 1.520 GB, trains in 20.10 GB on NVIDIA H200 SXM (eager, AdamW)`."""
    phases = []
    for entry in report.memory_use:
        # Without a device, the context and workspaces are missing too.
        least = at_least(report) or (">= " if entry.context is None else "")
        phases.append(f"{_VERBS[entry.phase]} in {least}{numbers.memory(entry.taken)}")
    device = report.memory_use[0].device
    place = f" on {safe(device, 60)}" if device else ""
    return f"{', '.join(phases)}{place} ({described(report)})"


def at_least(report: Report) -> str:
    """`>= ` before amounts of memory to which calls of unknown cost may add, else ""."""
    return ">= " if report.coverage.unknown else ""


def described(report: Report) -> str:
    """How the program runs and is trained: `eager, AdamW`."""
    step = "" if report.training is None else f", {optimizer(report.training)}"
    return f"{report.execution}{step}"


def parts(report: Report, numbers: Numbers) -> TextTable:
    """A line for each part of the ledger that is not zero everywhere, with a figure for each phase."""
    entries = []
    for name in PARTS:
        sizes: list[Dim | None] = [getattr(entry, name) for entry in report.memory_use]
        if any(size != 0 for size in sizes):
            told = ["?" if size is None else amount(report, name, size, numbers) for size in sizes]
            entries.append(Entry([label(name), *told]))
    return TextTable(("device memory", *(entry.phase for entry in report.memory_use)), entries)


def amount(report: Report, name: str, size: Dim, numbers: Numbers) -> str:
    """An entry of the ledger as a figure; a lower bound where calls of unknown cost may add to it."""
    return ("" if name in _EXACT else at_least(report)) + numbers.memory(size)


def label(name: str) -> str:
    """An entry of the ledger in words."""
    return "total on the device" if name == "device_total" else name.replace("_", " ")


def _peak_line(report: Report, entry: PhaseMemory, moment: int) -> str:
    """Where a phase has its peak. moment: of the peak."""
    turn = entry.timeline.gradients_from
    if entry.timeline.rows[moment] == OPTIMIZER:
        return "the optimizer's step" if entry.phase == "training" else "the whole program"
    if report.origin.format == "recorded":
        return summary.located(report, entry.peak_node)
    gradient = "gradient of " if turn is not None and moment >= turn else ""
    name, place = safe(entry.peak_node, 80), summary.located(report, entry.peak_node)
    return gradient + (place if place.partition(" (")[0] == name else f"{name} in {place}")


def folded(timeline: Timeline) -> Timeline:
    """The timeline with parameters, buffers and the optimizer as one entry each."""
    groups = grouped((one.kind if one.kind in _TOGETHER else "", one) for one in timeline.held)
    held = [one._replace(first=0) if one.kind == "library" else one for one in groups.get("", ())]
    for kind, called in _TOGETHER.items():
        if parts := groups.get(kind):
            held.append(Held(called, kind, parts[0].first, parts[0].last, total(one.bytes for one in parts)))
    return Timeline(timeline.rows, tuple(held), timeline.gradients_from)


def at_peak(report: Report, entry: PhaseMemory, numbers: Numbers) -> TextTable:
    """The largest tensors alive at the peak of a phase; those of equal layers are one line."""
    timeline = folded(entry.timeline)
    moment = peak_moment(timeline, report.values)
    alive = [held for held in timeline.held if is_alive(held, moment)]
    calls = {held.name: summary.user_call(held.name) for held in alive}
    makers = {row.node: row for row in report.rows if row.node in calls.values()}
    makers |= {out.name: row for row in report.rows for out in row.outputs if out.name in calls}
    alike: dict[tuple[str, ...], list[Held]] = {}
    for held in alive:
        row = makers.get(calls[held.name])
        made = () if row is None else (row.op, unnumbered(row.module or row.source), str(held.bytes))
        alike.setdefault((held.kind, *(made or (held.name,))), []).append(held)
    groups = [(total(one.bytes for one in group), group) for group in alike.values()]
    groups.sort(key=lambda item: -(numbers.value(item[0]) or 0))
    entries = []
    for size, group in groups[:_LARGEST]:
        names = [calls[one.name] for one in sorted(group, key=lambda one: one.first)]
        rows = [makers[name] for name in names if name in makers]
        more = f" and {len({*names}) - 1:,} more" if len({*names}) > 1 else f" (x{len(group)})"
        place = numbered([row.module or row.source for row in rows]) if rows else ""
        name = safe(names[0]) + (more if len(group) > 1 else "")
        entries.append(Entry([name, _KINDS.get(group[0].kind, ""), safe(place), numbers.memory(size)]))
    rest = [one for _, group in groups[_LARGEST:] for one in group]
    if rest:
        left = numbers.memory(total(one.bytes for one in rest))
        entries.append(Entry([f"… {len(rest):,} more", "", "", left]))
    title = f"at the peak of {entry.phase}: {_peak_line(report, entry, moment)}"
    return TextTable(("held", "what", "where", "bytes"), entries, 3, title)


_OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD with momentum", "adamw": "AdamW", "none": "no optimizer"}


def optimizer(training: Training) -> str:
    """`AdamW`."""
    return _OPTIMIZERS.get(training.optimizer, training.optimizer.capitalize())


def training_words(training: Training) -> str:
    """`AdamW (fused), bf16-mixed, 4 micro-steps, recomputes layers.*`: the optimizer and other options than the default."""
    how = f" ({training.implementation})" if training.optimizer != "none" else ""
    parts = [optimizer(training) + how, training.precision or ""]
    if training.accumulate > 1:
        parts.append(f"{training.accumulate:,} micro-steps")
    if training.lora_rank:
        is_default = training.lora_modules == Training().lora_modules
        modules = "" if is_default else f" in {_names(training.lora_modules)}"
        parts.append(f"adapters of rank {training.lora_rank:,}{modules}")
    named = {
        "freezes": training.freeze,
        "recomputes": training.recompute,
        "gradients of": training.grad_inputs,
    }
    parts += [f"{verb} {_names(names)}" for verb, names in named.items() if names]
    if training.loss != Training().loss:
        parts.append(f"loss {training.loss}")
    return ", ".join(filter(None, parts))


def _names(names: tuple[str, ...]) -> str:
    return listed(safe(name, 40) for name in names)


def mesh_facts(report: Report, numbers: Numbers) -> Iterator[tuple[str, str]]:
    """The mesh, and the bytes sent along each of its axes."""
    mesh = report.mesh
    assert mesh is not None
    sizes = ", ".join(f"{safe(axis, 40)}={size}" for axis, size in mesh.axes.items())
    devices = count_of(prod(mesh.axes.values()), "device")
    yield "mesh", f"{sizes}: {devices}, of which rank {mesh.rank} is recorded"
    along = grouped((exchange.axis, exchange) for exchange in report.exchanges)
    if along:
        texts = (
            f"{numbers.memory(total(each.bytes for each in sent))} {_axis(axis)}"
            for axis, sent in along.items()
        )
        yield "by mesh axis", ", ".join(texts)
    if report.device and len(along) > 1:
        texts = (f"{_axis(axis)} {', '.join(_times(sent))} exposed" for axis, sent in along.items())
        yield "collectives by axis", "; ".join(texts)


def exchanges(report: Report, numbers: Numbers) -> TextTable:
    """A line for each kind of collective by axis, phase and module without numbers; times if known."""
    alike = grouped(((one.axis, one.op, unnumbered(one.module), one.phase), one) for one in report.exchanges)
    entries = []
    for group in alike.values():
        modules = numbered([exchange.module for exchange in group])
        calls, sent = sum(each.calls for each in group), total(each.bytes for each in group)
        what = [_axis(group[0].axis), operator_name(group[0].op), safe(modules), group[0].phase]
        times = _times(group) if report.device else ()
        entries.append(Entry([*what, f"{calls:,}", numbers.memory(sent), *times]))
    timed = ("time", "exposed") if report.device else ()
    return TextTable(("axis", "collective", "module", "phase", "calls", "sent", *timed), entries, 4)


def _times(exchanges: Sequence[Exchange]) -> list[str]:
    return [seconds(sum(one.seconds for one in exchanges)), seconds(sum(one.exposed for one in exchanges))]


def _axis(axis: str) -> str:
    return safe(axis, 40) or "no axis"


def memory_of(
    report: Report, entry_of: Sequence[int], name: Callable[[str], int], formula: Callable[[Dim, Report], int]
) -> dict[str, Any] | None:
    """The timeline in columns, of the last phase on a device; None if not known. name, formula: their index in the page."""
    entry = report.memory_use[-1] if report.memory_use else None
    memory = report.memory if entry is None else folded(entry.timeline)
    if not memory.rows or any(not OPTIMIZER <= row < len(entry_of) for row in memory.rows):
        return None
    cells = [(name(h.name), h.kind, h.first, h.last, formula(h.bytes, report)) for h in memory.held]
    columns = zip(*cells, strict=True)
    return {
        "calls": [None if row == OPTIMIZER else entry_of[row] for row in memory.rows],
        "gradients_from": memory.gradients_from,
        **dict(zip(("name", "kind", "first", "last", "bytes"), columns, strict=False)),
        **({} if entry is None else {"device": _device(report, entry)}),
    }


def _device(report: Report, entry: PhaseMemory) -> dict[str, Any]:
    """The device, and the bytes of segments at each moment when these change. The page shows them while `peak` is right."""
    found: dict[str, Any] = {"name": entry.device, "phase": entry.phase, "segments": [], "peak": None}
    if (known := entry.timeline.sizes(report.value)) is None:
        return found
    reserved = enumerate(replay(entry.timeline, known, Allocator()))
    steps = [next(group) for _, group in groupby(reserved, key=lambda step: step[1])]
    return {**found, "segments": steps, "peak": str(max(entry.timeline.live_bytes(known)))}


SECOND = 10**12  # picoseconds


def device_of(report: Report) -> dict[str, Any] | None:
    """The device with the times of the phases and the bytes that the last phase takes; None for a report without one."""
    if not report.device:
        return None
    taken = report.memory_use[-1].device_total if report.memory_use else None
    whole = report.step_time or report.totals.time
    told = (*communication(report, whole), *rates(report, whole)) if whole else ()
    # Seconds of an inference or a step outside of calls, which the page's modules do not show.
    micro_steps = 1 if report.training is None else report.training.accumulate
    outside = sum(outside_of_calls(report).values()) * micro_steps
    whole_name = "forward" if report.step_time is None else "step"
    times = {}
    for name, totals in phases_of(report).items():
        if time := totals.time:
            rest, limited = outside if name == whole_name else 0.0, limits(time)
            limited += f"; {seconds(rest)} outside of calls" if rest > LEAST_SHARE * time.seconds else ""
            ends = [round(end * SECOND) for end in (time.seconds, time.low, time.high)]
            times[name] = {"ends": ends, "limited_by": limited, "is_lower_bound": time.is_lower_bound}
    return {
        "name": safe(report.device, 60),
        "execution": report.execution,
        "times": times,
        "rates": [text for _, text in told],
        "bytes": None if taken is None else report.value(taken),
    }


Frames = list[dict[str, Any]]
_NOWHERE = {"filename": "", "line": 0}


def snapshot(report: Report) -> bytes:
    """The last phase, a training step where there is one, from an empty allocator on; ModelError where a size is open."""
    import pickle  # imported here because other views do not need it

    if not report.memory_use:
        raise OptionError("a memory snapshot is of a device: name one with --device, such as h200")
    timeline = (entry := report.memory_use[-1]).timeline
    if (sizes := timeline.sizes(report.value)) is None:
        open_size = without_value(timeline, report.values)
        raise ModelError(f"{open_size} has no value: a snapshot needs numbers, give it with --dim")
    frames = [_frames(report, entry, held) for held in timeline.held]
    allocator, blocks, trace = Allocator(), dict[int, Block](), list[dict[str, Any]]()

    def record(action: str, address: int, size: int, frames: Frames) -> None:  # times count events
        event = {"action": action, "addr": address, "size": size, "stream": 0}
        trace.append({**event, "time_us": len(trace), "frames": frames})

    def take(place: int) -> None:
        if sizes[place]:
            before = len(allocator.segments)
            block = blocks[place] = allocator.allocate(sizes[place])
            for address, size in [*allocator.segments.items()][before:]:
                record("segment_alloc", address, size, [])
            record("alloc", block.address, sizes[place], frames[place])

    for place in [place for place, held in enumerate(timeline.held) if held.kind in BEFORE]:
        take(place)
    for moment in moments(timeline, sizes):
        for place in (*moment.kept, *moment.taken):
            take(place)
        for place in moment.freed:
            block = blocks.pop(place)
            for action in ("free_requested", "free_completed"):
                record(action, block.address, sizes[place], frames[place])
            allocator.free(block)
    whole = {"segments": _segments(allocator, blocks, frames), "device_traces": [trace]}
    return pickle.dumps({**whole, "allocator_settings": {}, "external_annotations": []}, protocol=4)


def _frames(report: Report, entry: PhaseMemory, held: Held) -> Frames:
    """Where memory is taken, as a stack: the value and what it is, the operator, the source line, the module."""
    top = {**_NOWHERE, "name": f"{held.name} ({held.kind})"}
    row = entry.timeline.rows[held.first]
    if held.kind in LASTING or held.kind == "input" or row == OPTIMIZER:
        return [top]
    call = report.rows[row]
    turn = entry.timeline.gradients_from
    phase = "gradient of " if turn is not None and held.first >= turn else ""
    found = re.fullmatch(r"(.{1,4096}?):(\d{1,9})", call.source)
    place = {"filename": found[1], "line": int(found[2])} if found else {"filename": call.source, "line": 0}
    return [top, {**place, "name": f"{phase}{call.op}"}, {**_NOWHERE, "name": call.module or "(program)"}]


def _segments(
    allocator: Allocator, used: Mapping[int, Block], frames: Sequence[Frames]
) -> list[dict[str, Any]]:
    """The segments with their blocks. used: blocks by the place of what they hold, as `frames`."""
    starts = {block.address: block for block in used.values()}
    for pool in allocator.pools.values():
        starts.update((address, block) for _, address, block in pool.free)
    places = {id(block): place for place, block in used.items()}
    found = []
    for start, size in allocator.segments.items():
        blocks = list[dict[str, Any]]()
        block: Block | None = starts[start]
        while block is not None:
            place, state = places.get(id(block)), "active_allocated" if block.is_used else "inactive"
            told = {"address": block.address, "size": block.size, "requested_size": block.requested}
            blocks.append({**told, "state": state, "frames": [] if place is None else frames[place]})
            block = block.next
        taken = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        sizes = {"total_size": size, "allocated_size": taken, "active_size": taken}
        sizes["requested_size"] = sum(block["requested_size"] for block in blocks)
        kind = {"stream": 0, "segment_type": "small" if starts[start].pool.is_small else "large"}
        other: dict[str, Any] = {"segment_pool_id": (0, 0), "is_expandable": False, "frames": []}
        found.append({"device": 0, "address": start, **sizes, **kind, **other, "blocks": blocks})
    return found
