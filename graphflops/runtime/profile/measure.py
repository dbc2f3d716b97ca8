"""Measures all trials on a device within a time limit: rows of calibration points by family and element type."""

from __future__ import annotations

import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from graphflops.runtime.profile.attentions import attentions
from graphflops.runtime.profile.convolutions import convolutions
from graphflops.runtime.profile.products import products
from graphflops.runtime.profile.traffic import traffic
from graphflops.runtime.profile.trial import CpuClock, CudaClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphflops.runtime.profile.trial import Clock, Trial
    from graphflops.time.kernel import Kernel

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


def measure(clock: Clock, limit: float, progress: Progress | None = None) -> Iterator[tuple[Kernel, float]]:
    """Each kernel with its seconds; families take turns, so that a time limit cuts all of them alike."""
    ended = time.monotonic() + limit
    trials = _in_turns(_trials(clock))
    for done, trial in enumerate(trials):
        if progress is not None:
            progress(done, len(trials))
        if time.monotonic() > ended:
            return
        seconds = _seconds(clock, trial)
        if seconds is not None:
            yield trial.kernel, seconds


def _seconds(clock: Clock, trial: Trial) -> float | None:
    """Seconds of a trial; None where this device or this torch cannot run it."""
    try:
        with torch.no_grad():
            calls = trial.prepare()
            return clock.seconds(calls) if calls else None
    except _REFUSED:
        return None


def _in_turns(groups: list[list[Trial]]) -> list[Trial]:
    """The trials of all groups, spread so that each group is used up at the same rate."""
    for group in groups:
        Random(0).shuffle(group)
    keyed = [(index / len(group), trial) for group in groups for index, trial in enumerate(group)]
    return [trial for _, trial in sorted(keyed, key=lambda pair: pair[0])]


def launch_times(clock: Clock) -> dict[str, float]:
    """Seconds of the CPU to launch one small operator from Python, by family."""
    make = partial(torch.ones, device=clock.device)
    x, weight, image, filters = make(16, 64), make(64, 64), make(1, 8, 8, 8), make(8, 8, 3, 3)
    q, places = make(1, 1, 16, 32), torch.zeros(4, dtype=torch.int64, device=clock.device)
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm
    calls: tuple[tuple[str, Any], ...] = (
        ("elementwise", partial(torch.add, x, x)),
        ("matmul", partial(linear, x, weight, weight[0])),
        ("convolution", partial(torch.conv2d, image, filters)),
        ("normalization", partial(norm, x, (64,))),
        ("softmax", partial(torch.softmax, x, 1)),
        ("reduction", partial(torch.sum, x, 1)),
        ("attention", partial(torch.nn.functional.scaled_dot_product_attention, q, q, q)),
        ("copy", partial(torch.cat, [x, x])),
        ("gather", partial(torch.embedding, x, places)),
        ("view", partial(x.view, 64, 16)),
    )
    with torch.no_grad():
        return {family: clock.launch_seconds(call) for family, call in calls}


def graph_gap(clock: Clock) -> float:
    """Seconds of the smallest kernel in a CUDA graph, launch included."""
    x = torch.zeros(32, device=clock.device)
    return float(clock.seconds([partial(torch.add, x, 1)]))
