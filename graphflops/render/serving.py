"""A plan of serving for a terminal, a review, a spreadsheet and programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from graphflops.base.units import memory, rate, seconds
from graphflops.errors import OptionError
from graphflops.fitting.cells import QUANTITIES, Cell
from graphflops.render import summary
from graphflops.render.document import Document
from graphflops.render.tables import Entry, Listing, TextTable
from graphflops.render.tables import listing as as_table
from graphflops.render.text import safe
from graphflops.serving.plan import Replicas, Serving

_UNKNOWN = "?"
_MICRO = 1e6
_LEAST_BLOCK = 8  # tokens, of that simulator


def document(plan: Serving) -> Document:
    """What a request keeps, how many fit, the steps, and the load that keeps the limits.

    For spreadsheets and for simulators of engines the steps: seconds, one line for each batch and context.
    """
    exact, data = lambda: steps(plan, exact=True), lambda: _data(plan)
    return Document(tables(plan), notes(plan), headline(plan), exact, data)


def _data(plan: Serving) -> dict[str, Any]:
    cache, listed = plan.cache, steps(plan, exact=True)
    return {
        "schema": 1,
        "model": safe(plan.report.origin.path, 10_000),
        "device": plan.report.memory_use[-1].device,
        "execution": plan.report.execution,
        "engine": plan.engine.name,
        "output_tokens": plan.output_tokens,
        "price_per_hour": plan.price_per_hour,
        "cache": {name: getattr(cache, name) for name in ("inputs", "token_bytes", "request_bytes")},
        "requests": [
            {"context": n, "request_bytes": plan.kept_by(n), "requests": most} for n, most in plan.requests
        ],
        "steps": [dict(zip(listed.heads, row, strict=True)) for row in listed.rows],
        "limits": {"ttft": plan.limits.first, "tpot": plan.limits.each},
        "loads": [
            {
                "context": context,
                "batch": None if cell is None else cell.batch,
                "tokens_per_second": None if cell is None else cell.tokens_per_second,
            }
            for context, cell in plan.loads
        ],
        "notes": [*plan.notes],
    }


def llm_d_inference_sim(plan: Serving) -> str:
    """A configuration of llm-d-inference-sim 0.12 or later, which answers as vLLM does (its configuration.md).

    Its time of a token grows with the requests alone: from the least batch of the shortest context to the largest that fits.
    Its first token is a straight line: through the shortest and the longest context, and not below 0 for none.
    """
    fitting = [cell for cell in plan.cells if cell.context == plan.cells[0].context and cell.each is not None]
    if not fitting:
        shortest = plan.cells[0].context
        raise OptionError(f"no batch of the table fits at {shortest:,} tokens: give less --batch")
    least, most = (cell.each or 0.0 for cell in (fitting[0], fitting[-1]))
    short, long = plan.cells[0], plan.cells[-1]
    block = max(_LEAST_BLOCK, plan.engine.block_tokens)
    blocks = short.context * (short.most or 0) // block
    lines = [
        f"model: {msgspec.json.encode(summary.title(plan.report)).decode()}",
        f"max-model-len: {long.context + (plan.output_tokens or 0)}",
        f"max-num-seqs: {fitting[-1].batch}",
        "latency-calculator: per-token",
        "latencies:",
        f"  inter-token-latency: {least * _MICRO:.0f}us",
        f"  time-factor-under-load: {max(1.0, most / least):.3f}",
    ]
    if short.first is not None and long.first is not None:
        slope = long.first / long.context
        if long.context > short.context:
            slope = min(slope, (long.first - short.first) / (long.context - short.context))
        lines.append(f"  prefill-overhead: {max(0.0, long.first - slope * long.context) * _MICRO:.0f}us")
        lines.append(f"  prefill-time-per-token: {slope * _MICRO * 1000:.0f}ns")
    lines += ["kvcache:", f"  kv-cache-size: {blocks}", f"  block-size: {block}"]
    return "\n".join(lines) + "\n"


def headline(plan: Serving) -> str:
    """The first line: where it runs, and what a token of the cache takes."""
    each = memory(plan.cache.token_bytes)
    with_engine = "" if plan.engine.name == "none" else f" with {plan.engine.name}"
    where = safe(plan.report.memory_use[-1].device, 60)
    kept = f"each token of a request keeps {each} in {plan.cache.inputs} caches"
    if plan.cache.request_bytes:
        kept += f", each request {memory(plan.cache.request_bytes)} of any length"
    return f"{summary.title(plan.report)} on {where}{with_engine}: {kept}"


def notes(plan: Serving) -> Iterator[str]:
    """What is assumed, and what is not known."""
    unknown = plan.report.coverage.unknown_ops
    if unknown:
        yield f"what these take is not known, and times are at least: {safe(', '.join(unknown), 200)}"
    yield from (safe(note, 400) for note in plan.notes)


def tables(plan: Serving) -> Iterator[TextTable]:
    """Requests by context, steps by context and batch, and the load that keeps the limits."""
    fits = [
        Entry([f"{length:,}", memory(plan.kept_by(length)), f"{most:,}", _knee(plan, length)])
        for length, most in plan.requests
    ]
    yield TextTable(("context", "a request keeps", "requests that fit", "arithmetic limits from"), fits, 0)
    yield as_table(steps(plan, exact=False))
    if plan.loads:
        waits = [("first token", plan.limits.first), ("each token", plan.limits.each)]
        said = " and ".join(f"{what} within {seconds(most)}" for what, most in waits if most is not None)
        lines = [Entry([f"{context:,}", *_load(cell)]) for context, cell in plan.loads]
        heads = ("context", "requests", "first token", "each token", "tokens/s")
        yield TextTable(heads, lines, 0, title=f"most requests with {said}")


def _knee(plan: Serving, context: int) -> str:
    found = plan.knee(context)
    return "beyond the table" if found is None else f"batch {found:,}"


def _load(cell: Cell | None) -> list[str]:
    if cell is None or cell.each is None or cell.tokens_per_second is None:
        return ["none", "", "", ""]
    first = _UNKNOWN if cell.first is None else seconds(cell.first)
    return [f"{cell.batch:,}", first, seconds(cell.each), rate(cell.tokens_per_second)]


def steps(plan: Serving, *, exact: bool) -> Listing:
    """One row for each context and batch. exact: numbers in seconds, for programs."""
    if exact:
        return Listing.of([_exact(cell) for cell in plan.cells])
    has_price, has_energy = plan.price_per_hour is not None, any(cell.joules for cell in plan.cells)
    has_slowest = any(cell.slowest is not None for cell in plan.cells)
    heads = ["context", "batch", "first token", "each token", "limited by", "tokens/s"]
    heads[4:4] = ["slowest token"] * has_slowest
    heads += ["J/token <="] * has_energy + ["price of 1 M"] * has_price
    rows: list[list[Any]] = []
    for cell in plan.cells:
        first = _UNKNOWN if cell.first is None else seconds(cell.first)
        row = [f"{cell.context:,}", f"{cell.batch:,}", first]
        if cell.step is None or cell.each is None or cell.tokens_per_second is None:
            rows.append([*row, "does not fit", "", "", *[""] * (has_slowest + has_energy + has_price)])
            continue
        least = ">= " if cell.step.is_lower_bound else ""
        row += [least + seconds(cell.each)]
        row += [_UNKNOWN if cell.slowest is None else seconds(cell.slowest)] * has_slowest
        row += [cell.step.bound, rate(cell.tokens_per_second)]
        row += [_UNKNOWN if cell.joules is None else f"{cell.joules:.3g}"] * has_energy
        row += [f"{price:,.4g}" for price in [cell.price] if price is not None]
        rows.append(row)
    return Listing(heads, rows, figures=True)


def layouts(found: Sequence[Replicas], *, exact: bool) -> Listing:
    """One row for each number of copies and context. exact: numbers in seconds, for programs."""
    if exact:
        return Listing.of(
            [
                {"replicas": one.count, "devices": one.each, "context": one.context, "requests": one.requests}
                | {quantity.name: one.cell and quantity.of(one.cell) for quantity in QUANTITIES}
                | {"tokens_per_second": one.tokens_per_second, "said": one.said}
                for one in found
            ]
        )
    said = [quantity for quantity in QUANTITIES if quantity.name in ("ttft", "tpot")]
    has_price = any(one.cell and one.cell.price for one in found)
    heads = ["layout", "context", "requests", *(one.head for one in said), "limited by", "tokens/s"]
    lines = []
    for one in found:
        name = f"{one.count:,} x tp={one.each}"
        row = [name, f"{one.context:,}", *[""] * (len(heads) - 2 + has_price), safe(one.said, 120)]
        if one.cell is not None and one.cell.step is not None:
            values = [quantity.of(one.cell) for quantity in said]
            times = [_UNKNOWN if value is None else seconds(value) for value in values]
            price = [f"{one.cell.price:,.4g}"] if one.cell.price is not None else []
            limit, gained = one.cell.step.bound, rate(one.tokens_per_second)
            row[2:-1] = [f"{one.requests:,}", *times, limit, gained, *price]
        lines.append(row)
    return Listing([*heads, *["price of 1 M"] * has_price, ""], lines, figures=True)


def _exact(cell: Cell) -> dict[str, Any]:
    """A cell for programs: its quantities by name, the interval of its time, and what limits it."""
    step = cell.step
    row: dict[str, Any] = {"context": cell.context, "batch": cell.batch, "fits": step is not None}
    row |= {quantity.name: quantity.of(cell) for quantity in QUANTITIES}
    row |= {"tpot_low": None if step is None else step.low + cell.beside}
    row |= {"tpot_high": None if step is None else step.high + cell.beside}
    row |= {"beside": None if step is None else cell.beside, "bound": None if step is None else step.bound}
    return row
