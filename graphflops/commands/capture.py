"""`graphflops capture`: exports a module."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.writing import whole
from graphflops.capturing.name import Choices, parsed
from graphflops.commands import capture_options, files, options, training_options
from graphflops.errors import ModelError, innermost, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.capturing.run import Captured
    from graphflops.training import Training


@click.command(cls=options.Command)
@click.argument("model", metavar="MODEL")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    required=True,
    metavar="FILE",
    help="Ends in .pt2 or .json.",
)
@capture_options.choices
@training_options.training
@click.option(
    "--joint", is_flag=True, help="Forward and backward in one program, as torch differentiates it."
)
@options.rule_files
def capture(
    model: str,
    output: str,
    chosen: dict[str, Any],
    training: bool | Training,
    joint: bool,
    rule_files: tuple[str, ...],
) -> None:
    """Export MODEL: to a .pt2, or straight to a report (.json). It runs code: that of the model's package.

    MODEL is hf:CONFIG.json or hf:CLASS(SIZE=N, ...) of transformers, timm:NAME, torchvision:NAME, built without weights
    and without network; or PKG.MOD:FACTORY. FACTORY is your function, without parameters. It returns (module, args),
    (module, args, kwargs) or (module, args, kwargs, dynamic_shapes), or a dict of these names. The module may be on fake
    or meta tensors. Needs torch, and for models by name 'graphflops[capture]'.

    \b
    graphflops capture hf:config.json --phase both --context 4096 --output lm.pt2
    graphflops capture "hf:LlamaConfig(num_hidden_layers=2)" --dynamic batch --output lm.pt2
    graphflops capture timm:resnet50 --batch 8 --output resnet.pt2
    graphflops capture mypackage.model:example --output model.pt2
    """
    kind = os.path.splitext(output)[1]
    if kind not in (".pt2", ".json"):
        raise click.UsageError("--output must end in .pt2 (the program) or .json (its report)")
    gc.enable()  # torch and the user's model make garbage enough
    programs = _programs(model, Choices(**chosen), joint=joint, training=bool(training))
    if kind == ".pt2":
        from graphflops.capturing.saving import save

        with whole(output) as path:
            save(programs, path)
        return
    _write_report(programs, output, training, rule_files)


def _write_report(
    programs: Mapping[str, Captured], output: str, training: bool | Training, rule_files: tuple[str, ...]
) -> None:
    if len(programs) > 1:
        raise click.UsageError("a report is of one program: choose one --phase, or write a .pt2")
    from graphflops.analysis import analyze
    from graphflops.loading import import_rules
    from graphflops.render import render

    import_rules(rule_files)
    (captured,) = programs.values()
    files.write(render(analyze(captured.graph(), training=training), "json"), output)


def _programs(model: str, choices: Choices, *, joint: bool, training: bool) -> Mapping[str, Captured]:
    """The programs of a library's model, or of what the user's factory returns, by name."""
    name = parsed(model, choices)
    if name is None:
        if choices != Choices():
            raise click.UsageError(f"{shown(model)}: sizes are of models by name, such as timm:resnet50")
        return {"model": _captured(model, joint)}
    from graphflops.capturing.run import captured

    return captured(name, joint=joint, training=training)


def _captured(factory: str, joint: bool) -> Captured:
    """The program that torch exports of what the user's factory returns, with the record of an eager run."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise ModelError("capture needs torch: pip install 'graphflops[torch]'")
    place, _, name = factory.partition(":")
    if not place or not name:
        raise click.UsageError(f"{shown(factory)} is not PKG.MOD:FACTORY, such as mypackage.model:example")
    from graphflops.capturing.eager import recorded
    from graphflops.capturing.run import Captured, silence
    from graphflops.exporters import live

    sys.path.insert(0, os.getcwd())
    try:
        function = importlib.import_module(place)
        for part in name.split("."):
            function = getattr(function, part)
        given = function()  # type: ignore[operator]
    except Exception as error:
        raise ModelError(f"{shown(factory)}: {_said(error)} ({innermost(error.__traceback__)})") from error
    names = ("module", "args", "kwargs", "dynamic_shapes")
    parts = (
        given
        if isinstance(given, dict)
        else dict(zip(names, given, strict=False))
        if isinstance(given, tuple)
        else {}
    )
    if not {"module", "args"} <= parts.keys() or not parts.keys() <= {*names}:
        raise ModelError(
            f"{shown(factory)} returned a {type(given).__name__}, not (module, args, kwargs, dynamic_shapes)"
        )
    try:
        with silence():
            program = live.capture(**parts, joint=joint)
            inputs = (tuple(parts["args"]), dict(parts.get("kwargs") or {}))
            return Captured(program, None if joint else recorded(parts["module"], inputs, program))
    except Exception as error:
        raise ModelError(f"{shown(factory)}: torch cannot export it: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """The first line of the message of an exception of someone else's code."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
