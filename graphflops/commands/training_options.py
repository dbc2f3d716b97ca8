"""The options of a training step, which several commands take."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from graphflops.errors import shown
from graphflops.training import IMPLEMENTATIONS, LOSSES, OPTIMIZERS, PRECISIONS, Training

Function = TypeVar("Function", bound="Callable[..., Any]")


class OptimizerOption(click.ParamType):  # type: ignore[type-arg]
    """An optimizer and how torch runs it: `adamw:fused` becomes `("adamw", "fused")`, `adamw` `("adamw", None)`."""

    name = "NAME[:HOW]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | None]:
        """Parse one."""
        name, _, how = str(value).partition(":")
        if name not in OPTIMIZERS or how not in ("", *IMPLEMENTATIONS):
            expected = f"one of {', '.join(OPTIMIZERS)}, with :{', :'.join(IMPLEMENTATIONS)} behind it or not"
            self.fail(f"{shown(value)!r} is not {expected}", param, ctx)
        return name, how or None


class LoraOption(click.ParamType):  # type: ignore[type-arg]
    """The rank of adapters and the layers that get one: `8:q_proj` becomes `(8, ("q_proj",))`."""

    name = "R[:PATTERN]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, tuple[str, ...]]:
        """Parse one."""
        rank, found, patterns = str(value).partition(":")
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 10 and int(rank) > 0):
            self.fail(f"{shown(value)!r} is not R or R:PATTERN, such as 8 or 16:q_proj,v_proj", param, ctx)
        return int(rank), tuple(patterns.split(",")) if found else ("**",)


_OPTIONS = (
    click.option("--training", is_flag=True, help="Price a training step too: gradients and optimizer."),
    click.option(
        "--optimizer",
        type=OptimizerOption(),
        help=f"{', '.join(OPTIMIZERS)}; with :foreach (default), :fused or :single. Default: adamw.",
    ),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Train in this precision; mixed: float32 parameters under autocast. Default: as the program is.",
    ),
    click.option(
        "--freeze", multiple=True, metavar="PATTERN", help="Modules or parameters that are not trained: embed_tokens."
    ),
    click.option("--lora", type=LoraOption(), help="Train adapters of rank R beside linear layers alone: 8:q_proj,v_proj."),
    click.option("--accumulate", type=click.IntRange(min=1), metavar="N", help="Micro-steps of one optimizer step."),
    click.option(
        "--recompute", multiple=True, metavar="PATTERN", help="Modules under activation checkpointing: layers.*"
    ),
    click.option("--grad-input", "grad_inputs", multiple=True, metavar="NAME", help="An input that wants a gradient."),
    click.option("--loss", type=click.Choice(LOSSES), help="What is differentiated. Default: the sum of the results."),
)  # fmt: skip


def training(command: Function) -> Function:
    """`--training` and the options of a step, each of which means `--training` too; the command gets one `training`."""

    @functools.wraps(command)
    def gathered(*args: Any, **given: Any) -> Any:
        return command(*args, training=_step(given), **given)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]


def _step(given: dict[str, Any]) -> bool | Training:
    """Takes the options of a step out of what was given; False where no step is wanted."""
    is_wanted = given.pop("training")
    options = dict(_fields(given))
    return Training(**options) if is_wanted or options else False


def _fields(given: dict[str, Any]) -> Mapping[str, Any]:
    fields: dict[str, Any] = {}
    if (optimizer := given.pop("optimizer")) is not None:
        fields["optimizer"], fields["implementation"] = optimizer
    if (lora := given.pop("lora")) is not None:
        fields["lora_rank"], fields["lora_modules"] = lora
    for name in ("precision", "freeze", "accumulate", "recompute", "grad_inputs", "loss"):
        value = given.pop(name)
        if value not in (None, ()):
            fields[name] = value
    return fields
