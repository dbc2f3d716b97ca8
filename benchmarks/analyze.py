"""Time and memory of whole processes: `graphflops analyze` beside torch's own counter on the same files.

    python benchmarks/analyze.py [--layers 80] [--repeat 5] [--no-peer]

Needs torch. Exports Llama-shaped decoders on fake tensors and a static ResNet-50-shaped convnet into a temporary folder,
then runs each command in a process of its own: times are medians, memory the peak resident set. Attention counts 0 in
torch's counter where the CPU runs it fused, as here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from llama import Shape, export
from resnet import export_resnet50

PEER = """
import sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
program = torch.export.load(sys.argv[1])
shape = tuple(map(int, sys.argv[2].split(",")))
with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
    module = program.module()
    device = next(iter(program.state_dict.values())).device
    ids = torch.zeros(shape, dtype=torch.int64 if len(shape) == 2 else torch.float32, device=device)
    with FlopCounterMode(display=False) as counter:
        module(ids)
print(counter.get_total_flops())
"""


# Runs the command from a small process: a child's peak memory starts at that of the process it was forked from.
STOPWATCH = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
wall = time.perf_counter() - start
output = done.stdout if done.returncode == 0 else "failed: " + done.stderr.strip().rpartition("\\n")[2][:100]
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output]))
"""


def measured(command: list[str], repeat: int) -> tuple[float, float, float, str]:
    """(median wall seconds, median CPU seconds, peak resident MB, last output) of a command run `repeat` times."""
    watch = [sys.executable, "-c", STOPWATCH, *command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> list[Any]:
        done = subprocess.run(watch, capture_output=True, check=True, env=environment)
        answer: list[Any] = json.loads(done.stdout)
        return answer

    runs = [run() for _ in range(repeat)]
    walls, seconds, peaks, outputs = zip(*runs, strict=True)
    return statistics.median(walls), statistics.median(seconds), max(peaks), outputs[-1]


def ours(*arguments: str) -> list[str]:
    """The command line of this environment's graphflops."""
    return [str(Path(sys.executable).parent / "graphflops"), *arguments]


def ratio(base: list[str], options: list[str], repeat: int) -> float:
    """How many times as long a command takes with further options: the median of pairs, run one after the other."""
    pairs = [[measured([*base, *more], 1)[1] for more in ([], options)] for _ in range(repeat)]
    return statistics.median(longer / short for short, longer in pairs)


def main() -> None:
    """Export, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--no-peer", action="store_true", help="leave out torch's counter, which takes half a minute"
    )
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder, "large.pt2"), Path(folder, "small.pt2")
        vision = Path(folder, "resnet50.pt2")
        export(large, options.layers)
        export(small, options.layers // 10)
        export_resnet50(vision)
        row = "{:44} {:>9} {:>9} {:>9}   {}".format
        print(row("command", "wall s", "CPU s", "peak MB", "matrix FLOPs"))
        wall, cpu, peak, _ = measured(ours("--help"), options.repeat)
        print(row("graphflops --help", f"{wall:.3f}", f"{cpu:.3f}", f"{peak:.0f}", ""))
        walls = {}
        for name, path, sizes in (
            ("large", large, ("--input", "ids=1,2048")),
            ("large, no sizes given", large, ()),
            ("small", small, ("--input", "ids=1,2048")),
            ("resnet50", vision, ()),
        ):
            wall, cpu, peak, _ = measured(ours("analyze", str(path), *sizes), options.repeat)
            *_, report = measured(ours("analyze", str(path), *sizes, "--format", "json"), 1)
            total = json.loads(report)["totals"]["matrix_flops"]
            walls[name] = wall
            shown = total if isinstance(total, int) else total["formula"]
            print(row(f"graphflops analyze {name}", f"{wall:.3f}", f"{cpu:.3f}", f"{peak:.0f}", shown))
        print(f"closed form, large at (1, 2048): {Shape(layers=options.layers).matrix_flops(1, 2048)}")
        print(
            f"{options.layers} layers against {options.layers // 10}: {walls['large'] / walls['small']:.2f} x the time"
        )
        for name, path in (("large", large), ("resnet50", vision)):
            command = ours("analyze", str(path), *(("--input", "ids=1,2048") if path == large else ()))
            device = ["--device", "h100"]
            found = [ratio(command, more, options.repeat) for more in (device, ["--training", *device])]
            print(
                f"{name} on a device: {found[0]:.2f} x the CPU time, {found[1]:.2f} x in training (median of pairs)"
            )
        if not options.no_peer:
            for name, path, shape in (("large", large, "1,2048"), ("resnet50", vision, "1,3,224,224")):
                wall, cpu, peak, output = measured([sys.executable, "-c", PEER, str(path), shape], 1)
                total = output.strip().rpartition("\n")[2]
                name_of_peer = f"torch load + FlopCounterMode {name}"
                print(row(name_of_peer, f"{wall:.3f}", f"{cpu:.3f}", f"{peak:.0f}", total))
                print(f"  graphflops takes 1/{wall / walls[name]:.0f} of that time")


if __name__ == "__main__":
    main()
