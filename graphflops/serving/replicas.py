"""How many devices serve a decoder best: replicas of it, each on a few devices that share every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphflops.base.record import Record
from graphflops.devices import complete
from graphflops.devices import device as device_named
from graphflops.errors import ModelError, OptionError
from graphflops.fitting.cells import Cell
from graphflops.links import network_of
from graphflops.loading import Model
from graphflops.planning.plan import divisors
from graphflops.serving.plan import prepared

_MOST_DEVICES = 2**17


class Replicas(Record, frozen=True):
    """`count` copies of a decoder, each on `each` devices."""

    count: int
    each: int
    context: int
    cell: Cell | None  # of one copy's most requests that fit and keep the limits
    said: str = ""  # why there is none, else what is assumed

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all copies."""
        return self.count * (self.cell.tokens_per_second or 0) if self.cell is not None else 0.0

    @property
    def requests(self) -> int:
        """Requests of all copies at once."""
        return self.count * self.cell.batch if self.cell is not None else 0


def replicas(
    model: Model, *, devices: int, device: str, context: Sequence[int] = (8192,), network: str | None = None,
    **options: Any,
) -> tuple[Replicas, ...]:  # fmt: skip
    """All ways to serve a decoder on so many devices, by context, those that make most tokens a second first.

    Copies are on 1 to as many devices as a node has, which share each layer (tensor parallel; experts too are split, each of
    them). options: as of `serve`. Raises as `serve`.
    """
    if not 1 <= devices <= _MOST_DEVICES:
        raise OptionError(f"--devices {devices:,}: give 1 to {_MOST_DEVICES:,}")
    node = network_of(complete(device_named(device)), network).node.devices
    found: list[Replicas] = []
    for each in divisors(devices):
        if each <= node:
            found += _of(model, devices // each, each, context, device=device, network=network, **options)
    return tuple(sorted(found, key=lambda one: (one.context, -one.tokens_per_second)))


def _of(model: Model, count: int, each: int, context: Sequence[int], **options: Any) -> list[Replicas]:
    """So many copies, at each context."""
    try:
        plan, limits = prepared(model, devices=each, context=context, **options)
    except ModelError as error:
        if each == 1:
            raise  # it serves on no number of devices
        return [Replicas(count, each, length, None, str(error)) for length in context]
    whole = len(plan.steps.exchanges.whole)
    found = []
    for length in sorted({*context}):
        most = plan.most(length)
        cell = plan.load(most, length, limits)
        lacking = "no request keeps the limits" if most else "no request fits"
        said = lacking if cell is None else f"{whole} products run whole on each device" if whole else ""
        found.append(Replicas(count, each, length, cell, said))
    return found
