"""A compute statement for a terminal, a model card, a page, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphflops.base.units import number, parameters, power
from graphflops.render.html.fragment import escaped as html_escaped
from graphflops.render.html.fragment import table as html_table
from graphflops.render.json import inert
from graphflops.render.markdown import drawn, escaped
from graphflops.render.tables import Entry, TextTable
from graphflops.render.text import safe
from graphflops.statements.figures import Interval
from graphflops.statements.statement import Flops, Statement

CONVENTIONS = {  # by field of Flops: its name, its formula, and where it parts from the first
    "model": ("model FLOPs", "matrix work of forward and gradients, visible pairs once", ""),
    "executed": ("executed FLOPs", "the same as kernels multiply it", "recomputation, and hidden pairs beside visible ones"),
    "six_nd": ("6ND", "6 x used parameters x tokens; 4 frozen, 2 untrained", "no attention; embeddings are products"),
    "six_nd_attention": ("6ND + attention", "6ND + 3 x attention of all pairs", "hidden pairs; embeddings are products"),
}  # fmt: skip


def table(found: Statement, *, width: int = 120, color: bool = False) -> str:
    """What the run cost, by stage and convention, where it stands against thresholds, and what is assumed."""
    from graphflops.render.document import told

    screen = told((headline(found), "bold"), facts(found), tables(found), width, color)
    for title, lines in lists(found):
        screen.line()
        screen.line((title, "bold"))
        for line in lines:
            screen.line((f"  {line}", ""))
    return screen.text()


def markdown(found: Statement) -> str:
    """A section of a model card."""
    parts = [f"## Compute\n\n{escaped(headline(found))}.\n", *map(drawn, tables(found))]
    titled = [("In numbers", [*facts(found)]), *lists(found)]
    parts += [f"{title}:\n\n" + "".join(f"- {escaped(line)}\n" for line in lines) for title, lines in titled]
    return "\n".join(parts)


def json(found: Statement) -> str:
    """The whole statement, as docs/statement.schema.json describes it."""
    return inert(msgspec.json.encode(found))


def html(found: Statement) -> str:
    """A page that needs no network and runs no script."""
    from graphflops.render.history import page

    title = f"{found.model}: compute statement"
    return page(title, f"<h1>{html_escaped(title)}</h1>{fragment(found)}")


def fragment(found: Statement) -> str:
    """The same for a notebook."""
    titled = [(headline(found), [*facts(found)]), *lists(found)]
    texts = [
        f"<p><b>{html_escaped(title)}</b></p><ul>{''.join(f'<li>{html_escaped(line)}</li>' for line in lines)}</ul>"
        for title, lines in titled
    ]
    return f"<div>{texts[0]}{''.join(map(html_table, tables(found)))}{''.join(texts[1:])}</div>"


def headline(found: Statement) -> str:
    """The run in one line."""
    flops, least = found.flops, "at least " if found.at_least else ""
    return f"{safe(found.model, 80)}: {least}{power(flops.model)} FLOPs of training, {power(flops.executed)} executed"


def facts(found: Statement) -> Iterator[str]:
    """Parameters, hours, utilisation and energy, as far as they are known."""
    yield f"{parameters(found.parameters)} parameters, of which a token uses {parameters(found.used_parameters)}"
    devices = f" on {found.devices:,} x {safe(found.device, 60)}" if found.device else ""
    if found.hours is not None:
        yield f"{span(found.hours)} hours{devices} ({found.hours.basis})"
    if found.mfu is not None and found.hfu is not None:
        yield f"MFU {found.mfu:.1%}, HFU {found.hfu:.1%}: model and executed FLOPs over the published peak"
    if found.energy_kwh is not None:
        yield f"{span(found.energy_kwh)} kWh ({found.energy_kwh.basis})"


def span(interval: Interval) -> str:
    """An interval, or the one number that it is."""
    low, high = (f"{x:,.4g}" if x < 10_000 else f"{x:,.0f}" for x in (interval.low, interval.high))
    return low if low == high else f"{low} to {high}"


def tables(found: Statement) -> Iterator[TextTable]:
    """Stages, conventions and thresholds."""
    entries = []
    for one in found.stages:
        name, length = safe(one.name, 60), "" if one.length is None else f"{one.length:,}"
        head = [name if one.counted else f"{name} (not counted)", parameters(one.tokens), length]
        entries.append(Entry([*head, *_figures(one.flops, one.at_least)], path=head[0]))
        entries.append(Entry(["each", "", "", *_figures(one.flops, one.at_least, one.tokens)], 1))
    entries.append(Entry(["counted", "", "", *_figures(found.flops, found.at_least)]))
    yield TextTable(("stage", "tokens", "length", *(name for name, _, _ in CONVENTIONS.values())), entries)
    base = found.flops.model or 1
    shares = {field: f"{getattr(found.flops, field) / base:.3f}" for field in CONVENTIONS}
    ratios = [Entry([*texts, shares[field]]) for field, texts in CONVENTIONS.items()]
    yield TextTable(("convention", "what it is", "where it parts", "of model FLOPs"), ratios, 3)
    laws = (
        (one.threshold.name, power(one.flops), f"{one.share:.3g}", one.standing) for one in found.thresholds
    )
    yield TextTable(("threshold", "FLOPs", "the run", "stands"), [*map(Entry, laws)])


def _figures(flops: Flops, at_least: bool, tokens: int = 0) -> Iterator[str]:
    """FLOPs by convention, of each token where a number of them is given."""
    for field in CONVENTIONS:
        count: float = getattr(flops, field)
        yield ">= " * at_least + (number(round(count / tokens)) if tokens else power(count))


def lists(found: Statement) -> Iterator[tuple[str, list[str]]]:
    """Sentences to quote with their sources, and assumptions."""
    quotes = []
    for one in found.thresholds:
        law, since = one.threshold, one.threshold.in_force or "not verified"
        quotes.append(f"{one.sentence} ({law.meaning}; in force: {since}; read {law.read}: {law.source})")
    for title, lines in (("To quote", quotes), ("Assumed", found.assumptions)):
        yield title, [safe(line, 2000) for line in lines]
