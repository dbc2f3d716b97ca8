"""Results as HTML without script or style, for notebooks and for browsers that run no script; the file around any page.

A page opens from disk, without network; its policy names style and script by hash. HTML for notebooks is one line, with
only such tags and attributes as sanitizers let through.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from graphflops.base.lazy import imported
from graphflops.render import summary
from graphflops.render.ledger import Ledger
from graphflops.render.tables import tables
from graphflops.render.text import TextTable, inert as one_line, safe, shortened
from graphflops.report import Report
from graphflops.version import __version__

FOLDER = Path(__file__).parent
_FORMULA = 100  # characters of a formula shown
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


def fragment(report: Report) -> str:
    """Totals and where the work is, as tables."""
    ledger = Ledger(report, formula_width=_FORMULA)
    sizes = "".join(f"<br>{escaped(size)} {escaped(about)}" for size, about in summary.sizes(report))
    facts = "".join(
        f"<tr><th>{escaped(fact.label)}</th><td>{escaped(fact.text)}</td>"
        f"<td>{escaped(shortened(fact.formula, _FORMULA))}</td></tr>"
        for fact in summary.facts(report, ledger)
    )
    problems = "".join(f"<li>{escaped(problem)}</li>" for problem in summary.diagnostics(report))
    return (
        f"<div><p><b>{escaped(summary.title(report))}</b> {escaped(summary.headline(report))}{sizes}</p>"
        f"<table>{facts}</table>"
        f"{''.join(map(table, tables(report, ledger)))}"
        f"{f'<ul>{problems}</ul>' if problems else ''}</div>"
    )


def table(grid: TextTable) -> str:
    """A table; figures stand on the right."""
    sides = [f' align="{"left" if index < grid.names else "right"}"' for index in range(len(grid.heads))]
    return _drawn(grid, sides, sides)


def wide(grid: TextTable, label: str) -> str:
    """A table of figures for a page, in a box that scrolls. label: of the box, for screen readers."""
    heads, cells = ([f'{scope} class="figure"'] * len(grid.heads) for scope in (' scope="col"', ""))
    return f'<div class="wide" tabindex="0" role="region" aria-label="{label}">{_drawn(grid, heads, cells)}</div>'


def _drawn(grid: TextTable, of_heads: Sequence[str], of_cells: Sequence[str]) -> str:
    """A table whose heads and cells have these attributes, by column."""
    title = f"<caption>{escaped(grid.title)}</caption>" if grid.title else ""
    heads = _cells("th", of_heads, grid.heads)
    rows = "".join(f"<tr>{_cells('td', of_cells, one.cells, one.level)}</tr>" for one in grid.entries)
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def escaped(text: str) -> str:
    """Text that HTML shows as it is."""
    return "".join(_ENTITIES.get(c, c) for c in safe(text, 10_000))


def _cells(tag: str, attributes: Sequence[str], cells: Sequence[str], level: int = 0) -> str:
    parts = zip(attributes, ["&emsp;" * level, *[""] * (len(cells) - 1)], map(escaped, cells), strict=True)
    return "".join(f"<{tag}{attribute}>{indent}{text}</{tag}>" for attribute, indent, text in parts)


def page(title: str, body: str, style: str = "", script: str = "") -> str:
    """A page of HTML. style: by default that of a plain text with tables and charts. script: "" for a page without any."""
    style = style or read(FOLDER, "plain.css")
    sources = [f"style-src {_hashed(style)}", *[f"script-src {_hashed(script)}"] * bool(script)]
    policy = "; ".join(("default-src 'none'", *sources, "base-uri 'none'", "form-action 'none'"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="graphflops {__version__}">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


@cache
def read(folder: Path, *names: str, between: str = "") -> str:
    """Files of a folder as one text."""
    return between.join((folder / name).read_text("utf-8") for name in names)


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_OF = {
    "Report": "graphflops.render.html.fragment:fragment",
    "Comparison": "graphflops.render.html.diff:fragment",
    "Findings": "graphflops.render.findings:fragment",
}


def notebook(value: Any) -> str:
    """The result as a piece of HTML."""
    form = _OF.get(type(value).__name__, "graphflops.render.document:fragment")
    return str(imported(form)(value)).replace("\n", " ")


# In the order in which they build on each other; together they are one script.
SCRIPTS = (
    "formula.js", "text.js", "dom.js", "model.js", "sizes.js", "summary.js", "changes.js", "icicle.js",
    "modules.js", "table.js", "roofline.js", "memory.js", "picture.js", "page.js",
)  # fmt: skip


def inert(data: bytes) -> str:
    """JSON that is safe inside a script element: it cannot end it, nor reorder or hide the text around it."""
    text = one_line(data).rstrip("\n")
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def scripted(data: str, title: str, plain: str, given: str = "", scripts: tuple[str, ...] = SCRIPTS) -> str:
    """A page of data as `page_data` gives them. plain: HTML for readers without script. given: HTML inserted unchanged."""
    machines = inert(json.dumps(devices()).encode())
    body = f"""<noscript>{plain}</noscript>
<main id="page">{given}</main>
<script type="application/json" id="data">{data}</script>
<script type="application/json" id="devices">{machines}</script>"""
    parts = read(FOLDER, *scripts, between="\n")
    script = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    return page(f"{title} · graphflops", body, read(FOLDER, "page.css", "picture.css"), script)


def devices() -> list[dict[str, object]]:
    """Machines by name with their published peaks, as the roofline reads them."""
    from graphflops.devices import published

    names = ("name", "memory_bytes", "bandwidth", "vector")
    return [
        {name: getattr(one, name) for name in names}
        | {"matrix": dict(one.matrix), "source": one.sources["bandwidth"]}
        for one in published()
    ]
