"""What a notebook shows of a result: HTML in one line, made of tags and attributes that sanitizers let through."""

from __future__ import annotations

from typing import Any

from graphflops.base.lazy import imported
from graphflops.derived.overview import Overview
from graphflops.derived.sweep import Sweep
from graphflops.fitting.fits import Fits
from graphflops.render.html.fragment import escaped, table
from graphflops.render.tables import Entry, TextTable
from graphflops.report.findings import Findings, ModelFindings
from graphflops.serving.plan import Serving
from graphflops.versions.history import History

_FINDINGS = 50  # shown of one model
_OF = {
    "Report": "graphflops.render.html.fragment:fragment",
    "Comparison": "graphflops.render.html.diff:fragment",
    "Findings": f"{__name__}:findings",
    "Sweep": f"{__name__}:sweep",
    "Overview": f"{__name__}:overview",
    "History": f"{__name__}:history",
    "Fits": f"{__name__}:fits",
    "Validation": f"{__name__}:validation",
    "Statement": "graphflops.render.statement:fragment",
    "Serving": f"{__name__}:serving",
    "Plan": "graphflops.render.plan:fragment",
}


def notebook(value: Any) -> str:
    """The result as a piece of HTML."""
    return str(imported(_OF[type(value).__name__])(value)).replace("\n", " ")


def findings(found: Findings) -> str:
    """How many there are, and a table for each model with any."""
    from graphflops.render.brief import conclusion

    return f"<div><p><b>{escaped(conclusion(found.models))}</b></p>{''.join(map(_model, found.models))}</div>"


def fits(found: Fits) -> str:
    """The verdict and its tables."""
    from graphflops.render.fits import tables, verdict

    return f"<div><p><b>{escaped(verdict(found))}</b></p>{''.join(map(table, tables(found)))}</div>"


def serving(found: Serving) -> str:
    """What a token keeps, and the tables."""
    from graphflops.render.serving import headline, tables

    return f"<div><p><b>{escaped(headline(found))}</b></p>{''.join(map(table, tables(found)))}</div>"


def _model(model: ModelFindings) -> str:
    from graphflops.render.brief import state
    from graphflops.render.findings import limit_table, where, worth

    heads = ("severity", "code", "what", "where", "costs", "fix")
    entries = [
        Entry([f.severity, f"{f.code} {f.name}", f.message, where(f), worth(f, model), f.fix])
        for f in model.findings[:_FINDINGS]
    ]
    rest = len(model.findings) - len(entries)
    limits = table(limit_table(model.limits)) if model.limits else ""
    shown = table(TextTable(heads, entries, len(heads))) if entries else ""
    more = f"<p>… and {rest:,} more</p>" if rest else ""
    return f"<p><b>{escaped(model.model)}</b>: {escaped(state(model))}</p>{limits}{shown}{more}"


def sweep(found: Sweep) -> str:
    """A line for each point."""
    from graphflops.render.sweep import cells
    from graphflops.render.tables import listing

    notes = "".join(f"<li>{escaped(note)}</li>" for note in found.notes)
    points = listing(cells(found.points, found.report.price_per_hour, exact=False))
    return f"<div>{table(points)}{f'<ul>{notes}</ul>' if notes else ''}</div>"


def history(found: History) -> str:
    """A line for each commit."""
    from graphflops.render.history import grid

    return f"<div>{table(grid(found))}</div>"


def overview(found: Overview) -> str:
    """A line for each model."""
    from graphflops.render.overview import grid

    return f"<div>{table(grid(found))}</div>"


def validation(found: Any) -> str:
    """The facts, line by line."""
    from graphflops.render.validation import conclusion, facts

    lines = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(text)}</td></tr>" for name, text in facts(found)
    )
    return f"<div><p><b>{escaped(conclusion(found))}</b></p><table>{lines}</table></div>"
