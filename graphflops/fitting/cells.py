"""What requests to a decoder wait for and keep, and how many fit: one table for plans, budgets, sweeps and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from graphflops.base.units import memory, rate, seconds
from graphflops.derived.resize import values_at
from graphflops.devices import complete
from graphflops.devices import device as device_named
from graphflops.dims import evaluate
from graphflops.fitting.kv_cache import kv_cache, most_requests
from graphflops.fitting.varied_size import SPARE, room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.budget.amounts import Unit
    from graphflops.derived.resize import Sweep
    from graphflops.report import Report
    from graphflops.report.call_time import PhaseTime

_HOUR, _MILLION = 3600, 1e6


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user must not wait longer for, in seconds: the first token, and each one after it; None without a limit."""

    first: float | None = None
    each: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of `batch` requests, each of which has `context` tokens.

    step: the time of one step, which makes a token for each request; None where so many requests do not fit. prefill: of the
    tokens of one request, alone on the device; None where it is not known. beside: seconds that a step waits, in the mean,
    for the prefills of requests that take the place of finished ones. kept: bytes that a request keeps on each device. most:
    requests that fit at once; None where it is not known. devices: that run it together. slowest: seconds of the step of an
    engine that carries a chunk of another request's prefill; None where it is not known. queued: seconds that a first token
    waits, in the mean, for the prefills of requests that began with it.
    """

    batch: int
    context: int
    step: PhaseTime | None
    prefill: PhaseTime | None
    beside: float = 0.0
    kept: int = 0
    most: int | None = None
    devices: int = 1
    price_per_hour: float | None = None
    slowest: float | None = None
    queued: float = 0.0

    @property
    def each(self) -> float | None:
        """Seconds from one token of a request to its next."""
        return None if self.step is None else self.step.seconds + self.beside

    @property
    def first(self) -> float | None:
        """Seconds to the first token of a request; None where no prefill is known."""
        return None if self.prefill is None else self.prefill.seconds + self.queued

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that the devices make in a second for all requests."""
        return self.batch / self.each if self.each else None

    @property
    def joules(self) -> float | None:
        """Energy of a token at most, at the power limit of the devices."""
        if self.step is None or self.each is None or self.step.energy_joules is None:
            return None
        return self.devices * self.step.energy_joules / self.step.seconds * self.each / self.batch

    @property
    def price(self) -> float | None:
        """What a million tokens cost; None without the price of a device's hour."""
        if self.price_per_hour is None or self.tokens_per_second is None:
            return None
        return self.devices * self.price_per_hour / _HOUR / self.tokens_per_second * _MILLION

    def keeps(self, limits: Limits) -> bool:
        """Whether the requests fit and none waits longer than the limits, as far as they are given."""
        waits = ((limits.first, self.first), (limits.each, self.each))
        is_within = all(most is None or (found is not None and found <= most) for most, found in waits)
        return self.step is not None and is_within


class ServedQuantity(NamedTuple):
    """One quantity of a cell. name: in files. head: of a column. unit: in which a budget limits it, None where none does.

    is_step: whether it is the time of the step, or follows from it, which the report of a program says anyway.
    """

    name: str
    head: str
    of: Callable[[Cell], float | None]
    unit: Unit | None = None
    is_more_better: bool = False
    is_step: bool = False

    def said(self, value: float) -> str:
        """A value for people."""
        if self.unit == "ns":
            return seconds(value)
        if self.unit == "B":
            return memory(int(value))
        return f"{value:,}" if isinstance(value, int) else rate(value)

    @property
    def limit(self) -> str:
        """What a budget calls a limit on it: `max_tpot`."""
        return f"{'min' if self.is_more_better else 'max'}_{self.name}"


QUANTITIES = (
    ServedQuantity("ttft", "first token", lambda cell: cell.first, "ns"),
    ServedQuantity("tpot", "each token", lambda cell: cell.each, "ns", is_step=True),
    ServedQuantity("slowest_token", "slowest token", lambda cell: cell.slowest, "ns"),
    ServedQuantity(
        "tokens_per_second", "tokens/s", lambda cell: cell.tokens_per_second, "", True, is_step=True
    ),
    ServedQuantity("joules_per_token", "J/token <=", lambda cell: cell.joules, is_step=True),
    ServedQuantity("price_of_a_million_tokens", "price of 1 M", lambda cell: cell.price, is_step=True),
    ServedQuantity("request_bytes", "a request keeps", lambda cell: cell.kept, "B"),
    ServedQuantity("concurrency", "requests that fit", lambda cell: cell.most, "", is_more_better=True),
)


def cell_of(
    report: Report, sizes: Mapping[str, int] | None = None, time: PhaseTime | None = None
) -> Cell | None:
    """The step that a report is of; None where no input of its program is a cache, and for training.

    sizes: other values of its symbols, with the time of a step at these. The program runs as it is, on one device.
    """
    cache = None if report.backward is not None else kv_cache(report)
    values = {**report.values, **(sizes or {})}
    if cache is None or (batch := evaluate(cache.requests, values)) is None:
        return None
    kept = [values[name] for name in cache.lengths if name in values]
    context = max(kept, default=0)
    most = None
    if cache.batch and report.device and len(kept) == len(cache.lengths):
        free = int((1 - SPARE) * room(complete(device_named(report.device))))
        most = most_requests(report, report.memory_use[-1], cache, context, free)
    return Cell(batch, context, time or report.totals.time, None, kept=cache.bytes_at(context), most=most)


def with_cells(sweep: Sweep) -> Sweep:
    """A sweep with what its points mean for requests to a decoder, as far as the time of a step does not tell it."""
    told = {quantity.name for quantity in QUANTITIES if not quantity.is_step}
    points = []
    for point in sweep.points:
        cell = cell_of(sweep.report, values_at(sweep.report, point.sizes), point.time)
        known = {} if cell is None else known_of(cell)
        points.append(replace(point, serving={name: found for name, found in known.items() if name in told}))
    return replace(sweep, points=tuple(points))


def known_of(cell: Cell) -> dict[str, float]:
    """The quantities of a cell that are known, by name."""
    every = {quantity.name: quantity.of(cell) for quantity in QUANTITIES}
    return {name: found for name, found in every.items() if found is not None}
