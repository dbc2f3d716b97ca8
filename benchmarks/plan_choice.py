"""The first layout of `graphflops plan` beside the best of all, each priced in full.

    python -m benchmarks.plan_choice [CASE ...]

Needs torch. `plan` prices two layers for all, takes the schedule of a pipeline by a closed form, sums what runs beside the
kernels of a part, and tries some micro-batches. Here every layer of the program is priced, a step runs call by call of its
schedule with kernels and collectives in two streams, and every mesh, micro-batch, sharding, schedule and cut is tried. Two
rules save time and no layout that could be the best: one that does not fit is not timed, nor one whose kernels alone take
longer than the best so far.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from benchmarks.decoders import Decoder, Experts, Model
from graphflops import capture, plan
from graphflops.analysis import analyze
from graphflops.devices import complete, device
from graphflops.fitting.varied_size import SPARE, room
from graphflops.graph import Graph
from graphflops.links import network_of
from graphflops.links.pipeline import Stage, pipeline
from graphflops.loading import program_of
from graphflops.planning.blocks import NOTHING, Block, Recompute, Tally
from graphflops.planning.layouts import SHARDINGS, UPDATE, Costs, Layout, Machine, Step, stages
from graphflops.planning.plan import divisors
from graphflops.planning.prices import Part, Prices, reading
from graphflops.planning.split import Folded, folded
from graphflops.report import Report
from graphflops.time.schedule import Link

_LARGEST_MICRO, _MOST_CHUNKS, _GB = 16, 8, 1e9
_PROFILES = Path(__file__).parents[1] / "graphflops" / "devices"


@dataclass(frozen=True)
class Case:
    """A model, its devices, and the samples of a step. room: gigabytes of a device where it has not those of its profile."""

    decoder: Decoder
    length: int
    samples: int
    devices: int
    device: str = "h100"
    room: int = 0


def _dense(layers: int, hidden: int, heads: int, shared: int, words: int, mlp: int) -> Decoder:
    return Decoder(layers, hidden, heads, shared, hidden // heads, words, mlp)


_SMALL = _dense(12, 768, 12, 12, 50_304, 2048)
_ONE = _dense(16, 2048, 32, 8, 128_256, 8192)
_THREE = _dense(28, 3072, 24, 8, 128_256, 8192)
_EIGHT = _dense(32, 4096, 32, 8, 128_256, 14_336)
_THIRTEEN = _dense(40, 5120, 40, 40, 32_000, 13_824)
_WIDE = _dense(16, 8192, 64, 8, 128_256, 28_672)
_EXPERTS = replace(_dense(16, 2048, 16, 16, 50_304, 0), experts=Experts(16, 2, 2816))

CASES = {
    "0.1B on 8": Case(_SMALL, 2048, 256, 8),
    "1B on 8": Case(_ONE, 4096, 128, 8),
    "1B on 16, 16 GB": Case(_ONE, 4096, 128, 16, room=16),
    "3B on 32 A100": Case(_THREE, 4096, 256, 32, "a100"),
    "8B on 8": Case(_EIGHT, 4096, 64, 8),
    "8B on 64, 40 GB": Case(_EIGHT, 8192, 256, 64, room=40),
    "8B on 32, 8 long samples": Case(_EIGHT, 32_768, 8, 32),
    "13B on 16 A100": Case(_THIRTEEN, 2048, 128, 16, "a100"),
    "16B, wide, on 32, 40 GB": Case(_WIDE, 4096, 256, 32, room=40),
    "experts on 16": Case(_EXPERTS, 4096, 128, 16),
}


@dataclass(frozen=True)
class Priced:
    """Every layer of a program at one micro-batch on one device. parts: before the layers, each of them, after them."""

    parts: Sequence[Part]
    prices: Prices

    def part(self, place: int) -> Part:
        """What is before the layers (0), a layer, what is after them (-1)."""
        return self.parts[place]


class Everything:
    """All layouts of a case, priced in full."""

    def __init__(self, case: Case, profile: str) -> None:
        self.case, self.profile = case, profile
        found = complete(device(profile))
        self.machine, self.room = Machine(found, network_of(found)), int((1 - SPARE) * room(found))
        self.known: dict[tuple[int, int, int], Priced] = {}
        self.tried = 0

    @cached_property
    def graph(self) -> Graph:
        """The program, with open axes of samples and of tokens."""
        with torch.device("meta"):
            model = Model(self.case.decoder).to(torch.bfloat16)
            ids = torch.zeros(2, self.case.length, dtype=torch.int64)
        axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=16)}
        return program_of(capture(model, (ids,), dynamic_shapes=(axes,)))

    @cached_property
    def report(self) -> Report:
        """Its sizes."""
        return analyze(self.graph, memory=False)

    @cached_property
    def whole(self) -> Folded:
        """The program with all of its layers, by layer."""
        return folded(self.report, self.case.decoder.layers)

    def priced(self, tensor: int, micro: int, context: int) -> Priced:
        """What a device takes for a micro-batch."""
        key = (tensor, micro, context)
        if key not in self.known:
            batch, length = map(str, self.report.inputs[0].type.shape)
            sizes = {batch: micro, length: self.case.length // context}
            found = reading(self.whole, tensor, sizes, self.profile, context=context)
            self.known[key] = Priced(found.parts(), found.prices())
        return self.known[key]

    def meshes(self) -> Iterator[Layout]:
        """Every mesh on which the samples, the tokens, the layers and the heads divide."""
        case = self.case
        experts = case.decoder.experts.number if case.decoder.experts else 1
        for tensor in divisors(min(case.devices, self.machine.network.node.devices)):
            for pipeline_ in divisors(case.devices // tensor):
                for context in divisors(case.devices // tensor // pipeline_):
                    data = case.devices // tensor // pipeline_ // context
                    if case.samples % data or case.length % context or pipeline_ > case.decoder.layers:
                        continue
                    if case.decoder.heads % tensor:
                        continue
                    for expert in divisors(data):
                        if experts % expert == 0:
                            yield Layout(data, tensor, pipeline_, expert, context)

    def ways(self, mesh: Layout) -> Iterator[tuple[Layout, Priced, Recompute, int]]:
        """Every way to run on a mesh, with its micro-batches of a step."""
        each = self.case.samples // mesh.data
        for micro in divisors(each):
            if micro > _LARGEST_MICRO:
                break
            found, batches = self.priced(mesh.tensor, micro, mesh.context), each // micro
            for way in found.prices.recomputes:
                for sharding in (*SHARDINGS, "gradients") if mesh.shards > 1 else SHARDINGS[:1]:
                    for schedule, chunks in self.schedules(mesh, batches):
                        layout = replace(
                            mesh, micro=micro, sharding=sharding, recompute=way.name, virtual=chunks, schedule=schedule
                        )  # fmt: skip
                        yield layout, found, way, batches

    def schedules(self, mesh: Layout, batches: int) -> Iterator[tuple[str, int]]:
        """Every schedule, with the stages of a device."""
        yield "1f1b", 1
        if mesh.pipeline > 1:
            yield "zero-bubble", 1
            for chunks in range(2, _MOST_CHUNKS + 1):
                if batches % mesh.pipeline == 0 and chunks * mesh.pipeline <= self.case.decoder.layers:
                    yield "interleaved", chunks

    def best(self) -> tuple[float, Layout]:
        """The fastest layout that fits."""
        least, found = float("inf"), None
        for mesh in self.meshes():
            for layout, priced, way, batches in self.ways(mesh):
                self.tried += 1
                run = Run(self, layout, priced, way, batches)
                if run.floor < least and run.memory <= self.room and run.seconds < least:
                    least, found = run.seconds, layout
        assert found is not None
        return least, found

    def of(self, step: Step) -> Run:
        """A layout that `plan` found, priced in full."""
        layout = step.layout
        priced = self.priced(layout.tensor, layout.micro, layout.context)
        ways = {one.name: one for one in priced.prices.recomputes}
        same = ways.get(layout.recompute) or min(
            (one for one in ways.values() if one.name.startswith("cut")),
            key=lambda one: abs(int(one.name.split()[1]) - int(layout.recompute.split()[1])),
        )
        return Run(self, layout, priced, same, self.case.samples // layout.data // layout.micro)


@dataclass(frozen=True)
class Run:
    """One layout of a case."""

    of: Everything
    layout: Layout
    priced: Priced
    way: Recompute
    batches: int

    @cached_property
    def costs(self) -> Costs:
        """What exchanges and sharded weights of a part take."""
        return Costs(self.layout, self.priced.prices, self.way, self.of.machine, self.layers, self.batches)

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.of.case.decoder.layers

    @cached_property
    def stages(self) -> list[list[int]]:
        """The parts of each stage, in the order in which they run."""
        number = self.layout.pipeline * self.layout.virtual
        seconds = (part.forward.seconds + part.backward.seconds for part in self.priced.prices.parts)
        counts = stages(self.layers, number, *seconds)
        starts = [1 + sum(counts[:place]) for place in range(number)]
        found = [[*range(start, start + count)] for start, count in zip(starts, counts, strict=True)]
        return [
            [0] * (place == 0) + parts + [len(self.priced.parts) - 1] * (place == number - 1)
            for place, parts in enumerate(found)
        ]

    def again(self, place: int) -> Tally:
        """What of a part's forward runs again."""
        return self.way.done if 0 < place < len(self.priced.parts) - 1 else NOTHING

    @cached_property
    def floor(self) -> float:
        """Seconds of the kernels of the stage that has most."""
        parts = self.priced.parts
        each = [
            sum(
                each.seconds
                for one in stage
                for each in (parts[one].forward, parts[one].backward, self.again(one))
            )
            for stage in self.stages
        ]
        return self.batches * max(
            sum(each[device :: self.layout.pipeline]) for device in range(self.layout.pipeline)
        )

    @cached_property
    def timed(self) -> list[Stage]:
        """Seconds of a micro-batch in each stage: its kernels in one stream, its collectives in another."""
        return [Stage(*self._timed(stage), saved=self.kept(stage)) for stage in self.stages]

    def _timed(self, stage: Sequence[int]) -> tuple[float, float, float]:
        parts = self.priced.parts
        blocks = {place: self.costs.blocks(parts[place], self.again(place)) for place in stage}
        forward = _streams([_of(blocks[place][0]) for place in stage])
        backward = _streams([_of(blocks[place][1]) for place in reversed(stage)])
        weight = sum(parts[one].weight.seconds for one in stage)
        return forward, max(backward - weight, 0.0), weight

    @cached_property
    def seconds(self) -> float:
        """Seconds of the step."""
        devices = self.layout.pipeline
        if devices == 1:
            ends = [self.batches * self.timed[0].whole]
        else:
            send = self.costs.send().seconds
            found = pipeline(self.timed, devices, self.batches, self.layout.schedule, send=send)
            ends = [max(span.end for span in found.spans if span.device == one) for one in range(devices)]
        return max(end + self.after(one) for one, end in enumerate(ends))

    def after(self, device: int) -> float:
        """Seconds after the last backward of a device: sums of gradients, and the update."""
        own, whole = self.elements(device)
        backward = sum(self.timed[one].backward + self.timed[one].weight for one in self.of_device(device))
        sums = self.costs.sums(whole)
        return self.costs.reduced(sums, backward) + own * UPDATE / self.of.machine.device.bandwidth

    def of_device(self, device: int) -> range:
        """Its stages."""
        return range(device, len(self.stages), self.layout.pipeline)

    def elements(self, device: int) -> tuple[float, float]:
        """Elements that a device updates, and all of its stages."""
        groups = [
            group
            for stage in self.of_device(device)
            for place in self.stages[stage]
            for group in self.costs.groups(self.priced.parts[place])
        ]
        whole = sum(size for size, _ in groups)
        return (
            whole if self.layout.sharding == "none" else sum(size / group for size, group in groups)
        ), whole

    def kept(self, stage: Sequence[int]) -> int:
        """Bytes that a micro-batch keeps in a stage for its gradients."""
        return sum(self._kept(place) for place in stage) + (
            0 if stage[:1] == [0] else self.priced.prices.boundary
        )

    def _kept(self, place: int) -> int:
        """The same of a part; that after the layers runs backwards at once."""
        last = len(self.priced.parts) - 1
        return 0 if place == last else self.way.kept if place else self.priced.parts[0].kept

    @cached_property
    def memory(self) -> float:
        """Bytes of the device that needs most."""
        devices = self.layout.pipeline
        if devices == 1:
            saved: Sequence[float] = [float(self.kept(self.stages[0]))]
        else:
            alike = [Stage(1.0, 1.0, 1.0, self.kept(stage)) for stage in self.stages]
            turns = min(self.batches, 2 * devices * self.layout.virtual // devices * devices or devices)
            saved = pipeline(alike, devices, turns, self.layout.schedule).saved
        return max(self._lasting(one) + saved[one] + self._moment(one) for one in range(devices))

    def _lasting(self, device: int) -> float:
        """Bytes of weights, gradients, the optimizer, and of weights that are gathered."""
        own, whole = self.elements(device)
        largest = max(
            sum(size for size, _ in self.costs.groups(self.priced.parts[place]))
            for stage in self.of_device(device)
            for place in self.stages[stage]
        )
        parts = sum(len(self.stages[stage]) for stage in self.of_device(device))
        if self.layout.sharding in ("none", "optimizer"):
            return (4 + 8) * own + (4 + 2) * whole
        held = whole if self.layout.sharding == "gradients" else min(2, parts) * largest
        return (4 + 4 + 8) * own + (2 * held + 6 * largest) * (self.layout.shards > 1)

    def _moment(self, device: int) -> float:
        """The most bytes that are alive in a part beside all that is kept."""
        return max(
            self.priced.parts[place].transient - sum(map(self._kept, self.stages[stage][at:]))
            for stage in self.of_device(device)
            for at, place in enumerate(self.stages[stage])
        )


def _of(block: Block) -> tuple[float, float, float]:
    """Seconds of the kernels of a block with the exchanges they wait for, of gathers of weights, of sums of gradients."""
    gathers, sums = (
        sum(one.seconds for one in block.sharded if one.name == kind)
        for kind in ("all_gather", "reduce_scatter")
    )
    return sum(one.whole for one in block.works), gathers, sums


def _streams(parts: Sequence[tuple[float, float, float]]) -> float:
    """Seconds of parts one after the other. Of each: its kernels, what gathers its weights, what sums its gradients.

    Weights are gathered while the part before runs, gradients are summed while the next ones do.
    """
    link, at = Link(), 0.0
    link.start(0, 0.0, parts[0][1])
    for place, (lasts, _, reduced) in enumerate(parts):
        at = max(at, link.end(2 * place))
        if place + 1 < len(parts):
            link.start(2 * (place + 1), at, parts[place + 1][1])
        at = link.beside(at, lasts, fills=False)
        link.start(2 * place + 1, at, reduced)
    return max(at, link.end(2 * len(parts) - 1))


def compared(name: str, case: Case) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        profile = case.device
        if case.room:
            data = json.loads((_PROFILES / f"{case.device}.json").read_text(encoding="utf-8"))
            data |= {"name": "smaller", "aliases": [], "memory_bytes": case.room * 10**9}
            profile = str(Path(folder) / "smaller.json")
            Path(profile).write_text(json.dumps(data), encoding="utf-8")
        every = Everything(case, profile)
        tokens = case.samples * case.length
        found = plan(every.graph, devices=case.devices, device=profile, batch_tokens=tokens)
        first = found.steps[0]
        least, best = every.best()
        chosen = every.of(first)
        worse = chosen.seconds / least - 1
        fits = "fits" if chosen.memory <= every.room else f"needs {chosen.memory / every.room:.2f}"
        return (
            f"{name:26}{every.tried:8,} {first.seconds:8.3f} {chosen.seconds:8.3f} {least:8.3f} {worse:+6.1%} "
            f"{fits:11} {_said(first.layout)}  |  {_said(best)}"
        )


def _said(layout: Layout) -> str:
    stages_ = f" x{layout.virtual}" if layout.virtual > 1 else ""
    return f"{layout}, {layout.micro} {layout.sharding} {layout.recompute} {layout.schedule}{stages_}"


def main() -> None:
    """Print the table, or the cases that are named."""
    print(
        "case, layouts, seconds of plan's first by plan and in full, of the best, plan's above it, memory, both"
    )
    for name in sys.argv[1:] or CASES:
        print(compared(name, CASES[name]), flush=True)


if __name__ == "__main__":
    main()
