"""Whether a program fits, and a plan of serving: for a terminal, a review, a spreadsheet and programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from graphflops.base.units import memory, percent, rate, seconds
from graphflops.errors import OptionError
from graphflops.fitting.cells import QUANTITIES, Cell, KvCache, known_of
from graphflops.fitting.fits import Fits, Verdict
from graphflops.render import summary
from graphflops.render.document import Document
from graphflops.render.memory import PARTS, amount, at_peak, described, label
from graphflops.render.text import Entry, Listing, Numbers, TextTable, safe
from graphflops.report.size_names import together
from graphflops.serving.plan import Replicas, Replication, Serving

_YES = ("no", "yes")


def fits_document(found: Fits) -> Document:
    """The verdict, what the memory holds, and what would make it fit."""
    style = "bold" if found.fits else "red"
    exact, data = lambda: Listing.of([*map(_device, found.verdicts)]), lambda: _fits_data(found)
    return Document(fits_tables(found), _notes(found), verdict(found), exact, data, style)


def _fits_data(found: Fits) -> dict[str, Any]:
    entry, values = found.entry, found.report.value
    sizes = {name: getattr(entry, name) for name in PARTS}
    parts = {name: None if size is None else values(size) for name, size in sizes.items()}
    fitting = [{"length": length, "requests": most} for length, most in found.requests]
    return {
        "schema": 1,
        "fits": found.fits,
        "is_lower_bound": found.is_lower_bound,
        "contradiction": safe(found.doubt, 1000) or None,
        "unknown_operators": {safe(op, 200): n for op, n in found.report.coverage.unknown_ops.items()},
        "model": safe(found.report.origin.path, 10_000),
        "phase": entry.phase,
        "execution": entry.execution,
        "varied": found.varied or None,
        "devices": [*map(_device, found.verdicts)],
        "phases": {name: [*map(_device, one.verdicts)] for name, one in found.phases.items()},
        "memory": parts,
        "cache": None if found.cache is None else _cache(found.cache) | {"requests": fitting},
        "at_largest": None if found.cell is None else known_of(found.cell),
        "remedies": [asdict(one) for one in found.remedies],
    }


def _cache(cache: KvCache) -> dict[str, Any]:
    return {name: getattr(cache, name) for name in ("inputs", "token_bytes", "request_bytes")}


def _device(verdict: Verdict) -> dict[str, Any]:
    names = ("device", "memory", "needed", "margin", "fits", "largest")
    return {name: getattr(verdict, name) for name in names}


def verdict(found: Fits) -> str:
    """The first line: yes or no, with the margin or the largest size."""
    first, verb = found.verdicts[0], "run" if found.entry.phase == "inference" else "train"
    model = summary.title(found.report)
    if len(found.verdicts) > 1:
        enough = sum(bool(one.largest) if found.varied else one.fits for one in found.verdicts)
        return f"{model} {verb}s on {enough} of {len(found.verdicts)} devices{_as_far(found)}"
    place = f"{safe(first.device, 60)} ({memory(first.memory)})"
    if found.varied:
        name = safe(found.varied, 60)
        if not first.largest:
            return f"no: {model} does not {verb} on {place} at any {name}"
        end = ", where the model's own range ends" if first.is_bounded else ""
        return f"{model} {verb}s on {place} up to {name} = {first.largest:,}{end}{_as_far(found)}"
    least = ">= " if found.is_lower_bound else ""
    needed = f"{least}{memory(first.needed)}"
    if first.fits:
        left = f"at most {memory(first.margin)}" if least else memory(first.margin)
        return f"yes{_as_far(found)}: {model} {verb}s on {place} in {needed}: {left} are left"
    if first.margin < 0:
        return f"no: {model} needs {needed} to {verb} on {place}: {memory(-first.margin)} too much"
    return f"no: {model} needs {needed} to {verb} on {place}: too close to its limit"


def _as_far(found: Fits) -> str:
    return ", as far as is known" if found.is_lower_bound or found.doubt else ""


def _notes(found: Fits) -> Iterator[str]:
    for name, one in found.phases.items():
        need = f"needs {memory(one.verdicts[0].needed)} on {safe(one.verdicts[0].device, 60)}"
        yield f"{name} at {', '.join(_sizes(one))} {need}" + ", as below" * (one.report is found.report)
    yield f"execution: {described(found.report)}"
    if found.doubt:
        yield safe(found.doubt, 1000)
    unknown = found.report.coverage.unknown_ops
    if unknown:
        yield f"the memory that these need beside their operands is unknown: {safe(', '.join(unknown), 200)}"
    yield from (safe(one.message, 400) for one in found.report.diagnostics if one.code in ("GF123", "GF124"))
    if (sizes := _sizes(found)) and not found.phases:
        yield f"at {', '.join(sizes)}"
    if found.cache is not None:
        each = f"{memory(found.cache.token_bytes)} for each token of a request"
        if found.cache.request_bytes:
            each += f", and {memory(found.cache.request_bytes)} for each request"
        yield f"cache of keys and values: {found.cache.inputs} inputs, {each}"
    if found.cell is not None:
        known = ((quantity, quantity.of(found.cell)) for quantity in QUANTITIES if quantity.is_step)
        said = [f"{quantity.head} {quantity.said(value)}" for quantity, value in known if value is not None]
        yield f"at {safe(found.varied, 60)} = {found.at_size:,}: {', '.join(said)}"


def _sizes(found: Fits) -> list[str]:
    """The first sizes of the program, with their values."""
    return [f"{safe(name, 40)} = {value:,}" for name, value in together(found.report.sizes).items()][:8]


def fits_tables(found: Fits) -> Iterator[TextTable]:
    """The devices, what the memory holds, requests of a decoder, and what would take less."""
    numbers = Numbers(found.report.value, 40, found.report.names)
    if len(found.verdicts) > 1:
        yield _devices(found)
    elif found.at_largest is not None:
        yield _bounds(found, numbers)
    else:
        sizes = ((name, getattr(found.entry, name)) for name in PARTS)
        known = ((name, size) for name, size in sizes if size not in (0, None))
        held = [Entry([label(name), amount(found.report, name, size, numbers)]) for name, size in known]
        more = found.verdicts[0].needed - (numbers.value(found.entry.taken) or 0)
        held += [Entry(["for gaps between blocks", memory(more)])] if more > 0 else []
        yield TextTable(("memory", "bytes"), held)
    if not found.fits and found.at_largest is None and len(found.verdicts) == 1:
        yield at_peak(found.report, found.entry, numbers)
    if found.requests:
        cache = found.cache
        assert cache is not None
        fitting = [Entry([f"{n:,}", memory(cache.bytes_at(n)), f"{most:,}"]) for n, most in found.requests]
        title = f"on {safe(found.verdicts[0].device, 60)}" if len(found.verdicts) > 1 else ""
        yield TextTable(("length of the cache", "bytes of one", "requests that fit"), fitting, title=title)
    if found.remedies:
        less = [Entry([one.change, one.option, memory(one.needed), _YES[one.fits]]) for one in found.remedies]
        yield TextTable(("what would take less", "how", "needed", "fits"), less, names=2)


def _devices(found: Fits) -> TextTable:
    lines = []
    for one in found.verdicts:
        extent = [f"{one.largest:,}" if one.largest else "none"] if found.varied else []
        needed = f"{'>= ' if found.is_lower_bound else ''}{memory(one.needed)}"
        sizes = [memory(one.memory), needed, memory(one.margin)]
        lines.append(Entry([safe(one.device, 60), *sizes, _YES[one.fits], *extent]))
    varied = [f"largest {safe(found.varied, 60)}"] if found.varied else []
    return TextTable(("device", "memory", "needed", "left", "fits", *varied), lines)


def _bounds(found: Fits, numbers: Numbers) -> TextTable:
    """What the memory holds at the largest size, and how much one step further takes."""
    assert found.at_largest is not None
    at, beyond = found.at_largest
    head = "" if beyond is None else "one more" if found.step == 1 else f"{found.step} more"
    lines = []
    for name in PARTS:
        size, more = (numbers.value(getattr(entry, name) or 0) or 0 for entry in (at, beyond or at))
        if size or more:
            share = percent(size, numbers.value(at.taken) or 1)
            is_told = beyond is not None and name not in ("reserved_peak", "device_total")
            step = memory(more - size) if is_told else ""
            lines.append(Entry([label(name), amount(found.report, name, size, numbers), share, step]))
    return TextTable((f"at {safe(found.varied, 40)} = {found.at_size:,}", "bytes", "%", head), lines)


_UNKNOWN = "?"
_MICRO = 1e6
_LEAST_BLOCK = 8  # tokens, of that simulator


def document(plan: Serving) -> Document:
    """What a request keeps, how many fit, the steps (for programs all, in seconds), and the load that keeps the limits."""
    exact, data = lambda: steps(plan, exact=True), lambda: _data(plan)
    return Document(tables(plan), notes(plan), headline(plan), exact, data)


def _data(plan: Serving) -> dict[str, Any]:
    listed = steps(plan, exact=True)
    return {
        "schema": 1,
        "model": safe(plan.report.origin.path, 10_000),
        "device": plan.report.memory_use[-1].device,
        "execution": plan.report.execution,
        "engine": plan.engine.name,
        "output_tokens": plan.output_tokens,
        "price_per_hour": plan.price_per_hour,
        "cache": _cache(plan.cache),
        "requests": [
            {"context": n, "request_bytes": plan.kept_by(n), "requests": most} for n, most in plan.requests
        ],
        "steps": [dict(zip(listed.heads, row, strict=True)) for row in listed.rows],
        "limits": {"ttft": plan.limits.first, "tpot": plan.limits.each},
        "loads": [
            {"context": n} | {name: cell and getattr(cell, name) for name in ("batch", "tokens_per_second")}
            for n, cell in plan.loads
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
        yield f"the cost of these is unknown, so times are lower bounds: {safe(', '.join(unknown), 200)}"
    yield from (safe(note, 400) for note in plan.notes)


def tables(plan: Serving) -> Iterator[TextTable]:
    """Requests by context, steps by context and batch, and the load that keeps the limits."""
    fits = []
    for length, most in plan.requests:
        knee = plan.knee(length)
        limited = "beyond the table" if knee is None else f"batch {knee:,}"
        fits.append(Entry([f"{length:,}", memory(plan.kept_by(length)), f"{most:,}", limited]))
    yield TextTable(("context", "a request keeps", "requests that fit", "arithmetic limits from"), fits, 0)
    yield steps(plan, exact=False).table()
    if plan.loads:
        waits = [("first token", plan.limits.first), ("each token", plan.limits.each)]
        said = " and ".join(f"{what} within {seconds(most)}" for what, most in waits if most is not None)
        heads, lines = ("first token", "each token", "tokens/s"), []
        for context, cell in plan.loads:
            words = {} if cell is None else _words(cell)
            requests = "none" if cell is None else f"{cell.batch:,}"
            lines.append(Entry([f"{context:,}", requests, *(words.get(head, "") for head in heads)]))
        yield TextTable(("context", "requests", *heads), lines, 0, title=f"most requests with {said}")


def steps(plan: Serving, *, exact: bool) -> Listing:
    """One row for each context and batch. exact: numbers in seconds, for programs."""
    if exact:
        return Listing.of([_exact(cell) for cell in plan.cells])
    heads = ["first token", "each token", "limited by", "tokens/s"]
    heads[2:2] = ["slowest token"] * any(cell.slowest is not None for cell in plan.cells)
    heads += ["J/token <="] * any(cell.joules for cell in plan.cells)
    heads += ["price of 1 M tokens"] * (plan.price_per_hour is not None)
    rows = []
    for cell in plan.cells:
        said = _words(cell)
        rows.append([f"{cell.context:,}", f"{cell.batch:,}", *(said.get(head, "") for head in heads)])
    return Listing(["context", "batch", *heads], rows, figures=True)


def _words(cell: Cell) -> dict[str, str]:
    """What requests wait for and cost, by the heads of columns; of those that do not fit only the first token."""
    first = {"first token": _UNKNOWN if cell.first is None else seconds(cell.first)}
    if cell.step is None or cell.each is None or cell.tokens_per_second is None:
        return {**first, "each token": "does not fit"}
    least = ">= " if cell.step.is_lower_bound else ""
    return {
        **first,
        "each token": least + seconds(cell.each),
        "slowest token": _UNKNOWN if cell.slowest is None else seconds(cell.slowest),
        "limited by": cell.step.bound,
        "tokens/s": rate(cell.tokens_per_second),
        "J/token <=": _UNKNOWN if cell.joules is None else f"{cell.joules:.3g}",
        "price of 1 M tokens": "" if cell.price is None else f"{cell.price:,.4g}",
    }


def replication_document(found: Replication) -> Document:
    """One row for each number of copies and context; what it assumes."""
    grid, title = layouts(found.ways, exact=False).table(), f"{summary.title(found.report)}: copies"
    what = "N x tp=M: N copies, each on M devices that share its layers; requests and tokens/s are those of all copies"
    notes, exact = [what, *(safe(note, 400) for note in found.notes)], layouts(found.ways, exact=True)
    data: dict[str, Any] = {"schema": 1, "model": safe(found.report.origin.path, 10_000)}
    data |= {"device": found.report.memory_use[-1].device, "devices": found.devices}
    rows = [dict(zip(exact.heads, row, strict=True)) for row in exact.rows]
    data |= {"layouts": rows, "notes": [*found.notes]}
    return Document([grid], notes, replication_headline(found), lambda: exact, lambda: data, title=title)


def replication_headline(found: Replication) -> str:
    """The first line: what serves the most tokens a second, by context."""
    best = {one.context: one for one in reversed(found.ways)}
    parts = []
    for length, one in sorted(best.items()):
        price = f" (price of 1 M: {one.cell.price:,.4g})" if one.cell and one.cell.price else ""
        each = f"at {length:,} tokens {one} makes {rate(one.tokens_per_second)} tokens/s{price}"
        parts += [each] if one.cell else []
    said = ", ".join(parts)
    where = f"{found.devices:,} x {safe(found.report.memory_use[-1].device, 60)}"
    return f"{summary.title(found.report)} on {where}: {said or 'no layout serves'}"


def layouts(found: Sequence[Replicas], *, exact: bool) -> Listing:
    """One row for each number of copies and context. exact: numbers in seconds, for programs."""
    if exact:
        rows = [
            {"replicas": one.count, "devices": one.each, "context": one.context, "requests": one.requests}
            | {quantity.name: one.cell and quantity.of(one.cell) for quantity in QUANTITIES}
            | {"tokens_per_second": one.tokens_per_second, "said": one.said}
            for one in found
        ]
        return Listing.of(rows)
    heads = ["requests", "first token", "each token", "limited by", "tokens/s"]
    heads += ["price of 1 M tokens"] * any(one.cell and one.cell.price for one in found)
    lines = []
    for one in found:
        said: dict[str, str] = {}
        if one.cell is not None and one.cell.step is not None:
            said = _words(one.cell)
            said |= {"requests": f"{one.requests:,}", "tokens/s": rate(one.tokens_per_second)}
        cells = (said.get(head, "") for head in heads)
        lines.append([str(one), f"{one.context:,}", *cells, safe(one.said, 120)])
    return Listing(["layout", "context", *heads, ""], lines, figures=True)


def _exact(cell: Cell) -> dict[str, Any]:
    """A cell for programs: its quantities by name, the interval of its time, and what limits it."""
    step = cell.step
    row: dict[str, Any] = {"context": cell.context, "batch": cell.batch, "fits": step is not None}
    row |= {quantity.name: quantity.of(cell) for quantity in QUANTITIES}
    names = ("tpot_low", "tpot_high", "beside", "bound")
    times = step and (step.low + cell.beside, step.high + cell.beside, cell.beside, step.bound)
    row |= dict(zip(names, times or [None] * len(names), strict=True))
    return row
