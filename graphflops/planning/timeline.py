"""When each rank of a planned pipeline runs what, in the seconds of the plan. All devices of one rank run alike."""

from typing import NamedTuple

from graphflops.errors import OptionError
from graphflops.links.pipeline import EXACT, Span, Step as Turn
from graphflops.planning.blocks import NOTHING, Block, Work
from graphflops.planning.layouts import Costs, Step
from graphflops.time.schedule import exchange_ends, kernels_end

_MOST = 100_000  # layers times micro-batches


class Event(NamedTuple):
    """Work of a rank, with its start and end in seconds from the start of the step."""

    work: Work  # kernels, with the seconds that they take alone, or a message
    turn: Turn | None  # the micro-batch and stage that it belongs to, None after the last one
    start: float
    end: float
    waits: tuple[int, ...] = ()  # indices of the rank's events that must end first
    peer: int | None = None  # of a message of the pipeline: the rank at its other end
    is_received: bool = False


def timeline(step: Step) -> list[list[Event]]:
    """The events of each rank of a step whose schedule was run, in launch order; the last one ends with the step.

    Kernels take longer beside a collective. The part of the gradients' sum that the last backward does not hide follows it.
    Raises OptionError if there are too many micro-batches.
    """
    costs, devices = step.costs, step.layout.pipeline
    if len(costs.counts) * costs.batches > EXACT or costs.layers * costs.batches > _MOST:
        raise OptionError("there are too many micro-batches for a trace: take fewer --batch-tokens")
    run, sent = costs.run(costs.batches), dict[Turn, float]()
    ranks = [_Rank(costs) for _ in range(devices)]
    for span in run.spans:
        ranks[span.device].turn(span, sent)
    sums = costs.sums(max(costs.elements(device)[1] for device in costs.unalike))
    others = run.seconds + step.update + sum(one.seconds for one in sums[1:])
    for device, rank in enumerate(ranks):
        for one in sums[:1]:
            rank.add(one, None, rank.clock, rank.clock + max(step.seconds - others, 0.0))
        for one in (costs.updated(device, step.update), *sums[1:]):
            rank.add(one, None, rank.clock, rank.clock + one.seconds)
    return [rank.events for rank in ranks]


class _Rank:
    """A rank of a pipeline. last: indices of the events that the next one waits for. clock: when they end."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.counts, self.send = costs, costs.counts, costs.send()
        self.events: list[Event] = []
        self.last: tuple[int, ...] = ()
        self.clock = 0.0

    def add(self, work: Work, turn: Turn | None, start: float, end: float) -> None:
        """Appends an event that waits for all before it."""
        self.events.append(Event(work, turn, start, end, self.last))
        self.last, self.clock = (len(self.events) - 1,), end

    def turn(self, span: Span, sent: dict[Turn, float]) -> None:
        """Appends a micro-batch in a stage: the message it reads, its parts, its own message. sent: when turns ended."""
        devices, turn, way = self.costs.layout.pipeline, span.step, {"F": 1, "B": -1, "W": 0}[span.step.work]
        from_stage, to_stage = turn.stage - way, turn.stage + way
        if way and devices > 1 and 0 <= from_stage < len(self.counts):
            start = sent[turn._replace(stage=from_stage)]
            self.last += (len(self.events),)
            times = (start, start + self.send.seconds)
            self.events.append(Event(self.send, turn, *times, (), from_stage % devices, is_received=True))
        self.clock = span.start
        for block, later in self.blocks(turn):
            self.block(block, turn, later)
        sent[turn] = self.clock = span.end
        if way and devices > 1 and 0 <= to_stage < len(self.counts):
            passed = turn._replace(stage=to_stage)
            times = (span.end, span.end + self.send.seconds)
            self.events.append(Event(self.send, passed, *times, self.last, to_stage % devices))

    def blocks(self, turn: Turn) -> list[tuple[Block, Work | None]]:
        """The blocks of a turn in order, each with the gradients of weights that another turn computes instead."""
        layer, *ends = self.costs.of(turn.stage, self.counts)
        splits, found = self.costs.layout.schedule == "zero-bubble", []
        for part, times in [*ends[: turn.stage == 0], layer, *ends[turn.stage == 0 :]]:
            ahead, back = self.costs.ways[part]
            weight = Work("gradients of weights", part.weight)
            alone = Block((weight,), ())
            parts = {"F": (ahead, None), "B": (back, weight if splits else None), "W": (alone, None)}
            found += [parts[turn.work]] * times
        return found if turn.work == "F" else found[::-1]

    def block(self, block: Block, turn: Turn, later: Work | None) -> None:
        """Appends kernels and exchanges in sequence, with collectives beside them. later: kernels that are left out."""
        left_out = later or Work("", NOTHING)
        begin, lasts, done, sent = self.clock, block.seconds - left_out.seconds, 0.0, 0.0
        chain = last = self.last
        beside = sum(one.seconds for one in block.sharded)
        for work in block.works:
            work = work.without(left_out) if work.name == "backward" else work
            ring = work.ring
            pair = [(work, kernels_end(work.seconds, 0.0 if ring is None else ring.seconds))]
            pair += [] if ring is None else [(ring, exchange_ends(ring.seconds, work.seconds))]
            start = begin + kernels_end(done, beside)
            for one, ends in pair:
                self.events.append(Event(one, turn, start, begin + kernels_end(done + ends, beside), chain))
            chain = tuple(range(len(self.events) - len(pair), len(self.events)))
            done += max(ends for _, ends in pair)
        for one in block.sharded:
            start, sent = sent, sent + one.seconds
            times = [begin + min(exchange_ends(moment, done), lasts) for moment in (start, sent)]
            self.events.append(Event(one, turn, times[0], times[1], last))
            last = (len(self.events) - 1,)
        self.last, self.clock = chain + last * bool(block.sharded), begin + lasts
