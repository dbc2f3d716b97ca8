"""A callback for the Trainer of transformers that logs model FLOPs utilisation."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

from graphflops.derived.items import mfu
from graphflops.errors import OptionError
from graphflops.report import Report


def mfu_callback(report: Report, device: str, *, devices: int = 1) -> Any:
    """A `transformers.TrainerCallback` that adds `mfu` to what is logged: of the steps since the last log.

    report: of the training step at the batch of one device, as `analyze(model, args, training=True)` gives it. devices: how
    many share that batch. Raises OptionError where transformers is not installed.
    """
    try:
        callbacks = import_module("transformers.trainer_callback")
    except ImportError:
        raise OptionError("mfu_callback needs transformers: pip install transformers") from None
    steps = _Steps(report, device, devices)
    events = {
        "on_train_begin": lambda self, args, state, control, **_: steps.begin(),
        "on_step_end": lambda self, args, state, control, **_: steps.end(),
        "on_log": lambda self, args, state, control, logs=None, **_: steps.log(logs, state),
        "on_evaluate": lambda self, args, state, control, **_: steps.go_on(),
        "on_save": lambda self, args, state, control, **_: steps.go_on(),
    }
    return type("MfuCallback", (callbacks.TrainerCallback,), events)()


class _Steps:
    """The steps since the last log, and their time: evaluations and saving are not in it."""

    def __init__(self, report: Report, device: str, devices: int) -> None:
        self.report, self.device, self.devices = report, device, devices
        self.begin()

    def begin(self) -> None:
        """Training begins: what came before is no step."""
        self.count = 0
        self.since = self.ended = perf_counter()

    def end(self) -> None:
        self.count += 1
        self.ended = perf_counter()

    def go_on(self) -> None:
        """What followed the last step or log is done, and was no step."""
        now = perf_counter()
        self.since += now - max(self.ended, self.since)
        self.ended = now

    def log(self, logs: dict[str, float] | None, state: Any) -> None:
        """Add the utilisation to the figures of the steps, and to the history of the Trainer, which has copied them."""
        if not self.count or logs is None or "loss" not in logs:
            return
        seconds = (self.ended - self.since) / self.count
        logs["mfu"] = mfu(self.report, seconds, self.device, devices=self.devices)
        if state.log_history:
            state.log_history[-1]["mfu"] = logs["mfu"]
        self.count, self.since = 0, self.ended
