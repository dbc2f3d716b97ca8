"""The JSON formats as JSON Schema, made from the types that write them.

`python -m graphflops.render.schema`, in the root of the repository, writes docs/*.schema.json.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from graphflops.render.diff import json as comparison
from graphflops.report import as_json as report_json
from graphflops.statements import statement

# Of `graphflops analyze`, `diff` and `statement` with `--format json`, by file: the type, the title, and the number.
_DOCUMENTS: dict[str, tuple[Callable[[], Any], str, int]] = {
    "report": (report_json.document_type, "graphflops report", report_json.SCHEMA),
    "diff": (comparison.document_type, "graphflops comparison", comparison.SCHEMA),
    "statement": (lambda: statement.Statement, "graphflops compute statement", statement.SCHEMA),
}


def _schema(name: str) -> str:
    kind, title, number = _DOCUMENTS[name]
    made: dict[str, Any] = msgspec.json.schema(kind())
    about = f"schema {number}, described in docs/{name}.md"
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "description": about}
    return msgspec.json.format(msgspec.json.encode({**head, **made}), indent=2).decode() + "\n"


SCHEMAS = {f"{name}.schema.json": partial(_schema, name) for name in _DOCUMENTS}


if __name__ == "__main__":
    for name, made in SCHEMAS.items():
        Path("docs", name).write_text(made(), encoding="utf-8")
