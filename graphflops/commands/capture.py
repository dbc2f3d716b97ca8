"""What writes models: `graphflops capture` exports a module; `demo` copies the project's samples, to try the commands on."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.files import whole
from graphflops.capturing.name import Choices, Name, parsed
from graphflops.commands import files, model_options, options
from graphflops.errors import FileError, ModelError, raised, said_by, shown

if TYPE_CHECKING:
    from graphflops.capturing.run import Captured
    from graphflops.graph import Graph
    from graphflops.training import Training


_ALLOCATED = 200_000  # objects between two collections of young ones


@click.command()
@click.argument("model", metavar="MODEL")
@options.to_file("FILE", "File that ends in .pt2 or .json, for a step in .recorded or .json.", required=True)
@model_options.recording
@model_options.choices
@model_options.training
@options.flag("--joint", "Forward and backward in one program, as torch differentiates it.")
@options.rules_first
def capture(
    model: str, output: str, recording: dict[str, Any] | None, chosen: dict[str, Any],
    training: bool | Training, joint: bool,
) -> None:  # fmt: skip
    """Export MODEL to a .pt2, or directly to a report (.json). This runs the code of the model's package.

    MODEL is hf:CONFIG.json or hf:CLASS(SIZE=N, ...) of transformers, timm:NAME, torchvision:NAME, built without weights
    and without network; or PKG.MOD:FACTORY. FACTORY is your function, without parameters. It returns (module, args),
    (module, args, kwargs) or (module, args, kwargs, dynamic_shapes), or a dict of these names. The module may be on fake
    or meta tensors. Needs torch, and for models by name 'graphflops[capture]'.

    With --step FACTORY returns (module, inputs, optimizer, loss), and one eager step is recorded as it runs on one device,
    or on one rank of a mesh, which FACTORY gets as `mesh` (docs/recorded.md).

    \b
    graphflops capture hf:config.json --phase both --context 4096 --output lm.pt2
    graphflops capture "hf:LlamaConfig(num_hidden_layers=2)" --dynamic batch --output lm.pt2
    graphflops capture mypackage.model:example --output model.pt2
    graphflops capture mypackage.train:example --step --mesh dp=8,tp=4 --output step.recorded
    """
    if recording is not None:
        _record(model, output, recording, chosen or training or joint)
        return
    kind = os.path.splitext(output)[1]
    if kind not in (".pt2", ".json"):
        raise click.UsageError("--output must end in .pt2 (the program) or .json (its report)")
    _collect_garbage()
    choices = Choices(**chosen)
    name = parsed(model, choices)  # None for the user's factory, which has no choices
    if name is None and choices != Choices():
        raise click.UsageError(f"{shown(model)}: sizes are of models by name, such as timm:resnet50")
    _export(model, name, output, training, joint)


def _export(model: str, name: Name | None, output: str, training: bool | Training, joint: bool) -> None:
    """The programs of a library's model of that name, or of the user's factory, into a .pt2 or a report."""
    if output.endswith(".pt2"):
        with whole(output) as path:
            from graphflops.capturing.run import capture_to, save

            if name is None:
                save({"model": _captured(model, joint)}, path)
            else:
                capture_to(path, name, joint=joint, training=bool(training))
        return
    if name is None:
        programs: Mapping[str, Captured] = {"model": _captured(model, joint)}
    else:
        from graphflops.capturing.run import captured

        programs = captured(name, joint=joint, training=bool(training))
    if len(programs) > 1:
        raise click.UsageError("a report is of one program: choose one --phase, or write a .pt2")
    (program,) = programs.values()
    _report(program.graph(), output, training)


def _collect_garbage() -> None:
    """Of which torch and the user's model make enough; but seldom, for most objects are of programs and live to the end."""
    gc.set_threshold(_ALLOCATED)
    gc.enable()


def _record(factory: str, output: str, recording: dict[str, Any], others: object) -> None:
    kind = os.path.splitext(output)[1]
    if kind not in (".recorded", ".json"):
        raise click.UsageError("--output of a step must end in .recorded (the step) or .json (its report)")
    if others:
        what = "a step has its own sizes, gradients and optimizer"
        raise click.UsageError(f"{what}: give --step, --mesh and --rank alone")
    _collect_garbage()
    function = _function(factory)
    from graphflops.capturing.run import silence
    from graphflops.capturing.step import record

    with silence():
        graph = record(function, file=None if kind == ".json" else output, **recording)
    if kind == ".json":
        _report(graph, output, False)


def _report(graph: Graph, output: str, training: bool | Training) -> None:
    from graphflops.analysis import analyze
    from graphflops.render import render

    files.write(render(analyze(graph, training=training), "json"), output)


_FAILURES = (Exception, SystemExit)  # of code of the user's, which may end the process with any exit code


def _function(factory: str) -> Callable[..., Any]:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise ModelError("capture needs torch: pip install 'graphflops[torch]'")
    place, _, name = factory.partition(":")
    if not place or not name:
        raise click.UsageError(f"{shown(factory)} is not PKG.MOD:FACTORY, such as mypackage.model:example")
    sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(place)
        for part in name.split("."):
            function = getattr(function, part)
    except _FAILURES as error:
        raise ModelError(f"{shown(factory)}: {raised(error)}") from error
    if not callable(function):
        raise ModelError(f"{shown(factory)} is no function")
    found: Callable[..., Any] = function
    return found


def _captured(factory: str, joint: bool) -> Captured:
    """The program that torch exports of what the user's factory returns, with the record of an eager run."""
    function = _function(factory)
    from graphflops.capturing.eager import recorded
    from graphflops.capturing.run import Captured, silence
    from graphflops.exporters import live

    try:
        given = function()
    except _FAILURES as error:
        raise ModelError(f"{shown(factory)}: {raised(error)}") from error
    names = ("module", "args", "kwargs", "dynamic_shapes")
    parts = dict(zip(names, given, strict=False)) if isinstance(given, tuple) else {}
    parts = given if isinstance(given, dict) else parts
    if not {"module", "args"} <= parts.keys() or not parts.keys() <= {*names}:
        what = f"{shown(factory)} returned a {type(given).__name__}"
        raise ModelError(f"{what}, not (module, args, kwargs, dynamic_shapes)")
    try:
        with silence():
            program = live.capture(**parts, joint=joint)
            inputs = (tuple(parts["args"]), dict(parts.get("kwargs") or {}))
            return Captured(program, None if joint else recorded(parts["module"], inputs, program))
    except _FAILURES as error:
        raise ModelError(f"{shown(factory)}: torch cannot export it: {said_by(error)}") from error


_SAMPLES = {
    "decoder.pt2": "gqa_transformer.pt2",
    "changed.pt2": "all_heads.pt2",
    "decoder.onnx": "gqa_transformer.onnx",
}
_PAGE = "decoder.html"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
def demo(folder: str) -> None:
    """Write a decoder into FOLDER, as .pt2 and as .onnx, with a changed version and its page, and print what to try.

    FOLDER is made if it does not exist. No existing file is overwritten.

    \b
    graphflops demo first
    graphflops analyze first/decoder.pt2
    """
    from graphflops.analysis import analyze

    package, place = Path(__file__).parents[1], Path(folder)
    inside = package / "samples"  # of a checkout they lie at its top
    samples = inside if inside.is_dir() else package.parent / "samples"
    for name in (*_SAMPLES, _PAGE):
        if (place / name).exists():
            raise FileError(f"{shown(str(place / name))}: this file exists already: name another folder")
    place.mkdir(parents=True, exist_ok=True)
    for name, sample in _SAMPLES.items():
        with whole(str(place / name)) as path:
            shutil.copyfile(samples / sample, path)
    analyze(str(place / "decoder.pt2")).save(str(place / _PAGE))
    pt2, changed, onnx = (shlex.quote(str(place / name)) for name in _SAMPLES)
    tries = {
        f"graphflops analyze {pt2}": "what the model costs, by module",
        f"graphflops analyze {pt2} --sweep 'ids[1]=128,512,2048'": "at other lengths",
        f"graphflops diff {pt2} {changed}": "what a change costs",
        f"graphflops diff {pt2} {onnx}": "whether an export keeps the work",
        f"graphflops audit {onnx}": "what is wrong or wasteful in it",
    }
    click.echo(f"wrote {', '.join((*_SAMPLES, _PAGE))} into {shown(str(place))}, without weights\n\nTry:")
    for command, what in tries.items():
        click.echo(f"  {command}\n      {what}")
    click.echo(f"\nand open {shown(str(place / _PAGE))} in a browser.")
