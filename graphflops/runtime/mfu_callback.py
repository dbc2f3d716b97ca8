"""A callback for the Trainer of transformers that logs model FLOPs utilisation."""

from importlib import import_module
from time import perf_counter
from typing import Any

from graphflops.derived.items import mfu
from graphflops.errors import OptionError
from graphflops.report import Report


def mfu_callback(report: Report, device: str, *, devices: int = 1) -> Any:
    """A `transformers.TrainerCallback` that adds `mfu` to what is logged, for the steps since the last log.

    report: of the training step at the batch of one device, as `analyze(model, args, training=True)` returns it. devices:
    how many share that batch. Raises OptionError if transformers is not installed.
    """
    try:
        callbacks = import_module("transformers.trainer_callback")
    except ImportError:
        raise OptionError("mfu_callback needs transformers: pip install transformers") from None
    count, since, ended = 0, perf_counter(), perf_counter()  # of the steps since the last log

    def begins(*_: Any, **__: Any) -> None:  # time before the training is not counted
        nonlocal count, since, ended
        count, since, ended = 0, (now := perf_counter()), now

    def ends_step(*_: Any, **__: Any) -> None:
        nonlocal count, ended
        count, ended = count + 1, perf_counter()

    def goes_on(*_: Any, **__: Any) -> None:  # the time of an evaluation or of saving is not counted
        nonlocal since, ended
        now = perf_counter()
        since, ended = since + now - max(ended, since), now

    def logs_steps(self: Any, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        nonlocal count, since
        if count and logs is not None and "loss" in logs:
            logs["mfu"] = mfu(report, (ended - since) / count, device, devices=devices)
            if state.log_history:  # the Trainer has copied the figures before
                state.log_history[-1]["mfu"] = logs["mfu"]
            count, since = 0, ended

    events = {"on_train_begin": begins, "on_step_end": ends_step, "on_log": logs_steps}
    events |= {"on_evaluate": goes_on, "on_save": goes_on}
    return type("MfuCallback", (callbacks.TrainerCallback,), events)()
