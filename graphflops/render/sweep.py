"""A sweep over sizes as a table, in each format that has tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphflops.base.units import interval, memory, number, rate, seconds
from graphflops.cost import REPORTED, Quantity
from graphflops.derived.items import cost_per_million
from graphflops.derived.resize import Point, Sweep
from graphflops.fitting.cells import QUANTITIES
from graphflops.render.document import Document
from graphflops.render.summary import NAMED
from graphflops.render.tables import Listing, listing
from graphflops.report.call_time import PhaseTime

# Heads; True: exact.
_TIMES = {False: ("time", "90 % interval"), True: ("seconds", "seconds_low", "seconds_high")}
_OTHERS = [quantity for quantity in REPORTED if quantity.name not in NAMED]


def document(sweep: Sweep) -> Document:
    """A row for each point; `?` for a figure that depends on a size without a value."""
    price = sweep.report.price_per_hour
    points = listing(cells(sweep.points, price, exact=False))
    return Document([points], exact=lambda: cells(sweep.points, price, exact=True))


def cells(points: Sequence[Point], price_per_hour: float | None = None, *, exact: bool) -> Listing:
    """One row for each point. exact: whole numbers, for programs."""
    count: Callable[[int], str | int] = (lambda n: n) if exact else number
    held: Callable[[int], str | int] = (lambda n: n) if exact else memory
    has_masks = any(point.cost["masked_flops"] for point in points)
    others = [q for q in _OTHERS if not q.is_rare or any(point.cost[q.name] != 0 for point in points)]
    is_timed = any(point.time is not None for point in points)
    names = [*points[0].sizes] if points else []
    counted = list(dict.fromkeys(name for point in points for name in point.rates))
    heads = [*names, *_heads(exact, has_masks, others), *(_TIMES[exact] if is_timed else ())]
    has_price = price_per_hour is not None
    rates, price = ("{}_per_second", "price_of_a_million_{}") if exact else ("{}/s", "price of 1 M {}")
    heads += [form.format(name) for form in (rates, *[price] * has_price) for name in counted]
    served = [quantity for quantity in QUANTITIES if any(quantity.name in point.serving for point in points)]
    heads += [quantity.name if exact else quantity.head for quantity in served]
    rows = []
    for point in points:
        flops, masked = point.cost["matrix_flops"], point.cost["masked_flops"]
        visible = None if flops is None or masked is None else flops - masked
        intensity = "" if point.intensity is None else f"{point.intensity:.4g}"
        row: list[str | float] = [size if exact else f"{size:,}" for size in point.sizes.values()]
        row += [_cell(flops, count), *([_cell(visible, count)] if has_masks else [])]
        row += [_cell(point.cost["vector_flops"], count), _cell(point.cost["transcendentals"], count)]
        row += [_cell(point.cost[q.name], held if q.unit == "B" else count) for q in others]
        row += [_cell(point.traffic, held), intensity, _cell(point.peak_bytes, held)]
        row += _time(point.time, exact=exact) if is_timed else []
        row += _rates(point, counted, price_per_hour, exact=exact)
        found = [point.serving.get(quantity.name) for quantity in served]
        for quantity, value in zip(served, found, strict=True):
            row.append("?" if value is None else value if exact else quantity.said(value))
        rows.append(row)
    return Listing(heads, rows, figures=True)


def _heads(exact: bool, has_masks: bool, others: Sequence[Quantity]) -> list[str]:
    if exact:
        work = ["matrix_flops", *(["visible_flops"] if has_masks else []), "vector_flops", "transcendentals"]
        return [*work, *(q.name for q in others), "bytes", "flops_per_byte", "peak_bytes"]
    work = ["FLOPs", *(["visible"] if has_masks else []), "vector", "transcendental"]
    return [*work, *(q.head for q in others), "bytes", "FLOP/B", "peak memory"]


def _time(time: PhaseTime | None, *, exact: bool) -> list[str | float]:
    """The cells of a predicted time, with its 90 % interval."""
    if time is None:
        return ["?"] * len(_TIMES[exact])
    if exact:
        return [time.seconds, time.low, time.high]
    least = ">= " if time.is_lower_bound else ""
    return [least + seconds(time.seconds), interval(time.low, time.high)]


def _rates(
    point: Point, counted: Sequence[str], price_per_hour: float | None, *, exact: bool
) -> Iterator[str | float]:
    """What a second takes in, and what a million of each cost; a time that is a lower bound makes them bounds."""
    most, least = ("at most ", ">= ") if point.time is not None and point.time.is_lower_bound else ("", "")
    prices = cost_per_million(point.rates, price_per_hour)
    for name in counted:
        found = point.rates.get(name)
        yield "?" if found is None else found if exact else most + rate(found)
    for name in counted if price_per_hour is not None else ():
        found = prices.get(name)
        yield "?" if found is None else found if exact else f"{least}{found:,.4g}"


def _cell(value: int | None, shown: Callable[[int], str | int]) -> str | int:
    return "?" if value is None else shown(value)
