"""Runs a program of torch's operators, and compares its analysis with the execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphflops.analysis import analyze, as_graph
from graphflops.devices import published
from graphflops.dims import evaluate
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph
from graphflops.open_sizes import of_report
from graphflops.report import Report
from graphflops.runtime.compare import RunComparison
from graphflops.runtime.execute import Execution
from graphflops.runtime.flop_counter_reference import FlopCounterReference
from graphflops.runtime.inputs import checked, inputs_from, random_inputs
from graphflops.runtime.machine import free_bytes, machine_bytes
from graphflops.runtime.tensors import Weights
from graphflops.runtime.timing import Clock, ceilings, mark_seconds
from graphflops.runtime.unsafe import refuse_unsafe
from graphflops.runtime.validation import Validation
from graphflops.view import View


def prepared(
    model: object,
    *,
    model_name: str | None = None,
    device: str,
    dims: Mapping[str, int],
    names: Mapping[str, str],
    inputs: Mapping[str, Any] | str | None,
    random_weights: bool,
    seed: int,
    profile: str | None = None,
) -> Run:
    """The program, its analysis at the given sizes, its inputs and weights: all that a run needs.

    profile: of the device whose times are predicted; by default that of the GPU that runs the program.
    """
    where = device_of(device)
    profile = profile or profile_of(where)
    graph = as_graph(model, model_name)
    given = inputs_from(inputs, where) if isinstance(inputs, str) else inputs
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()} if given else None
    timed: Any = {"device": profile, "execution": "graph"} if profile else {}
    report = analyze(graph, dims=dims, names=names, inputs=shapes, fused=False, **timed)
    view = View(graph, report.rows)
    if graph.origin.format != "live":
        refuse_unsafe(graph)
    refuse_too_large(report, where)
    try:
        tensors = random_inputs(report, view, where, seed) if given is None else checked(given, report, where)
    except (RuntimeError, MemoryError):  # torch raises RuntimeError if the machine's memory is exhausted
        raise ModelError("inputs of these sizes do not fit in memory: give smaller sizes by --dim") from None
    return Run(graph, report, tensors, where, random_weights, seed)


class Run:
    """One program that is about to be validated, with its inputs, weights and device."""

    def __init__(
        self,
        graph: Graph,
        report: Report,
        inputs: Mapping[str, torch.Tensor],
        device: torch.device,
        random_weights: bool,
        seed: int,
    ) -> None:
        self.graph = graph
        self.report = report
        self.inputs = inputs
        self.device = device
        self.weights = Weights(
            graph, device, random_weights, keep=2 * report.parameter_bytes < memory_of(device)
        )
        self.seed = seed
        self.trusted = graph.origin.format == "live"

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
        for turn in range(repeats + 1 if repeats else 0):
            if turn == 1:  # the first run warms up
                clock.lead = 2 * clock.wholes[0]
                clock.forget()
            clock.start()
            self.once(execution)
            clock.stop()
        seconds = clock.seconds()
        nodes = tuple(watch.results(seconds))
        used = dict.fromkeys(node.matrix_dtype for node in nodes if node.matrix_dtype and node.turns)
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
            ceilings=ceilings(self.device, _types(used)) if repeats else None,
            kernels=watch.sources(),
            profile=self.report.device or "",
            predicted=self.report.totals.time if repeats else None,
        )

    def refuse_uncountable(self) -> None:
        """Raise ModelError if the hardware counters cannot be read."""
        from graphflops.runtime.counters import available

        if self.device.type != "cuda":
            raise ModelError("--counters hardware reads the counters of a GPU: give --device cuda")
        if not self.graph.origin.path:
            raise ModelError("--counters hardware runs the program in a separate process: save it to a file")
        if available() is None:
            raise ModelError("no Nsight Compute: put ncu on PATH (it comes with the CUDA toolkit)")

    def once(self, execution: Execution) -> Sequence[Any]:
        """Run once on fresh copies of the inputs."""
        torch.manual_seed(self.seed)
        execution.kernels.runs.clear()
        return execution.run({name: tensor.clone() for name, tensor in self.inputs.items()})

    def memory(self, execution: Execution) -> int | None:
        """Peak of requested bytes, with the inputs and without the weights.

        None on a device that does not measure it, and if weights are not kept on the device.
        """
        if self.device.type != "cuda" or not self.weights.keep:
            return None
        execution.around, execution.after = lambda step: step(), lambda step, results: None
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_stats(self.device)["requested_bytes.all.current"]
        self.once(execution)
        torch.cuda.synchronize(self.device)
        most: int = torch.cuda.memory_stats(self.device)["requested_bytes.all.peak"] - before
        return most


def _types(names: Mapping[str, None]) -> list[torch.dtype]:
    return [found for name in names if isinstance(found := getattr(torch, name, None), torch.dtype)]


def device_of(name: str) -> torch.device:
    """The device of that name; ModelError if the machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"--device {shown(name)}: no such device; give cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"--device {shown(name)}: give cpu or cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelError(
                f"--device {shown(name)}: this machine has no CUDA device; --device cpu always runs"
            )
        if (device.index or 0) >= torch.cuda.device_count():
            raise ModelError(
                f"--device {shown(name)}: this machine has {torch.cuda.device_count()} CUDA devices"
            )
        return torch.device("cuda", device.index or 0)
    return device


def described(device: torch.device) -> str:
    """A device by the name of its hardware."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def profile_of(device: torch.device) -> str | None:
    """The name of a GPU whose profile comes with graphflops; None for others, and for a CPU."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return name if any(name in (one.name, *one.aliases) for one in published()) else None


def memory_of(device: torch.device) -> int:
    """Free memory of a GPU, or all memory of the machine, in bytes."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return machine_bytes()


def refuse_too_large(report: Report, device: torch.device, processes: int = 1) -> None:
    """Raise ModelError if the predicted peak memory, of all processes on it, exceeds the device's free memory."""
    peak = evaluate(report.totals.peak_bytes, report.values)
    free = memory_of(device) if device.type == "cuda" else free_bytes()
    if peak is not None and free is not None and processes * peak > free:
        raise ModelError(
            f"the run needs {processes * peak:,} bytes at its peak, {free:,} are free: give smaller sizes by --dim"
        )
