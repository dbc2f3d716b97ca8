"""Recorded steps against a GPU: what is dispatched, peak memory, GPU time and step time of one rank.

    python -m benchmarks.recorded --measure benchmarks/measured/h200_recorded.json    (on a GPU)
    python -m benchmarks.recorded [--measured benchmarks/measured/h100_recorded.json]    (anywhere)

Ranks beside the one that is measured are pretended (PyTorch's `fake` process group), so collectives take no time: calls,
memory, kernels and the CPU's time are those of a rank, communication is measured elsewhere (`collectives.py`). DDP runs over
NCCL with one rank. Peaks are of requested bytes. GPU time is the sum of the kernels of one step, as the profiler has them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

import graphflops
from benchmarks.recorded_models import PROGRAMS
from graphflops import devices
from graphflops.analysis import priced
from graphflops.execution.runs import Runs
from graphflops.runtime.profile.make import encoded
from graphflops.time.launches import Launcher
from graphflops.time.predict import predict

if TYPE_CHECKING:
    from graphflops.graph import Graph

MEASURED = Path(__file__).with_name("measured") / "h200_recorded.json"
ROUNDS, STEPS = 5, 3


class Dispatched(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts calls on plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented
        self.calls[str(func)] += 1
        return func(*args, **kwargs or {})


@contextlib.contextmanager
def ranks(axes: dict[str, int], *, is_alone: bool, device: str = "cuda") -> Any:
    """The mesh on the device: of the processes that are there, else beside pretended ranks."""
    if not axes:
        yield None
        return
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if dist.is_initialized():
        yield init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if is_alone:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        axes = dict.fromkeys(axes, 1)
    else:
        size = 1
        for each in axes.values():
            size *= each
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
    finally:
        dist.destroy_process_group()


def step_of(given: Any) -> Any:
    """The step of what a factory returns, as `graphflops.record` runs it."""
    from graphflops.capturing.step import _step

    return _step(given)[0]


def measured(name: str) -> dict[str, Any]:
    axes, factory = PROGRAMS[name]
    torch.manual_seed(0)
    with ranks(axes, is_alone=name.startswith("ddp")) as mesh:
        step = step_of(factory(mesh))
        for _ in range(3):
            step()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        with Dispatched() as seen:
            step()
        rounds = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            rounds.append((time.perf_counter() - start) / STEPS)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        kernels: Counter[str] = Counter()
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                kernels[event.name[:90]] += event.device_time_total / 1e3
    del step
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # they would count in the peak of the next program
    torch.cuda.empty_cache()
    return {
        "peak": peak,
        "step": statistics.median(rounds) * 1e3,
        "least": min(rounds) * 1e3,
        "gpu": sum(kernels.values()),
        "calls": dict(seen.calls),
        "kernels": {key: round(value, 4) for key, value in kernels.most_common(25)},
    }


def measure(file: Path, only: str, limit: float) -> None:
    start, found = time.monotonic(), {}
    for name in PROGRAMS:
        if only not in name or time.monotonic() - start > limit:
            continue
        try:
            found[name] = measured(name)
            row = found[name]
            print(
                f"{name:22} {row['peak'] / 1e6:9.1f} MB {row['step']:8.2f} ms, GPU {row['gpu']:8.2f} ms",
                flush=True,
            )
        except Exception as error:  # noqa: BLE001 # the others are measured all the same
            print(f"{name:22} {type(error).__name__}: {str(error)[:300]}", flush=True)
        about = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
        file.write_text(json.dumps({**about, "programs": found}))


@cache
def alone(name: str) -> str:
    """The profile of a device whose process waits for no other rank, as here, where the others only pretend."""
    known = devices.complete(devices.device(name))
    assert known.host is not None
    path = Path(tempfile.mkdtemp()) / "alone.json"
    path.write_bytes(encoded(replace(known, host=replace(known.host, disturbed=1.0))))
    return str(path)


def kernel_seconds(program: Graph, on: str, gap: float = 0.0) -> float:
    """Seconds of all kernels of a recorded step but its collectives, as if each ran alone, and a gap after each."""
    own = priced(program, on, "eager").program
    profile = devices.complete(devices.device(on))
    assert profile.host is not None
    runs = Runs(own.attentions, devices.platform_of(profile), is_eager=True)
    launches = Launcher(own, own.values, runs, profile.host.seconds).forward(records=False)
    return sum(
        (predict(kernel, profile).seconds + gap) * launch.times
        for launch in launches
        for kernel in launch.kernels or ()
        if kernel.family != "collective"
    )


def predicted(name: str, on: str) -> dict[str, Any]:
    """The same of the recorded step on a device; times are without those of collectives."""
    axes, factory = PROGRAMS[name]
    program = (
        graphflops.record(lambda mesh: factory(mesh), mesh=axes)
        if axes
        else graphflops.record(lambda: factory(None))
    )
    report = graphflops.analyze(program, device=alone(on))
    (use,) = report.memory_use
    step = report.totals.time
    assert step is not None
    return {
        "peak": use.requested_peak,
        "step": (step.seconds - step.exposed) * 1e3,
        "gpu": kernel_seconds(program, alone(on)) * 1e3,
        "calls": Counter(node.op for node in program.nodes),
    }


def judge(only: str, measured: Path) -> None:
    rows = json.loads(measured.read_text())
    on = next(one for one in ("h200", "h100") if one in rows["device"].lower())
    errors: dict[str, list[float]] = {"peak": [], "gpu": [], "step": []}
    print(f"torch {rows['torch']} on an {rows['device']}; errors are predicted / measured - 1")
    for name, row in rows["programs"].items():
        if only not in name:
            continue
        try:
            found = predicted(name, on)
        except Exception as error:  # noqa: BLE001 # the others are measured all the same
            print(f"{name:22} {type(error).__name__}: {error}")
            continue
        print(
            f"{name:22}"
            + "".join(
                f" {key} {row[key] / scale:9.2f} {100 * (found[key] / row[key] - 1):6.1f} %"
                for key, scale in (("peak", 1e6), ("gpu", 1), ("step", 1))
            ),
            flush=True,
        )
        for key, every in errors.items():
            every.append(abs(found[key] / row[key] - 1))
    for key, every in errors.items():
        if not every:
            continue
        mean, median = statistics.mean(every), statistics.median(every)
        print(f"{key}: {len(every)} programs, mean {mean:.1%}, median {median:.1%}, worst {max(every):.0%}")


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=400.0)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.only, options.limit)
    else:
        judge(options.only, options.measured)


if __name__ == "__main__":
    main()
