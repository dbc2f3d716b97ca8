"""The options of a training step."""

from __future__ import annotations

import pytest

from graphflops import Training, analyze
from graphflops.errors import OptionError
from graphflops.training import matches, training_of

MODEL = "samples/gqa_transformer.pt2"


def test_true_is_a_default_step():
    assert training_of(True) == Training("adamw", "foreach")


def test_one_pattern_is_as_good_as_a_tuple():
    assert Training(freeze="embedding", recompute=["blocks.*"]) == Training(
        freeze=("embedding",), recompute=("blocks.*",)
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"optimizer": "lion"}, "no optimizer is called lion: sgd, momentum, adam"),
        ({"implementation": "for-loop"}, "no implementation is called for-loop"),
        ({"precision": "fp8"}, "no precision is called fp8"),
        ({"loss": "hinge"}, "no loss is called hinge"),
        ({"accumulate": 0}, "accumulate is an integer from 1 on, not 0"),
        ({"lora_rank": -1}, "lora_rank is an integer from 0 on, not -1"),
        ({"freeze": ("",)}, "freeze holds names"),
        ({"recompute": (1,)}, "recompute holds names"),
    ],
)
def test_wrong_options(options, problem):
    with pytest.raises(OptionError, match=problem):
        Training(**options)


def test_training_is_true_or_a_training():
    with pytest.raises(OptionError, match=r"training is True, False or a graphflops\.Training"):
        analyze(MODEL, training="adamw")


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("q_proj", "model.layers.0.self_attn.q_proj", True),
        ("layers.*", "model.layers.0", True),
        ("layers.*", "model.layers.0.mlp", False),
        ("model.layers.*", "model.layers.11", True),
        ("model.layers", "layers", False),
        ("**", "a", True),
    ],
)
def test_a_pattern_matches_a_path_or_its_end(pattern, path, is_match):
    assert matches((pattern,), path) is is_match
