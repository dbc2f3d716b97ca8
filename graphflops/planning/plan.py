"""Prices the layouts of a program over many devices: the fastest first, the impossible ones with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphflops.analysis import analyze
from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.base.units import percent
from graphflops.budget.amounts import asked
from graphflops.derived.items import token_ids
from graphflops.devices import complete, device as device_named
from graphflops.dims.solving import symbol_of
from graphflops.errors import ModelError, OptionError, shown
from graphflops.fitting.varied_size import SPARE, room
from graphflops.graph import Graph, tensor_type
from graphflops.links import network_of
from graphflops.links.pipeline import Schedule
from graphflops.loading import Model, program_of
from graphflops.planning.layouts import SHARDINGS, Costs, Layout, Machine, Sharding, Step
from graphflops.planning.parts import INDIVISIBLE
from graphflops.planning.prices import Prices, reading
from graphflops.planning.split import Folded, folded, mixed
from graphflops.report import Execution, Report
from graphflops.tensor import TensorType
from graphflops.time.predict import pinned_rate

_MOST_DEVICES = 2**17
_MICRO = (1, 2, 4, 8, 16)  # sizes of a micro-batch that are tried if the batch size is open
_VIRTUAL = (2, 4)  # stages of a device, in an interleaved schedule
# The fewest tokens that a device gets of a sequence: with fewer, kernels are too short to hide the ring of keys.
_FEWEST = 2048
# The words for the parts of a step.
_PARTS = {"compute": "kernels", "again": "recomputation", "exposed": "communication"}
_PARTS |= {"bubble": "pipeline bubble", "update": "update"}
_AXES = {"dp": "data", "tp": "tensor", "pp": "pipeline", "ep": "expert", "cp": "context"}


class Refused(Record, frozen=True):
    """A mesh without a possible layout."""

    layout: Layout
    reason: str
    step: Step | None = None  # if no layout fits: the one that needs the least memory
    # The fastest step that fits once the optimizer's state is in the host's memory
    hosted: Step | None = None


class Plan(Rendered, Record, frozen=True):
    """Layouts of one training step."""

    path: str
    devices: int
    device: str
    network: str
    layers: int  # repeated layers
    samples: int  # of a step
    length: int  # tokens of a sample
    parameters: int
    flops: float  # the model's FLOPs of a step; the backward counts as twice the forward
    peak: float  # FLOPs per second of a device, as published
    room: int  # bytes that a step may use on a device
    steps: tuple[Step, ...]  # the best step of each mesh that fits, fastest first
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()

    def tokens_per_second(self, step: Step) -> float:
        """Tokens per second on all devices; samples per second if a sample has no length."""
        return self.samples * self.length / step.seconds

    def mfu(self, step: Step) -> float:
        """Model FLOPs utilisation, as a share of the published peak."""
        return self.flops / step.seconds / self.devices / self.peak

    def why(self, step: Step) -> str:
        """Why a layout is slower than the first one."""
        best = self.steps[0]
        if step is best:
            return ""
        more = {said: getattr(step, part) - getattr(best, part) for part, said in _PARTS.items()}
        slower = percent(step.seconds - best.seconds, best.seconds)
        return f"slower by {slower} %: {max(more, key=lambda one: more[one])}"


def plan(
    model: Model,
    *,
    devices: int,
    device: str,
    batch_tokens: str | int | None = None,
    network: str | None = None,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    execution: Execution | None = None,
    precision: str | None = "bf16",
    loss: str | None = None,
    recompute: Sequence[str] = ("none", "cut", "full"),
    sharding: Sequence[Sharding] = SHARDINGS,
    mesh: Mapping[str, int] | None = None,
) -> Plan:
    """The layouts over `devices` devices of a training step of an unsharded program.

    batch_tokens: tokens of a step, as a number or text (`4M`); by default one sample per device, or the program's fixed
    batch. dims: sizes by axis (`ids[1]`). network: links of a node, such as `8x400Gbit`. precision: of products and
    activations; weights and their accumulated gradients are float32. loss: by default the first result if that is one
    number, else a cross-entropy of it. recompute, sharding: the ways that are tried. mesh: sizes of axes (`dp`, `tp`, `pp`,
    `ep`, `cp`); only meshes with these sizes are tried.

    Raises ModelError if devices, batch or mesh do not divide, or if the model is a saved report or a recorded step.
    """
    _require_possible(devices, mesh or {})
    profile, graph = complete(device_named(device)), program_of(model, model_name)
    graph, loss = _with_loss(graph) if loss is None else (graph, loss)
    found = _Program.of(graph, dims)
    samples = _samples(batch_tokens, found, devices)
    machine = Machine(profile, network_of(profile, network))
    options = {"execution": execution, "precision": precision, "loss": loss, "device": device}
    search = _Search(found, machine, devices, samples, options, recompute, sharding, mesh or {})
    steps, refused = search.run()
    peak = profile.matrix.get("bfloat16") or max(profile.matrix.values())
    sizes = (found.folded.layers, samples, found.length, found.report.parameters)
    where = (graph.origin.path, devices, profile.name, str(machine.network))
    results = (search.room, tuple(steps), tuple(refused), tuple(found.notes(precision)))
    return Plan(*where, *sizes, found.flops * samples, peak, *results)


def _require_possible(devices: int, mesh: Mapping[str, int]) -> None:
    if not 1 <= devices <= _MOST_DEVICES:
        raise ModelError(f"--devices {devices:,}: give 1 to {_MOST_DEVICES:,}")
    if unknown := [axis for axis in mesh if axis not in _AXES]:
        raise OptionError(f"--mesh {shown(unknown[0])}: the axes are {', '.join(_AXES)}")


def _with_loss(graph: Graph) -> tuple[Graph, str]:
    """The program, and the loss of its step: its own, then marked as such, or a cross-entropy."""
    results = [output for output in graph.outputs if output.role == "user"]
    first = tensor_type(results[0].value, graph.types) if results else None
    if first is None or first.numel != 1 or first.dtype.kind != "float":
        return graph, "cross-entropy"
    loss = replace(results[0], role="loss")
    return replace(graph, outputs=tuple([loss if one is results[0] else one for one in graph.outputs])), "sum"


class _Program(Record, frozen=True):
    """A program, and the axes along which it is split."""

    report: Report
    folded: Folded
    batch: str  # the symbol of the batch size, "" if the batch size is `fixed`
    fixed: int
    length: int  # tokens of a sample
    flops: float  # of a sample, forward and backward
    tokens: str  # the symbol of the tokens of a sample
    whole: str  # why tokens are not split over devices, "" if they can be
    dims: Mapping[str, int]  # sizes that the user gives

    @staticmethod
    def of(graph: Graph, dims: Mapping[str, int] | None) -> _Program:
        """Analyzes a program and folds its layers."""
        symbols = {name: replace(entry, minimum=1) for name, entry in graph.symbols.items()}
        graph = replace(graph, symbols=symbols)
        report = analyze(graph, dims=dims, memory=False)
        ids = token_ids(report)
        entry = next((one for one in report.inputs if ids is None or one.type is ids), None)
        if entry is None or not entry.type.rank:
            raise ModelError("the program has no input whose first axis counts samples")
        batch, fixed = symbol_of(entry.type.shape[0]), report.value(entry.type.shape[0]) or 1
        length, tokens, others = 1, "", dict(dims or {})
        if ids is not None and ids.rank > 1:
            length, own = report.value(ids.shape[1]) or 1, graph.types[entry.name]
            tokens = symbol_of(own.shape[1]) if isinstance(own, TensorType) else ""
        forward = report.value(report.totals.cost.matrix_flops) or 0
        given = {tokens, *report.symbols[tokens].where} & others.keys() if tokens else set()
        if given:  # the number of tokens stays open: each layout divides it anew
            others = {name: size for name, size in others.items() if name not in given}
            report = analyze(graph, dims=others, memory=False)
        less = folded(report)
        whole = mixed(less.graph, tokens) if tokens else "their number is no open axis of the program"
        return _Program(report, less, batch, fixed, length, 3 * forward / fixed, tokens, whole, others)

    @property
    def micros(self) -> Sequence[int]:
        """Sizes of a micro-batch: those that are tried, or the one that the program fixes."""
        return _MICRO if self.batch else (self.fixed,)

    def sizes(self, micro: int, context: int) -> dict[str, int]:
        """The sizes of a micro-batch on a device; `context` devices share each sequence."""
        batch = {self.batch: micro} if self.batch else {}
        return {**self.dims, **batch, **({self.tokens: self.length // context} if self.tokens else {})}

    def notes(self, precision: str | None) -> Iterator[str]:
        """What the plan assumes, or does not know. precision: of products."""
        unknown = self.report.coverage.unknown_ops
        if unknown:
            yield f"the cost of these is unknown, so times are lower bounds: {', '.join(unknown)}"
        if self.whole and self.length > 1:
            yield f"tokens of a sequence are not split over devices (cp): {self.whole}"
        if not self.folded.layers:
            yield "no repeated layers: no pipeline, and nothing is computed again"
        yield "times are those of kernels that run alone: long runs take longer, docs/plan.md says how much"
        products = {"bf16": "bfloat16", "fp32": "float32"}.get(precision or "", "as in the program")
        yield f"AdamW; weights, sums of gradients and its state are float32, products {products}"


def _samples(given: str | int | None, program: _Program, devices: int) -> int:
    """Samples of a step for the tokens given: a multiple of the devices, or below their number a power of two."""
    if given is None:
        return devices * program.micros[0]
    samples = round(asked("--batch-tokens", given, "") / program.length)
    if samples < 1:
        least = f"one sample of {program.length:,} tokens"
        raise ModelError(f"--batch-tokens {shown(str(given))}: less than {least}")
    return 1 << samples.bit_length() - 1 if samples < devices else round(samples / devices) * devices


def divisors(number: int) -> list[int]:
    """The divisors of a number, ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]


@dataclass
class _Search:
    """A search over the meshes of `devices` devices."""

    program: _Program
    machine: Machine
    devices: int
    samples: int
    options: Mapping[str, Any]
    recompute: Sequence[str]
    sharding: Sequence[Sharding]
    mesh: Mapping[str, int]
    known: dict[tuple[int, int, int], Prices] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """Bytes that a step may use on a device."""
        return int((1 - SPARE) * room(self.machine.device))

    def run(self) -> tuple[list[Step], list[Refused]]:
        """The best step of each mesh, fastest first, and the meshes without one."""
        steps: list[Step] = []
        refused: list[Refused] = []
        sizes = self.mesh.items()
        meshes = [one for one in self.meshes() if all(getattr(one, _AXES[axis]) == n for axis, n in sizes)]
        if not meshes:
            given = ",".join(f"{axis}={size}" for axis, size in sizes)
            raise ModelError(f"--mesh {given}: there is no such mesh of {self.devices:,} devices to try")
        for mesh in meshes:
            if reason := self.refusal(mesh):
                refused.append(Refused(mesh, reason))
                continue
            found, least = self.best(mesh)
            if found is not None:
                steps.append(found)
            elif least is not None:
                refused.append(Refused(mesh, "does not fit", least, self.hosted(mesh, least)))
            else:
                what = f"a copy gets {self.samples // mesh.data:,} samples"
                reason = f"{what}: no multiple of the program's fixed batch of {self.program.micros[0]:,}"
                refused.append(Refused(mesh, reason))
        if not steps and not any(one.step for one in refused):
            raise ModelError(f"no layout on {self.devices:,} devices: {refused[0].reason}")
        return sorted(steps, key=lambda step: step.seconds), refused

    def best(self, mesh: Layout) -> tuple[Step | None, Step | None]:
        """The fastest step of a mesh that fits; if none fits, also the one that needs the least memory.

        The search stops at the first micro-batch that is no better than the one before it. Schedules are run in the order of
        their closed forms, until a closed form promises nothing better than the best run.
        """
        found: Step | None = None
        for micro in self.micros(mesh):
            tried = [costs.step() for costs in self.tried(mesh, micro)]
            fitting = (step for step in tried if step.memory.total <= self.room)
            before = found
            for step in sorted(fitting, key=lambda step: step.seconds):
                if found is not None and step.seconds >= found.seconds:
                    break
                run = step.costs.step(runs=True)
                found = run if found is None or run.seconds < found.seconds else found
            if found is None and tried:
                return None, min(tried, key=lambda step: step.memory.total)
            if found is before:
                break
        return found, None

    def hosted(self, mesh: Layout, least: Step) -> Step | None:
        """The fastest step of a mesh that fits once the optimizer's state is in the host's memory."""
        others = least.memory.total - least.memory.optimizer
        if others > self.room or pinned_rate(self.machine.device) is None:
            return None
        return self.best(replace(mesh, hosted=True))[0]

    def meshes(self) -> Iterator[Layout]:
        """All sizes of axes whose product is the number of devices."""
        most = self.machine.network.node.devices
        experts = self.prices(1, self.program.micros[0]).experts
        for tensor in divisors(self.devices):
            if tensor > most:
                break
            for pipeline in divisors(self.devices // tensor):
                rest = self.devices // tensor // pipeline
                for context in self.contexts(rest):
                    data = rest // context
                    for expert in divisors(data) if experts else [1]:
                        if expert == 1 or experts % expert == 0:
                            yield Layout(data, tensor, pipeline, expert, context)

    def contexts(self, devices: int) -> Iterator[int]:
        """The numbers of devices that may share a sequence, such that each gets enough tokens."""
        for context in divisors(devices):
            each, rest = divmod(self.program.length, context)
            if context == 1 or (not self.program.whole and not rest and each >= _FEWEST):
                yield context

    def refusal(self, mesh: Layout) -> str:
        """Why nothing runs on a mesh; "" if something may."""
        layers = self.program.folded.layers
        if mesh.pipeline > max(layers, 1):
            return f"{layers} layers, {mesh.pipeline} stages" if layers else "no repeated layers"
        if self.samples % mesh.data:
            return f"{self.samples:,} samples do not divide by {mesh.data:,}"
        if mesh.tensor > 1:
            found = self.prices(mesh.tensor, self.program.micros[0])
            if not found.splits:
                return "no product can be split"
            for name, why in found.refused.items():
                if INDIVISIBLE in why:
                    return f"{name}: {why} by {mesh.tensor}"
        try:  # the analysis may refuse so few tokens
            self.prices(mesh.tensor, self.program.micros[0], mesh.context)
        except ModelError as error:
            return str(error)
        return ""

    def micros(self, mesh: Layout) -> Sequence[int]:
        """Sizes of a micro-batch on a mesh. Devices that share a sequence run one: for more, fewer are faster."""
        each, found = self.samples // mesh.data, self.program.micros
        return [micro for micro in found[: 1 if mesh.context > 1 else None] if each % micro == 0]

    def prices(self, tensor: int, micro: int, context: int = 1) -> Prices:
        key = (tensor, micro, context)
        if key not in self.known:
            sizes = self.program.sizes(micro, context)
            found = reading(self.program.folded, tensor, sizes, context=context, **self.options)
            self.known[key] = found.prices()
        return self.known[key]

    def tried(self, mesh: Layout, micro: int) -> Iterator[Costs]:
        """All ways to run on a mesh with micro-batches of `micro` samples."""
        prices, batches = self.prices(mesh.tensor, micro, mesh.context), self.samples // mesh.data // micro
        for way in prices.recomputes:
            if not any(way.name.startswith(name) for name in self.recompute):
                continue
            for sharding in self.sharding if mesh.shards > 1 else SHARDINGS[:1]:
                chosen = replace(mesh, micro=micro, sharding=sharding, recompute=way.name)
                for schedule, virtual in self.schedules(mesh, batches):
                    layout = replace(chosen, virtual=virtual, schedule=schedule)
                    yield Costs(layout, prices, way, self.machine, self.program.folded.layers, batches)

    def schedules(self, mesh: Layout, batches: int) -> Iterator[tuple[Schedule, int]]:
        """The schedules to try, each with the stages of a device. Interleaving needs batches divisible by the ranks."""
        yield "1f1b", 1
        if mesh.pipeline > 1:
            if batches >= mesh.pipeline:
                yield "zero-bubble", 1
            for number in _VIRTUAL:
                if batches % mesh.pipeline == 0 and self.program.folded.layers // mesh.pipeline >= number:
                    yield "interleaved", number
