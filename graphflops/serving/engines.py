"""What engines that serve decoders take beside the program: memory, blocks of the cache, work in each step.

The figures are data, `engines.json`, each with its source and the release that it holds for.

A decoder's program as engines run it: caches in place, each key read once for the heads that share it, no mask made.
A decoder as each of several devices runs it: its part of the weights, the heads and the caches; sums over the devices.
The two phases of a request: the prefill of what it says, and the steps that make one token each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from graphflops.analysis import priced
from graphflops.base.record import Record
from graphflops.derived.items import token_ids
from graphflops.derived.resize import refuse_guarded
from graphflops.dims import Dim, evaluate
from graphflops.dims.solving import affine, symbol_of
from graphflops.errors import FileError, ModelError, OptionError, require_choice, shown
from graphflops.fitting.cells import KvCache
from graphflops.graph import Graph, Node, Ref, tensor_type
from graphflops.links import Kind, Network, seconds
from graphflops.loading import Model, program_of
from graphflops.planning.split import split
from graphflops.report import Execution, Report
from graphflops.report.timeline import PhaseTime


class Engine(msgspec.Struct, frozen=True):
    """An engine. None: what it does not have, or what nobody measured."""

    memory_fraction: float | None  # part of the memory that it takes
    # Whether that is a part of the device, with the warm-up's peak in it; of the device, for weights and caches alone; or of
    # what weights and the peak leave, for caches alone.
    fraction_of: Literal["device", "weights and caches", "free"] | None
    block_tokens: int  # tokens that a cache grows by
    sequences: int | None  # requests that its warm-up samples for
    bytes_per_logit: float | None  # what that takes for each of them and each entry of the vocabulary
    prefill_tokens: int | None  # of its largest step
    libraries_bytes: int | None  # what CUDA and its libraries take
    step_seconds: float | None  # its own work in each step
    sum_seconds: float | None  # latency of its own sums over devices
    sum_link_share: float | None  # the part of a link's bandwidth that they reach
    sources: Mapping[str, str]  # by field
    request_seconds: float | None = None  # its own work for each request in a step
    # A step waits until no prompt does; else steps and prefills go through the layers together.
    prefills_first: bool | None = None
    name: str = ""

    @property
    def is_paged(self) -> bool:
        """Whether its caches grow in place, block by block."""
        return self.memory_fraction is not None

    def assumptions(self, has_prefill: bool) -> Iterator[str]:
        """What is assumed of it. has_prefill: whether the largest step's program is known."""
        if self.memory_fraction is None:
            return
        yield f"{self.name}: caches grow in place, in blocks of {self.block_tokens} tokens"
        yield "its kernels: fused as torch.compile does, in a CUDA graph; attention reads a key once, and no mask"
        yield f"{self.name} takes {100 * self.memory_fraction:.0f} %: {self.sources['memory_fraction']}"
        if self.step_seconds is None:
            yield f"what {self.name} itself does in each step is not known, and not counted"
        if not has_prefill and self.prefill_tokens is not None:
            yield f"what the largest prefill of {self.name} allocates is not known, and not counted: --prefill"


@cache
def engines() -> dict[str, Engine]:
    """All engines by name."""
    text = Path(__file__).with_name("engines.json").read_bytes()
    found = msgspec.json.decode(text, type=dict[str, Engine])
    return {name: replace(one, name=name) for name, one in found.items()}


def engine_named(name: str) -> Engine:
    """The engine of a name; OptionError for another name."""
    require_choice("engine", name, tuple(engines()))
    return engines()[name]


_LAYS_OUT = ("view", "movement", "identity")  # kinds of what repeats heads, and lays out the result


def as_engines_run(program: Graph) -> Graph:
    """A step or a prefill without the calls that its engine has no use for.

    A join of a cache with new entries is the cache, which has room for them, and the program returns the entries. Heads of
    keys and values are not repeated. Masks are gone: an engine knows how long each request is, and that a prompt is causal.
    """
    caches = {entry.name for entry in program.inputs if entry.role == "user"}
    kept: dict[str, str] = {}  # by join: its cache
    added: dict[str, str] = {}  # by join: the new entries
    nodes = []
    for node in program.nodes:
        tensors = node.arguments().get("xs")
        if node.operator.name == "cat" and isinstance(tensors, tuple) and len(tensors) == 2:
            cache, new = (part.name if isinstance(part, Ref) else "" for part in tensors)
            kind = tensor_type(cache, program.types)
            if cache in caches and kind is not None and kind.rank == 4:
                kept[node.outputs[0] or ""], added[node.outputs[0] or ""] = cache, new
                continue
        renamed = node.renamed(kept)
        is_attention = node.operator.kind == "attention"
        nodes.append(_grouped(renamed, program, kept) if is_attention else renamed)
    outputs = tuple([output.renamed(added) for output in program.outputs])
    needed, left = {name for output in outputs for _, name in output.uses()}, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs) or node.operator.mutates:
            left.append(node)
            needed.update(node.reads())
    return replace(program, nodes=tuple(reversed(left)), outputs=outputs, eager=None)


def _grouped(node: Node, program: Graph, kept: Mapping[str, str]) -> Node:
    """An attention of keys and values as they are kept, without a mask; as it is where its operands are of another form."""
    given: dict[str, Any] = node.arguments()
    names = [given[name].name for name in ("query", "key", "value") if isinstance(given.get(name), Ref)]
    if node.operator.name != "scaled_dot_product_attention" or len(names) < 3:
        return node
    types = [tensor_type(name, program.types) for name in names]
    query, key, _ = types
    if query is None or key is None or any(found is None or found.rank != 4 for found in types):
        return node
    own = [_before_repeat(name, program) for name in names[1:]]
    given.update(key=Ref(kept.get(own[0], own[0])), value=Ref(kept.get(own[1], own[1])), enable_gqa=True)
    if given.get("mask") is not None:
        given.update(mask=None, is_causal=query.shape[2] == key.shape[2])
    return replace(node, args=(), kwargs=tuple(given.items()))


def _before_repeat(name: str, program: Graph) -> str:
    """The keys or values before their heads were repeated: the first tensor on the way that differs in heads alone."""
    own, whole = name, tensor_type(name, program.types)
    assert whole is not None
    while (maker := program.makers.get(name)) is not None and maker.operator.kind in _LAYS_OUT:
        operands = [read for read in maker.reads() if tensor_type(read, program.types) is not None]
        if len(operands) != 1:
            break
        (name,) = operands
        found = tensor_type(name, program.types)
        others = (whole.shape[0], *whole.shape[2:])
        if found is not None and found.rank == 4 and (found.shape[0], *found.shape[2:]) == others:
            own = name
    return own


class Exchanges(Record, frozen=True):
    """What the devices send one another in a run of a program: by collective, bytes of one device's operand."""

    devices: int
    network: Network | None = None
    engine: Engine | None = None  # whose own kernel sums, where it has one; else NCCL
    operands: tuple[tuple[Kind, Dim], ...] = ()
    whole: tuple[str, ...] = ()  # products that each device runs whole, with the reason
    heads: int = 0  # of keys and values, where they are fewer than the devices; else 0

    def seconds_at(self, sizes: Mapping[str, int]) -> tuple[float, bool]:
        """The time of all, one after another, at the values of symbols, and whether the size of none is unknown."""
        counts = Counter((kind, evaluate(nbytes, sizes)) for kind, nbytes in self.operands)
        known = [(kind, nbytes, times) for (kind, nbytes), times in counts.items() if nbytes is not None]
        taken = sum(times * self._seconds(kind, nbytes) for kind, nbytes, times in known)
        return taken, len(known) == len(counts)

    def notes(self) -> Iterator[str]:
        """What is assumed."""
        if self.devices > 1:
            yield f"{self.devices} devices share each layer; {self.network}"
        if self.devices > 1 and self.engine and self.engine.sum_seconds and self.engine.sum_link_share:
            latency, share = 1e6 * self.engine.sum_seconds, 100 * self.engine.sum_link_share
            yield f"{self.engine.name} adds up over devices in {latency:g} µs and {share:g} % of a link's rate: a guess"
        if self.heads:
            copies = self.devices // self.heads
            yield f"each of {self.heads} heads of keys and values is on {copies} devices, with its weights and caches"
        if self.whole:
            yield f"{len(self.whole)} products run whole on each device, first {self.whole[0]}"

    def _seconds(self, kind: Kind, nbytes: int) -> float:
        assert self.network is not None
        by_nccl = seconds(kind, nbytes, self.devices, self.network).seconds
        links, engine = self.network.device.links, self.engine
        is_joined = bool(links) and self.devices <= self.network.node.devices
        if kind != "all_reduce" or not is_joined or engine is None:
            return by_nccl
        if engine.sum_seconds is None or engine.sum_link_share is None:
            return by_nccl
        reading = nbytes * (self.devices - 1) / (links[0].bandwidth * engine.sum_link_share)
        return min(by_nccl, engine.sum_seconds + reading, 2 * engine.sum_seconds + 2 * reading / self.devices)


def on_each(
    program: Graph, devices: int, network: Network, engine: Engine | None = None
) -> tuple[Graph, Exchanges]:
    """The program of one device, and what it exchanges: partial sums, and logits, which one device must have whole.

    Raises ModelError where nothing of it can be split over so many devices.
    """
    if devices == 1:
        return program, Exchanges(1)
    found = split(program, devices, can_copy=True)
    places = {node.name: node.module or node.name for node in program.nodes}
    whole = tuple([f"{shown(places.get(name, name))}: {why}" for name, why in found.refused.items()])
    if not found.parts:
        why = next(iter(whole), "no product by a weight")
        raise ModelError(f"nothing can be split over {devices} devices: {why}")
    sums = [one.value for one in found.exchanged if one.side == "out"]
    parts = [(name, found.parts[name]) for name in found.graph.returned if name in found.parts]
    logits = [name for name, part in parts if part.axis == found.rank(name) - 1]
    types: Mapping[str, Any] = found.graph.types
    operands: list[tuple[Kind, Dim]] = [("all_reduce", types[name].nbytes) for name in sums]
    operands += [("all_gather", types[name].nbytes) for name in logits]
    heads = max(part.pieces for part in found.parts.values())
    exchanges = Exchanges(devices, network, engine, tuple(operands), whole, heads)
    return replace(found.graph, eager=None), exchanges


_FEWEST = 2  # that an open axis has


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
    time_at: Callable[[Mapping[str, int]], PhaseTime]
    exchanges: Exchanges
    beside: float = 0.0  # seconds of the engine's own work in each step
    # Times by sizes.
    known: dict[frozenset[tuple[str, int]], PhaseTime] = msgspec.field(default_factory=dict)

    @staticmethod
    def of(program: Graph, setting: Setting, options: Mapping[str, Any]) -> Steps:
        """The steps of a program."""
        device, engine = setting.device, setting.engine
        options = {**options, "fused": True}  # as kernels for quantized weights do
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
        line = None if ids is None else affine(ids.shape[1])  # tokens may be open in steps of several
        length, multiple = ("", 1) if line is None or line[2] else line[:2]
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
