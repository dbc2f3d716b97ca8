"""What a notebook shows of a result: HTML in one line, made of tags and attributes that sanitizers let through."""

from __future__ import annotations

from typing import Any

from graphflops.base.lazy import imported
from graphflops.render.html.fragment import escaped

# By the name of a class; of all others their document.
_OF = {
    "Report": "graphflops.render.html.fragment:fragment",
    "Comparison": "graphflops.render.html.diff:fragment",
    "Findings": "graphflops.render.findings:fragment",
    "Sweep": f"{__name__}:sweep",
    "Validation": f"{__name__}:validation",
    "Statement": "graphflops.render.statement:fragment",
}


def notebook(value: Any) -> str:
    """The result as a piece of HTML."""
    form = _OF.get(type(value).__name__, "graphflops.render.document:fragment")
    return str(imported(form)(value)).replace("\n", " ")


def sweep(found: Any) -> str:
    """A line for each point, and the notes, which a command says apart."""
    points = imported("graphflops.render.document:fragment")(found)
    notes = "".join(f"<li>{escaped(note)}</li>" for note in found.notes)
    return f"<div>{points}{f'<ul>{notes}</ul>' if notes else ''}</div>"


def validation(found: Any) -> str:
    """The facts, line by line."""
    from graphflops.render.validation import conclusion, facts

    rows = ((escaped(name), escaped(text)) for name, text in facts(found))
    lines = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows)
    return f"<div><p><b>{escaped(conclusion(found))}</b></p><table>{lines}</table></div>"
