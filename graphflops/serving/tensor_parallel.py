"""A decoder as each of several devices runs it: its part of the weights, the heads and the caches; sums over the devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphflops.dims import Dim, evaluate
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph
from graphflops.links import Kind, Network, seconds
from graphflops.planning.split import split
from graphflops.serving.engines import Engine


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What the devices send one another in a run of a program: by collective, bytes of one device's operand.

    engine: whose own kernel sums, where it has one; else NCCL. whole: products that each device runs whole, with the reason.
    heads: of keys and values, where they are fewer than the devices; else 0.
    """

    devices: int
    network: Network | None = None
    engine: Engine | None = None
    operands: tuple[tuple[Kind, Dim], ...] = ()
    whole: tuple[str, ...] = ()
    heads: int = 0

    def seconds_at(self, sizes: Mapping[str, int]) -> tuple[float, bool]:
        """The time of all, one after another, at the values of symbols, and whether the size of none is unknown."""
        counts = Counter((kind, evaluate(nbytes, sizes)) for kind, nbytes in self.operands)
        known = [(kind, nbytes, times) for (kind, nbytes), times in counts.items() if nbytes is not None]
        return sum(times * self._seconds(kind, nbytes) for kind, nbytes, times in known), len(known) == len(
            counts
        )

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
        raise ModelError(
            f"nothing can be split over {devices} devices: {next(iter(whole), 'no product by a weight')}"
        )
    sums = [one.value for one in found.exchanged if one.side == "out"]
    parts = [(name, found.parts[name]) for name in found.graph.returned if name in found.parts]
    logits = [name for name, part in parts if part.axis == found.rank(name) - 1]
    types: Mapping[str, Any] = found.graph.types
    operands: list[tuple[Kind, Dim]] = [("all_reduce", types[name].nbytes) for name in sums]
    operands += [("all_gather", types[name].nbytes) for name in logits]
    return replace(found.graph, eager=None), Exchanges(
        devices, network, engine, tuple(operands), whole, max(part.pieces for part in found.parts.values())
    )
