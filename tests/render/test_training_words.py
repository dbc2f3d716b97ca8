"""The options of a training step in words."""

from __future__ import annotations

import pytest

from graphflops.render.memory import training_words
from graphflops.training import Training


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "AdamW (foreach)"),
        ({"optimizer": "none"}, "no optimizer"),
        ({"optimizer": "momentum", "implementation": "single"}, "SGD with momentum (single)"),
        ({"optimizer": "muon", "precision": "bf16"}, "Muon (foreach), bf16"),
        ({"accumulate": 4, "lora_rank": 8}, "AdamW (foreach), 4 micro-steps, adapters of rank 8"),
        ({"lora_rank": 8, "lora_modules": ("q", "v")}, "AdamW (foreach), adapters of rank 8 in q, v"),
        ({"freeze": "embed", "recompute": "layers.*"}, "AdamW (foreach), freezes embed, recomputes layers.*"),
        ({"grad_inputs": "x", "loss": "mean"}, "AdamW (foreach), gradients of x, loss mean"),
        ({"freeze": "\x1b[31m"}, r"AdamW (foreach), freezes \x1b[31m"),
    ],
)
def test_words(options, words):
    assert training_words(Training(**options)) == words
