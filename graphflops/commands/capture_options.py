"""Options that choose how a model of a library is captured, and such models in place of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphflops.capturing.name import AXES, CACHES, DTYPES, PHASES, QUANTIZED, Choices, parsed
from graphflops.commands import options
from graphflops.errors import shown

if TYPE_CHECKING:
    from graphflops.capturing.name import Name
    from graphflops.graph import Graph


def _choices(given: dict[str, Any]) -> dict[str, Any]:
    taken = {name: given.pop(name) for name in Choices.__dataclass_fields__}
    return {name: value for name, value in taken.items() if value}


def _size(name: str, text: str, metavar: str | None = None) -> options.Option[Any]:
    return options.whole(name, text, metavar=metavar)


# Of a capture: the command gets those that are given as `chosen`.
choices = options.gathered(
    "chosen",
    _choices,
    _size("--batch", "Sequences or images. Default: 1."),
    _size("--length", "Tokens of a prompt. Default: 128."),
    _size("--context", "Tokens in the cache before a decode step. Default: 1024."),
    _size("--image-size", "Height and width of images.", "PIXELS"),
    options.choice("--dynamic", AXES, "An axis that stays open; repeatable.", multiple=True),
    options.choice("--dtype", DTYPES, "Of the parameters. Default: the library's."),
    options.choice("--phase", PHASES, "Of a decoder. Default: prefill, forward in training."),
    options.choice("--cache", CACHES, "A cache that grows, or one written in place."),
    click.option(
        "--weights", type=click.Path(), help="A .safetensors or .gguf, whose header says the dtype."
    ),
    options.choice("--quantize", QUANTIZED, "Weights of products in float8."),
)


def _recording(given: dict[str, Any]) -> dict[str, Any] | None:
    names = ("mesh", "rank", "open_axes")
    chosen, is_step = {name: given.pop(name) for name in names}, given.pop("step")
    if not is_step and any(chosen.values()):
        raise click.UsageError("--mesh, --rank and --open-axis are of a recorded step: give --step too")
    return {**chosen, "mesh": mesh_axes(chosen["mesh"])} if is_step else None


# Of a recorded step: the command gets its mesh and rank as `recording`; None without --step.
recording = options.gathered(
    "recording",
    _recording,
    options.flag("--step", "Record one eager step: forward, backward, optimizer."),
    options.valued("--mesh", "AXIS=N,...", "Devices of the step by axis, the outermost first: dp=8,tp=4."),
    options.whole("--rank", "Of the mesh, which is recorded. Default: 0.", least=0, metavar=None, default=0),
    options.valued(
        "--open-axis",
        "AXIS",
        "Of the mesh, whose size `analyze --mesh` may choose; repeatable.",
        "open_axes",
        multiple=True,
    ),
)


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
