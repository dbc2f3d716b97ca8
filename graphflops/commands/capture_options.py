"""Options that choose how a model of a library is captured, and such models in place of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphflops.capturing.name import AXES, CACHES, DTYPES, PHASES, QUANTIZED, Choices, parsed
from graphflops.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.capturing.name import Name
    from graphflops.graph import Graph

_SIZE = click.IntRange(1)
_OPTIONS = (
    click.option("--batch", type=_SIZE, help="Sequences or images. Default: 1."),
    click.option("--length", type=_SIZE, help="Tokens of a prompt. Default: 128."),
    click.option("--context", type=_SIZE, help="Tokens in the cache before a decode step. Default: 1024."),
    click.option("--image-size", type=_SIZE, metavar="PIXELS", help="Height and width of images."),
    click.option(
        "--dynamic", type=click.Choice(AXES), multiple=True, help="An axis that stays open; repeatable."
    ),
    click.option("--dtype", type=click.Choice(DTYPES), help="Of the parameters. Default: the library's."),
    click.option(
        "--phase", type=click.Choice(PHASES), help="Of a decoder. Default: prefill, forward in training."
    ),
    click.option("--cache", type=click.Choice(CACHES), help="A cache that grows, or one written in place."),
    click.option(
        "--weights", type=click.Path(), help="A .safetensors or .gguf, whose header says the dtype."
    ),
    click.option("--quantize", type=click.Choice(QUANTIZED), help="Weights of products in float8."),
)


def choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a capture to a command, which gets those given as `chosen`."""
    import functools

    names = list(Choices.__dataclass_fields__)

    @functools.wraps(command)
    def with_choices(*args: Any, **given: Any) -> Any:
        taken = {name: given.pop(name) for name in names}
        return command(*args, chosen={name: value for name, value in taken.items() if value}, **given)

    for option in reversed(_OPTIONS):
        with_choices = option(with_choices)
    return with_choices


def recording(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a recorded step to a command, which gets its mesh and rank as `recording`; None without --step."""
    import functools

    @functools.wraps(command)
    def with_recording(
        *args: Any, step: bool, mesh: str | None, rank: int, open_axes: tuple[str, ...], **given: Any
    ) -> Any:
        if not step and (mesh or rank or open_axes):
            raise click.UsageError("--mesh, --rank and --open-axis are of a recorded step: give --step too")
        chosen = {"mesh": mesh_axes(mesh), "rank": rank, "open_axes": open_axes}
        return command(*args, recording=chosen if step else None, **given)

    for option in (
        click.option(
            "--open-axis",
            "open_axes",
            multiple=True,
            metavar="AXIS",
            help="Of the mesh, whose size `analyze --mesh` may choose; repeatable.",
        ),
        click.option(
            "--rank", type=click.IntRange(0), default=0, help="Of the mesh, which is recorded. Default: 0."
        ),
        click.option(
            "--mesh",
            metavar="AXIS=N,...",
            help="Devices of the step by axis, the outermost first: dp=8,tp=4.",
        ),
        click.option("--step", is_flag=True, help="Record one eager step: forward, backward, optimizer."),
    ):
        with_recording = option(with_recording)
    return with_recording


def mesh_axes(text: str | None) -> dict[str, int]:
    """The devices of a mesh by axis."""
    axes: dict[str, int] = {}
    for part in (text or "").split(",") if text is not None else ():
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1 or name in axes:
            raise click.UsageError(f"--mesh {shown(text or '')}: give the devices by axis, such as dp=8,tp=4")
        axes[name] = int(size)
    return axes


def model(text: str, *, training: bool = False, mesh: str | None = None) -> str | Graph:
    """What a command analyzes: the program of a library's model that the text names, else the text, a file's path.

    mesh: sizes of axes on which the recorded step of a file is taken. A library's code builds its model, so only commands
    that the user gives such a name may call this.
    """
    name = parsed(text)
    if name is None:
        from graphflops.exporters import load

        return load(text, None, mesh_axes(mesh)) if mesh else text
    if mesh:
        raise click.UsageError("--mesh is of the file of a recorded step")
    if name.choices.phase == "both":
        raise click.UsageError(f"{name}: choose one phase, as in {text.partition('@')[0]}@phase=decode")
    return _graphs(name, text, training=training)["model"]


def decoder(text: str) -> tuple[str | Graph, Graph | None]:
    """The same for a decoder: its step, and its prefill where the text names a library's model; all axes open."""
    from dataclasses import replace

    name = parsed(text, Choices(dynamic=AXES))
    if name is None:
        return text, None
    graphs = _graphs(replace(name, choices=replace(name.choices, phase="both")), text)
    return graphs["decode"], graphs["prefill"]


def _graphs(name: Name, text: str, *, training: bool = False) -> dict[str, Graph]:
    """The programs of a library's model, by phase."""
    from dataclasses import replace

    from graphflops.capturing.run import captured

    programs = captured(name, training=training).items()
    graphs = {phase: program.graph() for phase, program in programs}
    return {p: replace(graph, origin=replace(graph.origin, path=text)) for p, graph in graphs.items()}
