"""The options of a training step."""

from __future__ import annotations

import pytest

from graphflops import Training, analyze
from graphflops.errors import ModelError, OptionError
from graphflops.training import matched, training_of

MODEL = "samples/gqa_transformer.pt2"
LAYERS = [f"model.layers.{i}{part}" for i in (0, 1) for part in ("", ".q_proj", ".norm")]


def test_true_is_a_default_step():
    assert training_of(True) == Training("adamw", "foreach")


def test_one_pattern_is_as_good_as_a_tuple():
    assert Training(freeze="embedding", recompute=["blocks.*"]) == Training(
        freeze=("embedding",), recompute=("blocks.*",)
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"optimizer": "lion"}, "optimizer: no 'lion'; there are sgd, momentum, adam"),
        ({"implementation": "for-loop"}, "implementation: no 'for-loop'"),
        ({"precision": "fp8"}, "precision: no 'fp8'"),
        ({"loss": "hinge"}, "loss: no 'hinge'"),
        ({"accumulate": 0}, "accumulate is an integer from 1 on, not 0"),
        ({"lora_rank": -1}, "lora_rank is an integer from 0 on, not -1"),
        ({"freeze": ("",)}, "freeze holds names"),
        ({"recompute": (1,)}, "recompute holds names"),
        ({"recompute": 1}, "recompute holds names"),
        (
            {"optimizer": "adafactor", "implementation": "fused"},
            "implementation: no 'fused'; there are foreach, single",
        ),
    ],
)
def test_wrong_options(options, problem):
    with pytest.raises(OptionError, match=problem):
        Training(**options)


def test_training_is_true_or_a_training():
    with pytest.raises(OptionError, match=r"training is True, False or a graphflops\.Training"):
        analyze(MODEL, training="adamw")


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("q_proj", {"model.layers.0.q_proj", "model.layers.1.q_proj"}),
        ("layers.*", {"model.layers.0", "model.layers.1"}),
        ("model.layers.1", {"model.layers.1"}),
        ("layers.1.q*", {"model.layers.1.q_proj"}),
        ("norm", {"norm"}),  # as a whole path, so not the end of another
    ],
)
def test_a_pattern_matches_paths_or_their_ends(pattern, paths):
    assert matched("--freeze", pattern, {"model", "norm", *LAYERS}, (), "") == paths


def test_a_pattern_without_a_match_is_refused():
    with pytest.raises(ModelError, match="--freeze v_proj matches nothing; the model has norm"):
        matched("--freeze", "v_proj", {"norm", *LAYERS}, ["norm"], "no layers")
