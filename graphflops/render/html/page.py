"""The HTML file around a page: it opens from disk, without network; its policy names script and style by hash."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path

from graphflops.devices import published
from graphflops.render.html.data import inert
from graphflops.render.html.fragment import escaped
from graphflops.version import __version__

_HERE = Path(__file__).parent
# In the order in which they build on each other; together they are one script.
SCRIPTS = (
    "formula.js",
    "text.js",
    "dom.js",
    "model.js",
    "sizes.js",
    "summary.js",
    "changes.js",
    "icicle.js",
    "modules.js",
    "table.js",
    "roofline.js",
    "memory.js",
    "picture.js",
    "page.js",
)


def page(data: str, title: str, plain: str, given: str = "", scripts: tuple[str, ...] = SCRIPTS) -> str:
    """A page that shows data, as `page_data` gives them, by these scripts.

    plain: HTML for a reader whose browser runs no script. given: HTML that is inserted unchanged.
    """
    style, script = _style(), _script(scripts)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {hashed(style)}",
            f"script-src {hashed(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="graphflops {__version__}">
<title>{escaped(title)} · graphflops</title>
<style>{style}</style>
</head>
<body>
<noscript>{plain}</noscript>
<main id="page">{given}</main>
<script type="application/json" id="data">{data}</script>
<script type="application/json" id="devices">{inert(json.dumps(devices()).encode())}</script>
<script>{script}</script>
</body>
</html>
"""


def devices() -> list[dict[str, object]]:
    """Machines by name with their published peaks, as the roofline reads them."""
    names = ("name", "memory_bytes", "bandwidth", "vector")
    return [
        {name: getattr(one, name) for name in names}
        | {"matrix": dict(one.matrix), "source": one.sources["bandwidth"]}
        for one in published()
    ]


@cache
def _style() -> str:
    return "".join((_HERE / name).read_text("utf-8") for name in ("page.css", "picture.css"))


@cache
def _script(scripts: tuple[str, ...]) -> str:
    parts = "\n".join((_HERE / name).read_text("utf-8") for name in scripts)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def hashed(text: str) -> str:
    """A script or style as a policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
