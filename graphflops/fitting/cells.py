"""Latency and memory of requests to a decoder, and how many fit: one table for plans, budgets, sweeps and comparisons.

An input is a cache if a call concatenates it with new entries along one axis, or writes new entries into it along one axis.
It is a state if the program returns a value of its type, or the input itself (such as keys and values of an encoder). The
first axis of both counts requests.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from graphflops.base.record import Record
from graphflops.base.units import memory, rate, seconds
from graphflops.budget.amounts import Unit
from graphflops.derived.items import items
from graphflops.derived.resize import Sweep, values_at
from graphflops.devices import complete, device as device_named
from graphflops.dims import Dim, evaluate, prod, total
from graphflops.dims.solving import first_from, symbol_of
from graphflops.fitting.varied_size import SPARE, room
from graphflops.ops import operator
from graphflops.report import Named, PhaseMemory, Report, Row
from graphflops.report.timeline import PhaseTime
from graphflops.tensor import TensorType

_HOUR, _MILLION = 3600, 1e6


class Limits(Record, frozen=True):
    """Limits on latency in seconds: to the first token, and to each one after it; None for no limit."""

    first: float | None = None
    each: float | None = None


class Cell(Record, frozen=True):
    """Steps of `batch` requests, each of which has `context` tokens."""

    batch: int
    context: int
    step: PhaseTime | None  # makes one token for each request; None if so many requests do not fit
    prefill: PhaseTime | None  # of one request's tokens, alone on the device; None if unknown
    # Mean seconds that a step waits for the prefills of requests that replace finished ones.
    beside: float = 0.0
    kept: int = 0  # bytes of caches and states of a request on each device
    most: int | None = None  # requests that fit at once; None if unknown
    devices: int = 1  # devices that share each layer
    price_per_hour: float | None = None
    # Seconds of an engine's step that includes a chunk of another request's prefill; None if unknown.
    slowest: float | None = None
    # Mean seconds that a first token waits for the prefills of requests that began at the same time.
    queued: float = 0.0

    @property
    def each(self) -> float | None:
        """Seconds from one token of a request to its next."""
        return None if self.step is None else self.step.seconds + self.beside

    @property
    def first(self) -> float | None:
        """Seconds to the first token of a request; None if no prefill is known."""
        return None if self.prefill is None else self.prefill.seconds + self.queued

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of all requests."""
        return self.batch / self.each if self.each else None

    @property
    def joules(self) -> float | None:
        """An upper bound on the energy of a token: at the devices' power limit."""
        if self.step is None or self.each is None or self.step.energy_joules is None:
            return None
        return self.devices * self.step.energy_joules / self.step.seconds * self.each / self.batch

    @property
    def price(self) -> float | None:
        """The price of a million tokens; None without the price of a device's hour."""
        if self.price_per_hour is None or self.tokens_per_second is None:
            return None
        return self.devices * self.price_per_hour / _HOUR / self.tokens_per_second * _MILLION

    def keeps(self, limits: Limits) -> bool:
        """Whether the requests fit, and none waits longer than the limits."""
        waits = ((limits.first, self.first), (limits.each, self.each))
        is_within = all(most is None or (found is not None and found <= most) for most, found in waits)
        return self.step is not None and is_within


class ServedQuantity(NamedTuple):
    """One quantity of a cell."""

    name: str  # in files
    head: str  # of a column
    of: Callable[[Cell], float | None]
    unit: Unit | None = None  # of a budget's limit on it; None if budgets cannot limit it
    is_more_better: bool = False
    # Whether it follows from the time of the step, which a program's report shows anyway
    is_step: bool = False

    def said(self, value: float) -> str:
        """A value as text."""
        if self.unit == "ns":
            return seconds(value)
        if self.unit == "B":
            return memory(int(value))
        return f"{value:,}" if isinstance(value, int) else rate(value)

    @property
    def limit(self) -> str:
        """The name of a budget's limit on it: `max_tpot`."""
        return f"{'min' if self.is_more_better else 'max'}_{self.name}"


QUANTITIES = (
    ServedQuantity("ttft", "first token", lambda cell: cell.first, "ns"),
    ServedQuantity("tpot", "each token", lambda cell: cell.each, "ns", is_step=True),
    ServedQuantity("slowest_token", "slowest token", lambda cell: cell.slowest, "ns"),
    ServedQuantity(
        "tokens_per_second", "tokens/s", lambda cell: cell.tokens_per_second, "", True, is_step=True
    ),
    ServedQuantity("joules_per_token", "J/token <=", lambda cell: cell.joules, is_step=True),
    ServedQuantity("price_of_a_million_tokens", "price of 1 M tokens", lambda cell: cell.price, is_step=True),
    ServedQuantity("request_bytes", "a request keeps", lambda cell: cell.kept, "B"),
    ServedQuantity("concurrency", "requests that fit", lambda cell: cell.most, "", is_more_better=True),
)


def cell_of(
    report: Report, sizes: Mapping[str, int] | None = None, time: PhaseTime | None = None
) -> Cell | None:
    """The cell of a report's program on one device, None for training and without caches. time: of a step at `sizes`."""
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
    """A sweep with the quantities of a cell at each point, except those that follow from the time of a step."""
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


LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_FEWEST_AXES = 3
_MOST_REQUESTS = 2**20


class KvCache(Record, frozen=True):
    """All caches and states of a decoder."""

    inputs: int  # their number
    request_bytes: int  # of a request of any length: states, and caches of fixed length
    requests: Dim  # the size of their first axis
    # By symbol of a length that grows, the most tokens that a cache keeps, None without a limit.
    lengths: Mapping[str, int | None]
    by_length: Mapping[str, int]  # by such symbol, bytes of one token of one request
    bits: int = 16  # of an element of the caches
    fixed_bytes: int = 0  # the part of request_bytes that belongs to caches, such as full windows

    @property
    def token_bytes(self) -> int:
        """Bytes of one token of one request, in all layers whose cache grows."""
        return sum(self.by_length.values())

    def stored_in(self, bits: int) -> KvCache:
        """The caches with elements of `bits` bits, and the same states."""
        by_length = {name: size * bits // self.bits for name, size in self.by_length.items()}
        fixed = self.fixed_bytes * bits // self.bits
        whole = self.request_bytes - self.fixed_bytes + fixed
        return replace(self, request_bytes=whole, by_length=by_length, bits=bits, fixed_bytes=fixed)

    def common_bytes(self, length: int) -> int:
        """Bytes of the first `length` tokens, stored once for requests that share them; windows have dropped them."""
        return sum(each * length for name, each in self.by_length.items() if self.lengths[name] is None)

    @property
    def batch(self) -> str:
        """The symbol of the number of requests; "" if it is fixed."""
        return symbol_of(self.requests)

    def bytes_at(self, length: int) -> int:
        """Bytes of one request with `length` tokens, of which a window keeps only the last ones."""
        kept = self.sizes_at(1, length)
        return self.request_bytes + sum(each * kept[name] for name, each in self.by_length.items())

    def sizes_at(self, requests: int, length: int) -> dict[str, int]:
        """The values of symbols for `requests` requests of `length` tokens."""
        kept = {name: length if most is None else min(length, most) for name, most in self.lengths.items()}
        return kept | ({self.batch: requests} if self.batch else {})


def kv_cache(report: Report) -> KvCache | None:
    """The caches and states among the inputs of a program; None if there are none, or if their batches differ."""
    given = {named.name: named.type for named in report.inputs if named.type.rank >= _FEWEST_AXES}
    axes: dict[str, int] = {}
    for row in report.rows:
        for name, axis in _written(row, given):
            axes.setdefault(name, axis)
    if not axes:
        return None
    batches = {given[name].shape[0] for name in axes}
    fixed: list[Dim] = []
    by_length: dict[str, Dim] = {}
    for name, axis in axes.items():
        value = given[name]
        if length := symbol_of(value.shape[axis]):
            others = (*value.shape[1:axis], *value.shape[axis + 1 :])
            by_length[length] = by_length.get(length, 0) + prod(others) * value.dtype.bits // 8
        else:
            fixed.append(prod(value.shape[1:]) * value.dtype.bits // 8)
    windows = evaluate(total(fixed), report.values)
    states = _states(report, axes, batches)
    fixed += [prod(value.shape[1:]) * value.dtype.bits // 8 for value in states]
    sizes = {name: evaluate(size, report.values) for name, size in by_length.items()}
    lasting = evaluate(total(fixed), report.values)
    if len(batches) > 1 or lasting is None or windows is None or None in sizes.values():
        return None
    known = {name: size for name, size in sizes.items() if size is not None}
    most = {name: report.symbols[name].maximum for name in known}
    longest = max(most.values(), key=_unbounded, default=None)
    lengths = {name: None if limit == longest else limit for name, limit in most.items()}
    inputs = len(axes) + len(states)
    bits = max(given[name].dtype.bits for name in axes)
    return KvCache(inputs, lasting, batches.pop(), lengths, known, bits, windows)


def _unbounded(limit: int | None) -> float:
    return float("inf") if limit is None else limit


def _states(report: Report, caches: Container[str], batches: Container[Dim]) -> list[TensorType]:
    """Floating-point inputs that a program of token ids returns in the same type; other programs may be one layer."""
    if "tokens" not in items(report):
        return []
    given = {named.name: named.type for named in report.inputs if named.type.rank > 1}
    types = {named.name: named.type for row in report.rows for named in row.outputs} | given
    back = [types[name] for name in report.outputs if name in types]
    found = []
    for name, value in given.items():
        if name not in caches and value.shape[0] in batches and value.dtype.kind == "float" and value in back:
            back.remove(value)
            found.append(value)
    return found


def is_open_for(report: Report, cache: KvCache, length: int) -> bool:
    """Whether the program was exported for requests of `length` tokens."""
    infos = [report.symbols[name] for name, window in cache.lengths.items() if window is None]
    return all((one.minimum or 0) <= length <= _unbounded(one.maximum) for one in infos)


def most_requests(report: Report, entry: PhaseMemory, cache: KvCache, length: int, limit: int) -> int:
    """The most requests of `length` tokens within a limit of bytes; 0 if not even one is."""
    most = report.symbols[cache.batch].maximum or _MOST_REQUESTS

    def is_within(requests: int) -> bool:
        needed = evaluate(entry.requested_peak, {**report.values, **cache.sizes_at(requests, length)})
        return needed is not None and needed <= limit

    return first_from(1, most + 1, lambda requests: not is_within(requests)) - 1


def _written(row: Row, given: dict[str, TensorType]) -> Iterator[tuple[str, int]]:
    """Inputs of the program that a call extends or writes into, each with the axis."""
    operands = [named for named in row.inputs if named.name in given]
    if not operands:
        return
    called, others = operator(row.op), list[Named]()
    if called.name == "cat" and len(row.inputs) > 1:
        others = [*row.outputs[:1]]
    elif (called.kind == "scatter" or called.name == "slice_scatter") and row.inputs[0].name in given:
        operands, first = [row.inputs[0]], row.inputs[0].type
        others = [named for named in row.inputs[1:] if named.type.rank == first.rank][:1]
    for named in operands if others else ():
        if axis := _differing(named, others[0]):
            yield named.name, axis


def _differing(first: Named, second: Named) -> int:
    """The single axis in which two shapes differ; 0 if they differ in several, or in the first."""
    if first.type.rank != second.type.rank:
        return 0
    pairs = zip(first.type.shape, second.type.shape, strict=True)
    axes = [axis for axis, (one, other) in enumerate(pairs) if one != other]
    return axes[0] if len(axes) == 1 else 0
