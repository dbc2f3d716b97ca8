"""Whether a program fits, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from graphflops.base.units import memory, percent
from graphflops.fitting.cells import QUANTITIES, known_of
from graphflops.fitting.fits import Fits, Verdict
from graphflops.render import summary
from graphflops.render.document import Document
from graphflops.render.memory import amount, described, label
from graphflops.render.tables import Entry, Listing, TextTable, at_peak
from graphflops.render.text import Numbers, safe
from graphflops.report import ENTRIES
from graphflops.report.size_names import together

_TOTALS = ("requested_peak", "allocated_peak", "reserved_peak", "context", "device_total")


def document(found: Fits) -> Document:
    """The verdict, what the memory holds, and what would make it fit."""
    style = "bold" if found.fits else "red"
    exact, data = lambda: Listing.of([_device(one) for one in found.verdicts]), lambda: _data(found)
    return Document(tables(found), _notes(found), verdict(found), exact, data, style)


def _data(found: Fits) -> dict[str, Any]:
    entry, values = found.entry, found.report.value
    names = (*dict.fromkeys(ENTRIES.values()), *_TOTALS)
    sizes = {name: getattr(entry, name) for name in names}
    parts = {name: None if size is None else values(size) for name, size in sizes.items()}
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
        "devices": [_device(verdict) for verdict in found.verdicts],
        "memory": parts,
        "cache": None
        if found.cache is None
        else {
            "inputs": found.cache.inputs,
            "token_bytes": found.cache.token_bytes,
            "request_bytes": found.cache.request_bytes,
            "requests": [{"length": length, "requests": most} for length, most in found.requests],
        },
        "at_largest": None if found.cell is None else known_of(found.cell),
        "remedies": [asdict(one) for one in found.remedies],
    }


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
    """What stands after a yes where the program may need more than is known."""
    return ", as far as is known" if found.is_lower_bound or found.doubt else ""


def _notes(found: Fits) -> Iterator[str]:
    yield described(found.report)
    if found.doubt:
        yield safe(found.doubt, 1000)
    unknown = found.report.coverage.unknown_ops
    if unknown:
        yield f"what these need beside their operands is not known: {safe(', '.join(unknown), 200)}"
    yield from (safe(one.message, 400) for one in found.report.diagnostics if one.code in ("GF123", "GF124"))
    sizes = [f"{safe(name, 40)} = {value}" for name, value in together(found.report.sizes).items()]
    if sizes:
        yield f"at {', '.join(sizes[:8])}"
    if found.cache is not None:
        each = f"{memory(found.cache.token_bytes)} for each token of a request"
        if found.cache.request_bytes:
            each += f", and {memory(found.cache.request_bytes)} for each request"
        yield f"cache of keys and values: {found.cache.inputs} inputs, {each}"
    if found.cell is not None:
        known = ((quantity, quantity.of(found.cell)) for quantity in QUANTITIES if quantity.is_step)
        said = [f"{quantity.head} {quantity.said(value)}" for quantity, value in known if value is not None]
        yield f"at {safe(found.varied, 60)} = {found.at_size:,}: {', '.join(said)}"


def tables(found: Fits) -> Iterator[TextTable]:
    """The devices, what the memory holds, requests of a decoder, and what would take less."""
    numbers = Numbers(found.report.value, 40, found.report.names)
    if len(found.verdicts) > 1:
        yield _devices(found)
    elif found.at_largest is not None:
        yield _bounds(found, numbers)
    else:
        yield TextTable(("memory", "bytes"), [Entry([name, size]) for name, size in _parts(found, numbers)])
    if not found.fits and found.at_largest is None and len(found.verdicts) == 1:
        yield at_peak(found.report, found.entry, numbers)
    if found.requests:
        assert found.cache is not None
        cache = found.cache
        fitting = [Entry([f"{n:,}", memory(cache.bytes_at(n)), f"{most:,}"]) for n, most in found.requests]
        yield TextTable(("length of the cache", "bytes of one", "requests that fit"), fitting)
    if found.remedies:
        lines = [
            Entry([one.change, one.option, memory(one.needed), "yes" if one.fits else "no"])
            for one in found.remedies
        ]
        yield TextTable(("what would take less", "how", "needed", "fits"), lines, names=2)


def _parts(found: Fits, numbers: Numbers) -> Iterator[tuple[str, str]]:
    for name in (*dict.fromkeys(ENTRIES.values()), *_TOTALS):
        size = getattr(found.entry, name)
        if size not in (0, None):
            yield label(name), amount(found.report, name, size, numbers)
    more = found.verdicts[0].needed - (numbers.value(found.entry.taken) or 0)
    if more > 0:
        yield "for gaps between blocks", memory(more)


def _devices(found: Fits) -> TextTable:
    lines = []
    for one in found.verdicts:
        extent = [f"{one.largest:,}" if one.largest else "none"] if found.varied else []
        needed = f"{'>= ' if found.is_lower_bound else ''}{memory(one.needed)}"
        sizes = [memory(one.memory), needed, memory(one.margin)]
        lines.append(Entry([safe(one.device, 60), *sizes, "yes" if one.fits else "no", *extent]))
    varied = [f"largest {safe(found.varied, 60)}"] if found.varied else []
    return TextTable(("device", "memory", "needed", "left", "fits", *varied), lines)


def _bounds(found: Fits, numbers: Numbers) -> TextTable:
    """What the memory holds at the largest size, and how much one step further takes."""
    assert found.at_largest is not None
    at, beyond = found.at_largest
    head = "" if beyond is None else "one more" if found.step == 1 else f"{found.step} more"
    lines = []
    for name in (*dict.fromkeys(ENTRIES.values()), *_TOTALS):
        size, more = (numbers.value(getattr(entry, name) or 0) or 0 for entry in (at, beyond or at))
        if size or more:
            share = percent(size, numbers.value(at.taken) or 1)
            is_told = beyond is not None and name not in ("reserved_peak", "device_total")
            step = memory(more - size) if is_told else ""
            lines.append(Entry([label(name), amount(found.report, name, size, numbers), share, step]))
    return TextTable((f"at {safe(found.varied, 40)} = {found.at_size}", "bytes", "%", head), lines)
