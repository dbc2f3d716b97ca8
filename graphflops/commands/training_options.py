"""The options of a training step, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from graphflops.commands import options
from graphflops.training import IMPLEMENTATIONS, LOSSES, OPTIMIZERS, PRECISIONS, Training


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
    """Takes the options of a step out of what was given; False where no step is wanted."""
    is_wanted = given.pop("training")
    fields = dict(_fields(given))
    return Training(**fields) if is_wanted or fields else False


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


# `--training` and the options of a step, each of which means `--training` too; the command gets one `training`.
training = options.gathered(
    "training",
    _step,
    options.flag("--training", "Price a training step too: gradients and optimizer."),
    click.option(
        "--optimizer",
        type=options.Written("NAME[:HOW]", _optimizer),
        help=f"{', '.join(OPTIMIZERS)}; with :foreach (default), :fused or :single. Default: adamw.",
    ),
    options.choice(
        "--precision",
        PRECISIONS,
        "Train in this precision; mixed: float32 parameters under autocast. Default: as the program is.",
    ),
    options.valued(
        "--freeze", "PATTERN", "Modules or parameters that are not trained: embed_tokens.", multiple=True
    ),
    click.option(
        "--lora",
        type=options.Written("R[:PATTERN]", _lora),
        help="Train adapters of rank R beside linear layers alone: 8:q_proj,v_proj.",
    ),
    options.whole("--accumulate", "Micro-steps of one optimizer step."),
    options.valued(
        "--recompute", "PATTERN", "Modules under activation checkpointing: layers.*", multiple=True
    ),
    options.valued("--grad-input", "NAME", "An input that wants a gradient.", "grad_inputs", multiple=True),
    options.choice("--loss", LOSSES, "What is differentiated. Default: the sum of the results."),
)
