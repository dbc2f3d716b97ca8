"""Sharded steps on two or more GPUs against the prediction: requested peak, step time, exposed communication of each rank.

    python -m benchmarks.two_gpus --measure benchmarks/measured/h100_two_gpus.json    (on two GPUs; NCCL_NVLS_ENABLE=0)
    python -m benchmarks.two_gpus --record FOLDER     (anywhere, with the PyTorch that was measured)
    python -m benchmarks.two_gpus --measured benchmarks/measured/*_two_gpus*.json --recorded FOLDER     (anywhere)

Each rank runs the stock eager step of `two_gpu_models.py` over NCCL. Peaks are of requested bytes, in one step after the
first three. Step times are medians of rounds of several steps, each from a barrier on. In rounds of their own the profiler
has all kernels: communication is the time in which kernels of NCCL run, exposed that in which no other kernel does.

Two processes, or `--ranks`, run one program after the other. One that fails, or takes longer than `--each`, costs new ones;
results are written as they come, and none begins after `--limit` seconds. `--device cpu --tiny` is a trial without a GPU.
`--validate ddp_brief,fsdp_brief` also runs recordings of these, by `graphflops validate --nproc 2`.
Without `--recorded` a program is recorded when it is judged, by the PyTorch that is here, which may shard it otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks import recorded_models, two_gpu_models
from benchmarks.recorded import Dispatched, step_of
from benchmarks.two_gpu_models import programs
from graphflops.runtime.rank import covered

ROUNDS, PROFILED = 6, 2
MEASURED = Path(__file__).parent / "measured"
START = 90.0  # seconds that two processes may take to their first program
_DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")


def choose(device: str, *, is_tiny: bool) -> None:
    """Where programs are built, and their sizes."""
    recorded_models.GPU = torch.device(device)
    two_gpu_models.TINY = is_tiny


# One rank


def work(options: argparse.Namespace) -> None:
    """Measure programs as one rank; a line of JSON for each beginning and each result."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    choose(options.device, is_tiny=options.tiny)
    is_cuda = options.device == "cuda"
    if is_cuda:
        torch.cuda.set_device(options.rank)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"tcp://127.0.0.1:{options.port}",
        rank=options.rank,
        world_size=options.ranks,
        **({"device_id": torch.device("cuda", options.rank)} if is_cuda else {}),
    )
    with options.results.open("a") as file:

        def told(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        for name in options.names.split(","):
            axes, factory = programs(options.ranks)[name]
            waits(options.device)
            told({"name": name})
            try:
                mesh = init_device_mesh(options.device, tuple(axes.values()), mesh_dim_names=tuple(axes))
                told({"name": name, "found": measured(factory, mesh, options.device)})
            except Exception as error:  # the parent starts new processes for the others
                told({"name": name, "error": f"{type(error).__name__}: {str(error)[:600]}"})
                raise
            gc.collect()
            if is_cuda:
                torch._C._cuda_clearCublasWorkspaces()
                torch.cuda.empty_cache()
    os._exit(0)  # nothing is left to be told, and NCCL may wait at its end


def waits(device: str) -> None:
    """All ranks are here, and their devices have nothing to do."""
    from torch import distributed as dist

    if device == "cuda":
        torch.cuda.synchronize()
    dist.all_reduce(torch.zeros(1, device=device))
    if device == "cuda":
        torch.cuda.synchronize()


def measured(factory: Any, mesh: Any, device: str) -> dict[str, Any]:
    from torch import distributed as dist

    torch.manual_seed(0)
    found = {"before": requested(device, "current")}
    step = step_of(factory(mesh))
    times = [timed(step, 1, device) for _ in range(3)]
    gc.collect()
    found["held"] = requested(device, "current")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    waits(device)
    step()
    waits(device)
    found |= {"peak": requested(device, "peak"), "allocated": allocated(device)}
    with Dispatched() as seen:
        step()
    each = torch.tensor(times[-1], device=device)
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    steps = min(10, max(2, int(0.1 / float(each))))
    rounds = [timed(step, steps, device) * 1e3 for _ in range(ROUNDS)]
    found |= {"step": statistics.median(rounds), "least": min(rounds), "rounds": rounds, "steps": steps}
    found |= profiled(step, device)
    return found | {"calls": dict(seen.calls)}


def timed(step: Any, steps: int, device: str) -> float:
    """Seconds of a step, from when all ranks are there until this one's device is done."""
    waits(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def requested(device: str, which: str) -> int:
    return torch.cuda.memory_stats().get(f"requested_bytes.all.{which}", 0) if device == "cuda" else 0


def allocated(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def profiled(step: Any, device: str) -> dict[str, Any]:
    """Milliseconds of a step in kernels, and what its collectives sent, by a second profile with the CPU's calls."""
    if device != "cuda":
        return {}
    from torch.profiler import ProfilerActivity

    events = [
        event
        for event in traced(step, PROFILED, [ProfilerActivity.CUDA])
        if event.get("cat") in _DEVICE_EVENTS and "dur" in event
    ]
    kernels: Counter[str] = Counter()
    for event in events:
        kernels[event["name"][:90]] += event["dur"] / 1e3 / PROFILED
    sends = [span(event) for event in events if is_nccl(event)]
    computes = [span(event) for event in events if not is_nccl(event)]
    sent, busy, whole = covered(sends), covered(computes), covered([*sends, *computes])
    collectives: Counter[str] = Counter()
    for event in traced(step, 1, [ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        if event.get("cat") == "kernel" and is_nccl(event):
            said = event.get("args", {})
            fields = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
            collectives["|".join(str(said.get(field)) for field in fields)] += 1
    return {
        "communication": sent / 1e3 / PROFILED,
        "compute": busy / 1e3 / PROFILED,
        "exposed": (whole - busy) / 1e3 / PROFILED,
        "kernels": {name: round(value, 4) for name, value in kernels.most_common(30)},
        "collectives": dict(collectives),
    }


def traced(step: Any, steps: int, activities: list[Any]) -> list[dict[str, Any]]:
    """The events of a profile of some steps."""
    waits("cuda")
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return events


def is_nccl(event: dict[str, Any]) -> bool:
    return "nccl" in event["name"].lower()


def span(event: dict[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


# All ranks


def in_turn(ranks: int) -> list[str]:
    """The programs, one of each kind of mesh after the other: if the time is over, some of each are measured."""
    turns: Counter[str] = Counter()
    order = {}
    for name, (axes, _) in programs(ranks).items():
        kind = name.partition("_")[0] if "dp" in axes else "".join(axes)
        turns[kind] += 1
        order[name] = turns[kind]
    return sorted(order, key=lambda name: order[name])


class Processes:
    """The processes that measure programs; `told` are their lines."""

    def __init__(self, names: list[str], options: argparse.Namespace, folder: Path) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self.files = [folder / f"{port}_{rank}.jsonl" for rank in range(options.ranks)]
        self.logs = [folder / f"{port}_{rank}.log" for rank in range(options.ranks)]
        self.since = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.two_gpus", "--names", ",".join(names)]
        command += ["--port", str(port), "--ranks", str(options.ranks), "--device", options.device]
        command += ["--tiny"] if options.tiny else []
        self.processes = []
        for rank, (file, log) in enumerate(zip(self.files, self.logs, strict=True)):
            file.touch()
            with log.open("w") as stream:
                self.processes.append(
                    subprocess.Popen(
                        [*command, "--rank", str(rank), "--results", str(file)],
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        env={"OMP_NUM_THREADS": "4", **os.environ, "NCCL_NVLS_ENABLE": "0"},
                    )
                )

    def told(self) -> list[list[dict[str, Any]]]:
        """The complete lines of each rank."""
        return [
            [json.loads(line) for line in file.read_text().split("\n")[:-1] if line] for file in self.files
        ]

    def is_over(self) -> bool:
        return all(one.poll() is not None for one in self.processes)

    def has_failed(self) -> bool:
        return any(one.poll() for one in self.processes)

    def end(self) -> None:
        for one in self.processes:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            one.wait()

    def last_words(self) -> str:
        return " / ".join(log.read_text(errors="replace").strip()[-300:] for log in self.logs)


def measure(options: argparse.Namespace) -> None:
    """Measure all programs within the time; write the file after each."""
    start = time.monotonic()
    wanted = [name for name in in_turn(options.ranks) if options.only in name]
    whole: dict[str, Any] = {"torch": torch.__version__, "device": device_name(options.device)}
    whole |= {"programs": {}, "failed": {}}
    with tempfile.TemporaryDirectory() as folder:
        while wanted and time.monotonic() - start < options.limit:
            run = Processes(wanted, options, Path(folder))
            try:
                followed(run, wanted, whole, start, options)
            finally:
                run.end()
            wanted = [name for name in wanted if name not in {**whole["programs"], **whole["failed"]}]
        for name in filter(None, options.validate.split(",")):
            whole.setdefault("validated", {})[name] = validated(name, Path(folder), options)
            options.measure.write_text(json.dumps(whole, indent=1))
    print(f"{time.monotonic() - start:.0f} s; not measured: {wanted or 'none'}", flush=True)


def followed(
    run: Processes, wanted: list[str], whole: dict[str, Any], start: float, options: argparse.Namespace
) -> None:
    """Take the results of the processes until they are done, one fails, or the time is over."""
    begun, since, seen = "", run.since, 0
    while True:
        has_failed, is_over, told = run.has_failed(), run.is_over(), run.told()
        found = [{line["name"]: line["found"] for line in lines if "found" in line} for lines in told]
        for name in [name for name in wanted if all(name in one for one in found)]:
            if name not in whole["programs"]:
                kept(name, [one[name] for one in found], whole, options)
        names = [line["name"] for line in told[0]]
        if len(names) != seen:
            seen, begun, since = len(names), names[-1], time.monotonic()
        late = time.monotonic() - since > (options.each if begun else START)
        if is_over and not has_failed:
            return
        if has_failed or late:
            time.sleep(1)  # the other rank may say more
            failed = begun or wanted[0]
            if failed not in whole["programs"]:
                errors = [line["error"] for lines in run.told() for line in lines if "error" in line]
                reason = "; ".join(errors) or ("too slow" if late else f"ended: {run.last_words()}")
                whole["failed"][failed] = reason
                print(f"{failed:22} {reason[:600]}", flush=True)
                options.measure.write_text(json.dumps(whole, indent=1))
            return
        if time.monotonic() - start > options.limit:
            return
        time.sleep(0.1)


def kept(name: str, ranks: list[dict[str, Any]], whole: dict[str, Any], options: argparse.Namespace) -> None:
    """Write a result. What ranks have in common stands once."""
    first = ranks[0]
    row = {key: [one.get(key) for one in ranks] for key in first if key not in ("calls", "kernels", "steps")}
    row |= {key: first[key] for key in ("calls", "kernels", "steps") if key in first}
    whole["programs"][name] = row
    options.measure.write_text(json.dumps(whole, indent=1))
    print(
        f"{name:22} {first['peak'] / 1e6:9.1f} MB {first['step']:8.2f} ms (least {first['least']:.2f}), kernels"
        f" {first.get('compute', 0):8.2f} ms, communication {first.get('communication', 0):7.2f} ms, exposed"
        f" {first.get('exposed', 0):7.2f} ms",
        flush=True,
    )


def validated(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What `graphflops validate` finds of the recorded step."""
    found, file = folder / f"{name}.json", folder / f"{name}.recorded"
    code = f"from benchmarks.two_gpus import *; save({name!r}, {str(file)!r}, {options.ranks}, is_tiny={options.tiny})"
    command = [
        "-m",
        "graphflops",
        "validate",
        str(file),
        "--nproc",
        str(options.ranks),
        "--device",
        options.device,
    ]
    said = ""
    for given in (["-c", code], [*command, "--output", str(found)]):
        try:
            run = subprocess.run(
                [sys.executable, *given], capture_output=True, text=True, timeout=options.each,
                env={**os.environ, "NCCL_NVLS_ENABLE": "0"}, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            said = "too slow"
            break
        said = (run.stdout + run.stderr)[-2000:]
        if run.returncode not in (0, 3):
            break
    print(f"validate {name}: {said or 'holds'}", flush=True)
    whole = json.loads(found.read_text()) if found.exists() else {}
    kept = {key: value for key, value in whole.items() if key != "nodes"}
    kept["nodes"] = [node for node in whole.get("nodes", ()) if node["verdict"] != "equal"]
    return {"said": said, "found": kept}


def save(name: str, file: str, ranks: int, *, is_tiny: bool) -> None:
    """Record a program."""
    import graphflops

    choose("cuda", is_tiny=is_tiny)
    axes, factory = programs(ranks)[name]
    graphflops.record(lambda mesh: factory(mesh), mesh=axes, file=file)


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


# The prediction


@cache
def recorded(name: str, ranks: int) -> Any:
    """The step of a program as it is recorded."""
    import graphflops

    axes, factory = programs(ranks)[name]
    return graphflops.record(lambda mesh: factory(mesh), mesh=axes)


@cache
def predicted(name: str, device: str, folder: Path | None = None, ranks: int = 2) -> dict[str, float]:
    """The same of the recorded step. folder: of recordings that were made before."""
    import graphflops

    given = recorded(name, ranks) if folder is None else folder / f"{name}.recorded"
    report = graphflops.analyze(given, device=device)
    (use,) = report.memory_use
    step = report.totals.time
    assert step is not None
    assert use.requested_peak is not None
    return {
        "peak": use.requested_peak / 1e6,
        "step": step.seconds * 1e3,
        "communication": step.communication * 1e3,
        "exposed": step.exposed * 1e3,
    }


def judge(measured: Path, only: str, folder: Path | None) -> None:
    """Prints measured and predicted figures, and the errors of all."""
    rows = json.loads(measured.read_text())
    device = next((one for one in ("h200", "h100") if one in rows["device"].lower()), "h200")
    ranks = len(next((row["peak"] for row in rows["programs"].values()), ()))
    count = {2: "two", 4: "four"}.get(ranks, ranks)
    print(f"torch {rows['torch']} on {count} {rows['device']}; measured, predicted, error")
    print(f"{'':20}{'peak, MB':>28}{'step, ms':>28}{'communication, ms':>28}{'exposed, ms':>28}")
    errors: dict[str, list[float]] = {"peak": [], "step": [], "communication": []}
    near = []
    for name, row in rows["programs"].items():
        if only not in name or name not in programs(ranks):
            continue
        try:
            found = predicted(name, device, folder, ranks)
        except Exception as error:  # noqa: BLE001 # the others are judged all the same
            print(f"{name:20} {type(error).__name__}: {error}")
            continue
        # A kernel of NCCL waits for the other rank: the one that comes last has the time of the transfer.
        seen = {key: min(row.get(key) or [0]) for key in found} | {"peak": row["peak"][0] / 1e6}
        print(f"{name:20}" + "".join(compared(seen[key], found[key]) for key in found), flush=True)
        for key, values in errors.items():
            if seen[key]:
                values.append(100 * abs(found[key] / seen[key] - 1))
        gap = abs(found["exposed"] - seen["exposed"])
        near.append(gap <= max(1.0, 0.15 * seen["exposed"]))
    for key, values in errors.items():
        if values:
            print(
                f"{key}: {len(values)} programs, mean {statistics.mean(values):.1f} %, median"
                f" {statistics.median(values):.1f} %, worst {max(values):.1f} %"
            )
    print(f"exposed: {sum(near)} of {len(near)} within 15 % or 1 ms")
    ran(rows.get("validated", {}))


def ran(rows: dict[str, Any]) -> None:
    """Prints what `graphflops validate --nproc 2` found of recorded steps."""
    for name, row in rows.items():
        found = row["found"]
        if not found:
            print(f"validate {name:20} {row['said']}")
            continue
        calls = ", ".join(f"{count} {verdict}" for verdict, count in found["verdicts"].items() if count)
        peaks = compared(found["peak_bytes"] / 1e6, found["predicted_peak_bytes"] / 1e6)
        print(f"validate {name:20} calls: {calls}; peak, MB:{peaks}")


def compared(seen: float, found: float) -> str:
    error = f"{100 * (found / seen - 1):+7.1f} %" if seen else ""
    return f"{seen:9.2f}{found:10.2f}{error:>9}"


def main() -> None:
    """Measures, works as a rank, or prints the comparison."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--measured", type=Path, nargs="+", default=[MEASURED / "h100_two_gpus.json"])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=150.0)
    parser.add_argument("--each", type=float, default=40.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--validate", default="", help="programs, by comma, that validate runs too")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--names", default="")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if options.rank is not None:
        work(options)
    elif options.measure:
        measure(options)
    elif options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        for name in programs(options.ranks):
            save(name, str(options.record / f"{name}.recorded"), options.ranks, is_tiny=options.tiny)
    else:
        choose("cuda", is_tiny=options.tiny)
        for measured in options.measured:
            judge(measured, options.only, options.recorded)


if __name__ == "__main__":
    main()
