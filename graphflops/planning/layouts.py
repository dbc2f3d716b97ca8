"""What a layout of a training step over a mesh of devices takes: seconds and bytes, from the prices of a program's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal

from graphflops.base.record import Record
from graphflops.devices import Device
from graphflops.links import Network, seconds
from graphflops.links.pipeline import Pipeline, Schedule, Stage, bubble_of, most_saved, pipeline, seconds_of
from graphflops.planning.blocks import NOTHING, Block, Recompute, Tally, Work
from graphflops.planning.prices import AFTER, BEFORE, LAYER, Part, Prices
from graphflops.time.predict import pinned_rate
from graphflops.time.schedule import beside

# Which of its weights each data-parallel device has: all; all, but a part of the optimizer's state; a part of everything.
Sharding = Literal["none", "optimizer", "gradients", "full"]
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "full")
# Bytes of an element: Adam in float32 over weights in float32, gradients added up in float32, products in bfloat16.
_COMPUTED, _MASTER, _GRADIENT, _STATES = 2, 4, 4, 8
# Axes of the mesh over which weights are sharded: all, and those of experts.
_SHARDS = (("dp", "ep", "cp"), ("dp", "cp"))
UPDATE = 2 * _MASTER + _GRADIENT + 2 * _STATES + _COMPUTED  # read and written by one fused update
UPDATE_FLOPS = 13  # of an element, as passes/optimizer.py counts AdamW


class Layout(Record, frozen=True):
    """A mesh, and how a step runs on it."""

    data: int
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1  # devices of the data axis that share the experts
    context: int = 1  # devices that share a sequence
    micro: int = 1  # samples of a micro-batch
    sharding: Sharding = "full"
    recompute: str = "none"  # as `Recompute` names it
    virtual: int = 1  # stages of a device
    schedule: Schedule = "1f1b"
    hosted: bool = False  # the optimizer's state is in the host's memory

    @property
    def shards(self) -> int:
        """Devices that have the same weights: those of the data axis, and those that share a sequence."""
        return self.data * self.context

    def __str__(self) -> str:
        parts = [f"dp={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        parts += [f"ep={self.expert}"] * (self.expert > 1) + [f"cp={self.context}"] * (self.context > 1)
        return " ".join(parts)


class Memory(Record, frozen=True):
    """Bytes of the device that needs most."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0  # whole weights of a layer while it runs
    activations: int = 0  # kept for gradients
    temporaries: int = 0  # what is alive beside them at the peak

    @property
    def total(self) -> int:
        return sum(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a layout."""

    layout: Layout
    seconds: float  # of the whole; the parts of it add up to it
    compute: float  # kernels of micro-batches
    again: float  # recomputation
    exposed: float  # communication that nothing runs beside
    bubble: float  # waiting for other stages
    update: float  # of the weights
    memory: Memory
    costs: Costs = field(repr=False, compare=False)  # what all of it is found from

    @property
    def bound(self) -> str:
        """What takes most of the step."""
        parts = {"compute": self.compute, "recomputation": self.again, "communication": self.exposed}
        parts |= {"bubble": self.bubble, "update": self.update}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices and what joins them. known: seconds of collectives that were asked for."""

    device: Device
    network: Network
    known: dict[tuple[str, int, int, int | None], float] = field(default_factory=dict)

    def takes(self, kind: str, nbytes: float, group: int, within: int | None = None) -> float:
        """Seconds of a collective. nbytes: of one device's operand. within: devices of the group in one node."""
        if group < 2 or not nbytes:
            return 0.0
        key = kind, int(nbytes), group, within
        if key not in self.known:  # layouts differ less in their messages than in how often they are sent
            self.known[key] = seconds(kind, int(nbytes), group, self.network, within=within).seconds  # type: ignore[arg-type]
        return self.known[key]


@lru_cache(maxsize=4096)
def stages(layers: int, number: int, before: float, layer: float, after: float) -> tuple[int, ...]:
    """Layers of each stage of a pipeline, such that the slowest one is fast. before, layer, after: seconds of the parts."""
    if number == 1:
        return (layers,)
    times, counts = [before, *[0.0] * (number - 2), after], [0] * number
    for _ in range(layers):
        place = min(range(number), key=lambda stage: (times[stage] + layer, -stage))
        times[place] += layer
        counts[place] += 1
    return tuple(counts)


@lru_cache(maxsize=4096)
def unlike(counts: tuple[int, ...], devices: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers of each device, where each stage has so many, and devices of which no two have alike stages, the first ones."""
    own = tuple([sum(counts[device::devices]) for device in range(devices)])
    kinds = {(*counts[one::devices], one == 0, one == devices - 1): one for one in reversed(range(devices))}
    return own, tuple(kinds.values())


@dataclass(frozen=True, slots=True)
class Costs:
    """One layout of a program: its time and memory."""

    layout: Layout
    prices: Prices
    recompute: Recompute
    machine: Machine
    layers: int  # how many the program has
    batches: int  # micro-batches of a step
    sequence: bool = True  # what lies between split products is split along the sequence
    # Seconds of parts, forward and backward, that were asked for.
    known: dict[Part, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)

    def step(self, *, runs: bool = False) -> Step:
        """The step. runs: whether its schedule runs from start to end; else by closed forms for stages that are alike."""
        layout, batches = self.layout, self.batches
        counts = self.counts()
        own, devices = unlike(counts, layout.pipeline)
        stage, compute, again = max((self._stage(one, own) for one in devices), key=lambda run: run[0].whole)
        if runs and layout.pipeline > 1:
            schedule = self.stages(), layout.pipeline, batches, layout.schedule
            lasts = seconds_of(*schedule, send=self.send().seconds)
            bubble = max(lasts - batches * stage.whole, 0.0)
        else:
            bubble = bubble_of(stage, layout.pipeline, layout.schedule, layout.virtual)
            lasts = batches * stage.whole + bubble + 2 * (layout.pipeline - 1) * self.send().seconds
        kept = [self.elements(device, own) for device in devices]
        reduced = self.reduced(self.sums(max(whole for _, whole in kept)), stage.backward + stage.weight)
        largest = max(size for size, _ in kept)
        update = largest * UPDATE / self.machine.device.bandwidth
        if layout.hosted and (rate := pinned_rate(self.machine.device)):
            update += 2 * _STATES * largest / rate  # it comes, and goes back
        total = lasts + reduced + update
        exposed = max(total - bubble - update - batches * (compute + again), 0.0)
        memory = max((self.memory(device, counts, own) for device in devices), key=lambda one: one.total)
        found = (total, batches * compute, batches * again, exposed, bubble, update, memory)
        return Step(layout, *found, self)

    def state(self) -> int:
        """Bytes of the optimizer's state of the device that has most."""
        own, devices = unlike(self.counts(), self.layout.pipeline)
        return int(_STATES * max(self.elements(device, own)[0] for device in devices))

    def updated(self, device: int, seconds: float) -> Work:
        """What a device of a pipeline does for the update of its weights."""
        size = self.elements(device, unlike(self.counts(), self.layout.pipeline)[0])[0]
        return Work("update", Tally(seconds, UPDATE_FLOPS * size, UPDATE * size))

    def counts(self) -> tuple[int, ...]:
        """Layers of each stage."""
        seconds = (part.forward.seconds + part.backward.seconds for part in self.prices.parts)
        return stages(self.layers, self.layout.pipeline * self.layout.virtual, *seconds)

    def stages(self) -> list[Stage]:
        """A micro-batch in each stage."""
        counts = self.counts()
        kinds = [(count, place == 0, place == len(counts) - 1) for place, count in enumerate(counts)]
        places = dict(zip(kinds, range(len(counts)), strict=True))
        known = {kind: self._stage(place, counts)[0] for kind, place in places.items()}
        return [known[kind] for kind in kinds]

    def run(self, batches: int) -> Pipeline:
        """The schedule of so many micro-batches, step by step."""
        layout = self.layout
        return pipeline(self.stages(), layout.pipeline, batches, layout.schedule, send=self.send().seconds)

    def send(self) -> Work:
        """What goes from one stage to the next for a micro-batch."""
        is_far = self.layout.tensor * self.layout.shards >= self.machine.network.node.devices
        size, within = self.prices.boundary, 1 if is_far else 2
        seconds = self.machine.takes("send", size, min(self.layout.pipeline, 2), within)
        return Work("send", Tally(seconds), ("pp",), size)

    @property
    def _near(self) -> int:
        """Devices that have the same weights in one node."""
        return max(1, min(self.layout.shards, self.machine.network.node.devices // self.layout.tensor))

    def _stage(self, place: int, counts: Sequence[int]) -> tuple[Stage, float, float]:
        """A micro-batch in a stage; of its seconds those in which it is computed once, and again."""
        forward = backward = weight = compute = again = 0.0
        for part, times in self.of(place, counts):
            repeated = self.again(part)
            if part not in self.known:  # many stages have the same parts
                ahead, back = self.blocks(part, repeated)
                self.known[part] = ahead.seconds, back.seconds
            forward += times * self.known[part][0]
            backward += times * self.known[part][1]
            weight += times * part.weight.seconds
            compute += times * (part.forward.seconds + part.backward.seconds)
            again += times * repeated.seconds
        return Stage(forward, backward - weight, weight), compute, again

    def again(self, part: Part) -> Tally:
        """What of a part's forward runs again."""
        return self.recompute.done if part is self.prices.parts[LAYER] else NOTHING

    def blocks(self, part: Part, again: Tally) -> tuple[Block, Block]:
        """A part forward and backward. again: of its forward, runs again with as much of what it exchanges."""
        gathers, sums = list[Work](), list[Work]()  # of weights, and of gradients, where devices have parts
        groups = self.groups(part) if self.layout.sharding in ("full", "gradients") else []
        for (size, group), axes in zip(groups, _SHARDS, strict=False):
            if size and group > 1:
                near = min(self._near, group)
                gathers.append(self._sent("all_gather", size * (_COMPUTED / group), group, *axes, near=near))
                sums.append(self._sent("reduce_scatter", size * _GRADIENT, group, *axes, near=near))
        ahead = self._exchanged(part, 0)
        repeated = [one.again(again, part.forward) for one in ahead] if again.seconds else []
        back = (*repeated, *self._exchanged(part, 1))
        beside = (*gathers * (self.layout.sharding == "full"), *sums)
        return Block(ahead, tuple(gathers)), Block(back, beside)

    def _exchanged(self, part: Part, way: int) -> tuple[Work, ...]:
        """Kernels of a part and exchanges of split products and of experts, forward (0) or backward (1).

        Gradients are summed where the forward gathers, and gathered where it sums.
        """
        group, name = self.layout.tensor, ("forward", "backward")[way]
        gathered, reduced = (part.gathered, part.reduced)[:: -1 if way else 1]
        attended = [(getattr(one, name), self._around(one.nbytes, way)) for one in part.attended]
        kernels = [Work("attention", own, ring=ring) for own, ring in attended if own.seconds]
        rest = Work(name, getattr(part, name))
        for one in kernels:
            rest = rest.without(one)
        works = [rest, *kernels]
        if group > 1 and self.sequence:
            first = [self._sent("all_gather", size / group, group, "tp") for size in gathered]
            works = [*first, *works, *(self._sent("reduce_scatter", size, group, "tp") for size in reduced)]
        elif group > 1:
            works += [self._sent("all_reduce", size, group, "tp") for size in reduced]
        if part.experts and self.layout.expert > 1:
            near = min(self._near, self.layout.expert)
            routed = self._sent("all_to_all", self.prices.dispatched, self.layout.expert, "ep", near=near)
            works = [routed, *works, routed]
        return tuple([one for one in works if one.seconds])

    def _sent(self, kind: str, nbytes: float, group: int, *axes: str, near: int | None = None) -> Work:
        return Work(kind, Tally(self.machine.takes(kind, nbytes, group, near)), axes, int(nbytes))

    def _around(self, size: int, way: int) -> Work:
        """Keys and values of so many bytes that go around a ring, and come back with gradients."""
        near = 2 if self.layout.tensor * self.layout.context <= self.machine.network.node.devices else 1
        gradients = [(2 * size, self.layout.context)] * way  # in float32
        sent = [(size, self.layout.context - 1), *gradients]
        taken = sum(times * self.machine.takes("send", nbytes, 2, near) for nbytes, times in sent)
        return Work("send", Tally(taken), ("cp",), sum(times * nbytes for nbytes, times in sent))

    def groups(self, part: Part) -> list[tuple[int, int]]:
        """Elements of a part on a device before they are sharded, and over how many devices they are."""
        expert, shards = self.layout.expert, self.layout.shards
        return [(part.parameters - part.experts, shards), (part.experts // expert, shards // expert)]

    def sums(self, size: float) -> tuple[Work, ...]:
        """After the last micro-batch, where weights are not sharded: sums of gradients of so many elements, and gathers."""
        group = self.layout.shards
        sent = {"none": [("all_reduce", _GRADIENT * size)]}
        sent["optimizer"] = [("reduce_scatter", _GRADIENT * size), ("all_gather", _COMPUTED * size / group)]
        listed = sent.get(self.layout.sharding, []) if group > 1 else []
        return tuple([self._sent(*one, group, *_SHARDS[0], near=self._near) for one in listed])

    def reduced(self, sums: Sequence[Work], backward: float) -> float:
        """Seconds of sums of gradients, and of what follows them, that the last backward does not hide."""
        taken = [one.seconds for one in sums]
        return beside(backward, taken[0]) - backward + sum(taken[1:]) if taken else 0.0

    def of(self, place: int, counts: Sequence[int]) -> list[tuple[Part, int]]:
        """The parts of a stage, or of a device, and how many of each."""
        parts = self.prices.parts
        own = [(parts[LAYER], counts[place])]
        return own + [(parts[BEFORE], 1)] * (place == 0) + [(parts[AFTER], 1)] * (place == len(counts) - 1)

    def elements(self, place: int, counts: Sequence[int]) -> tuple[float, float]:
        """Elements of a stage that one device updates, and all of its elements."""
        whole = sharded = 0.0
        for part, times in self.of(place, counts):
            for size, group in self.groups(part):
                whole += times * size
                sharded += times * size / group
        return (whole if self.layout.sharding == "none" else sharded), whole

    def memory(self, place: int, counts: Sequence[int], layers: Sequence[int]) -> Memory:
        """What a device needs. counts: layers of each stage; layers: of each device."""
        own, whole = self.elements(place, layers)
        sharding, layer = self.layout.sharding, self.prices.parts[LAYER]
        of_layer = sum(size for size, _ in self.groups(layer))
        ends = sum(sum(size for size, _ in self.groups(part)) for part, _ in self.of(place, layers)[1:])
        is_sharded = sharding in ("full", "gradients")
        gathered = 0.0
        if is_sharded and self.layout.shards > 1:
            held = whole if sharding == "gradients" else min(2, layers[place]) * of_layer + ends
            gathered = _COMPUTED * held + (_COMPUTED + _GRADIENT) * of_layer
        elif not is_sharded:
            gathered = _COMPUTED * whole
        # For gradients at the peak, and what is alive beside them: of a ring a block of another device, and the next.
        parts, devices = self.prices.parts, self.layout.pipeline
        given = [parts[BEFORE].kept if place == 0 else self.prices.boundary]
        given += [self.prices.boundary] * (self.layout.virtual - 1)
        each = counts[place::devices]
        sizes = [first + count * self.recompute.kept for first, count in zip(given, each, strict=True)]
        kept = most_saved(sizes, place, devices, self.batches, self.layout.schedule)
        peaks = [0, layer.transient - self.recompute.kept if any(each) else 0]
        peaks += [parts[AFTER].transient] * (place == devices - 1)
        peaks += [parts[BEFORE].transient - sizes[0]] * (place == 0)
        around = max((2 * one.nbytes for one in layer.attended), default=0)
        return Memory(
            weights=int(_MASTER * own),
            gradients=int(_GRADIENT * (own if is_sharded else whole)),
            optimizer=0 if self.layout.hosted else int(_STATES * own),
            gathered=int(gathered),
            activations=int(kept),
            temporaries=int(max(peaks) + around),
        )
