"""The time and memory of a layout of a training step over a mesh of devices, from the prices of the program's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Literal

from graphflops.base.record import Record
from graphflops.devices import Device
from graphflops.links import Network, seconds
from graphflops.links.pipeline import Pipeline, Schedule, Stage, bubble_of, most_saved, pipeline, seconds_of
from graphflops.planning.blocks import NOTHING, Block, Recompute, Tally, Work
from graphflops.planning.prices import AFTER, BEFORE, LAYER, Part, Prices
from graphflops.time.predict import pinned_rate
from graphflops.time.schedule import beside

# What data-parallel devices shard: nothing; the optimizer's state (ZeRO-1); also gradients (ZeRO-2); also weights (ZeRO-3).
Sharding = Literal["none", "optimizer", "gradients", "full"]
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "full")
# Bytes of an element: bfloat16 products, float32 master weights, float32 accumulated gradients, Adam's two float32 states.
_COMPUTED, _MASTER, _GRADIENT, _STATES = 2, 4, 4, 8
# Axes of the mesh over which weights are sharded: those of dense weights, and those of experts.
_SHARDS = (("dp", "ep", "cp"), ("dp", "cp"))
UPDATE = 2 * _MASTER + _GRADIENT + 2 * _STATES + _COMPUTED  # read and written by one fused update
UPDATE_FLOPS = 13  # of an element, as passes/optimizer.py counts AdamW


class Layout(Record, frozen=True):
    """The sizes of a mesh, and how a step runs on it."""

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
        """Devices that have the same weights, or shard them: those of the data axis times those that share a sequence."""
        return self.data * self.context

    def __str__(self) -> str:
        parts = [f"dp={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        parts += [f"ep={self.expert}"] * (self.expert > 1) + [f"cp={self.context}"] * (self.context > 1)
        return " ".join(parts)


class Memory(Record, frozen=True):
    """Bytes on the device that needs the most."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0  # unsharded weights of the layers that run
    activations: int = 0  # saved for backward
    temporaries: int = 0  # everything else that is live at the peak

    @property
    def total(self) -> int:
        return sum(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True)
class Step:
    """The step of a layout: its time and memory."""

    layout: Layout
    seconds: float  # the sum of the five parts below
    compute: float  # kernels of micro-batches
    again: float  # recomputation
    exposed: float  # communication that no kernel hides
    bubble: float  # waiting for other stages
    update: float  # the optimizer
    memory: Memory
    costs: Costs = field(repr=False, compare=False)  # from which all figures follow

    @property
    def bound(self) -> str:
        """The part that takes most of the step."""
        parts = {"compute": self.compute, "recomputation": self.again, "communication": self.exposed}
        parts |= {"bubble": self.bubble, "update": self.update}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, and the network that joins many of it. known: a memo of seconds by collective."""

    device: Device
    network: Network
    known: dict[tuple[str, int, int, int | None], float] = field(default_factory=dict)

    def takes(self, kind: str, nbytes: float, group: int, within: int | None = None) -> float:
        """Seconds of a collective. nbytes: of one device's operand. within: how many devices of the group share a node."""
        if group < 2 or not nbytes:
            return 0.0
        key = kind, int(nbytes), group, within
        if key not in self.known:  # many layouts send the same messages
            self.known[key] = seconds(kind, int(nbytes), group, self.network, within=within).seconds  # type: ignore[arg-type]
        return self.known[key]


@lru_cache(maxsize=4096)
def stages(layers: int, number: int, before: float, layer: float, after: float) -> tuple[int, ...]:
    """The layers of each stage, such that the slowest stage is fastest. before, layer, after: seconds of the parts."""
    if number == 1:
        return (layers,)
    times, counts = [before, *[0.0] * (number - 2), after], [0] * number
    for _ in range(layers):
        place = min(range(number), key=lambda stage: (times[stage] + layer, -stage))
        times[place] += layer
        counts[place] += 1
    return tuple(counts)


@dataclass(frozen=True)
class Costs:
    """Computes the time and memory of one layout of a program."""

    layout: Layout
    prices: Prices
    recompute: Recompute
    machine: Machine
    layers: int  # repeated layers of the program
    batches: int  # micro-batches of a step
    # Sequence parallelism: activations between split products are split along the sequence
    sequence: bool = True

    def step(self, *, runs: bool = False) -> Step:
        """The step. runs: whether to run the schedule, instead of the closed forms that assume equal stages."""
        layout, batches, devices = self.layout, self.batches, self.unalike
        runs_of = (self._stage(device, self.own) for device in devices)
        stage, compute, again = max(runs_of, key=lambda run: run[0].whole)
        if runs and layout.pipeline > 1:
            schedule = self.stages(), layout.pipeline, batches, layout.schedule
            lasts = seconds_of(*schedule, send=self.send().seconds)
            bubble = max(lasts - batches * stage.whole, 0.0)
        else:
            bubble = bubble_of(stage, layout.pipeline, layout.schedule, layout.virtual)
            lasts = batches * stage.whole + bubble + 2 * (layout.pipeline - 1) * self.send().seconds
        largest, whole = map(max, zip(*map(self.elements, devices), strict=True))
        reduced = self.reduced(self.sums(whole), stage.backward + stage.weight)
        update = largest * UPDATE / self.machine.device.bandwidth
        if layout.hosted and (rate := pinned_rate(self.machine.device)):
            update += 2 * _STATES * largest / rate  # the state is copied to the device and back
        total = lasts + reduced + update
        exposed = max(total - bubble - update - batches * (compute + again), 0.0)
        memory = max(map(self.memory, devices), key=lambda one: one.total)
        parts = (batches * compute, batches * again, exposed, bubble, update)
        return Step(layout, total, *parts, memory, self)

    def state(self) -> int:
        """Bytes of the optimizer's state on the device that has the most."""
        return int(_STATES * max(self.elements(device)[0] for device in self.unalike))

    def updated(self, device: int, seconds: float) -> Work:
        """The optimizer's work on one device of a pipeline."""
        size, _ = self.elements(device)
        return Work("update", Tally(seconds, UPDATE_FLOPS * size, UPDATE * size))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Layers of each stage."""
        seconds = (part.forward.seconds + part.backward.seconds for part in self.prices.parts)
        return stages(self.layers, self.layout.pipeline * self.layout.virtual, *seconds)

    @cached_property
    def own(self) -> tuple[int, ...]:
        """Layers of each device."""
        return tuple([sum(self.counts[one :: self.layout.pipeline]) for one in range(self.layout.pipeline)])

    @cached_property
    def unalike(self) -> tuple[int, ...]:
        """One device for each distinct set of stages."""
        last = self.layout.pipeline - 1
        kinds = {(*self.counts[one :: last + 1], one == 0, one == last): one for one in range(last, -1, -1)}
        return tuple(kinds.values())

    def stages(self) -> list[Stage]:
        """The times of a micro-batch in each stage."""
        counts = self.counts
        kinds = [(count, place == 0, place == len(counts) - 1) for place, count in enumerate(counts)]
        places = dict(zip(kinds, range(len(counts)), strict=True))
        known = {kind: self._stage(place, counts)[0] for kind, place in places.items()}
        return [known[kind] for kind in kinds]

    def run(self, batches: int) -> Pipeline:
        """Runs the schedule of `batches` micro-batches."""
        layout = self.layout
        return pipeline(self.stages(), layout.pipeline, batches, layout.schedule, send=self.send().seconds)

    def send(self) -> Work:
        """The message of a micro-batch from one stage to the next."""
        is_far = self.layout.tensor * self.layout.shards >= self.machine.network.node.devices
        size, within = self.prices.boundary, 1 if is_far else 2
        seconds = self.machine.takes("send", size, min(self.layout.pipeline, 2), within)
        return Work("send", Tally(seconds), ("pp",), size)

    @property
    def _near(self) -> int:
        """Devices of one node that have the same weights, or shard them."""
        return max(1, min(self.layout.shards, self.machine.network.node.devices // self.layout.tensor))

    def _stage(self, place: int, counts: Sequence[int]) -> tuple[Stage, float, float]:
        """The times of a micro-batch in a stage, with the seconds of its kernels and of its recomputation."""
        forward = backward = weight = compute = again = 0.0
        for part, times in self.of(place, counts):
            ahead, back = self.ways[part]
            forward += times * ahead.seconds
            backward += times * back.seconds
            weight += times * part.weight.seconds
            compute += times * (part.forward.seconds + part.backward.seconds)
            again += times * self.again(part).seconds
        return Stage(forward, backward - weight, weight), compute, again

    def again(self, part: Part) -> Tally:
        """The work of a part's forward that is recomputed."""
        return self.recompute.done if part is self.prices.parts[LAYER] else NOTHING

    @cached_property
    def ways(self) -> dict[Part, tuple[Block, Block]]:
        """By part, its forward and backward."""
        return {part: self.blocks(part, self.again(part)) for part in self.prices.parts}

    def blocks(self, part: Part, again: Tally) -> tuple[Block, Block]:
        """A part's forward and backward. again: its recomputed work, which repeats the same share of its exchanges."""
        gathers, sums = list[Work](), list[Work]()  # of sharded weights, and of their gradients
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
        """Kernels of a part, with exchanges. way: forward (0) or backward (1), which gathers where the forward reduces."""
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
        """Sends keys and values of `size` bytes around a ring; the backward sends their gradients too."""
        near = 2 if self.layout.tensor * self.layout.context <= self.machine.network.node.devices else 1
        gradients = [(2 * size, self.layout.context)] * way  # in float32
        sent = [(size, self.layout.context - 1), *gradients]
        taken = sum(times * self.machine.takes("send", nbytes, 2, near) for nbytes, times in sent)
        return Work("send", Tally(taken), ("cp",), sum(times * nbytes for nbytes, times in sent))

    def groups(self, part: Part) -> list[tuple[int, int]]:
        """For dense weights and for experts: unsharded elements on a device, and the devices that shard them."""
        expert, shards = self.layout.expert, self.layout.shards
        return [(part.parameters - part.experts, shards), (part.experts // expert, shards // expert)]

    def sums(self, size: float) -> tuple[Work, ...]:
        """Collectives after the last micro-batch if weights are not sharded. size: elements whose gradients are summed."""
        group = self.layout.shards
        sent = {"none": [("all_reduce", _GRADIENT * size)]}
        sent["optimizer"] = [("reduce_scatter", _GRADIENT * size), ("all_gather", _COMPUTED * size / group)]
        listed = sent.get(self.layout.sharding, []) if group > 1 else []
        return tuple([self._sent(*one, group, *_SHARDS[0], near=self._near) for one in listed])

    def reduced(self, sums: Sequence[Work], backward: float) -> float:
        """Seconds of the collectives `sums` that the last backward does not hide: it runs beside the first of them."""
        taken = [one.seconds for one in sums]
        return beside(backward, taken[0]) - backward + sum(taken[1:]) if taken else 0.0

    def of(self, place: int, counts: Sequence[int]) -> list[tuple[Part, int]]:
        """The parts of a stage (or device), and how many of each."""
        parts = self.prices.parts
        own = [(parts[LAYER], counts[place])]
        return own + [(parts[BEFORE], 1)] * (place == 0) + [(parts[AFTER], 1)] * (place == len(counts) - 1)

    def elements(self, device: int) -> tuple[float, float]:
        """Elements of a device: those that one data-parallel device updates, and all."""
        whole = sharded = 0.0
        for part, times in self.of(device, self.own):
            for size, group in self.groups(part):
                whole += times * size
                sharded += times * size / group
        return (whole if self.layout.sharding == "none" else sharded), whole

    def memory(self, place: int) -> Memory:
        """The memory of a device."""
        own, whole = self.elements(place)
        sharding, layer = self.layout.sharding, self.prices.parts[LAYER]
        of_layer = sum(size for size, _ in self.groups(layer))
        ends = sum(sum(size for size, _ in self.groups(part)) for part, _ in self.of(place, self.own)[1:])
        is_sharded = sharding in ("full", "gradients")
        gathered = 0.0
        if is_sharded and self.layout.shards > 1:
            held = whole if sharding == "gradients" else min(2, self.own[place]) * of_layer + ends
            gathered = _COMPUTED * held + (_COMPUTED + _GRADIENT) * of_layer
        elif not is_sharded:
            gathered = _COMPUTED * whole
        # Activations saved at the peak, and what is live beside them. A ring holds another device's block and the next one.
        parts, devices = self.prices.parts, self.layout.pipeline
        given = [parts[BEFORE].kept if place == 0 else self.prices.boundary]
        given += [self.prices.boundary] * (self.layout.virtual - 1)
        each = self.counts[place::devices]
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
