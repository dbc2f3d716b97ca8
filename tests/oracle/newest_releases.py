"""What the installed releases of torch, onnx, onnxruntime and transformers change: `python -m tests.oracle.newest_releases [--record]`.

Each program is captured, saved, read back and priced, exported as ONNX, run there by onnxruntime and priced again. What differs
from the recorded totals is printed, one line each, and so is what failed; exits with 1 if there is any. `--record` writes the
totals instead. CI runs it every week with the newest releases, so that a change of theirs is seen before users meet it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import graphflops
from tests.oracle.recorded_programs import programs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.export import ExportedProgram

RECORDED = Path(__file__).with_name("newest_releases.json")
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "transformers")
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "head_dim": 16, "image_size": 32, "patch_size": 8,
}  # fmt: skip
ARCHITECTURES = {"bert": "BertModel", "llama": "LlamaModel", "qwen3": "Qwen3Model", "vit": "ViTModel"}


def transformers() -> Iterator[tuple[str, ExportedProgram]]:
    """Small models of transformers, with random weights."""
    import transformers as library

    for kind, name in ARCHITECTURES.items():
        config = library.AutoConfig.for_model(kind)
        for option, value in SMALL.items():
            if hasattr(config, option):
                setattr(config, option, value)
        config.use_cache = False
        model = getattr(library, name)(config).eval()
        image, ids = torch.zeros(2, 3, 32, 32), torch.zeros(2, 16, dtype=torch.int64)
        given = {"pixel_values": image} if name == "ViTModel" else {"input_ids": ids}
        yield kind, torch.export.export(model, (), given)


def totals(model: Any) -> dict[str, int | None]:
    """What is compared of a report."""
    report = graphflops.analyze(model)
    cost = report.totals.cost
    sums = {
        name: report.value(getattr(cost, name)) for name in ("matrix_flops", "read_bytes", "written_bytes")
    }
    notes = len(report.diagnostics)
    return {**sums, "parameters": report.parameters, "unknown": report.coverage.unknown, "diagnostics": notes}


def run(path: Path, program: ExportedProgram) -> None:
    """Runs an ONNX file on the program's own example inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    args, kwargs = program.example_inputs
    given = [value.numpy() for value in (*args, *kwargs.values())]
    session.run(None, dict(zip([entry.name for entry in session.get_inputs()], given, strict=True)))


def measured(name: str, program: ExportedProgram, folder: Path) -> Iterator[tuple[str, Any]]:
    """The totals of a program by how it is read; the error, as text, where that fails."""
    file, exported = folder / f"{name}.pt2", folder / f"{name}.onnx"

    def saved() -> dict[str, int | None]:
        torch.export.save(program, file)
        return totals(file)

    def as_onnx() -> dict[str, int | None]:
        torch.onnx.export(program, (), exported, dynamo=True, verbose=False)
        run(exported, program)
        return totals(exported)

    for way, read in (("captured", lambda: totals(program)), ("saved", saved), ("onnx", as_onnx)):
        try:
            yield f"{name}.{way}", read()
        except Exception as error:  # of any library: it is what this script looks for
            yield f"{name}.{way}", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def main() -> None:
    """Print what changed, or record it."""
    releases = {name: importlib.metadata.version(name) for name in PACKAGES}
    found: dict[str, Any] = {}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for name, program in [*programs().items(), *transformers()]:
            found.update(measured(name, program, Path(folder)))
    if "--record" in sys.argv:
        RECORDED.write_text(json.dumps({"releases": releases, "totals": found}, indent=1) + "\n")
        return
    recorded = json.loads(RECORDED.read_text())
    before, after = recorded["totals"], found
    print(", ".join(f"{name} {recorded['releases'][name]} → {now}" for name, now in releases.items()))
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for name in changed:
        print(f"{name}: {before.get(name)} → {after.get(name)}")
    print(f"{len(changed)} of {len(found)} readings differ")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
