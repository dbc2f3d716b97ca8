"""Runs a recorded step on all devices of its mesh, a process each on this machine, and compares each with the analysis.

A recording is the program of one rank. Every process runs it with its own groups along the axes of the mesh, which is what
it would run where ranks have the same program; where they have not, the step is refused.
"""

from __future__ import annotations

import gc
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from math import prod
from typing import TYPE_CHECKING, Any

from graphflops.errors import ModelError, shown
from graphflops.exporters.recorded import graph_of, read_step
from graphflops.graph import Graph, Mesh, Origin
from graphflops.kernels.collectives import ONE_TO_ONE
from graphflops.runtime.isolated import ChildLimits, answers, child_command, read
from graphflops.runtime.validation import NodeResult, RankResult, Validation

if TYPE_CHECKING:
    import torch

    from graphflops.runtime.execute import Step
    from graphflops.runtime.replay import Replay

_SECONDS = 60.0  # that a process waits for the others

# In the process of the command


def validate_ranks(
    path: str, nproc: int, repeats: int, options: Mapping[str, Any], limits: ChildLimits
) -> Validation:
    """Run the recorded step of a file in `nproc` processes. Raises as `validate_file` does."""
    step, digest = read_step(path, options["model_name"])
    graph = graph_of(step, Origin(path, "recorded", step.producer, digest))
    assert graph.step is not None
    refuse(graph, nproc, options)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    shared = {
        "model": path,
        "repeats": repeats,
        "options": options,
        "limits": asdict(limits),
        "rule_files": [],
    }
    commands = [
        child_command("validate", {**shared, "process": {"rank": rank, "count": nproc, "port": port}})
        for rank in range(nproc)
    ]
    return merged([read(one, path) for one in answers(commands, limits.seconds, path)])


def refuse(graph: Graph, nproc: int, options: Mapping[str, Any]) -> None:
    """Raise ModelError, in one line, if the processes cannot all run the program of the recorded rank."""
    assert graph.step is not None
    mesh = graph.step.mesh or Mesh({}, {})
    devices = prod(mesh.axes.values())
    if devices != nproc:
        sizes = ",".join(f"{axis}={size}" for axis, size in mesh.axes.items())
        raise ModelError(
            f"{shown(graph.origin.path)}: a step of {devices} devices ({shown(sizes)}): give --nproc {devices}"
        )
    if options["dims"] or options["names"] or options["inputs"] or options["random_weights"]:
        raise ModelError(
            "a recorded step has its own sizes, inputs and weights: leave --dim, --inputs and such out"
        )
    along = {name: peers(mesh, group.axis, mesh.rank) for name, group in mesh.groups.items()}
    for name, group in mesh.groups.items():
        if sorted(group.ranks) != along[name]:
            raise ModelError(
                f"group {shown(name)} lies along no axes of the mesh: which groups others have is not known"
            )
    for node in graph.nodes:
        op = node.operator
        if op.name in ONE_TO_ONE:
            raise ModelError(
                f"{node.name} ({shown(node.op)}): the ranks of a pipeline have programs of their own"
            )
        splits = op.arguments(node.args, node.kwargs).get("input_split_sizes") if op.is_exchange else None
        if isinstance(splits, tuple) and len(set(splits)) > 1:
            raise ModelError(
                f"{node.name} ({shown(node.op)}): parts of unequal sizes, which only this rank sends so"
            )


def peers(mesh: Mesh, axis: str, rank: int) -> list[int]:
    """The ranks that one is in a group with along axes (`dp+tp`) of the mesh, its own among them."""
    chosen = axis.split("+")

    def place(one: int) -> dict[str, int]:
        found = {}
        for name, size in reversed([*mesh.axes.items()]):
            one, found[name] = divmod(one, size)
        return {name: at for name, at in found.items() if name not in chosen}

    return [one for one in range(prod(mesh.axes.values())) if place(one) == place(rank)]


def merged(found: Sequence[Validation]) -> Validation:
    """The first rank's validation, with the checks in which others differ."""
    nodes = list(found[0].nodes)
    for rank, other in enumerate(found[1:], 1):
        for place, (node, theirs) in enumerate(zip(nodes, other.nodes, strict=True)):
            if (
                theirs.verdict in ("different", "not executed")
                and theirs.checks != found[0].nodes[place].checks
            ):
                added = [replace(check, reason=f"rank {rank}: {check.reason}") for check in theirs.checks]
                nodes[place] = replace(node, checks=(*node.checks, *added))
    return replace(found[0], nodes=tuple(nodes), ranks=tuple([one.ranks[0] for one in found]))


# In the process of a rank


def validate_rank(path: str, repeats: int, process: Mapping[str, int], **options: Any) -> Validation:
    """Run the step as one rank, and compare it with the analysis."""
    import torch
    from torch import distributed as dist

    from graphflops.runtime.replay import Replay

    rank, count = process["rank"], process["count"]
    device = _device(options["device"], rank, count)
    step, digest = read_step(path, options["model_name"])
    graph = graph_of(step, Origin(path, "recorded", step.producer, digest))
    assert graph.step is not None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if step.axes:
        from datetime import timedelta

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
    import torch

    from graphflops.runtime.run import device_of

    device = device_of(name)
    if device.type == "cpu":
        return device
    if name != "cuda" or torch.cuda.device_count() < count:
        raise ModelError(
            f"--device {shown(name)}: {count} processes take {count} GPUs: give cuda on a machine with them"
        )
    return torch.device("cuda", rank)


def groups_of(mesh: Mesh | None, rank: int) -> dict[str, Any]:
    """The process groups of a rank by the names of the file: all ranks make all groups along the same axes, in one order."""
    from torch import distributed as dist

    made: dict[str, Any] = {}
    if mesh is None:
        return made
    every = range(prod(mesh.axes.values()))
    for axis in dict.fromkeys(group.axis for group in mesh.groups.values()):
        for ranks in dict.fromkeys(tuple(peers(mesh, axis, one)) for one in every):
            group = dist.new_group(list(ranks))
            if rank in ranks:
                made[axis] = group
    return {name: made[group.axis] for name, group in mesh.groups.items()}


class _Run:
    """The runs of one rank: compared, then for its peak, then timed, then with the kernels of its collectives."""

    def __init__(self, replay: Replay, count: int, profile: str | None) -> None:
        from graphflops.analysis import analyze
        from graphflops.runtime.run import profile_of, refuse_too_large
        from graphflops.runtime.unsafe import refuse_unsafe

        refuse_unsafe(replay.graph)
        self.replay, self.device, self.is_cuda = replay, replay.device, replay.device.type == "cuda"
        self.report = analyze(replay.graph, device=profile or profile_of(self.device), fused=False)
        refuse_too_large(self.report, self.device, 1 if self.is_cuda else count)

    def validated(self, rank: int, repeats: int) -> Validation:
        import torch

        from graphflops.dims import evaluate
        from graphflops.runtime.run import described

        nodes = self.compared()
        runs = all(node.verdict == "equal" or node.checks[0].ours for node in nodes)
        peak = self.peak() if runs and self.is_cuda else None
        seconds = self.seconds(repeats) if runs and repeats else None
        sends, exposed = self.communication() if runs and repeats and self.is_cuda else (None, None)
        (use,) = self.report.memory_use
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
        from graphflops.runtime.compare import RunComparison
        from graphflops.runtime.flop_counter_reference import FlopCounterReference

        replay = self.replay
        with FlopCounterReference() as reference:
            watch = RunComparison(replay, self.report, reference, kernel=False)

            def around(step: Step) -> Any:
                replay.note(step)
                return watch.around(step)

            replay.around, replay.after = around, watch.after
            replay.play(replay.inputs())
        replay.around, replay.after = (lambda step: step()), (lambda step, results: None)
        return tuple(watch.results({}))

    def peak(self) -> int:
        """Peak of requested bytes in a second run, with the backward in a thread of its own, as autograd has it: each
        thread has a workspace of cuBLAS.
        """
        import torch

        assert self.replay.graph.step is not None
        nodes = zip(self.replay.graph.nodes, self.replay.graph.step.phases, strict=True)
        backward = {node.name for node, phase in nodes if phase == "backward"}
        with ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(self.device,)) as pool:
            self.replay.around = lambda step: pool.submit(step).result() if step.name in backward else step()
            for _ in range(2):
                gc.collect()
                values = self.replay.inputs()
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                self.replay.play(values)
                torch.cuda.synchronize()
                del values
        self.replay.around = lambda step: step()
        most: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        return most

    def seconds(self, repeats: int) -> float:
        """The median time of a step, after one that warms up."""
        return statistics.median([self.timed() for _ in range(repeats + 1)][1:])

    def timed(self) -> float:
        values = self.replay.inputs()
        self.wait()
        start = time.perf_counter()
        self.replay.play(values)
        self.synchronize()
        return time.perf_counter() - start

    def communication(self) -> tuple[float, float]:
        """Seconds in which kernels of NCCL run in a step, and those in which no other kernel does."""
        import torch

        values = self.replay.inputs()
        self.wait()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.replay.play(values)
            self.synchronize()
        spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                spans["nccl" in event.name.lower()].append((event.time_range.start, event.time_range.end))
        whole = _length([*spans[True], *spans[False]])
        return _length(spans[True]) / 1e6, (whole - _length(spans[False])) / 1e6

    def wait(self) -> None:
        """Until all ranks are here, and their devices have nothing to do."""
        import torch
        from torch import distributed as dist

        self.synchronize()
        if self.replay.groups:
            dist.all_reduce(torch.zeros(1, device=self.device))
        self.synchronize()

    def synchronize(self) -> None:
        import torch

        if self.is_cuda:
            torch.cuda.synchronize()


def _length(spans: list[tuple[float, float]]) -> float:
    """Of the union of spans of time."""
    total = last = 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total
