"""Options that choose how a model of a library is captured, and such models in place of files; those of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphflops.base.record import replace
from graphflops.capturing.name import AXES, CACHES, DTYPES, PHASES, QUANTIZED, Choices, Name, parsed
from graphflops.commands import options
from graphflops.errors import shown
from graphflops.training import IMPLEMENTATIONS, LOSSES, OPTIMIZERS, PRECISIONS, Training

if TYPE_CHECKING:
    from graphflops.graph import Graph


# Of a capture: the command gets those that are given as `chosen`.
choices = options.gathered(
    "chosen",
    lambda given: {name: value for name in Choices.__dataclass_fields__ if (value := given.pop(name))},
    options.whole("--batch", "Sequences or images. Default: 1.", metavar=None),
    options.whole("--length", "Tokens of a prompt. Default: 128.", metavar=None),
    options.whole("--context", "Tokens in the cache before a decode step. Default: 1024.", metavar=None),
    options.whole("--image-size", "Height and width of images.", metavar="PIXELS"),
    options.choice("--dynamic", AXES, "An axis that stays open; repeatable.", multiple=True),
    options.choice("--dtype", DTYPES, "Element type of the parameters. Default: the library's."),
    options.choice("--phase", PHASES, "Phase of a decoder. Default: prefill, forward in training."),
    options.choice("--cache", CACHES, "A cache that grows, or one written in place."),
    click.option("--weights", type=click.Path(), help="A .safetensors or .gguf, whose header says the dtype."),
    options.choice("--quantize", QUANTIZED, "Weights of products in float8."),
)  # fmt: skip


def _recording(given: dict[str, Any]) -> dict[str, Any] | None:
    chosen, is_step = {name: given.pop(name) for name in ("mesh", "rank", "open_axes")}, given.pop("step")
    if not is_step and any(chosen.values()):
        raise click.UsageError("--mesh, --rank and --open-axis are of a recorded step: give --step too")
    return {**chosen, "mesh": mesh_axes(chosen["mesh"])} if is_step else None


# Of a recorded step: the command gets its mesh and rank as `recording`; None without --step.
recording = options.gathered(
    "recording",
    _recording,
    options.flag("--step", "Record one eager step: forward, backward, optimizer."),
    options.valued("--mesh", "AXIS=N,...", "Devices of the step by axis, the outermost first: dp=8,tp=4."),
    options.whole("--rank", "Recorded rank of the mesh. Default: 0.", least=0, metavar=None, default=0),
    options.valued(
        "--open-axis", "AXIS", "Axis of the mesh whose size `analyze --mesh` may choose; repeatable.", "open_axes",
        multiple=True,
    ),
)  # fmt: skip


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
    name = parsed(text, Choices(dynamic=AXES))
    if name is None:
        return text, None
    graphs = _graphs(replace(name, choices=replace(name.choices, phase="both")), text)
    return graphs["decode"], graphs["prefill"]


def _graphs(name: Name, text: str, *, training: bool = False) -> dict[str, Graph]:
    from graphflops.capturing.run import captured

    graphs = {phase: program.graph() for phase, program in captured(name, training=training).items()}
    return {p: replace(graph, origin=replace(graph.origin, path=text)) for p, graph in graphs.items()}


def _optimizer(text: str) -> tuple[str, str | None]:
    name, _, how = text.partition(":")
    if name not in OPTIMIZERS or how not in ("", *IMPLEMENTATIONS):
        ways = ", :".join(IMPLEMENTATIONS)
        options.refused(text, f"not one of {', '.join(OPTIMIZERS)}, with :{ways} behind it or not")
    return name, how or None


def _lora(text: str) -> tuple[int, tuple[str, ...]]:
    rank, found, patterns = text.partition(":")
    if not (rank.isascii() and rank.isdecimal() and len(rank) < 10 and int(rank) > 0):
        options.refused(text, "not R or R:PATTERN, such as 8 or 16:q_proj,v_proj")
    return int(rank), tuple(patterns.split(",")) if found else ("**",)


def _step(given: dict[str, Any]) -> bool | Training:
    is_wanted = given.pop("training")
    fields: dict[str, Any] = {}
    if (optimizer := given.pop("optimizer")) is not None:
        fields["optimizer"], fields["implementation"] = optimizer
    if (lora := given.pop("lora")) is not None:
        fields["lora_rank"], fields["lora_modules"] = lora
    for name in ("precision", "freeze", "accumulate", "recompute", "grad_inputs", "loss"):
        value = given.pop(name)
        if value not in (None, ()):
            fields[name] = value
    return Training(**fields) if is_wanted or fields else False


# `--training` and the options of a step, each of which means `--training` too; the command gets one `training`.
training = options.gathered(
    "training",
    _step,
    options.flag("--training", "Price a training step too: gradients and optimizer."),
    click.option(
        "--optimizer", type=options.Written("NAME[:HOW]", _optimizer),
        help=f"{', '.join(OPTIMIZERS)}; with :foreach (default), :fused or :single. Default: adamw.",
    ),
    options.choice(
        "--precision", PRECISIONS,
        "Train in this precision; mixed: float32 parameters under autocast. Default: as the program is.",
    ),
    options.valued("--freeze", "PATTERN", "Modules or parameters that are not trained: embed_tokens.", multiple=True),
    click.option(
        "--lora", type=options.Written("R[:PATTERN]", _lora),
        help="Train only adapters of rank R beside linear layers: 8:q_proj,v_proj.",
    ),
    options.whole("--accumulate", "Micro-steps of one optimizer step."),
    options.valued("--recompute", "PATTERN", "Modules under activation checkpointing: layers.*", multiple=True),
    options.valued("--grad-input", "NAME", "An input that wants a gradient.", "grad_inputs", multiple=True),
    options.choice("--loss", LOSSES, "What is differentiated. Default: the sum of the results."),
)  # fmt: skip
