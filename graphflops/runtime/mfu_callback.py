"""A callback for the Trainer of transformers that logs model FLOPs utilisation."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any

from graphflops.errors import OptionError
from graphflops.per_item import mfu

if TYPE_CHECKING:
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
        "on_step_end": lambda self, args, state, control, **_: steps.end(),
        "on_log": lambda self, args, state, control, logs=None, **_: steps.log(logs),
    }
    return type("MfuCallback", (callbacks.TrainerCallback,), events)()


class _Steps:
    """The steps since the last log, and when that was."""

    def __init__(self, report: Report, device: str, devices: int) -> None:
        self.report, self.device, self.devices = report, device, devices
        self.count = 0
        self.since = perf_counter()

    def end(self) -> None:
        """One more step is done."""
        self.count += 1

    def log(self, logs: dict[str, float] | None) -> None:
        """Add the utilisation to the figures of a log."""
        now = perf_counter()
        if self.count and logs is not None:
            seconds = (now - self.since) / self.count
            logs["mfu"] = mfu(self.report, seconds, self.device, devices=self.devices)
        self.count, self.since = 0, now
