"""The JSON formats as JSON Schema, made from the types that write them; docs/*.schema.json holds what this gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from graphflops import wire
from graphflops.render.diff import json as comparison

if TYPE_CHECKING:
    from collections.abc import Callable


def report_schema() -> str:
    """Of `graphflops analyze --format json`."""
    return _schema(wire.WireReport, "graphflops report", f"schema {wire.SCHEMA}, described in docs/report.md")


def comparison_schema() -> str:
    """Of `graphflops diff --format json`."""
    return _schema(
        comparison.Diff, "graphflops comparison", f"schema {comparison.SCHEMA}, described in docs/diff.md"
    )


SCHEMAS: dict[str, Callable[[], str]] = {
    "report.schema.json": report_schema,
    "diff.schema.json": comparison_schema,
}


def _schema(kind: type[msgspec.Struct], title: str, about: str) -> str:
    made: dict[str, Any] = msgspec.json.schema(kind)
    named = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": about,
        **made,
    }
    text = msgspec.json.format(msgspec.json.encode(named), indent=2).decode()
    for prefix in ("_Wire", "Wire", "_"):  # names of types are ours; "Report", "Row" say enough
        text = text.replace(f'"{prefix}', '"').replace(f"/$defs/{prefix}", "/$defs/")
    return text + "\n"
