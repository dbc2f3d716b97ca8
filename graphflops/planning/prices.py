"""The costs on one device of a program's three parts: before the repeated layers, one of them, and after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import NamedTuple

from graphflops.analysis import analyze
from graphflops.base.record import Record
from graphflops.cost import Cost
from graphflops.dims import evaluate
from graphflops.graph import Node, Ref
from graphflops.planning.blocks import NOTHING, Call, Recompute, Tally, choices
from graphflops.planning.parts import Split
from graphflops.planning.split import Folded, split
from graphflops.report import LASTING, Execution, Held, Report, Row
from graphflops.report.timeline import CallTime
from graphflops.tensor import TensorType
from graphflops.training import Training

_BY_TOKEN = frozenset(
    {"elementwise", "cast", "identity", "dropout", "normalisation", "reduction", "comparison", "logic"}
)
BEFORE, LAYER, AFTER = range(3)


class Attended(NamedTuple):
    """An attention whose keys and values, of `nbytes` bytes, go around a ring."""

    forward: Tally
    backward: Tally
    nbytes: int


class Part(Record, frozen=True):
    """A part of a program for one micro-batch on one device."""

    forward: Tally = NOTHING
    backward: Tally = NOTHING
    weight: Tally = NOTHING  # the part of the backward that computes gradients of weights
    kept: int = 0  # bytes saved for backward
    transient: int = 0  # peak live bytes, without what earlier parts saved
    parameters: int = 0  # elements
    experts: int = 0  # the elements among these that belong to experts
    gathered: tuple[int, ...] = ()  # unsplit bytes of each operand of split products
    reduced: tuple[int, ...] = ()  # unsplit bytes of each sum of partial results
    attended: tuple[Attended, ...] = ()


class Prices(Record, frozen=True):
    """The parts of a program, for a micro-batch on one device."""

    parts: tuple[Part, Part, Part]
    boundary: int  # bytes that one layer passes to the next
    recomputes: tuple[Recompute, ...]  # ways to save less of a layer for backward
    dispatched: int = 0  # bytes of the tokens that are sent to the experts of one layer
    experts: int = 0  # of one layer
    refused: Mapping[str, str] = {}  # products that are not split, with the reason
    splits: int = 0  # how many values are exchanged


def reading(
    folded: Folded,
    tensor: int,
    dims: Mapping[str, int],
    device: str,
    *,
    context: int = 1,
    sequence: bool = True,
    execution: Execution | None = None,
    precision: str | None = "bf16",
    loss: str = "cross-entropy",
) -> Reading:
    """Analyzes a training step of a program that is split over `tensor` devices.

    dims: sizes of a micro-batch on one device. context: devices that share a sequence, each with a part of its tokens.
    sequence: whether activations between split products are split along the sequence.
    """
    found = split(folded.graph, tensor)
    training = Training(loss=loss, precision=precision)  # type: ignore[arg-type]
    report = analyze(found.graph, training=training, execution=execution, device=device, dims=dims)
    return Reading(folded, found, report, sequence and tensor > 1, context)


@dataclass
class Reading:
    """Reads the costs of a program's parts from the analysis of the folded program."""

    folded: Folded
    split: Split
    report: Report
    sequence: bool
    context: int = 1

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.split.graph.nodes}

    @cached_property
    def sums(self) -> frozenset[str]:
        """Products whose results are partial sums."""
        return frozenset([one.call for one in self.split.exchanged if one.side == "out"])

    def share(self, name: str) -> float:
        """The share of an unsplit value, or of a call's work, on one device: below 1 if it is split along the sequence."""
        node = self.split.graph.makers.get(name) or self.nodes.get(name)
        if not self.sequence or node is None or any(out in self.split.parts for out in node.outputs):
            return 1.0
        return 1 / self.split.devices if node.operator.kind in _BY_TOKEN or node.name in self.sums else 1.0

    def scale(self, name: str) -> float:
        """The factor from a call's cost to one device's: its share, or for a ring the number of blocks of keys."""
        node = self.nodes.get(name)
        if node is not None and node.operator.kind == "attention":
            return float(self.context)
        return 1.0 if name in self.sums else self.share(name)

    def tally(self, row: Row, time: CallTime | None, cost: Cost | None) -> Tally:
        """The cost of a call, or of its gradients, on one device."""
        counted, scale = cost or Cost(), self.scale(row.node)
        sums = counted.flops, counted.moved_bytes
        known = [None if row.state == "unknown" else self.report.value(one) for one in sums]
        seconds = 0.0 if time is None else time.seconds * scale
        return Tally(seconds, *(nan if one is None else one * scale for one in known))

    def turn(self, name: str) -> int:
        """The layer that a call is in: -1 before the layers, `turns` after them."""
        return self.folded.turn.get(name.partition("/")[0], self.folded.turns)

    @property
    def places(self) -> range:
        """The values of `turn`: before the layers, each layer, after them."""
        return range(-1, self.folded.turns + 1)

    def parts(self) -> list[Part]:
        forward, backward, weight = ([NOTHING] * len(self.places) for _ in range(3))
        attended: list[list[Attended]] = [[] for _ in self.places]
        for row in self.report.rows:
            ahead = self.tally(row, row.time, row.cost)
            back = self.tally(row, row.backward_time, row.backward)
            at, node = self.turn(row.node) + 1, self.nodes.get(row.node)
            if node is not None and node.operator.kind == "attention" and self.context > 1:
                passed = (node.arguments().get(name) for name in ("key", "value"))
                size = sum(self._size(one.name) for one in passed if isinstance(one, Ref))
                attended[at].append(Attended(ahead, back, size))
            forward[at], backward[at] = forward[at].plus(ahead), backward[at].plus(back)
            is_weighted = node is not None and self.split.weight(node) is not None
            # The gradients of the weight and of the operand have equally many FLOPs.
            weight[at] = weight[at].plus(back, is_weighted / 2)
        listed = sum(row.backward_time.seconds for row in self.report.rows if row.backward_time is not None)
        whole = self.report.backward.time if self.report.backward else None
        loss = 0.0 if whole is None else max(whole.seconds - listed, 0.0)
        backward[-1] = backward[-1].plus(Tally(loss))
        kept, transient = self._memory()
        elements, experts = self._parameters()
        return [
            Part(
                forward[at], backward[at], weight[at], kept[place], transient[place], elements[place], experts[place],
                self._exchanged("in", place), self._exchanged("out", place), tuple(attended[at]),
            )
            for at, place in enumerate(self.places)
        ]  # fmt: skip

    def prices(self) -> Prices:
        """The prices; the last kept layer stands for all layers."""
        parts, layers = self.parts(), self.folded.layers
        calls = self.calls() if layers else []
        number, sent = self._dispatched()
        return Prices(
            (parts[0], parts[-2] if layers else Part(), parts[-1]),
            sum(call.bytes or 0 for call in calls if call.leaves),
            tuple(choices(calls)) if calls else (Recompute("none", 0),),
            sent, number, self.split.refused, len(self.split.exchanged),
        )  # fmt: skip

    def bytes(self, held: Held) -> int:
        """Bytes of an entry of the timeline on one device."""
        return int((self.report.value(held.bytes) or 0) * self.share(held.name))

    def _memory(self) -> tuple[dict[int, int], dict[int, int]]:
        """By part: bytes saved when the backward begins, and peak live bytes without what earlier parts saved."""
        timeline = self.report.memory_use[-1].timeline
        given = self.split.graph.inputs
        parameters = {entry.target or entry.name for entry in given if entry.role == "parameter"}
        begin = timeline.gradients_from or 0
        kept = dict.fromkeys(self.places, 0)
        sizes = list[int]()
        for held in timeline.held:
            is_of_parameter = held.kind == "gradient" and held.name in parameters
            is_counted = not is_of_parameter and held.kind not in (*LASTING, "temporary")
            sizes.append(self.bytes(held) if is_counted else 0)
            if held.first < begin <= held.last:
                kept[self._at(held.first)] += sizes[-1]
        transient = dict.fromkeys(kept, 0)
        for moment, live in enumerate(timeline.live_bytes(sizes)):
            if timeline.rows[moment] >= 0:
                place = self._at(moment)
                before = sum(size for other, size in kept.items() if other < place)
                transient[place] = max(transient[place], live - before)
        return kept, transient

    def _at(self, moment: int) -> int:
        row = self.report.memory_use[-1].timeline.rows[moment]
        return self.turn(self.report.rows[row].node)

    def _parameters(self) -> tuple[dict[int, int], dict[int, int]]:
        """By part: elements of its parameters on one device, and how many of them belong to experts."""
        found = dict.fromkeys(self.places, 0)
        experts = dict(found)
        read: dict[str, int] = {}
        for node in self.split.graph.nodes:
            for name in node.reads():
                read.setdefault(name, self.turn(node.name))
        owners: set[str] = set()  # tied weights belong to the part that reads the first
        for entry in self.split.graph.inputs:
            typed, owner = self.split.graph.types.get(entry.name), entry.alias_of or entry.target
            is_weight = entry.role == "parameter" and entry.name in read and owner not in owners
            if is_weight and isinstance(typed, TensorType):
                owners.add(owner)
                size = evaluate(typed.numel, {}) or 0
                found[read[entry.name]] += size
                experts[read[entry.name]] += size * (entry.name in self.expert_weights)
        return found, experts

    @cached_property
    def expert_weights(self) -> frozenset[str]:
        """Parameters that grouped products read: they hold one matrix per expert."""
        made, found = self.split.graph.makers, set()
        for node in self.split.graph.nodes:
            if node.operator.name == "grouped_mm":
                for name in node.reads():
                    while name in made and made[name].operator.kind in ("view", "cast"):
                        name = made[name].reads()[0]
                    found.add(name)
        given = {entry.name for entry in self.split.graph.inputs if entry.role == "parameter"}
        return frozenset(found & given)

    def _dispatched(self) -> tuple[int, int]:
        """The experts of a layer, and the bytes of the rows that are sent to them."""
        for node in self.split.graph.nodes:
            if self.turn(node.name) == self.folded.turns - 1 and node.operator.name == "grouped_mm":
                weights = [self.report.program.types[name] for name in self.expert_weights]  # type: ignore[union-attr]
                sizes = [self.report.value(x.shape[0]) or 0 for x in weights if isinstance(x, TensorType)]
                return max(sizes), self._size(node.reads()[0])
        return 0, 0

    def _size(self, name: str) -> int:
        typed = self.types.get(name)
        return 0 if typed is None else self.report.value(typed.nbytes) or 0

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The types of values, as the report has them."""
        return {named.name: named.type for row in self.report.rows for named in (*row.inputs, *row.outputs)}

    def _exchanged(self, side: str, place: int) -> tuple[int, ...]:
        """Bytes of the values that devices exchange in a part; each value counts once."""
        own = (one for one in self.split.exchanged if one.side == side and self.turn(one.call) == place)
        return tuple([self._size(name) for name in dict.fromkeys(one.value for one in own)])

    def calls(self) -> list[Call]:
        """The calls of the last kept layer, by which ways to recompute are chosen."""
        rows: dict[str, Row] = {row.node: row for row in self.report.rows}
        timeline, maker = self.report.memory_use[-1].timeline, self.split.graph.makers
        begin = timeline.gradients_from or 0
        needed: dict[str, int] = {}
        for held in timeline.held:
            if held.kind in ("value", "saved", "nested") and held.first < begin <= held.last:
                name = maker[held.name].name if held.name in maker else held.name
                needed[name] = needed.get(name, 0) + self.bytes(held)
        last, nodes = self.folded.turns - 1, self.split.graph.nodes
        inside = [node for node in nodes if self.turn(node.name) == last]
        names = {node.name for node in inside}

        def made_inside(readers: Iterable[Node]) -> Iterable[str]:
            makers = [maker[name].name for node in readers for name in node.reads() if name in maker]
            return dict.fromkeys(name for name in makers if name in names)

        leaving = {*made_inside(node for node in nodes if self.turn(node.name) == last + 1)}
        found = []
        for node in inside:
            row = rows.get(node.name)
            done = NOTHING if row is None else self.tally(row, row.time, row.cost)
            sizes = sum(self._size(name) * self.share(name) for name in node.outputs if name is not None)
            can_keep = node.operator.kind not in ("view", "size") and sizes > 0
            size = int(max(sizes, needed.get(node.name, 0))) if can_keep else None
            reads, is_needed = tuple(made_inside([node])), node.name in needed
            found.append(Call(node.name, done, size, reads, is_needed, can_keep and node.name in leaving))
        return found
