"""The first layout of a plan as traces: of all ranks of a pipeline for Perfetto, of one rank of the mesh for simulators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import isnan, prod
from typing import Any

import msgspec

from graphflops.base.protobuf import field, packed
from graphflops.base.units import seconds
from graphflops.errors import OptionError
from graphflops.graph import Group, Mesh
from graphflops.planning.layouts import Layout, Step
from graphflops.planning.plan import Plan
from graphflops.planning.timeline import Event, timeline
from graphflops.render import chakra as chakras
from graphflops.render.exact import inert
from graphflops.render.plan import WORDS
from graphflops.render.text import safe
from graphflops.render.viewers import complete, meta
from graphflops.version import __version__

# Tracks. What goes forward passes what goes back, and events of a track do not overlap.
_TURNS, _KERNELS, _MESSAGES = 1, 2, 3
_PASSED = ("activations sent", "gradients sent", "activations received", "gradients received")
_AXES = _MESSAGES + len(_PASSED)
_OUTERMOST_FIRST = ("pp", "dp", "ep", "cp", "tp")


def chrome_trace(found: Plan) -> str:
    """A process for each rank of a pipeline: its micro-batches, kernels, messages, and collectives by axis of the mesh.

    Raises OptionError where no layout fits, or has too many micro-batches.
    """
    step = _first(found)
    ranks, alike = timeline(step), found.devices // step.layout.pipeline
    events: list[dict[str, Any]] = []
    for place, own in enumerate(ranks):
        name = f"stage {place} of {step.layout}: {alike:,} x {safe(found.device, 60)}, predicted"
        events += [meta("process_name", 0, name, place + 1), *_tracks(own, place + 1)]
    for span in step.costs.run(step.costs.batches).spans:
        name = f"{WORDS[span.step.work]} {span.step.microbatch}"
        shown = complete(name, _TURNS, span.start, span.end, span.device + 1)
        events.append({**shown, "args": {"stage": span.step.stage, "micro-batch": span.step.microbatch}})
    facts = {"layout": str(step.layout), "seconds": step.seconds, "exposed": step.exposed}
    other = {"exporter": f"graphflops {__version__}", "model": safe(found.path, 10_000), **facts}
    whole = {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}
    return inert(msgspec.json.encode(whole))


def _tracks(events: Sequence[Event], process: int) -> Iterator[dict[str, Any]]:
    """The events of a rank behind the names of their tracks."""
    names = ["micro-batches", "kernels", *_PASSED, *(f"collectives, {axis}" for axis in _OUTERMOST_FIRST)]
    places = [_track(event) for event in events]
    for track in sorted({_TURNS, *places}):
        yield meta("thread_name", track, names[track - 1], process)
    for event, track in zip(events, places, strict=True):
        work = event.work
        shown = {"bytes": work.nbytes} if work.axes else {"alone": seconds(work.seconds)}
        yield {**complete(work.name, track, event.start, event.end, process), "args": shown}


def _track(event: Event) -> int:
    if event.peer is not None and event.turn is not None:
        return _MESSAGES + 2 * event.is_received + (event.turn.work == "B")
    axes = event.work.axes
    return _AXES + _OUTERMOST_FIRST.index(axes[0]) if axes else _KERNELS


def chakra(found: Plan, *, rank: int = 0) -> bytes:
    """The trace of a rank: a node for each run of kernels, each collective and message, with what has to end before.

    rank: of the mesh, whose axes are pp, dp, ep, cp and tp, the outermost first. What is received waits for its sender only.
    Raises OptionError as `chrome_trace` does, and for a rank that is not in the mesh.
    """
    step = _first(found)
    if not 0 <= rank < found.devices:
        raise OptionError(f"--rank {rank:,}: the mesh has the ranks 0 to {found.devices - 1:,}")
    place = _Place(step.layout, rank)
    own = timeline(step)[place.coordinates["pp"]]
    facts: list[chakras.Attribute] = [
        ("device", "string", safe(found.device)),
        ("layout", "string", str(step.layout)),
    ]
    axes = {name: size for name, size in place.sizes.items() if size > 1}
    sent = dict.fromkeys(event.work.axes for event in own if event.work.axes and event.work.name != "send")
    along = {each: "+".join(axis for axis in each if axis in axes) for each in sent}
    groups = {place.group(each): Group(name, place.ranks(each)) for each, name in along.items()}
    mesh = Mesh(axes, groups, rank)
    messages = [chakras.metadata(facts, mesh)]
    if mesh.groups.keys() - {chakras.ALL}:
        messages.append(chakras.process_groups(0, mesh))
    numbers: list[range] = []
    for event in own:
        first = len(messages) - 1
        waits = packed(5, [number for place in event.waits for number in numbers[place]])
        begin, end = (round(moment * chakras.MICROSECONDS) for moment in (event.start, event.end))
        body = waits + field(6, begin) + field(7, end - begin)
        for kind, facts in place.nodes(event, step.costs.batches):
            rest = body + chakras.attributes(10, [*_facts(event), *facts])
            messages.append(chakras.node(len(messages) - 1, event.work.name, kind, rest))
        numbers.append(range(first, len(messages) - 1))
    return chakras.stream(messages)


def _first(found: Plan) -> Step:
    if not found.steps:
        raise OptionError(f"a trace is of a layout that fits: none does on {found.devices:,} devices")
    return found.steps[0]


def _facts(event: Event) -> list[chakras.Attribute]:
    """What the nodes of an event have in common."""
    turn, work = event.turn, event.work
    facts: list[chakras.Attribute] = [
        chakras.on_cpu(False),
        ("stream", "int64", int(bool(work.axes))),
        ("phase", "string", "optimizer" if turn is None else "forward" if turn.work == "F" else "backward"),
        ("predicted_seconds", "double", event.end - event.start),
    ]
    if turn is not None:
        facts += [("stage", "int64", turn.stage), ("microbatch", "int64", turn.microbatch)]
    return facts if work.axes else [*facts, ("seconds_alone", "double", work.seconds)]


class _Place:
    """A rank of a mesh. sizes: of its axes, the outermost first. coordinates: of the rank."""

    def __init__(self, layout: Layout, rank: int) -> None:
        data = layout.data // layout.expert
        numbers = (layout.pipeline, data, layout.expert, layout.context, layout.tensor)
        self.sizes = dict(zip(_OUTERMOST_FIRST, numbers, strict=True))
        self.rank, self.devices = rank, prod(numbers)
        self.strides = {name: prod(numbers[at + 1 :]) for at, name in enumerate(self.sizes)}
        self.coordinates = {name: rank // self.strides[name] % size for name, size in self.sizes.items()}

    def along(self, axis: str, coordinate: int) -> int:
        """The rank with another coordinate."""
        return self.rank + (coordinate - self.coordinates[axis]) * self.strides[axis]

    def ranks(self, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks that differ from this one along some axes only, in their order."""
        first = self.rank - sum(self.coordinates[axis] * self.strides[axis] for axis in axes)
        places = product(
            *(range(0, self.sizes[axis] * self.strides[axis], self.strides[axis]) for axis in axes)
        )
        return tuple([first + sum(place) for place in places])

    def group(self, axes: Sequence[str]) -> str:
        """Their name: a number that no other group has; simulators and torch have one for all ranks."""
        ranks = self.ranks(axes)
        kind = sum(1 << _OUTERMOST_FIRST.index(axis) for axis in axes)
        return chakras.ALL if len(ranks) == self.devices else str(kind * self.devices + ranks[0] + 1)

    def nodes(self, event: Event, batches: int) -> Iterator[tuple[int, list[chakras.Attribute]]]:
        """The types of an event's nodes, with their own attributes. What goes around a ring is sent and received."""
        work, turn = event.work, event.turn
        size: chakras.Attribute = ("comm_size", "int64", work.nbytes)
        if not work.axes:
            flops, nbytes = (None if isnan(one) else round(one) for one in work.tally[1:])
            yield chakras.COMPUTE, [("num_ops", "int64", flops), ("tensor_size", "uint64", nbytes)]
        elif work.name != "send":
            group: chakras.Attribute = ("pg_name", "string", self.group(work.axes))
            yield chakras.COLLECTIVE, [("comm_type", "int64", chakras.KINDS[work.name]), size, group]
        else:
            assert turn is not None
            (axis,) = work.axes
            tag = 2 * (turn.stage * batches + turn.microbatch) + (turn.work == "B")
            here, places = self.coordinates[axis], self.sizes[axis]
            both = [(chakras.SEND, (here + 1) % places), (chakras.RECEIVE, (here - 1) % places)]
            if event.peer is not None:
                both = [(chakras.RECEIVE if event.is_received else chakras.SEND, event.peer)]
            for kind, other in both:
                ends = (self.rank, self.along(axis, other))
                sender, receiver = ends if kind == chakras.SEND else ends[::-1]
                told: list[chakras.Attribute] = [
                    ("comm_src", "int32", sender),
                    ("comm_dst", "int32", receiver),
                ]
                yield kind, [*told, ("comm_tag", "int32", tag), size]
