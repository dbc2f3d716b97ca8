"""A plan of serving for a terminal, a review, a spreadsheet and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from graphflops.base.units import memory, rate, seconds
from graphflops.render import csv as csv_
from graphflops.render import summary
from graphflops.render.json import inert
from graphflops.render.markdown import told
from graphflops.render.tables import Entry, Listing, TextTable
from graphflops.render.tables import listing as as_table
from graphflops.render.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.serving.plan import Cell, Serving

_UNKNOWN = "?"


def table(plan: Serving, *, width: int = 120, color: bool = False) -> str:
    """What a request keeps, how many fit, the steps, and the load that keeps the limits."""
    from graphflops.render.table import told as page

    return page((headline(plan), "bold"), notes(plan), tables(plan), width, color).text()


def markdown(plan: Serving) -> str:
    """The same tables."""
    return told(headline(plan), tables(plan))


def csv(plan: Serving) -> str:
    """The steps, for spreadsheets and for simulators of engines: seconds, one line for each batch and context."""
    return csv_.listing(steps(plan, exact=True))


def json(plan: Serving) -> str:
    """The plan for programs: seconds and bytes."""
    cache, listed = plan.cache, steps(plan, exact=True)
    data = {
        "schema": 1,
        "model": safe(plan.report.origin.path, 10_000),
        "device": plan.report.memory_use[-1].device,
        "execution": plan.report.execution,
        "engine": plan.engine.name,
        "output_tokens": plan.output_tokens,
        "price_per_hour": plan.price_per_hour,
        "cache": {
            "inputs": cache.inputs,
            "token_bytes": cache.token_bytes,
            "request_bytes": cache.request_bytes,
        },
        "requests": [
            {"context": length, "request_bytes": plan.kept_by(length), "requests": most}
            for length, most in plan.requests
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
    return inert(msgspec.json.encode(data))


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
    has_price, has_energy = plan.price_per_hour is not None, any(cell.joules for cell in plan.cells)
    if exact:
        heads = ["context", "batch", "fits", "ttft", "tpot", "tpot_low", "tpot_high", "beside", "bound"]
        heads += ["tokens_per_second", "joules_per_token", "price_of_a_million_tokens"]
        return Listing(heads, [_exact(plan, cell) for cell in plan.cells], figures=True)
    heads = ["context", "batch", "first token", "each token", "limited by", "tokens/s"]
    heads += ["J/token <="] * has_energy + ["price of 1 M"] * has_price
    rows: list[list[Any]] = []
    for cell in plan.cells:
        row = [
            f"{cell.context:,}",
            f"{cell.batch:,}",
            _UNKNOWN if cell.first is None else seconds(cell.first),
        ]
        if cell.step is None or cell.each is None or cell.tokens_per_second is None:
            rows.append([*row, "does not fit", "", "", *[""] * (has_energy + has_price)])
            continue
        least = ">= " if cell.step.is_lower_bound else ""
        row += [least + seconds(cell.each), cell.step.bound, rate(cell.tokens_per_second)]
        row += [_UNKNOWN if cell.joules is None else f"{cell.joules:.3g}"] * has_energy
        row += [f"{price:,.4g}" for price in [cell.price(plan.price_per_hour)] if price is not None]
        rows.append(row)
    return Listing(heads, rows, figures=True)


def _exact(plan: Serving, cell: Cell) -> list[Any]:
    step, first = cell.step, cell.first
    row: list[Any] = [cell.context, cell.batch, step is not None, first, cell.each]
    if step is None:
        return [*row, *[None] * 7]
    row += [step.low + cell.beside, step.high + cell.beside, cell.beside, step.bound]
    return [*row, cell.tokens_per_second, cell.joules, cell.price(plan.price_per_hour)]
