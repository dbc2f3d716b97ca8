"""What a layout of a training step over a mesh of devices takes: seconds and bytes, from the prices of a program's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal

from graphflops.devices import Device
from graphflops.links import Network, seconds
from graphflops.links.layouts import ring_attention
from graphflops.links.pipeline import Schedule, Stage, bubble_of, most_saved, seconds_of
from graphflops.planning.prices import AFTER, BEFORE, LAYER, Part, Prices
from graphflops.planning.recompute import Recompute
from graphflops.time.schedule import beside

# Which of its weights each data-parallel device has: all; all, but a part of the optimizer's state; a part of everything.
Sharding = Literal["none", "optimizer", "gradients", "full"]
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "full")
# Bytes of an element: Adam in float32 over weights in float32, gradients added up in float32, products in bfloat16.
_COMPUTED, _MASTER, _GRADIENT, _STATES = 2, 4, 4, 8
UPDATE = 2 * _MASTER + _GRADIENT + 2 * _STATES + _COMPUTED  # read and written by one fused update


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh, and how a step runs on it.

    expert: devices of the data axis that share the experts. context: devices that share a sequence. micro: samples of a
    micro-batch. recompute: as `Recompute` names it. virtual: stages of a device.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    context: int = 1
    micro: int = 1
    sharding: Sharding = "full"
    recompute: str = "none"
    virtual: int = 1
    schedule: Schedule = "1f1b"

    @property
    def shards(self) -> int:
        """Devices that have the same weights: those of the data axis, and those that share a sequence."""
        return self.data * self.context

    def __str__(self) -> str:
        parts = [f"dp={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        parts += [f"ep={self.expert}"] * (self.expert > 1) + [f"cp={self.context}"] * (self.context > 1)
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the device that needs most. gathered: whole weights of a layer while it runs.

    activations: kept for gradients. temporaries: what is alive beside them at the peak.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0
    activations: int = 0
    temporaries: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a layout. seconds: of the whole; the parts of it add up to it.

    compute: kernels of micro-batches. again: recomputation. exposed: communication that nothing runs beside. bubble: waiting
    for other stages. update: of the weights. stage: the slowest one.
    """

    layout: Layout
    seconds: float
    compute: float
    again: float
    exposed: float
    bubble: float
    update: float
    memory: Memory
    stage: Stage

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
    """One layout of a program: its time and memory.

    layers: how many the program has. batches: micro-batches of a step. sequence: whether what lies between split products is
    split along the sequence.
    """

    layout: Layout
    prices: Prices
    recompute: Recompute
    machine: Machine
    layers: int
    batches: int
    sequence: bool = True

    def step(self, *, runs: bool = False) -> Step:
        """The step. runs: whether its schedule runs from start to end; else by closed forms for stages that are alike."""
        layout, batches = self.layout, self.batches
        seconds = (part.forward + part.backward for part in self.prices.parts)
        counts = stages(self.layers, layout.pipeline * layout.virtual, *seconds)
        own, devices = unlike(counts, layout.pipeline)
        stage, compute, again = max((self._stage(one, own) for one in devices), key=lambda run: run[0].whole)
        if runs and layout.pipeline > 1:
            schedule = self._stages(counts), layout.pipeline, batches, layout.schedule
            lasts = seconds_of(*schedule, send=self._send())
            bubble = max(lasts - batches * stage.whole, 0.0)
        else:
            bubble = bubble_of(stage, layout.pipeline, layout.schedule, layout.virtual)
            lasts = batches * stage.whole + bubble + 2 * (layout.pipeline - 1) * self._send()
        kept = [self.elements(device, own) for device in devices]
        reduced = self.reduced(max(whole for _, whole in kept), stage.backward + stage.weight)
        update = max(size for size, _ in kept) * UPDATE / self.machine.device.bandwidth
        total = lasts + reduced + update
        exposed = max(total - bubble - update - batches * (compute + again), 0.0)
        memory = max((self.memory(device, counts, own) for device in devices), key=lambda one: one.total)
        found = (total, batches * compute, batches * again, exposed, bubble, update, memory)
        return Step(layout, *found, stage)

    def _stages(self, counts: Sequence[int]) -> list[Stage]:
        """A micro-batch in each stage."""
        kinds = [(count, place == 0, place == len(counts) - 1) for place, count in enumerate(counts)]
        places = dict(zip(kinds, range(len(counts)), strict=True))
        known = {kind: self._stage(place, counts)[0] for kind, place in places.items()}
        return [known[kind] for kind in kinds]

    def _send(self) -> float:
        """Seconds in which a micro-batch goes from one stage to the next."""
        is_far = self.layout.tensor * self.layout.shards >= self.machine.network.node.devices
        alone = self.layout.pipeline == 1
        return 0.0 if alone else self.machine.takes("send", self.prices.boundary, 2, 1 if is_far else 2)

    @property
    def _near(self) -> int:
        """Devices that have the same weights in one node."""
        return max(1, min(self.layout.shards, self.machine.network.node.devices // self.layout.tensor))

    def _stage(self, place: int, counts: Sequence[int]) -> tuple[Stage, float, float]:
        """A micro-batch in a stage; of its seconds those in which it is computed once, and again."""
        forward = backward = weight = compute = again = 0.0
        for part, times in self._of(place, counts):
            repeated = self.recompute.seconds if part is self.prices.parts[LAYER] else 0.0
            ahead, back = self.exchanged(part, repeated / part.forward if part.forward else 0.0)
            gather, reduce = self.sharded(part)
            forward += times * beside(part.forward + ahead, gather)
            backward += times * beside(
                part.backward + repeated + back, gather * (self.layout.sharding == "full") + reduce
            )
            weight += times * part.weight
            compute += times * (part.forward + part.backward)
            again += times * repeated
        return Stage(forward, backward - weight, weight), compute, again

    def exchanged(self, part: Part, repeated: float) -> tuple[float, float]:
        """Seconds of exchanges of split products and of experts, forward and backward.

        repeated: the part of the forward that runs again.
        """
        group, takes = self.layout.tensor, self.machine.takes
        if self.sequence:
            gathers = sum(takes("all_gather", size / group, group) for size in part.gathered)
            sums = sum(takes("reduce_scatter", size, group) for size in part.reduced)
            ahead = gathers + sums
            back = sum(takes("reduce_scatter", size, group) for size in part.gathered)
            back += sum(takes("all_gather", size / group, group) for size in part.reduced)
        else:
            ahead = sum(takes("all_reduce", size, group) for size in part.reduced)
            back = sum(takes("all_reduce", size, group) for size in part.gathered)
        if part.experts and self.layout.expert > 1:
            near = min(self._near, self.layout.expert)
            routed = 2 * takes("all_to_all", self.prices.dispatched, self.layout.expert, near)
            ahead, back = ahead + routed, back + routed
        for forward, backward, size in part.attended:
            first, last = self._around(size)
            ahead += beside(forward, first) - forward
            back += beside(backward, last) - backward
        return ahead, back + ahead * min(repeated, 1.0)

    def _around(self, size: int) -> tuple[float, float]:
        """Seconds in which keys and values of so many bytes go around a ring, and come back with gradients."""
        ring = ring_attention(size, 1, self.layout.context)
        near = 2 if self.layout.tensor * self.layout.context <= self.machine.network.node.devices else 1
        ahead, back = (
            sum(one.times * self.machine.takes("send", one.nbytes, 2, near) for one in phase)
            for phase in ring
        )
        return ahead, back

    def sharded(self, part: Part) -> tuple[float, float]:
        """Seconds in which the weights of a part are gathered, and its gradients summed, where devices have parts."""
        if self.layout.sharding not in ("full", "gradients"):
            return 0.0, 0.0
        gather = reduce = 0.0
        for size, group in self.groups(part):
            sent = _COMPUTED * size / group
            gather += self.machine.takes("all_gather", sent, group, min(self._near, group))
            reduce += self.machine.takes("reduce_scatter", _GRADIENT * size, group, min(self._near, group))
        return gather, reduce

    def groups(self, part: Part) -> list[tuple[int, int]]:
        """Elements of a part on a device before they are sharded, and over how many devices they are."""
        expert = self.layout.expert
        return [
            (part.parameters - part.experts, self.layout.shards),
            (part.experts // expert, self.layout.shards // expert),
        ]

    def reduced(self, elements: float, backward: float) -> float:
        """Seconds in which gradients are summed after the last micro-batch that its backward does not hide."""
        if self.layout.sharding in ("full", "gradients"):
            return 0.0
        if self.layout.sharding == "none":
            taken = self.machine.takes("all_reduce", _GRADIENT * elements, self.layout.shards, self._near)
            return beside(backward, taken) - backward
        size, group, near = elements, self.layout.shards, self._near
        taken = self.machine.takes("reduce_scatter", _GRADIENT * size, group, near)
        gathered = self.machine.takes("all_gather", _COMPUTED * size / group, group, near)
        return beside(backward, taken) - backward + gathered

    def _of(self, place: int, counts: Sequence[int]) -> list[tuple[Part, int]]:
        parts = self.prices.parts
        own = [(parts[LAYER], counts[place])]
        return own + [(parts[BEFORE], 1)] * (place == 0) + [(parts[AFTER], 1)] * (place == len(counts) - 1)

    def elements(self, place: int, counts: Sequence[int]) -> tuple[float, float]:
        """Elements of a stage that one device updates, and all of its elements."""
        whole = sharded = 0.0
        for part, times in self._of(place, counts):
            for size, group in self.groups(part):
                whole += times * size
                sharded += times * size / group
        return (whole if self.layout.sharding == "none" else sharded), whole

    def memory(self, place: int, counts: Sequence[int], layers: Sequence[int]) -> Memory:
        """What a device needs. counts: layers of each stage; layers: of each device."""
        own, whole = self.elements(place, layers)
        sharding, layer = self.layout.sharding, self.prices.parts[LAYER]
        of_layer = sum(size for size, _ in self.groups(layer))
        ends = sum(sum(size for size, _ in self.groups(part)) for part, _ in self._of(place, layers)[1:])
        is_sharded = sharding in ("full", "gradients")
        gathered = 0.0
        if is_sharded and self.layout.shards > 1:
            held = whole if sharding == "gradients" else min(2, layers[place]) * of_layer + ends
            gathered = _COMPUTED * held + (_COMPUTED + _GRADIENT) * of_layer
        elif not is_sharded:
            gathered = _COMPUTED * whole
        kept, more = self._activations(place, counts)
        return Memory(
            weights=int(_MASTER * own),
            gradients=int(_GRADIENT * (own if is_sharded else whole)),
            optimizer=int(_STATES * own),
            gathered=int(gathered),
            activations=int(kept),
            temporaries=int(more),
        )

    def _activations(self, place: int, counts: Sequence[int]) -> tuple[float, float]:
        """Bytes that a device keeps for gradients at the peak, and what is alive beside them."""
        parts, layer, devices = self.prices.parts, self.prices.parts[LAYER], self.layout.pipeline
        given = [parts[BEFORE].kept if place == 0 else self.prices.boundary]
        given += [self.prices.boundary] * (self.layout.virtual - 1)
        own = counts[place::devices]
        sizes = [first + count * self.recompute.kept for first, count in zip(given, own, strict=True)]
        kept = most_saved(sizes, place, devices, self.batches, self.layout.schedule)
        peaks = [layer.transient - self.recompute.kept if any(own) else 0]
        peaks += [parts[AFTER].transient] * (place == devices - 1)
        peaks += [parts[BEFORE].transient - sizes[0]] * (place == 0)
        around = max(
            (2 * size for *_, size in layer.attended), default=0
        )  # a block of another device, and the next
        return kept, max(*peaks, 0) + around
