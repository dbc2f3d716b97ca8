"""Serving engines: what they need beside the program, the program as they run it, and the times of prefills and steps.

Figures of engines (memory, blocks of the cache, work in each step) are data: `engines.json`, with source and release.

An engine updates caches in place, reads each key once for all heads that share it, and makes no mask. Each of several
devices has its part of the weights, the heads and the caches, and sums go over the devices. A request has two phases: the
prefill of its prompt, and steps that make one token each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from graphflops.analysis import priced
from graphflops.base.record import Record, replace
from graphflops.derived.items import token_ids
from graphflops.derived.resize import refuse_guarded
from graphflops.dims import Dim, evaluate
from graphflops.dims.solving import affine, symbol_of
from graphflops.errors import ModelError, OptionError, require_choice, shown
from graphflops.fitting.cells import KvCache
from graphflops.graph import Graph, Node, Ref, tensor_type
from graphflops.links import Kind, Network, seconds
from graphflops.planning.split import split
from graphflops.report import Execution, Report
from graphflops.report.timeline import PhaseTime


class Engine(msgspec.Struct, frozen=True):
    """An engine. None: the engine lacks it, or nobody measured it."""

    memory_fraction: float | None  # the part of the memory that it takes
    # Of what it is a part: of the device, including the warm-up's peak; of the device, for weights and caches alone; or of
    # the memory that weights and the peak leave free, for caches alone.
    fraction_of: Literal["device", "weights and caches", "free"] | None
    block_tokens: int  # a cache grows by this many tokens
    sequences: int | None  # requests for which its warm-up samples
    bytes_per_logit: float | None  # of that sampling, for each request and each entry of the vocabulary
    prefill_tokens: int | None  # of its largest step
    libraries_bytes: int | None  # of CUDA and its libraries
    step_seconds: float | None  # the engine's own work in each step
    sum_seconds: float | None  # latency of its own all-reduce kernel
    sum_link_share: float | None  # the share of a link's bandwidth that this kernel reaches
    sources: Mapping[str, str]  # by field
    request_seconds: float | None = None  # the engine's own work for each request in a step
    # Whether steps wait until all prompts are done. If not, steps and prefills go through the layers together.
    prefills_first: bool | None = None
    name: str = ""

    @property
    def is_paged(self) -> bool:
        """Whether its caches grow in place, block by block."""
        return self.memory_fraction is not None

    def assumptions(self, has_prefill: bool) -> Iterator[str]:
        """What a plan assumes of the engine. has_prefill: whether the program of the largest step is known."""
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
    found = msgspec.json.decode(Path(__file__).with_name("engines.json").read_bytes(), type=dict[str, Engine])
    return {name: replace(one, name=name) for name, one in found.items()}


def engine_named(name: str) -> Engine:
    """The engine of this name. Raises OptionError for other names."""
    require_choice("engine", name, tuple(engines()))
    return engines()[name]


_LAYS_OUT = ("view", "movement", "identity")  # kinds of the calls that repeat heads


def as_engines_run(program: Graph) -> Graph:
    """A step or prefill without what engines do not need: joined caches (it returns new entries), repeated heads, masks."""
    caches = {entry.name for entry in program.inputs if entry.role == "user"}
    kept: dict[str, str] = {}  # by concatenation, its cache
    added: dict[str, str] = {}  # by concatenation, the new entries
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
        nodes.append(_grouped(renamed, program, kept) if node.operator.kind == "attention" else renamed)
    outputs = tuple([output.renamed(added) for output in program.outputs])
    needed, left = {name for output in outputs for _, name in output.uses()}, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs) or node.operator.mutates:
            left.append(node)
            needed.update(node.reads())
    return replace(program, nodes=tuple(reversed(left)), outputs=outputs, eager=None)


def _grouped(node: Node, program: Graph, kept: Mapping[str, str]) -> Node:
    """An attention that reads unrepeated keys and values, without a mask; unchanged if its operands have another form."""
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
    """The keys or values before their heads were repeated: the earliest tensor that differs only in its heads."""
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
    """The collectives of a run of a program."""

    devices: int
    network: Network | None = None
    engine: Engine | None = None  # sums by its own kernel, if it has one; else by NCCL
    operands: tuple[tuple[Kind, Dim], ...] = ()  # by collective, bytes of one device's operand
    whole: tuple[str, ...] = ()  # products that each device runs whole, with the reason
    heads: int = 0  # heads of keys and values, if fewer than the devices; else 0

    def seconds_at(self, sizes: Mapping[str, int]) -> tuple[float, bool]:
        """Seconds of all collectives in sequence, for these values of symbols, and whether all sizes are known."""
        counts = Counter((kind, evaluate(nbytes, sizes)) for kind, nbytes in self.operands)
        known = [(kind, nbytes, times) for (kind, nbytes), times in counts.items() if nbytes is not None]
        taken = sum(times * self._seconds(kind, nbytes) for kind, nbytes, times in known)
        return taken, len(known) == len(counts)

    def notes(self) -> Iterator[str]:
        """What is assumed of the devices and of the network."""
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
        if kind == "all_reduce" and is_joined and engine and engine.sum_seconds and engine.sum_link_share:
            once = engine.sum_seconds
            reading = nbytes * (self.devices - 1) / (links[0].bandwidth * engine.sum_link_share)
            return min(by_nccl, once + reading, 2 * once + 2 * reading / self.devices)
        return by_nccl


def on_each(
    program: Graph, devices: int, network: Network, engine: Engine | None = None
) -> tuple[Graph, Exchanges]:
    """The program of one device, and its collectives. Raises ModelError if nothing can be split over `devices` devices."""
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


_FEWEST = 2  # the smallest size of an open axis


class Setting(Record, frozen=True):
    """The devices and the engine that run a program."""

    device: str  # a profile's name or path
    execution: Execution
    engine: Engine
    devices: int  # devices that share each layer, joined by `network`
    network: Network
    kv_bits: int | None = None  # of an element of the caches; None: as in the program
    shared: float = 0.0  # the part of each context that requests have in common
    # Whether all requests begin together, as with clients that keep a fixed number of them running.
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
    """The steps of a decoder on one device, or on each of several."""

    report: Report
    time_at: Callable[[Mapping[str, int]], PhaseTime]
    exchanges: Exchanges
    beside: float = 0.0  # seconds of the engine's own work in each step
    # A memo of times by sizes.
    known: dict[frozenset[tuple[str, int]], PhaseTime] = msgspec.field(default_factory=dict)

    @staticmethod
    def of(program: Graph, setting: Setting, options: Mapping[str, Any]) -> Steps:
        """Prices the steps of a program."""
        device, engine = setting.device, setting.engine
        options = {**options, "fused": True}  # engines have kernels for quantized weights
        program, exchanges = on_each(program, setting.devices, setting.network, engine)
        as_given = priced(program, device, setting.execution, **options)
        if engine.is_paged:
            times = priced(as_engines_run(program), device, "compiled", **options).times(replayed=True)
        else:
            times = as_given.times()
        return Steps(as_given.report(), times, exchanges, engine.step_seconds or 0)

    def at(self, sizes: Mapping[str, int]) -> PhaseTime:
        """The time of a step for these sizes by symbol."""
        key = frozenset(sizes.items())
        if key not in self.known:
            refuse_guarded(self.report, sizes)
            time = self.time_at(sizes)
            sent, is_whole = self.exchanges.seconds_at({**self.report.values, **sizes})
            found = time if is_whole else replace(time, is_lower_bound=True)
            self.known[key] = changed(found, self.beside + sent)
        return self.known[key]

    def bytes_at(self, sizes: Mapping[str, int]) -> int | None:
        """Bytes that a step requests beside its weights; None if a size has no value."""
        entry, values = self.report.memory_use[-1], {**self.report.values, **sizes}
        return evaluate(entry.requested_peak - (entry.weights or 0) - (entry.buffers or 0), values)


class Prefill(Record, frozen=True):
    """The tokens of one request before its first step."""

    steps: Steps
    # The symbol of the number of tokens; if that is a multiple (chunks of a recurrence), the symbol that is multiplied.
    length: str
    others: Mapping[str, int]  # the values of other symbols
    batch: str = ""  # the symbol of the number of requests, "" if that is fixed
    multiple: int = 1

    @staticmethod
    def of(steps: Steps, cache: KvCache, program: Graph | None, setting: Setting) -> Prefill | None:
        """The prefill: by a program of its own, or by the steps' program if its number of new tokens is open; else None."""
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
        """The time for `tokens` tokens of one request, the first `kept` of which are in the caches already.

        The other tokens attend to these too: their pairs are those of all tokens minus those among the first `kept`.
        """
        if not kept:
            return self.steps.at(self.sizes_at(tokens))
        alone = self.at(max(tokens - kept, _FEWEST))
        beside = changed(self.at(tokens), -self.at(max(kept, _FEWEST)).seconds)
        return max(alone, beside, key=lambda time: time.seconds)

    def sizes_at(self, tokens: int) -> dict[str, int]:
        """The values of symbols for `tokens` tokens of one request."""
        chunks = -(-tokens // self.multiple)  # the last one is padded
        return {**self.others, self.length: chunks if self.multiple == 1 else max(chunks, _FEWEST)}

    def in_turn(self, requests: int, tokens: int, kept: int, largest: int) -> tuple[float, float]:
        """Mean seconds that requests wait before their first token, and after it, if all prefills come before steps.

        Prompts go through the layers `largest` tokens at a time; requests of the last pass do not wait after it.
        """
        own = tokens - kept
        passes = -(-requests * own // largest)
        each = self.at(tokens, kept).seconds
        if (several := min(requests, largest // own)) > 1 and not kept:
            sizes = self.sizes_at(tokens) | ({self.batch: several} if self.batch else {})
            each = self.steps.at(sizes).seconds / (several if self.batch else 1)
        whole = requests * each
        return whole * (1 + 1 / passes) / 2, whole * (1 - 1 / passes) / 2


def changed(time: PhaseTime, by: float) -> PhaseTime:
    """A time and its interval, shifted by `by` seconds."""
    least = max(time.low + by, 0.0)
    return replace(time, seconds=time.seconds + by, low=least, high=time.high + by) if by else time
