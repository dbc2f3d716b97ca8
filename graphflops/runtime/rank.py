"""Runs a recorded step as one rank, call by call over real process groups, and compares it with the analysis."""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import prod
from typing import Any

import torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphflops.analysis import analyze
from graphflops.capturing.recorder import written
from graphflops.dims import evaluate
from graphflops.errors import ModelError, shown
from graphflops.exporters.meshes import ranks_along
from graphflops.exporters.recorded import graph_of, read_step
from graphflops.exporters.step_file import RecordedStep, values_in
from graphflops.graph import HOST_KINDS, Graph, Mesh, Node, Origin, Ref
from graphflops.links.cost import kind_of, link_bytes
from graphflops.ops import Op
from graphflops.rules.registry import find
from graphflops.runtime.compare import FlopCounterReference, RunComparison, without_compiler
from graphflops.runtime.execute import SPREAD, Execution, Step, Weights
from graphflops.runtime.operators import overload_of, refuse_unsafe, resolve
from graphflops.runtime.run import described, device_of, profile_of, refuse_too_large
from graphflops.runtime.validation import NodeResult, RankResult, Validation
from graphflops.tensor import grouped

_SECONDS = 60.0  # for which a process waits for the others
# Namespaces of operators that only run with process groups.
_OF_GROUPS = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp"))
_HOST = torch.device("cpu")
_ASYNCHRONOUS = ("async_op", "asyncOp")  # names of a collective's argument in releases of torch


def validate_rank(path: str, repeats: int, process: Mapping[str, int], **options: Any) -> Validation:
    """Run the step of a file as one rank, and compare it with the analysis."""
    rank, count, name = process["rank"], process["count"], options["device"]
    device = device_of(name)
    if device.type != "cpu":
        if name != "cuda" or torch.cuda.device_count() < count:
            needs = f"{count} processes take {count} GPUs"
            raise ModelError(f"--device {shown(name)}: {needs}: give cuda where there are so many")
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
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


def groups_of(mesh: Mesh | None, rank: int) -> dict[str, Any]:
    """A rank's process groups, by their names in the file. All ranks must create all groups, in the same order."""
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
    """The runs of one rank: for comparison, for its peak memory, for its time, and for the kernels of its collectives."""

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
                op, groups = step.node.operator, self.replay.groups
                given = op.arguments(step.args, tuple(step.kwargs.items()))
                if op.is_exchange and (group := groups.get(given["group_name"])) is not None:
                    # What a ring algorithm sends, from the bytes of the operand and the size of the real group.
                    size = sum(x.nbytes for x in tree_leaves(given["x"]))
                    self.replay.sent[step.name] = link_bytes(kind_of(op.name), size, group.size())
                return watch.around(step)

            self.replay.around, self.replay.after = around, watch.after
            self.replay.play(self.replay.inputs())
        self.replay.around, self.replay.after = (lambda step: step()), (lambda step, results: None)
        return tuple(watch.results({}))

    def peak(self) -> int:
        """Peak of requested bytes. As in autograd, the backward runs in a thread, which has its own cuBLAS workspace."""
        phases = self.replay.graph.phases
        backward = {name for name, phase in phases.items() if phase == "backward"}
        with ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(self.device,)) as pool:
            self.replay.around = lambda step: pool.submit(step).result() if step.name in backward else step()
            for _ in range(2):
                gc.collect()
                self.synchronize()
                torch.cuda.reset_peak_memory_stats()
                self.replay.play(self.replay.inputs())
                self.synchronize()
        self.replay.around = lambda step: step()
        return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])

    def timed(self) -> float:
        """Seconds of a step, from the moment when all ranks are ready."""
        values = self.started()
        start = time.perf_counter()
        self.replay.play(values)
        self.synchronize()
        return time.perf_counter() - start

    def communication(self) -> tuple[float, float]:
        """Seconds of a step in which NCCL's kernels run, and the part of them in which no other kernel runs."""
        values = self.started()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of events lost between cycles, but there is one cycle
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                self.replay.play(values)
                self.synchronize()
            events = profile.events()
        spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for event in events:
            if event.device_type == torch.autograd.DeviceType.CUDA:
                spans["nccl" in event.name.lower()].append((event.time_range.start, event.time_range.end))
        whole = covered([*spans[True], *spans[False]])
        return covered(spans[True]) / 1e6, (whole - covered(spans[False])) / 1e6

    def started(self) -> dict[str, Any]:
        """The inputs of a step. Returns when all ranks have made theirs and all devices are idle."""
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


class Replay(Execution):
    """Runs of one recorded step. groups: by their names in the file."""

    def __init__(
        self, step: RecordedStep, graph: Graph, device: torch.device, groups: Mapping[str, Any], seed: int
    ) -> None:
        super().__init__(graph, Weights(graph, device))
        self.step, self.device, self.groups, self.seed = step, device, groups, seed
        self.lacks = lambda error: device.type == "cpu" and isinstance(error, NotImplementedError)
        self.where = device
        self.pending: dict[int, Any] = {}  # collectives that nothing has waited for, by the memory they use
        self.reductions: dict[str, Any] = {}
        # memory of numbers that calls add to lists of counters on the host
        self.beside_host: set[int] = set()
        for call in step.calls:
            first, *others = call.args or [None]
            counters = values_in(first) if isinstance(first, list) else []
            if counters and all(self.on_host(step.values[one].storage) for one in counters):
                numbers = values_in([one for one in others if not isinstance(one, list)])
                self.beside_host |= {step.values[one].storage for one in numbers}
        self.host = {f"v{place}" for place, value in enumerate(step.values) if self.on_host(value.storage)}
        ends = ((step.storages[value.storage].last, f"v{place}") for place, value in enumerate(step.values))
        inside = range(len(graph.nodes) - 1)  # what outlives the last call stays
        self.dead = grouped((graph.nodes[last].name, name) for last, name in ends if last in inside)

    def on_host(self, storage: int) -> bool:
        """Whether memory is on the host. An optimizer's counter there has no bytes in the file."""
        memory = self.step.storages[storage]
        is_counter = memory.kind == "optimizer" and not memory.bytes
        return memory.kind in HOST_KINDS or is_counter or storage in self.beside_host

    def inputs(self, given: Mapping[str, torch.Tensor] | None = None) -> dict[str, Any]:
        """The tensors that exist before the step: given by name, or random; zeros for integers and state."""
        torch.manual_seed(self.seed)
        memory: dict[int, Any] = {}
        made = {}
        for entry in self.step.inputs:
            value = self.step.values[entry.value]
            dtype, number = getattr(torch, value.dtype), value.storage
            device = _HOST if self.on_host(number) else self.device
            if number not in memory:
                # A counter on the host has no bytes in the file.
                size = max(self.step.storages[number].bytes, value.end)
                memory[number] = torch.zeros(size, dtype=torch.uint8, device=device).untyped_storage()
            empty = torch.empty(0, dtype=dtype, device=device)
            tensor = empty.set_(memory[number], value.offset, value.shape, value.strides)
            made[f"v{entry.value}"] = tensor
            is_random = entry.role != "state" and tensor.is_floating_point() and tensor.itemsize > 1
            if given and entry.target in given:
                tensor.copy_(given[entry.target])
            elif is_random and all(tensor.stride()):  # not a broadcast tensor
                tensor.normal_(std=SPREAD)
        return made

    def play(self, values: dict[str, Any]) -> None:
        """Run the step on `values`, which `inputs` made. They are freed as the file says; those that outlive it stay."""
        with torch.no_grad():
            self.calls(self.graph, values, "")
        for work in self.pending.values():
            work.wait()
        self.pending.clear()

    def _one(self, node: Node, values: dict[str, Any], prefix: str) -> tuple[Any, ...]:
        self.where = _HOST if self.host.intersection(node.outputs) else self.device
        results = super()._one(node, values, prefix)
        for name in self.dead.get(node.name, ()):
            self.settle(values.get(name))
        return results

    def _last_uses(self, graph: Graph) -> list[tuple[str, ...]]:
        return [tuple(self.dead.get(node.name, ())) for node in graph.nodes]

    def argument(self, argument: Any, values: Mapping[str, Any], prefix: str) -> Any:
        """An argument as torch takes it. Waits for a pending collective that writes or reads its memory."""
        found = super().argument(argument, values, prefix)
        if self.pending and type(argument) is Ref:
            self.settle(found)
        return found

    def settle(self, tensor: Any) -> None:
        """Wait for the collective that uses the memory of a tensor."""
        if self.pending and isinstance(tensor, torch.Tensor):
            work = self.pending.pop(tensor.untyped_storage()._cdata, None)
            if work is not None:
                work.wait()

    def function(self, op: Op) -> Callable[..., Any]:
        """The function that runs an operator; it returns the results that the file lists."""
        overload: Any = overload_of(op)
        is_of_groups = op.dialect in _OF_GROUPS
        if is_of_groups and (overload is None or find(op.spelling) is None):
            why = "graphflops has no rule for it, or torch no operator"
            raise ModelError(f"{shown(op.spelling)} is not run: {why}")
        function = overload if is_of_groups else resolve(op.spelling)
        known = {argument.name: argument for argument in overload._schema.arguments}

        def run(*args: Any, **kwargs: Any) -> Any:
            if is_of_groups:
                pairs = zip(known.values(), args, strict=False)
                args = tuple([self.in_groups(argument, value) for argument, value in pairs])
                kwargs = {name: self.in_groups(known[name], value) for name, value in kwargs.items()}
            if "device" in known and not any(isinstance(a, torch.Tensor) for a in args):
                kwargs.setdefault("device", self.where)
            returned = function(*args, **kwargs)
            work = returned[-1] if isinstance(returned, tuple) and returned else returned
            given = {**dict(zip(known, args, strict=False)), **kwargs} if is_of_groups else {}
            # With NCCL, a synchronous collective runs in the stream of other kernels, so nothing waits for it.
            is_left = self.device.type != "cuda" or all(given.get(name, True) for name in _ASYNCHRONOUS)
            if isinstance(work, torch.ScriptObject) and is_left:
                tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
                self.pending.update((tensor.untyped_storage()._cdata, work) for tensor in tensors)
            return tuple(written(overload, args, kwargs)) or returned

        return run

    def in_groups(self, argument: Any, value: Any) -> Any:
        """An argument of a collective, with names of groups and reductions replaced by torch's objects."""
        kind = str(argument.type)
        if argument.name == "group_name":
            return self.groups[value].group_name
        if isinstance(value, str) and kind.endswith("ProcessGroup"):
            return self.groups[value].boxed()
        if isinstance(value, str) and kind.endswith("ReduceOp"):
            if value not in self.reductions:  # Python cannot make the operator's argument in any other way
                known = getattr(dist.ReduceOp, value.upper(), None)
                if known is None:
                    raise ModelError(f"{shown(value)} is no reduction")
                with _Seen() as seen:
                    dist.all_reduce(torch.zeros(1, device=self.device), op=known)
                self.reductions[value] = seen.found
            return self.reductions[value]
        return value

    def _opaque(self, what: str) -> Any:
        what = what.removeprefix("torch.")
        return self.where if what.partition(":")[0] in ("cpu", "cuda") else super()._opaque(what)


class _Seen(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the reduction argument of an all-reduce, and runs the all-reduce as a plain sum."""

    found: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.c10d.allreduce_.default:
            self.found = args[2]
            args = (*args[:2], torch.classes.c10d.ReduceOp(), *args[3:])
        return func(*args, **(kwargs or {}))


without_compiler(_Seen)
