"""Serving a decoder: the time of a step by batch and context, what limits it, and how many requests fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.budget.amounts import asked
from graphflops.devices import Device, complete, device as device_named
from graphflops.dims.solving import first_from
from graphflops.errors import DimError, ModelError, OptionError, shown
from graphflops.fitting.cells import Cell, KvCache, Limits, is_open_for, kv_cache, most_requests
from graphflops.fitting.varied_size import SPARE, room
from graphflops.links import network_of
from graphflops.loading import Model, phases
from graphflops.memory.ledger import on_device
from graphflops.planning.plan import divisors
from graphflops.report import Execution, Report
from graphflops.serving.engines import Engine, Prefill, Setting, Steps, changed, engine_named
from graphflops.tensor import dtype_named

BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (1024, 4096, 16_384, 65_536)
_MOST_CELLS, _MOST_DEVICES = 1000, 2**17
_EMPTY = 16  # tokens of a context so short that attention to it takes no time
_ARITHMETIC = ("matrix", "vector")
_NANO = 1e-9
_FLOAT8 = "float8_e4m3fn"
_AS_ENGINES_SAY = {"fp8": _FLOAT8, "fp8_e4m3": _FLOAT8, "fp8_e5m2": "float8_e5m2", "bf16": "bfloat16"}


class Serving(Rendered, Record, frozen=True):
    """A decoder as a service on one device, or on several that share each layer."""

    report: Report  # of a step on each device
    cache: KvCache  # of a request, on each device
    engine: Engine
    cells: tuple[Cell, ...]
    requests: tuple[tuple[int, int], ...]  # by context, the most requests that fit at the end of their output
    limits: Limits
    # By context, the cell with the most requests within the limits, None if not even one is; empty without limits.
    loads: tuple[tuple[int, Cell | None], ...] = ()
    output_tokens: int | None = None  # of each request
    price_per_hour: float | None = None
    devices: int = 1
    notes: tuple[str, ...] = ()

    def kept_by(self, context: int) -> int:
        """Bytes that a request keeps at the end of its output."""
        return next(cell.kept for cell in self.cells if cell.context == context)

    def knee(self, context: int) -> int | None:
        """The smallest batch of the table at which arithmetic, not memory, limits a step; None if there is none."""
        steps = [(cell.batch, cell.step) for cell in self.cells if cell.context == context]
        return min((batch for batch, step in steps if step and step.bound in _ARITHMETIC), default=None)


def serve(
    model: Model,
    *,
    device: str,
    batch: Sequence[int] = BATCHES,
    context: Sequence[int] = CONTEXTS,
    **options: Any,
) -> Serving:
    """The times and loads of a decoder that is served on a device.

    model: a step that takes its caches of keys and values as inputs, with open axes of batch and length. prefill: the
        program of the prompt; a step whose number of new tokens is open is its own prefill. batch, context: requests at once
        and tokens of each, for the table. output_tokens: of a request. If given, a step also waits for the prefills of new
        requests, and has the context of a request that is half done.
    ttft, tpot: limits on the time to the first token, and per output token, in seconds or as text (`30ms`).
    engine: whose memory and kernels to assume: one of engines.json, or `none` for the program as it is.
    devices: the devices that share every layer (tensor parallel). network: the links between nodes, such as `8x400Gbit`.
    kv_dtype: element type of an engine's caches, such as `fp8`; by default the program's. shared_prefix: the part of each
        context that requests have in common, which an engine stores and computes once. prefill_tokens: of an engine's
        largest step, by default the engine's; longer prompts are cut into chunks. together: all requests begin together, as
        with a benchmark's clients; if the engine prefills first, their first tokens wait for one another.

    Raises OptionError for options that contradict one another, ModelError for a program without caches of open sizes.
    """
    if not batch or not context or len(batch) * len(context) > _MOST_CELLS:
        raise OptionError(f"give 1 to {_MOST_CELLS:,} combinations of --batch and --context")
    plan, limits = prepared(model, device=device, context=context, **options)
    return plan.served(sorted(set(batch)), sorted(set(context)), limits)


def prepared(
    model: Model,
    *,
    device: str,
    prefill: Model | None = None,
    context: Sequence[int] = CONTEXTS,
    output_tokens: int | None = None,
    ttft: str | float | None = None,
    tpot: str | float | None = None,
    engine: str = "none",
    devices: int = 1,
    network: str | None = None,
    price_per_hour: float | None = None,
    execution: Execution | None = None,
    kv_dtype: str | None = None,
    shared_prefix: float = 0.0,
    prefill_tokens: int | None = None,
    together: bool = False,
    **options: Any,
) -> tuple[Served, Limits]:
    """The plan from which `serve` computes its cells, and the limits. Options as of `serve`."""
    limits = Limits(_seconds(ttft, "--ttft"), _seconds(tpot, "--tpot"))
    joined = network_of(complete(device_named(device)), network)
    chosen = engine_named(engine)
    if prefill_tokens is not None:
        if not chosen.is_paged:
            raise OptionError("--prefill-tokens is how an engine cuts prompts: name one with --engine")
        chosen = msgspec.structs.replace(chosen, prefill_tokens=prefill_tokens)
    if together and not (chosen.prefills_first and output_tokens):
        raise OptionError("--together is of engines that prefill first, as sglang, and needs --output-tokens")
    engine_options = (chosen, devices, joined, _bits(kv_dtype), shared_prefix, together)
    setting = Setting(device, execution or "graph", *engine_options)
    step, prompt = phases(model, prefill, options.pop("model_name", None))
    steps = Steps.of(step, setting, options)
    cache = _cache(steps.report, max(context) + (output_tokens or 0))
    before = Prefill.of(steps, cache, prompt, setting)
    if limits.first is not None and before is None:
        what = "--ttft limits the prefill, which this program does not tell"
        raise OptionError(f"{what}: name it with --prefill")
    return Served(steps, cache, before, setting, output_tokens, price_per_hour), limits


class Served(Record, frozen=True):
    """A decoder and its setting, from which cells are computed."""

    steps: Steps
    cache: KvCache
    prefill: Prefill | None
    setting: Setting
    output_tokens: int | None
    price_per_hour: float | None = None

    @property
    def engine(self) -> Engine:
        """The engine whose memory and kernels are assumed."""
        return self.setting.engine

    @property
    def device(self) -> Device:
        """The profile of the devices."""
        return self.setting.network.device

    def served(self, batches: Sequence[int], contexts: Sequence[int], limits: Limits) -> Serving:
        """The table, the requests that fit, and the loads within the limits, if there are limits."""
        requests = tuple([(length, self.most(length)) for length in contexts])
        cells = tuple([self.cell(count, length) for length in contexts for count in batches])
        loads: tuple[tuple[int, Cell | None], ...] = ()
        if limits != Limits():
            loads = tuple([(length, self.load(most, length, limits)) for length, most in requests])
        known = (self.steps.report, self.stored, self.engine, cells, requests, limits, loads)
        asked = (self.output_tokens, self.price_per_hour, self.setting.devices)
        return Serving(*known, *asked, notes=tuple(self.notes()))

    def cell(self, batch: int, context: int) -> Cell:
        """The steps of `batch` requests with a context of `context` tokens."""
        common, length = int(self.setting.shared * context), context + (self.output_tokens or 0)
        first = None if self.prefill is None else self.prefill.at(context, common)
        own = self.stored.bytes_at(length) - self.stored.common_bytes(common)
        known = (own, self.most(context), self.setting.devices, self.price_per_hour)
        if batch > known[1]:
            return Cell(batch, context, None, first, 0, *known)
        # The program's caches have other element types: lengths for which they have the bytes of the stored caches.
        sizes = self.cache.sizes_at(batch, context + (self.output_tokens or 0) // 2)
        grown = {name: -(-sizes[name] * self.stored.bits // self.cache.bits) for name in self.cache.lengths}
        step = changed(self.steps.at({**sizes, **grown}), (self.engine.request_seconds or 0) * batch)
        if not self.output_tokens or first is None or self.prefill is None:
            return Cell(batch, context, step, first, 0, *known)
        largest = self.engine.prefill_tokens or context
        if self.setting.is_together and self.engine.prefills_first:
            before, after = self.prefill.in_turn(batch, context, common, largest)
            beside, queued = after / self.output_tokens, before - first.seconds
            return Cell(batch, context, step, first, beside, *known, step.seconds + after, max(0.0, queued))
        each, slowest = first.seconds, step.seconds + first.seconds if self.engine.prefills_first else None
        if self.engine.is_paged and not self.engine.prefills_first:
            # The tokens of steps and prefills go through the layers together.
            alone = self.steps.at(self.cache.sizes_at(batch, _EMPTY)).seconds
            each = max(0.0, each * (1 + batch / (context - common)) - alone)
            chunk = min(context - common, largest)
            last = self.prefill.at(context, context - chunk).seconds
            slowest = step.seconds + max(0.0, last * (1 + batch / chunk) - alone)
        return Cell(batch, context, step, first, batch * each / self.output_tokens, *known, slowest)

    @property
    def stored(self) -> KvCache:
        """The caches as the engine stores them."""
        bits = self.setting.kv_bits
        return self.cache if bits is None else self.cache.stored_in(bits)

    def most(self, context: int) -> int:
        """The most requests that fit if each is at the end of its output."""
        length = context + (self.output_tokens or 0)
        if self.engine.memory_fraction is not None:
            block = self.engine.block_tokens
            common = self.stored.common_bytes(int(self.setting.shared * context) // block * block)
            each = self.stored.bytes_at(-(-length // block) * block) - common
            return max(0, (self.paged_room(self.engine.memory_fraction) - common) // each)
        entry = on_device(self.steps.report.memory_use[-1], self.device)
        free = int((1 - SPARE) * room(self.device))
        return most_requests(self.steps.report, entry, self.cache, length, free)

    def paged_room(self, fraction: float) -> int:
        """Bytes that an engine leaves to the caches of its requests; negative if not even the weights fit."""
        engine, report = self.engine, self.steps.report
        entry = report.memory_use[-1]
        weights = sum(report.value(size or 0) or 0 for size in (entry.weights, entry.buffers))
        part = int(fraction * self.device.memory_bytes)
        if engine.fraction_of == "weights and caches":
            return part - weights
        # What the largest step needs beside weights and caches: a prefill, then the sampler for all requests.
        # The program's longest last axis of a result is taken as the number of logits.
        types = {named.name: named.type for row in report.rows for named in row.outputs}
        given = [types[name].shape[-1] for name in report.outputs if name in types and types[name].rank]
        entries = max((size for size in given if isinstance(size, int)), default=0)
        peak = int((engine.sequences or 0) * entries * (engine.bytes_per_logit or 0))
        if self.prefill is not None and engine.prefill_tokens is not None:
            held = self.prefill.steps.bytes_at(self.prefill.sizes_at(engine.prefill_tokens)) or 0
            # The caches have its entries already.
            peak = max(peak, held - self.cache.bytes_at(engine.prefill_tokens))
        if engine.fraction_of == "free":
            return int(fraction * (room(self.device) - weights - peak))
        return part - weights - peak - (engine.libraries_bytes or 0)

    def load(self, most: int, context: int, limits: Limits) -> Cell | None:
        """The cell with the most requests within the limits, by bisection: more requests never take less time."""
        count = first_from(1, most + 1, lambda batch: not self.cell(batch, context).keeps(limits)) - 1
        return self.cell(count, context) if count else None

    def notes(self) -> Iterator[str]:
        """What the plan assumes."""
        if self.prefill is None:
            yield "the time to the first token is not known: name the program of a prefill with --prefill"
        elif self.output_tokens is None:
            yield "prefills of other requests are not counted: --output-tokens says how often they come"
        if self.setting.is_together:
            yield "requests begin together: prefills of all come first, then their steps"
        else:
            yield "a first token is that of a request that does not wait for others"
        if self.engine.name == "none":
            yield "the program runs as it is, with the copies of its caches: --engine takes those of an engine"
        if self.setting.kv_bits is not None:
            yield f"caches of {self.stored.bits} bits a number, read as fast as so many bytes of the program's: a guess"
        if self.setting.shared:
            yield f"{100 * self.setting.shared:g} % of each context is common: kept and computed once, read by each request"
        yield from ["prices are in the currency of --price-per-hour"] * (self.price_per_hour is not None)
        yield from self.steps.exchanges.notes()
        yield from self.engine.assumptions(self.prefill is not None)


def _cache(report: Report, longest: int) -> KvCache:
    """The caches of the program. Raises ModelError unless their batch and length are open, up to `longest` tokens."""
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


def _bits(name: str | None) -> int | None:
    """Bits of an element type, by its name or by the name that engines use: `fp8`."""
    if name is None:
        return None
    try:
        return dtype_named(_AS_ENGINES_SAY.get(name, name)).bits
    except DimError:
        raise OptionError(f"--kv-dtype {shown(name)}: give fp8 or bf16") from None


def _seconds(given: str | float | None, option: str) -> float | None:
    """A limit in seconds, from text such as `30ms`."""
    if given is None:
        return None
    found = asked(option, given, "ns") * _NANO
    if found <= 0:
        raise OptionError(f"{option}: {shown(str(given))} is no time to wait: write 30ms")
    return found


class Replicas(Record, frozen=True):
    """`count` copies of a decoder, each on `each` devices."""

    count: int
    each: int
    context: int
    cell: Cell | None  # of one copy, with the most requests that fit and are within the limits
    said: str = ""  # why there is no cell, or what it assumes

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all copies."""
        return self.count * (self.cell.tokens_per_second or 0) if self.cell is not None else 0.0

    @property
    def requests(self) -> int:
        """Requests of all copies at once."""
        return self.count * self.cell.batch if self.cell is not None else 0

    def __str__(self) -> str:
        return f"{self.count:,} x tp={self.each}"


class Replication(Rendered, Record, frozen=True):
    """All ways to serve a decoder on `devices` devices."""

    report: Report  # of a step
    devices: int
    ways: tuple[Replicas, ...]  # by context, those with the most tokens per second first
    notes: tuple[str, ...] = ()


def replicas(
    model: Model, *, devices: int, device: str, context: Sequence[int] = (8192,), network: str | None = None,
    **options: Any,
) -> Replication:  # fmt: skip
    """All ways to serve a decoder on `devices` devices. Those of one copy are in one node. Options as of `serve`."""
    if not 1 <= devices <= _MOST_DEVICES:
        raise OptionError(f"--devices {devices:,}: give 1 to {_MOST_DEVICES:,}")
    node = network_of(complete(device_named(device)), network).node.devices
    found: list[Replicas] = []
    notes: tuple[str, ...] = ()
    given: dict[str, Any] = {"context": context, "device": device, "network": network, **options}
    for each in [one for one in divisors(devices) if one <= node]:
        count = devices // each
        try:
            plan, limits = prepared(model, devices=each, **given)
        except ModelError as error:
            if each == 1:
                raise  # more devices would not help
            found += [Replicas(count, each, length, None, str(error)) for length in context]
            continue
        notes = notes or tuple(plan.notes())
        whole = len(plan.steps.exchanges.whole)
        for length in sorted({*context}):
            most = plan.most(length)
            cell = plan.load(most, length, limits)
            lacking = "no request keeps the limits" if most else "no request fits"
            said = lacking if cell is None else f"{whole} products run whole on each device" if whole else ""
            found.append(Replicas(count, each, length, cell, said))
    ways = tuple(sorted(found, key=lambda one: (one.context, -one.tokens_per_second)))
    return Replication(plan.steps.report, devices, ways, notes)
