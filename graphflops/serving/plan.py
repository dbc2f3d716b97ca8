"""A decoder as a service: the time of a step by batch and context, what limits it, and how many requests fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphflops.base.rendered import Rendered
from graphflops.budget.amounts import amount
from graphflops.devices import complete
from graphflops.devices import device as device_named
from graphflops.errors import ModelError, OptionError, shown
from graphflops.fitting.kv_cache import KvCache, is_open_for, kv_cache, most_requests
from graphflops.fitting.varied_size import SPARE, room
from graphflops.links import network_of
from graphflops.memory.ledger import on_device
from graphflops.serving.engines import Engine, engine_named
from graphflops.serving.phases import Prefill, Setting, Steps, programs
from graphflops.serving.room import paged_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.devices import Device
    from graphflops.loading import Model
    from graphflops.report import Execution, Report
    from graphflops.report.call_time import PhaseTime

BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (1024, 4096, 16_384, 65_536)
_MOST_CELLS = 1000
_EMPTY = 16  # tokens of a context that takes no time to attend to
_ARITHMETIC = ("matrix", "vector")
_HOUR, _MILLION, _NANO = 3600, 1e6, 1e-9


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
    for the prefills of requests that take the place of finished ones. devices: that run it together.
    """

    batch: int
    context: int
    step: PhaseTime | None
    prefill: PhaseTime | None
    beside: float = 0.0
    devices: int = 1

    @property
    def each(self) -> float | None:
        """Seconds from one token of a request to its next."""
        return None if self.step is None else self.step.seconds + self.beside

    @property
    def first(self) -> float | None:
        """Seconds to the first token of a request that does not wait for others; None where no prefill is known."""
        return None if self.prefill is None else self.prefill.seconds

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

    def price(self, per_hour: float | None) -> float | None:
        """What a million tokens cost; None without the price of a device's hour."""
        if per_hour is None or self.tokens_per_second is None:
            return None
        return self.devices * per_hour / _HOUR / self.tokens_per_second * _MILLION

    def keeps(self, limits: Limits) -> bool:
        """Whether the requests fit and none waits longer than the limits, as far as they are given."""
        waits = ((limits.first, self.first), (limits.each, self.each))
        is_within = all(most is None or (found is not None and found <= most) for most, found in waits)
        return self.step is not None and is_within


@dataclass(frozen=True, slots=True, repr=False)
class Serving(Rendered):
    """A decoder as a service on one device, or on several that share each layer.

    report: of a step on each device; the cache and what a request keeps are of each, too. requests: by context, the most
    requests that fit at the end of their output. output_tokens: that each asks for. loads: by context, the cell of the most
    requests that keep the limits, None where not even one does; empty without limits.
    """

    report: Report
    cache: KvCache
    engine: Engine
    cells: tuple[Cell, ...]
    requests: tuple[tuple[int, int], ...]
    limits: Limits = Limits()
    loads: tuple[tuple[int, Cell | None], ...] = ()
    output_tokens: int | None = None
    price_per_hour: float | None = None
    devices: int = 1
    notes: tuple[str, ...] = ()

    def kept_by(self, context: int) -> int:
        """Bytes that a request keeps at the end of its output."""
        return self.cache.bytes_at(context + (self.output_tokens or 0))

    def knee(self, context: int) -> int | None:
        """The least batch of the table from which on arithmetic, and not memory, limits a step; None where none does."""
        cells = [cell for cell in self.cells if cell.context == context and cell.step is not None]
        return min(
            (cell.batch for cell in cells if cell.step and cell.step.bound in _ARITHMETIC), default=None
        )


def serve(
    model: Model,
    *,
    device: str,
    prefill: Model | None = None,
    batch: Sequence[int] = BATCHES,
    context: Sequence[int] = CONTEXTS,
    output_tokens: int | None = None,
    ttft: str | float | None = None,
    tpot: str | float | None = None,
    engine: str = "none",
    devices: int = 1,
    network: str | None = None,
    price_per_hour: float | None = None,
    execution: Execution | None = None,
    **options: Any,
) -> Serving:
    """How a decoder serves on a device.

    model: a step that takes the caches of keys and values as inputs, with open axes of batch and length. prefill: the
        program of the tokens before it; a step whose axis of new tokens is open is its own. batch, context: requests at
        once and the tokens of each, for the table. output_tokens: that a request asks for: then a step also waits for the
        prefills of new requests, and its context is that of a request half done.
    ttft, tpot: limits on the time to the first token and from one to the next, in seconds or as text (`30ms`).
    engine: whose memory and kernels are assumed: `none`, the program as it is, or one of engines.json.
    devices: that each have a part of every layer (tensor parallel); network: what joins them, as `8x400Gbit`.

    Raises OptionError for options that contradict one another, ModelError for a program without caches of open sizes.
    """
    if not batch or not context or len(batch) * len(context) > _MOST_CELLS:
        raise OptionError(f"give 1 to {_MOST_CELLS:,} combinations of --batch and --context")
    limits = Limits(_seconds(ttft, "--ttft"), _seconds(tpot, "--tpot"))
    joined = network_of(complete(device_named(device)), network)
    setting = Setting(device, execution or "graph", engine_named(engine), devices, joined)
    plan = _planned(model, prefill, setting, max(context), output_tokens, options)
    if limits.first is not None and plan.prefill is None:
        what = "--ttft limits the prefill, which this program does not tell"
        raise OptionError(f"{what}: name it with --prefill")
    served = plan.served(sorted(set(batch)), sorted(set(context)), limits)
    return replace(served, price_per_hour=price_per_hour)


def _planned(
    model: Model,
    prefill: Model | None,
    setting: Setting,
    longest: int,
    output_tokens: int | None,
    options: dict[str, Any],
) -> _Plan:
    """Both programs, read and priced. longest: the most tokens of a request before its output."""
    step, prompt = programs(model, prefill, options.pop("model_name", None))
    steps = Steps.of(step, setting, options)
    cache = _cache(steps.report, longest + (output_tokens or 0))
    return _Plan(steps, cache, Prefill.of(steps, cache, prompt, setting), setting, output_tokens)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the cells are computed from."""

    steps: Steps
    cache: KvCache
    prefill: Prefill | None
    setting: Setting
    output_tokens: int | None

    @property
    def engine(self) -> Engine:
        """Whose memory and kernels are assumed."""
        return self.setting.engine

    @property
    def device(self) -> Device:
        """The profile of each device."""
        return self.setting.network.device

    def served(self, batches: Sequence[int], contexts: Sequence[int], limits: Limits) -> Serving:
        """The table, what fits, and the loads that keep the limits, where any is given."""
        requests = tuple([(length, self.most(length)) for length in contexts])
        cells = tuple([self.cell(count, length) for length in contexts for count in batches])
        loads: tuple[tuple[int, Cell | None], ...] = ()
        if limits != Limits():
            loads = tuple([(length, self.load(most, length, limits)) for length, most in requests])
        known = (self.steps.report, self.cache, self.engine, cells, requests, limits, loads)
        return Serving(*known, self.output_tokens, devices=self.setting.devices, notes=tuple(self.notes()))

    def cell(self, batch: int, context: int) -> Cell:
        """The steps of so many requests with that context."""
        count = self.setting.devices
        first = None if self.prefill is None else self.prefill.at(context)
        if batch > self.most(context):
            return Cell(batch, context, None, first, devices=count)
        kept = context + (self.output_tokens or 0) // 2
        step = self.steps.at(self.cache.sizes_at(batch, kept))
        if not self.output_tokens or first is None:
            return Cell(batch, context, step, first, devices=count)
        each = first.seconds
        if self.engine.is_paged:  # tokens of the prefill and of the steps go through the layers together
            alone = self.steps.at(self.cache.sizes_at(batch, _EMPTY)).seconds
            each = max(0.0, each * (1 + batch / context) - alone)
        return Cell(batch, context, step, first, batch * each / self.output_tokens, count)

    def most(self, context: int) -> int:
        """The most requests that fit, each at the end of its output."""
        length = context + (self.output_tokens or 0)
        if self.engine.memory_fraction is not None:
            blocks = -(-length // self.engine.block_tokens)
            each = self.cache.bytes_at(blocks * self.engine.block_tokens)
            return max(0, paged_room(self.steps, self.prefill, self.cache, self.device, self.engine) // each)
        entry = on_device(self.steps.report.memory_use[-1], self.device)
        free = int((1 - SPARE) * room(self.device))
        return most_requests(self.steps.report, entry, self.cache, length, free)

    def load(self, most: int, context: int, limits: Limits) -> Cell | None:
        """The cell of the most requests that keep the limits: more of them never take less time."""
        low, high, found = 0, most + 1, None
        while high - low > 1:
            middle = (low + high) // 2
            cell = self.cell(middle, context)
            if cell.keeps(limits):
                low, found = middle, cell
            else:
                high = middle
        return found

    def notes(self) -> Iterator[str]:
        """What is assumed."""
        if self.prefill is None:
            yield "the time to the first token is not known: name the program of a prefill with --prefill"
        elif self.output_tokens is None:
            yield "prefills of other requests are not counted: --output-tokens says how often they come"
        yield "a first token is that of a request that does not wait for others"
        if self.engine.name == "none":
            yield "the program runs as it is, with the copies of its caches: --engine takes those of an engine"
        yield from self.steps.exchanges.notes()
        yield from self.engine.assumptions(self.prefill is not None)


def _cache(report: Report, longest: int) -> KvCache:
    """The caches of the program. ModelError where their batch or length is not open, or not that far."""
    cache = kv_cache(report)
    if cache is None:
        what = "no input is a cache that a call extends or writes into"
        raise ModelError(f"{what}: give a step that takes its keys and values as inputs")
    if not (cache.batch and cache.lengths):
        what = "batch" if not cache.batch else "length"
        raise ModelError(f"the {what} of the caches is fixed in the file: export it with that axis dynamic")
    if not is_open_for(report, cache, longest):
        raise ModelError(f"the program was exported for caches shorter than {longest:,}: give less --context")
    return cache


def _seconds(given: str | float | None, option: str) -> float | None:
    """A limit in seconds, of text such as `30ms`."""
    if given is None:
        return None
    try:
        found = amount(given, "ns") * _NANO
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from None
    if found <= 0:
        raise OptionError(f"{option}: {shown(str(given))} is no time to wait: write 30ms")
    return found
