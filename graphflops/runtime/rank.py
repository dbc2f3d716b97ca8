"""One process of a recorded step that several run: its runs, and what they are compared with."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import prod
from typing import Any

import torch
from torch import distributed as dist

from graphflops.analysis import analyze
from graphflops.dims import evaluate
from graphflops.errors import ModelError, shown
from graphflops.exporters.meshes import ranks_along
from graphflops.exporters.recorded import graph_of, read_step
from graphflops.graph import Mesh, Origin
from graphflops.runtime.compare import RunComparison
from graphflops.runtime.execute import Step
from graphflops.runtime.flop_counter_reference import FlopCounterReference
from graphflops.runtime.operators import refuse_unsafe
from graphflops.runtime.replay import Replay
from graphflops.runtime.run import described, device_of, profile_of, refuse_too_large
from graphflops.runtime.validation import NodeResult, RankResult, Validation

_SECONDS = 60.0  # that a process waits for the others


def validate_rank(path: str, repeats: int, process: Mapping[str, int], **options: Any) -> Validation:
    """Run the step as one rank, and compare it with the analysis."""
    rank, count = process["rank"], process["count"]
    device = _device(options["device"], rank, count)
    step, digest = read_step(path, options["model_name"])
    graph = graph_of(step, Origin(path, "recorded", step.producer, digest))
    refuse_unsafe(graph)
    assert graph.step is not None
    if step.axes:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"tcp://127.0.0.1:{process['port']}",
            rank=rank, world_size=count, timeout=timedelta(seconds=_SECONDS),
        )  # fmt: skip
    replay = Replay(step, graph, device, groups_of(graph.step.mesh, rank), options["seed"])
    found = _Run(replay, count, options["profile"]).validated(rank, repeats)
    if step.axes:
        dist.destroy_process_group()
    return found


def _device(name: str, rank: int, count: int) -> torch.device:
    device = device_of(name)
    if device.type == "cpu":
        return device
    if name != "cuda" or torch.cuda.device_count() < count:
        needs = f"{count} processes take {count} GPUs"
        raise ModelError(f"--device {shown(name)}: {needs}: give cuda where there are so many")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def groups_of(mesh: Mesh | None, rank: int) -> dict[str, Any]:
    """The process groups of a rank by the names of the file: all ranks make all groups along the same axes, in one order."""
    made: dict[str, Any] = {}
    if mesh is None:
        return made
    every = range(prod(mesh.axes.values()))
    for axis in dict.fromkeys(group.axis for group in mesh.groups.values()):
        for ranks in dict.fromkeys(tuple(ranks_along(mesh.axes, axis, one)) for one in every):
            group = dist.new_group(list(ranks))
            if rank in ranks:
                made[axis] = group
    return {name: made[group.axis] for name, group in mesh.groups.items()}


class _Run:
    """The runs of one rank: compared, then for its peak, then timed, then with the kernels of its collectives."""

    def __init__(self, replay: Replay, count: int, profile: str | None) -> None:
        self.replay, self.device, self.is_cuda = replay, replay.device, replay.device.type == "cuda"
        self.report = analyze(replay.graph, device=profile or profile_of(self.device), fused=False)
        refuse_too_large(self.report, self.device, 1 if self.is_cuda else count)

    def validated(self, rank: int, repeats: int) -> Validation:
        nodes = self.compared()
        can_run = all(check.verdict == "equal" or check.measured for node in nodes for check in node.checks)
        peak = self.peak() if can_run and self.is_cuda else None
        runs = repeats + 1 if can_run and repeats else 0
        times = [self.timed() for _ in range(runs)][1:]  # the first warms up
        sends, exposed = self.communication() if times and self.is_cuda else (None, None)
        (use,) = self.report.memory_use
        seconds = statistics.median(times) if times else None
        different = sum(node.verdict in ("different", "not executed") for node in nodes)
        return Validation(
            path=self.replay.graph.origin.path,
            device=described(self.device),
            torch=torch.__version__.partition("+")[0],
            sizes={},
            nodes=nodes,
            predicted_peak_bytes=evaluate(use.requested_peak, {}),
            peak_bytes=peak,
            seconds=seconds,
            profile=self.report.device or "",
            predicted=self.report.totals.time if repeats else None,
            ranks=(RankResult(rank, different, peak, seconds, sends, exposed),),
        )

    def compared(self) -> tuple[NodeResult, ...]:
        """Each call's results, FLOPs and bytes sent."""
        with FlopCounterReference() as reference:
            watch = RunComparison(self.replay, self.report, reference, kernel=False)

            def around(step: Step) -> Any:
                self.replay.count_sent(step)
                return watch.around(step)

            self.replay.around, self.replay.after = around, watch.after
            self.replay.play(self.replay.inputs())
        self.replay.around, self.replay.after = (lambda step: step()), (lambda step, results: None)
        return tuple(watch.results({}))

    def peak(self) -> int:
        """Peak of requested bytes in a second run.

        The backward has a thread of its own, as autograd has it: each thread has a workspace of cuBLAS.
        """
        assert self.replay.graph.step is not None
        nodes = zip(self.replay.graph.nodes, self.replay.graph.step.phases, strict=True)
        backward = {node.name for node, phase in nodes if phase == "backward"}
        with ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(self.device,)) as pool:
            self.replay.around = lambda step: pool.submit(step).result() if step.name in backward else step()
            for _ in range(2):
                gc.collect()
                self.synchronize()
                torch.cuda.reset_peak_memory_stats()
                self.replay.play(self.replay.inputs())
                self.synchronize()
        self.replay.around = lambda step: step()
        most: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        return most

    def timed(self) -> float:
        """Seconds of a step, from when all ranks are there."""
        values = self.started()
        start = time.perf_counter()
        self.replay.play(values)
        self.synchronize()
        return time.perf_counter() - start

    def communication(self) -> tuple[float, float]:
        """Seconds in which kernels of NCCL run in a step, and those in which no other kernel does."""
        values = self.started()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.replay.play(values)
            self.synchronize()
        spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                spans["nccl" in event.name.lower()].append((event.time_range.start, event.time_range.end))
        whole = covered([*spans[True], *spans[False]])
        return covered(spans[True]) / 1e6, (whole - covered(spans[False])) / 1e6

    def started(self) -> dict[str, Any]:
        """The inputs, when all ranks have theirs and their devices have nothing to do."""
        values = self.replay.inputs()
        if self.replay.groups:
            dist.all_reduce(torch.zeros(1, device=self.device))
        self.synchronize()
        return values

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans of time."""
    total = last = 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total
