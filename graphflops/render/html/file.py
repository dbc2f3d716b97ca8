"""The HTML file around any page: it opens from disk, without network; its policy names style and script by hash."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from graphflops.render.html.fragment import escaped
from graphflops.version import __version__


def page(title: str, body: str, style: str = "", script: str = "") -> str:
    """A page of HTML. style: by default that of a plain text with tables and charts. script: "" for a page without any."""
    style = style or read(Path(__file__).parent, "plain.css")
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
    """A script or style as a policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
