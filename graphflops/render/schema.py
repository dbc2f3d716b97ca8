"""The JSON formats as JSON Schema, made from the types that write them.

`python -m graphflops.render.schema`, in the root of the repository, writes docs/*.schema.json.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from graphflops.render.diff import json as comparison
from graphflops.report import as_json as report_json
from graphflops.statements import statement


def report_schema() -> str:
    """Of `graphflops analyze --format json`."""
    about = f"schema {report_json.SCHEMA}, described in docs/report.md"
    return _schema(report_json.document_type(), "graphflops report", about)


def comparison_schema() -> str:
    """Of `graphflops diff --format json`."""
    about = f"schema {comparison.SCHEMA}, described in docs/diff.md"
    return _schema(comparison.document_type(), "graphflops comparison", about)


def statement_schema() -> str:
    """Of `graphflops statement --format json`."""
    about = f"schema {statement.SCHEMA}, described in docs/statement.md"
    return _schema(statement.Statement, "graphflops compute statement", about)


SCHEMAS: dict[str, Callable[[], str]] = {
    "report.schema.json": report_schema,
    "diff.schema.json": comparison_schema,
    "statement.schema.json": statement_schema,
}


def _schema(kind: type, title: str, about: str) -> str:
    made: dict[str, Any] = msgspec.json.schema(kind)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "description": about}
    named = {**head, **made}
    text = msgspec.json.format(msgspec.json.encode(named), indent=2).decode()
    return text + "\n"


if __name__ == "__main__":
    for name, made in SCHEMAS.items():
        Path("docs", name).write_text(made(), encoding="utf-8")
