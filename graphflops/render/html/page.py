"""The page of a report, or of two side by side: data, and the scripts that show them."""

from __future__ import annotations

import json
from pathlib import Path

from graphflops.devices import published
from graphflops.render.html import fragment
from graphflops.render.html.data import inert
from graphflops.render.html.fragment import read

_HERE = Path(__file__).parent
# In the order in which they build on each other; together they are one script.
SCRIPTS = (
    "formula.js", "text.js", "dom.js", "model.js", "sizes.js", "summary.js", "changes.js", "icicle.js",
    "modules.js", "table.js", "roofline.js", "memory.js", "picture.js", "page.js",
)  # fmt: skip


def page(data: str, title: str, plain: str, given: str = "", scripts: tuple[str, ...] = SCRIPTS) -> str:
    """A page that shows data, as `page_data` gives them, by these scripts.

    plain: HTML for a reader whose browser runs no script. given: HTML that is inserted unchanged.
    """
    machines = inert(json.dumps(devices()).encode())
    body = f"""<noscript>{plain}</noscript>
<main id="page">{given}</main>
<script type="application/json" id="data">{data}</script>
<script type="application/json" id="devices">{machines}</script>"""
    parts = read(_HERE, *scripts, between="\n")
    script = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    return fragment.page(f"{title} · graphflops", body, read(_HERE, "page.css", "picture.css"), script)


def devices() -> list[dict[str, object]]:
    """Machines by name with their published peaks, as the roofline reads them."""
    names = ("name", "memory_bytes", "bandwidth", "vector")
    return [
        {name: getattr(one, name) for name in names}
        | {"matrix": dict(one.matrix), "source": one.sources["bandwidth"]}
        for one in published()
    ]
