"""Time of `graphflops check` for a repository of 50 models, in one process and in two.

    python benchmarks/check.py [--models 50] [--layers 32]

Needs torch. Exports a Llama-shaped decoder on fake tensors and a ResNet-50-shaped convnet into a temporary folder, and
copies these and the ONNX sample until there are enough; the limits are absolute, relative, and of modules.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from itertools import cycle
from pathlib import Path

from analyze import measured, ours
from llama import export
from resnet import export_resnet50

BUDGET = """
models = ["models/*"]
baseline = "baseline.json"

[[budget]]
models = "models/*.pt2"
matrix_flops = ["1 PFLOP", "+2 %"]
peak_bytes = "1 TB"
parameters = "100 G"
coverage = "100 %"

[[budget]]
models = "models/decoder*"
dims = {"ids[0]" = 1, "ids[1]" = 2048}
matrix_flops = "1 PFLOP"
modules."layers.*".matrix_flops = "10 TFLOP"

[[budget]]
models = "models/*.onnx"
dims = {batch = 1, sequence = 2048}
matrix_flops = ["1 PFLOP", "+2 %"]
"""


def main() -> None:
    """Export, copy, check, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--layers", type=int, default=32)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        originals = [Path(folder, "decoder.pt2"), Path(folder, "resnet50.pt2")]
        export(originals[0], options.layers)
        export_resnet50(originals[1])
        originals.append(Path(__file__).parents[1] / "samples" / "gqa_transformer.onnx")
        models = Path(folder, "models")
        models.mkdir()
        for number, original in zip(range(options.models), cycle(originals), strict=False):
            shutil.copy(original, models / f"{original.stem}{number}{original.suffix}")
        budget = Path(folder, "graphflops.toml")
        budget.write_text(BUDGET)
        row = "{:44} {:>9} {:>9} {:>9}   {}".format
        print(row("command", "wall s", "CPU s", "peak MB", ""))
        for arguments in (("--update", "--jobs", "1"), ("--jobs", "1"), ("--jobs", "2"), ()):
            command = ours("check", "--budget", str(budget), *arguments)
            wall, cpu, peak, output = measured(command, 1 if "--update" in arguments else 3)
            name = " ".join(["graphflops check", *arguments])
            print(row(name, f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.0f}", output.strip().rpartition("\n")[2]))


if __name__ == "__main__":
    sys.exit(main())
