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
    now = iter((10.0, 10.5, 11.5))  # when training starts, and at each log
    monkeypatch.setattr(module, "perf_counter", lambda: next(now))
    report = analyze(SAMPLE, training=True)
    callback = graphflops.mfu_callback(report, "h200", devices=2)
    assert isinstance(callback, library.TrainerCallback)
    state = SimpleNamespace()
    for _ in range(5):
        callback.on_step_end(None, state, None)
    logs: dict[str, float] = {"loss": 1.0}
    callback.on_log(None, state, None, logs=logs)
    assert logs == {"loss": 1.0, "mfu": mfu(report, 0.1, "h200", devices=2)}
    callback.on_step_end(None, state, None)
    callback.on_log(None, state, None, logs=logs)
    assert logs["mfu"] == mfu(report, 1.0, "h200", devices=2)


def test_it_needs_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", None)
    with pytest.raises(OptionError, match="pip install transformers"):
        graphflops.mfu_callback(analyze(SAMPLE), "h200")
