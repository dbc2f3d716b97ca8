"""The two phases of a request: the prefill of what it says, and the steps that make one token each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import field

from graphflops.analysis import priced
from graphflops.base.record import Record
from graphflops.derived.items import token_ids
from graphflops.derived.resize import refuse_guarded
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.errors import FileError, ModelError, OptionError
from graphflops.fitting.cells import KvCache, symbol_of
from graphflops.graph import Graph
from graphflops.links import Network
from graphflops.loading import Model, program_of
from graphflops.report import Execution, Report
from graphflops.report.timeline import PhaseTime
from graphflops.serving.engines import Engine, Exchanges, as_engines_run, on_each

_FEWEST = 2  # that an open axis has
TimeAt = Callable[[Mapping[str, int]], "PhaseTime"]


class Setting(Record, frozen=True):
    """What runs a program."""

    device: str  # a profile's name or path
    execution: Execution
    engine: Engine
    devices: int  # how many share each layer, joined by `network`
    network: Network
    kv_bits: int | None = None  # of an element of the caches, None for those of the program
    shared: float = 0.0  # the part of each context that requests have in common
    # Requests begin together, as those of clients do that keep a number of them running.
    is_together: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.shared < 1:
            given = f"--shared-prefix {self.shared:g}"
            raise OptionError(f"{given}: give a part of the context, from 0 to less than 1")
        if (self.kv_bits or self.shared) and not self.engine.is_paged:
            option = "--kv-dtype" if self.kv_bits else "--shared-prefix"
            raise OptionError(f"{option} is what an engine does with its caches: name one with --engine")
        if self.devices < 1:
            raise OptionError(f"--devices {self.devices}: give 1 or more")


class Steps(Record, frozen=True):
    """Steps of a decoder on a device, or on each of several."""

    report: Report
    time_at: TimeAt
    exchanges: Exchanges
    beside: float = 0.0  # seconds of the engine's own work in each step
    # Times by sizes.
    known: dict[frozenset[tuple[str, int]], PhaseTime] = field(default_factory=dict)

    @staticmethod
    def of(program: Graph, setting: Setting, options: Mapping[str, Any]) -> Steps:
        """The steps of a program."""
        device, engine = setting.device, setting.engine
        program, exchanges = on_each(program, setting.devices, setting.network, engine)
        as_given = priced(program, device, setting.execution, **options)
        if engine.is_paged:
            times = priced(as_engines_run(program), device, "compiled", **options).times(replayed=True)
        else:
            times = as_given.times()
        return Steps(as_given.report(), times, exchanges, engine.step_seconds or 0)

    def at(self, sizes: Mapping[str, int]) -> PhaseTime:
        """The time of a step at sizes, by symbol."""
        key = frozenset(sizes.items())
        if key not in self.known:
            refuse_guarded(self.report, sizes)
            time = self.time_at(sizes)
            sent, is_whole = self.exchanges.seconds_at({**self.report.values, **sizes})
            found = time if is_whole else replace(time, is_lower_bound=True)
            self.known[key] = changed(found, self.beside + sent)
        return self.known[key]

    def bytes_at(self, sizes: Mapping[str, int]) -> int | None:
        """Bytes that a step requests beside its weights; None where a size has no value."""
        entry, values = self.report.memory_use[-1], {**self.report.values, **sizes}
        parts = [evaluate(size or 0, values) for size in (entry.requested_peak, entry.weights, entry.buffers)]
        return None if None in parts else sum(parts[:1]) - sum(parts[1:])  # type: ignore[arg-type]


class Prefill(Record, frozen=True):
    """The tokens of one request before its first step."""

    steps: Steps
    # The symbol of their number, or of its part where that is a multiple, as of the chunks of a recurrence.
    length: str
    others: Mapping[str, int]  # symbols with a value
    batch: str = ""  # the symbol of the requests, "" where it is fixed
    multiple: int = 1

    @staticmethod
    def of(steps: Steps, cache: KvCache, program: Graph | None, setting: Setting) -> Prefill | None:
        """The prefill of a program of its own, or of the steps' program where its new tokens are open; else None."""
        if program is None:
            found, others = steps, {name: steps.report.symbols[name].minimum or 0 for name in cache.lengths}
        else:
            found, others = replace(Steps.of(program, setting, {}), beside=0.0, known={}), {}
        ids = token_ids(found.report)
        batch = "" if ids is None else symbol_of(ids.shape[0])
        length, multiple = ("", 1) if ids is None else _open(ids.shape[1])
        if length and length not in others:
            return Prefill(found, length, {**others, **({batch: 1} if batch else {})}, batch, multiple)
        if program is not None:
            what = "the prefill has no axis of token ids that is open"
            raise ModelError(f"{what}: export it with that axis dynamic")
        return None

    def at(self, tokens: int, kept: int = 0) -> PhaseTime:
        """The time for so many tokens of one request, the first of which are in the caches already, as many as `kept`.

        The others attend to these: their pairs are those of all tokens less those of the first among themselves.
        """
        if not kept:
            return self.steps.at(self.sizes_at(tokens))
        alone = self.at(max(tokens - kept, _FEWEST))
        beside = changed(self.at(tokens), -self.at(max(kept, _FEWEST)).seconds)
        return max(alone, beside, key=lambda time: time.seconds)

    def sizes_at(self, tokens: int) -> dict[str, int]:
        """The symbols for so many tokens of one request."""
        chunks = -(-tokens // self.multiple)  # the last one is filled up
        return {**self.others, self.length: chunks if self.multiple == 1 else max(chunks, _FEWEST)}

    def in_turn(self, requests: int, tokens: int, kept: int, largest: int) -> tuple[float, float]:
        """Seconds that requests wait in the mean, before their first token and after it, where prefills come before steps.

        They go through the layers `largest` tokens at a time: those of the last pass have not waited after it.
        """
        own = tokens - kept
        passes = -(-requests * own // largest)
        each = self.at(tokens, kept).seconds
        if (several := min(requests, largest // own)) > 1 and not kept:
            sizes = self.sizes_at(tokens) | ({self.batch: several} if self.batch else {})
            each = self.steps.at(sizes).seconds / (several if self.batch else 1)
        whole = requests * each
        return whole * (1 + 1 / passes) / 2, whole * (1 - 1 / passes) / 2


def programs(model: Model, prefill: Model | None, name: str | None) -> tuple[Graph, Graph | None]:
    """The programs of a step and of its prefill, None where that is not known.

    name: of the step in an archive; without one, an archive with `decode` and `prefill` is both. Raises ModelError for a
    saved report, whose times are no formulas, and for a recorded step.
    """
    first = None if prefill is None else program_of(prefill, None)
    if name is None and not isinstance(model, Graph):
        try:
            step = program_of(model, "decode")
            return step, first or (program_of(model, "prefill") if step.origin.format == "pt2" else None)
        except FileError:  # of an archive without these names, and of any file that is refused below
            pass
    return program_of(model, name), first


def changed(time: PhaseTime, by: float) -> PhaseTime:
    """A time that is longer by so many seconds, its interval by the same."""
    least = max(time.low + by, 0.0)
    return replace(time, seconds=time.seconds + by, low=least, high=time.high + by) if by else time


def _open(size: Dim) -> tuple[str, int]:
    """The symbol that a size is a multiple of, and the multiple; "" where it is none of one symbol."""
    if isinstance(size, Expr) and len(size.symbols) == 1:
        (name,) = size.symbols
        multiple = size.substitute({name: 1})
        if isinstance(multiple, int) and size == multiple * symbol(name):
            return name, multiple
    return "", 1
