"""The callback of a Trainer: utilisation of the steps since the last log."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import graphflops
from graphflops import analyze, mfu
from graphflops.errors import OptionError
from graphflops.runtime import mfu_callback as module

SAMPLE = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"


def test_a_log_has_the_utilisation_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("transformers.trainer_callback")
    library.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", library)
    now = [10.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    report = analyze(SAMPLE, training=True)
    callback = graphflops.mfu_callback(report, "h200", devices=2)
    assert isinstance(callback, library.TrainerCallback)
    state = SimpleNamespace(log_history=[{"loss": 1.0, "step": 5}])

    def told(event: str, seconds: float, **given: object) -> None:
        now[0] += seconds
        getattr(callback, event)(None, state, None, **given)

    told("on_train_begin", 7.0)  # reading data and compiling
    for _ in range(5):
        told("on_step_end", 0.1)
    logs: dict[str, float] = {"loss": 1.0}
    told("on_log", 0.0, logs=logs)
    assert logs == {"loss": 1.0, "mfu": pytest.approx(mfu(report, 0.1, "h200", devices=2))}
    assert state.log_history[-1] == {**logs, "step": 5}
    told("on_step_end", 0.2)
    evaluated = {"eval_loss": 2.0}
    told("on_log", 3.0, logs=evaluated)
    assert evaluated == {"eval_loss": 2.0}
    told("on_evaluate", 1.0)
    told("on_save", 2.0)
    told("on_step_end", 0.4)
    told("on_log", 0.0, logs=logs)
    assert logs["mfu"] == pytest.approx(mfu(report, 0.3, "h200", devices=2))


def test_it_needs_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", None)
    with pytest.raises(OptionError, match="pip install transformers"):
        graphflops.mfu_callback(analyze(SAMPLE), "h200")
