"""Measures all trials on a device within a time limit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import torch

from graphflops.kernels.kernel import Kernel
from graphflops.runtime.profile.attentions import attentions
from graphflops.runtime.profile.convolutions import convolutions
from graphflops.runtime.profile.products import products
from graphflops.runtime.profile.traffic import traffic
from graphflops.runtime.profile.trial import Clock, CpuClock, CudaClock, Trial

Progress = Callable[[int, int], None]

# Raised for a kernel that the device, this release of torch, or its memory does not allow.
_REFUSED = (RuntimeError, NotImplementedError)


def clock_of(device: str, runtime: str = "torch") -> Clock:
    """The clock for the kernels of a library on a device."""
    if runtime == "onnxruntime":
        from graphflops.runtime.profile.onnx_trials import OnnxClock

        return OnnxClock()
    return CudaClock() if device == "cuda" else CpuClock()


def _trials(clock: Clock) -> list[list[Trial]]:
    """The kernels to be measured, by group."""
    if clock.runtime == "onnxruntime":
        from graphflops.runtime.profile.onnx_trials import onnx_trials

        return [list(onnx_trials(clock))]
    return [list(source(clock)) for source in (products, attentions, convolutions, traffic)]


@dataclass(slots=True)
class Measurement:
    """What was measured of so many trials: each kernel with its seconds, and how often which error refused one."""

    trials: int
    kernels: list[tuple[Kernel, float]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def measure(clock: Clock, limit: float, progress: Progress | None = None) -> Measurement:
    """Times every trial; families take turns, so that a time limit cuts all of them alike."""
    ended = time.monotonic() + limit
    trials = _in_turns(_trials(clock))
    found = Measurement(len(trials))
    for done, trial in enumerate(trials):
        if progress is not None:
            progress(done, len(trials))
        if time.monotonic() > ended:
            break
        try:
            seconds = _seconds(clock, trial)
        except _REFUSED as error:
            found.refused[str(error).strip().partition("\n")[0] or type(error).__name__] += 1
        else:
            found.kernels += [] if seconds is None else [(trial.kernel, seconds)]
    return found


def _seconds(clock: Clock, trial: Trial) -> float | None:
    """Seconds of a trial; None where this torch has no such kernel."""
    with torch.no_grad():
        calls = trial.prepare()
        return clock.seconds(calls) if calls else None


def _in_turns(groups: list[list[Trial]]) -> list[Trial]:
    """The trials of all groups, spread so that each group is used up at the same rate."""
    for group in groups:
        Random(0).shuffle(group)
    keyed = [(index / len(group), trial) for group in groups for index, trial in enumerate(group)]
    return [trial for _, trial in sorted(keyed, key=lambda pair: pair[0])]
