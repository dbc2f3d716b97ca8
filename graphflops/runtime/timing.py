"""Measures the time of each call, and the peak rates of the device."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from graphflops.runtime.execute import Step
from graphflops.runtime.validation import Ceilings

_ROUNDS = 5
_MANY, _LEAD = 200, 0.01  # small kernels, and more seconds than the CPU takes to launch them
_CYCLES = 2_000_000_000  # cycles of a GPU's clock per second
_LONGEST_LEAD = 1.0  # seconds


class Clock:
    """Times steps: pass `around` to an execution, begin each run with `start`, end it with `stop`.

    lead: seconds for which the GPU is kept busy before a run, so that it never waits for launches and the times are those of
    the device alone. The time that a run takes to launch is enough. overhead: seconds that two marks add to what is between.
    """

    def __init__(self, device: torch.device, place: Callable[[Step], int]) -> None:
        self.device = device
        self.place = place
        self.runs: list[dict[int, float]] = []
        self.wholes: list[float] = []
        self.lead = 0.0
        self.overhead = 0.0
        self._marks: list[tuple[int, Any, Any]] = []
        self._whole: Any = None

    def around(self, step: Step) -> Any:
        """Run a step between two marks; a step with nested graphs is timed by the calls in them."""
        if step.nests:
            return step()
        begun = self._mark()
        returned = step()
        self._marks.append((self.place(step), begun, self._mark()))
        return returned

    def start(self) -> None:
        """Begin a run."""
        self._marks = []
        if self.lead and self.device.type == "cuda":
            torch.cuda._sleep(int(min(self.lead, _LONGEST_LEAD) * _CYCLES))
        self._whole = self._mark()

    def stop(self) -> None:
        """End a run; waits for the device."""
        end = self._mark()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.wholes.append(self._between(self._whole, end))
        run: dict[int, float] = defaultdict(float)
        for place, begun, ended in self._marks:
            run[place] += max(self._between(begun, ended) - self.overhead, 0.0)
        self.runs.append(run)

    def forget(self) -> None:
        """Drop all times so far."""
        self.runs.clear()
        self.wholes.clear()

    def seconds(self) -> dict[int, float]:
        """Median of each row's time over the runs."""
        places = {place for run in self.runs for place in run}
        return {place: statistics.median([run.get(place, 0.0) for run in self.runs]) for place in places}

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begun: Any, ended: Any) -> float:
        if self.device.type != "cuda":
            return float(ended - begun)
        return float(begun.elapsed_time(ended)) / 1000


def mark_seconds(device: torch.device) -> float:
    """Seconds that two marks on a GPU add to a kernel between them: those of one small kernel, less its share of many."""
    if device.type != "cuda":
        return 0.0
    x, medians = torch.zeros(32, device=device), []
    for count in (1, _MANY):
        clock = Clock(device, lambda step: 0)
        clock.lead = _LEAD
        for _ in range(_ROUNDS):
            clock.start()
            for _ in range(count):
                torch.add(x, 1)
            clock.stop()
        medians.append(statistics.median(clock.wholes) / count)
    return max(medians[0] - medians[1], 0.0)


def ceilings(device: torch.device, dtypes: Iterable[torch.dtype]) -> Ceilings:
    """Rates of a large matrix product in each element type, and of a large copy, on the device."""
    side, elements = (8192, 2**28) if device.type == "cuda" else (1024, 2**24)
    rates: dict[str, float] = {}
    for dtype in dtypes:
        try:
            a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            rates[str(dtype).removeprefix("torch.")] = (
                2 * side**3 / _fastest(device, partial(torch.matmul, a, b))
            )
        except RuntimeError:
            continue  # the device has no product in this element type
    source = torch.empty(elements, dtype=torch.float32, device=device).fill_(1)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / _fastest(device, lambda: target.copy_(source))
    return Ceilings(rates, bandwidth)


def _fastest(device: torch.device, run: Callable[[], object]) -> float:
    run()
    clock = Clock(device, lambda step: 0)
    for _ in range(_ROUNDS):
        clock.start()
        run()
        clock.stop()
    return min(clock.wholes)
