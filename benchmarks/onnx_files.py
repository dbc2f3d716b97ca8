"""Time, memory and answers on `.onnx` files: `graphflops analyze` beside other tools that read them without running them.

    python benchmarks/onnx_files.py [NAME ...] [--repeat 5] [--folder FOLDER]

Needs what `onnx_models.py` needs to make the files, and onnxsim, onnx-shape-inference and onnxruntime to compare with. Every
run is a process of its own, from start to exit: seconds, by the clock and of the processor, are the best of several, memory
is the peak resident set.

"resolved" is the share of values (results that are used, Constant nodes apart) of which every size is a number or a formula
in the sizes of the model's inputs; first in the file as exported, then without the shapes that the exporter recorded in it.
(The name of this script is not `onnx.py`, which every `import onnx` near it would find.)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analyze import STOPWATCH, ours

_LIMIT = 600  # seconds for one run
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = frozenset({"Max", "Min", "Mod", "ceiling", "floor", "max", "min", "where"})
_FORMULA = 64  # characters of a formula that are printed

# Each peer is called as PEER FILE to be timed, and as PEER FILE SIZES to tell what it found: JSON on stdout.
_FOUND = """
import json, sys
def found(model):
    texts = {}
    for value in (*model.graph.value_info, *model.graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            texts[value.name] = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
    print(json.dumps({"shapes": texts}))
"""
_PEERS = {
    "onnxsim ModelInfo": """
import json, sys, onnx
from onnxsim.model_info import ModelInfo
flops = 2 * ModelInfo(onnx.load(sys.argv[1], load_external_data=False)).macs
if len(sys.argv) > 2:
    import sympy
    sizes, value = json.loads(sys.argv[2]), sympy.sympify(flops)
    free = {str(name): name for name in value.free_symbols}
    own = {symbol: sympy.sympify(name) for name, symbol in free.items() if name not in sizes}
    at = {**sizes, **{sympy.Symbol(name, positive=True, integer=True): size for name, size in sizes.items()}}
    value = value.subs({symbol: size.subs(sizes) for symbol, size in own.items()}).subs(at)
    print(json.dumps({"flops": str(flops), "value": int(value) if value.is_number else None, "names": len(own)}))
""",
    "onnx-shape-inference": _FOUND
    + """
import onnx_ir
from onnx_shape_inference import infer_symbolic_shapes
model = infer_symbolic_shapes(onnx_ir.load(sys.argv[1]))
if len(sys.argv) > 2:
    found(onnx_ir.to_proto(model))
""",
    "onnx.shape_inference": _FOUND
    + """
import onnx
model = onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1], load_external_data=False), data_prop=True)
if len(sys.argv) > 2:
    found(model)
""",
    "onnxruntime symbolic": _FOUND
    + """
import onnx
from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
model = onnx.load(sys.argv[1], load_external_data=False)
model = SymbolicShapeInference.infer_shapes(model, auto_merge=True)
if len(sys.argv) > 2:
    found(model)
""",
}


@dataclass(frozen=True)
class File:
    """One file as exported, the same without recorded shapes, and the values in it that somebody uses."""

    path: Path
    bare: Path
    nodes: int
    sizes: dict[str, int]
    values: frozenset[str]

    def share(self, shapes: dict[str, list[str]]) -> str:
        """How much of the values has a shape in the sizes of the inputs alone."""
        known = sum(name in shapes and all(map(self.is_known, shapes[name])) for name in self.values)
        return f"{100 * known / len(self.values):.1f} %"

    def is_known(self, size: str) -> bool:
        """Whether a size is a number or a formula in the sizes of the inputs."""
        return size != "?" and self.sizes.keys() | _FUNCTIONS >= set(_NAME.findall(size))


def opened(path: Path, sizes: tuple[int, ...]) -> File:
    """The file, its free sizes named in the order in which its inputs have them."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    names = dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param)
    used = {name for node in model.graph.node for name in node.input}
    used.update(value.name for value in model.graph.output)
    values = {name for node in model.graph.node if node.op_type != "Constant" for name in node.output}
    bare = path.with_suffix(".bare.onnx")
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    bare.write_bytes(model.SerializeToString())
    found = dict(zip(names, sizes, strict=True))
    return File(path, bare, len(model.graph.node), found, frozenset(values & used))


def run(command: list[str]) -> tuple[float, float, float, str]:
    """(wall seconds, CPU seconds, peak resident MB, output) of a command; its last word where it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    watch = [sys.executable, "-c", STOPWATCH, *command]
    with tempfile.TemporaryDirectory() as folder:  # onnxruntime leaves a file behind where it gives up
        try:
            done = subprocess.run(
                watch, capture_output=True, check=True, env=environment, cwd=folder, timeout=_LIMIT
            )
        except subprocess.TimeoutExpired:
            return float("inf"), float("inf"), 0.0, f"failed: takes longer than {_LIMIT} s"
    wall, seconds, peak, output = json.loads(done.stdout)
    return wall, seconds, peak, output


def best(command: list[str], repeat: int) -> tuple[str, str, str]:
    """The shortest times and the highest peak of some runs."""
    walls, seconds, peaks, _ = zip(*(run(command) for _ in range(repeat)), strict=True)
    return f"{min(walls):.2f}", f"{min(seconds):.2f}", f"{max(peaks):.0f}"


def answer(command: list[str]) -> dict[str, Any]:
    """What a command tells; {"failed": why} where it fails."""
    *_, output = run(command)
    if output.startswith("failed: "):
        return {"failed": output.removeprefix("failed: ")[:_FORMULA]}
    told: dict[str, Any] = json.loads(output)
    return told


def our_answer(path: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """What graphflops tells, in the words of the peers."""
    report = answer(ours("analyze", str(path), "--format", "json"))
    given = [word for name, size in sizes.items() for word in ("--dim", f"{name}={size}")]
    bound = answer(ours("analyze", str(path), "--format", "json", *given))
    shapes = {out["name"]: [*map(str, out["shape"])] for row in report["rows"] for out in row["outputs"]}
    flops = report["totals"]["matrix_flops"]
    unknown = report["coverage"]["unknown"]
    formula = flops["formula"] if isinstance(flops, dict) else str(flops)
    return {
        "shapes": shapes,
        "flops": formula + (f" ({unknown} unknown)" if unknown else ""),
        "value": bound["totals"]["matrix_flops"],
    }


def verdict(told: dict[str, Any], expected: int) -> str:
    """Formula, value and how far that is from what is right."""
    if "failed" in told:
        return f"fails: {told['failed']}"
    if "flops" not in told:
        return "-"
    formula = told["flops"] if len(told["flops"]) <= _FORMULA else f"{told['flops'][: _FORMULA - 1]}…"
    names = f"{told['names']} sizes that are not the inputs'" if told.get("names") else ""
    if told["value"] is None:
        return f"{formula} (no number: in {names})"
    off = told["value"] - expected
    said = "exact" if not off else f"{100 * off / expected:+.1f} %"
    return f"{formula} = {told['value']:,} ({said}{', in ' + names if names else ''})"


def main() -> None:
    """Make the files, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which files; all where none is named")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir(), "graphflops-onnx"),
        help="where the files are kept",
    )
    options = parser.parse_args()
    from onnx_models import MODELS, made

    options.folder.mkdir(parents=True, exist_ok=True)
    packages = ("torch", "onnx", "onnxsim", "onnx-shape-inference", "onnxruntime")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}")
    row = "  {:22} {:>7} {:>6} {:>6}  {:>8} {:>8}  {}".format
    for name in options.names or MODELS:
        model = MODELS[name]
        path = options.folder / f"{name}.onnx"
        made(path)
        file = opened(path, model.sizes)
        expected = model.flops(*model.sizes)
        at = ", ".join(f"{size}={value}" for size, value in file.sizes.items())
        megabytes = path.stat().st_size / 1e6
        print(f"\n{model.title}: {file.nodes:,} nodes, {megabytes:.1f} MB; {expected:,} FLOPs at {at}")
        print(row("", "wall s", "CPU s", "MB", "resolved", "bare", "FLOPs"))
        tools = {
            "graphflops analyze": (ours("analyze"), our_answer),
            **{tool: ([sys.executable, "-c", code], None) for tool, code in _PEERS.items()},
        }
        for tool, (command, told_by) in tools.items():
            times = best([*command, str(path)], options.repeat)
            if told_by is not None:
                told, bare = told_by(path, file.sizes), told_by(file.bare, file.sizes)
            else:
                sizes = json.dumps(file.sizes)
                told, bare = (answer([*command, str(p), sizes]) for p in (path, file.bare))
            shares = [file.share(found["shapes"]) if "shapes" in found else "-" for found in (told, bare)]
            print(row(tool, *times, *shares, verdict(told, expected)), flush=True)
            if told.get("value") != bare.get("value"):
                print(row("  bare", "", "", "", "", "", verdict(bare, expected)))


if __name__ == "__main__":
    main()
