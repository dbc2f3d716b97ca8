"""A decoder as each of several devices runs it: its part of the weights, the heads and the caches; sums over the devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from graphflops.dims import evaluate
from graphflops.errors import ModelError, shown
from graphflops.links import seconds
from graphflops.planning.split import split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphflops.dims import Dim
    from graphflops.graph import Graph
    from graphflops.links import Kind, Network


_SHARE = 0.75  # of NVLink's bandwidth that a kernel reading other devices' memory reaches


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What the devices send one another in a run of a program: by collective, bytes of one device's operand.

    latency: seconds of a sum by an engine's own kernel, which reads the others' memory; None where NCCL sums.
    whole: products that every device runs whole, each with the reason.
    """

    devices: int
    network: Network | None = None
    latency: float | None = None
    operands: tuple[tuple[Kind, Dim], ...] = ()
    whole: tuple[str, ...] = ()

    def seconds_at(self, sizes: Mapping[str, int]) -> float:
        """The time of all, one after another, at the values of symbols."""
        if self.network is None:
            return 0.0
        counts = Counter((kind, evaluate(nbytes, sizes) or 0) for kind, nbytes in self.operands)
        return sum(times * self._seconds(kind, nbytes) for (kind, nbytes), times in counts.items())

    def notes(self) -> Iterator[str]:
        """What is assumed."""
        if self.devices > 1:
            yield f"{self.devices} devices share each layer; {self.network}"
        if self.whole:
            yield f"{len(self.whole)} products run whole on each device, first {self.whole[0]}"

    def _seconds(self, kind: Kind, nbytes: int) -> float:
        assert self.network is not None
        by_nccl = seconds(kind, nbytes, self.devices, self.network).seconds
        device, others = self.network.device, self.devices - 1
        if (
            kind != "all_reduce"
            or self.latency is None
            or self.devices > self.network.node.devices
            or not device.links
        ):
            return by_nccl
        reading = nbytes * others / (device.links[0].bandwidth * _SHARE)
        return min(by_nccl, self.latency + reading, 2 * self.latency + 2 * reading / self.devices)


def on_each(
    program: Graph, devices: int, network: Network, latency: float | None = None
) -> tuple[Graph, Exchanges]:
    """The program of one device, and what it exchanges: partial sums, and logits, which one device must have whole.

    Raises ModelError where nothing of it can be split over so many devices.
    """
    if devices == 1:
        return program, Exchanges(1)
    found = split(program, devices)
    places = {node.name: node.module or node.name for node in program.nodes}
    whole = tuple([f"{shown(places.get(name, name))}: {why}" for name, why in found.refused.items()])
    if not found.parts:
        raise ModelError(
            f"nothing can be split over {devices} devices: {next(iter(whole), 'no product by a weight')}"
        )
    sums: list[tuple[Kind, Dim]] = []
    for one in found.exchanged:
        summed = found.graph.types[one.value]
        if one.side == "out":
            sums.append(("all_reduce", summed.nbytes))  # type: ignore[union-attr]
    for name in found.graph.returned:
        part = found.parts.get(name)
        if part is not None and part.axis == found.rank(name) - 1:
            sums.append(("all_gather", found.graph.types[name].nbytes))  # type: ignore[union-attr]
    return replace(found.graph, eager=None), Exchanges(devices, network, latency, tuple(sums), whole)
