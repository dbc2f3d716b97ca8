"""A plan of layouts for people and programs; its first layout as a trace of a pipeline's ranks, or of one rank."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isnan, prod
from typing import Any

from graphflops.base.protobuf import field, packed
from graphflops.base.units import memory, number, parameters, percent, rate, seconds
from graphflops.errors import OptionError
from graphflops.exporters.meshes import ranks_along
from graphflops.graph import Group, Mesh
from graphflops.planning.layouts import Layout, Step
from graphflops.planning.plan import Plan, Refused
from graphflops.planning.timeline import Event, timeline
from graphflops.render import chakra as chakras
from graphflops.render.document import Document
from graphflops.render.text import Entry, Listing, TextTable, safe
from graphflops.render.viewers import complete, meta, trace

_AXES = (
    "data", "tensor", "pipeline", "expert", "context", "micro", "sharding", "recompute", "schedule",
    "virtual",
)  # fmt: skip
_HEADS = [
    "layout", "micro-batch", "weights", "recompute", "step", "tokens/s", "MFU", "exposed", "bubble", "longest part", "",
]  # fmt: skip
_SIZES = [
    "memory of a device", "all", "weights", "gradients", "optimizer", "gathered", "activations", "temporaries",
]  # fmt: skip
_TIMES = ("seconds", "compute", "again", "exposed", "bubble", "update")
_ROW, _WIDTH, _MOST = 22, 960, 16  # pixels, and micro-batches that are drawn at most
_COLOURS = {"F": "#4e79a7", "B": "#f28e2b", "W": "#59a14f"}
WORDS = {"F": "forward", "B": "backward", "W": "gradients of weights"}


def plan_document(found: Plan) -> Document:
    """The layouts that fit, the fastest first, what they need, and the others with the reason why not."""
    return Document(
        tables(found),
        notes(found),
        headline(found),
        exact=lambda: Listing.of([_exact(found, step) for step in found.steps], _AXES),
        data=lambda: _data(found),
        title=f"{found.path}: layouts",
        pictures=lambda: "".join(map(_figure, [s for s in found.steps if s.layout.pipeline > 1][:1])),
    )


def _data(found: Plan) -> dict[str, Any]:
    keys = ("devices", "device", "network", "layers", "samples", "length", "parameters", "flops", "room")
    refused = [
        {"layout": asdict(one.layout), "reason": one.reason, "bytes": one.step and one.step.memory.total}
        | {"hosted": one.hosted and _hosted(one.hosted)}
        for one in found.refused
    ]
    data: dict[str, Any] = {"schema": 1, "model": safe(found.path, 10_000)}
    data |= {key: getattr(found, key) for key in keys}
    layouts = [_exact(found, step) for step in found.steps]
    return data | {"layouts": layouts, "refused": refused, "notes": found.notes}


def _figure(step: Step) -> str:
    others = ", gradients of weights (green)" if step.layout.schedule == "zero-bubble" else ""
    caption = f"{step.layout}: forward (blue), backward (orange){others}; a row for each stage"
    return f"<figure><figcaption>{caption}</figcaption>{schedule(step)}</figure>"


def headline(found: Plan) -> str:
    """The program, the devices and the batch."""
    size = f"{found.samples:,} samples" + (f" of {found.length:,} tokens" if found.length > 1 else "")
    where = f"{found.devices:,} x {safe(found.device, 60)}"
    return f"{safe(found.path, 80)}: {parameters(found.parameters)} parameters on {where}, {size} a step"


def notes(found: Plan) -> Iterator[str]:
    """What is assumed, and what would be faster."""
    yield safe(found.network, 200)
    yield from (safe(note, 400) for note in found.notes)
    others = (one.hosted for one in found.refused if one.hosted)
    hosted = min(others, key=lambda step: step.seconds, default=None)
    if hosted is not None and (not found.steps or hosted.seconds < found.steps[0].seconds):
        state = f"{memory(hosted.costs.state())} of each device's optimizer on the host"
        yield f"{hosted.layout} fits, and takes {seconds(hosted.seconds)} a step with {state}"


def tables(found: Plan) -> Iterator[TextTable]:
    """Times, memory, and what does not run."""
    if found.steps:
        heads = _HEADS if found.length > 1 else [head.replace("tokens", "samples") for head in _HEADS]
        yield TextTable(heads, [Entry(_times(found, step)) for step in found.steps], 4)
        lines = [(step.layout, step.memory.total, *asdict(step.memory).values()) for step in found.steps]
        yield TextTable(_SIZES, [Entry([str(name), *map(memory, sizes)]) for name, *sizes in lines])
    if found.refused:
        others = [Entry([str(one.layout), _reason(found, one)]) for one in found.refused]
        yield TextTable(("not possible", "reason"), others, 2)


def _times(found: Plan, step: Step) -> list[str]:
    whole, layout = step.seconds, step.layout
    micro = f"{layout.micro:,}" + (f", {layout.virtual} stages each" if layout.virtual > 1 else "")
    shares = [f"{percent(part, whole)} %" for part in (found.mfu(step) * whole, step.exposed, step.bubble)]
    longest = step.bound.replace("compute", "kernels")
    micro += ", zero bubble" * (layout.schedule == "zero-bubble")
    return [
        *(str(layout), micro, layout.sharding, layout.recompute, seconds(whole)),
        *(rate(found.tokens_per_second(step)), *shares, longest, found.why(step)),
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
    sizes = {"bytes": step.memory.total, "host_bytes": step.costs.state()}
    return {"layout": asdict(step.layout), "seconds": step.seconds, **sizes}


def _exact(found: Plan, step: Step) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(step.layout, name) for name in _AXES}
    row |= {name: getattr(step, name) for name in _TIMES}
    row |= {"tokens_per_second": found.tokens_per_second(step), "mfu": found.mfu(step), "bound": step.bound}
    row |= {f"{name}_bytes": size for name, size in asdict(step.memory).items()}
    return row | {"bytes": step.memory.total, "why": found.why(step)}


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


# Tracks. Forward messages may overlap backward ones, but events of one track must not overlap.
_TURNS, _KERNELS, _MESSAGES = 1, 2, 3
_PASSED = ("activations sent", "gradients sent", "activations received", "gradients received")
_COLLECTIVES = _MESSAGES + len(_PASSED)
_OUTERMOST_FIRST = ("pp", "dp", "ep", "cp", "tp")
_TRACKS = ["micro-batches", "kernels", *_PASSED, *(f"collectives, {axis}" for axis in _OUTERMOST_FIRST)]


def chrome_trace(found: Plan) -> str:
    """A process for each rank of a pipeline: micro-batches, kernels, messages, collectives. OptionError for no layout."""
    step = _first(found)
    ranks, alike = timeline(step), found.devices // step.layout.pipeline
    events: list[dict[str, Any]] = []
    for place, own in enumerate(ranks):
        name = f"stage {place} of {step.layout}: {alike:,} x {safe(found.device, 60)}, predicted"
        events.append(meta("process_name", 0, name, place + 1))
        tracks = [_track(event) for event in own]
        events += [meta("thread_name", one, _TRACKS[one - 1], place + 1) for one in sorted({_TURNS, *tracks})]
        for event, track in zip(own, tracks, strict=True):
            work = event.work
            args = {"bytes": work.nbytes} if work.axes else {"alone": seconds(work.seconds)}
            events.append({**complete(work.name, track, event.start, event.end, place + 1), "args": args})
    for span in step.costs.run(step.costs.batches).spans:
        name = f"{WORDS[span.step.work]} {span.step.microbatch}"
        shown = complete(name, _TURNS, span.start, span.end, span.device + 1)
        events.append({**shown, "args": {"stage": span.step.stage, "micro-batch": span.step.microbatch}})
    facts = {"layout": str(step.layout), "seconds": step.seconds, "exposed": step.exposed}
    return trace(events, {"model": safe(found.path, 10_000), **facts})


def _track(event: Event) -> int:
    if event.peer is not None and event.turn is not None:
        return _MESSAGES + 2 * event.is_received + (event.turn.work == "B")
    axes = event.work.axes
    return _COLLECTIVES + _OUTERMOST_FIRST.index(axes[0]) if axes else _KERNELS


def chakra(found: Plan, *, rank: int = 0) -> bytes:
    """The trace of a rank: a node for each run of kernels, each collective and message, with what has to end before.

    rank: of the mesh, whose axes are pp, dp, ep, cp and tp, the outermost first. What is received waits for its sender only.
    Raises OptionError as `chrome_trace` does, and for a rank that is not in the mesh.
    """
    step = _first(found)
    if not 0 <= rank < found.devices:
        raise OptionError(f"--rank {rank:,}: the mesh has the ranks 0 to {found.devices - 1:,}")
    place = _Place(step.layout, rank)
    own = timeline(step)[place.ranks(["pp"]).index(rank)]
    axes = {name: size for name, size in place.sizes.items() if size > 1}
    sent = dict.fromkeys(event.work.axes for event in own if event.work.axes and event.work.name != "send")
    along = {each: "+".join(axis for axis in each if axis in axes) for each in sent}
    groups = {place.group(each): Group(name, tuple(place.ranks(each))) for each, name in along.items()}
    mesh = Mesh(axes, groups, rank)
    messages = [chakras.metadata({"device": safe(found.device), "layout": str(step.layout)}, mesh)]
    if mesh.groups.keys() - {chakras.ALL}:
        messages.append(chakras.process_groups(0, mesh))
    numbers: list[range] = []
    for event in own:
        first = len(messages) - 1
        waits = packed(5, [number for place in event.waits for number in numbers[place]])
        begin, end = (round(moment * chakras.MICROSECONDS) for moment in (event.start, event.end))
        body = waits + field(6, begin) + field(7, end - begin)
        for kind, facts in place.nodes(event, step.costs.batches):
            turn, work = event.turn, event.work
            phase = "optimizer" if turn is None else "forward" if turn.work == "F" else "backward"
            common: dict[str, object] = {"is_cpu_op": False, "stream": int(bool(work.axes)), "phase": phase}
            common["predicted_seconds"] = event.end - event.start
            if turn is not None:
                common |= {"stage": turn.stage, "microbatch": turn.microbatch}
            rest = body + chakras.attributes(
                10, {**(common if work.axes else {**common, "seconds_alone": work.seconds}), **facts}
            )
            messages.append(chakras.node(len(messages) - 1, event.work.name, kind, rest))
        numbers.append(range(first, len(messages) - 1))
    return chakras.stream(messages)


def _first(found: Plan) -> Step:
    if not found.steps:
        raise OptionError(f"a trace is of a layout that fits: none does on {found.devices:,} devices")
    return found.steps[0]


class _Place:
    """A rank of a mesh. sizes: of its axes, the outermost first."""

    def __init__(self, layout: Layout, rank: int) -> None:
        data = layout.data // layout.expert
        numbers = (layout.pipeline, data, layout.expert, layout.context, layout.tensor)
        self.sizes = dict(zip(_OUTERMOST_FIRST, numbers, strict=True))
        self.rank, self.devices = rank, prod(numbers)

    def ranks(self, axes: Sequence[str]) -> list[int]:
        """The ranks that differ from this one along some axes only, in their order."""
        return ranks_along(self.sizes, "+".join(axes), self.rank)

    def group(self, axes: Sequence[str]) -> str:
        """Their name: a number that no other group has; simulators and torch have one for all ranks."""
        ranks = self.ranks(axes)
        kind = sum(1 << _OUTERMOST_FIRST.index(axis) for axis in axes)
        return chakras.ALL if len(ranks) == self.devices else str(kind * self.devices + ranks[0] + 1)

    def nodes(self, event: Event, batches: int) -> Iterator[tuple[int, chakras.Facts]]:
        """The types of an event's nodes, with their own attributes. A message around a ring is both sent and received."""
        work, turn = event.work, event.turn
        if not work.axes:
            flops, nbytes = (None if isnan(one) else round(one) for one in work.tally[1:])
            yield chakras.COMPUTE, {"num_ops": flops, "tensor_size": nbytes}
        elif work.name != "send":
            size = {"comm_type": chakras.KINDS[work.name], "comm_size": work.nbytes}
            yield chakras.COLLECTIVE, {**size, "pg_name": self.group(work.axes)}
        else:
            assert turn is not None
            (axis,) = work.axes
            tag = 2 * (turn.stage * batches + turn.microbatch) + (turn.work == "B")
            ranks = self.ranks([axis])
            here = ranks.index(self.rank)
            both = [(chakras.SEND, (here + 1) % len(ranks)), (chakras.RECEIVE, (here - 1) % len(ranks))]
            if event.peer is not None:
                both = [(chakras.RECEIVE if event.is_received else chakras.SEND, event.peer)]
            for kind, other in both:
                ends = (self.rank, ranks[other])
                sender, receiver = ends if kind == chakras.SEND else ends[::-1]
                facts = {"comm_src": sender, "comm_dst": receiver, "comm_tag": tag}
                yield kind, {**facts, "comm_size": work.nbytes}
