"""Pipeline schedules: the order in which each device runs the forwards and backwards of its stages, and the time.

GPipe: https://arxiv.org/abs/1811.06965. 1F1B and its interleaved form: https://arxiv.org/abs/2104.04473. Zero bubble
(ZB-H1), which runs gradients of weights apart from those of inputs: https://arxiv.org/abs/2401.10241.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import le
from typing import Literal, NamedTuple

from graphflops.base.record import Record
from graphflops.errors import OptionError

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Work = Literal["F", "B", "W"]
EXACT = 4096  # a schedule runs as a whole up to this many stages times microbatches


class Stage(Record, frozen=True):
    """Seconds of one microbatch in a stage."""

    forward: float
    backward: float  # of gradients of inputs; if `weight` is 0, of all gradients
    weight: float = 0.0  # of gradients of weights, which zero-bubble schedules run apart
    saved: float = 1.0  # memory that a microbatch saves for backward, in any unit

    @property
    def whole(self) -> float:
        """Seconds of forward and backward."""
        return self.forward + self.backward + self.weight


class Step(NamedTuple):
    """One microbatch in one stage: F its forward, B its backward (of inputs), W that of weights."""

    work: Work
    stage: int
    microbatch: int


class Span(NamedTuple):
    """When a device runs a step."""

    device: int
    step: Step
    start: float
    end: float


class Pipeline(NamedTuple):
    """The time and memory of a schedule."""

    seconds: float  # from start to end
    bubble: float  # share of the devices' time in which they wait
    saved: tuple[float, ...]  # by device, the most that is saved for backward at once, in the stages' unit
    spans: tuple[Span, ...]  # all steps


def bubble_of(stage: Stage, devices: int, schedule: Schedule, chunks: int = 1) -> float:
    """Seconds for which a device waits, if all stages are equal and there are at least as many microbatches as devices.

    stage: all `chunks` stages of a device together.
    """
    hidden = 2 * stage.weight if schedule == "zero-bubble" else 0.0
    return (devices - 1) / chunks * max(stage.whole - hidden, 0.0)


def seconds_of(
    stages: Sequence[Stage], devices: int, microbatches: int, schedule: Schedule, *, send: float = 0.0
) -> float:
    """Seconds of a schedule. Beyond `EXACT`, few microbatches are run, and each further round of the devices is taken to
    last as long as the last one. With unequal stages rounds settle late: interleaved schedules are then some percent off.
    """
    whole = len(stages) * microbatches <= EXACT
    few = microbatches if whole else min(microbatches, 3 * devices + microbatches % devices)
    found = pipeline(stages, devices, few, schedule, send=send)
    if few == microbatches:
        return found.seconds
    last = [span.end for span in found.spans if span.step.work == "B" and span.step.stage == len(stages) - 1]
    return found.seconds + (last[-1] - last[-1 - devices]) * (microbatches - few) / devices


def pipeline(
    stages: Sequence[Stage], devices: int, microbatches: int, schedule: Schedule, *, send: float = 0.0
) -> Pipeline:
    """Runs a schedule step by step. Stage i is on device i % devices. send: seconds of a message between devices, which
    compute meanwhile.

    Raises OptionError if the schedule does not exist for these numbers of stages, devices and microbatches.
    """
    chunks, rest = divmod(len(stages), max(devices, 1))
    if devices < 1 or rest or not chunks or microbatches < 1:
        given = f"{len(stages)} stages, {devices} devices, {microbatches} microbatches"
        raise OptionError(f"a pipeline of {given}: give as many stages on each device, and microbatches")
    if chunks > 1 and schedule != "interleaved":
        raise OptionError(f"the schedule {schedule} has one stage a device, not {chunks}: use interleaved")
    if chunks > 1 and microbatches % devices:
        raise OptionError(f"interleaved stages take a multiple of {devices} microbatches, not {microbatches}")
    orders = [_order(schedule, device, devices, chunks, microbatches) for device in range(devices)]
    spans = _run(orders, stages, devices, send)
    seconds = max(span.end for span in spans)
    busy = sum(span.end - span.start for span in spans)
    sizes = [stage.saved for stage in stages]
    each = [(sizes[device::devices], device) for device in range(devices)]
    saved = tuple([most_saved(*one, devices, microbatches, schedule) for one in each])
    return Pipeline(seconds, 1 - busy / (devices * seconds) if seconds else 0.0, saved, tuple(spans))


def most_saved(
    sizes: Sequence[float], device: int, devices: int, microbatches: int, schedule: Schedule
) -> float:
    """The most that a device saves for backward at once. sizes: what a microbatch saves in each of its stages.

    Except in GPipe, three times as many microbatches as devices are enough to reach the maximum.
    """
    few = microbatches if schedule == "gpipe" else min(microbatches, 3 * devices)
    under_way = _under_way(device, devices, len(sizes), few, schedule)
    return max(sum(number * size for number, size in zip(one, sizes, strict=True)) for one in under_way)


@lru_cache(maxsize=4096)
def _under_way(
    device: int, devices: int, chunks: int, microbatches: int, schedule: Schedule
) -> frozenset[tuple[int, ...]]:
    """Microbatches in flight in each stage of a device, from forward to last gradient, at the moments with the most."""
    last, now = "W" if schedule == "zero-bubble" else "B", [0] * chunks
    found = set()
    for step in _order(schedule, device, devices, chunks, microbatches):
        if step.work == "F":
            now[step.stage // devices] += 1
            found.add(tuple(now))
        elif step.work == last:
            now[step.stage // devices] -= 1
    return frozenset(one for one in found if not any(all(map(le, one, other)) for other in found - {one}))


@lru_cache(maxsize=256)
def _order(schedule: Schedule, device: int, devices: int, chunks: int, microbatches: int) -> tuple[Step, ...]:
    count = chunks * microbatches
    forward = [_step("F", place, device, devices, chunks) for place in range(count)]
    backward = [_step("B", place, device, devices, chunks) for place in range(count)]
    if schedule == "gpipe":
        return tuple(forward + backward)
    ahead = devices - device - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * devices
    ahead = min(ahead, count)
    pairs = chain.from_iterable(zip(forward[ahead:], backward, strict=False))
    order = [*forward[:ahead], *pairs, *backward[count - ahead :]]
    if schedule != "zero-bubble":
        return tuple(order)
    found: list[Step] = []
    for step in order:  # a device delays gradients of weights by as many microbatches as its number
        found.append(step)
        if step.work == "B" and step.microbatch >= device:
            found.append(step._replace(work="W", microbatch=step.microbatch - device))
    last = max(0, microbatches - device)
    return tuple(found + [Step("W", device, microbatch) for microbatch in range(last, microbatches)])


def _step(work: Work, place: int, device: int, devices: int, chunks: int) -> Step:
    """The step at a place in the order of forwards or backwards: `devices` microbatches of one chunk, then of the next."""
    turn, rest = divmod(place, devices * chunks)
    chunk, within = divmod(rest, devices)
    chunk = chunk if work == "F" else chunks - 1 - chunk
    return Step(work, chunk * devices + device, turn * devices + within)


def _run(orders: Sequence[Sequence[Step]], stages: Sequence[Stage], devices: int, send: float) -> list[Span]:
    """Runs each step as soon as its device is free and its operands have arrived."""
    splits = any(step.work == "W" for step in orders[0])
    lasts = {
        "F": [stage.forward for stage in stages],
        "B": [stage.backward + (0.0 if splits else stage.weight) for stage in stages],
        "W": [stage.weight for stage in stages],
    }
    send = send if devices > 1 else 0.0
    ends: dict[tuple[str, int, int], float] = {}
    spans: list[Span] = []
    free, places = [0.0] * devices, [0] * devices
    while len(spans) < sum(map(len, orders)):
        before = len(spans)
        for device, order in enumerate(orders):
            now = free[device]
            for place in range(places[device], len(order)):
                step = order[place]
                start = _ready(step, ends, len(stages), send)
                if start is None:
                    break
                start = start if start > now else now
                now = ends[step] = start + lasts[step.work][step.stage]
                spans.append(Span(device, step, start, now))
                places[device] += 1
            free[device] = now
        assert len(spans) > before, "a schedule in which devices wait for one another"
    return spans


def _ready(step: Step, ends: Mapping[tuple[str, int, int], float], stages: int, send: float) -> float | None:
    """When the operands of a step have arrived; None if they are not computed yet."""
    work, stage, microbatch = step
    if work == "F":
        passed = ends.get(("F", stage - 1, microbatch)) if stage else -send
        return None if passed is None else passed + send
    own = ends.get(("F" if work == "B" else "B", stage, microbatch))
    if work == "W" or stage == stages - 1 or own is None:
        return own
    passed = ends.get(("B", stage + 1, microbatch))
    return None if passed is None else max(passed + send, own)
