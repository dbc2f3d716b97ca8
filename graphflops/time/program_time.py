"""The pass: PricedProgram, device, execution -> the time of every call and of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import exp, hypot, log, prod, sqrt
from typing import Any

from msgspec import Struct

from graphflops.base.record import field
from graphflops.devices import Device
from graphflops.execution.runs import Runs
from graphflops.kernels.kernel import Exchange, Kernel, Transfer
from graphflops.passes.program import PricedProgram, ProgramTime
from graphflops.report import Execution, Row
from graphflops.report.timeline import CallTime, PhaseTime
from graphflops.tensor import grouped
from graphflops.time.exchanges import Launches
from graphflops.time.launches import Launcher
from graphflops.time.predict import Batch, Time, matrix_peak, predict, slowdowns
from graphflops.time.schedule import Clock, Costs

_NOTHING = CallTime(0.0, 0.0, 0.0, "launch")  # a call in a graph that runs no kernel
_SUMMED = ("seconds", "low", "high", "collective", "exposed", "waited", "elapsed", "ahead")
_GRAPH_GAP = 0.9e-6  # seconds between two kernels of a CUDA graph if the device's profile has no value


def forward_times(
    program: PricedProgram, device: Device, execution: Execution, runs: Runs, *, replayed: bool = False
) -> Callable[[Mapping[str, int]], PhaseTime]:
    """The forward's time as a function of the symbols' values. replayed: whether a CUDA graph replays the kernels."""
    assert device.host is not None  # every profile has one once it is complete
    launcher = _launcher(program, execution, runs, device.host.seconds)
    known: dict[Kernel, Time] = {}  # kernels that do not depend on a size are the same at others

    def at(values: Mapping[str, int]) -> PhaseTime:
        launcher.at({**program.values, **values})
        timer = _Timer(device, execution != "graph" and not replayed, _ranks(program))
        timer.known = known
        return timer.phase(launcher.forward(records=False))[0]

    return at


def program_time(program: PricedProgram, device: Device, execution: Execution, runs: Runs) -> ProgramTime:
    """A program's time on a device at its sizes; in a training analysis also the times of gradients and optimizer."""
    is_launched = execution != "graph"
    timer = _Timer(device, is_launched, _ranks(program))
    launcher = _launcher(program, execution, runs, timer.host.seconds)
    forward, rows = timer.phase(launcher.forward(records=False))
    backward_rows: Mapping[int, CallTime] = {}
    backward = optimizer = step = None
    if program.training:
        from graphflops.time.optimizer import optimizer_launches

        timer = _Timer(device, is_launched, _ranks(program))
        steps = program.training.accumulate
        _, rows = timer.phase(launcher.forward(records=True), steps)
        backward, backward_rows = timer.phase(launcher.backward(), steps)
        optimizer, _ = timer.phase(optimizer_launches(program, launcher.sizes, launcher.costs))
        step = timer.whole()
    pairs = enumerate(program.main.rows)
    timed = tuple([Row(*row[:-2], rows.get(at), backward_rows.get(at)) for at, row in pairs])
    found = slowdowns(program.attentions, timed, program.values, device)
    network = ""
    if any(isinstance(kernel.sizes, Exchange) for kernel in timer.known):
        from graphflops.links.cost import described, network_of  # no other program needs it

        network = described(timer.known, network_of(device))
    errors = grouped((points.family, points.error[0]) for points in device.calibration if points.error)
    worst = {family: max(each) for family, each in errors.items()}  # of its variants' median errors
    return ProgramTime(device.name, timed, forward, backward, optimizer, step, worst, found, network)


def _launcher(program: PricedProgram, execution: Execution, runs: Runs, costs: Costs) -> Launcher:
    if execution == "compiled":
        from graphflops.time.compiled import CompiledLauncher

        return CompiledLauncher(program, program.values, runs, costs)
    return Launcher(program, program.values, runs, costs)


def _ranks(program: PricedProgram) -> int:
    """How many processes run a recorded step. An exported program counts as 1: its costs include waiting for ranks."""
    step = program.graph.step
    return 1 if step is None or step.mesh is None else prod(step.mesh.axes.values())


class _Timer:
    """Times one phase after another, also with a fast and a slow CPU."""

    def __init__(self, device: Device, is_launched: bool, ranks: int = 1) -> None:
        self.device = device
        gap = _GRAPH_GAP if device.launch is None else device.launch.graph_seconds
        assert device.host is not None
        self.host = device.host
        is_cpu = device.kind == "cpu"
        cpus = (self.host.slowness(ranks), 1 / self.host.faster, self.host.slower)
        # With a graph, a GPU takes as long with any CPU.
        own = cpus if is_launched or is_cpu else cpus[:1]
        self.clocks = tuple([Clock(is_launched, gap, slowness, is_cpu) for slowness in own])
        self.clock = self.clocks[0]
        self.known: dict[Kernel, Time] = {}
        self.batches: dict[int, Batch] = {}
        self.tallies: list[tuple[_Tally, int]] = []  # the tally of each phase, and how often the phase runs

    def phase(self, launches: Iterable[Launches], repeats: int = 1) -> tuple[PhaseTime, dict[int, CallTime]]:
        """The time of a phase, and those of its calls, summed by row. repeats: how often the phase runs in a step."""
        rows: dict[int, CallTime] = {}
        tally, clock = _Tally(), self.clock
        for launch in launches:
            row, kernels, times, part = launch.row, launch.kernels, launch.times, launch.part
            if tally.due and part != "wait":
                tally.awaited(rows, row)
            if kernels is None:
                tally.is_lower_bound = True
                continue
            if not (kernels or clock.is_eager):
                rows.setdefault(row, _NOTHING)
                continue
            batch, alone = self._batch(kernels), clock.link.alone
            if part == "all":
                given = (launch.host_seconds, batch.kernel_seconds)
                took = [each.run(*given, waits=launch.waits) for each in self.clocks]
            else:
                took = [_exchanged(launch, batch, each) for each in self.clocks]
            tally.exposed += (clock.link.alone - alone) * times
            own, fast, slow = took * 3 if len(took) == 1 else took  # one clock: the CPU does not matter
            runs = times * (part != "start")  # the time of a start is the CPU's
            found = batch.call_time(own * times, clock.is_eager, self.host, runs)
            if part != "all" or batch.collective:
                found = tally.exchanged(found, batch.collective * times, launch, clock)
            if found.seconds:
                tally.parts.append(found)
            tally.runs[batch] += 0 if part == "wait" else times
            tally.fast += fast * times
            tally.slow += slow * times
            rows[row] = found if row not in rows else _sum(rows[row], found)
        tally.awaited(rows, -1)
        for ticket, row in tally.under_way.items():  # nothing waits for what is sent to one device
            time, done = rows[row], clock.link.finished.pop(ticket, None)
            alone, lasted = (0.0, time.collective) if done is None else (done.alone, done.lasted)
            rows[row] = time._replace(exposed=alone, elapsed=lasted)
        self.tallies.append((tally, repeats))
        return tally.phase(self.device), rows

    def whole(self) -> PhaseTime:
        whole = _Tally()
        for tally, times in self.tallies:
            whole.count(tally, times)
        return whole.phase(self.device)

    def _batch(self, kernels: tuple[Kernel, ...]) -> Batch:
        """The kernels of a call with their times. Equal calls share one tuple of kernels, which is compared by identity."""
        batch = self.batches.get(id(kernels))  # a batch keeps its tuple alive, so no other gets its id
        if batch is None:
            times: dict[Kernel, Time] = {}
            for kernel in dict.fromkeys(kernels):
                if (time := self.known.get(kernel)) is None:
                    time = self.known[kernel] = predict(kernel, self.device)
                times[kernel] = time
            batch = self.batches[id(kernels)] = Batch.of(kernels, times)
        return batch


def _exchanged(launch: Launches, batch: Batch, clock: Clock) -> float:
    """Starts a collective, or waits for one, and returns how much longer the program takes."""
    if launch.part == "wait":
        return clock.wait(launch.ticket)
    (kernel,) = batch.kernels
    if isinstance(kernel.sizes, Transfer):
        return clock.copy(launch.ticket, batch.seconds, kernel.sizes)
    stream, is_ahead = launch.stream, launch.is_ahead
    return clock.start(launch.ticket, batch.seconds, stream, is_ahead=is_ahead, after=launch.host_seconds)


def _sum(one: CallTime, other: CallTime) -> CallTime:
    sums: dict[str, Any] = {name: getattr(one, name) + getattr(other, name) for name in _SUMMED}
    return one._replace(
        **sums,
        bound=one.bound if one.seconds >= other.seconds else other.bound,
        kernel=", ".join(dict.fromkeys([*one.kernel.split(", "), *other.kernel.split(", ")])).strip(", "),
        awaited_at=one.awaited_at if other.awaited_at is None else other.awaited_at,
        group=one.group or other.group,
    )


class _Tally(Struct):
    parts: list[CallTime] = []  # each call's interval and bound
    fast: float = 0.0  # seconds with a fast and a slow CPU
    slow: float = 0.0
    runs: Counter[Batch] = field(default_factory=Counter)  # how often each batch of kernels runs
    is_lower_bound: bool = False
    communication: float = 0.0  # seconds in which collectives run
    exposed: float = 0.0  # seconds of these in which no other kernel runs
    under_way: dict[int, int] = {}  # by ticket of a collective or copy that nothing has waited for, its row
    due: list[int] = []  # rows of those that the next call waits for

    def count(self, phase: _Tally, times: int = 1) -> None:
        for part in phase.parts:
            low, high = part.low * times, part.high * times
            self.parts.append(part._replace(seconds=part.seconds * times, low=low, high=high))
        for batch, runs in phase.runs.items():
            self.runs[batch] += runs * times
        self.fast, self.slow = self.fast + phase.fast * times, self.slow + phase.slow * times
        self.is_lower_bound |= phase.is_lower_bound
        self.communication += phase.communication * times
        self.exposed += phase.exposed * times

    def exchanged(self, time: CallTime, seconds: float, launch: Launches, clock: Clock) -> CallTime:
        """Count a collective where it starts, or the wait for it; copies over the bus are only noted."""
        times = launch.times
        if launch.part == "wait":
            self.under_way.pop(launch.ticket, None)
            self.due.append(launch.row)
            if (done := clock.link.finished.pop(launch.ticket, None)) is None:
                return time
            return time._replace(exposed=done.alone * times, waited=time.seconds, elapsed=done.lasted * times)
        if launch.part == "start":
            self.under_way[launch.ticket] = launch.row
        if not seconds:
            return time
        self.communication += seconds
        time = time._replace(collective=seconds, group=launch.stream)
        if launch.part == "start":
            return time._replace(ahead=clock.ahead * times)
        self.exposed += seconds
        return time._replace(exposed=seconds, waited=seconds, elapsed=seconds, awaited_at=launch.row)

    def awaited(self, rows: dict[int, CallTime], at: int) -> None:
        """Note the row of the call that waits for what is due."""
        for row in self.due:
            rows[row] = rows[row]._replace(awaited_at=at)
        self.due.clear()

    def phase(self, device: Device) -> PhaseTime:
        """The time of the phase, what bounds it, and its utilization of the device's peaks."""
        seconds = sum(part.seconds for part in self.parts)
        kernels = [part for part in self.parts if part.bound != "launch"]
        shares = Counter[str]()
        for part in self.parts:
            shares[part.bound] += part.seconds / seconds  # type: ignore[assignment]
        share = dict(shares.most_common())
        work = self.work()
        return PhaseTime(
            *(seconds, *interval(kernels, seconds, self.fast, self.slow, device.spread)),
            bound=next(iter(share), "launch"),  # type: ignore[arg-type]
            shares=share,
            matrix_utilization=_matrix_utilization(work, device, seconds),
            bandwidth_utilization=work[""] / device.bandwidth / seconds if seconds else None,
            energy_joules=None if device.power_watts is None else device.power_watts * seconds,
            is_lower_bound=self.is_lower_bound,
            communication=self.communication,
            exposed=self.exposed,
        )

    def work(self) -> Counter[str]:
        """FLOPs by element type, and bytes under ""."""
        work = Counter[str]()
        for batch, times in self.runs.items():
            for dtype, amount in batch.work:
                work[dtype] += amount * times
        return work


def _matrix_utilization(work: Counter[str], device: Device, seconds: float) -> float | None:
    """The share of the time that the matrix work takes at published peaks; None if no peak of its types is published."""
    typed = {dtype: flops for dtype, flops in work.items() if dtype and flops}
    known = {dtype: peak for dtype in typed if (peak := matrix_peak(dtype, device)) is not None}
    if not seconds or (typed and not known):
        return None
    return sum(typed[dtype] / peak for dtype, peak in known.items()) / seconds


_CORRELATION = 0.14  # of the errors of two calls of one program, because similar kernels have similar errors
_LEAST_ERROR = 0.06  # a program's time is never known better than this
_MOST_TIMES = 100  # the factor by which a fast CPU makes a program faster at most


def interval(
    kernels: Iterable[Time | CallTime], seconds: float, fast: float, slow: float, spread: float = 1.0
) -> tuple[float, float]:
    """The ends of the interval that contains the measured time of a program or phase in nine of ten cases.

    kernels: the parts that the GPU decides. Their relative errors are partly shared and partly independent; a part itself
    has its program's time. fast, slow: seconds with a fast and a slow CPU. spread: the factor by which all kernels of a
    device that was not measured may be wrong together.
    """
    if not seconds:
        return 0.0, 0.0
    deviations = [part.seconds * (log(part.high / part.low) / 2 if part.low > 0 else 1.0) for part in kernels]
    independent = sum(deviation * deviation for deviation in deviations)
    shared = sum(deviations) ** 2
    variance = _CORRELATION * shared + (1 - _CORRELATION) * independent
    own = sqrt(variance / seconds**2 + _LEAST_ERROR**2 + log(spread) ** 2)
    least = seconds / _MOST_TIMES  # with a fast CPU, a program without kernels may take no time at all
    low, high = (hypot(own, log(max(end, least) / seconds)) for end in (fast, slow))
    return seconds * exp(-low), seconds * exp(high)
