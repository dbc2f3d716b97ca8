"""The Markdown of each page beside its HTML, and the two files that language models read: llms.txt and llms-full.txt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_INTRODUCTION = "graphflops tells what a model costs (FLOPs, bytes, memory, time) before anyone runs it."


def write_twins(app: Sphinx, error: Exception | None) -> None:
    """Writes PAGE.md beside PAGE.html, a list of all pages, and all pages in one file."""
    if error is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir)
    lines, whole = ["# graphflops\n", f"> {_INTRODUCTION}\n"], []
    for name in sorted(app.env.found_docs, key=lambda name: (name != "index", name)):
        text = Path(app.env.doc2path(name)).read_text("utf-8")
        twin = folder / f"{name}.md"
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(text, encoding="utf-8")
        lines.append(f"- [{_title(text)}]({name}.md): {_first_sentence(text)}")
        if not name.startswith("reference/rules/"):  # the code of every rule is no text to read whole
            whole.append(text)
    (folder / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def _first_sentence(text: str) -> str:
    body = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = [part.strip() for part in body.split("\n\n")]
    prose = next(
        (part for part in paragraphs if part and not part.startswith(("#", "|", "-", "!", "---"))), ""
    )
    flat = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return re.split(r"(?<=[.:]) ", flat)[0]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("build-finished", write_twins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
