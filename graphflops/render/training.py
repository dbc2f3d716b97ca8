"""The options of a training step in words."""

from __future__ import annotations

from collections.abc import Iterator

from graphflops.render.text import listed, safe
from graphflops.training import Training

_OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD with momentum", "adamw": "AdamW", "none": "no optimizer"}


def optimizer(training: Training) -> str:
    """`AdamW`."""
    return _OPTIMIZERS.get(training.optimizer, training.optimizer.capitalize())


def described(training: Training) -> str:
    """`AdamW (fused), bf16-mixed, 4 micro-steps, recomputes layers.*`: the optimizer and what is not the default."""
    return ", ".join(_parts(training))


def _parts(training: Training) -> Iterator[str]:
    how = f" ({training.implementation})" if training.optimizer != "none" else ""
    yield optimizer(training) + how
    if training.precision:
        yield training.precision
    if training.accumulate > 1:
        yield f"{training.accumulate:,} micro-steps"
    if training.lora_rank:
        is_default = training.lora_modules == Training().lora_modules
        modules = "" if is_default else f" in {_names(training.lora_modules)}"
        yield f"adapters of rank {training.lora_rank:,}{modules}"
    for verb, names in (
        ("freezes", training.freeze),
        ("recomputes", training.recompute),
        ("gradients of", training.grad_inputs),
    ):
        if names:
            yield f"{verb} {_names(names)}"
    if training.loss != Training().loss:
        yield f"loss {training.loss}"


def _names(names: tuple[str, ...]) -> str:
    return listed(safe(name, 40) for name in names)
