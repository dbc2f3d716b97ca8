"""`graphflops audit --fix`: mends what an audit finds in an ONNX file, once it is proven that the results stay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.files import copied
from graphflops.commands import files, options
from graphflops.errors import FileError, GraphflopsError, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from graphflops.onnx_fix.fix import Fixed

fix_options = options.together(
    options.flag(
        "--fix", "Mend the findings that have a safe fix; --output names the new file, else MODEL.fixed.onnx."
    ),
    options.flag("--unsafe-fixes", "With --fix: also fixes after which results differ, within a tolerance."),
    options.flag("--in-place", "With --fix: replace MODEL by the fixed file."),
    options.flag(
        "--unproven", "With --fix: also write what onnxruntime cannot run here, and so cannot prove."
    ),
    options.flag("--dry-run", "Fix and prove, but write nothing."),
    options.flag("--diff", "Write nothing, and say all that would change."),
    options.flag("--exit-code", "Exit with 3 if anything was fixed, or would be."),
)
_EXTRA = ("onnx_ir", "onnxruntime", "onnxscript")


def is_fix(given: dict[str, bool]) -> bool:
    """Whether the options ask for fixes; UsageError for those that say how, but not that."""
    wanted = given["fix"] or given["dry_run"] or given["diff"]
    odd = [name for name, is_given in given.items() if is_given and not wanted]
    if odd:
        raise click.UsageError(f"--{odd[0].replace('_', '-')} goes with --fix")
    return wanted


def fix(
    models: Sequence[str], codes: Collection[str], sizes: Any, output: str | None, given: dict[str, bool]
) -> tuple[list[Fixed], list[str]]:
    """Fix models and say what was fixed; with the errors of those that cannot be fixed."""
    from importlib.util import find_spec

    if output is not None and (len(models) > 1 or given["in_place"]):
        raise click.UsageError("--output names the one file that is written: give one MODEL, no --in-place")
    if not all(map(find_spec, _EXTRA)):
        raise click.UsageError('--fix needs more packages: pip install "graphflops[fix]"')
    done: list[Fixed] = []
    errors: list[str] = []
    for model in models:
        try:
            done.append(_one(model, codes, sizes, output, given))
        except GraphflopsError as error:
            said = str(error)
            errors.append(said if said.startswith(shown(model)) else f"{shown(model)}: {said}")
    return done, errors


def _one(model: str, codes: Collection[str], sizes: Any, output: str | None, given: dict[str, bool]) -> Fixed:
    from graphflops.base.files import nearest
    from graphflops.base.limits import next_analysis
    from graphflops.budget.ignores import read_ignores
    from graphflops.onnx_fix.fix import fixed
    from graphflops.render.fixes import fixes

    next_analysis()
    if model.endswith(".pt2"):
        raise FileError("is no ONNX file: fix its source, whose lines `graphflops audit --device` names")
    ignores = read_ignores(nearest())
    target = "" if given["dry_run"] or given["diff"] else _target(model, output, given["in_place"])
    with tempfile.TemporaryDirectory(prefix="graphflops") as folder:
        how = {"unsafe": given["unsafe_fixes"], "unproven": given["unproven"], **sizes}
        found = fixed(model, folder, codes=codes, kept=lambda found: ignores.kept(found, model), **how)
        if found.fixed and target:
            copied(found.file, target)
    written = target if found.fixed else ""
    files.write(fixes(found, written, verbose=given["diff"], **files.screen(None)), None)
    return found


def _target(model: str, output: str | None, in_place: bool) -> str:
    """Where the fixed file goes; FileError where that would harm a file, or part the model from its data."""
    from graphflops.exporters import onnx
    from graphflops.onnx_audit.model import Model
    from graphflops.onnx_audit.safety import external

    target = model if in_place else output or f"{os.path.splitext(model)[0]}.fixed.onnx"
    if not in_place and os.path.exists(target) and (output is None or os.path.samefile(target, model)):
        advice = "name another with --output" if output is None else "--in-place replaces the model"
        raise FileError(f"{shown(target)}: exists: {advice}")
    beside = os.path.realpath(os.path.dirname(target)) == os.path.realpath(os.path.dirname(model))
    if not beside and any(external(Model(Path(model), onnx.opened(model)[0]))):
        raise FileError(f"{shown(target)}: must lie beside the model, whose weights are in other files there")
    return target
