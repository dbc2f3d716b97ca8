"""`graphflops capture`: exports a module."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.writing import whole
from graphflops.commands import files, options, training_options
from graphflops.errors import ModelError, innermost, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.training import Training


@click.command(cls=options.Command)
@click.argument("factory", metavar="PKG.MOD:FACTORY")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    required=True,
    metavar="FILE",
    help="Ends in .pt2 or .json.",
)
@training_options.training
@click.option(
    "--joint", is_flag=True, help="Forward and backward in one program, as torch differentiates it."
)
@options.rule_files
def capture(
    factory: str, output: str, training: bool | Training, joint: bool, rule_files: tuple[str, ...]
) -> None:
    """Export the module that FACTORY returns: to a .pt2, or straight to a report (.json).

    FACTORY is your function, without parameters. It returns (module, args), (module, args, kwargs) or
    (module, args, kwargs, dynamic_shapes), or a dict of these names. The module may be on fake or meta
    tensors. Needs torch.

    \b
    graphflops capture mypackage.model:example --output model.pt2
    """
    kind = os.path.splitext(output)[1]
    if kind not in (".pt2", ".json"):
        raise click.UsageError("--output must end in .pt2 (the program) or .json (its report)")
    gc.enable()  # torch and the user's model make garbage enough
    program = _captured(factory, joint)
    if kind == ".pt2":
        import torch

        with whole(output) as path:
            try:
                torch.export.save(program, path)
            except OSError:
                raise
            except Exception as error:
                problem = f"{shown(factory)}: torch cannot save it: {_said(error)}"
                raise ModelError(f"{problem}; write its report instead: --output NAME.json") from error
        return
    from graphflops.analysis import analyze
    from graphflops.loading import import_rules
    from graphflops.render import render

    import_rules(rule_files)
    files.write(render(analyze(program, training=training), "json"), output)


def _captured(factory: str, joint: bool) -> Any:
    """The program that torch exports of what the user's factory returns."""
    import importlib

    place, _, name = factory.partition(":")
    if not place or not name:
        raise click.UsageError(f"{shown(factory)} is not PKG.MOD:FACTORY, such as mypackage.model:example")
    try:
        from graphflops.exporters import live
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModelError("capture needs torch: pip install 'graphflops[torch]'") from None
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
        with _without_logs():
            return live.capture(**parts, joint=joint)
    except Exception as error:
        raise ModelError(f"{shown(factory)}: torch cannot export it: {_said(error)}") from error


@contextmanager
def _without_logs() -> Iterator[None]:
    """Switches logging of errors off: torch logs what it also raises, with the traceback."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _said(error: BaseException) -> str:
    """The first line of the message of an exception of someone else's code."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
