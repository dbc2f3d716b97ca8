"""Scans a fleet of files made from the samples at different sizes: files a second, memory of a worker, equal tables.

python benchmarks/scan.py [--files 10000] [--hostile 0] [--kills 0]: prints a table; --kills ends workers, the Dask scheduler
and the client with SIGKILL at random moments and compares the table after the restart with that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import onnx

from graphflops.scan import store

SAMPLES = Path(__file__).parents[1] / "samples"
COMMAND = [sys.executable, "-m", "graphflops", "scan"]
NOT_COMPARED = ("seconds", "limits")  # of no two runs the same
HINT = re.compile(rb'"hint": ?\{"as_int": ?(\d+)\}|"as_expr": ?\{"expr_str"')


def fleet(folder: Path, files: int, hostile: int, seed: int = 0) -> None:
    """Files of every sample, each with sizes of its own; among them hostile ones."""
    chosen = random.Random(seed)
    archives = sorted(SAMPLES.glob("*.pt2"))
    exports = [onnx.load(path, load_external_data=False) for path in sorted(SAMPLES.glob("*.onnx"))]
    for number in range(files):
        kind = number % (len(archives) + len(exports))
        name = folder / f"{number % 100:02d}" / f"model_{number:05d}"
        name.parent.mkdir(exist_ok=True, parents=True)
        if kind < len(archives):
            _archive(archives[kind], name.with_suffix(".pt2"), number)
        else:
            model = exports[kind - len(archives)]
            model.doc_string = f"export {number}"
            onnx.save(model, name.with_suffix(".onnx"))
    for number in range(hostile):
        _hostile(folder / f"hostile_{number:04d}", number, chosen)


def _archive(sample: Path, target: Path, number: int) -> None:
    def resized(text: bytes) -> bytes:
        return re.sub(rb'("hint": ?\{"as_int": ?)\d+', rb"\g<1>" + str(2 + number % 60).encode(), text)

    with zipfile.ZipFile(sample) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".json"):
                data = resized(data)
            new.writestr(entry.filename, data)
        new.writestr("archive/extra/number", str(number))


def _hostile(name: Path, number: int, chosen: random.Random) -> None:
    data = bytearray((SAMPLES / "gqa_transformer.pt2").read_bytes())
    if number % 4 == 0:
        name.with_suffix(".pt2").write_bytes(data[: chosen.randrange(len(data))])
    elif number % 4 == 1:
        for _ in range(50):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        name.with_suffix(".pt2").write_bytes(data)
    elif number % 4 == 2:
        name.with_suffix(".onnx").write_bytes(chosen.randbytes(2000))
    else:
        name.with_suffix(".onnx").write_bytes(b"\x08\x07" + b":" + b"\xff\xff\xff\xff\x0f" + bytes(100))


def table(output: Path) -> list[tuple[object, ...]]:
    """The rows that runs have to agree in, by path."""
    found = store.read(str(output))
    names = [name for name in found.column_names if name not in NOT_COMPARED]
    rows = found.select(names).to_pylist()
    return sorted(tuple(str(row[name]) for name in names) for row in rows)


def scan(folder: Path, output: Path, *options: str) -> tuple[float, float]:
    """Seconds, and processor seconds of all processes."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*COMMAND, str(folder), "--output", str(output), *options], check=True)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def cluster(workers: int):
    """A scheduler and workers of Dask as processes of their own; yields the address and all processes."""
    port = random.randrange(20_000, 60_000)
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    programs = {
        "scheduler": [
            sys.executable,
            "-m",
            "distributed.cli.dask_scheduler",
            "--port",
            str(port),
            "--no-dashboard",
        ],
        **{
            f"worker{number}": [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                address,
                "--nthreads",
                "1",
                "--no-dashboard",
            ]
            for number in range(workers)
        },
    }
    found = {name: subprocess.Popen(command, **quiet) for name, command in programs.items()}
    try:
        yield address, found
    finally:
        for process in found.values():
            process.kill()
            process.wait()


def peak_of_workers() -> int:
    """The most memory that a worker process has had so far, from /proc."""
    most = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            if "graphflops.scan.worker" in (status.parent / "cmdline").read_text():
                most = max(most, int(re.search(r"VmHWM:\s+(\d+)", text)[1]) * 1024)  # type: ignore[index]
        except (OSError, TypeError):
            continue
    return most


def measured(folder: Path, output: Path, *options: str) -> tuple[float, float, int]:
    """Seconds, processor seconds and the largest memory of a worker."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen([*COMMAND, str(folder), "--output", str(output), *options])
    most = 0
    while process.poll() is None:
        time.sleep(0.2)
        most = max(most, peak_of_workers())
    assert process.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, cpu, most


def kill_trials(folder: Path, base: Path, reference: list[tuple[object, ...]], trials: int) -> None:
    """Ends a worker, the client, or the scheduler at random moments; the restarted scan has to complete the table."""
    for what in ("worker", "client", "scheduler"):
        equal = sum(
            _kill_trial(folder, base / f"{what}{trial}.parquet", what, reference) for trial in range(trials)
        )
        print(f"  kill -9 of the {what}, then a restart: {equal} of {trials} tables equal")


def _kill_trial(folder: Path, output: Path, what: str, reference: list[tuple[object, ...]]) -> bool:
    with cluster(2) if what == "scheduler" else _nothing() as (address, processes):
        place = ["--scheduler", address] if address else ["--jobs", "2"]
        command = [*COMMAND, str(folder), "--output", str(output), *place]
        client = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.5, 6.0))
        if what == "client":
            client.kill()
        elif what == "scheduler":
            processes["scheduler"].kill()
        else:
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    parent = re.search(r"PPid:\s+(\d+)", (entry / "status").read_text())
                    if parent and int(parent[1]) == client.pid:
                        os.kill(int(entry.name), signal.SIGKILL)
                        break
                except OSError:
                    continue
        try:
            client.wait(120)
        except subprocess.TimeoutExpired:
            client.kill()
    subprocess.run(
        [*COMMAND, str(folder), "--output", str(output), "--jobs", "2"], stderr=subprocess.DEVNULL, check=True
    )
    return table(output) == reference


@contextmanager
def _nothing():
    yield "", {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--hostile", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, help="trials of each kind")
    parser.add_argument("--runs", nargs="*", default=["1", "2", "8", "dask"])
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="graphflops-scan-"))
    try:
        folder = base / "fleet"
        fleet(folder, given.files, given.hostile)
        total = given.files + given.hostile
        print(f"{given.files:,} files, {given.hostile:,} hostile ones")
        reference = None
        for run in given.runs:
            output = base / f"{run}.parquet"
            if run == "dask":
                with cluster(3) as (address, _):
                    seconds, cpu, most = measured(folder, output, "--scheduler", address)
            else:
                seconds, cpu, most = measured(folder, output, "--jobs", run)
            rows = table(output)
            reference = reference or rows
            print(
                f"  {run:>4}: {total / seconds:.1f} files/s, {cpu / total * 1000:.1f} ms of processor a file, "
                f"{most / 1e6:.0f} MB a worker, {len(rows):,} rows, same table: {rows == reference}"
            )
        if given.kills:
            kill_trials(folder, base, reference or [], given.kills)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
