"""A compute statement for a terminal, a model card, a page, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphflops.base.units import number, parameters, power
from graphflops.render.json import inert
from graphflops.render.tables import Entry, TextTable
from graphflops.render.text import safe
from graphflops.statements.figures import Flops
from graphflops.statements.resources import Interval
from graphflops.statements.statement import Statement

CONVENTIONS = {  # by field of Flops: its name, its formula, and where it parts from the first
    "model": ("model FLOPs", "matrix work of forward and gradients, visible pairs once", ""),
    "executed": ("executed FLOPs", "the same as kernels multiply it", "recomputation, and hidden pairs beside visible ones"),
    "six_nd": ("6ND", "6 x used parameters x tokens; 4 frozen, 2 untrained", "no attention, and embeddings count"),
    "six_nd_attention": ("6ND + attention", "6ND + 3 x attention of all pairs", "hidden pairs, and embeddings count"),
}  # fmt: skip


def table(found: Statement, *, width: int = 120, color: bool = False) -> str:
    """What the run cost, by stage and convention, where it stands against thresholds, and what is assumed."""
    from graphflops.render.document import told

    (_, figures), *others = lists(found)
    screen = told((headline(found), "bold"), figures, tables(found), width, color)
    for title, lines in others:
        screen.line()
        screen.line((title, "bold"))
        for line in lines:
            screen.line((f"  {line}", ""))
    return screen.text()


def markdown(found: Statement) -> str:
    """A section of a model card."""
    from graphflops.render.markdown import drawn, escaped

    parts = [f"## Compute\n\n{escaped(headline(found))}.\n", *map(drawn, tables(found))]
    for title, lines in lists(found):
        parts.append(f"{title}:\n\n" + "".join(f"- {escaped(line)}\n" for line in lines))
    return "\n".join(parts)


def json(found: Statement) -> str:
    """The whole statement, as docs/statement.schema.json describes it."""
    return inert(msgspec.json.encode(found))


def html(found: Statement) -> str:
    """A page that needs no network and runs no script."""
    from graphflops.render.html.file import page

    return page(f"{found.model}: compute statement", f"<h1>Compute statement</h1>{fragment(found)}")


def fragment(found: Statement) -> str:
    """The same for a notebook."""
    from graphflops.render.html.fragment import escaped, table

    parts = [f"<p><b>{escaped(headline(found))}</b></p>", *map(table, tables(found))]
    for title, lines in lists(found):
        items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
        parts.append(f"<p><b>{title}</b></p><ul>{items}</ul>")
    return f"<div>{''.join(parts)}</div>"


def headline(found: Statement) -> str:
    """The run in one line."""
    flops, least = found.flops, "at least " if found.at_least else ""
    return f"{safe(found.model, 80)}: {least}{power(flops.model)} FLOPs of training, {power(flops.executed)} executed"


def facts(found: Statement) -> Iterator[tuple[str, str]]:
    """Parameters, hours, utilisation, energy and emissions by name, as far as they are known."""
    yield "parameters", f"{found.parameters:,}"
    yield f"parameters that a {unit(found)} uses", f"{found.used_parameters:,}"
    devices = f" on {found.devices:,} x {safe(found.device, 60)}" if found.device else ""
    known = {
        f"hours{devices}": found.hours,
        "energy in kWh": found.energy_kwh,
        "CO2 equivalent in kg": found.co2_kg,
    }
    yield from ((name, f"{span(part)} ({part.basis})") for name, part in known.items() if part)
    if found.mfu is not None:
        yield "MFU", f"{found.mfu:.1%}, model FLOPs over the published peak"
        yield "HFU", f"{found.hfu:.1%}, executed FLOPs over the same"


def unit(found: Statement) -> str:
    """What is counted: tokens stand in sequences, samples do not."""
    return "sample" if found.stages[0].length is None else "token"


def span(interval: Interval) -> str:
    """An interval, or the one number that it is."""
    low, high = (f"{x:,.4g}" if x < 10_000 else f"{x:,.0f}" for x in (interval.low, interval.high))
    return low if low == high else f"{low} to {high}"


def tables(found: Statement) -> Iterator[TextTable]:
    """Stages, conventions and thresholds."""
    entries, names = [], [name for name, _, _ in CONVENTIONS.values()]
    for one in found.stages:
        name = safe(one.name, 60) + " (not counted)" * (not one.counted)
        length = "" if one.length is None else f"{one.length:,}"
        cells = [name, parameters(one.tokens), length, *_figures(one.flops, one.at_least)]
        entries.append(Entry(cells, path=name))
        each = _figures(one.flops, one.at_least, one.tokens)
        entries.append(Entry([f"per {unit(found)}", "", "", *each], 1))
    entries.append(Entry(["counted", "", "", *_figures(found.flops, found.at_least)]))
    yield TextTable(("stage", f"{unit(found)}s", "length", *names), entries)
    shares = {field: getattr(found.flops, field) / (found.flops.model or 1) for field in CONVENTIONS}
    ratios = [Entry([*CONVENTIONS[field], f"{share:.3f}"]) for field, share in shares.items()]
    yield TextTable(("convention", "what it is", "where it parts", "of model FLOPs"), ratios, 3)
    laws = [
        [one.threshold.name, power(one.flops), f"{one.share:.3g}", one.standing] for one in found.thresholds
    ]
    yield TextTable(("threshold", "FLOPs", "the run", "stands"), [*map(Entry, laws)])


def _figures(flops: Flops, at_least: bool, tokens: int = 0) -> Iterator[str]:
    """FLOPs by convention, of each token where a number of them is given."""
    for field in CONVENTIONS:
        count: float = getattr(flops, field)
        yield ">= " * at_least + (number(round(count / tokens)) if tokens else power(count))


def lists(found: Statement) -> Iterator[tuple[str, list[str]]]:
    """Figures of the run, sentences to quote with their sources, and assumptions."""
    quotes = []
    for one in found.thresholds:
        law, since = one.threshold, one.threshold.in_force or "not verified"
        quotes.append(f"{one.sentence} ({law.meaning}; in force: {since}; read {law.read}: {law.source})")
    figures = [f"{name}: {value}" for name, value in facts(found)]
    for title, lines in (("In numbers", figures), ("To quote", quotes), ("Assumed", found.assumptions)):
        yield title, [safe(line, 2000) for line in lines]
