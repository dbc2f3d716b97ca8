"""Runs a program of torch's operators, and compares its analysis with the execution."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from graphflops.analysis import analyze, as_graph
from graphflops.base.record import Record
from graphflops.devices import published
from graphflops.dims import evaluate
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph
from graphflops.open_sizes import of_report
from graphflops.report import Report
from graphflops.runtime.compare import FlopCounterReference, RunComparison, row_finder
from graphflops.runtime.counters import range_name
from graphflops.runtime.execute import Execution, Step, Weights, dtype_of, random_inputs
from graphflops.runtime.input_plans import checked, stored
from graphflops.runtime.machine import free_bytes, machine_bytes
from graphflops.runtime.operators import refuse_unsafe
from graphflops.runtime.validation import Ceilings, Validation
from graphflops.view import View


def prepared(
    model: object, *, model_name: str | None = None, device: str, dims: Mapping[str, int],
    names: Mapping[str, str], inputs: Mapping[str, Any] | str | None, random_weights: bool, seed: int,
    profile: str | None = None,
) -> Run:  # fmt: skip
    """The program, its analysis, inputs and weights. profile: the device whose times are predicted, else the GPU used."""
    where = device_of(device)
    profile = profile or profile_of(where)
    graph = as_graph(model, model_name)
    made = partial(torch.as_tensor, device=where)
    given = stored(inputs, "torch", made) if isinstance(inputs, str) else inputs
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()} if given else None
    timed: Any = {"device": profile, "execution": "graph"} if profile else {}
    report = analyze(graph, dims=dims, names=names, inputs=shapes, fused=False, **timed)
    view = View(graph, report.rows)
    if graph.origin.format != "live":
        refuse_unsafe(graph)
    refuse_too_large(report, where)
    try:
        if given is None:
            tensors = random_inputs(report, view, where, seed)
        else:
            tensors = {name: each.to(where) for name, each in checked(given, report, dtype_of).items()}
    except (RuntimeError, MemoryError):  # torch raises RuntimeError if the machine's memory is exhausted
        raise ModelError("inputs of these sizes do not fit in memory: give smaller sizes by --dim") from None
    keep = 2 * report.parameter_bytes < memory_of(where)
    return Run(graph, report, tensors, Weights(graph, where, random_weights, keep), seed)


class Run(Record, frozen=True):
    """One program that is about to be validated, with its inputs, weights and device."""

    graph: Graph
    report: Report
    inputs: Mapping[str, torch.Tensor]
    weights: Weights
    seed: int

    @property
    def device(self) -> torch.device:
        return self.weights.device

    @property
    def trusted(self) -> bool:
        """Whether the program was given in memory, and not read from a file."""
        return self.graph.origin.format == "live"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the inputs; data-dependent sizes are recorded during the run."""
        return {
            name: info.value
            for name, info in self.report.symbols.items()
            if info.value is not None and (info.where or info.given_by == "user")
        }

    def validated(self, repeats: int) -> Validation:
        """Run the program for comparison, then for its peak memory, then for its time."""
        sizes = self.sizes
        execution = Execution(self.graph, self.weights, sizes, self.trusted)
        with FlopCounterReference() as reference:
            watch = RunComparison(execution, self.report, reference, kernel=self.device.type == "cuda")
            execution.around, execution.after = watch.around, watch.after
            self.once(execution)
        execution.kernels.counts = False
        peak = self.memory(execution)
        clock = Clock(self.device, watch.row_of)
        clock.overhead = mark_seconds(self.device) if repeats else 0.0
        execution.around, execution.after = clock.around, lambda step, results: None
        for turn in range(repeats + _WARM_UPS if repeats else 0):
            if turn == _WARM_UPS:
                clock.warmed_up()
            clock.start()
            self.once(execution)
            clock.stop()
        seconds = clock.seconds()
        nodes = tuple(watch.results(seconds))
        used = dict.fromkeys(node.matrix_dtype for node in nodes if node.matrix_dtype and node.turns)
        dtypes = (getattr(torch, name, None) for name in used)
        known = [dtype for dtype in dtypes if isinstance(dtype, torch.dtype)]
        return Validation(
            path=self.graph.origin.path,
            device=described(self.device),
            torch=torch.__version__.partition("+")[0],
            sizes=dict(sizes),
            nodes=nodes,
            stated=of_report(self.report).values(sizes),
            predicted_peak_bytes=evaluate(self.report.totals.peak_bytes, sizes),
            peak_bytes=peak,
            seconds=sum(seconds.values()) if repeats else None,
            ceilings=ceilings(self.device, known) if repeats else None,
            kernels=watch.sources(),
            profile=self.report.device or "",
            predicted=self.report.totals.time if repeats else None,
        )

    def once(self, execution: Execution) -> Sequence[Any]:
        torch.manual_seed(self.seed)
        execution.kernels.runs.clear()
        return execution.run({name: tensor.clone() for name, tensor in self.inputs.items()})

    def memory(self, execution: Execution) -> int | None:
        """Peak of requested bytes without the weights; None if it is not measured, or weights are not kept on the device."""
        if self.device.type != "cuda" or not self.weights.keep:
            return None
        execution.around, execution.after = lambda step: step(), lambda step, results: None
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before: int = torch.cuda.memory_stats(self.device)["requested_bytes.all.current"]
        self.once(execution)
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.memory_stats(self.device)["requested_bytes.all.peak"] - before)


def run_in_ranges(model: str, options: Mapping[str, Any]) -> None:
    """Run a program twice: first to compile and tune its kernels, then each call in an NVTX range."""
    run = prepared(model, **options)
    execution, place = Execution(run.graph, run.weights, run.sizes, run.trusted), row_finder(run.report)

    def around(step: Step) -> Any:
        if step.nests:
            return step()
        with torch.cuda.nvtx.range(range_name(place(step))):
            return step()

    run.once(execution)
    execution.around = around
    run.once(execution)
    torch.cuda.synchronize()


def device_of(name: str) -> torch.device:
    """The device of that name. Raises ModelError if the machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"--device {shown(name)}: no such device; give cpu or cuda") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ModelError(f"--device {shown(name)}: give cpu or cuda")
    if not torch.cuda.is_available():
        raise ModelError(f"--device {shown(name)}: this machine has no CUDA device; --device cpu always runs")
    index, devices = device.index or 0, torch.cuda.device_count()
    if index >= devices:
        raise ModelError(f"--device {shown(name)}: this machine has {devices} CUDA devices")
    return torch.device("cuda", index)


def described(device: torch.device) -> str:
    """The name of a device's hardware."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def profile_of(device: torch.device) -> str | None:
    """The name of a GPU whose profile comes with graphflops; None for others, and for a CPU."""
    name = described(device)
    return name if any(name in (one.name, *one.aliases) for one in published()) else None


def memory_of(device: torch.device) -> int:
    """Free memory of a GPU, or all memory of the machine, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine_bytes()


def refuse_too_large(report: Report, device: torch.device, processes: int = 1) -> None:
    """Raise ModelError if the predicted peak memory of all `processes` exceeds the device's free memory."""
    peak = evaluate(report.totals.peak_bytes, report.values)
    free = memory_of(device) if device.type == "cuda" else free_bytes()
    if peak is not None and free is not None and processes * peak > free:
        needs = f"{processes * peak:,} bytes at its peak, {free:,} are free"
        raise ModelError(f"the run needs {needs}: give smaller sizes by --dim")


_ROUNDS = 5
_MANY, _LEAD = 200, 0.01  # number of small kernels; seconds, more than the CPU takes to launch them
_CYCLES = 2_000_000_000  # clock cycles of a GPU per second
_LONGEST_LEAD = 1.0  # seconds
# Runs before those that are timed: the first loads kernels, the second shows how long launches take.
_WARM_UPS = 2
# The GPU is given a pause if fewer calls than the first number are launched but not done. The CPU launches the second number
# of calls in such a pause: more than about a thousand launches, or marks, do not fit in a stream's queue.
_AHEAD, _BATCH = 8, 100


class Clock:
    """Times steps: pass `around` to an execution, begin each run with `start`, end it with `stop`."""

    def __init__(self, device: torch.device, place: Callable[[Step], int]) -> None:
        self.device = device
        self.place = place
        self.runs: list[dict[int, float]] = []
        self.wholes: list[float] = []
        # Seconds for which a GPU that would soon wait for launches is kept busy: then the times are the device's alone.
        self.pause = 0.0
        self.overhead = 0.0  # seconds that two marks add to the time between them
        self._marks: list[tuple[int, Any, Any]] = []
        self._paused_at = 0  # the number of marks before the last pause
        self._begun = self._launching = 0.0  # when the CPU began the run, and for how long it launched
        self._whole: Any = None

    def around(self, step: Step) -> Any:
        """Run a step between two marks; a step with nested graphs is timed by the calls in them."""
        if step.nests:
            return step()
        if self.pause:
            self._stay_ahead()
        begun = self._mark()
        returned = step()
        self._marks.append((self.place(step), begun, self._mark()))
        return returned

    def start(self) -> None:
        self._marks, self._paused_at = [], 0
        self._begun, self._whole = time.perf_counter(), self._mark()

    def stop(self) -> None:
        self._launching = time.perf_counter() - self._begun
        end = self._mark()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.wholes.append(self._between(self._whole, end))
        run: dict[int, float] = defaultdict(float)
        for place, begun, ended in self._marks:
            run[place] += max(self._between(begun, ended) - self.overhead, 0.0)
        self.runs.append(run)

    def warmed_up(self) -> None:
        """Forget the runs so far. The last one shows how long the CPU takes to launch a call."""
        if self.device.type == "cuda":
            self.pause = 2 * _BATCH * self._launching / max(len(self._marks), 1)
        self.runs, self.wholes = [], []

    def _stay_ahead(self) -> None:
        since = len(self._marks) - self._paused_at
        if not self._marks or (since >= _AHEAD and self._marks[-_AHEAD][2].query()):
            keep_busy(self.pause)
            self._paused_at = len(self._marks)

    def seconds(self) -> dict[int, float]:
        """Median of each row's time over the runs."""
        places = {place for run in self.runs for place in run}
        return {place: statistics.median([run.get(place, 0.0) for run in self.runs]) for place in places}

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begun: Any, ended: Any) -> float:
        return float(begun.elapsed_time(ended)) / 1000 if self.device.type == "cuda" else float(ended - begun)


def keep_busy(seconds: float) -> None:
    """Let the GPU's stream do nothing for so long, while the CPU goes on launching."""
    torch.cuda._sleep(int(min(seconds, _LONGEST_LEAD) * _CYCLES))


def mark_seconds(device: torch.device) -> float:
    """Seconds that two marks on a GPU add to a kernel: one small kernel between marks, less its share of many of them."""
    if device.type != "cuda":
        return 0.0
    x = torch.zeros(32, device=device)

    def many() -> None:
        for _ in range(_MANY):
            torch.add(x, 1)

    alone = statistics.median(_wholes(device, partial(torch.add, x, 1), _LEAD))
    return max(alone - statistics.median(_wholes(device, many, _LEAD)) / _MANY, 0.0)


def ceilings(device: torch.device, dtypes: Iterable[torch.dtype]) -> Ceilings:
    """Rates of a large matrix product in each element type, and of a large copy, on the device."""
    side, elements = (8192, 2**28) if device.type == "cuda" else (1024, 2**24)
    rates: dict[str, float] = {}
    for dtype in dtypes:
        try:
            a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            took = min(_wholes(device, partial(torch.matmul, a, b)))
            rates[str(dtype).removeprefix("torch.")] = 2 * side**3 / took
        except RuntimeError:
            continue  # the device has no product in this element type
    source = torch.empty(elements, dtype=torch.float32, device=device).fill_(1)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / min(_wholes(device, lambda: target.copy_(source)))
    return Ceilings(rates, bandwidth)


def _wholes(device: torch.device, run: Callable[[], object], lead: float = 0.0) -> list[float]:
    """Seconds of several runs of a function, after one that warms up. lead: seconds that a GPU is kept busy before each."""
    run()
    clock = Clock(device, lambda step: 0)
    for _ in range(_ROUNDS):
        if lead:
            keep_busy(lead)
        clock.start()
        run()
        clock.stop()
    return clock.wholes
