"""What a layout of a training step over a mesh of devices takes: seconds and bytes, from the prices of a program's parts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

from graphflops.links import seconds
from graphflops.planning.prices import AFTER, BEFORE, LAYER
from graphflops.time.schedule import beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.devices import Device
    from graphflops.links import Network
    from graphflops.planning.prices import Part, Prices
    from graphflops.planning.recompute import Recompute

# Which of its weights each data-parallel device has: all; all, but a part of the optimizer's state; a part of everything.
Sharding = Literal["none", "optimizer", "gradients", "full"]
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "full")
# Bytes of an element: Adam in float32 over weights in float32, gradients added up in float32, products in bfloat16.
_COMPUTED, _MASTER, _GRADIENT, _STATES = 2, 4, 4, 8
_UPDATE = 2 * _MASTER + _GRADIENT + 2 * _STATES + _COMPUTED  # read and written by one fused update


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh, and how a step runs on it. expert: devices of the data axis that share the experts.

    micro: samples of a micro-batch. recompute: as `Recompute` names it. virtual: stages of a device.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    micro: int = 1
    sharding: Sharding = "full"
    recompute: str = "none"
    virtual: int = 1

    def __str__(self) -> str:
        parts = [f"dp={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        return " ".join(parts + [f"ep={self.expert}"] * (self.expert > 1))


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
    for other stages. update: of the weights.
    """

    layout: Layout
    seconds: float
    compute: float
    again: float
    exposed: float
    bubble: float
    update: float
    memory: Memory
    stages: tuple[int, ...] = ()
    forward: float = 0.0
    backward: float = 0.0

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


def stages(layers: int, number: int, prices: Prices) -> tuple[int, ...]:
    """Layers of each stage of a pipeline, such that the slowest one is fast."""
    if number == 1:
        return (layers,)
    parts = [part.forward + part.backward for part in prices.parts]
    times = [parts[BEFORE], *[0.0] * (number - 2), parts[AFTER]]
    counts = [0] * number
    for _ in range(layers):
        place = min(range(number), key=lambda stage: (times[stage] + parts[LAYER], -stage))
        times[place] += parts[LAYER]
        counts[place] += 1
    return tuple(counts)


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

    def step(self) -> Step:
        """The step."""
        layout, counts = self.layout, stages(self.layers, self.layout.pipeline, self.prices)
        runs = [self._stage(place, counts) for place in range(len(counts))]
        forward, backward, compute, again = max(runs, key=lambda run: run[0] + run[1])
        whole = forward + backward
        passed = 0.0
        if layout.pipeline > 1:
            sent = self.machine.takes("send", self.prices.boundary, 2, 1 if self._spans() else 2)
            passed = 2 * sent * layout.virtual * self.batches
        bubble = (layout.pipeline - 1) / layout.virtual * whole
        reduced = self._reduced(
            max(map(self._elements_of, range(len(counts)), [counts] * len(counts))), backward
        )
        update = self._updated(counts)
        total = self.batches * whole + bubble + passed + reduced + update
        exposed = total - bubble - update - self.batches * (compute + again)
        memory = max((self._memory(place, counts) for place in range(len(counts))), key=lambda one: one.total)
        found = (total, self.batches * compute, self.batches * again, exposed, bubble, update, memory)
        return Step(layout, *found, counts, forward, backward)

    def _spans(self) -> bool:
        """Whether neighbours of a pipeline are in different nodes."""
        return self.layout.tensor * self.layout.data >= self.machine.network.node.devices

    @property
    def _near(self) -> int:
        """Devices of a data-parallel group in one node."""
        return max(1, min(self.layout.data, self.machine.network.node.devices // self.layout.tensor))

    def _stage(self, place: int, counts: Sequence[int]) -> tuple[float, float, float, float]:
        """Seconds of a micro-batch in a stage: forward, backward; of these computed once, and again."""
        forward = backward = compute = again = 0.0
        for part, times in self._of(place, counts):
            repeated = self.recompute.seconds if part is self.prices.parts[LAYER] else 0.0
            ahead, back = self._exchanged(part, repeated / part.forward if part.forward else 0.0)
            gather, reduce = self._sharded(part)
            forward += times * beside(part.forward + ahead, gather)
            backward += times * beside(
                part.backward + repeated + back, gather * (self.layout.sharding == "full") + reduce
            )
            compute += times * (part.forward + part.backward)
            again += times * repeated
        return forward, backward, compute, again

    def _exchanged(self, part: Part, repeated: float) -> tuple[float, float]:
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
        return ahead, back + ahead * min(repeated, 1.0)

    def _sharded(self, part: Part) -> tuple[float, float]:
        """Seconds in which the weights of a part are gathered, and its gradients summed, where devices have parts."""
        if self.layout.sharding not in ("full", "gradients"):
            return 0.0, 0.0
        gather = reduce = 0.0
        for size, group in self._groups(part):
            gather += self.machine.takes(
                "all_gather", _COMPUTED * size / group, group, min(self._near, group)
            )
            reduce += self.machine.takes("reduce_scatter", _GRADIENT * size, group, min(self._near, group))
        return gather, reduce

    def _groups(self, part: Part) -> list[tuple[int, int]]:
        """Elements of a part on a device before they are sharded, and over how many devices they are."""
        expert = self.layout.expert
        return [
            (part.parameters - part.experts, self.layout.data),
            (part.experts // expert, self.layout.data // expert),
        ]

    def _reduced(self, elements: int, backward: float) -> float:
        """Seconds in which gradients are summed after the last micro-batch that its backward does not hide."""
        if self.layout.sharding in ("full", "gradients"):
            return 0.0
        if self.layout.sharding == "none":
            taken = self.machine.takes("all_reduce", _GRADIENT * elements, self.layout.data, self._near)
            return beside(backward, taken) - backward
        size, group, near = elements, self.layout.data, self._near
        taken = self.machine.takes("reduce_scatter", _GRADIENT * size, group, near)
        gathered = self.machine.takes("all_gather", _COMPUTED * size / group, group, near)
        return beside(backward, taken) - backward + gathered

    def _of(self, place: int, counts: Sequence[int]) -> list[tuple[Part, int]]:
        parts = self.prices.parts
        own = [(parts[LAYER], counts[place])]
        return own + [(parts[BEFORE], 1)] * (place == 0) + [(parts[AFTER], 1)] * (place == len(counts) - 1)

    def _elements_of(self, place: int, counts: Sequence[int]) -> int:
        """Elements of the weights of a stage on one device before they are sharded."""
        return sum(
            times * sum(size for size, _ in self._groups(part)) for part, times in self._of(place, counts)
        )

    def _kept_parts(self, place: int, counts: Sequence[int]) -> tuple[float, float]:
        """Elements of a stage that one device updates, and all of its elements."""
        whole = sharded = 0.0
        for part, times in self._of(place, counts):
            for size, group in self._groups(part):
                whole += times * size
                sharded += times * size / group
        return (whole if self.layout.sharding == "none" else sharded), whole

    def _updated(self, counts: Sequence[int]) -> float:
        most = max(self._kept_parts(place, counts)[0] for place in range(len(counts)))
        return most * _UPDATE / self.machine.device.bandwidth

    def _memory(self, place: int, counts: Sequence[int]) -> Memory:
        """What a device of a stage needs."""
        own, whole = self._kept_parts(place, counts)
        sharding, layer = self.layout.sharding, self.prices.parts[LAYER]
        of_layer = sum(size for size, _ in self._groups(layer))
        ends = sum(sum(size for size, _ in self._groups(part)) for part, _ in self._of(place, counts)[1:])
        is_sharded = sharding in ("full", "gradients")
        gathered = 0.0
        if is_sharded and self.layout.data > 1:
            held = whole if sharding == "gradients" else min(2, counts[place]) * of_layer + ends
            gathered = _COMPUTED * held + (_COMPUTED + _GRADIENT) * of_layer
        elif not is_sharded:
            gathered = _COMPUTED * whole
        kept, most = self._activations(place, counts)
        return Memory(
            weights=int(_MASTER * own),
            gradients=int(_GRADIENT * (own if is_sharded else whole)),
            optimizer=int(_STATES * own),
            gathered=int(gathered),
            activations=int(kept),
            temporaries=int(most - kept),
        )

    def _activations(self, place: int, counts: Sequence[int]) -> tuple[float, float]:
        """Bytes kept for gradients at the peak of a stage, and all that is alive then."""
        parts, count, layer = self.prices.parts, counts[place], self.prices.parts[LAYER]
        first = parts[BEFORE].kept if place == 0 else self.prices.boundary
        stage = first + count * self.recompute.kept
        ahead, virtual = len(counts), self.layout.virtual
        turns = float(ahead - place)
        if virtual > 1:
            turns = ahead * (1 + (ahead - 1) / (ahead * virtual)) * (1 - place / ahead) + place / ahead
        others = (min(self.batches, turns) - 1) * stage
        last = place == len(counts) - 1
        peaks = [
            (stage - self.recompute.kept, layer.transient if count else 0),
            (stage, parts[AFTER].transient if last else 0),
            (0, parts[BEFORE].transient if place == 0 else 0),
        ]
        kept, more = max(peaks, key=sum)
        return others + kept, others + kept + more
