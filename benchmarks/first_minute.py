"""How long a stranger waits for the first number: `python benchmarks/first_minute.py`.

Makes a virtual environment, installs the package of this checkout into it without a cache, and analyzes a sample.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the seconds of each step."""
    print(f"Python {platform.python_version()}, {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        bin_ = Path(folder, "env", "bin")
        steps = {
            "python -m venv": [sys.executable, "-m", "venv", str(bin_.parent)],
            "pip install .": [str(bin_ / "pip"), "install", "-q", "--no-cache-dir", str(ROOT)],
            "first report": [
                str(bin_ / "graphflops"),
                "analyze",
                str(ROOT / "samples" / "gqa_transformer.pt2"),
            ],
            "second report": [
                str(bin_ / "graphflops"),
                "analyze",
                str(ROOT / "samples" / "gqa_transformer.onnx"),
            ],
        }
        begun = time.perf_counter()
        for name, command in steps.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            print(f"{name:16}{time.perf_counter() - start:7.2f} s")
        print(f"{'in all':16}{time.perf_counter() - begun:7.2f} s")


if __name__ == "__main__":
    main()
