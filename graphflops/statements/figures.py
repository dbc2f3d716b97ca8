"""FLOPs of one run or training step of a program under named conventions, hours and energy.

Hours are given, or predicted from the profile of a device, as energy is; the published peaks say how long work takes at
least.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, Literal

from graphflops.attention import AttentionUse
from graphflops.attention.kernel import causal_fraction
from graphflops.derived.items import items
from graphflops.derived.per_item import needed, per_item, value_of
from graphflops.devices import Device
from graphflops.errors import ModelError
from graphflops.ops import operator
from graphflops.report import Report, Row

HOUR = 3600


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity between two bounds. basis: whether the user gives it, or graphflops predicts it."""

    low: float
    high: float
    basis: Literal["given", "predicted"]


def least_seconds(flops: Mapping[str, int], device: Device) -> float:
    """Seconds that matrix work by element type takes at the published peaks of one device; nan where one is not known."""
    from graphflops.time.predict import matrix_peak

    return sum(count / (matrix_peak(dtype, device) or nan) for dtype, count in flops.items())


def predicted_hours(report: Report, tokens: int, items: int, devices: int) -> Interval | None:
    """Hours in which devices that share all work evenly, and wait for nothing, take in so many tokens."""
    time, step = report.step_time or report.totals.time, report.training
    if time is None:
        return None
    runs = tokens / (items * (step.accumulate if step else 1) * devices * HOUR)
    return Interval(time.low * runs, time.high * runs, "predicted")


def added(parts: Iterable[Interval | None]) -> Interval | None:
    """The sum of predicted intervals; None where one is not known, or there is none."""
    known = [*parts]
    if None in known or not known:
        return None
    return Interval(sum(p.low for p in known if p), sum(p.high for p in known if p), "predicted")


def energy(hours: Interval | None, device: Device | None, devices: int) -> Interval | None:
    """Kilowatt-hours of the nodes that devices are in, from their power limit; None where hours or limit are not known."""
    if hours is None or device is None or device.power_watts is None:
        return None
    kilowatts, share = devices * device.power_watts / 1000, node_power()
    return Interval(hours.low * kilowatts * share["low"], hours.high * kilowatts * share["high"], "predicted")


def node_power() -> dict[str, Any]:
    """Power of a node in training over the power limits of its devices, `low` to `high`, and where that is from."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "power.json").read_text("utf-8"))
    return found


_PRODUCTS = 3  # of a linear layer in training: the forward's, and one for each factor's gradient
_OPERANDS = 3  # of an attention without a mask that is passed as a tensor


@dataclass(frozen=True, slots=True)
class Figures:
    """FLOPs of one run, or of a micro-step of training, which takes in so many items.

    model: each visible pair of an attention once, no recomputation; executed: what kernels multiply; both by element type.
    simple: 6N, or 2N without training; attention: of all pairs, three times in training. vector: elementwise, in none of
    these. update: matrix work of one update of the optimizer. used: parameters that an item uses. vocabulary: rows of the
    first table that is looked up, None without one.
    """

    items: int
    model: Mapping[str, int]
    executed: Mapping[str, int]
    simple: int
    attention: int
    vector: int
    update: int
    used: int
    vocabulary: int | None


def figures(report: Report, axis: str) -> Figures:
    """The figures of a report whose items are the entries of an input axis. Raises ModelError where a size has no value.

    N are the parameters that an item uses: all, embeddings too, but for experts that it is not routed to. A frozen parameter
    has 4 instead of 6: no gradient of its own.
    """
    per, step, vector = per_item(report, axis), report.training, 0
    model: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    if any(row.phase == "backward" for row in report.rows):
        raise ModelError("the program holds its gradients already: give the one exported without them")
    uses = {name: use for use in report.attentions for name in use.calls}
    for row in report.rows:
        model[row.matrix_dtype] += needed(report, row, visible=True)
        part = _executed(report, row, uses[row.node]) if row.node in uses else 1.0
        for cost in (row.cost, *([row.backward] if row.backward else ())):
            executed[row.matrix_dtype] += round(value_of(report, cost.matrix_flops) * part)
            vector += value_of(report, cost.vector_flops)
    made = {named.name for row in report.rows for named in row.outputs}
    stored = [(row, named) for row in report.rows for named in row.inputs if named.name not in made]
    tables = (named for row, named in stored if row.inputs.index(named) == 0 and len(row.inputs) > 1
              and operator(row.op).kind == "gather")  # fmt: skip
    table = next(tables, None)
    used = trained = report.parameters - per.parameters + per.active_parameters
    if step is not None and (step.lora_rank or step.freeze):
        wanted = {named.name: named.type.numel for _, named in stored if named.type.requires_grad}
        trained = min(used, sum(value_of(report, size) for size in wanted.values()))
    simple = 2 * used if step is None else 4 * used + 2 * trained
    attention = sum(value_of(report, use.flops) for use in report.attentions)
    update = 0 if report.optimizer is None else value_of(report, report.optimizer.cost.matrix_flops)
    return Figures(
        per.items, +model, +executed, per.items * simple, attention * (_PRODUCTS if step else 1), vector, update, used,
        None if table is None else value_of(report, table.type.shape[0]),
    )  # fmt: skip


def token_axis(report: Report) -> str:
    """The input axis along which tokens stand; ModelError for a program that takes none in."""
    for named in report.inputs:
        if named.type.rank > 1 and named.type.dtype.kind in ("int", "uint") and "tokens" in items(report):
            return f"{named.name}[1]"
    raise ModelError("the program looks up no tokens: say what is counted, such as --per x[0] for images")


def _executed(report: Report, row: Row, use: AttentionUse) -> float:
    """The part of the pairs in tiles that a fused kernel multiplies, where it knows the mask; 1 elsewhere."""
    is_passed = len(row.inputs) > _OPERANDS and use.partial_blocks is None  # as a tensor, which hides nothing
    if not use.is_fused or use.mask != "structure" or is_passed:
        return 1.0
    if use.pattern == "causal":
        return causal_fraction(value_of(report, use.queries), value_of(report, use.keys))
    return 1 - value_of(report, use.masked_flops) / max(value_of(report, use.flops), 1)
