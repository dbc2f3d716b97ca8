"""A plan of layouts for a terminal, a review, a spreadsheet, programs, and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from graphflops.base.units import memory, number, parameters, rate, seconds
from graphflops.planning.layouts import Step
from graphflops.planning.plan import Plan, Refused
from graphflops.render.document import Document, fragment
from graphflops.render.html.fragment import escaped, page
from graphflops.render.tables import Entry, Listing, TextTable
from graphflops.render.text import safe

_AXES = (
    "data", "tensor", "pipeline", "expert", "context", "micro", "sharding", "recompute", "schedule",
    "virtual",
)  # fmt: skip
_HEADS = [
    "layout", "micro-batch", "weights", "recompute", "step", "a second", "MFU", "exposed", "bubble", "bound", "",
]  # fmt: skip
_SIZES = [
    "memory of a device", "all", "weights", "gradients", "optimizer", "gathered", "activations", "temporaries",
]  # fmt: skip
_TIMES = ("seconds", "compute", "again", "exposed", "bubble", "update")
# Of the picture of a schedule.
_ROW, _WIDTH, _MOST = 22, 960, 16  # pixels, and micro-batches that are drawn at most
_COLOURS = {"F": "#4e79a7", "B": "#f28e2b", "W": "#59a14f"}
WORDS = {"F": "forward", "B": "backward", "W": "gradients of weights"}


def document(found: Plan) -> Document:
    """The layouts that fit, the fastest first, what they need, and the others with the reason why not."""
    return Document(
        tables(found),
        notes(found),
        headline(found),
        exact=lambda: Listing.of([_exact(found, step) for step in found.steps], _AXES),
        data=lambda: _data(found),
    )


def _data(found: Plan) -> dict[str, Any]:
    keys = ("devices", "device", "network", "layers", "samples", "length", "parameters", "flops", "room")
    refused = [
        {
            "layout": asdict(one.layout),
            "reason": one.reason,
            "bytes": one.step and one.step.memory.total,
            "hosted": one.hosted and _hosted(one.hosted),
        }
        for one in found.refused
    ]
    data: dict[str, Any] = {"schema": 1, "model": safe(found.path, 10_000)}
    data |= {key: getattr(found, key) for key in keys}
    layouts = [_exact(found, step) for step in found.steps]
    return data | {"layouts": layouts, "refused": refused, "notes": found.notes}


def html(found: Plan) -> str:
    """A page that needs no network and runs no script."""
    pictures = "".join(
        f"<figure><figcaption>{step.layout}: forward and backward by stage</figcaption>{schedule(step)}</figure>"
        for step in [step for step in found.steps if step.layout.pipeline > 1][:1]
    )
    title = f"{found.path}: layouts"
    return page(title, f"<h1>{escaped(title)}</h1>{fragment(found)}{pictures}")


def headline(found: Plan) -> str:
    """The program, the devices and the batch."""
    size = f"{found.samples:,} samples" + (f" of {found.length:,} tokens" if found.length > 1 else "")
    where = f"{found.devices:,} x {safe(found.device, 60)}"
    return f"{safe(found.path, 80)}: {parameters(found.parameters)} parameters on {where}, {size} a step"


def notes(found: Plan) -> Iterator[str]:
    """What is assumed, and what would be faster."""
    yield safe(found.network, 200)
    yield from (safe(note, 400) for note in found.notes)
    hosted = min(
        (one.hosted for one in found.refused if one.hosted), key=lambda one: one.seconds, default=None
    )
    if hosted is not None and (not found.steps or hosted.seconds < found.steps[0].seconds):
        taken = (
            f"{seconds(hosted.seconds)} a step with {memory(hosted.costs.state())} of each device's optimizer"
        )
        yield f"{hosted.layout} fits, and takes {taken} on the host"


def tables(found: Plan) -> Iterator[TextTable]:
    """Times, memory, and what does not run."""
    if found.steps:
        yield TextTable(_HEADS, [Entry(_times(found, step)) for step in found.steps], 4)
        lines = [(step.layout, step.memory.total, *asdict(step.memory).values()) for step in found.steps]
        yield TextTable(_SIZES, [Entry([str(name), *map(memory, sizes)]) for name, *sizes in lines])
    if found.refused:
        others = [Entry([str(one.layout), _reason(found, one)]) for one in found.refused]
        yield TextTable(("not possible", "reason"), others, 2)


def _times(found: Plan, step: Step) -> list[str]:
    whole, layout = step.seconds, step.layout
    micro = f"{layout.micro:,}" + (f", {layout.virtual} stages each" if layout.virtual > 1 else "")
    micro += ", zero bubble" * (layout.schedule == "zero-bubble")
    return [
        *(str(layout), micro, layout.sharding, layout.recompute, seconds(whole)),
        *(rate(found.tokens_per_second(step)), f"{found.mfu(step):.1%}", f"{step.exposed / whole:.0%}"),
        *(f"{step.bubble / whole:.0%}", step.bound, found.why(step)),
    ]


def _reason(found: Plan, one: Refused) -> str:
    reason, step, hosted = safe(one.reason, 200), one.step, one.hosted
    if step is None:
        return reason
    sizes = f"{reason}: {memory(step.memory.total)} of {memory(found.room)}"
    if hosted is not None:
        return f"{sizes}; {seconds(hosted.seconds)} a step with {memory(hosted.costs.state())} of optimizer on the host"
    return f"{sizes}, even with {step.layout.sharding} sharding and {step.layout.recompute} recomputation"


def _hosted(step: Step) -> dict[str, Any]:
    """A step that has its optimizer's state in the host's memory."""
    sizes = {"bytes": step.memory.total, "host_bytes": step.costs.state()}
    return {"layout": asdict(step.layout), "seconds": step.seconds, **sizes}


def _exact(found: Plan, step: Step) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(step.layout, name) for name in _AXES}
    row |= {name: getattr(step, name) for name in _TIMES}
    row |= {"tokens_per_second": found.tokens_per_second(step), "mfu": found.mfu(step), "bound": step.bound}
    row |= {f"{name}_bytes": size for name, size in asdict(step.memory).items()}
    row |= {"bytes": step.memory.total}
    return row | {"why": found.why(step)}


def said(found: Plan) -> str:
    """The first layout in one line."""
    if not found.steps:
        return f"{safe(found.path, 80)}: no layout on {found.devices:,} devices fits"
    best = found.steps[0]
    reached = f"{seconds(best.seconds)} a step, {number(round(found.tokens_per_second(best)))} tokens/s"
    return f"{safe(found.path, 80)}: {best.layout}, {reached}"


def schedule(step: Step) -> str:
    """Which device runs which of the first micro-batches of a step when, as SVG."""
    devices = step.layout.pipeline
    found = step.costs.run(min(_MOST // devices * devices or devices, 2 * devices))
    scale = _WIDTH / found.seconds
    bars = "".join(
        f'<rect x="{span.start * scale:.1f}" y="{span.device * _ROW}" width="{(span.end - span.start) * scale:.1f}" '
        f'height="{_ROW - 2}" fill="{_COLOURS[span.step.work]}" stroke="#fff"><title>stage {span.step.stage}, '
        f"micro-batch {span.step.microbatch}, {WORDS[span.step.work]}</title></rect>"
        for span in found.spans
    )
    size = f"0 0 {_WIDTH} {devices * _ROW}"
    return f'<svg viewBox="{size}" role="img" aria-label="schedule of the pipeline">{bars}</svg>'
